"""One GPU's part in one validation."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.detect.passes import Link
from paceline.detect.suite import SuiteResult
from paceline.detect.verdict import Measurements, Place

#: With fewer ranks of one kind, the usual time is not known.
MIN_PEERS = 3


@dataclass(frozen=True)
class Result:
    """Result of one test on one GPU.

    Attributes:
        at_s: time of the test, seconds since the epoch.
        run: name of the job.
        host: the computer.
        gpu: number of the rank among those of its host.
        device: its type.
        test: "gemm", "link" (the best of the links that the rank was measured at), or one of
            :func:`paceline.detect.suite.run_suite`.
        seconds: its time.
        ratio: its time over the low median of its peers in the same validation.
        peers: number of peers, itself included; with fewer than :data:`MIN_PEERS` the result is
            kept for the history, and not judged.
    """

    at_s: float
    run: str
    host: str
    gpu: int
    device: str
    test: str
    seconds: float
    ratio: float
    peers: int

    @property
    def unit(self) -> tuple[str, int, str, str]:
        """The judged value: (host, gpu, device, test)."""
        return self.host, self.gpu, self.device, self.test

    @property
    def is_compared(self) -> bool:
        """Whether its peers tell which time is usual."""
        return self.peers >= MIN_PEERS


def results_of(measured: Measurements, *, run: str, at_s: float) -> list[Result]:
    """Results of a validation."""
    gpu_of = _gpus(measured.places)
    results = []
    for test, rows in (("gemm", _products(measured)), ("link", _links(measured))):
        for rank, (seconds, ratio, peers) in sorted(rows.items()):
            place = measured.places[rank]
            unit = (place.host, gpu_of[rank], place.device, test)
            results.append(Result(at_s, run, *unit, seconds, ratio, peers))
    return results


def results_of_suite(suite: SuiteResult, *, run: str, at_s: float) -> list[Result]:
    """Results of further tests, each against the ranks with the same device."""
    gpu_of = _gpus(dict(enumerate(suite.places)))
    results = []
    for test, seconds_of in suite.seconds.items():
        for device in {place.device for place in suite.places}:
            mine = {r: s for r, s in enumerate(seconds_of) if suite.places[r].device == device}
            usual = statistics.median_low(mine.values())
            if usual <= 0:
                continue
            for rank, seconds in mine.items():
                unit = (suite.places[rank].host, gpu_of[rank], device, test)
                results.append(Result(at_s, run, *unit, seconds, seconds / usual, len(mine)))
    return results


def _products(measured: Measurements) -> dict[int, tuple[float, float, int]]:
    """Rank -> (seconds, ratio, peers): of ranks with the same device."""
    by_device: dict[str, dict[int, float]] = {}
    for rank, rounds in measured.gemm_s.items():
        device = measured.places[rank].device
        by_device.setdefault(device, {})[rank] = measured.seconds(rounds)
    rows = {}
    for seconds_of in by_device.values():
        usual = statistics.median_low(seconds_of.values())
        for rank, seconds in seconds_of.items():
            rows[rank] = (seconds, seconds / usual, len(seconds_of))
    return rows


def _gpus(places: Mapping[int, Place]) -> Mapping[int, int]:
    """Rank -> its number on its host."""
    ranks_of: dict[str, list[int]] = {}
    for rank in sorted(places):
        ranks_of.setdefault(places[rank].host, []).append(rank)
    return {rank: i for ranks in ranks_of.values() for i, rank in enumerate(ranks)}


def _links(measured: Measurements) -> dict[int, tuple[float, float, int]]:
    """Rank -> (seconds, ratio, peers) of its best link, against links of that kind.

    The best: a port is slow only where all its links are. Links with peers come first.
    """
    by_kind: dict[bool, dict[Link, float]] = {}
    for link, rounds in measured.link_s.items():
        is_inside = len({measured.places[rank].host for rank in link}) == 1
        by_kind.setdefault(is_inside, {})[link] = measured.seconds(rounds)
    rows: dict[int, tuple[float, float, int]] = {}
    for seconds_of in by_kind.values():
        usual = statistics.median_low(seconds_of.values())
        for link, seconds in seconds_of.items():
            row = (seconds, seconds / usual, len(seconds_of))
            for rank in link:
                both = (rows.get(rank, row), row)
                rows[rank] = min(both, key=lambda r: (r[2] < MIN_PEERS, r[1]))
    return rows
