"""Dependencies of a step: streams, transfers and tail (what-if paper, 3.2 and Figure 2).

This module alone knows them; traces and plans both use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import GraphError
from paceline.graph.graph import StepGraph, make_graph
from paceline.graph.program import launch_numbers, program_edges, program_pairs
from paceline.graph.program_check import check_passes
from paceline.graph.replica import ReplicaOps
from paceline.trace.job import Job
from paceline.trace.kinds import DP_KINDS, PEER_KINDS, TRANSFERS, OpKind

K = OpKind
Ops = npt.NDArray[np.int64]


class _Stage:
    """The ops of one stage by kind, and the edges among them as they are found."""

    def __init__(self, ops: ReplicaOps, pp: int, n_pp: int, n_chunks: int) -> None:
        self.pp, self.n_pp, self.n_chunks = pp, n_pp, n_chunks
        low, high = np.searchsorted(ops.pp, [pp, pp + 1])
        cuts = low + np.searchsorted(ops.kind[low:high], np.arange(len(OpKind) + 1))
        self.of = [np.arange(a, b) for a, b in pairwise(cuts)]
        self.chunk, self.rank, self.ops = ops.chunk, ops.rank, ops
        self.edges: list[npt.NDArray[np.int64]] = []
        self.noops: list[Ops] = []
        self.compute = self.ordered(K.FORWARD_COMPUTE, K.BACKWARD_COMPUTE)
        self.dp_stream = self.ordered(K.PARAMS_ALL_GATHER, K.GRADS_REDUCE_SCATTER)
        self.valid = {kind: self._match(kind) for kind in TRANSFERS}

    def ordered(self, *kinds: OpKind) -> Ops:
        """Ops of some kinds in the order in which they run."""
        ops = np.concatenate([self.of[kind] for kind in kinds])
        return ops[np.argsort(self.rank[ops], kind="stable")]

    def add(self, before: Any, after: Any) -> None:
        """Edges before[i] -> after[i]; a single op counts for all."""
        before, after = np.broadcast_arrays(np.asarray(before), np.asarray(after))
        self.edges.append(np.stack([before.ravel(), after.ravel()], axis=1).astype(np.int64))

    def chain(self, ops: Ops) -> None:
        """Edges that make the ops run one after the other."""
        self.add(ops[:-1], ops[1:])

    def _match(self, kind: OpKind) -> Ops:
        """Match sends or recvs with computes: the k-th belongs to the k-th of its direction.

        Returns the transfers that move data. At the model's two ends there is no peer. Virtual
        pipelines record no-ops there, or nothing; then only the other computes are counted.
        """
        direction, at_first_stage = TRANSFERS[kind]
        transfers, computes = self.of[kind], self.of[direction]
        if self.n_pp == 1 and not len(transfers):
            return transfers  # chunks of one stage hand over in memory
        end_stage, end_chunk = (0, 0) if at_first_stage else (self.n_pp - 1, self.n_chunks - 1)
        at_end = (self.chunk[computes] == end_chunk) & (self.pp == end_stage)
        if len(transfers) == len(computes):
            self.noops.append(transfers[at_end])
            valid: Ops = transfers[~at_end]
        else:
            computes = computes[~at_end]
            valid = transfers
            if len(transfers) != len(computes):
                raise GraphError(
                    f"stage {self.pp} has {len(transfers)} {kind.label} ops for {len(computes)} "
                    f"{direction.label} ops that need one; ops are missing from the trace"
                )
        if kind in (K.FORWARD_SEND, K.BACKWARD_SEND):
            self.add(computes, transfers)
        else:
            self.add(transfers, computes)
            self._recv_after_previous_compute(direction, transfers, computes)
        self.chain(transfers)
        return valid

    def _recv_after_previous_compute(
        self, direction: OpKind, transfers: Ops, computes: Ops
    ) -> None:
        every = self.of[direction]
        place = np.searchsorted(every, computes)
        later = place > 0
        self.add(every[place[later] - 1], transfers[later])

    def connect(self) -> None:
        """All edges inside the stage except those found while matching."""
        self._check_backwards()
        self.chain(self.compute)
        self.chain(self.dp_stream)
        self._first_backward_transfers()
        self._gathers()
        self._tail()

    def _check_backwards(self) -> None:
        n_forward, n_backward = len(self.of[K.FORWARD_COMPUTE]), len(self.of[K.BACKWARD_COMPUTE])
        if n_forward != n_backward or n_forward == 0:
            raise GraphError(
                f"stage {self.pp} has {n_forward} forward-compute and {n_backward} "
                "backward-compute ops; a whole step has as many of both, at least one; "
                "ops are missing from the trace"
            )

    def _first_backward_transfers(self) -> None:
        """They are launched behind the second-last forward that precedes the first backward."""
        warmup = int(np.argmax(self.ops.kind[self.compute] == K.BACKWARD_COMPUTE))
        if warmup >= 2:
            for kind in (K.BACKWARD_SEND, K.BACKWARD_RECV):
                self.add(self.compute[warmup - 2], self.of[kind][:1])

    def _of_chunk(self, kind: OpKind, op: int) -> Ops:
        """Computes of a collective's chunk; all computes if it has no chunk."""
        computes = self.of[kind]
        chunk = self.chunk[op]
        return computes if chunk < 0 else computes[self.chunk[computes] == chunk]

    def _gathers(self) -> None:
        for op in self.of[K.PARAMS_ALL_GATHER]:
            self.add(op, self._of_chunk(K.FORWARD_COMPUTE, op)[:1])

    @property
    def overlapped(self) -> bool:
        """Whether gradients are reduced during the backward pass."""
        return len(self.of[K.SEPARATE_GRADS_ALL_REDUCE]) > 0

    def _tail(self) -> None:
        scatters = self.ordered(K.GRADS_REDUCE_SCATTER)
        if self.overlapped:
            for op in scatters:
                self.add(self._of_chunk(K.BACKWARD_COMPUTE, op)[-1:], op)
        reductions = self.of[K.SEPARATE_GRADS_ALL_REDUCE] if self.overlapped else scatters
        tail = np.concatenate(
            [
                self.of[K.LAYERNORM_GRADS_ALL_REDUCE],
                self.of[K.EMBEDDING_GRADS_ALL_REDUCE],
                reductions,
                self.of[K.OPTIMIZER_CLIP_MAIN_GRAD],
                self.of[K.OPTIMIZER],
            ]
        )
        self.chain(np.concatenate([self.compute[-1:], self.of[K.GC], tail]))
        if self.overlapped and len(scatters) and len(tail):
            self.add(scatters[-1], tail[0])


