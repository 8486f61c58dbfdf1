"""Ranks that have not arrived, from a hanging job's call log: others made the next call.

A log holds the ranks' calls until it was written. Ranks of a running job are also some calls apart.
This module therefore explains a known hang (:mod:`paceline.detect.hang`); it does not detect one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.detect.who import name_ranks
from paceline.detect.who_late import collectives
from paceline.trace.calls import CallLog

Ints = npt.NDArray[np.int64]

#: Last calls of each rank that are compared, and the largest distance of ranks in them.
_LAST, _APART = 256, 32
#: Calls of two ranks are matched by time; the next best match must be this many times as far apart.
_CLEAR = 2.0
#: Share of the matched calls that counts, as a rank that was late once is late in any match.
_MOST = 0.9


@dataclass(frozen=True)
class Waiting:
    """A call without some members.

    Attributes:
        communicator, op: communicator and operation of the call.
        absent: ranks that have not made the call, ascending; ``behind``: by how many calls each.
        waiting: ranks that have made it.
        since_s: arrival of the last of these, on the log's clock.
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
        """The same as JSON values."""
        return {
            "communicator": self.communicator,
            "op": self.op,
            "absent": list(self.absent),
            "behind": list(self.behind),
            "waiting": list(self.waiting),
        }


def waiting_calls(log: CallLog) -> tuple[Waiting, ...]:
    """A finding for each communicator with members behind, in the log's order.

    Sends and recvs are left out, as their two sides differ. So are ranks whose calls cannot be
    matched, for example with clocks that differ by a step.
    """
    codes, met = log.codes(), collectives(log)
    groups = (_waiting(log, codes, met, group) for group in range(len(log.communicators)))
    return tuple(waiting for waiting in groups if waiting is not None)


def absent_ranks(calls: tuple[Waiting, ...]) -> tuple[int, ...]:
    """Absent ranks that wait in no call themselves; all absent ranks if there is none."""
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
    """Place in ``rows`` of the first call of ``first``; None if ambiguous."""
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
