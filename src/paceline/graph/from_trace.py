"""Trace -> step graph, measured durations and launch delays (what-if paper, 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.graph.build import build_graph
from paceline.graph.clocks import ClockOffsets, estimate_offsets
from paceline.graph.graph import Durations, StepGraph
from paceline.graph.late import settle_late_ends
from paceline.graph.overlaps import Overlaps, find_overlaps, join_overlaps, share_out
from paceline.graph.replica import ReplicaOps
from paceline.graph.step_gaps import AllSteps, step_gaps
from paceline.graph.structure import find_structure
from paceline.trace import Job, OpKind, Trace
from paceline.trace.kinds import LOCAL_KINDS
from paceline.trace.warning import (
    CLOCKS_CORRECTED,
    CLOCKS_KEPT,
    CLOCKS_OPEN,
    COMPUTES_OVERLAP,
    GROUPS_OF_ONE,
    LATE_ENDS,
    NO_NOOPS,
    STEPS_LEFT_OUT,
    UNEQUAL_MICROBATCHES,
    Warning,
)

#: Clocks disagree by some ms, so slightly negative times are kept; below this they are noise.
CLOCK_ERROR_S = -0.010

#: Why clocks that differ were not corrected, where the user said so.
KEPT = "kept as they are"


@dataclass(frozen=True)
class Measured:
    """The graph of a trace's steps, with the measured durations and delays.

    Attributes:
        job: degrees of parallelism.
        graph: the common structure of the steps.
        rank: [dp, pp] global rank recorded for each worker, -1 = unknown.
        steps: [step] step numbers in use.
        durations: compute durations and transfer times, seconds.
        delays: launch delays: start minus latest end among the dependencies, seconds.
        traced_step_s: [step] step time as traced, seconds.
        overlap_s: [step] seconds of it in which the step before still ran.
        open_overlap_s: mean seconds of further overlap that the trace leaves open; inf = unknown.
        idle_before_s: [step, dp, pp] seconds from a worker's last operation of the step before to
            its first one; NaN = unknown.
        pause_s: [step] seconds from the end of the step before on all workers to the step's begin;
            NaN = unknown.
        data_wait_s: [step, dp, pp] seconds in which a worker waited for its data loader since the
            step before, NaN = unknown. None: unknown for all steps.
        all_steps: times of steps without operations, too; None: unknown, or there are none.
        left_out: step number -> why it is not in use.
        clamped: "transfer" and "launch_delay" -> kind label -> values below -10 ms, set to 0.
        clocks: estimated clock offsets, and whether they were corrected.
        doubts: warnings for the user; the warning of the trace's reader has no code.
        programs: of each variant its ops with launches and waits; empty where none are recorded.
        places: rank -> (host, GPU), of the ranks whose place the trace knows.
    """

    job: Job
    graph: StepGraph
    rank: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    durations: Durations
    delays: Durations
    traced_step_s: npt.NDArray[np.float64]
    overlap_s: npt.NDArray[np.float64]
    open_overlap_s: float
    idle_before_s: npt.NDArray[np.float64]
    pause_s: npt.NDArray[np.float64]
    left_out: Mapping[int, str]
    clamped: Mapping[str, Mapping[str, int]]
    clocks: ClockOffsets
    doubts: tuple[Warning, ...]
    programs: tuple[ReplicaOps, ...] = ()
    places: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    data_wait_s: npt.NDArray[np.float64] | None = None
    all_steps: AllSteps | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The doubts in words."""
        return tuple(doubt.text for doubt in self.doubts)

    @property
    def microbatches(self) -> npt.NDArray[np.int64]:
        """[dp] microbatches of each replica."""
        return microbatches_of(self.graph)


