"""Whether recorded programs make a step: whole passes, and the same launches on every replica."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paceline.errors import GraphError, TraceError
from paceline.graph.replica import ReplicaOps
from paceline.trace import Job
from paceline.trace.kinds import OpKind

Ops = npt.NDArray[np.int64]

_PASSES = (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE)


def check_passes(ops: ReplicaOps, n_pp: int) -> None:
    """Check that all stages and chunks have the same numbers of forward and backward passes.

    If a backward is split, its weight gradients come once, behind the gradients of the inputs.

    Raises:
        GraphError: passes are missing, or a weight gradient has no backward in front of it.
    """
    _check_weights(ops)
    counts = _n_passes(ops, n_pp)
    expected = counts[0, 0, 0]
    wrong = np.argwhere((counts != expected) | (counts == 0))
    if not len(wrong):
        return
    kind, stage, chunk = wrong[0].tolist()
    where = f"stage {stage}" if counts.shape[2] == 1 else f"stage {stage}, chunk {chunk}"
    label = _PASSES[kind].label
    if not counts[kind, stage, chunk]:
        raise GraphError(f"{where} has no {label} op; ops are missing from the trace")
    raise GraphError(
        f"{where} has {counts[kind, stage, chunk]} {label} passes where {expected} belong (as many "
        f"as {_PASSES[0].label} passes of stage 0); ops are missing from the trace"
    )


def _check_weights(ops: ReplicaOps) -> None:
    """Check that each W pass runs behind the B pass of its microbatch."""
    weight = np.flatnonzero(ops.kind == OpKind.WEIGHT_COMPUTE)
    weight = weight[ops.microbatch[weight] >= 0]
    if not len(weight):
        return
    backward = np.flatnonzero(ops.kind == OpKind.BACKWARD_COMPUTE)
    begins: dict[tuple[int, ...], int] = {}
    keys = np.stack([ops.pp, ops.chunk, ops.microbatch], axis=1)
    for key, position in zip(keys[backward].tolist(), ops.rank[backward].tolist(), strict=True):
        begins[tuple(key)] = min(position, begins.get(tuple(key), position))
    for op in weight.tolist():
        stage, chunk, microbatch = key = tuple(keys[op].tolist())
        if key not in begins or begins[key] > ops.rank[op]:
            lack = "none" if key not in begins else "its only behind it"
            raise GraphError(
                f"{_label(ops, op)} of stage {stage}, chunk {chunk} needs the backward-compute of "
                f"microbatch {microbatch} in front of it, but the trace has {lack}"
            )


def _n_passes(ops: ReplicaOps, n_pp: int) -> Ops:
    """[forward or backward, stage, chunk] number of passes."""
    computes = np.isin(ops.kind, [int(kind) for kind in _PASSES])
    n_chunks = max(1, int(ops.chunk[computes].max(initial=0)) + 1)
    fields = (ops.kind, ops.pp, np.maximum(ops.chunk, 0), ops.microbatch)
    passes = np.unique(np.stack([values[computes] for values in fields]), axis=1)
    counts = np.zeros((len(_PASSES), n_pp, n_chunks), dtype=np.int64)
    np.add.at(counts, tuple(passes[:3]), 1)
    return counts


def check_same_programs(variants: Sequence[ReplicaOps], dps: Sequence[int], job: Job) -> None:
    """Check that replicas with the same number of microbatches run the same program.

    Args:
        variants: the distinct structures.
        dps: [variant] a replica that has it.
        job: the job's degrees of parallelism.

    Raises:
        TraceError: two run different programs; the message names the first op that differs.
    """
    if len(variants) < 2:
        return
    first_of: dict[int, int] = {}
    for v, ops in enumerate(variants):
        usual = first_of.setdefault(int(_n_passes(ops, job.pp_size)[0, 0, 0]), v)
        if usual != v:
            other = f"{job.replica_name(dps[usual])} has"
            raise TraceError(
                "ranks recorded different programs: "
                f"{difference(ops, variants[usual], dps[v], job, other)}"
            )


def difference(
    own: ReplicaOps, usual: ReplicaOps, replica: int, job: Job, other: str = "usual is"
) -> str:
    """The first op in which a replica's program differs from another one, in words; "" for none.

    Args:
        own: its ops; ``rank`` holds positions.
        usual: the ops of the other replica.
        replica: its number.
        job: the job's degrees of parallelism.
        other: the other replica's name in the message.
    """
    for stage in range(int(max(own.pp.max(), usual.pp.max())) + 1):
        one, two = _by_launch(own, stage), _by_launch(usual, stage)
        text = _first_difference(own, usual, one, two)
        if text:
            return f"{job.worker_name(replica, stage)} {text[0]}, {other} {text[1]}"
    return ""


def _by_launch(ops: ReplicaOps, stage: int) -> Ops:
    here = np.flatnonzero(ops.pp == stage)
    return here[np.argsort(ops.rank[here], kind="stable")]


def _first_difference(
    own: ReplicaOps, usual: ReplicaOps, one: Ops, two: Ops
) -> tuple[str, str] | None:
    """The ops of one stage in both replicas at the first place where they differ."""
    n = min(len(one), len(two))
    differs = np.zeros(n, dtype=bool)
    for name in ("kind", "rank", "awaited", "part"):
        mine, theirs = getattr(own, name), getattr(usual, name)
        differs |= mine[one[:n]] != theirs[two[:n]]
    if not differs.any():
        if len(one) == len(two):
            return None
        longer, more = (own, one) if len(one) > n else (usual, two)
        name = f"op {longer.rank[more[n]]}, a {_label(longer, int(more[n]))}"
        return (f"has {name}", "none") if longer is own else (f"has no op {n}", name)
    place = int(np.argmax(differs))
    a, b = int(one[place]), int(two[place])
    if own.kind[a] != usual.kind[b] or own.rank[a] != usual.rank[b]:
        return (
            f"launches {_label(own, a)} at position {own.rank[a]}",
            f"{_label(usual, b)} at {usual.rank[b]}",
        )
    if own.awaited is not None and usual.awaited is not None:
        mine, theirs = int(own.awaited[a]), int(usual.awaited[b])
        if mine != theirs:
            said = "never" if mine < 0 else f"behind position {mine}"
            return f"waits {said} for {_label(own, a)}", (
                "never" if theirs < 0 else f"behind {theirs}"
            )
    assert own.part is not None
    assert usual.part is not None
    return f"has {_label(own, a)} as part {own.part[a]}", f"part {usual.part[b]}"


def _label(ops: ReplicaOps, op: int) -> str:
    return f"{OpKind(int(ops.kind[op])).label} {ops.seq[op]}"
