"""Slow GPUs, from the results of several validations.

A single validation compares GPUs by a floor of 10% (:mod:`paceline.detect.verdict`). A GPU that is
slow by 10% exceeds it every other time. Several validations average the noise of each GPU. The rest
is the difference of healthy GPUs from each other, and from themselves.

Peers are compared by Student's t (:mod:`paceline.detect.peer_bound`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.detect.peer_bound import student_bound
from paceline.hosts.result import Result
from paceline.robust import SIGMA_OF_MAD

#: Number of newest results, whose median counts: one disturbed validation accuses no GPU.
RECENT = 5
#: Number of oldest results that are a GPU's baseline, and the least number of them for one.
BASELINE, MIN_BASELINE = 50, 8
#: A GPU that is slower than its peers, or than itself, by less is not called slow.
FLOORS = {"gemm": 0.05, "hbm": 0.05, "link": 0.20}
_OTHER_FLOOR = 0.10
#: Robust standard deviations of a GPU's own past results, of which some were disturbed.
_SIGMAS = 4.5
_MIN_PEERS = 4


@dataclass(frozen=True)
class UnitVerdict:
    """One GPU under one test.

    Attributes:
        host, gpu, device, test: the GPU and the test.
        results: number of results.
        first_s, last_s: times of the first and the last result.
        ratio: median of the newest, over peers; ``bound``: its limit.
        own_ratio: median of the newest, over its own baseline; None if that is too short.
        own_bound: limit of ``own_ratio``.
        slow: whether one of both limits is exceeded.
    """

    host: str
    gpu: int
    device: str
    test: str
    results: int
    first_s: float
    last_s: float
    ratio: float
    bound: float
    own_ratio: float | None
    own_bound: float | None
    slow: bool

    def explain(self) -> str:
        """The verdict in words and numbers."""
        text = f"GPU {self.gpu} {self.test} {self.ratio:.2f}x its peers (bound {self.bound:.2f})"
        if self.own_ratio is not None:
            text += f", {self.own_ratio:.2f}x its own past (bound {self.own_bound:.2f})"
        return f"{text}, {self.results} validations"

    def to_mapping(self) -> dict[str, Any]:
        """The verdict in the form of JSON."""
        return {
            "gpu": self.gpu,
            "device": self.device,
            "test": self.test,
            "results": self.results,
            "first_s": self.first_s,
            "last_s": self.last_s,
            "ratio": self.ratio,
            "bound": self.bound,
            "own_ratio": self.own_ratio,
            "own_bound": self.own_bound,
            "slow": self.slow,
        }


def judge_units(results: Iterable[Result]) -> list[UnitVerdict]:
    """A verdict on each GPU and test, in the order of hosts.

    Args:
        results: results of many validations, in any order. Those of too few peers do not count.
    """
    ratios: dict[tuple[str, int, str, str], list[Result]] = {}
    for result in sorted(filter(lambda r: r.is_compared, results), key=lambda r: r.at_s):
        ratios.setdefault(result.unit, []).append(result)
    newest = {
        unit: statistics.median(r.ratio for r in rows[-RECENT:]) for unit, rows in ratios.items()
    }
    peers: dict[tuple[str, str], list[float]] = {}
    for (_, _, device, test), ratio in newest.items():
        peers.setdefault((device, test), []).append(ratio)
    bounds = {(d, test): peer_bound(values, test) for (d, test), values in peers.items()}
    return [
        _verdict(unit, rows, newest[unit], bounds[unit[2], unit[3]])
        for unit, rows in sorted(ratios.items())
    ]


def _verdict(
    unit: tuple[str, int, str, str], rows: Sequence[Result], ratio: float, bound: float
) -> UnitVerdict:
    host, gpu, device, test = unit
    own_ratio = own_bound = None
    past = [row.ratio for row in rows[:-RECENT]][:BASELINE]
    if len(past) >= MIN_BASELINE:
        usual = statistics.median(past)
        own_ratio = ratio / usual
        own_bound = _own_bound([value / usual for value in past], test)
    is_told = len(rows) >= RECENT
    above_own = own_ratio is not None and own_bound is not None and own_ratio > own_bound
    slow = is_told and (ratio > bound or above_own)
    times = (rows[0].at_s, rows[-1].at_s)
    return UnitVerdict(
        host, gpu, device, test, len(rows), *times, ratio, bound, own_ratio, own_bound, slow
    )


def peer_bound(values: Sequence[float], test: str) -> float:
    """Bound for healthy GPUs, from the ratios of all of a kind."""
    if len(values) < _MIN_PEERS:
        return statistics.median_low(values) * (1 + 2 * _floor(test))
    return student_bound(values, _floor(test))


def _own_bound(values: Sequence[float], test: str) -> float:
    """Bound for a healthy GPU's newest results, from its first ones."""
    usual = statistics.median_low(values)
    sigma = SIGMA_OF_MAD * statistics.median(abs(value - usual) for value in values)
    return max(usual * (1 + _floor(test)), usual + _SIGMAS * sigma)


def _floor(test: str) -> float:
    return FLOORS.get(test.partition(" ")[0], _OTHER_FLOOR)
