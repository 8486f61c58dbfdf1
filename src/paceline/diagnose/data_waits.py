"""Workers that wait for their data loaders.

The recorder measures how long a worker waits for batches. The job loses at most the time that no
operation fills: delays between operations, and the pause before the step. The rest of the wait is
hidden behind the operations of other workers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from paceline.diagnose.finding import NOWHERE, Finding
from paceline.diagnose.late_starts import LateStarts, begin_s, begun_late_s, late_starts
from paceline.diagnose.levels import lower_median
from paceline.diagnose.long_waits import ALL_STEPS, MIN_BEYOND, long_waits, not_by_chance
from paceline.diagnose.step_runs import when
from paceline.graph import Measured
from paceline.jumps import slower_steps
from paceline.trace import OpKind
from paceline.units import seconds
from paceline.whatif import WhatIf

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Least cost, as a share of the time from step to step.
MIN_SHARE = 0.01

#: Least cost of other late starts beside slow loaders, as a share of T: that of launch delays.
MIN_BESIDE = 0.03


def step_to_step_s(measured: Measured, result: WhatIf) -> Array:
    """[step] seconds from the begin of the step, or of the pause before it, to the step's end."""
    return result.lasted_s + np.nan_to_num(measured.pause_s)


def usual_step_s(measured: Measured, result: WhatIf) -> Array:
    """[step] the same, with the mean pause of all recorded steps where that is known.

    Profiled steps may be those behind each evaluation.
    """
    if measured.all_steps is None:
        return step_to_step_s(measured, result)
    usual_s: Array = result.lasted_s + measured.all_steps.pause_s
    return usual_s


def _mean_pause_s(measured: Measured) -> float:
    """Mean seconds of the pause before a step, of all recorded steps where they are known."""
    if measured.all_steps is not None:
        return measured.all_steps.pause_s
    return float(np.nan_to_num(measured.pause_s).mean())


def waits_in_steps_s(measured: Measured, lost_s: Array) -> Array | None:
    """[step] seconds of launch delays in which the job waited for data; None: not measured.

    A batch is loaded before a worker's first operation or before a forward. So a wait is at most
    the worker's delay at these places. A wait before the first operation of all workers is in no
    step.

    Args:
        measured: the job.
        lost_s: [step] seconds of launch delays.
    """
    waits = measured.data_wait_s
    if waits is None:
        return None
    graph = measured.graph
    late_s = np.nan_to_num(begin_s(measured)) - begun_late_s(measured)
    forwards = (graph.kind == OpKind.FORWARD_COMPUTE) & ~graph.sources
    for v in range(graph.n_variants):
        ops = graph.variant_ops(v)
        for pp in range(graph.n_pp):
            rows = np.flatnonzero(forwards[ops] & (graph.pp[ops] == pp))
            delays_s = measured.delays.block(v)[rows].clip(0).sum(axis=0)
            late_s[:, graph.variant_dps[v], pp] += delays_s
    open_s = np.minimum(np.nan_to_num(waits), late_s).max(axis=(1, 2))
    in_steps_s: Array = np.minimum(open_s, np.maximum(lost_s, 0.0))
    return in_steps_s


def data_waits(measured: Measured, result: WhatIf, resamples: Array) -> Finding | None:
    """The finding; None if the recording has no such waits, or they cost less than 1%.

    Its cost in a step is the longest wait, or what it is beyond the longest of the others if
    workers are named. It is at most the time that no operation fills. Workers are named by the
    steps with long waits, since a loader may become slow within the trace.
    """
    waits = measured.data_wait_s
    if waits is None:
        return None
    whole_s = step_to_step_s(measured, result)
    waits = np.minimum(np.nan_to_num(waits), whole_s[:, None, None])  # some begin before the trace
    of_peers = lower_median(np.moveaxis(waits, 1, 0))  # [step, pp]
    longest = waits.max(axis=(1, 2))
    long = long_waits(longest)
    beyond = np.median((waits - of_peers[:, None, :])[long], axis=0)  # [dp, pp]
    least = MIN_BEYOND * float(np.median(longest[long]))
    named = np.argwhere(beyond >= max(least, 1e-9)) if waits.shape[1] > 1 else np.empty((0, 2), int)
    if not long.all():
        named = not_by_chance(named, waits[long])
    others = waits.copy()
    others[:, named[:, 0], named[:, 1]] = 0.0
    avoidable = longest - others.max(axis=(1, 2)) if len(named) else longest
    open_s = np.maximum(result.lost_s, 0.0) + np.nan_to_num(measured.pause_s)
    cost_s = _of_all_steps(np.minimum(avoidable, open_s), measured, result)
    whole_s = usual_step_s(measured, result)
    share = float(cost_s.mean() / whole_s.mean())
    if share < MIN_SHARE:
        return None
    order = np.argsort([-beyond[dp, pp] for dp, pp in named], kind="stable")
    workers = [[int(dp), int(pp)] for dp, pp in named[order]]
    of_step = (resamples @ cost_s) / (resamples @ whole_s)
    low, high = (float(x) for x in np.percentile(of_step, (5, 95)))
    typical = [float(np.median(waits[long, dp, pp])) for dp, pp in workers]
    typical = typical or [float(np.median(longest[long]))]
    peers_s = float(np.median(of_peers.max(axis=1)[long]))
    in_steps = _when(longest, long, measured.steps)
    mean_s = float(cost_s.mean() if workers else longest.mean())
    size = f"{seconds(typical[0] if workers and not in_steps else mean_s)} a step"
    if in_steps:
        size += f" in the mean, {seconds(typical[0])}{in_steps}"
    if workers:
        size += f" (others {seconds(peers_s)})"
    return Finding(
        id="data-loading",
        cause="data-loading",
        text=f"{share:.1%} of the time passes while {_waiting(measured, workers)}: {size}",
        share=None,
        share_of_step=share,
        interval=(low, high),
        confidence=float((of_step >= MIN_SHARE).mean()),
        where={"workers": workers} if workers else NOWHERE,
        evidence={
            "wait_s": typical,
            "peers_s": peers_s,
            "steps": "all" if long.all() else measured.steps[long].tolist(),
            "pause_s": _mean_pause_s(measured),
            "threshold": MIN_SHARE,
        },
        cost_s=cost_s,
    )


