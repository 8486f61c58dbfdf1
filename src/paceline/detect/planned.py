"""Expected time of a step, from earlier runs and from its planned workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.detect.varying_work import RECENT, VaryingWork, is_settled, varies, work_of
from paceline.errors import DetectError

Array = npt.NDArray[np.float64]

#: Samples, two steps apart, whose median represents a step of a run (runs may alternate).
_SMOOTH = 5
#: Samples that measure a new stage of the workload.
FIRST_SAMPLES, _MOST_WAITING = 8, 20
#: Largest difference of their halves in a settled stage.
_TREND = 0.06
#: Tolerance of a stage's first samples beyond the bounds of its workload.
_MARGIN = 0.03
#: Samples that refine a stage's time, and the number of stages kept.
_REFINE, MAX_STAGES = 64, 256
#: Largest correction of a refined share; more is no error of the first samples.
_REFINED = 0.08
_RECENT = 24
#: In an alternation, the same step is longer in this share of the pairs of odd and even steps.
_ALTERNATE = 0.9
_LISTS = ("recent", "base", "raw")

Stage = tuple[tuple[str, float], ...]
Row = tuple[int, Array, float]
Waiting = tuple[int, Array, float]


class Likeness:
    """Step times of earlier runs of the same job, over their steps.

    Args:
        runs: [step] seconds of each run.

    Raises:
        DetectError: a run is no list of numbers.
    """

    def __init__(self, runs: Sequence[npt.ArrayLike] = ()) -> None:
        self.first: int | None = None
        self._stride = 1
        try:
            rows = [np.asarray(run, dtype=np.float64).reshape(-1) for run in runs]
        except (TypeError, ValueError):
            raise DetectError("like needs the step times of each earlier run in seconds") from None
        self.level = _common(rows)

    def expected(self, step: int, ordinal: int) -> float:
        """Ratio of the step's time to the typical one in earlier runs; 1 after their end."""
        if not len(self.level):
            return 1.0
        if self.first is None:
            self.first = step
        elif ordinal == 1 and step > self.first:
            self._stride = step - self.first
        at = (step - self.first) // self._stride
        return float(self.level[min(max(at, 0), len(self.level) - 1)])

    def state(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {"first": self.first, "stride": self._stride, "level": self.level.tolist()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Likeness:
        """Restore the result of :meth:`state`."""
        likeness = cls()
        likeness.first, likeness._stride = state["first"], int(state["stride"])
        likeness.level = np.array(state["level"], dtype=np.float64)
        return likeness


def _common(runs: list[Array]) -> Array:
    """[step] the median over runs of each run's smoothed time over its typical one."""
    runs = [run for run in runs if np.isfinite(run).sum() >= 2 * _SMOOTH]
    if not runs:
        return np.zeros(0)
    level = np.full((len(runs), max(map(len, runs))), np.nan)
    with np.errstate(all="ignore"):
        for row, run in zip(level, runs, strict=True):
            row[: len(run)] = smoothed(run) / np.nanmedian(run)
        middle = np.array([np.nanmedian(c) if np.isfinite(c).any() else np.nan for c in level.T])
    bad = ~(middle > 0)
    middle[bad] = np.interp(np.flatnonzero(bad), np.flatnonzero(~bad), middle[~bad])
    return middle


def smoothed(run: Array) -> Array:
    """[step] medians of five samples, two apart: edges stay, alternating steps too."""
    half = _SMOOTH // 2 * 2
    padded = np.concatenate([np.full(half, np.nan), run, np.full(half, np.nan)])
    shifts = [padded[k : k + len(run)] for k in range(0, 2 * half + 1, 2)]
    with np.errstate(all="ignore"):
        middle: Array = np.nanmedian(np.stack(shifts), axis=0)
    return middle


class Workloads:
    """Relative step times of the workload's stages, compared with the first.

    The first samples measure a new stage. The ratio of its workload to that of other stages bounds
    its time; a time outside is unplanned. Odd and even steps have separate shares, as runs
    alternate between them, with another ratio in each stage.

    Where the work differs from step to step, no stage lasts. Then :class:`VaryingWork` tells the
    time.
    """

    def __init__(self) -> None:
        self._latest: list[tuple[Stage, float]] = []  # works of the last steps, and their times
        self._varying: VaryingWork | None = None
        self._table: dict[Stage, list[float]] = {}  # stage -> shares of even and odd steps
        self._stage: Stage = ()
        self._before: Stage = ()
        self._recent: list[tuple[int, float]] = []  # (parity, share of the expected time)
        self._base: list[tuple[int, float]] = []  # samples before the stage
        self._raw: list[tuple[int, float]] = []  # the stage's first samples in order
        self._waiting: list[Waiting] = []

    def take(
        self,
        step: int,
        x: Array,
        missing: npt.NDArray[np.bool_],
        like: float,
        workload: Mapping[str, float] | None,
    ) -> list[Row]:
        """Steps with a known expected time: (step, [rank] seconds, share)."""
        if missing.any():
            x = np.where(missing, np.nan, x)
        if workload is None:
            return [(step, x, like)]
        stage = _stage(workload)
        rows = self._follow(stage, _middle(x) / like)
        if self._varying is not None:
            return [*rows, (step, x, like * self._varying.relative_time(stage))]
        if stage != self._stage:
            rows += self._settle()
            if not self._table:
                self._table[stage] = [1.0, 1.0]
            self._before, self._stage = self._stage, stage
            self._base, self._raw = list(self._recent), []
        if stage not in self._table:
            self._waiting.append((step, x, like))
            return rows + (self._settle() if self._is_settled() else [])
        self._learn(step, x, like)
        rows.append((step, x, like * self._table[stage][step & 1]))
        return rows

    def _follow(self, stage: Stage, seconds: float) -> list[Row]:
        """Begin or end the model of varying work; the samples that waited for a stage's end.

        The model's relative time is 1 where the first stage's share is 1.
        """
        self._latest = [*self._latest[1 - RECENT :], (stage, seconds)]
        works = [work for work, _ in self._latest]
        rows: list[Row] = []
        if self._varying is not None:
            if is_settled(works):
                share = self._varying.relative_time(stage)
                self._table, self._stage, self._before = {stage: [share, share]}, stage, ()
                self._varying, self._base, self._raw = None, [], []
            else:
                self._varying.add(stage, seconds)
        elif varies(works):
            rows = self._settle()
            self._varying = VaryingWork(next(iter(self._table), stage))
            for work, value in self._latest:
                self._varying.add(work, value)
            self._recent, self._base, self._raw = [], [], []
        return rows

    def _learn(self, step: int, x: Array, like: float) -> None:
        """Add a sample to its stage, and refine a young stage's shares."""
        value = _middle(x) / like
        if not np.isfinite(value):
            return
        shares = self._table[self._stage]
        self._recent = [*self._recent[1 - _RECENT :], (step & 1, value / shares[step & 1])]
        if len(self._raw) < _REFINE and self._base:
            self._raw.append((step & 1, value))
            if len(self._raw) in (_REFINE // 2, _REFINE):
                better = self._shares(self._raw[FIRST_SAMPLES:])
                if all(abs(b / s - 1) < _REFINED for b, s in zip(better, shares, strict=True)):
                    self._table[self._stage] = better

    def _is_settled(self) -> bool:
        """Whether a new stage's samples show no trend, or enough of them have come."""
        values = [_middle(x) / like for _, x, like in self._waiting[-FIRST_SAMPLES:]]
        if len(values) < FIRST_SAMPLES:
            return False
        half = FIRST_SAMPLES // 2
        early, late = np.median(values[:half]), np.median(values[half:])
        return bool(abs(late / early - 1) < _TREND) or len(self._waiting) >= _MOST_WAITING

    def _settle(self) -> list[Row]:
        """Evaluate the first samples of a stage."""
        if not self._waiting:
            return []
        waiting, self._waiting = self._waiting, []
        values = [(step & 1, _middle(x) / like) for step, x, like in waiting[-FIRST_SAMPLES:]]
        if len(self._table) >= MAX_STAGES:
            del self._table[next(iter(self._table))]
        shares = self._shares([pair for pair in values if np.isfinite(pair[1])])
        self._table[self._stage] = shares
        for step, x, like in waiting:
            self._learn(step, x, like)
        return [(step, x, like * shares[step & 1]) for step, x, like in waiting]

    def _shares(self, values: list[tuple[int, float]]) -> list[float]:
        """[even, odd] measured shares of the stage, within the bounds of its workload."""
        before = self._base
        if not (_alternates(values) or _alternates(before)):
            values, before = ([(0, v) for _, v in pairs] for pairs in (values, before))
        now, base = _by_parity(values), _by_parity(before)
        if now is None or base is None:
            return list(self._table.get(self._before, [1.0, 1.0]))
        shares = [a / b for a, b in zip(now, base, strict=True)]
        both = float(np.sqrt(shares[0] * shares[1]))
        low, high = self._bounds()
        return [share * min(max(both, low), high) / both for share in shares]

    def _bounds(self) -> tuple[float, float]:
        """Bounds of the share by the workload, from each known stage."""
        low, high = 0.0, np.inf
        for stage, shares in self._table.items():
            if stage != self._stage:
                both = float(np.sqrt(shares[0] * shares[1]))
                down, up = _ratios(stage, self._stage)
                low, high = max(low, both * down), min(high, both * up)
        if low > high:
            low, high = high, low
        return low / (1 + _MARGIN), high * (1 + _MARGIN)

    def state(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "table": [[list(map(list, stage)), *entry] for stage, entry in self._table.items()],
            "stage": list(map(list, self._stage)),
            "before": list(map(list, self._before)),
            **{name: _pairs(getattr(self, f"_{name}")) for name in _LISTS},
            "waiting": [[step, _numbers(x), like] for step, x, like in self._waiting],
            **self._state_of_varying(),
        }

    def _state_of_varying(self) -> dict[str, Any]:
        """The last works, which older versions do not save; empty for a job without workload."""
        if not self._latest:
            return {}
        latest = [
            [list(map(list, work)), *_numbers(np.array([value]))] for work, value in self._latest
        ]
        return {"latest": latest, "varying": self._varying and self._varying.state()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Workloads:
        """Restore the result of :meth:`state`."""
        loads = cls()
        loads._table = {work_of(s): [float(a), float(b)] for s, a, b in state["table"]}
        loads._stage, loads._before = work_of(state["stage"]), work_of(state["before"])
        loads._latest = [
            (work_of(work), float("nan") if value is None else float(value))
            for work, value in state.get("latest", [])
        ]
        if state.get("varying") is not None:
            loads._varying = VaryingWork.from_state(state["varying"])
        for name in _LISTS:
            setattr(loads, f"_{name}", [(int(p), float(v)) for p, v in state[name]])
        loads._waiting = [
            (int(step), np.array([np.nan if v is None else v for v in x], dtype=np.float64), like)
            for step, x, like in state["waiting"]
        ]
        return loads


def _pairs(values: Sequence[tuple[int, float]]) -> list[list[float]]:
    return [list(pair) for pair in values]


def _middle(x: Array) -> float:
    """Median of the ranks with a sample."""
    if len(x) == 1:
        return float(x[0])
    return float(np.nanmedian(x)) if np.isfinite(x).any() else float("nan")


def _alternates(values: list[tuple[int, float]]) -> bool:
    """Whether nearly all odd steps take longer than the even ones, or shorter."""
    even, odd = (np.array([v for parity, v in values if parity == side]) for side in (0, 1))
    if not len(even) or not len(odd):
        return False
    above = float(np.mean(odd[:, None] > even[None, :]))
    return above >= _ALTERNATE or float(np.mean(odd[:, None] < even[None, :])) >= _ALTERNATE


def _by_parity(values: list[tuple[int, float]]) -> tuple[float, float] | None:
    """Lower medians of even and odd steps, or of both together if either has less than three.

    The lower median is more reliable, as spikes are slow.
    """
    if not values:
        return None
    sides = [[v for parity, v in values if parity == side] for side in (0, 1)]
    if min(map(len, sides)) < 3:
        both = _lower_median([v for _, v in values])
        return both, both
    return _lower_median(sides[0]), _lower_median(sides[1])


def _lower_median(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def _numbers(x: Array) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in x.tolist()]


def _stage(workload: Mapping[str, float]) -> Stage:
    try:
        return tuple(sorted((str(name), float(value)) for name, value in workload.items()))
    except (TypeError, ValueError, AttributeError):
        raise DetectError("a workload maps names to numbers: {'tokens': 4096}") from None


def _ratios(before: Stage, after: Stage) -> tuple[float, float]:
    """Bounds of the change of a step's time for a change of the workload."""
    low = high = 1.0
    old = dict(before)
    for name, value in after:
        was = old.get(name, 0.0)
        if was > 0 and value > 0:
            low, high = low * min(1.0, value / was), high * max(1.0, value / was)
        elif was != value:
            return 0.0, np.inf
    return low, high
