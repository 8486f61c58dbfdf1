"""What a step is expected to take by plan: from earlier runs, and from its workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import DetectError

Array = npt.NDArray[np.float64]

#: Samples of a run whose median stands for each of its steps, two apart (runs may alternate).
_SMOOTH = 5
#: Samples that say what a stage of work takes that was not seen before.
FIRST_SAMPLES = 7
#: A stage's first samples may lie this share outside what its workload allows.
_MARGIN = 0.03
#: Samples over which a stage's time is refined, and stages that are remembered.
_REFINE, MAX_STAGES = 64, 256

Stage = tuple[tuple[str, float], ...]
Row = tuple[int, Array, float]


class Likeness:
    """How the step times of earlier runs of the same job change over their steps.

    Args:
        runs: [step] seconds of each.

    Raises:
        DetectError: a run is no list of numbers.
    """

    def __init__(self, runs: Sequence[npt.ArrayLike] = ()) -> None:
        self.first: int | None = None
        self._stride = 1
        self._back = False
        try:
            rows = [np.asarray(run, dtype=np.float64).reshape(-1) for run in runs]
        except (TypeError, ValueError):
            raise DetectError("like needs the step times of each earlier run in seconds") from None
        self.level = _common(rows)

    def expected(self, step: int, ordinal: int) -> float:
        """What the step takes over the typical one, by the earlier runs; 1 where they end."""
        if not len(self.level):
            return 1.0
        if self.first is None:
            self.first = step
        elif ordinal == 1 and step > self.first:
            self._stride = step - self.first
        at = (step - self.first) // self._stride
        return float(self.level[min(max(at, 0), len(self.level) - 1)])

    def go_back(self) -> None:
        """Steps are numbered on: nothing to do, as their numbers say where they are."""

    def state(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {"first": self.first, "stride": self._stride, "level": self.level.tolist()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Likeness:
        """What :meth:`state` gave."""
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
    """A table of what each stage of the workload takes, relative to the first.

    A stage that was not seen before is measured by its first samples, within what the ratio of its
    workload to that of the stage before allows; what lies outside is no plan.
    """

    def __init__(self) -> None:
        self._table: dict[Stage, list[float]] = {}  # stage -> [share, samples]
        self._stage: Stage = ()

        self._recent: list[float] = []
        self._waiting: list[Row] = []
        self._before: Stage = ()

    def take(
        self,
        step: int,
        x: Array,
        missing: npt.NDArray[np.bool_],
        like: float,
        workload: Mapping[str, float] | None,
    ) -> list[Row]:
        """Steps whose expected time is known now: (step, [rank] seconds, share)."""
        if missing.any():
            x = np.where(missing, np.nan, x)
        if workload is None:
            return [(step, x, like)]
        stage = _stage(workload)
        rows: list[Row] = []
        if stage != self._stage:
            rows = self._settle()
            if not self._table:
                self._table[stage] = [1.0, 0.0]
                self._recent.clear()
            self._before, self._stage = self._stage, stage
        if stage not in self._table:
            self._waiting.append((step, x, like))
            return rows + (self._settle() if len(self._waiting) >= FIRST_SAMPLES else [])
        rows.append((step, x, like * self._table[stage][0]))
        self._learn(x, like)
        return rows

    def _learn(self, x: Array, like: float) -> None:
        entry = self._table[self._stage]
        value = float(np.nanmedian(x)) if np.isfinite(x).any() else np.nan
        if np.isfinite(value):
            self._recent = [*self._recent[-14:], value / (like * entry[0])]

    def _settle(self) -> list[Row]:
        """Judge the first samples of a stage."""
        if not self._waiting:
            return []
        waiting, self._waiting = self._waiting, []
        medians = [
            float(np.nanmedian(x)) / like for _, x, like in waiting if np.isfinite(x).any()
        ]
        share = self._table.get(self._before, [1.0])[0]
        if medians and self._recent:
            low, high = self._bounds()
            measured = float(np.median(medians)) / float(np.median(self._recent))
            share = min(max(measured, low), high)
        if len(self._table) >= MAX_STAGES:
            del self._table[next(iter(self._table))]
        self._table[self._stage] = [share, float(len(medians))]
        for _, x, like in waiting:
            self._learn(x, like)
        return [(step, x, like * share) for step, x, like in waiting]

    def _bounds(self) -> tuple[float, float]:
        """The least and the most share that the workload allows, by each stage of the table."""
        low, high = 0.0, np.inf
        for stage, (share, _) in self._table.items():
            down, up = _ratios(stage, self._stage)
            low, high = max(low, share * down), min(high, share * up)
        if low > high:
            share = self._table[self._before][0] if self._before in self._table else 1.0
            down, up = _ratios(self._before, self._stage)
            low, high = share * down, share * up
        return low / (1 + _MARGIN), high * (1 + _MARGIN)

    def state(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {
            "table": [[list(map(list, stage)), *entry] for stage, entry in self._table.items()],
            "stage": list(map(list, self._stage)),
            "before": list(map(list, self._before)),
            "recent": self._recent,
            "waiting": [[step, _numbers(x), like] for step, x, like in self._waiting],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Workloads:
        """What :meth:`state` gave."""
        loads = cls()
        loads._table = {_named(s): [float(a), float(b)] for s, a, b in state["table"]}
        loads._stage, loads._before = _named(state["stage"]), _named(state["before"])
        loads._recent = [float(value) for value in state["recent"]]
        loads._waiting = [
            (int(step), np.array([np.nan if v is None else v for v in x], dtype=np.float64), like)
            for step, x, like in state["waiting"]
        ]
        return loads


def _numbers(x: Array) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in x.tolist()]


def _named(pairs: Sequence[Sequence[Any]]) -> Stage:
    return tuple((str(name), float(value)) for name, value in pairs)


def _stage(workload: Mapping[str, float]) -> Stage:
    try:
        return tuple(sorted((str(name), float(value)) for name, value in workload.items()))
    except (TypeError, ValueError, AttributeError):
        raise DetectError("a workload maps names to numbers: {'tokens': 4096}") from None


def _ratios(before: Stage, after: Stage) -> tuple[float, float]:
    """The least and the most that a step's time may change where the work changes so."""
    low = high = 1.0
    old = dict(before)
    for name, value in after:
        was = old.get(name, 0.0)
        if was > 0 and value > 0:
            low, high = low * min(1.0, value / was), high * max(1.0, value / was)
        elif was != value:
            return 0.0, np.inf
    return low, high