@dataclass(frozen=True)
class _Dependencies:
    """The dependencies in one replica.

    Attributes:
        edges: [edge, 2] (before, after).
        pairs: [pair, 2] ops that meet within the replica.
        noops: ops that move nothing.
    """

    edges: list[Ops]
    pairs: list[Ops]
    noops: list[Ops]


def _of_pipeline(ops: ReplicaOps, job: Job) -> _Dependencies:
    """By the rules of pipelines of whole passes (what-if paper, 3.2)."""
    if (ops.kind == K.WEIGHT_COMPUTE).any():
        raise GraphError(
            f"{K.WEIGHT_COMPUTE.label} ops without the columns issued and awaited: a pipeline with "
            "split backwards needs the launches and waits of its workers (docs/trace-format.md)"
        )
    stages = [_Stage(ops, pp, job.pp_size, job.vpp_size) for pp in range(job.pp_size)]
    _check_microbatches(stages)
    for stage in stages:
        stage.connect()
    return _Dependencies(
        [edges for stage in stages for edges in stage.edges],
        _pairs(stages),
        [noops for stage in stages for noops in stage.noops],
    )


def _of_programs(ops: ReplicaOps, job: Job) -> _Dependencies:
    """By the recorded launches and waits."""
    check_passes(ops, job.pp_size)
    return _Dependencies(program_edges(ops, job.pp_size), program_pairs(ops, job.pp_size), [])


def build_graph(
    variants: Sequence[ReplicaOps],
    replica_variant: npt.NDArray[np.int64],
    job: Job,
    families: npt.NDArray[np.int64] | None = None,
) -> StepGraph:
    """The graph of one step.

    Args:
        variants: the distinct replica structures.
        replica_variant: [dp] which of them each data-parallel rank has.
        job: degrees of parallelism.
        families: [family, dp] sets of ranks that meet in collectives; default: all ranks meet.

    Raises:
        GraphError: counts of peers differ, ops are missing, or there is a cycle.
    """
    edges: list[npt.NDArray[np.int64]] = []
    pairs: list[npt.NDArray[np.int64]] = []
    noops: list[Ops] = []
    offsets = np.append(0, np.cumsum([len(ops.kind) for ops in variants]))
    dependencies = _of_pipeline if variants[0].awaited is None else _of_programs
    for offset, ops in zip(offsets, variants, strict=False):
        of_replica = dependencies(ops, job)
        edges.extend(e + offset for e in of_replica.edges)
        noops.extend(n + offset for n in of_replica.noops)
        pairs.extend(p + offset for p in of_replica.pairs)

    def joined(field: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(ops, field) for ops in variants])

    kind, pp, seq = joined("kind"), joined("pp"), joined("seq")
    known = variants[0].awaited is not None
    nth = np.concatenate([launch_numbers(ops) for ops in variants]) if known else seq
    group, spans_dp = _groups(np.concatenate(pairs), kind, pp, nth, len(variants))
    noop = np.zeros(len(kind), dtype=bool)
    for ops_at_end in noops:
        noop[ops_at_end] = True
    return make_graph(
        kind=kind,
        pp=pp,
        seq=seq,
        chunk=joined("chunk"),
        microbatch=joined("microbatch"),
        edges=np.concatenate(edges),
        group=group,
        spans_dp=spans_dp,
        noop=noop,
        variant_ptr=offsets.astype(np.int64),
        replica_variant=replica_variant.astype(np.int64),
        part=joined("part") if known else None,
        families=families,
        family=_family_of_groups(group, len(spans_dp), variants[0]),
    )


