"""Causes that begin or end within the trace: hardware is judged in its slower part alone.

A worker that is slow in half of the steps varies too much for a test over all steps. Step times may
jump, differ for a period, or have two lengths in runs of steps. Then the slower steps are judged as
a trace of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.diagnose.candidate import Candidate
from paceline.diagnose.fit import fit_computes
from paceline.diagnose.remove import Effect, Scaled
from paceline.diagnose.step_runs import clusters, runs_of, when
from paceline.diagnose.worker_ramps import along_ramps, over_peers
from paceline.diagnose.workers import slowness, worker_cause
from paceline.graph import Durations
from paceline.jumps import MIN_STEPS, Mask, slower_steps
from paceline.whatif.modes import two_modes

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: The step axis in ``Effect.factor``, ``Effect.excess`` and ``Scaled.factor``.
_FACTOR_AXIS, _EXCESS_AXIS, _SCALED_AXIS = 3, 2, 1


Patterns = Callable[[Durations, Ints], Sequence[Candidate]]


def with_slower_part(
    whole: Sequence[Candidate],
    durations: Durations,
    times: Array,
    steps: Ints,
    patterns: Patterns,
) -> list[Candidate]:
    """Hardware causes, from all steps or from the slower part of the trace.

    The slower part is used if step times change and the other part does not show the cause. A slow
    worker's own change is sought beside its peers: noise that all workers share hides it in the
    step times.

    Args:
        whole: causes that all steps show.
        durations: as measured.
        times: [step] simulated step times, seconds.
        steps: [step] step numbers.
        patterns: finds causes in the durations of some steps, given their numbers.
    """
    found = _of_slower_part(whole, _slower(times), durations, steps, patterns)
    if durations.graph.n_dp == 1:
        return found
    slow = [candidate for candidate in found if candidate.id == "worker"]
    others = [candidate for candidate in found if candidate.id != "worker"]
    lasting, apparent = slowness(fit_computes(durations))
    n_tests = 1 if slow else lasting.size - len(lasting)  # two workers have one ratio
    # Without a slow worker, the one that comes nearest. On a ramp, replicas have no sure level.
    worst = _nearest(apparent, slow)
    if _slower(over_peers(durations, *worst), n_tests) is not None:
        on_ramp = along_ramps(durations, steps, worst)
        if on_ramp is not None:
            return [*others, on_ramp]
    worst = _nearest(lasting, slow)
    own = _slower(over_peers(durations, *worst), n_tests)
    if own is None:
        return found

    def of_worker(part: Durations, numbers: Ints) -> Sequence[Candidate]:
        worker = worker_cause(part, fit_computes(part), numbers)
        if worker is None or tuple(worker.where["workers"][0]) != worst:
            return []
        return [worker]

    of_all = [candidate for candidate in whole if candidate.id == "worker"] or slow
    return others + _of_slower_part(of_all, own, durations, steps, of_worker)


def _nearest(slowness_of: Array, slow: Sequence[Candidate]) -> tuple[int, int]:
    """(dp, stage) of the named worker, or of the one with the largest [stage, dp] slowness."""
    if slow:
        dp, stage = slow[0].where["workers"][0]
    else:
        stage, dp = np.unravel_index(int(slowness_of.argmax()), slowness_of.shape)
    return int(dp), int(stage)


def _slower(times: Array, n_tests: int = 1) -> Mask | None:
    """Mask of the slower steps of one of ``n_tests`` series; None if nothing changes.

    A worker may be slow several times. Its steps then have two lengths, and the longer ones come in
    runs of ``MIN_STEPS`` or more. Single pauses do not.
    """
    modes = two_modes(times)
    if modes is not None and clusters(modes.slow):
        runs = runs_of(modes.slow)
        if len(runs) > 1 and np.median([end - first for first, end in runs]) >= MIN_STEPS:
            return modes.slow
    return slower_steps(times, n_tests)


def _of_slower_part(
    whole: Sequence[Candidate],
    slow: Mask | None,
    durations: Durations,
    steps: Ints,
    patterns: Patterns,
) -> list[Candidate]:
    """The causes, and in place of them those that begin or end within the trace."""
    if slow is None:
        return list(whole)
    slower, faster = np.flatnonzero(slow), np.flatnonzero(~slow)
    begun = patterns(durations.of_steps(slower), steps[slower])
    if not begun:
        return list(whole)
    lasting = {found.id for found in patterns(durations.of_steps(faster), steps[faster])}
    begun = [found for found in begun if found.id not in lasting]
    replaced = {found.id for found in begun}
    evidence: dict[str, Any] = {"steps": steps[slower].tolist()}
    if slower[-1] < faster[-1]:
        evidence["healthy_since"] = int(steps[slower[-1] + 1])
    return [found for found in whole if found.id not in replaced] + [
        replace(
            found,
            text=f"{found.text} {when(slow, steps)}",
            evidence={**found.evidence, **evidence},
            effect=_in_steps(found.effect, slower, len(steps)),
        )
        for found in begun
    ]


def _in_steps(effect: Effect, index: Ints, n_steps: int) -> Effect:
    """The effect extended from some steps to all; the other steps stay unchanged."""
    factor, excess = (
        None if arrays is None else tuple(_spread(array, index, n_steps, axis) for array in arrays)
        for arrays, axis in ((effect.factor, _FACTOR_AXIS), (effect.excess, _EXCESS_AXIS))
    )
    scaled = tuple(
        Scaled(
            one.variant,
            one.ops,
            one.dp_index,
            _spread(one.factor, index, n_steps, _SCALED_AXIS, fill=1.0),
        )
        for one in effect.scaled
    )
    return Effect(factor, excess, scaled, effect.rebalanced)


def _spread(array: Array, index: Ints, n_steps: int, axis: int, fill: float = 0.0) -> Array:
    shape = list(array.shape)
    shape[axis] = n_steps
    whole = np.full(shape, fill)
    np.moveaxis(whole, axis, 0)[index] = np.moveaxis(array, axis, 0)
    return whole
