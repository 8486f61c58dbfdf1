"""Ramps of a series of times: one level, a steady rise or fall, another level."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.jumps import MIN_STEPS, find_jump, find_period

Array = npt.NDArray[np.float64]

#: Least length of a ramp in steps; a shorter one is a jump.
MIN_RAMP = 2 * MIN_STEPS

#: Number of places at which a ramp may begin or end.
_PLACES = 40

_TINY_S = 1e-9

#: Rounds of weights that turn least squares into least absolute errors.
_ROUNDS = 10


@dataclass(frozen=True)
class Ramp:
    """A steady rise or fall within [step] times.

    Attributes:
        begin, end: indices of its first and last step; the levels hold before and behind.
        before_s, after_s: the levels.
        fitted: [step] seconds.
    """

    begin: int
    end: int
    before_s: float
    after_s: float
    fitted: Array

    def of(self, times: Array) -> Array:
        """[step] seconds of other [step] times that change between the same steps."""
        shape = _shape(len(times), self.begin, self.end)
        before_s, change_s = _line(shape, times)
        return before_s + change_s * shape


def ramp_of(times: Array) -> Ramp | None:
    """The ramp in [step] times; None if a jump or a period describes them as well."""
    n = len(times)
    if n < MIN_RAMP + MIN_STEPS:
        return None
    places = np.unique(np.linspace(0, n - 1, min(n, _PLACES)).astype(int))
    pairs = [(a, b) for a in places for b in places if b - a >= MIN_RAMP]
    smooth = _smoothed(times)
    begin, end = min(pairs, key=lambda pair: _squares(smooth, _shape(n, *pair)))
    shape = _shape(n, int(begin), int(end))
    before_s, change_s = _line(shape, times)
    fitted = before_s + change_s * shape
    error = float(np.abs(times - fitted).sum())
    jump, period = find_jump(times), find_period(times)
    jumped = np.repeat([jump.before_s, jump.after_s], [jump.at, n - jump.at])
    in_period = np.where(period.inside(n), period.inside_s, period.outside_s)
    # Schwarz (1978), with errors of Laplace: the second place must earn its freedom.
    for other in (jumped, in_period):
        of_other = float(np.abs(times - other).sum())
        if n * math.log(max(of_other, _TINY_S) / max(error, _TINY_S)) < math.log(n):
            return None
    return Ramp(int(begin), int(end), before_s, before_s + change_s, fitted)


def _shape(n: int, begin: int, end: int) -> Array:
    """[step] 0 up to ``begin``, 1 from ``end`` on, a line between."""
    return np.clip((np.arange(n) - begin) / (end - begin), 0.0, 1.0)


def _smoothed(times: Array) -> Array:
    """[step] medians of three, so that single pauses do not pull the fit."""
    padded = np.concatenate([times[:1], times, times[-1:]])
    smooth: Array = np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0)
    return smooth


def _squares(times: Array, shape: Array) -> float:
    """Least sum of squared errors of a level and a multiple of the shape."""
    off, centred = times - times.mean(), shape - shape.mean()
    slope = float(off @ centred) / float(centred @ centred)
    return float(np.square(off - slope * centred).sum())


def _line(shape: Array, times: Array) -> tuple[float, float]:
    """Level and multiple of the shape with the least absolute errors."""
    columns = np.stack([np.ones_like(shape), shape], axis=1)
    weight = np.ones_like(times)
    level, change = 0.0, 0.0
    for _ in range(_ROUNDS):
        level, change = np.linalg.lstsq(columns * weight[:, None], times * weight, rcond=None)[0]
        off = np.abs(times - level - change * shape)
        weight = 1 / np.sqrt(np.maximum(off, 1e-3 * float(np.median(off)) + _TINY_S))
    return float(level), float(change)