def from_trace(trace: Trace, *, keep_clocks: bool = False, by_rules: bool = False) -> Measured:
    """The step graph of a trace and the durations it measured.

    Args:
        trace: what happened.
        keep_clocks: do not correct clock offsets between workers.
        by_rules: take the rules of pipelines where passes are whole, though programs are recorded:
            for what makes another pipeline of the job.

    Raises:
        TraceError: no whole step is left.
        GraphError: the ops do not form a step (peers missing, a cycle).
    """
    if by_rules and trace.program is not None:
        local = np.isin(trace.kind, [int(kind) for kind in LOCAL_KINDS])
        split = bool(trace.counts[..., OpKind.WEIGHT_COMPUTE].any())  # only programs know these
        if not split and not trace.program.part[local].any():
            trace = replace(trace, program=None)
    structure = find_structure(trace)
    graph = build_graph(
        structure.variants, structure.replica_variant, trace.job, structure.families
    )
    graph = replace(graph, peers=trace.job.peers)
    traced = trace.traced_step_s()[structure.kept]
    start, end = _tables(graph, structure.kept, trace, (trace.start, trace.end))
    overlaps = find_overlaps(graph, start, end)
    if overlaps is not None:
        graph = join_overlaps(graph, overlaps)
        start, end = replace(start, graph=graph), replace(end, graph=graph)
        share_out(overlaps, start, end)
    estimated = 0
    if trace.late is not None:
        (late,) = _tables(graph, structure.kept, trace, (trace.late,))
        estimated = settle_late_ends(graph, start, end, late)
    _start_behind_queue(graph, start, end)
    left_out = {**trace.left_out, **structure.left_out}
    clocks = estimate_offsets(graph, start, end)
    if clocks.corrected and keep_clocks:
        clocks = replace(clocks, corrected=False, reason=KEPT)
    if clocks.corrected:
        traced = _correct(graph, start, end, clocks.offset_s)
    waits = trace.data_wait_s
    gaps = step_gaps(trace, clocks.offset_s if clocks.corrected else None)
    durations, delays, clamped = _measure(graph, start, end)
    return Measured(
        job=trace.job,
        graph=graph,
        rank=trace.rank,
        steps=trace.steps[structure.kept],
        durations=durations,
        delays=delays,
        traced_step_s=traced,
        overlap_s=gaps.overlap_s[structure.kept],
        open_overlap_s=gaps.open_overlap_s,
        idle_before_s=gaps.idle_s[structure.kept],
        pause_s=np.maximum(gaps.gap_s[structure.kept], 0.0),
        data_wait_s=None if waits is None else waits[structure.kept],
        all_steps=gaps.of_all_steps(),
        left_out=dict(sorted(left_out.items())),
        clamped=clamped,
        clocks=clocks,
        doubts=(
            *(Warning("", text) for text in trace.warnings),
            *_structure_warnings(trace, graph, structure.left_out),
            *_group_notes(graph),
            *_late_notes(estimated, end),
            *_overlap_notes(overlaps),
            *gaps.notes(),
            *_clock_warnings(clocks),
        ),
        programs=structure.variants if graph.programmed else (),
        places=trace.places,
    )


def _structure_warnings(
    trace: Trace, graph: StepGraph, left_out: Mapping[int, str]
) -> list[Warning]:
    warnings = []
    if left_out:
        number, reason = min(left_out.items())
        text = (
            f"{len(left_out)} of {trace.n_steps} steps left out, for example step {number}: "
            f"{reason}"
        )
        numbers = {"left_out": len(left_out), "steps": trace.n_steps, "step": number}
        warnings.append(Warning(STEPS_LEFT_OUT, text, numbers))
    chunked = trace.job.vpp_size > 1 and trace.job.pp_size > 1 and not graph.programmed
    if chunked and not graph.noop.any():
        text = (
            f"{trace.job.vpp_size} chunks per stage, but 0 no-op sends and recvs at the ends of "
            "the model; transfers were matched without them"
        )
        warnings.append(Warning(NO_NOOPS, text, {"chunks": trace.job.vpp_size}))
    if graph.n_variants > 1:
        counts = microbatches_of(graph)
        text = (
            f"replicas differ: {graph.n_variants} structures with "
            f"{', '.join(map(str, sorted(set(counts.tolist()))))} microbatches. The ideal keeps "
            f"these numbers, so work handed out unevenly (at most {counts.max()}, on average "
            f"{counts.mean():.1f}) does not show in S"
        )
        spread = {"most": float(counts.max()), "mean": float(counts.mean())}
        warnings.append(Warning(UNEQUAL_MICROBATCHES, text, spread))
    return warnings


