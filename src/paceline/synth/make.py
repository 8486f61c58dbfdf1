"""From a spec to its trace: graph, durations, simulation, clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import GraphError, SynthError
from paceline.graph import Durations, StepGraph, build_graph
from paceline.graph.schedules import SCHEDULES, replica_ops
from paceline.simulate import Timeline, timeline
from paceline.synth.durations import cause_rng, make_durations
from paceline.synth.spec import SynthSpec
from paceline.trace import OpKind, Trace

#: A graph -> the healthy seconds of its ops.
OpSeconds = Callable[[StepGraph], npt.NDArray[np.float64]]


def synthesize(spec: SynthSpec, seconds: OpSeconds | None = None) -> Trace:
    """A trace of the job; ``truth`` holds what was injected.

    Args:
        spec: the job and its causes of slowness.
        seconds: the healthy seconds of each op [op] of a graph, in place of ``spec.base_s``.

    Raises:
        SynthError: the spec contradicts itself.
    """
    graph = _graph(spec)
    healthy = None if seconds is None else seconds(graph)
    durations, truth = make_durations(spec, graph, healthy)
    delays, delayed = _delays(spec, graph)
    truth["launch_delays"] = delayed
    line = timeline(durations, delays=delays)
    offset = cause_rng(spec, "clock").normal(0.0, spec.clock_skew_s, (spec.dp, spec.pp))
    if spec.clock_skew_s:
        truth["clock_offsets_s"] = offset.tolist()
    return _trace(spec, line, offset, truth)


def _graph(spec: SynthSpec) -> StepGraph:
    name = spec.schedule or ("interleaved" if spec.vpp > 1 else "1f1b")
    counts = spec.replica_microbatches
    distinct = list(dict.fromkeys(counts))
    try:
        variants = [
            replica_ops(
                SCHEDULES[name], spec.pp, n, spec.vpp, overlap=spec.overlap, noops=spec.noops
            )
            for n in distinct
        ]
        return build_graph(variants, np.array([distinct.index(n) for n in counts]), spec.job)
    except GraphError as error:
        raise SynthError(str(error)) from None


def _delays(spec: SynthSpec, graph: StepGraph) -> tuple[Durations | None, list[list[float]]]:
    """Launch delays, and what was injected as [step, dp, seconds]."""
    if not spec.launch_delay:
        return None, []
    seconds, probability = spec.launch_delay
    hit = cause_rng(spec, "delay").random((spec.steps, spec.dp)) < probability
    delays = Durations.empty(graph, spec.steps)
    first = (graph.kind == OpKind.FORWARD_COMPUTE) & (graph.pp == 0) & (graph.seq == 0)
    for op in np.flatnonzero(first).tolist():
        dps = graph.variant_dps[int(graph.variant[op])]
        delays.row(op)[:] = hit[:, dps] * seconds
    return delays, [[int(step), int(dp), seconds] for step, dp in np.argwhere(hit)]


def _trace(
    spec: SynthSpec, line: Timeline, offset: npt.NDArray[np.float64], truth: dict[str, Any]
) -> Trace:
    """The timeline as each worker's clock would have recorded it."""
    graph, job = line.graph, spec.job
    counts = np.zeros((spec.steps, spec.dp, spec.pp, len(OpKind)), dtype=np.int32)
    for v, dps in enumerate(graph.variant_dps):
        ops = graph.variant_ops(v)
        cell = graph.pp[ops] * len(OpKind) + graph.kind[ops]
        size = spec.pp * len(OpKind)
        counts[:, dps] = np.bincount(cell, minlength=size).reshape(spec.pp, len(OpKind))
    n_rows = int(counts.sum())
    dp, pp = np.mgrid[: spec.dp, : spec.pp]
    trace = Trace(
        job=job,
        steps=np.arange(spec.steps, dtype=np.int64),
        counts=counts,
        chunk=np.empty(n_rows, dtype=np.int16),
        microbatch=np.empty(n_rows, dtype=np.int32),
        start=np.empty(n_rows),
        end=np.empty(n_rows),
        step_start_s=np.full(spec.steps, np.nan),
        rank=(pp * spec.dp + dp) * spec.tp,
        truth=truth,
    )
    rows = trace.lane_rows()
    for v, dps in enumerate(graph.variant_dps):
        ops = graph.variant_ops(v)
        shift = offset[dps][:, graph.pp[ops]]  # [dp, op]
        for step in range(spec.steps):
            place = rows[step, dps][:, None] + np.arange(ops.stop - ops.start)
            trace.chunk[place] = graph.chunk[ops]
            trace.microbatch[place] = graph.microbatch[ops]
            trace.start[place] = line.start.block(v)[:, step].T + shift
            trace.end[place] = line.end.block(v)[:, step].T + shift
    first = np.minimum.reduceat(trace.start, rows[:, 0])
    per_step = counts.sum(axis=(1, 2, 3), dtype=np.int64)
    zero = np.repeat(first, per_step)
    trace.start[:] -= zero
    trace.end[:] -= zero
    return trace
