"""Slow NICs, rails and directions, from the time that NCCL's proxies wait for the network.

An operation's speed is its bytes over the time in which the network had at least one of its steps,
by the sender's records. It is compared with links between other pairs of NICs that moved as many
bytes. A slow link has two ends; the slow one is known only if one of them also has links to other
NICs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.detect.waits import SLOW_RATIO
from paceline.sources.call_logs.proxy_steps import Operations

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

Direction = Literal["send", "recv"]

#: Least operations for an interval of a median: the range of six contains it with 97% (1 - 2 *
#: 0.5**6).
_LEAST: Final = 6
#: Quantile of the normal distribution for a 95% interval.
_Z: Final = 1.96
#: Least number of links with as many bytes for a comparison.
_LINKS: Final = 3


class Nic(NamedTuple):
    """A network interface of a host, as far as known.

    Attributes:
        host: its name.
        name: NCCL's name, such as "IB/3", or that of a rank without NCCL's log.
        rail: the same on all hosts.
    """

    host: str
    name: str
    rail: str


@dataclass(frozen=True)
class NicRow:
    """One direction of a NIC.

    Attributes:
        nic, direction: the NIC and its direction.
        ranks: ranks that use it.
        transfers: number of the proxies' steps; operations: number of their operations; size:
            bytes.
        bytes_per_s: median over operations.
        ratio: median ratio of its time to that of comparable links; low, high: its 95% interval.
            NaN without comparable links.
        network_s, gpu_s, peer_s: waits of the proxies' steps. Steps of a recv do not distinguish
            the network from the sender: ``network_s`` has both.
    """

    nic: Nic
    direction: Direction
    ranks: tuple[int, ...]
    transfers: int
    operations: int
    size: int
    bytes_per_s: float
    ratio: float
    low: float
    high: float
    network_s: float
    gpu_s: float
    peer_s: float

    @property
    def is_slow(self) -> bool:
        """Whether the whole interval of its links is slow, due to this end or the other ends."""
        return self.low > SLOW_RATIO


@dataclass(frozen=True)
class SlowNetwork:
    """A slow part of the network.

    Attributes:
        kind: a rail, one direction of a NIC, a link with either end slow, or the path of a link
            whose ends are both fast elsewhere.
        send, recv: the ends. If one end is slow, the other is None; both are None for a rail.
        rail: name of the rail, else "".
        ratio, low, high: ratio of its time to that of comparable links, and its 95% interval.
    """

    kind: Literal["rail", "nic", "link", "path"]
    send: Nic | None
    recv: Nic | None
    rail: str
    ratio: float
    low: float
    high: float

    def to_text(self) -> str:
        """One line."""
        times = f"{self.ratio:.2f} times as long as its like ({self.low:.2f} to {self.high:.2f})"
        if self.kind == "rail":
            return f"rail {self.rail} is slow on all hosts: {times}"
        ends = [
            f"{nic.name} of {nic.host}, {direction}"
            for nic, direction in ((self.send, "send"), (self.recv, "recv"))
            if nic is not None
        ]
        if self.kind == "nic":
            return f"{ends[0]}: slow, {times}"
        doubt = "the slow end is unknown" if self.kind == "link" else "both ends are fast elsewhere"
        return f"{ends[0]} to {ends[1]}: slow, {times}; {doubt}"


@dataclass(frozen=True)
class Network:
    """NICs by direction, the slow ones, and the limits of the data.

    Attributes:
        rows: NICs by direction, the slowest first.
        slow: the NICs that are named.
        notes: conclusions that the data do not allow.
    """

    rows: tuple[NicRow, ...]
    slow: tuple[SlowNetwork, ...]
    notes: tuple[str, ...]

    def to_mapping(self) -> dict[str, Any]:
        """The same as JSON values; null for unknown numbers."""
        return {
            "nics": [
                {
                    **{key: _known(value) for key, value in vars(row).items() if key != "nic"},
                    **row.nic._asdict(),
                    "ranks": list(row.ranks),
                }
                for row in self.rows
            ],
            "slow_network": [
                {
                    **vars(one),
                    "send": one.send and one.send._asdict(),
                    "recv": one.recv and one.recv._asdict(),
                    "text": one.to_text(),
                }
                for one in self.slow
            ],
            "network_notes": list(self.notes),
        }


def network(operations: Operations, nics: Sequence[Nic], peer_nics: Sequence[Nic]) -> Network:
    """The report of all operations.

    Args:
        operations: [op] of all ranks.
        nics: [op] NIC of the recording rank.
        peer_nics: [op] NIC of its peer.
    """
    if not len(operations):
        return Network((), (), ())
    names = sorted({*nics, *peer_nics})
    number = {nic: n for n, nic in enumerate(names)}
    here = np.array([number[nic] for nic in nics])
    there = np.array([number[nic] for nic in peer_nics])
    sent = operations.is_send & (operations.network_s > 0) & (operations.size > 0)
    links = _Links.of(operations, np.flatnonzero(sent), here, there)
    rows = []
    for n, nic in enumerate(names):
        for direction in ("send", "recv"):
            own = (here == n) & (operations.is_send == (direction == "send"))
            mine = links.send == n if direction == "send" else links.recv == n
            if own.any() or mine.any():
                rows.append(_row(nic, direction, operations, own, links, mine))
    notes = () if links.compared else (_NO_LIKE,)
    slow = _slow(names, links) if links.compared else ()
    rows.sort(key=lambda row: (not row.is_slow, -np.nan_to_num(row.ratio), row.nic, row.direction))
    return Network(tuple(rows), slow, notes)


_NO_LIKE: Final = (
    f"no NIC can be judged: fewer than three links moved equally many bytes in {_LEAST} "
    "operations or more"
)


@dataclass(frozen=True, eq=False)
class _Links:
    """[op] Sends: the two NICs, the speed, and the ratio to comparable links (NaN without any)."""

    send: Ints
    recv: Ints
    speed: Floats
    ratio: Floats

    @property
    def compared(self) -> bool:
        return bool(np.isfinite(self.ratio).any())

    @classmethod
    def of(cls, operations: Operations, rows: Ints, here: Ints, there: Ints) -> _Links:
        speed = operations.size[rows] / operations.network_s[rows]
        pair = here[rows] * (there.max() + 1) + there[rows]
        ratio = np.full(len(rows), np.nan)
        for size in np.unique(operations.size[rows]).tolist():
            alike = operations.size[rows] == size
            medians = [
                float(np.median(speed[alike & (pair == one)]))
                for one in np.unique(pair[alike])
                if (alike & (pair == one)).sum() >= _LEAST
            ]
            if len(medians) >= _LINKS:
                ratio[alike] = float(np.median(medians)) / speed[alike]
        return cls(here[rows], there[rows], speed, ratio)


def _interval(ratios: Floats) -> tuple[float, float, float]:
    """Median and its distribution-free 95% interval; NaN for fewer than six values."""
    values = np.sort(ratios[np.isfinite(ratios)])
    n = len(values)
    if n < _LEAST:
        return np.nan, np.nan, np.nan
    at = max(int(np.floor((n - _Z * np.sqrt(n)) / 2)), 0)
    return float(np.median(values)), float(values[at]), float(values[n - 1 - at])


def _row(
    nic: Nic,
    direction: Direction,
    operations: Operations,
    own: npt.NDArray[np.bool_],
    links: _Links,
    mine: npt.NDArray[np.bool_],
) -> NicRow:
    ratio, low, high = _interval(links.ratio[mine])
    return NicRow(
        nic=nic,
        direction=direction,
        ranks=tuple(np.unique(operations.rank[own]).tolist()),
        transfers=int(operations.steps[own].sum()),
        operations=int(own.sum()),
        size=int(operations.size[own].sum()),
        bytes_per_s=float(np.median(links.speed[mine])) if mine.any() else np.nan,
        ratio=ratio,
        low=low,
        high=high,
        network_s=float(operations.network_s[own].sum()),
        gpu_s=float(operations.gpu_s[own].sum()),
        peer_s=float(operations.peer_s[own].sum()),
    )


def _slow(names: Sequence[Nic], links: _Links) -> tuple[SlowNetwork, ...]:
    """The cause of each slow link: a rail, one end, either end, or the path between."""
    times = {
        (int(a), int(b)): _interval(links.ratio[(links.send == a) & (links.recv == b)])
        for a, b in np.unique(np.stack([links.send, links.recv]), axis=1).T
    }
    compared = {pair: time for pair, time in times.items() if np.isfinite(time[1])}
    left = {pair for pair, time in compared.items() if time[1] > SLOW_RATIO}
    found = []
    for rail, pairs in _rails(names, compared, left).items():
        found.append(_named("rail", None, None, rail, links, pairs))
        left -= pairs
    ends = {(side, pair[side]) for pair in left for side in (0, 1)}
    causes = {
        (side, n): of
        for side, n in ends
        if len(of := {pair for pair in compared if pair[side] == n}) > 1 and of <= left
    }
    for (side, n), pairs in sorted(causes.items()):
        nic = names[n]
        found.append(
            _named("nic", nic if side == 0 else None, nic if side == 1 else None, "", links, pairs)
        )
    explained = {pair for pairs in causes.values() for pair in pairs}
    found += [_of_link(names, compared, pair, links) for pair in sorted(left - explained)]
    return tuple(sorted(found, key=lambda one: -one.ratio))


def _of_link(
    names: Sequence[Nic],
    compared: Mapping[tuple[int, int], object],
    pair: tuple[int, int],
    links: _Links,
) -> SlowNetwork:
    """The cause of a slow link without a slow end: its other links may clear an end."""
    cleared = [
        any(other != pair and other[side] == pair[side] for other in compared) for side in (0, 1)
    ]
    send, recv = names[pair[0]], names[pair[1]]
    if all(cleared):
        return _named("path", send, recv, "", links, {pair})
    if cleared[0]:
        return _named("nic", None, recv, "", links, {pair})
    if cleared[1]:
        return _named("nic", send, None, "", links, {pair})
    return _named("link", send, recv, "", links, {pair})


def _rails(
    names: Sequence[Nic],
    compared: Mapping[tuple[int, int], object],
    slow: set[tuple[int, int]],
) -> dict[str, set[tuple[int, int]]]:
    """Rails with only slow links, from at least two sending hosts, if other rails are not slow."""
    found = {}
    for rail in {names[a].rail for a, _ in slow}:
        pairs = {pair for pair in compared if rail in (names[pair[0]].rail, names[pair[1]].rail)}
        hosts = {names[a].host for a, _ in pairs}
        if len(hosts) > 1 and pairs <= slow and len(pairs) < len(compared):
            found[rail] = pairs
    return found


def _named(
    kind: Literal["rail", "nic", "link", "path"],
    send: Nic | None,
    recv: Nic | None,
    rail: str,
    links: _Links,
    pairs: set[tuple[int, int]],
) -> SlowNetwork:
    chosen = np.array(
        [pair in pairs for pair in zip(links.send.tolist(), links.recv.tolist(), strict=True)]
    )
    return SlowNetwork(kind, send, recv, rail, *_interval(links.ratio[chosen]))


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and np.isnan(value) else value
