"""Ranks that have not arrived, by a call log of a job that hangs: others made the next call.

A log holds what ranks called, until it was written. In a job that runs, ranks are some calls apart
as well. So this speaks of a hang that is known (:mod:`paceline.detect.hang`), and says nothing of
whether there is one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.detect.who import name_ranks
from paceline.detect.who_late import collectives
from paceline.trace.calls import CallLog

Ints = npt.NDArray[np.int64]

#: The last calls of each rank that are compared, and how far apart ranks may be within them.
_LAST, _APART = 256, 32
#: Calls of two ranks are matched by time; another match must be this many times as far apart.
_CLEAR = 2.0
#: Share of the matched calls that counts: a rank that was late once is late under any match.
_MOST = 0.9


@dataclass(frozen=True)
class Waiting:
    """A call of which some members have not come.

    Attributes:
        communicator, op: which.
        absent: ranks that have not made the call, ascending; ``behind``: by how many calls each.
        waiting: ranks that have made it.
        since_s: when the last of those came, on the log's clock.
    """

    communicator: str
    op: str
    absent: tuple[int, ...]
    behind: tuple[int, ...]
    waiting: tuple[int, ...]
    since_s: float

    def explain(self) -> str:
        """In words."""
        calls = max(self.behind)
        return (
            f"{self.op} of {self.communicator}: {name_ranks(self.absent)} did not come "
            f"({calls} call{'s' * (calls != 1)} behind), {name_ranks(self.waiting)} did"
        )

    def to_mapping(self) -> dict[str, object]:
        """As JSON knows it."""
        return {
            "communicator": self.communicator,
            "op": self.op,
            "absent": list(self.absent),
            "behind": list(self.behind),
            "waiting": list(self.waiting),
        }


def waiting_calls(log: CallLog) -> tuple[Waiting, ...]:
    """One for each communicator whose members are not level, in the log's order.

    Sends and recvs are left out: their sides are not called alike. So are ranks whose calls cannot
    be matched with the others', as where clocks differ by a step.
    """
    codes, met = log.codes(), collectives(log)
    groups = (_waiting(log, codes, met, group) for group in range(len(log.communicators)))
    return tuple(waiting for waiting in groups if waiting is not None)


def absent_ranks(calls: tuple[Waiting, ...]) -> tuple[int, ...]:
    """Ranks for which others wait and that wait in no call themselves; all absent if none is so."""
    absent = {rank for call in calls for rank in call.absent}
    waits = {rank for call in calls for rank in call.waiting}
    return tuple(sorted(absent - waits or absent))


def _waiting(log: CallLog, codes: Ints, met: npt.NDArray[np.bool_], group: int) -> Waiting | None:
    own = np.flatnonzero((log.communicator == group) & met[log.op])
    rows_of = {int(rank): own[log.rank[own] == rank][-_LAST:] for rank in np.unique(log.rank[own])}
    if len(rows_of) < 2:
        return None
    leader = max(rows_of, key=lambda rank: float(log.time_s[rows_of[rank][-1]]))
    first = rows_of[leader]
    ahead = {}  # calls of each rank, in the leader's numbering
    for rank, rows in rows_of.items():
        shift = 0 if rank == leader else _shift(log.time_s, codes, first, rows)
        if shift is not None:
            ahead[rank] = len(rows) - shift
    most = max(ahead.values())
    absent = tuple(sorted(rank for rank, calls in ahead.items() if calls < most))
    if not absent:
        return None
    waiting = tuple(sorted(rank for rank, calls in ahead.items() if calls == most))
    last = max((rows_of[rank][-1] for rank in waiting), key=lambda row: float(log.time_s[row]))
    behind = tuple(most - ahead[rank] for rank in absent)
    name, op = log.communicators[group], log.ops[log.op[last]]
    return Waiting(name, op, absent, behind, waiting, float(log.time_s[last]))


def _shift(time_s: npt.NDArray[np.float64], codes: Ints, first: Ints, rows: Ints) -> int | None:
    """Place in ``rows`` of the first call of ``first``; None where that is not clear."""
    middle = len(first) // 2
    guess = int(np.searchsorted(time_s[rows], time_s[first[middle]])) - middle
    apart_s: dict[int, float] = {}
    for shift in range(guess - _APART, guess + _APART + 1):
        low, high = max(0, -shift), min(len(first), len(rows) - shift)
        if high - low < max(1, min(len(first), len(rows)) // 2):
            continue
        ours, theirs = first[low:high], rows[low + shift : high + shift]
        if (codes[ours] == codes[theirs]).all():
            apart = np.sort(np.abs(time_s[ours] - time_s[theirs]))
            apart_s[shift] = float(apart[: max(1, int(_MOST * len(apart)))].mean())
    if not apart_s:
        return None
    best, *others = sorted(apart_s, key=apart_s.__getitem__)
    is_clear = not others or apart_s[others[0]] > _CLEAR * apart_s[best]
    return best if is_clear else None
