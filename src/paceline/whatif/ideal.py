"""Ideal durations: the time of each op if its kind had no stragglers (what-if paper, 3.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, StepGraph
from paceline.trace import OpKind
from paceline.trace.kinds import MEAN_KINDS, P2P_KINDS
from paceline.whatif.modes import TwoModes, two_modes

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Ops = npt.NDArray[np.int64]

#: Largest number of values for a kind's level in a step; more would cost time and change little.
MAX_SAMPLES = 2048

#: Number of values that are copied at once for means.
_MEAN_VALUES = 1 << 20

#: Least share of the steps in the slow mode; with a smaller one, the median is fast.
MIN_SLOW_SHARE = 0.2

_BACKWARDS = (OpKind.BACKWARD_COMPUTE, OpKind.WEIGHT_COMPUTE)

#: Least time of a pass in a division.
TINY_S = 1e-12

#: Least change of the sum of a stage's operations for a reference other than the paper's, as a
#: share. In healthy jobs, small collectives (gradient clipping) also have two modes, at no cost.
MATERIAL = 0.005


@dataclass(frozen=True, eq=False)
class Reference:
    """Time of every op without stragglers.

    The paper takes one duration per kind over all steps, ranks and microbatches. For forward,
    backward, gc and optimizer it is the mean: their work could be rebalanced. For all other kinds
    it is the median: a flapping link would drag a mean up. No-op sends and recvs do not count; each
    gets the mean of its own durations.

    The median fails if a kind is slow everywhere at once, in many steps: the median may then be a
    slow time. The kind is therefore judged against itself over time. Its reference is the paper's
    over the steps of its fast mode. For computes this holds only in a job of one worker. NVIDIA's
    resiliency extension has such a score, called individual. Its reference is the best past
    performance, which one lucky step decides.

    Attributes:
        seconds: [op] the reference.
        paper: [op] the paper's reference; the same if ``modes`` is empty.
        modes: kind -> its steps in two modes, for kinds judged against their fast mode.
    """

    seconds: Array
    paper: Array
    modes: Mapping[OpKind, TwoModes]

    @cached_property
    def differs(self) -> bool:
        """Whether a kind is judged by another reference than the paper's."""
        return bool((self.seconds != self.paper).any())


_REFERENCES: WeakKeyDictionary[Durations, Reference] = WeakKeyDictionary()


def reference(durations: Durations) -> Reference:
    """The ideal duration of every op; computed once per ``Durations``."""
    if durations not in _REFERENCES:
        _REFERENCES[durations] = _find_reference(durations)
    return _REFERENCES[durations]


def _find_reference(durations: Durations) -> Reference:
    graph = durations.graph
    paper = np.zeros(graph.n_ops)
    for kind, ops in _ops_by_kind(graph):
        paper[ops] = _usual_of_ops(durations, ops, kind)
    for v in range(graph.n_variants):
        noops = np.flatnonzero(graph.noop & (graph.variant == v))
        paper[noops] = _rows(durations, v, noops).mean(axis=(1, 2))
    seconds, modes = paper.copy(), {}
    alone = graph.n_dp * graph.n_pp == 1
    for kind, ops in _ops_by_kind(graph):
        if kind in MEAN_KINDS and not alone:
            continue
        over_time = two_modes(_levels(durations, ops))
        if over_time is None or over_time.share < MIN_SLOW_SHARE:
            continue
        usual = _usual_of_ops(durations, ops, kind, ~over_time.slow)
        if _is_material(graph, paper, ops, usual):
            seconds[ops] = usual
            modes[kind] = over_time
    return Reference(seconds, paper, modes)


def _usual_of_ops(
    durations: Durations, ops: Ops, kind: OpKind, steps: Mask | None = None
) -> Array | float:
    """Ideal times of ops of a kind: one value, or [op] values if passes have parts.

    A whole pass takes the usual time of its kind. Each part gets its average share of the pass. The
    average is over the workers of its stage and the microbatches with equally many parts.
    Communication of one unit or bucket is compared with itself only.
    """
    graph = durations.graph
    if not graph.programmed or kind in P2P_KINDS:
        return _usual(durations, ops, kind, steps)
    if kind in _BACKWARDS and (graph.kind == OpKind.WEIGHT_COMPUTE).any():
        both = np.flatnonzero(np.isin(graph.kind, _BACKWARDS))
        if graph.paired is not None:
            both = both[graph.paired[both] == graph.paired[ops[0]]]
        usual_of_both = _share_among_parts(durations, both, steps)
        usual_of_kind: Array = usual_of_both[graph.kind[both] == kind]
        return usual_of_kind
    if kind in MEAN_KINDS:
        return _share_among_parts(durations, ops, steps)
    usual = np.empty(len(ops))
    for part in np.unique(graph.part[ops]):
        own = graph.part[ops] == part
        usual[own] = _usual(durations, ops[own], kind, steps)
    return usual


