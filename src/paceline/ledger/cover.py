"""Division of a start's time into steps, pauses, and time that the log does not name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.sources.run_logs.timeline import Array, Pause, PauseKind, Start

_NOTHING, _STEP = -1, 0
#: Order of precedence: a pause within a step counts as a pause, and a later kind within an earlier
#: one as the later.
_KINDS: tuple[PauseKind, ...] = ("setup", "other", "data", "evaluation", "restore", "checkpoint")


@dataclass(frozen=True)
class Cover:
    """Use of a start's time.

    Attributes:
        before_s: kind -> seconds of pauses before the first step; "" is unnamed time.
        behind_s: the same from the first step on.
        net_s: [sample] seconds of steps without the pauses in them.
    """

    before_s: dict[str, float]
    behind_s: dict[str, float]
    net_s: Array


def cover(start: Start) -> Cover:
    """Divide a start's time; the parts add up to its length."""
    steps, end = start.steps, start.end_s
    first = float(steps.begin_s[0]) if len(steps) else end
    pauses = [_clipped(pause, start.begin_s, end) for pause in start.pauses]
    ends = [edge for pause in pauses for edge in (pause.begin_s, pause.end_s)]
    edges_s = [start.begin_s, first, end, *ends]
    points = np.unique(np.concatenate([edges_s, steps.begin_s, steps.end_s]))
    code = np.full(len(points) - 1, _NOTHING)
    begins, stops = np.searchsorted(points, steps.begin_s), np.searchsorted(points, steps.end_s)
    edges = np.bincount(begins, minlength=len(points)) - np.bincount(stops, minlength=len(points))
    code[np.cumsum(edges)[:-1] > 0] = _STEP
    for pause in sorted(pauses, key=lambda p: _KINDS.index(p.kind)):
        lo, hi = np.searchsorted(points, (pause.begin_s, pause.end_s))
        code[lo:hi] = _KINDS.index(pause.kind) + 1
    seconds = np.diff(points)
    until = np.concatenate([[0.0], np.cumsum(np.where(code == _STEP, seconds, 0.0))])
    is_before = points[:-1] < first
    return Cover(
        _sums(code[is_before], seconds[is_before]),
        _sums(code[~is_before], seconds[~is_before]),
        until[stops] - until[begins],
    )


def _clipped(pause: Pause, begin_s: float, end_s: float) -> Pause:
    begin = min(max(pause.begin_s, begin_s), end_s)
    return Pause(pause.kind, begin, min(max(pause.end_s, begin), end_s))


def _sums(code: npt.NDArray[Any], seconds: Array) -> dict[str, float]:
    names = {_NOTHING: "", **dict(enumerate(_KINDS, start=1))}
    return {name: float(seconds[code == number].sum()) for number, name in names.items()}
