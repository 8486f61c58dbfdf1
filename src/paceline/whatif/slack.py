"""Slack: the time by which an operation could take longer without moving the end of its step.

Slack follows from the time that must still pass after each operation. The simulator computes this
time on the reversed graph, with durations and launch delays exchanged. There, an operation is
launched when all its successors are done. Its duration then comes before it meets its peers, and
its launch delay after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, Measured, StepGraph
from paceline.simulate import ends
from paceline.trace import KIND_GROUPS
from paceline.trace.kinds import PASSES

T = TypeVar("T", bound=np.generic)
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Most operations in the steps of a summary: all steps of a small job, some of a large one.
MAX_OPS = 300_000

#: A worker is near the path if a compute has less slack than this share of the mean step.
NEAR = 0.01


@dataclass(frozen=True)
class Slack:
    """Slack of the operations in some steps, seconds.

    Attributes:
        steps: [step] numbers of the covered steps: all, or some at even quantiles of the step time.
        by_kind: kind label -> (least, median) over the operations of the kind.
        by_stage: stage -> (least, median) over its forward and backward computes.
        least_s, median_s: [pp, dp] over the forward and backward computes of a worker.
        near_workers: number of workers with a compute of less slack than 1% of the mean step.
    """

    steps: Ints
    by_kind: Mapping[str, tuple[float, float]]
    by_stage: Mapping[int, tuple[float, float]]
    least_s: Floats
    median_s: Floats
    near_workers: int


def slack_of(measured: Measured, index: Ints | None = None) -> Durations:
    """The time by which each op could take longer in its step, all others unchanged.

    It is 0 on the critical path. If an op takes longer by more than its slack, the step takes
    longer by the excess. The result is as large as the trace.

    Args:
        measured: graph, durations and launch delays.
        index: [step] positions in ``measured.steps``; None takes all.

    Returns:
        seconds [op, step, dp], in the layout of durations.
    """
    steps = np.arange(len(measured.steps)) if index is None else np.asarray(index)
    return slack(measured.durations.of_steps(steps), measured.delays.of_steps(steps))


def slack(durations: Durations, delays: Durations | None = None) -> Durations:
    """Slack as in :func:`slack_of`, for any durations and launch delays (None = no delays)."""
    graph = durations.graph
    back = _reversed(graph)
    before = (
        _with_end(back, delays) if delays is not None else Durations.empty(back, durations.n_steps)
    )
    result = Durations.empty(graph, durations.n_steps)
    for first, end in ends(durations, delays=delays):
        last = np.max([block.max(axis=(0, 2)) for block in end.blocks], axis=0)
        for v in range(graph.n_variants):
            part = result.block(v)[:, first : first + end.n_steps]
            np.subtract(last[:, None], end.block(v), out=part)
    for first, reached in ends(before, delays=_with_end(back, durations)):
        for v in range(graph.n_variants):
            part = result.block(v)[:, first : first + reached.n_steps]
            n_ops = len(part)
            for ops, after in back.latest_dependency_ends(v, reached.block(v)):
                part[ops] -= after[: n_ops - ops.start]  # without the step's end
    return result


def _reversed(graph: StepGraph) -> StepGraph:
    """The reversed graph, with one more op per variant: the step's end, on which all ops depend.

    It bounds ops whose successors all end earlier than they do (negative transfer times).
    """
    n_variants = graph.n_variants
    place = np.arange(graph.n_ops) + graph.variant  # a step's end comes after its variant's ops
    end = graph.variant_ptr[1:] + np.arange(n_variants)
    target = np.concatenate([place[graph.dep], place])
    source = np.concatenate(
        [place[np.repeat(np.arange(graph.n_ops), np.diff(graph.dep_ptr))], end[graph.variant]]
    )
    n_ops = graph.n_ops + n_variants
    by_target = np.argsort(target, kind="stable")

    def spread(values: npt.NDArray[T], filler: int = 0) -> npt.NDArray[T]:
        out = np.full(n_ops, filler, dtype=values.dtype)
        out[place] = values
        return out

    nodes = graph.n_ops - graph.node_ptr[::-1]
    return replace(
        graph,
        kind=spread(graph.kind),
        pp=spread(graph.pp),
        seq=spread(graph.seq),
        chunk=spread(graph.chunk),
        microbatch=spread(graph.microbatch),
        noop=spread(graph.noop),
        group=spread(graph.group, -1),
        dep_ptr=np.append(0, np.cumsum(np.bincount(target, minlength=n_ops))),
        dep=source[by_target],
        variant_ptr=graph.variant_ptr + np.arange(n_variants + 1),
        order=np.concatenate([end, place[graph.order[::-1]]]),
        node_ptr=np.concatenate([np.arange(n_variants), nodes + n_variants]),
    )


def _with_end(back: StepGraph, durations: Durations) -> Durations:
    """The same values for the reversed graph; the step's end takes no time."""
    out = Durations.empty(back, durations.n_steps)
    for v in range(back.n_variants):
        out.block(v)[:-1] = durations.block(v)
    return out


def slack_summary(measured: Measured, step_s: Floats) -> Slack:
    """Slack by kind, stage and worker.

    Args:
        measured: graph, durations and launch delays.
        step_s: [step] step times; of too many steps, some at even quantiles are covered.
    """
    graph = measured.graph
    per_step = len(measured.durations.values) // max(1, len(measured.steps))
    index = _typical(step_s, max(1, MAX_OPS // max(1, per_step)))
    table = slack_of(measured, index)
    blocks = table.blocks
    computes = np.isin(graph.kind, PASSES)
    least, median = np.zeros((2, graph.n_pp, graph.n_dp))
    for v, dps in enumerate(graph.variant_dps):
        for pp in range(graph.n_pp):
            ops = np.flatnonzero((computes & (graph.pp == pp))[graph.variant_ops(v)])
            rows = blocks[v][ops]  # [op, step, dp]
            least[pp, dps], median[pp, dps] = rows.min(axis=(0, 1)), np.median(rows, axis=(0, 1))
    return Slack(
        steps=measured.steps[index],
        by_kind={
            label: _extent(graph, blocks, np.isin(graph.kind, kinds))
            for label, kinds in KIND_GROUPS.items()
            if np.isin(graph.kind, kinds).any()
        },
        by_stage={
            pp: _extent(graph, blocks, computes & (graph.pp == pp)) for pp in range(graph.n_pp)
        },
        least_s=least,
        median_s=median,
        near_workers=int((least < NEAR * step_s.mean()).sum()),
    )


def _typical(step_s: Floats, room: int) -> Ints:
    """Indices of at most ``room`` steps: all, or those at even quantiles of the step time."""
    if len(step_s) <= room:
        return np.arange(len(step_s))
    quantile = ((np.arange(room) + 0.5) * len(step_s) / room).astype(np.int64)
    return np.sort(np.argsort(step_s, kind="stable")[quantile])


def _extent(
    graph: StepGraph, blocks: tuple[Floats, ...], chosen: npt.NDArray[np.bool_]
) -> tuple[float, float]:
    """Least and median slack of the chosen ops."""
    values = np.concatenate(
        [
            blocks[v][np.flatnonzero(chosen[graph.variant_ops(v)])].ravel()
            for v in range(len(blocks))
        ]
    )
    return float(values.min()), float(np.median(values, overwrite_input=True))
