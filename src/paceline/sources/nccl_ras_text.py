"""NCCL's RAS as text: the ranks that ``ncclras`` names, and how many ranks it does not name.

Format: ``rasClientRunInit``, ``rasClientRunComms`` and ``rasClientBreakDownErrors`` of
``src/ras/client_support.cc``. Their format strings are the same from NCCL 2.27.3 to 2.30.7, except
for digits of seconds. A line that they do not write is refused. The text names the ranks of a group
only if the group is a single rank or small (``rasCountIsOutlier``). A small group has at most a
quarter of the ranks and at most 10; with ``-v``, at most half of the ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import TraceError
from paceline.sources.json_stream import ends_within_line, head, read_whole
from paceline.sources.nccl_ras import Process

#: The text is for people: 10 names for each of some thousand communicators are some MB.
MAX_BYTES = 64 << 20

_WHO = r"GPU (\d+)(?: \(NVML (\d+)\))? managed by process (\d+) on node ?(\S*)"
_NOBODY = r"\[process information not found\]"
_VERSION = re.compile(r"NCCL version (\S+) compiled with CUDA \S+")
_GROUP = re.compile(r" *(\d+) +(\d+) +(\d+) +\d+(?:-\d+)? +(\d+) +(\d+) +([A-Z]+) +([A-Z,]+)")
_TIMEOUTS = re.compile(r"  Encountered (\d+) communication timeouts? while .*")
_PROCESSES = re.compile(
    r"  Missing communicator data from (\d+) job process(?:es)?"
    r"|  (\d+) job process(?:es are| is) considered dead \(unreachable via the RAS network\)"
)
_PROCESS = re.compile(
    r"  Process (\d+) on node ?(\S*) managing GPUs? ([\d,]+)(?: \(NVML ([\d,]+)\))?"
)
_UNKNOWN_PROCESSES = re.compile(r"  \[could not find information on (\d+) process(?:es)?\]")
_BLOCK = re.compile(r"#(\d+)-(\d+) \(([0-9a-f]{16})\) (INCOMPLETE|ERROR|MISMATCH)")
_MISSING = re.compile(r"  Missing communicator data from (\d+) ranks?")
_TOPIC = re.compile(
    r"  Communicator ranks have different (?:(status)|(\w+) operation counts)"
    r"|  (Initialization|Asynchronous) errors? on (\d+) ranks?"
)
_SHARED = re.compile(
    r"  (\d+) ranks (?:have status ([A-Z]+)|have launched up to operation (\d+)"
    r"|have not launched any (operations)|reported (.+))"
)
_RANK = re.compile(
    r"  Rank (\d+)(?: has status ([A-Z]+)| has launched up to operation (\d+)"
    rf"| has not launched any (operations)| reported (.+?))? -- (?:{_WHO}|{_NOBODY})"
)
#: Statuses of ranks that answered, but have not joined the communicator or have left it.
_GONE = ("NOCOMM", "UNKNOWN")
#: Before this version, after a communicator that lacks ranks, ``rasClientRunComms`` misreads the
#: next one: it does not skip the missing ranks. Its JSON output is right.
_FIXED_IN = (2, 29)
_FAILURES = ("Initialization", "Asynchronous")


@dataclass(frozen=True)
class NamedRank:
    """A rank of a communicator; ``process`` is None if RAS does not know it."""

    rank: int
    process: Process | None


@dataclass
class RankGroup:
    """Ranks of a communicator that are alike.

    Attributes:
        value: their common status, error, or number of launched collectives.
        size: number of ranks.
        named: the ranks that the text names: all or none.
    """

    value: str | int
    size: int
    named: list[NamedRank] = field(default_factory=list)


@dataclass
class Trouble:
    """A communicator whose ranks differ, fail or are missing.

    Attributes:
        place: group of the summary, and number within it.
        hash: its hash in NCCL's log.
        size: number of its ranks.
        missing: the ranks without an answer; None if all answered.
        topics: difference (``status``, ``AllReduce``) or failure (``Initialization``,
            ``Asynchronous``) of ranks -> their groups.
        failed: kind of failure -> number of ranks with it.
    """

    place: tuple[int, int]
    hash: str
    size: int
    missing: RankGroup | None = None
    topics: dict[str, list[RankGroup]] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)


@dataclass
class RasText:
    """One status as text.

    Attributes:
        path: the file.
        nccl_version: NCCL's version in the file.
        n_communicators: number of all communicators.
        troubles: communicators whose ranks differ, by their place.
        unresponsive: processes that did not answer: their number, and the named ones.
        dead: processes that RAS gave up: their number, and the named ones.
        n_timeouts: how often RAS waited in vain for processes.
        misread: NCCL itself may have read communicators from a wrong place, so none is reported.
    """

    path: Path
    nccl_version: str = ""
    n_communicators: int = 0
    troubles: dict[tuple[int, int], Trouble] = field(default_factory=dict)
    unresponsive: tuple[int, list[Process]] = (0, [])
    dead: tuple[int, list[Process]] = (0, [])
    n_timeouts: int = 0
    misread: bool = False


def matches(path: Path) -> bool:
    """Whether the file is a status that ``ncclras`` printed as text."""
    start = head(path, 1 << 12)
    return start.lstrip().startswith("NCCL version ") and "\nJob summary\n=====" in start


def read(path: Path) -> RasText:
    """Read one status.

    Raises:
        TraceError: it is unreadable, cut off, or has a line that NCCL 2.27 to 2.30 do not write.
    """
    return _Reader(path).read()


class _Reader:
    """Reads line after line. Each section of the text has a method for its lines."""

    def __init__(self, path: Path) -> None:
        self.status = RasText(path)
        self._rows: dict[int, tuple[int, int, str]] = {}  # group -> comms, ranks, errors
        self._seen: list[str] = []  # headings, in their order
        self._blocks: list[tuple[str, tuple[int, int]]] = []
        self._trouble: Trouble | None = None
        self._groups: list[RankGroup] = []
        self._processes: list[Process] | None = None

    def read(self) -> RasText:
        path = self.status.path
        for number, line in enumerate(_lines(path), 1):
            if line.strip() and not self._take(line.rstrip()):
                raise TraceError(
                    f"{path}, line {number}: {line.strip()[:80]!r} is no line of NCCL RAS 2.27 to "
                    "2.30; ask for JSON: ncclras -f json (NCCL 2.28.7 or later)"
                )
        self._check()
        return self.status

    def _take(self, line: str) -> bool:
        if match := _VERSION.fullmatch(line.strip()):
            self.status.nccl_version = match[1]
        elif line in ("Job summary", "Errors", "Warnings") or line.startswith("Communicators..."):
            self._seen.append(line[:8])
            self._trouble = self._processes = None
        elif set(line) == {"="}:
            return bool(self._seen)
        elif "Warnings" not in self._seen and "Errors" not in self._seen:
            return self._summary(line)
        elif self._trouble is None or not line.startswith(" "):
            return self._heading(line) or self._of_job(line)
        else:
            return self._of_communicator(line)
        return True

    def _summary(self, line: str) -> bool:
        if "Communic" in self._seen and (match := _GROUP.fullmatch(line)):
            self._rows[int(match[1])] = int(match[2]), int(match[4]), match[7]
            self.status.n_communicators += int(match[2])
        return True  # the summary of the job is passed over

    def _heading(self, line: str) -> bool:
        if line in ("INCOMPLETE", "DEAD", "TIMEOUT"):
            self._trouble, self._processes = None, None
            self._kind = line
            return True
        match = _BLOCK.fullmatch(line)
        if match is None or int(match[1]) not in self._rows:
            return False
        place = int(match[1]), int(match[2])
        trouble = Trouble(place, f"0x{match[3].lstrip('0') or '0'}", self._rows[place[0]][1])
        self._trouble = self.status.troubles.setdefault(place, trouble)
        self._blocks.append((match[4], place))
        self._groups = []
        return True

    def _of_job(self, line: str) -> bool:
        if match := _TIMEOUTS.fullmatch(line):
            self.status.n_timeouts = int(match[1])
        elif match := _PROCESSES.fullmatch(line):
            self._processes = []
            if match[1]:
                self.status.unresponsive = int(match[1]), self._processes
            else:
                self.status.dead = int(match[2]), self._processes
        elif self._processes is not None and (match := _PROCESS.fullmatch(line)):
            gpus = (match[4] or match[3]).split(",")
            self._processes += [Process(match[2], int(match[1]), int(gpu)) for gpu in gpus]
        else:
            return bool(_UNKNOWN_PROCESSES.fullmatch(line))
        return True

    def _of_communicator(self, line: str) -> bool:
        trouble = self._trouble
        assert trouble is not None
        if match := _MISSING.fullmatch(line):
            trouble.missing = RankGroup("missing", int(match[1]))
            self._groups = [trouble.missing]
        elif match := _TOPIC.fullmatch(line):
            self._groups = trouble.topics.setdefault(match[1] or match[2] or match[3], [])
            if match[3]:
                trouble.failed[match[3]] = int(match[4])
        elif match := _SHARED.fullmatch(line):
            self._groups.append(RankGroup(_value(match), int(match[1])))
        elif match := _RANK.fullmatch(line):
            if any(match.group(2, 3, 4, 5)):
                self._groups.append(RankGroup(_value(match), 1))
            if not self._groups:
                return False
            process = None
            if match[8] is not None:
                process = Process(match[9], int(match[8]), int(match[7] or match[6]))
            self._groups[-1].named.append(NamedRank(int(match[1]), process))
        else:
            return False
        return True

    def _check(self) -> None:
        """Refuse a text that is cut off: all that the summary announces must follow."""
        status, path = self.status, self.status.path
        expected = ["Job summ", "Communic", "Errors", "Warnings"]
        announced = sorted(
            (kind, (group, number))
            for group, (n_comms, _, errors) in self._rows.items()
            for kind in errors.split(",")
            if kind != "OK"
            for number in range(n_comms)
        )
        if self._seen != expected or sorted(self._blocks) != announced:
            raise TraceError(
                f"{path} is no whole status of NCCL RAS: it has {len(self._blocks)} of "
                f"{len(announced)} announced communicators in trouble; ask again: ncclras"
            )
        if self._is_misread():
            status.misread, status.troubles = True, {}
        for trouble in status.troubles.values():
            kinds = {kind for kind, place in self._blocks if place == trouble.place}
            if kinds != _described_kinds(trouble) or not _is_whole(trouble):
                raise TraceError(
                    f"{path} describes only some of the {trouble.size} ranks of communicator "
                    f"{trouble.hash}; is the file cut off? Ask again: ncclras"
                )

    def _is_misread(self) -> bool:
        """Whether NCCL took communicators from a wrong place: behind one that lacks ranks."""
        lacks = any(
            trouble.missing is not None
            or any(group.value in _GONE for group in trouble.topics.get("status", ()))
            for trouble in self.status.troubles.values()
        )
        version = re.match(r"(\d+)\.(\d+)", self.status.nccl_version)
        old = version is not None and (int(version[1]), int(version[2])) < _FIXED_IN
        return lacks and old and self.status.n_communicators > 1


def _described_kinds(trouble: Trouble) -> set[str]:
    """The kinds of trouble that the text describes."""
    differ = trouble.topics.keys() - {*_FAILURES}
    told = {"INCOMPLETE": trouble.missing, "ERROR": trouble.failed, "MISMATCH": differ}
    return {kind for kind, what in told.items() if what}


def _is_whole(trouble: Trouble) -> bool:
    """Whether each topic puts all ranks into groups, and each group names all its ranks or none."""
    missing = [] if trouble.missing is None else [trouble.missing]
    n_answered = trouble.size - sum(group.size for group in missing)
    states = trouble.topics.get("status", [])
    n_members = n_answered - sum(group.size for group in states if group.value in _GONE)
    for topic, groups in trouble.topics.items():
        n = sum(group.size for group in groups)
        if topic in _FAILURES:
            whole = n == trouble.failed[topic]
        else:
            whole = len(groups) > 1 and n == (n_answered if topic == "status" else n_members)
        if not whole:
            return False
    groups = [*missing, *(group for groups in trouble.topics.values() for group in groups)]
    # NCCL always names a group of one rank.
    return all(
        len(group.named) == group.size or (not group.named and group.size > 1) for group in groups
    )


def _value(match: re.Match[str]) -> str | int:
    """The value of a group of ranks: groups 2 to 5 of ``_SHARED`` and ``_RANK``."""
    status, launched, nothing, error = match.group(2, 3, 4, 5)
    if launched or nothing:
        return int(launched or 0)
    return str(status or error)


def _lines(path: Path) -> Iterator[str]:
    text = read_whole(path, MAX_BYTES, "one status").decode("utf-8-sig", errors="replace")
    lines = text.splitlines()
    yield from lines
    if text and not text.endswith(("\n", "\r")) and re.search(r" on node ?\S*$", lines[-1]):
        raise TraceError(ends_within_line(path, "copy it again, or ask again with ncclras"))
