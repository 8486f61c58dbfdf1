"""One worker that lengthens steps by passing variation: pauses at changing places.

The medians of its operations do not show such pauses, so no slowdown lasts. Noise makes a
different worker the slowest in each step; here it is the same worker in many steps.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline import robust
from paceline.diagnose.finding import Finding
from paceline.diagnose.fit import PAUSE_SIGMAS
from paceline.graph import Durations, Measured
from paceline.simulate import Rules, all_lanes, step_times
from paceline.trace.kinds import PASSES
from paceline.units import count
from paceline.whatif import WhatIf

Array = npt.NDArray[np.float64]

#: A step counts if its slowest worker lengthens it by MIN_LONGER (the healthy limit of S). That
#: must also be MIN_TIMES_NEXT times the next worker's share.
MIN_LONGER, MIN_TIMES_NEXT = 0.03, 3.0

#: Largest chance that any worker is the slowest in as many of these steps.
MAX_CHANCE = 0.01

#: A compute pauses if it exceeds its median over steps by this share and ``PAUSE_SIGMAS`` spreads.
PAUSE_SHARE = 0.05

#: Most durations that are copied at once.
_VALUES_AT_ONCE = 1 << 22


def passing_worker(measured: Measured, result: WhatIf, resamples: Array) -> Finding | None:
    """The worker whose pauses cost 3% of the step or more; None if no single worker stands out.

    Args:
        measured: the job.
        result: its what-if analysis.
        resamples: [resample, step] weights of steps.
    """
    if result.lasting is None or result.by_worker.size < 2:
        return None
    passing = result.by_worker_by_step - result.lasting.by_worker_by_step
    by_step = passing.reshape(len(result.steps), -1)  # [step, worker]
    n_workers = by_step.shape[1]
    first = by_step.argmax(axis=1)
    ordered = np.sort(by_step, axis=1)
    alone = ordered[:, -1] >= np.maximum(MIN_LONGER, MIN_TIMES_NEXT * ordered[:, -2])
    if not alone.any():
        return None
    slowest = np.bincount(first[alone], minlength=n_workers)
    worker = int(slowest.argmax())
    chance = n_workers * robust.chance_of_count(
        int(slowest[worker]), int(alone.sum()), 1 / n_workers
    )
    if chance > MAX_CHANCE:
        return None
    stage, dp = divmod(worker, measured.graph.n_dp)
    saved_s = result.simulated_s - _without_pauses_s(measured.durations, dp, stage)
    of_step = (resamples @ saved_s) / (resamples @ result.lasted_s)
    share = float(saved_s.mean() / result.lasted_s.mean())
    if share < MIN_LONGER:
        return None
    low, high = (float(x) for x in np.percentile(of_step, (5, 95)))
    steps = alone & (first == worker)
    name = measured.graph.worker_name(dp, stage)
    return Finding(
        id="pauses",
        cause="drift",
        text=f"worker {name} alone makes {steps.sum()} of {count(len(steps), 'step')} longer: its "
        "computes pause now and then, at changing places",
        share=None,
        share_of_step=share,
        interval=(low, high),
        confidence=(1 - chance) * float((of_step >= MIN_LONGER / 2).mean()),
        where={"workers": [[dp, stage]]},
        evidence={
            "steps": result.steps[steps].tolist(),
            "worst_slowdown": float(result.by_worker[stage, dp]),
            "p_value": chance,
            "test": "the slowest worker of a step, binomial",
        },
        ambiguous="garbage collection, another process on its host, or a device that stalls; or "
        "the worker has longer sequences in these steps",
    )


def _without_pauses_s(durations: Durations, dp: int, stage: int) -> Array:
    """[step] step times with a worker's paused computes set to their medians."""
    graph = durations.graph
    variant = int(graph.replica_variant[dp])
    span = graph.variant_ops(variant)
    computes = np.isin(graph.kind[span], [int(kind) for kind in PASSES])
    own = np.flatnonzero(computes & (graph.pp[span] == stage))
    column = int(np.flatnonzero(graph.variant_dps[variant] == dp)[0])
    seconds = durations.block(variant)[own, :, column]  # [compute, step]
    usual = np.median(seconds, axis=1, keepdims=True)
    spread = robust.spread(seconds - usual)
    pauses = seconds - usual > np.maximum(PAUSE_SHARE * usual, PAUSE_SIGMAS * spread)
    without = np.where(pauses, usual, seconds)
    times = np.empty(durations.n_steps)
    at_once = max(1, _VALUES_AT_ONCE // max(1, len(durations.values) // durations.n_steps))
    for low in range(0, durations.n_steps, at_once):
        steps = np.arange(low, min(low + at_once, durations.n_steps))
        part = durations.of_steps(steps)
        part.block(variant)[own, :, column] = without[:, steps]
        times[steps] = step_times(part, Rules.own(graph, False), all_lanes(graph, len(steps)))
    return times
