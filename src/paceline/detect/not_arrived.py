"""Ranks that have not arrived, which launched fewer collectives than others, from NCCL's RAS.

In a communicator all ranks launch the same collectives in one order, so a rank with fewer launches
has not reached the call where the others wait. A leading rank waits itself if others of its
communicator are late. Hence only a process that waits nowhere delays the others. Counts have no
times, and ranks of a running job also differ by a call or so. Two statuses distinguish it from a
hang.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.detect.who import name_ranks
from paceline.errors import TraceError
from paceline.sources.nccl_ras import Communicator, MissingRank, Process, RankStatus, RasStatus
from paceline.units import count

#: Most processes listed by name for each reason; NCCL's own limit is 10.
_LISTED = 10

ONE_STATUS = (
    "one status cannot tell a hang from a job that goes on: take another one after 30 s or more, "
    "and give both"
)
NOT_COUNTED = (
    "collectives in CUDA graphs, sends and receives are not counted, and a collective that all "
    "ranks have launched may hang, too: PyTorch's flight recorder shows all calls"
)


@dataclass(frozen=True)
class Lag:
    """A rank that launched fewer collectives than others of its communicator.

    Attributes:
        rank: rank in the communicator.
        process: process of the rank.
        behind: operation -> missing calls, without operations of which none is missing.
        launched: number of collectives since the first status; None with one status.
    """

    rank: int
    process: Process
    behind: Mapping[str, int]
    launched: int | None

    @property
    def n_behind(self) -> int:
        """Missing calls of all operations."""
        return sum(self.behind.values())


@dataclass(frozen=True)
class Standing:
    """The progress of a communicator's ranks.

    Attributes:
        communicator: the communicator in the last status.
        lags: ranks that are behind, the furthest behind first.
        in_order: whether some rank leads in every operation. Otherwise the ranks made different
            calls.
        launched: collectives of all its ranks since the first status; None with one status, or if
            the first status lacks the communicator.
    """

    communicator: Communicator
    lags: tuple[Lag, ...]
    in_order: bool
    launched: int | None

    @property
    def states(self) -> tuple[str, ...]:
        """The state of its ranks, one if they agree."""
        return tuple(sorted({rank.state for rank in self.communicator.ranks}))

    @property
    def failed(self) -> tuple[RankStatus, ...]:
        """Its ranks with an error."""
        return tuple(rank for rank in self.communicator.ranks if rank.error)

    @property
    def gone(self) -> tuple[MissingRank, ...]:
        """Its ranks whose process does not answer."""
        return tuple(rank for rank in self.communicator.missing if rank.why != "not a member")

    @property
    def is_level(self) -> bool:
        """Whether there is no finding."""
        missing = self.communicator.missing
        return not (self.lags or missing or self.failed) and len(self.states) < 2

    def explain(self) -> list[str]:
        """A line for each finding."""
        said = [
            *self._lags_text(),
            *(
                f"{name_ranks(tuple(rank.rank for rank in ranks))} {verb}: "
                + _listed([rank.process for rank in ranks])
                for verb, ranks in self._absences()
            ),
            *(f"rank {rank.rank}: {rank.error}: {rank.process.explain()}" for rank in self.failed),
        ]
        if len(self.states) > 1:
            said.append("its ranks are in different states: " + ", ".join(self.states))
        head = f"communicator {self.communicator.hash} of {self.communicator.size} ranks"
        return [f"{head}: {text}" for text in said]

    def _lags_text(self) -> list[str]:
        groups: dict[tuple[str, int | None], list[Lag]] = {}
        for lag in self.lags:
            groups.setdefault((_calls(lag.behind), lag.launched), []).append(lag)
        texts = []
        for (calls, launched), lags in groups.items():
            verb = "are" if len(lags) > 1 else "is"
            since = "" if launched is None else f", {launched:,} launched since the first status"
            who = name_ranks(tuple(sorted(lag.rank for lag in lags)))
            texts.append(
                f"{who} {verb} {calls} behind{since}: {_listed([lag.process for lag in lags])}"
            )
        if self.lags and not self.in_order:
            texts.append("no rank leads in every operation: the ranks made different calls")
        return texts

    def _absences(self) -> list[tuple[str, list[MissingRank]]]:
        verbs = {
            "dead": "cannot be reached any more",
            "unresponsive": "did not answer",
            "not a member": "answered, but not as a member: yet to join, or gone",
        }
        by_why = {
            verb: [rank for rank in self.communicator.missing if rank.why == why]
            for why, verb in verbs.items()
        }
        return [(verb, ranks) for verb, ranks in by_why.items() if ranks]

    def to_mapping(self) -> dict[str, Any]:
        """The same as JSON values."""
        comm = self.communicator
        return {
            "hash": comm.hash,
            "secondary_hash": comm.secondary_hash,
            "size": comm.size,
            "launched": self.launched,
            "in_order": self.in_order,
            "states": list(self.states),
            "behind": [
                {
                    "rank": lag.rank,
                    **_mapping(lag.process),
                    "calls": dict(lag.behind),
                    "launched": lag.launched,
                }
                for lag in self.lags
            ],
            "missing": [
                {"rank": rank.rank, **_mapping(rank.process), "why": rank.why}
                for rank in comm.missing
            ],
            "failed": [
                {"rank": rank.rank, **_mapping(rank.process), "error": rank.error}
                for rank in self.failed
            ],
        }


@dataclass(frozen=True)
class NotArrived:
    """Findings of one or more statuses of a job.

    Attributes:
        statuses: statuses by time.
        standings: standing of each communicator of the last status.
        who: processes that others wait for and that wait for none. Those that do not answer come
            first, then those with the most missing calls.
        moves: whether a collective was launched between the first and the last status; None with
            one.
        notes: limits of the findings.
    """

    statuses: tuple[RasStatus, ...]
    standings: tuple[Standing, ...]
    who: tuple[Process, ...]
    moves: bool | None
    notes: tuple[str, ...]

    def explain(self) -> str:
        """All findings, a line for each communicator with one."""
        last = self.statuses[-1]
        n_level = sum(standing.is_level for standing in self.standings)
        processes = count(len(last.processes), "process", "processes")
        head = (
            f"{last.at}: NCCL {last.nccl_version}, {processes}, "
            f"{count(len(self.standings), 'communicator')}, {n_level:,} of them level"
        )
        lines = [head]
        if self.moves is not None:
            since_s = (last.at - self.statuses[0].at).total_seconds()
            calls = sum(standing.launched or 0 for standing in self.standings)
            tail = "" if calls else ": a hang, or other work for as long"
            lines.append(
                f"{calls:,} collectives were launched in the {since_s:,.0f} s before{tail}"
            )
        for standing in self.standings:
            lines += standing.explain()
        return "\n".join([*lines, self._who_text()])

    def _who_text(self) -> str:
        if self.who:
            label = {None: "behind when asked", True: "behind, in a job that goes on"}
            return f"{label.get(self.moves, 'waited for')}: {_listed(self.who)}"
        if any(standing.lags for standing in self.standings):
            return "all that are behind wait for others themselves: their calls differ in order"
        return "no rank is behind, and none is missing"

    def to_mapping(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "kind": "not-arrived",
            "statuses": [
                {"file": str(status.path), "at": str(status.at), "nccl": status.nccl_version}
                for status in self.statuses
            ],
            "moves": self.moves,
            "communicators": [standing.to_mapping() for standing in self.standings],
            "who": [_mapping(process) for process in self.who],
            "notes": list(self.notes),
            "text": self.explain(),
        }


def not_arrived(statuses: Sequence[RasStatus]) -> NotArrived:
    """The ranks that are behind or missing in the last of some statuses of a job.

    Args:
        statuses: one or several statuses of one run, in any order.

    Raises:
        TraceError: there is no status, or they have no common communicator.
    """
    if not statuses:
        raise TraceError("no status of NCCL RAS is given")
    ordered = tuple(sorted(statuses, key=lambda status: status.at))
    first, last = ordered[0], ordered[-1]
    before = {comm.key: comm for comm in first.communicators} if len(ordered) > 1 else {}
    if len(ordered) > 1 and not any(comm.key in before for comm in last.communicators):
        raise TraceError(
            f"{first.path} and {last.path} have no communicator in common; give statuses of one run"
        )
    standings = tuple(_standing(comm, before.get(comm.key)) for comm in last.communicators)
    launched = [standing.launched for standing in standings if standing.launched is not None]
    moves = any(launched) if len(ordered) > 1 else None
    return NotArrived(ordered, standings, _who(standings), moves, tuple(_notes(last, moves)))


def _standing(comm: Communicator, before: Communicator | None) -> Standing:
    most: dict[str, int] = {}
    for rank in comm.ranks:
        for op, n in rank.counts.items():
            most[op] = max(n, most.get(op, 0))
    earlier = {} if before is None else {rank.rank: rank for rank in before.ranks}
    lags = []
    for rank in comm.ranks:
        behind = {op: n - rank.counts.get(op, 0) for op, n in most.items()}
        behind = {op: n for op, n in behind.items() if n}
        if behind:
            lags.append(Lag(rank.rank, rank.process, behind, _launched(rank, earlier)))
    lags.sort(key=lambda lag: (-lag.n_behind, lag.rank))
    moved = [n for n in (_launched(rank, earlier) for rank in comm.ranks) if n is not None]
    return Standing(comm, tuple(lags), len(lags) < len(comm.ranks), sum(moved) if moved else None)


def _launched(rank: RankStatus, earlier: Mapping[int, RankStatus]) -> int | None:
    """Collectives since an earlier status; counts decrease only in damaged files."""
    if rank.rank not in earlier:
        return None
    return max(sum(rank.counts.values()) - sum(earlier[rank.rank].counts.values()), 0)


def _who(standings: Sequence[Standing]) -> tuple[Process, ...]:
    gone = {rank.process: None for standing in standings for rank in standing.gone}
    behind: dict[Process, int] = {}
    waiting: set[Process] = set()
    for standing in standings:
        for lag in standing.lags:
            behind[lag.process] = max(lag.n_behind, behind.get(lag.process, 0))
        if standing.lags or standing.gone:
            late = {lag.rank for lag in standing.lags}
            waiting |= {
                rank.process
                for rank in standing.communicator.ranks
                if rank.rank not in late and rank.process.pid >= 0
            }
    late_ones = sorted(behind, key=lambda process: -behind[process])
    return (*gone, *(process for process in late_ones if process not in waiting | {*gone}))


def _notes(last: RasStatus, moves: bool | None) -> list[str]:
    notes = [NOT_COUNTED]
    if moves is None:
        notes.append(ONE_STATUS)
    if last.n_empty:
        notes.append(f"{last.n_empty:,} communicators without ranks are being made; left out")
    if last.n_timeouts:
        notes.append(f"RAS waited {last.n_timeouts:,} times in vain for processes")
    return notes


def _calls(behind: Mapping[str, int]) -> str:
    """``1 AllReduce and 2 Broadcast``."""
    return " and ".join(f"{n:,} {op}" for op, n in behind.items())


def _listed(processes: Sequence[Process]) -> str:
    """Names of processes, up to the length of a line."""
    names = "; ".join(process.explain() for process in processes[:_LISTED])
    return names + f"; and {len(processes) - _LISTED:,} more" * (len(processes) > _LISTED)


def _mapping(process: Process) -> dict[str, Any]:
    return {"host": process.host, "pid": process.pid, "gpu": process.gpu}
