"""Tables of the forward and backward computes of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.graph.graph import Durations, StepGraph
from paceline.occurrence import occurrence
from paceline.trace.kinds import LOCAL_KINDS, OpKind

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

KINDS = (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE)

_TINY_S, _LEAST_FACTOR = 1e-9, 0.1


@dataclass(frozen=True)
class Computes:
    """The computes of a job, by place: a (stage, chunk), counted stage by stage.

    Attributes:
        ops: per variant [kind, place, microbatch] ops, counted from the variant's first. If passes
            consist of parts, it is the first part, see :class:`Passes`.
        stage: [place] its stage.
    """

    ops: tuple[Ints, ...]
    stage: Ints

    def of_stage(self, variant: int, stage: int) -> Ints:
        """[kind, chunk, microbatch] ops of one stage."""
        ops: Ints = self.ops[variant][:, self.stage == stage]
        return ops

    def typical(self, passes: Passes) -> Array:
        """[kind, place] median seconds over microbatches, steps and replicas."""
        places = [
            np.concatenate([passes.of(v, ops[k, p]).ravel() for v, ops in enumerate(self.ops)])
            for k in range(len(KINDS))
            for p in range(len(self.stage))
        ]
        return np.array([np.median(values) for values in places]).reshape(len(KINDS), -1)


def computes_of(graph: StepGraph) -> Computes:
    """The computes of a job, in tables."""
    n_chunks = max(1, int(graph.chunk[graph.kind <= OpKind.BACKWARD_COMPUTE].max()) + 1)
    tables = []
    for v in range(graph.n_variants):
        span = graph.variant_ops(v)
        of_kinds = []
        for kind in KINDS:
            first = graph.pass_of[span] == np.arange(span.start, span.stop)
            ops = np.flatnonzero((graph.kind[span] == kind) & first)
            place = graph.pp[span][ops] * n_chunks + np.maximum(graph.chunk[span][ops], 0)
            ops = ops[np.lexsort((graph.microbatch[span][ops], place))]
            of_kinds.append(ops.reshape(graph.n_pp * n_chunks, -1))
        tables.append(np.stack(of_kinds))
    return Computes(tuple(tables), np.repeat(np.arange(graph.n_pp), n_chunks))


@dataclass(frozen=True, eq=False)
class Passes:
    """Seconds of whole passes; the parts of a pass are added up.

    Attributes:
        blocks: per variant [pass, step, dp] seconds.
        row: per variant [op, counted from its first] the pass whose first part it is; -1 where it
            is no first part.
    """

    blocks: tuple[Array, ...]
    row: tuple[Ints, ...]

    def of(self, variant: int, ops: Ints) -> Array:
        """[..., step, dp] seconds of the passes whose first parts are ``ops`` [...]."""
        seconds: Array = self.blocks[variant][self.row[variant][ops]]
        return seconds


def whole_passes(durations: Durations) -> Passes:
    """The passes of all variants; views of the durations where no pass consists of parts."""
    graph = durations.graph
    if not graph.has_parts:
        rows = tuple(np.arange(len(block)) for block in durations.blocks)
        return Passes(durations.blocks, rows)
    local = np.isin(graph.kind, [int(kind) for kind in LOCAL_KINDS])
    blocks, row_of = [], []
    for v in range(graph.n_variants):
        ops = graph.variant_ops(v)
        block = durations.block(v)
        of_pass = graph.pass_of[ops] - ops.start
        first = of_pass == np.arange(len(of_pass))
        alone = np.flatnonzero(local[ops] & first)
        row = np.full(len(of_pass), -1)
        row[alone] = np.arange(len(alone))
        seconds = block[alone]
        parts = np.flatnonzero(~first)
        nth = occurrence((of_pass[parts],), np.argsort(of_pass[parts], kind="stable"))
        for number in range(int(nth.max(initial=-1)) + 1):
            some = parts[nth == number]
            seconds[row[of_pass[some]]] += block[some]
        blocks.append(seconds)
        row_of.append(row)
    return Passes(tuple(blocks), tuple(row_of))


def compute_s(durations: Durations, kinds: Sequence[OpKind] = KINDS) -> Array:
    """[stage, dp, step] seconds of the computes of a worker, of some kinds."""
    graph = durations.graph
    seconds = np.zeros((graph.n_pp, graph.n_dp, durations.n_steps))
    for v, dps in enumerate(graph.variant_dps):
        span, block = graph.variant_ops(v), durations.block(v)
        computes = np.flatnonzero(np.isin(graph.kind[span], kinds))
        for stage in range(graph.n_pp):
            own = computes[graph.pp[span][computes] == stage]
            seconds[stage, dps] = block[own].sum(axis=0).T
    return seconds


def _parts_of(graph: StepGraph, variant: int, ops: Ints) -> tuple[Ints, Ints]:
    """All parts of some passes, and for each part the index of its pass.

    Args:
        graph: the ops.
        variant: replica structure.
        ops: [pass] first parts, counted from the variant's first op, as are the parts.
    """
    span = graph.variant_ops(variant)
    number = np.full(span.stop - span.start, -1, dtype=np.int64)
    number[ops] = np.arange(len(ops))
    of_part = number[graph.pass_of[span] - span.start]
    parts = np.flatnonzero(of_part >= 0)
    return parts, of_part[parts]


def set_passes(
    durations: Durations,
    variant: int,
    ops: Ints,
    seconds: Array,
    dp_index: int | None = None,
    slow: Mask | None = None,
) -> None:
    """Give passes other times, in place; each part takes its share of them.

    The extra time of a slow worker may lie in one part of a pass. Its parts get the proportions
    that they have on the replicas that are never slow, except for their noise.

    Args:
        durations: the durations to change.
        variant: replica structure.
        ops: [...] first parts, counted from the variant's first op.
        seconds: [..., step, dp] of the whole passes; [..., step] where there is one replica.
        dp_index: replica, counted within its variant; None: all replicas.
        slow: broadcasts to [..., step, dp], all replicas: passes of slow workers.
    """
    graph = durations.graph
    replicas = slice(None) if dp_index is None else slice(dp_index, dp_index + 1)
    whole = durations.block(variant)
    block = whole[:, :, replicas]
    seconds = seconds if dp_index is None else seconds[..., None]
    if not graph.has_parts:
        block[ops] = seconds
        return
    flat = ops.ravel()
    parts, of_pass = _parts_of(graph, variant, flat)
    shares = block[parts]
    if slow is not None and slow.any():
        slow = np.broadcast_to(slow, (*ops.shape, *whole.shape[1:])).reshape(-1, *whole.shape[1:])
        shares = shares / _apart(whole[parts], slow[of_pass])[:, :, replicas]
    before = np.zeros((len(flat), *block.shape[1:]))
    np.add.at(before, of_pass, shares)
    after = np.broadcast_to(seconds, (*ops.shape, *before.shape[1:])).reshape(before.shape)
    empty = before[of_pass] <= 0
    factor = np.divide(after, before, out=np.ones_like(before), where=before > 0)
    block[parts] = np.where(empty, block[parts], shares * factor[of_pass])


def _apart(seconds: Array, slow: Mask) -> Array:
    """[part, step, dp] the usual factor of a slow worker's parts over its peers'; else 1.

    Args:
        seconds: [part, step, dp].
        slow: [part, step, dp] the parts of slow workers.
    """
    factor = np.ones(seconds.shape)
    for dp in np.flatnonzero(slow.any(axis=(0, 1))).tolist():
        for mine in np.unique(slow[:, :, dp], axis=0):  # parts that are slow in the same steps
            rows = np.flatnonzero((slow[:, :, dp] == mine).all(axis=1))
            peers = np.flatnonzero(~slow[rows][:, mine].any(axis=(0, 1)))
            if not mine.any() or not peers.size:
                continue
            at = np.ix_(rows, np.flatnonzero(mine))
            usual = np.median(seconds[:, :, peers][at], axis=2)
            own = seconds[:, :, dp][at]
            over = np.median(own / np.maximum(usual, _TINY_S), axis=1)
            factor[(*at, np.full((1, 1), dp))] = np.maximum(over, _LEAST_FACTOR)[:, None]
    return factor