def _family_of_groups(
    group: npt.NDArray[np.int64], n_groups: int, ops: ReplicaOps
) -> npt.NDArray[np.int64]:
    """[group] the family that its members name; 0 where they name none."""
    family = np.zeros(n_groups, dtype=np.int64)
    if ops.family is not None:
        grouped = group >= 0
        family[group[grouped]] = ops.family[grouped]
    return family


def _check_microbatches(stages: Sequence[_Stage]) -> None:
    expected = len(stages[0].of[K.FORWARD_COMPUTE])
    for stage in stages:
        have = len(stage.of[K.FORWARD_COMPUTE])
        if have != expected:
            raise GraphError(
                f"stage {stage.pp} has {have} forward-compute ops, stage 0 has {expected}; "
                "ops are missing from the trace"
            )


def _pairs(stages: Sequence[_Stage]) -> list[npt.NDArray[np.int64]]:
    """[pair, 2] sends with the neighbour's recvs (around the end under VPP), and embeddings."""
    found = []
    n_pp = len(stages)
    for send, recv, step in (
        (K.FORWARD_SEND, K.FORWARD_RECV, 1),
        (K.BACKWARD_SEND, K.BACKWARD_RECV, -1),
    ):
        for stage in stages:
            peer = stages[(stage.pp + step) % n_pp]
            sends, recvs = stage.valid[send], peer.valid[recv]
            if len(sends) != len(recvs):
                raise GraphError(
                    f"stage {stage.pp} has {len(sends)} {send.label} ops, stage {peer.pp} has "
                    f"{len(recvs)} {recv.label} ops to meet them; ops are missing from the trace"
                )
            found.append(np.stack([sends, recvs], axis=1))
    first, last = (s.of[K.EMBEDDING_GRADS_ALL_REDUCE] for s in (stages[0], stages[-1]))
    if n_pp > 1:
        if len(first) != len(last):
            raise GraphError(
                f"stage 0 has {len(first)} {K.EMBEDDING_GRADS_ALL_REDUCE.label} ops, the last "
                f"stage {len(last)}; ops are missing from the trace"
            )
        found.append(np.stack([first, last], axis=1))
    return found


def _groups(
    pairs: npt.NDArray[np.int64],
    kind: npt.NDArray[Any],
    pp: npt.NDArray[Any],
    seq: npt.NDArray[Any],
    n_variants: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """[op] group and [group] whether it spans the data-parallel ranks."""
    group = np.full(len(kind), -1, dtype=np.int64)
    group[pairs] = np.arange(len(pairs))[:, None]
    wide = np.flatnonzero(np.isin(kind, [int(k) for k in DP_KINDS | PEER_KINDS]))
    # The clip's norm is over the whole model: all stages are one group.
    stage = np.where(kind[wide] == K.OPTIMIZER_CLIP_MAIN_GRAD, 0, pp[wide])
    key = np.stack([kind[wide], stage, seq[wide]], axis=1)
    distinct, index = np.unique(key, axis=0, return_inverse=True)
    group[wide] = len(pairs) + index.reshape(-1)
    spans = np.zeros(len(pairs) + len(distinct), dtype=bool)
    spans[len(pairs) :] = True
    _check_members(distinct, index.reshape(-1), kind[wide], pp, n_variants)
    return group, spans


def _check_members(
    distinct: npt.NDArray[Any],
    index: npt.NDArray[Any],
    kind: npt.NDArray[Any],
    pp: npt.NDArray[Any],
    n_variants: int,
) -> None:
    """Every variant must take part in every collective, the clip on every stage."""
    n_pp = int(pp.max()) + 1
    size = np.bincount(index, minlength=len(distinct))
    expected = np.where(distinct[:, 0] == K.OPTIMIZER_CLIP_MAIN_GRAD, n_pp, 1) * n_variants
    short = np.flatnonzero(size != expected)
    if len(short):
        which, stage, seq = (int(x) for x in distinct[short[0]])
        raise GraphError(
            f"{OpKind(which).label} {seq} (stage {stage}) has {size[short[0]]} members where "
            f"{expected[short[0]]} belong to it; ops are missing from the trace"
        )
