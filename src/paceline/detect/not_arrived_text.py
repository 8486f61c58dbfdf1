"""Ranks that have not arrived, from the text that ``ncclras`` prints.

The text names single ranks or small groups with the same count, but not the leading ranks. Unlike
JSON, it therefore does not show which of several late processes waits for another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paceline.detect.not_arrived import NOT_COUNTED
from paceline.detect.who import name_ranks
from paceline.sources.nccl_ras import Process
from paceline.sources.nccl_ras_text import RankGroup, RasText, Trouble
from paceline.units import count

#: Most processes listed by name for each reason, as for JSON.
_LISTED = 10

ONE_STATUS = "a text has no time, so it cannot tell a hang from a job that goes on: ask for JSON"
NOT_NAMED = "the text does not name all ranks that are behind: ask with ncclras -v, or for JSON"
SEVERAL = (
    "ranks of several communicators are behind; which of them waits for another a text does not "
    "say: ask for JSON"
)
MISREAD = (
    "ranks are missing, and NCCL before 2.29 reads the communicators behind one with missing ranks "
    "from a wrong place for a text, so communicators are left out: ask for JSON (from 2.28.7)"
)


@dataclass(frozen=True)
class Late:
    """Ranks that launched fewer collectives than others of their communicator.

    Attributes:
        op: the operation.
        behind: missing calls, compared with the leading rank.
        group: the named ranks.
    """

    op: str
    behind: int
    group: RankGroup

    def explain(self) -> str:
        """``rank 3 is 2 AllReduce behind: GPU 3 of process 411 on 10.0.0.7``."""
        verb = "are" if self.group.size > 1 else "is"
        return f"{_ranks(self.group)} {verb} {self.behind:,} {self.op} behind{_holders(self.group)}"


@dataclass(frozen=True)
class NotArrivedText:
    """The findings of one status as text.

    Attributes:
        status: the status as read.
        who: named processes that do not answer, then those that are behind.
        notes: limits of the findings.
    """

    status: RasText
    who: tuple[Process, ...]
    notes: tuple[str, ...]

    def explain(self) -> str:
        """All findings, a line each."""
        status = self.status
        level = status.n_communicators - len(status.troubles)
        total = count(status.n_communicators, "communicator")
        told = "left out" if status.misread else f"{level:,} of them level"
        lines = [f"NCCL {status.nccl_version}, {total}, {told}"]
        for (n, processes), verb in zip(
            (status.unresponsive, status.dead),
            ("did not answer", "cannot be reached any more"),
            strict=True,
        ):
            if n:
                lines.append(f"{count(n, 'process', 'processes')} {verb}{_names(processes)}")
        for trouble in status.troubles.values():
            head = f"communicator {trouble.hash} of {trouble.size} ranks"
            lines += [f"{head}: {text}" for text in _texts(trouble)]
        if self.who:
            lines.append(f"behind when asked{_names(self.who)}")
        elif level == status.n_communicators and not status.misread and not self._n_gone:
            lines.append("no rank is behind, and none is missing")
        return "\n".join(lines)

    @property
    def _n_gone(self) -> int:
        return self.status.unresponsive[0] + self.status.dead[0]

    def to_mapping(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "kind": "not-arrived-text",
            "file": str(self.status.path),
            "nccl": self.status.nccl_version,
            "n_communicators": self.status.n_communicators,
            "communicators": [
                {
                    "hash": trouble.hash,
                    "size": trouble.size,
                    "behind": [
                        {"op": late.op, "calls": late.behind, **_group(late.group)}
                        for late in lates(trouble)
                    ],
                    "missing": None if trouble.missing is None else _group(trouble.missing),
                    "states": _by_value(trouble, "status"),
                    "failed": _by_value(trouble, "Initialization")
                    + _by_value(trouble, "Asynchronous"),
                }
                for trouble in self.status.troubles.values()
            ],
            "who": [_mapping(process) for process in self.who],
            "notes": list(self.notes),
            "text": self.explain(),
        }


def not_arrived_text(status: RasText) -> NotArrivedText:
    """Ranks that are behind or missing, as far as the text names them."""
    late = [(trouble, late) for trouble in status.troubles.values() for late in lates(trouble)]
    late.sort(key=lambda item: -item[1].behind)
    gone = (*status.unresponsive[1], *status.dead[1])
    behind = (
        rank.process for _, item in late for rank in item.group.named if rank.process is not None
    )
    notes = [NOT_COUNTED, ONE_STATUS]
    if any(not item.group.named for _, item in late):
        notes.append(NOT_NAMED)
    if len({trouble.place for trouble, _ in late}) > 1:
        notes.append(SEVERAL)
    if status.misread:
        notes.append(MISREAD)
    if status.n_timeouts:
        notes.append(f"RAS waited {status.n_timeouts:,} times in vain for processes")
    return NotArrivedText(status, tuple(dict.fromkeys((*gone, *behind))), tuple(notes))


def lates(trouble: Trouble) -> list[Late]:
    """The late ranks of a communicator, the furthest behind first."""
    result = []
    for op, groups in trouble.topics.items():
        launched = [group.value for group in groups if isinstance(group.value, int)]
        result += [
            Late(op, max(launched) - group.value, group)
            for group in groups
            if isinstance(group.value, int) and group.value < max(launched)
        ]
    return sorted(result, key=lambda late: -late.behind)


def _texts(trouble: Trouble) -> Iterator[str]:
    yield from (late.explain() for late in lates(trouble))
    if trouble.missing is not None:
        yield f"{_ranks(trouble.missing)} did not answer{_holders(trouble.missing)}"
    for topic in ("Initialization", "Asynchronous"):
        for group in trouble.topics.get(topic, ()):
            yield f"{_ranks(group)}: {str(group.value).lower()}{_holders(group)}"
    states = trouble.topics.get("status", ())
    if states:
        yield "its ranks are in different states: " + ", ".join(
            f"{_ranks(group)} {str(group.value).lower()}" for group in states
        )


def _ranks(group: RankGroup) -> str:
    if group.named:
        return name_ranks(tuple(sorted(rank.rank for rank in group.named)))
    return f"{group.size:,} ranks"


def _holders(group: RankGroup) -> str:
    return _names([rank.process for rank in group.named if rank.process is not None])


def _names(processes: list[Process] | tuple[Process, ...]) -> str:
    """A colon and names, up to the length of a line; empty without any."""
    if not processes:
        return ""
    names = "; ".join(process.explain() for process in processes[:_LISTED])
    return f": {names}" + f"; and {len(processes) - _LISTED:,} more" * (len(processes) > _LISTED)


def _by_value(trouble: Trouble, topic: str) -> list[dict[str, Any]]:
    return [{"value": group.value, **_group(group)} for group in trouble.topics.get(topic, ())]


def _group(group: RankGroup) -> dict[str, Any]:
    return {
        "size": group.size,
        "ranks": [
            {"rank": rank.rank, **({} if rank.process is None else _mapping(rank.process))}
            for rank in group.named
        ],
    }


def _mapping(process: Process) -> dict[str, Any]:
    return {"host": process.host, "pid": process.pid, "gpu": process.gpu}
