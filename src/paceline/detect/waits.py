"""A graph of the waits in collectives, and the speed of the transfers.

A call ends after its last member has begun and the data have moved. On a common clock, a member
waits from its begin to that of the last one; the rest is the transfer. Durations on the members'
own devices show the same without a common clock: the shortest one belongs to the last arrival, and
is the transfer. Host times show only the order of arrivals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from paceline.errors import DetectError
from paceline.sources.call_logs.timed_calls import Basis, TimedCalls
from paceline.units import seconds as in_words

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: A slow group's transfers of an operation and size take this multiple of the median of groups with
#: as many members. It equals the ratio of suspects in ``detect/who.py``.
SLOW_RATIO: Final = 1.1


@dataclass(frozen=True)
class Wait:
    """The waits of a rank for another.

    Attributes:
        waits, late: global ranks.
        seconds: total seconds.
        calls: number of calls.
    """

    waits: int
    late: int
    seconds: float
    calls: int


@dataclass(frozen=True)
class TransferRow:
    """Transfers of one group, operation and size.

    Attributes:
        group: its name; ranks: its members, global.
        op: the operation.
        size: bytes of a call, as NCCL counts them.
        calls: number of calls that all members made.
        transfer_s: median transfer time.
        bus_bytes_per_s: bytes per link of a ring, over ``transfer_s`` (nccl-tests, PERFORMANCE.md);
            NaN without a duration.
        ratio: ``transfer_s`` over the median of comparable groups; NaN without any.
    """

    group: str
    ranks: tuple[int, ...]
    op: str
    size: int
    calls: int
    transfer_s: float
    bus_bytes_per_s: float
    ratio: float

    @property
    def is_slow(self) -> bool:
        """Whether it is slower than comparable groups."""
        return self.ratio > SLOW_RATIO


@dataclass(frozen=True)
class WaitGraph:
    """The waits of ranks for each other, and the transfers.

    Attributes:
        ranks: ranks of the compared calls.
        seconds: from the first to the last call; for device times the longest on a rank's clock.
        calls: number of compared calls, which all members have.
        waits: waits, the longest first.
        late_s: rank -> seconds that others waited for it, the most first.
        transfers: transfers by their ratio, then by time, the slowest first.
        basis: source of the times; for "host" waits are bounds, and there are no transfers.
        notes: inferred or missing data.
    """

    ranks: tuple[int, ...]
    seconds: float
    calls: int
    waits: tuple[Wait, ...]
    late_s: dict[int, float]
    transfers: tuple[TransferRow, ...]
    basis: Basis
    notes: tuple[str, ...]

    def to_mapping(self) -> dict[str, Any]:
        """The same as JSON values; null for unknown numbers."""
        return {
            "ranks": list(self.ranks),
            "seconds": self.seconds,
            "calls": self.calls,
            "basis": self.basis,
            "waits": [vars(wait) for wait in self.waits],
            "late_s": {str(rank): seconds for rank, seconds in self.late_s.items()},
            "transfers": [
                {
                    **vars(row),
                    "ranks": list(row.ranks),
                    "bus_bytes_per_s": _known(row.bus_bytes_per_s),
                    "ratio": _known(row.ratio),
                    "slow": row.is_slow,
                }
                for row in self.transfers
            ],
            "notes": list(self.notes),
        }


def wait_graph(calls: TimedCalls) -> WaitGraph:
    """The graph of some calls.

    Raises:
        DetectError: no call has times of all members, or the host times are insufficient.
    """
    call, rows = _whole_calls(calls)
    if not len(rows):
        raise DetectError(
            "no call of several ranks has its times on all of them; give the files of all ranks"
        )
    heads = np.flatnonzero(np.diff(call, prepend=-1))
    last, wait_s, transfer_s = _separate(calls, rows, heads)
    of_call = np.cumsum(np.diff(call, prepend=call[0]) != 0).astype(np.int64)
    rank, late = calls.rank[rows], calls.rank[rows[last]][of_call]
    waits = _waits(rank, late, wait_s)
    late_s: dict[int, float] = {}
    for wait in waits:
        late_s[wait.late] = late_s.get(wait.late, 0.0) + wait.seconds
    seconds = _seconds(calls, rows)
    if calls.basis == "host":
        _refuse_hosts_apart(waits, seconds)
    first = rows[heads]
    return WaitGraph(
        ranks=tuple(np.unique(rank).tolist()),
        seconds=seconds,
        calls=len(heads),
        waits=waits,
        late_s=dict(sorted(late_s.items(), key=lambda item: -item[1])),
        transfers=() if transfer_s is None else _transfers(calls, rows, of_call, first, transfer_s),
        basis=calls.basis,
        notes=calls.notes,
    )


def _seconds(calls: TimedCalls, rows: Ints) -> float:
    """Seconds from the first to the last call; for device times the longest on a rank's clock."""
    start_s, rank = calls.start_s[rows], calls.rank[rows]
    if calls.basis == "device":
        return max(float(np.ptp(start_s[rank == one])) for one in np.unique(rank))
    return float(np.ptp(start_s))