def _group_notes(graph: StepGraph) -> list[Warning]:
    """Collectives whose ranks all name groups of their own, and so never wait for each other."""
    alone = np.flatnonzero((np.sort(graph.families, axis=1) == np.arange(graph.n_dp)).all(axis=1))
    if graph.n_dp == 1 or not len(alone):
        return []
    grouped = np.flatnonzero(graph.group >= 0)
    of_alone = grouped[np.isin(graph.family[graph.group[grouped]], alone)]
    # A link of a ring joins two of its ranks, and leaves the others alone.
    kinds = [OpKind(int(kind)) for kind in np.unique(graph.kind[of_alone])]
    # Those who meet in tensor-comm are one worker where peers are merged or one was recorded.
    own = {OpKind.CONTEXT_COMM} if graph.peers > 1 else {OpKind.CONTEXT_COMM, OpKind.TENSOR_COMM}
    labels = [kind.label for kind in kinds if kind not in own]
    if not labels:
        return []
    text = (
        f"each rank is alone in its groups of {', '.join(labels)}, so no rank waits there. Ranks "
        "that meet must write the same number into the column group, such as the lowest of their "
        "ranks"
    )
    return [Warning(GROUPS_OF_ONE, text, {"kinds": len(labels)})]


def _late_notes(estimated: int, end: Durations) -> list[Warning]:
    if not estimated:
        return []
    share = estimated / len(end.values)
    text = (
        f"{estimated} operations ({share:.0%}) ended before anyone waited for them. Their ends "
        "are estimated, so none of them counts as a straggler"
    )
    return [Warning(LATE_ENDS, text, {"estimated": estimated, "operations": len(end.values)})]


def _overlap_notes(overlaps: Overlaps | None) -> list[Warning]:
    if overlaps is None:
        return []
    n_pairs = len(overlaps.pairs)
    text = (
        f"{n_pairs} pairs of computes of a worker run at once, as in DualPipe. Each pair is one "
        "node; its time is divided in proportion to the computes' times when they run alone"
    )
    return [Warning(COMPUTES_OVERLAP, text, {"pairs": n_pairs})]


def _clock_warnings(clocks: ClockOffsets) -> list[Warning]:
    if not clocks.matter:
        return []
    apart = f"std {clocks.std_s * 1e3:.1f} ms, at most {clocks.furthest_s * 1e3:.1f} ms"
    numbers = {"std_s": clocks.std_s, "furthest_s": clocks.furthest_s}
    if clocks.corrected:
        text = f"worker clocks differ ({apart}): {clocks.reason}; corrected"
        return [Warning(CLOCKS_CORRECTED, text, numbers)]
    if clocks.reason == KEPT:
        return [Warning(CLOCKS_KEPT, f"worker clocks differ ({apart}), {KEPT}", numbers)]
    text = (
        f"ends of the same transfers differ between workers ({apart}), not corrected: "
        f"{clocks.reason}"
    )
    return [Warning(CLOCKS_OPEN, text, numbers)]


def microbatches_of(graph: StepGraph) -> npt.NDArray[np.int64]:
    """[dp] microbatches of each replica."""
    first = (graph.kind == OpKind.FORWARD_COMPUTE) & (graph.pp == 0)
    first &= graph.pass_of == np.arange(graph.n_ops)
    chunks = max(1, int(graph.chunk[first].max()) + 1)
    counts: npt.NDArray[np.int64] = np.bincount(graph.variant[first]) // chunks
    return counts[graph.replica_variant]


def _tables(
    graph: StepGraph,
    kept: npt.NDArray[np.int64],
    trace: Trace,
    columns: Sequence[npt.NDArray[Any]],
) -> list[Durations]:
    """Columns of the trace, rearranged from rows to [op, step, dp]."""
    lane_rows = trace.time_rows()
    tables = []
    for values in columns:
        table = Durations.empty(graph, len(kept))
        for v, dps in enumerate(graph.variant_dps):
            rows = lane_rows[np.ix_(kept, dps)].ravel()
            _transpose(values, rows, table.block(v))
        tables.append(table)
        trace.release()
    return tables


