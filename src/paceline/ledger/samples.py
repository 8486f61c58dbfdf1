"""The time of steps: lost, compiling, slow, straggling, productive."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paceline.ledger import episodes
from paceline.ledger.cover import Cover
from paceline.sources.run_logs.timeline import Start

Array = npt.NDArray[np.float64]

#: Steps that show the typical time after a start.
_TYPICAL_STEPS = 20
_MIN_TYPICAL_STEPS = 3
#: A step of this multiple of the typical time contains something that the log does not name.
_LONG = 5.0


class Samples:
    """The steps of all starts in order.

    Attributes:
        net_s: [sample] seconds of wall time without pauses; per_step_s: the same of a step.
        told_s: [sample] seconds of a step as the log gives them, without pauses.
    """

    def __init__(self, starts: Sequence[Start], covers: Sequence[Cover]) -> None:
        self.last = np.concatenate([start.steps.last for start in starts])
        self.count = np.concatenate([start.steps.count for start in starts])
        self.net_s = np.concatenate([covered.net_s for covered in covers])
        sizes = [len(start.steps) for start in starts]
        self.firsts = [int(n) for n in np.cumsum([0, *sizes[:-1]])]
        self.ends = [first + size for first, size in zip(self.firsts, sizes, strict=True)]
        # Rounded times may be 0, unlike real step times.
        self.per_step_s = np.maximum(self.net_s / self.count, 1e-9)
        in_pauses_s = [
            start.steps.end_s - start.steps.begin_s - covered.net_s
            for start, covered in zip(starts, covers, strict=True)
        ]
        spent_s = np.concatenate([start.steps.spent_s for start in starts])
        self.told_s = np.maximum((spent_s - np.concatenate(in_pauses_s)) / self.count, 1e-9)
        self._lost = self._lost_share(starts)
        self.lost_steps = int(np.rint((self._lost * self.count).sum()))

    @property
    def spacing(self) -> int:
        """Steps that a sample usually stands for."""
        return int(np.median(self.count)) if len(self.count) else 1

    @property
    def breaks(self) -> list[int]:
        """The first sample of each later start."""
        return self.firsts[1:]

    def _lost_share(self, starts: Sequence[Start]) -> Array:
        """[sample] share of its steps that a later start repeats."""
        lost = np.zeros(len(self.last))
        again = math.inf
        for number in reversed(range(len(starts))):
            rows = slice(self.firsts[number], self.ends[number])
            beyond = self.last[rows] - (again - 1)
            lost[rows] = np.clip(beyond / self.count[rows], 0.0, 1.0)
            if len(starts[number].steps):
                again = min(again, starts[number].steps.first_step)
        return lost

    def share_out(
        self, seconds: dict[str, float], changes: Sequence[episodes.Change], slowdown: float
    ) -> None:
        """Add the time of steps to the rows."""
        level = episodes.factors(changes, len(self.last))
        kept_s = self.net_s * (1 - self._lost)
        seconds["lost_steps"] += float((self.net_s * self._lost).sum())
        excess_s = np.zeros(len(self.last))
        for first, end in zip(self.firsts, self.ends, strict=True):
            compile_s, long_s = self._excess(first, end, level[first:end])
            excess_s[first:end] = long_s
            seconds["unknown"] += float((long_s * (1 - self._lost[first:end])).sum())
            if compile_s:
                excess_s[first] = compile_s
                seconds["compile"] += compile_s * float(1 - self._lost[first])
        stepping_s = kept_s - excess_s * (1 - self._lost)
        slow_s = stepping_s * (1 - 1 / level)
        straggling_s = (stepping_s - slow_s) * (1 - 1 / slowdown)
        seconds["fail_slow"] += float(slow_s.sum())
        seconds["stragglers"] += float(straggling_s.sum())
        seconds["productive"] += float((stepping_s - slow_s - straggling_s).sum())

    def typical(self, changes: Sequence[episodes.Change]) -> npt.NDArray[np.bool_]:
        """[sample] whether its steps are usual: none in a fail-slow, very long, or a start's first.

        Steps that a later start repeats are usual, too.
        """
        level = episodes.factors(changes, len(self.last))
        usual: npt.NDArray[np.bool_] = level == 1
        for first, end in zip(self.firsts, self.ends, strict=True):
            _, long_s = self._excess(first, end, level[first:end])
            usual[first:end] &= long_s == 0
            usual[first : min(first + 1, end)] = False
        return usual

    def _excess(self, first: int, end: int, level: Array) -> tuple[float, Array]:
        """(excess of a start's first step over the typical one, the same of long steps)."""
        healthy_s = self.per_step_s[first:end] / level
        long_s = np.zeros(end - first)
        if len(healthy_s) <= _MIN_TYPICAL_STEPS:
            return 0.0, long_s
        early_s = float(np.median(healthy_s[1 : 1 + _TYPICAL_STEPS]))
        compile_s = max(float(self.net_s[first]) - early_s * int(self.count[first]), 0.0)
        typical_s = float(np.median(healthy_s[1:])) * level
        excess_s = self.net_s[first:end] - typical_s * self.count[first:end]
        is_long = self.per_step_s[first:end] > _LONG * typical_s
        is_long[0] = False
        return compile_s, np.where(is_long, excess_s, long_s)
