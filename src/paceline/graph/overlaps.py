"""Two computes of one worker that run at once (DualPipe): one node, divided between them.

DualPipe runs the forward of one microbatch and the backward of another as one block (DeepSeek-AI
2024, 3.2.1). Recorded as two passes, both last as long as the block. In the graph its parts follow
each other and add up to the block. The share of each is its share when it runs alone. If both begin
and end together, dependencies of one hold up the block, and successors of one wait for the block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from paceline.errors import GraphError
from paceline.graph.graph import Durations, StepGraph, with_edges
from paceline.trace.kinds import OpKind

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Computes that share less than this part of the shorter one's time follow each other: clocks are
#: no finer.
MIN_SHARED = 0.1

#: Two begins, or two ends, count as one within this share of the shorter compute.
_TOGETHER = 0.1

_PASSES = [int(k) for k in (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE, OpKind.WEIGHT_COMPUTE)]


@dataclass(frozen=True)
class Overlaps:
    """Pairs of computes of a worker that run at once in most steps and replicas.

    Attributes:
        pairs: [pair, 2] ops; the second follows the first in the graph.
        together: [pair, 2] whether they begin, and end, together.
    """

    pairs: Ints
    together: npt.NDArray[np.bool_]


def find_overlaps(graph: StepGraph, start: Durations, end: Durations) -> Overlaps | None:
    """The pairs; None where every worker computes one thing at a time.

    Args:
        graph: the ops, one compute of a worker behind the other.
        start: [op, step, dp] as measured.
        end: [op, step, dp] as measured.

    Raises:
        GraphError: three computes of a worker run at once.
    """
    following = _following(graph)
    pairs = _at_once(graph, following, start, end)
    # A long compute may last until the second after it, which no edge ties to it.
    further = following[np.searchsorted(following[:, 0], following[:, 1]) % len(following)]
    further = np.stack([following[:, 0], further[:, 1]], axis=1)[further[:, 0] == following[:, 1]]
    _check_two(graph, np.concatenate([pairs, _at_once(graph, further, start, end)]))
    if not len(pairs):
        return None
    together = np.array([_overlap(start, end, one, other) for one, other in pairs.tolist()])
    return Overlaps(pairs, together)


def _following(graph: StepGraph) -> Ints:
    """[pair, 2] computes of a worker and the next one of each, ordered by the first."""
    after = np.repeat(np.arange(graph.n_ops), np.diff(graph.dep_ptr))
    computes = np.isin(graph.kind, _PASSES)
    chained = np.flatnonzero(computes[after] & computes[graph.dep])
    pairs = np.stack([graph.dep[chained], after[chained]], axis=1)
    in_order: Ints = pairs[np.argsort(pairs[:, 0], kind="stable")]
    return in_order


def _at_once(graph: StepGraph, pairs: Ints, start: Durations, end: Durations) -> Ints:
    """Those of the pairs that run at once in most steps and replicas."""
    # A backward needs its own forward: where they seem to overlap, a clock is wrong.
    own = [
        (values[pairs[:, 0]] == values[pairs[:, 1]]) for values in (graph.chunk, graph.microbatch)
    ]
    pairs = pairs[~(own[0] & own[1])]
    pairs = pairs[_in_two_steps(graph, pairs, start, end)]
    often = [_overlap(start, end, one, other) is not None for one, other in pairs.tolist()]
    at_once: Ints = pairs[np.array(often, dtype=bool)]
    return at_once


def _in_two_steps(graph: StepGraph, pairs: Ints, start: Durations, end: Durations) -> Mask:
    """[pair] whether any replica overlaps them in the first step or the one in the middle.

    Ops that overlap in most steps overlap in these; to check all steps of each pair takes long.
    """
    seen = np.zeros(len(pairs), dtype=bool)
    steps = sorted({0, start.n_steps // 2})
    for v in range(graph.n_variants):
        ops = graph.variant_ops(v)
        here = np.flatnonzero((pairs[:, 0] >= ops.start) & (pairs[:, 0] < ops.stop))
        one, other = pairs[here].T - ops.start
        for step in steps:
            first, last = start.block(v)[:, step], end.block(v)[:, step]
            shared = np.minimum(last[one], last[other]) - np.maximum(first[one], first[other])
            shorter = np.minimum(last[one] - first[one], last[other] - first[other])
            seen[here] |= (shared > MIN_SHARED * shorter).any(axis=1)
    return seen


def _overlap(start: Durations, end: Durations, one: int, other: int) -> tuple[bool, bool] | None:
    """Whether two computes begin and end together; None where they follow each other."""
    starts, ends = (start.row(one), start.row(other)), (end.row(one), end.row(other))
    latest_start, earliest_end = np.maximum(*starts), np.minimum(*ends)
    shorter = np.minimum(ends[0] - starts[0], ends[1] - starts[1])
    shared = earliest_end - latest_start > MIN_SHARED * shorter
    if shared.mean() <= 0.5:
        return None
    apart = _TOGETHER * np.median(shorter)
    begin, finish = (np.median(np.abs(a - b)) for a, b in (starts, ends))
    return bool(begin <= apart), bool(finish <= apart)


def _check_two(graph: StepGraph, pairs: Ints) -> None:
    ops, times = np.unique(pairs, return_counts=True)
    if (times > 1).any():
        op = int(ops[np.argmax(times > 1)])
        others = [x for pair in pairs.tolist() if op in pair for x in pair if x != op]
        names = ", ".join(graph.describe(x) for x in others)
        raise GraphError(
            f"{graph.describe(op)} overlaps with {names}: at most two computes of a worker may run "
            "at once; record what the worker launches part by part (docs/trace-format.md)"
        )


def join_overlaps(graph: StepGraph, overlaps: Overlaps) -> StepGraph:
    """The graph in which each pair is one node: edges of one compute apply to both."""
    after = np.repeat(np.arange(graph.n_ops), np.diff(graph.dep_ptr))
    there = set(zip(graph.dep.tolist(), after.tolist(), strict=True))
    edges: list[tuple[int, int]] = []
    for (first, second), (begin, finish) in zip(
        overlaps.pairs.tolist(), overlaps.together.tolist(), strict=True
    ):
        if finish:
            followers = after[graph.dep == first].tolist()
            edges += [(second, op) for op in followers if op != second]
        if begin:
            needed = graph.dep[graph.dep_ptr[second] : graph.dep_ptr[second + 1]].tolist()
            # Ops that a program launches behind the first one stay between the two.
            edges += [(op, first) for op in needed if op != first and (first, op) not in there]
    paired = np.zeros(graph.n_ops, dtype=bool)
    paired[overlaps.pairs] = True
    tied = with_edges(graph, np.array(edges, dtype=np.int64).reshape(-1, 2))
    return replace(tied, paired=paired)


def share_out(overlaps: Overlaps, start: Durations, end: Durations) -> None:
    """Let the computes of each pair follow each other within their block, in place.

    A compute's share of the block is its usual time alone, over that of both. Without a compute of
    its kind, stage and chunk that runs alone, its own span counts.
    """
    alone = _usual_alone(start, end)
    for one, other in overlaps.pairs.tolist():
        starts, ends = (start.row(one), start.row(other)), (end.row(one), end.row(other))
        weights = alone[[one, other]]
        if not weights.min() > 0:
            weights = np.array([(e - s).mean() for s, e in zip(starts, ends, strict=True)])
        begin, finish = np.minimum(*starts), np.maximum(*ends)
        apart = np.maximum(*starts) >= np.minimum(*ends)  # in this step, one after the other
        cut = begin + weights[0] / weights.sum() * (finish - begin)
        starts[0][:] = np.where(apart, starts[0], begin)
        ends[0][:] = np.where(apart, ends[0], cut)
        starts[1][:] = np.where(apart, starts[1], cut)
        ends[1][:] = np.where(apart, ends[1], finish)


def _usual_alone(start: Durations, end: Durations) -> npt.NDArray[np.float64]:
    """[op] median seconds of the computes of its kind, stage and chunk that run alone; or NaN."""
    graph = start.graph
    if graph.paired is None:
        raise AssertionError("the graph has no pairs")
    usual = np.full(graph.n_ops, np.nan)
    passes = np.flatnonzero(np.isin(graph.kind, _PASSES))
    keys = np.stack([graph.kind[passes], graph.pp[passes], graph.chunk[passes]])
    _, alike = np.unique(keys, axis=1, return_inverse=True)
    paired = graph.paired[passes]
    for number in np.unique(alike[paired]).tolist():
        ops = passes[(alike.reshape(-1) == number) & ~paired]
        if len(ops):
            seconds = [np.median(end.row(op) - start.row(op)) for op in ops.tolist()]
            usual[passes[alike.reshape(-1) == number]] = np.median(seconds)
    return usual
