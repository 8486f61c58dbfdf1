"""Map of each rank's step time relative to others over a job's life, in bounded memory.

It is a matrix of bins of steps x ranks. A cell is the mean of a rank's step time over the step's
median, over the bin's steps with a time of the rank. When :data:`MAX_BINS` are full, neighbours are
merged, and bins are twice as long from then on. So it takes ``2 x ranks x MAX_BINS`` bytes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.detect.state import ArrayField, State, StateReader

#: Most bins; an even number, for they are merged in pairs.
MAX_BINS = 512

STATE_SCHEMA, STATE_VERSION = "paceline-rank-map", 1
_STATE_FIELDS = ("size", "counted", "ranks", "bins", "excess", "open_sum", "open_count")

#: A bin's steps, in order of arrival. ``start``: the job's start of its first step; ``last_start``:
#: of its last step; ``at``: arrival of the last step, seconds since 1970.
BIN = np.dtype(
    [
        ("first", "<i8"),
        ("last", "<i8"),
        ("steps", "<i8"),
        ("start", "<i8"),
        ("last_start", "<i8"),
        ("at", "<f8"),
    ]
)
#: Largest stored ratio: half-precision floats end at 65,504.
_MOST = 60_000.0

#: (start, step) of a job, which orders its steps by execution.
Place = tuple[int, int]
_NOTHING: Place = (-1, -1)


@dataclass(frozen=True, eq=False)
class Ratios:
    """The rank map of some steps.

    Attributes:
        ranks: [rank] ascending.
        bins: [bin] in order of execution, :data:`BIN` each.
        values: [bin, rank] step time over the step's median, mean of the bin; nan without times of
            the rank.
    """

    ranks: npt.NDArray[np.int32]
    bins: npt.NDArray[Any]
    values: npt.NDArray[np.float32]


class RankMap:
    """The matrix of one job; one thread adds steps, others may read.

    Attributes:
        ranks: [rank] all ranks with a step time, ascending.
        counted: the last counted step.
        size: number of steps of a full bin.
    """

    def __init__(self) -> None:
        self.ranks = np.zeros(0, dtype=np.int32)
        self.counted: Place = _NOTHING
        self.size = 1
        self._bins: list[npt.NDArray[Any]] = []  # closed bins, and the open one
        # Ratios minus 1: half-precision floats are more precise near zero.
        self._excess: list[npt.NDArray[np.float16]] = []  # values of the closed bins
        self._sum = np.zeros(0)  # [rank] sums of the open bin
        self._count = np.zeros(0, dtype=np.int32)
        self._lock = threading.Lock()

    @property
    def n_bytes(self) -> int:
        """Approximate memory in bytes."""
        return (2 * len(self._excess) + 12) * len(self.ranks)

    def add(self, row: Any, ranks: npt.NDArray[np.int32], durations_s: Any) -> None:
        """Count a closed step; a counted step changes nothing.

        Args:
            row: its row of the series.
            ranks: [rank] ranks of the durations, ascending.
            durations_s: [rank] seconds, nan if missing.
        """
        place = int(row["start"]), int(row["step"])
        if place <= self.counted:
            return
        with self._lock:
            self.counted = place
            median_s = float(row["median_s"])
            if not median_s > 0:
                return
            excess = np.minimum(durations_s / median_s, _MOST) - 1
            self._open_bin(row)
            columns = self._columns(ranks)
            if np.isnan(excess).any():
                told = ~np.isnan(excess)
                self._sum[columns] += np.where(told, excess, 0.0)
                self._count[columns] += told
            else:
                self._sum[columns] += excess
                self._count[columns] += 1

    def append(self, ratios: Ratios) -> None:
        """Append bins of any length."""
        with self._lock:
            self._close_bin()
            columns = self._columns(ratios.ranks)
            for one, values in zip(ratios.bins, ratios.values, strict=True):
                excess = np.full(len(self.ranks), np.nan, dtype=np.float16)
                excess[columns] = np.minimum(values, _MOST) - 1
                self._bins.append(one.copy())
                self._excess.append(excess)
                self.size = max(self.size, int(one["steps"]))
                self._make_room()
                self.counted = int(one["last_start"]), int(one["last"])

    def drop_before(self, at: float) -> int:
        """Forget closed bins with only steps before that time; returns their number."""
        with self._lock:
            old = sum(bool(one["at"] < at) for one in self._bins[: len(self._excess)])
            del self._bins[:old], self._excess[:old]
        return old

    def read(self, first: int | None = None, last: int | None = None) -> Ratios:
        """The bins with steps from ``first`` to ``last``, of all starts."""
        with self._lock:
            bins = np.array(self._bins, BIN) if self._bins else np.zeros(0, BIN)
            rows = [*self._excess, *([self._open_mean()] if self._is_open else [])]
            keep = np.ones(len(bins), dtype=bool)
            if first is not None:
                keep &= _last_steps(bins) >= first
            if last is not None:
                keep &= _first_steps(bins) <= last
            values = np.empty((int(keep.sum()), len(self.ranks)), dtype=np.float32)
            for place, number in enumerate(np.flatnonzero(keep)):
                values[place] = rows[number]
            return Ratios(self.ranks, bins[keep], values + np.float32(1))

    def state_dict(self) -> State:
        """The complete state, for a continuation: see :data:`STATE_SCHEMA`."""
        with self._lock:
            n = len(self.ranks)
            excess = np.array(self._excess, "<f2") if self._excess else np.zeros((0, n), "<f2")
            return {
                "schema": STATE_SCHEMA,
                "version": STATE_VERSION,
                "size": self.size,
                "counted": list(self.counted),
                "ranks": self.ranks.astype("<i4"),
                "bins": np.array(self._bins, BIN) if self._bins else np.zeros(0, BIN),
                "excess": excess,
                "open_sum": self._sum.astype("<f8"),
                "open_count": self._count.astype("<i4"),
            }

    @classmethod
    def from_state_dict(cls, state: object) -> RankMap:
        """A map that continues from a state.

        Raises:
            StateError: the state is of another schema or version, or a field does not fit.
        """
        reader = StateReader(state, STATE_SCHEMA, STATE_VERSION, _STATE_FIELDS)
        found = cls()
        found.size = reader.whole("size", 1)
        found.counted = _place(reader)
        sizes = {
            "rank": _length(reader.value("ranks")),
            "bin": _length(reader.value("bins")),
            "closed": _length(reader.value("excess")),
        }
        if sizes["bin"] - sizes["closed"] not in (0, 1) or sizes["bin"] > MAX_BINS:
            reader.fail("bins", f"are {sizes['bin']} for {sizes['closed']} rows")
        found.ranks = reader.array("ranks", ArrayField("<i4", ("rank",), least=0), sizes)
        if (np.diff(found.ranks) <= 0).any():
            reader.fail("ranks", "must ascend")
        found._bins = _checked_bins(reader)
        rows = reader.array("excess", ArrayField("<f2", ("closed", "rank"), nan=True), sizes)
        found._excess = list(rows)
        found._sum = reader.array("open_sum", ArrayField("<f8", ("rank",)), sizes)
        found._count = reader.array("open_count", ArrayField("<i4", ("rank",), least=0), sizes)
        return found

    @property
    def _is_open(self) -> bool:
        return len(self._bins) > len(self._excess)

    def _open_bin(self, row: Any) -> None:
        """Make the last bin the one of the step."""
        start, step = int(row["start"]), int(row["step"])
        if self._is_open:
            last = self._bins[-1]
            if last["last_start"] != start or last["steps"] >= self.size:
                self._close_bin()
        if not self._is_open:
            self._make_room()
            self._bins.append(np.array((step, step, 0, start, start, 0.0), BIN))
        last = self._bins[-1]
        last["last"], last["at"] = step, row["at"]
        last["steps"] += 1

    def _close_bin(self) -> None:
        if self._is_open:
            self._excess.append(self._open_mean())
            self._sum[:], self._count[:] = 0.0, 0

    def _open_mean(self) -> npt.NDArray[np.float16]:
        mean = np.full(len(self.ranks), np.nan)
        np.divide(self._sum, self._count, out=mean, where=self._count > 0)
        return mean.astype(np.float16)

    def _columns(self, ranks: npt.NDArray[np.int32]) -> Any:
        """Indices of the ranks; adds columns for new ones."""
        if len(ranks) == len(self.ranks) and np.array_equal(ranks, self.ranks):
            return slice(None)
        merged = np.union1d(self.ranks, ranks).astype(np.int32)
        if len(merged) > len(self.ranks):
            place = np.searchsorted(merged, self.ranks)
            self._excess = [_spread(row, place, len(merged), np.nan) for row in self._excess]
            self._sum = _spread(self._sum, place, len(merged), 0)
            self._count = _spread(self._count, place, len(merged), 0)
            self.ranks = merged
        return np.searchsorted(self.ranks, ranks)

    def _make_room(self) -> None:
        """Merge neighbours if there is no room for another bin."""
        if len(self._bins) < MAX_BINS:
            return
        pairs = range(0, MAX_BINS, 2)
        self._excess = [_mean_of_two(self._excess[i : i + 2], self._bins[i : i + 2]) for i in pairs]
        self._bins = [_join(*self._bins[i : i + 2]) for i in pairs]
        self.size *= 2


def _spread(row: npt.NDArray[Any], place: Any, n: int, filler: float) -> npt.NDArray[Any]:
    wider = np.full(n, filler, dtype=row.dtype)
    wider[place] = row
    return wider


def _join(one: npt.NDArray[Any], two: npt.NDArray[Any]) -> npt.NDArray[Any]:
    joined = two.copy()
    joined["first"], joined["start"] = one["first"], one["start"]
    joined["steps"] += one["steps"]
    return joined


def _mean_of_two(
    rows: list[npt.NDArray[np.float16]], bins: list[npt.NDArray[Any]]
) -> npt.NDArray[np.float16]:
    """Mean of two bins per rank, weighted by steps; if only one has a value, that value."""
    one, two = (row.astype(np.float32) for row in rows)
    n_one, n_two = (float(each["steps"]) for each in bins)
    mean = (one * np.float32(n_one) + two * np.float32(n_two)) / np.float32(n_one + n_two)
    mean = np.where(np.isnan(one), two, np.where(np.isnan(two), one, mean))
    return np.asarray(mean, dtype=np.float16)


def _first_steps(bins: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """[bin] its lowest step; a bin of several starts may begin at any step."""
    return np.where(bins["start"] == bins["last_start"], bins["first"], 0)


def _last_steps(bins: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    several = np.iinfo(np.int64).max
    return np.where(bins["start"] == bins["last_start"], bins["last"], several)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, np.ndarray) and value.ndim else 0


def _place(reader: StateReader) -> Place:
    value = reader.value("counted")
    whole = isinstance(value, list) and len(value) == 2 and all(type(x) is int for x in value)
    if not whole or min(value) < -1:
        reader.fail("counted", "must be a start and a step")
    return value[0], value[1]


def _checked_bins(reader: StateReader) -> list[npt.NDArray[Any]]:
    bins = reader.value("bins")
    if not isinstance(bins, np.ndarray) or bins.dtype != BIN or bins.ndim != 1:
        reader.fail("bins", "must be a table of bins")
    places = list(zip(bins["start"].tolist(), bins["first"].tolist(), strict=True))
    if (bins["steps"] < 1).any() or not np.isfinite(bins["at"]).all() or places != sorted(places):
        reader.fail("bins", "must be in their order, with steps and times")
    return [one.copy() for one in bins]