def _of_all_steps(cost_s: Array, measured: Measured, result: WhatIf) -> Array:
    """[step] costs whose mean is at most the time that no operation fills in all recorded steps.

    Waits may be long before profiled steps alone, as the first one behind each evaluation. A step
    whose pause is not known costs the mean of the others.
    """
    known = np.isfinite(measured.pause_s)
    if measured.all_steps is None or not cost_s[known].any():
        return cost_s
    cost_s = np.where(known, cost_s, cost_s[known].mean())
    open_s = float(np.maximum(result.lost_s, 0.0).mean()) + _mean_pause_s(measured)
    return cost_s * min(1.0, open_s / float(cost_s.mean()))


def waits_beyond_s(measured: Measured) -> Array | None:
    """[step, dp, pp] seconds of waits beyond those of the peers; None: not measured."""
    if measured.data_wait_s is None:
        return None
    waits = np.nan_to_num(measured.data_wait_s)
    return waits - lower_median(np.moveaxis(waits, 1, 0))[:, None, :]


def late_workers(measured: Measured, result: WhatIf, waits: Finding | None) -> LateStarts | None:
    """The workers that begin steps late, without known waits for data if that leaves others.

    Args:
        measured: the job.
        result: its analysis.
        waits: the finding on waits for data; None if there is none.
    """
    simulated_s = float(result.simulated_s.mean())
    data_s = None if waits is None else _waits_of_named_s(measured, waits)
    if data_s is not None:
        late = late_starts(measured, simulated_s, data_s)
        if late is not None and float(late.saved_s.mean()) >= MIN_BESIDE * simulated_s:
            return late
    return late_starts(measured, simulated_s)


def _waits_of_named_s(measured: Measured, waits: Finding) -> Array | None:
    """[step, dp, pp] waits of the named workers beyond those of their peers; None: none named."""
    beyond_s, workers = waits_beyond_s(measured), waits.where.get("workers")
    if beyond_s is None or not workers:
        return None
    of_named = np.zeros(beyond_s.shape)
    for dp, pp in workers:
        of_named[:, dp, pp] = beyond_s[:, dp, pp].clip(0)
    return of_named


def lost_beside_s(measured: Measured, result: WhatIf, waits: Finding) -> Array:
    """[step] launch delays without those that the finding on waits for data counts."""
    lost_s = np.maximum(result.lost_s, 0.0)
    if waits.cost_s is None:
        return lost_s
    in_steps_s = np.maximum(waits.cost_s - np.nan_to_num(measured.pause_s), 0.0)
    beside_s: Array = lost_s - np.minimum(in_steps_s, lost_s)
    return beside_s


def _when(longest: Array, long: Mask, steps: npt.NDArray[np.int64]) -> str:
    """The steps with long waits, as in `` from step 160 on``; empty for all steps."""
    if long.all():
        return ""
    slower = slower_steps(longest)
    if slower is not None and (long == slower).mean() >= ALL_STEPS:
        return f" {when(slower, steps)}"
    return f" in {long.sum()} of {len(long)} steps"


def _waiting(measured: Measured, workers: list[list[int]]) -> str:
    """The workers that wait, in words."""
    if not workers:
        return "workers wait for their data"
    name = measured.graph.worker_name(*workers[0])
    if len(workers) > 1:
        return f"{len(workers)} workers wait for their data, the longest worker {name}"
    return f"worker {name} waits for its data"


def with_data_waits(
    found: list[Finding], waits: Finding | None, measured: Measured, result: WhatIf
) -> list[Finding]:
    """The findings and the one on data, which explains launch delays if it costs half of them.

    If it costs less, it is a part of them, so that no second counts twice. Waits before the first
    operation of all workers lie between the steps. They are no part of a delay. Delays that leave
    out the waits for data stand beside them.
    """
    if waits is None:
        return found
    if any(f.evidence.get("beside") == waits.id for f in found):
        return [waits, *found]
    lost_s = float(np.maximum(result.lost_s, 0.0).mean())
    cost_s = 0.0 if waits.cost_s is None else float(waits.cost_s.mean())
    pause_s = _mean_pause_s(measured)
    in_steps_s = cost_s - pause_s
    explains = in_steps_s >= MIN_BEYOND * lost_s
    has_delays = any(f.id == "launch-delay" for f in found)
    if has_delays and not explains and in_steps_s >= MIN_BEYOND * cost_s:
        waits = replace(waits, part_of="launch-delay")
    return [
        waits,
        *(
            replace(f, part_of=waits.id) if f.id == "launch-delay" and explains else f
            for f in found
        ),
    ]