def _share_among_parts(durations: Durations, ops: Ops, steps: Mask | None) -> Array:
    """[op] ideal times of the parts of passes in one direction.

    A split backward has the gradients of inputs and of weights as parts of one pass. Stages may
    split it differently: torch's first stage computes all weights' gradients last. So may
    microbatches: DualPipe runs some backwards in one part.
    """
    graph = durations.graph
    n_replicas = np.array([len(dps) for dps in graph.variant_dps])[graph.variant[ops]]
    mean = _means(durations, ops, steps)
    _, passes = np.unique(graph.pass_of[ops], return_inverse=True)
    whole, weights = np.bincount(passes, mean), np.bincount(passes, n_replicas)
    usual_pass = float(np.average(whole, weights=weights / np.bincount(passes)))
    n_parts = np.bincount(passes)[passes]
    keys = np.stack([graph.pp[ops], graph.chunk[ops], graph.kind[ops], n_parts, graph.part[ops]])
    _, alike = np.unique(keys, axis=1, return_inverse=True)
    alike = alike.reshape(-1)
    typical = (np.bincount(alike, mean) / np.bincount(alike))[alike]
    share = typical / np.maximum(np.bincount(passes, typical), TINY_S)[passes]
    usual: Array = usual_pass * share
    return usual


def _means(durations: Durations, ops: Ops, steps: Mask | None) -> Array:
    """[op] mean over steps and replicas."""
    graph, means = durations.graph, np.empty(len(ops))
    chosen = slice(None) if steps is None else steps
    for v in range(graph.n_variants):
        block = durations.block(v)
        own = np.flatnonzero(graph.variant[ops] == v)
        for few in np.array_split(own, 1 + own.size * block[0].size // _MEAN_VALUES):
            rows = block[ops[few] - graph.variant_ops(v).start][:, chosen]
            means[few] = rows.reshape(len(few), -1).mean(axis=1)
    return means


def _ops_by_kind(graph: StepGraph) -> Iterator[tuple[OpKind, npt.NDArray[np.int64]]]:
    """Yield the kinds in the graph, each with its ops except no-ops.

    Computes that run at the same time on a worker form a separate group, as both take longer than
    alone.
    """
    paired = np.zeros(graph.n_ops, dtype=bool) if graph.paired is None else graph.paired
    for kind in OpKind:
        ops = np.flatnonzero((graph.kind == kind) & ~graph.noop)
        for alike in (ops[~paired[ops]], ops[paired[ops]]):
            if len(alike):
                yield kind, alike


def _is_material(graph: StepGraph, paper: Array, ops: Ops, usual: Array | float) -> bool:
    """Whether other ideal times of some ops change the sum of a stage's operations enough."""
    first = graph.variant_ops(0)
    by_stage = np.bincount(graph.pp[first], paper[first])
    inside = ops < first.stop
    change = np.abs(paper[ops] - usual)[inside]
    change = np.bincount(graph.pp[ops[inside]], change, len(by_stage))
    return bool((change >= MATERIAL * by_stage).any())


def ideal_durations(durations: Durations) -> Array:
    """[op] seconds of the op without stragglers (see :class:`Reference`)."""
    return reference(durations).seconds


def _usual(
    durations: Durations,
    ops: npt.NDArray[np.int64],
    kind: OpKind,
    steps: npt.NDArray[np.bool_] | None = None,
) -> float:
    """The mean or median of a kind's ops, over all steps or some."""
    tables = [_rows(durations, v, ops) for v in range(durations.graph.n_variants)]
    if steps is not None:
        tables = [table[:, steps] for table in tables]
    values = np.concatenate([t.ravel() for t in tables]) if len(tables) > 1 else tables[0].ravel()
    return float(values.mean() if kind in MEAN_KINDS else np.median(values, overwrite_input=True))


def _levels(durations: Durations, ops: npt.NDArray[np.int64]) -> Array:
    """[step] the median duration of some ops, over a sample of ops and replicas."""
    samples = []
    for v in range(durations.graph.n_variants):
        span = durations.graph.variant_ops(v)
        inside = ops[(ops >= span.start) & (ops < span.stop)] - span.start
        block = durations.block(v)
        n_dp = block.shape[2]
        # Ops are thinned out before replicas, as members of a group have equal times.
        every = -(-len(inside) * n_dp // MAX_SAMPLES)
        few = inside[::every]
        dps = np.arange(0, n_dp, -(-len(few) * n_dp // MAX_SAMPLES))
        rows = block[few][:, :, dps]
        samples.append(np.moveaxis(rows, 1, 0).reshape(durations.n_steps, -1))
    levels: Array = np.median(np.concatenate(samples, axis=1), axis=1)
    return levels


def _rows(durations: Durations, variant: int, ops: npt.NDArray[np.int64]) -> Array:
    """[op, step, dp] durations of the ``ops`` that belong to the variant."""
    span = durations.graph.variant_ops(variant)
    inside = ops[(ops >= span.start) & (ops < span.stop)] - span.start
    rows: Array = durations.block(variant)[inside]
    return rows