def _refuse_hosts_apart(waits: tuple[Wait, ...], seconds: float) -> None:
    """Refuse waits longer than the observed time."""
    of_rank: dict[int, float] = {}
    for wait in waits:
        of_rank[wait.waits] = of_rank.get(wait.waits, 0.0) + wait.seconds
    longest = max(of_rank, key=lambda rank: of_rank[rank], default=-1)
    if longest >= 0 and of_rank[longest] > seconds:
        raise DetectError(
            f"rank {longest} would have waited {in_words(of_rank[longest])} within "
            f"{in_words(seconds)}: clocks of hosts are apart, or hosts queue calls far "
            "ahead of their GPUs; synchronise the clocks, or record with the plugin, which tells "
            "the devices' times (docs/nccl.md)"
        )


def _whole_calls(calls: TimedCalls) -> tuple[Ints, Ints]:
    """([row] number of its call, [row] index) of calls that all members have, sorted by call."""
    known = np.isfinite(calls.start_s)
    if calls.basis != "host":
        known &= np.isfinite(calls.end_s)
    rows = np.flatnonzero(known & (calls.members[calls.group] > 1))
    columns = np.stack([calls.group[rows], calls.op[rows], calls.number[rows]])
    _, call = np.unique(columns, axis=1, return_inverse=True)
    call = call.reshape(-1).astype(np.int64)
    whole = np.bincount(call)[call] == calls.members[calls.group[rows]] if len(rows) else rows
    rows, call = rows[whole], call[whole]
    order = np.lexsort((calls.rank[rows], call))
    return call[order], rows[order]


def _separate(calls: TimedCalls, rows: Ints, heads: Ints) -> tuple[Ints, Floats, Floats | None]:
    """([call] place of the last in ``rows``, [row] seconds waited, [call] seconds of transfer)."""
    start_s, end_s = calls.start_s[rows], calls.end_s[rows]
    n = np.diff(np.append(heads, len(rows)))
    if calls.basis == "device":
        length_s = end_s - start_s
        least_s = np.minimum.reduceat(length_s, heads)
        return _first_of(length_s, least_s, heads, n), length_s - np.repeat(least_s, n), least_s
    latest_s = np.maximum.reduceat(start_s, heads)
    wait_s = np.repeat(latest_s, n) - start_s
    last = _first_of(start_s, latest_s, heads, n)
    if calls.basis == "host":
        return last, wait_s, None
    return last, wait_s, np.maximum(np.maximum.reduceat(end_s, heads) - latest_s, 0.0)


def _first_of(values: Floats, extreme: Floats, heads: Ints, n: Ints) -> Ints:
    """[call] the first row that has the call's extreme value."""
    hits = np.flatnonzero(values == np.repeat(extreme, n))
    places: Ints = hits[np.searchsorted(hits, heads)]
    return places


def _waits(rank: Ints, late: Ints, wait_s: Floats) -> tuple[Wait, ...]:
    other = rank != late
    pairs, at = np.unique(np.stack([rank[other], late[other]]), axis=1, return_inverse=True)
    at = at.reshape(-1)
    seconds = np.bincount(at, wait_s[other], pairs.shape[1])
    counts = np.bincount(at, minlength=pairs.shape[1])
    waits = [
        Wait(int(a), int(b), float(s), int(c))
        for a, b, s, c in zip(pairs[0], pairs[1], seconds, counts, strict=True)
    ]
    return tuple(sorted(waits, key=lambda wait: -wait.seconds))


def _transfers(
    calls: TimedCalls, rows: Ints, of_call: Ints, first: Ints, transfer_s: Floats
) -> tuple[TransferRow, ...]:
    members: dict[int, tuple[int, ...]] = {}
    for group in np.unique(calls.group[first]).tolist():
        members[group] = tuple(np.unique(calls.rank[rows[calls.group[rows] == group]]).tolist())
    columns = np.stack([calls.group[first], calls.op[first], calls.size[first]])
    kinds, at = np.unique(columns, axis=1, return_inverse=True)
    at = at.reshape(-1)
    median_s = [float(np.median(transfer_s[at == kind])) for kind in range(kinds.shape[1])]
    table = []
    for kind, (group, op, size) in enumerate(kinds.T.tolist()):
        n = len(members[group])
        like = [
            median_s[other]
            for other, (g, o, s) in enumerate(kinds.T.tolist())
            if (o, s, len(members[g])) == (op, size, n)
        ]
        usual_s = float(np.median(like))
        table.append(
            TransferRow(
                group=calls.groups[group],
                ranks=members[group],
                op=calls.ops[op],
                size=size,
                calls=int((at == kind).sum()),
                transfer_s=median_s[kind],
                bus_bytes_per_s=_bus_bytes(calls.ops[op], size, n) / median_s[kind]
                if median_s[kind] > 0
                else np.nan,
                ratio=median_s[kind] / usual_s if len(like) > 1 and usual_s > 0 else np.nan,
            )
        )
    return tuple(sorted(table, key=lambda row: (not row.is_slow, -row.calls * row.transfer_s)))


def _bus_bytes(op: str, size: int, members: int) -> float:
    """Bus bytes as in nccl-tests' PERFORMANCE.md, from the size passed to NCCL."""
    name = op.lower()
    if name.startswith("allreduce"):
        return 2 * (members - 1) / members * size
    if name.startswith(("allgather", "reducescatter")):  # size is a rank's part
        return float((members - 1) * size)
    return float(size)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value