def _start_behind_queue(graph: StepGraph, start: Durations, end: Durations) -> None:
    """A collective starts when the one before it in its stream has ended, in place.

    The recorded time is its launch: streams run one collective at a time.
    """
    for op in np.flatnonzero(graph.queued_behind >= 0).tolist():
        row = start.row(op)
        np.maximum(row, end.row(int(graph.queued_behind[op])), out=row)


def _transpose(
    values: npt.NDArray[Any], rows: npt.NDArray[np.int64], out: npt.NDArray[np.float64]
) -> None:
    """Lanes that lie one after another in ``values`` become the columns of ``out``."""
    n_ops = len(out)
    table = out.reshape(n_ops, -1)
    lanes, ops = 64, 256  # a tile that fits the cache
    contiguous = bool((np.diff(rows) == n_ops).all())
    source = (
        values[rows[0] : rows[0] + len(rows) * n_ops].reshape(-1, n_ops) if contiguous else None
    )
    for low in range(0, len(rows), lanes):
        part = (
            source[low : low + lanes]
            if source is not None
            else values[rows[low : low + lanes, None] + np.arange(n_ops)]
        )
        for first in range(0, n_ops, ops):
            table[first : first + ops, low : low + lanes] = part[:, first : first + ops].T


def _correct(
    graph: StepGraph, start: Durations, end: Durations, offset_s: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Take each worker's clock offset off its times, in place; returns the new step times."""
    for v, dps in enumerate(graph.variant_dps):
        shift = offset_s[dps][:, graph.pp[graph.variant_ops(v)]].T[:, None, :]
        start.block(v)[:] -= shift
        end.block(v)[:] -= shift
    first = np.min([block.min(axis=(0, 2)) for block in start.blocks], axis=0)
    for table in (start, end):
        for block in table.blocks:
            block -= first[:, None]
    last: npt.NDArray[np.float64] = np.max([b.max(axis=(0, 2)) for b in end.blocks], axis=0)
    return last


def _measure(
    graph: StepGraph, start: Durations, end: Durations
) -> tuple[Durations, Durations, Mapping[str, Mapping[str, int]]]:
    """Durations (in the memory of ``end``) and launch delays."""
    delays = Durations.empty(graph, end.n_steps)
    for v in range(graph.n_variants):
        first, delay = start.block(v), delays.block(v)
        for ops, latest in graph.latest_dependency_ends(v, end.block(v)):
            np.subtract(first[ops], latest, out=delay[ops])
    _subtract_latest_start(graph, start, end)
    clamped = {"transfer": _clamp(end), "launch_delay": _clamp(delays)}
    return end, delays, clamped


def _subtract_latest_start(graph: StepGraph, start: Durations, end: Durations) -> None:
    """Take from each end the latest start among its peers (its own where it has none)."""
    grouped = graph.group >= 0
    for v in range(graph.n_variants):
        ops = graph.variant_ops(v)
        alone = np.flatnonzero(~grouped[ops])
        first, last = start.block(v), end.block(v)
        for rows in np.array_split(alone, max(1, len(alone) // 256)):
            last[rows] -= first[rows]
        pairs = graph.variant_pairs(v)
        for part in np.array_split(pairs, max(1, len(pairs) // 256)):
            latest = np.maximum(first[part[:, 0]], first[part[:, 1]])
            last[part[:, 0]] -= latest
            last[part[:, 1]] -= latest
    for members in graph.dp_groups:
        starts = [start.row(op) for op in members]
        for op, at in zip(members, graph.latest_of_peers(members, starts), strict=True):
            end.row(op)[:] -= at


def _clamp(times: Durations) -> Mapping[str, int]:
    """Set times below -10 ms to 0, in place, and count them by kind."""
    counts: dict[str, int] = {}
    if times.values.min(initial=0.0) < CLOCK_ERROR_S:
        low = times.values < CLOCK_ERROR_S
        op = np.searchsorted(times.row_ptr, np.flatnonzero(low), side="right") - 1
        times.values[low] = 0.0
        per_kind = np.bincount(times.graph.kind[op], minlength=len(OpKind))
        counts = {OpKind(k).label: int(n) for k, n in enumerate(per_kind) if n}
    return counts
