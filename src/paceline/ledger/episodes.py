"""Steps that a fail-slow lengthened, and their factors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.detect.detector import THRESHOLD, Detector
from paceline.detect.event import SLOW_KINDS
from paceline.detect.few_samples import warm_up_before_rise
from paceline.detect.limits import PAUSE, warm_up_of
from paceline.detect.refinement import Refinement
from paceline.detect.warm_up import SETTLE_MOST
from paceline.errors import DetectError

#: Ratio of the detector's loss to that of the factors from which on they tell unlike levels.
_UNLIKE = 2.0
#: Samples of a new start that the detector may leave unjudged, and the fewest of a level.
_UNJUDGED, _FEWEST = SETTLE_MOST, 3

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Change:
    """The begin of a level.

    Attributes:
        row: the first sample of the level.
        factor: ratio to the healthy level; 1 from a relief on.
    """

    row: int
    factor: float


def detected(
    last: Ints, per_step_s: Array, breaks: Sequence[int], net_s: Array, spacing: int
) -> list[Change] | None:
    """Changes that the detector finds in a job's samples, refined; None if there are too few.

    Args:
        last: [sample] step numbers, which fall back at restarts.
        per_step_s: [sample] seconds a step.
        breaks: samples that are the first of a later start.
        net_s: [sample] wall time that the changes' factors divide.
        spacing: steps that a sample stands for.
    """
    warm_up = warm_up_before_rise(per_step_s, warm_up_of(spacing), THRESHOLD)
    if len(last) <= warm_up:
        return None
    detector = Detector(1, warm_up=warm_up)
    refinement, rows = Refinement(detector), []
    breaking = set(breaks)
    for row, step in enumerate(last.tolist()):
        if row in breaking and detector.last_step is not None and step <= detector.last_step:
            detector.go_back()
        events = detector.update(step, per_step_s[row : row + 1])
        refinement.take(events)
        rows += [row] * len(events)
    changes: list[Change] = []
    begin = 0  # the episode's first change
    for row, event in zip(rows, refinement.events(), strict=True):
        if event.kind in (*SLOW_KINDS, "relief", "faster"):
            factor = event.factor if event.refined is None else event.refined.factor
            is_slow = event.kind in SLOW_KINDS
            changes.append(Change(_row_of(last, event.since_step, row), factor if is_slow else 1.0))
            if not is_slow:
                lost_s = event.lost_s * spacing
                changes[begin:] = _losing(lost_s, changes[begin:], net_s, breaking)
                begin = len(changes)
    if begin < len(changes):
        lost_s = float(detector.lost_s[0]) * spacing
        changes[begin:] = _losing(lost_s, changes[begin:], net_s, breaking)
    return _with_begins(changes, last, per_step_s, breaks)


def _with_begins(
    changes: list[Change], last: Ints, per_step_s: Array, breaks: Sequence[int]
) -> list[Change]:
    """The changes, with the first samples of each start that repeats steps judged again.

    The detector waits there until the job has settled. So a slow level that ends within these
    samples escapes it, and the end of one that ended with the restart is late. Here the samples
    have the healthy level or a slow one: that of the last step before, or of the same step. If
    neither was slow, slow steps may be a warm-up.
    """
    if not changes or not breaks:
        return changes
    levels = factors(changes, len(last))
    for first, end in zip(breaks, (*breaks[1:], len(last)), strict=True):
        end = min(end, first + _UNJUDGED)
        same_step = np.flatnonzero(last[:first] == last[first])[-1:]
        slow = max(float(levels[row]) for row in (first - 1, *same_step))
        healthy_s = per_step_s[:first][levels[:first] == 1]
        is_again = end > first and last[first] <= last[first - 1]
        rises = np.diff(levels[first:end]).max(initial=0.0) > 0
        is_over = not rises and levels[end - 1] == 1
        if slow == 1 or not len(healthy_s) or not is_again or not is_over:
            continue
        ratio = np.log(per_step_s[first + 1 : end] / np.median(healthy_s[-2 * _UNJUDGED :]))
        # The first step is left out: it compiles.
        gain = np.cumsum(np.abs(ratio) - np.abs(ratio - np.log(slow)))
        n_slow = int(gain.argmax()) + 2 if len(gain) and gain.max() > 0 else 0
        levels[first:end] = 1.0
        if n_slow >= _FEWEST:
            levels[first : first + n_slow] = slow
    rows = np.flatnonzero(np.diff(levels, prepend=1.0))
    return [Change(int(row), float(levels[row])) for row in rows]


def _losing(lost_s: float, changes: list[Change], net_s: Array, breaking: set[int]) -> list[Change]:
    """An episode's changes with factors by which it loses the seconds that the detector tells.

    The detector counts what exceeds the mean healthy step, with its usual long steps. Factors are
    ratios of typical steps. Across restarts, and where the two differ much, the factors stay.
    """
    end = len(net_s) if changes[-1].factor > 1 else changes[-1].row
    rows = slice(changes[0].row, end)
    slow_s = net_s[rows]
    share = 1 - 1 / factors(changes, len(net_s))[rows]
    capped_s = np.minimum(slow_s, PAUSE * np.median(slow_s)) if len(slow_s) else slow_s
    by_factors_s = float((capped_s * share).sum())
    scale = lost_s / by_factors_s if by_factors_s > 0 else 0.0
    if not 1 / _UNLIKE < scale < _UNLIKE or breaking & set(range(changes[0].row + 1, end)):
        return changes
    return [
        Change(change.row, 1 / (1 - scale * (1 - 1 / change.factor)))
        if change.factor > 1
        else change
        for change in changes
    ]


def given(
    events: Iterable[Mapping[str, Any]], last: Ints, where: str, ends: Sequence[int] = ()
) -> list[Change]:
    """Changes of events as ``paceline detect --json`` prints them.

    Groups of ranks that are slow at once cost as much as the slowest. A later event replaces a
    group if it names at least half of its ranks.

    Args:
        events: events in order. ``start`` is the number of the job's start; without it, the last
            start with the event's step counts.
        last: [sample] step numbers.
        where: source of the events, for errors.
        ends: [start] index after its last sample.

    Raises:
        DetectError: an event lacks a number.
    """
    changes = []
    slow: list[tuple[frozenset[int], float]] = []
    latest_start: Any = None
    for event in events:
        kind = event.get("kind")
        if kind not in (*SLOW_KINDS, "relief", "faster"):
            continue
        try:
            since = int(event["since_step"])
            factor = float(event["factor"]) if kind in SLOW_KINDS else 1.0
        except (KeyError, TypeError, ValueError):
            raise DetectError(f"{where}: an event needs numbers for since_step, factor") from None
        start = event.get("start")
        if start != latest_start:
            slow, latest_start = [], start
        ranks = frozenset(event.get("ranks") or ())
        slow = [group for group in slow if 2 * len(group[0] & ranks) < len(group[0])]
        if factor > 1:
            slow.append((ranks, factor))
        end = ends[start] if isinstance(start, int) and start < len(ends) else len(last)
        level = max((factor for _, factor in slow), default=1.0)
        changes.append(Change(_row_of(last, since, end - 1), level))
    return changes


def factors(changes: Sequence[Change], samples: int) -> Array:
    """[sample] ratio of its level to the healthy one."""
    levels = np.ones(samples)
    for change in changes:
        levels[change.row :] = max(change.factor, 1.0)
    return levels


def _row_of(last: Ints, step: int, at: int) -> int:
    """The first sample from a step on, in the stretch before sample ``at``."""
    earlier = np.flatnonzero(last[: at + 1] < step)
    return int(earlier[-1]) + 1 if len(earlier) else 0
