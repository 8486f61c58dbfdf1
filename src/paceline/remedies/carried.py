"""Step times of jobs whose workers begin a step as soon as they end their own part of the last one.

Nothing holds the others back where one worker's optimizer is long. Its next step begins late
instead, and another worker's slow computes may hide that. A step simulated by itself counts both.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.diagnose.late_starts import first_ops
from paceline.graph import Durations, Measured
from paceline.remedies.remedy import Case, Prediction
from paceline.simulate import timeline

Array = npt.NDArray[np.float64]

#: Overlap below this share of the step hides too little to matter (as for the note on overlap).
MIN_OVERLAP = 0.03

#: Largest error of the times from step to step of the job as it is. Other causes of overlap, such
#: as collectives of some ranks, make it larger.
MAX_ERROR = 0.02


def carried(case: Case, changed: Durations) -> tuple[Prediction, Prediction] | None:
    """Times from step to step before and after a change; None where steps by themselves tell them.

    Pipelines are left out: a stage's begin tells nothing where it waits for its neighbour.

    Args:
        case: the job.
        changed: durations of its ops with the change.
    """
    measured = case.measured
    overlap_s, traced_s = measured.overlap_s, measured.traced_step_s
    if measured.graph.n_pp > 1 or overlap_s.mean() < MIN_OVERLAP * traced_s.mean():
        return None
    lasted_s = float((traced_s - overlap_s + np.nan_to_num(measured.pause_s)).mean())
    if case.before.mean_s <= (1 + MAX_ERROR) * lasted_s:  # steps by themselves hide nothing
        return None
    before_s = _step_to_step_s(measured, measured.durations)
    if abs(float(before_s.mean()) / lasted_s - 1) > MAX_ERROR:
        return None
    after_s = _step_to_step_s(measured, changed)
    return Prediction(before_s, before_s), Prediction(after_s, after_s)


def _step_to_step_s(measured: Measured, durations: Durations) -> Array:
    """[step] seconds from the last end of a step to that of the next one.

    The traced steps count as following each other, and the first one as following one like itself.
    """
    delays = Durations(measured.graph, durations.n_steps, measured.delays.values.copy())
    end_s = _begun(measured, durations, delays, np.zeros(measured.idle_before_s.shape[:2]))
    idle_s = np.nan_to_num(measured.idle_before_s[:, :, 0])
    tail_s = end_s - end_s.min(axis=1, keepdims=True)
    tail_s = np.concatenate([tail_s[:1], tail_s[:-1]])
    begin_s = tail_s + idle_s
    first_s = begin_s.min(axis=1)
    end_s = _begun(measured, durations, delays, begin_s - first_s[:, None])
    step_s: Array = first_s + end_s.max(axis=1) - tail_s.max(axis=1)
    return step_s


def _begun(measured: Measured, durations: Durations, delays: Durations, begin_s: Array) -> Array:
    """[step, replica] ends of workers that begin ``begin_s`` seconds behind the first one."""
    graph = measured.graph
    for v, _, ops in first_ops(graph):
        delays.block(v)[ops] = begin_s[:, graph.variant_dps[v]]
    line = timeline(durations, None, delays)
    end_s = np.empty_like(begin_s)
    for v, dps in enumerate(graph.variant_dps):
        end_s[:, dps] = line.end.block(v).max(axis=0)
    return end_s
