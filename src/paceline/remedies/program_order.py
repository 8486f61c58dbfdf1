"""Ties that the program adds to the paper's graph: a transfer issued behind an earlier compute.

Some frameworks alternate transfers and computes (Megatron's 1F1B). They issue a receive behind the
compute before it, of either direction. The graph allows an earlier launch (what-if paper, 3.2) and
so hides transfers behind computes that in fact come first. The predicted gain of a fix is then too
large. So a transfer that follows the same compute in all steps and replicas gets a dependency on
it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.errors import GraphError
from paceline.graph import Durations, Measured, StepGraph
from paceline.graph.computes import KINDS
from paceline.graph.graph import with_edges
from paceline.simulate import Timeline, timeline
from paceline.trace.kinds import P2P_KINDS

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Most ops, in whole steps, that are searched for ties. A tie in all of them is taken to hold in
#: the other steps.
MAX_OPS = 300_000

#: Traced times are rounded, so a launch may seem to precede the end of its compute (in the real
#: jobs by up to 0.1 ms of 220). The tolerance is this share of the compute, before its end. One of
#: a hundred unrelated launches lies within it by chance, but almost never all of them.
ROUNDING_SHARE = 0.01


@dataclass(frozen=True)
class ProgramOrder:
    """Edges that the order of the program adds to the graph of a trace.

    Attributes:
        graph: the graph with the ties.
        ties: [tie, 2] a compute, and the send or recv that is launched behind it.
    """

    graph: StepGraph
    ties: Ints

    def on_graph(self, values: Durations) -> Durations:
        """The same seconds on the tied graph."""
        return Durations(self.graph, values.n_steps, values.values)


def program_order(measured: Measured) -> ProgramOrder:
    """The ties that the trace shows, if any."""
    graph = measured.graph
    if not graph.of_whole_passes:  # the order of its programs is recorded
        return ProgramOrder(graph, np.empty((0, 2), dtype=np.int64))
    index = _sampled_steps(measured)
    delays = measured.delays.of_steps(index)
    line = timeline(measured.durations.of_steps(index), None, delays)
    ties_of_stages = [
        graph.variant_ops(v).start + _ties(line, delays, v, stage)
        for v in range(graph.n_variants)
        for stage in range(graph.n_pp)
    ]
    ties = np.concatenate(ties_of_stages)
    if len(ties):
        try:
            return ProgramOrder(with_edges(graph, ties), ties)
        except GraphError:  # the workers' clocks contradict each other
            pass
    return ProgramOrder(graph, ties[:0])


def _ties(line: Timeline, delays: Durations, variant: int, stage: int) -> Ints:
    """[tie, 2] compute and transfer of a stage, counted from the variant's first op."""
    start, end = line.start.block(variant), line.end.block(variant)
    computes, transfers = ops_of(line.graph, variant, stage)
    if len(transfers) == 0:
        return np.empty((0, 2), dtype=np.int64)
    computes = computes[np.argsort(end[computes].mean(axis=(1, 2)), kind="stable")]
    nearly = end[computes] - ROUNDING_SHARE * (end[computes] - start[computes])
    before = _ended_before(nearly, start[transfers]) - 1
    rows, behind = transfers[before >= 0], computes[before[before >= 0]]
    # A tie that adds nothing to the graph's own dependencies may be chance.
    free = start[rows] - delays.block(variant)[rows]
    explains = np.median(nearly[before[before >= 0]] - free, axis=(1, 2)) > 0
    ties: Ints = np.stack([behind, rows], axis=1)[explains]
    return ties


def ops_of(graph: StepGraph, variant: int, stage: int) -> tuple[Ints, Ints]:
    """Computes of a stage, and its sends and recvs, counted from the variant's first op."""
    span = graph.variant_ops(variant)
    mine = graph.pp[span] == stage
    computes = np.flatnonzero(mine & np.isin(graph.kind[span], [int(kind) for kind in KINDS]))
    transfers = np.flatnonzero(mine & np.isin(graph.kind[span], [int(k) for k in P2P_KINDS]))
    return computes, transfers


def _sampled_steps(measured: Measured) -> Ints:
    """Indices of evenly spread steps that together have ``MAX_OPS`` ops."""
    n_steps = measured.durations.n_steps
    per_step = max(1, len(measured.durations.values) // n_steps)
    sample: Ints = np.unique(
        np.linspace(0, n_steps - 1, min(n_steps, max(1, MAX_OPS // per_step))).astype(np.int64)
    )
    return sample


def _ended_before(ends: Array, starts: Array) -> Ints:
    """[transfer] number of computes that ended before its start in all steps and replicas.

    Args:
        ends: [compute, step, dp], in the order in which they run.
        starts: [transfer, step, dp].
    """
    least = np.full(len(starts), len(ends))
    for lane in np.ndindex(*starts.shape[1:]):
        ended = np.searchsorted(ends[:, *lane], starts[:, *lane], side="right")
        np.minimum(least, ended, out=least)
    return least
