"""Make the trace of a spec: graph, durations, simulation and clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import GraphError, SynthError
from paceline.graph import Durations, StepGraph, build_graph
from paceline.graph.replica import ReplicaOps
from paceline.graph.schedules import SCHEDULES, replica_ops
from paceline.graph.split_replica import split_replica_ops
from paceline.simulate import Timeline, timeline
from paceline.synth.durations import cause_rng, make_durations
from paceline.synth.programs import families_of, program_replica
from paceline.synth.spec import SynthSpec
from paceline.trace import OpKind, Trace
from paceline.trace.trace import Program

#: Seconds between steps that are made one by one.
BETWEEN_STEPS_S = 0.01

#: Graph -> [op] healthy seconds.
OpSeconds = Callable[[StepGraph], npt.NDArray[np.float64]]


def synthesize(spec: SynthSpec, seconds: OpSeconds | None = None) -> Trace:
    """A trace of the job; ``truth`` holds the injected causes.

    Args:
        spec: the job and its causes of slowness.
        seconds: graph -> [op] healthy seconds; None: ``spec.base_s``.

    Raises:
        SynthError: the spec contradicts itself.
    """
    return _synthesized(spec, synth_structure(spec), seconds)


def each_step(spec: SynthSpec) -> Iterator[Trace]:
    """Yield a trace of each step, for jobs too large for one trace.

    Each step has its own seed, so the steps differ from those of :func:`synthesize`.

    Raises:
        SynthError: the spec contradicts itself.
    """
    structure, begin_s = synth_structure(spec), 0.0
    for number in range(spec.steps):
        of_step = replace(spec, steps=1, seed=spec.seed + number)
        trace = _synthesized(of_step, structure, None)
        yield replace(trace, steps=np.array([number]), step_start_s=np.array([begin_s]))
        begin_s += float(trace.end.max()) + BETWEEN_STEPS_S


def _synthesized(spec: SynthSpec, structure: SynthStructure, seconds: OpSeconds | None) -> Trace:
    healthy = None if seconds is None else seconds(structure.graph)
    line, truth = _run(spec, structure.graph, healthy)
    if structure.programmed:
        truth["step_s"] = line.step_times().tolist()
        usual, _ = _run(spec.without_causes, structure.graph, healthy)
        truth["step_without_causes_s"] = usual.step_times().tolist()
    offset = cause_rng(spec, "clock").normal(0.0, spec.clock_skew_s, (spec.job.replicas, spec.pp))
    if spec.clock_skew_s:
        truth["clock_offsets_s"] = offset.tolist()
    return _trace(spec, structure, line, offset, truth)


def _run(
    spec: SynthSpec, graph: StepGraph, healthy: npt.NDArray[np.float64] | None
) -> tuple[Timeline, dict[str, Any]]:
    """The simulated steps, and the injected causes."""
    durations, truth = make_durations(spec, graph, healthy)
    delays, truth["launch_delays"] = _delays(spec, graph)
    return timeline(durations, delays=delays), truth


@dataclass(frozen=True)
class SynthStructure:
    """The structure of a job's steps.

    Attributes:
        variants: the distinct replica structures.
        families: [family, replica] number of the group that meets in collectives; None: all
            replicas meet in all of them.
        graph: the graph of one step.
    """

    variants: tuple[ReplicaOps, ...]
    families: npt.NDArray[np.int64] | None
    graph: StepGraph

    @property
    def programmed(self) -> bool:
        """Whether the launches and waits of ops are known."""
        return self.variants[0].awaited is not None


def synth_structure(spec: SynthSpec) -> SynthStructure:
    """The graph of a step of the job.

    Raises:
        SynthError: the schedule does not allow these numbers, or replicas' collectives differ.
    """
    counts = np.repeat(spec.replica_microbatches, spec.job.peers)
    distinct = list(dict.fromkeys(counts.tolist()))
    families = None if spec.layers is None else families_of(spec.job, spec.layers)
    try:
        variants = tuple(_replica(spec, n) for n in distinct)
        variant_of = np.array([distinct.index(n) for n in counts.tolist()])
        graph = build_graph(variants, variant_of, spec.job, families)
    except GraphError as error:
        raise SynthError(str(error)) from None
    return SynthStructure(variants, families, replace(graph, peers=spec.job.peers))


def program_rows(structure: SynthStructure, n_steps: int) -> Program:
    """The program's columns of a trace's rows; all steps have the same values."""
    columns: list[list[npt.NDArray[np.int64]]] = []
    for replica, variant in enumerate(structure.graph.replica_variant.tolist()):
        ops = structure.variants[variant]
        assert ops.part is not None
        assert ops.awaited is not None
        group = np.full(len(ops.kind), -1)
        if structure.families is not None and ops.family is not None:
            group = np.where(ops.family > 0, structure.families[ops.family, replica], -1)
        columns.append([ops.part, ops.rank, ops.awaited, group])
    joined = (np.concatenate(column).astype(np.int32) for column in zip(*columns, strict=True))
    part, issued, awaited, group = (np.tile(column, n_steps) for column in joined)
    return Program(part, issued, awaited, group if (group >= 0).any() else None)


def _replica(spec: SynthSpec, n_microbatches: int) -> ReplicaOps:
    name = spec.schedule or ("interleaved" if spec.vpp > 1 else "1f1b")
    if spec.split:
        return split_replica_ops(name, spec.pp, n_microbatches, overlap=spec.overlap)
    if spec.layers is not None:
        return program_replica(SCHEDULES[name], spec.job, n_microbatches, spec.layers)
    return replica_ops(
        SCHEDULES[name],
        spec.pp,
        n_microbatches,
        spec.vpp,
        overlap=spec.overlap,
        noops=spec.noops,
    )


def _delays(spec: SynthSpec, graph: StepGraph) -> tuple[Durations | None, list[list[float]]]:
    """Launch delays of the ops, and a (step, dp, seconds) for each injected one."""
    if not spec.launch_delay:
        return None, []
    seconds, probability = spec.launch_delay
    hit = cause_rng(spec, "delay").random((spec.steps, spec.dp)) < probability
    delays = Durations.empty(graph, spec.steps)
    first = (graph.kind == OpKind.FORWARD_COMPUTE) & (graph.pp == 0) & (graph.seq == 0)
    for op in np.flatnonzero(first).tolist():
        dps = graph.variant_dps[int(graph.variant[op])] // spec.job.peers
        delays.row(op)[:] = hit[:, dps] * seconds
    return delays, [[int(step), int(dp), seconds] for step, dp in np.argwhere(hit)]


def _trace(
    spec: SynthSpec,
    structure: SynthStructure,
    line: Timeline,
    offset: npt.NDArray[np.float64],
    truth: dict[str, Any],
) -> Trace:
    """The timeline as each worker's clock would have recorded it."""
    graph, job = line.graph, spec.job
    counts = np.zeros((spec.steps, job.replicas, spec.pp, len(OpKind)), dtype=np.int32)
    for v, dps in enumerate(graph.variant_dps):
        ops = graph.variant_ops(v)
        cell = graph.pp[ops] * len(OpKind) + graph.kind[ops]
        size = spec.pp * len(OpKind)
        counts[:, dps] = np.bincount(cell, minlength=size).reshape(spec.pp, len(OpKind))
    n_rows = int(counts.sum())
    replica, pp = np.mgrid[: job.replicas, : spec.pp]
    trace = Trace(
        job=job,
        steps=np.arange(spec.steps, dtype=np.int64),
        counts=counts,
        chunk=np.empty(n_rows, dtype=np.int16),
        microbatch=np.empty(n_rows, dtype=np.int32),
        start=np.empty(n_rows),
        end=np.empty(n_rows),
        step_start_s=np.full(spec.steps, np.nan),
        rank=(pp * job.replicas + replica) * (spec.tp if job.peers == 1 else 1),
        truth=truth,
        program=program_rows(structure, spec.steps) if structure.programmed else None,
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
