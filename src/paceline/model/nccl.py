"""Measured all-reduce times inside a node, read from a CSV and interpolated."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paceline.errors import ModelError
from paceline.model.csv_table import CsvTable, read_csv

COLUMNS = ("gpus", "bytes", "out_of_place_ns", "in_place_ns")


class Curve(NamedTuple):
    """The measured times of one GPU count: natural logarithms of ascending bytes and of seconds."""

    log_bytes: tuple[float, ...]
    log_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class AllReduceTable:
    """Seconds of an in-place all-reduce by GPU count and size.

    Attributes:
        curves: GPU count -> its curve, in ascending order.
        source: source of the times.
    """

    curves: dict[int, Curve]
    source: str = ""

    def __post_init__(self) -> None:
        if not self.curves:
            raise ModelError("an all-reduce table needs measurements of at least one GPU count")
        for gpus, curve in self.curves.items():
            if gpus < 2:
                raise ModelError(f"an all-reduce of {gpus} GPU moves nothing; remove its rows")
            if len(curve.log_bytes) < 2:
                raise ModelError(
                    f"the all-reduce table has {len(curve.log_bytes)} size for {gpus} GPUs; "
                    "interpolation needs two or more"
                )
        object.__setattr__(self, "curves", dict(sorted(self.curves.items())))

    def covers(self, size: float, gpus: int) -> bool:
        """Whether ``size`` bytes among ``gpus`` GPUs lie within the measured range."""
        counts = list(self.curves)
        if not counts[0] <= gpus <= counts[-1]:
            return False
        near = {max(n for n in counts if n <= gpus), min(n for n in counts if n >= gpus)}
        log_size = math.log(size)
        return all(
            self.curves[n].log_bytes[0] <= log_size <= self.curves[n].log_bytes[-1] for n in near
        )

    def interpolate(self, size: float, gpus: int) -> tuple[float, bool]:
        """Seconds to all-reduce ``size`` bytes among ``gpus`` GPUs, and whether that was measured.

        The interpolation is linear in the logarithms of size, GPU count and time. Above the largest
        size, time is proportional to bytes (bandwidth-bound). Below the smallest size it is
        constant (latency-bound). Outside the GPU counts, the nearest one's time is scaled by the
        bytes that a ring sends, 2 (n - 1) / n.
        """
        if gpus < 2 or size <= 0:
            return 0.0, True
        inside = self.covers(size, gpus)
        curves = self.curves
        if gpus in curves:
            return _at(curves[gpus], size), inside
        counts = list(curves)
        place = bisect_left(counts, gpus)
        if place in (0, len(counts)):
            nearest = counts[0] if place == 0 else counts[-1]
            scale = ring_factor(gpus) / ring_factor(nearest)
            return _at(curves[nearest], size) * scale, False
        low, high = counts[place - 1], counts[place]
        share = math.log(gpus / low) / math.log(high / low)
        below, above = _at(curves[low], size), _at(curves[high], size)
        return below * (above / below) ** share, inside

    def fit_latency_bandwidth(self, gpus: int) -> tuple[float, float]:
        """Bus bandwidth [byte/s] and latency [s] that fit one measured GPU count best.

        t = latency + 2 (n - 1) / n * bytes / bandwidth ("bus bandwidth" as nccl-tests'
        PERFORMANCE.md defines it; Eq. 1 of the vTrain paper plus a latency), by least squares of
        the relative errors. The latency is that of the whole collective.

        Raises:
            ModelError: the GPU count was not measured, or its times do not grow with the size.
        """
        if gpus not in self.curves:
            counts = ", ".join(map(str, self.curves))
            raise ModelError(f"the all-reduce table has no {gpus} GPUs; it has {counts}")
        sizes = np.exp(self.curves[gpus].log_bytes)
        times = np.exp(self.curves[gpus].log_s)
        matrix = np.stack([1 / times, sizes / times], axis=1)
        (latency, per_byte), *_ = np.linalg.lstsq(matrix, np.ones_like(times), rcond=None)
        if per_byte <= 0:
            raise ModelError(f"the all-reduce times of {gpus} GPUs do not grow with the size")
        return ring_factor(gpus) / float(per_byte), max(0.0, float(latency))


def ring_factor(gpus: int) -> float:
    """Bytes that each of ``gpus`` ranks of a ring all-reduce sends, per byte reduced."""
    return 2 * (gpus - 1) / gpus


def _at(curve: Curve, size: float) -> float:
    """Seconds at one of the measured GPU counts."""
    log_size = math.log(size)
    sizes, times = curve
    if log_size <= sizes[0]:
        return math.exp(times[0])
    if log_size >= sizes[-1]:
        return math.exp(times[-1] + log_size - sizes[-1])
    place = bisect_left(sizes, log_size)
    share = (log_size - sizes[place - 1]) / (sizes[place] - sizes[place - 1])
    return math.exp(times[place - 1] + share * (times[place] - times[place - 1]))


def read_allreduce_table(path: Path) -> AllReduceTable:
    """The table in a CSV file with the columns gpus, bytes, out_of_place_ns, in_place_ns.

    Raises:
        ModelError: the file cannot be read, a column is missing, or a value is not a positive
            number.
    """
    table = read_csv(path, "all-reduce table")
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise ModelError(
            f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; an "
            f"all-reduce table has {', '.join(COLUMNS)}"
        )
    measured = _measurements(table, path)
    curves = {}
    for gpus, times in measured.items():
        sizes = sorted(times)
        curves[gpus] = Curve(
            tuple(math.log(size) for size in sizes), tuple(math.log(times[size]) for size in sizes)
        )
    try:
        return AllReduceTable(curves, source=str(path))
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def _measurements(table: CsvTable, path: Path) -> dict[int, dict[int, float]]:
    """GPU count -> bytes -> seconds in place."""
    measured: dict[int, dict[int, float]] = {}
    for (number, _), values in zip(table.lines, table.rows(), strict=True):
        where = f"{path}, line {number}"
        gpus = _whole_number(values, "gpus", where)
        size = _whole_number(values, "bytes", where)
        times = measured.setdefault(gpus, {})
        if size in times:
            raise ModelError(f"{where}: {gpus} GPUs and {size} bytes stand there twice")
        times[size] = _whole_number(values, "in_place_ns", where) * 1e-9
    return measured


def _whole_number(values: dict[str, str], name: str, where: str) -> int:
    text = values.get(name, "").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) > 0):
        raise ModelError(f"{where}: {name} must be a positive whole number, not {text[:40]!r}")
    return int(text)
