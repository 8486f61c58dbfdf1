"""A worker's program as a list: its launches and waits, and the pass that each serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.graph.replica import ReplicaOps
from paceline.trace.kinds import OpKind

K = OpKind

#: Reductions of gradients: FSDP's scatters, DDP's buckets, the second half of HSDP's.
REDUCTIONS = (K.GRADS_REDUCE_SCATTER, K.SEPARATE_GRADS_ALL_REDUCE)

PASSES = (int(K.FORWARD_COMPUTE), int(K.BACKWARD_COMPUTE))

# Plain numbers: a comparison of a NumPy scalar with an enum's member looks up attributes that the
# member lacks, which takes some microseconds.
_GATHER, _BACKWARD = int(K.PARAMS_ALL_GATHER), int(K.BACKWARD_COMPUTE)
_REDUCTIONS = frozenset(int(kind) for kind in REDUCTIONS)


class Pass(NamedTuple):
    """A forward or backward of one microbatch through one chunk."""

    kind: int
    microbatch: int
    chunk: int


def program_steps(ops: ReplicaOps, stage: int) -> list[int]:
    """The ops that a stage's program launches, in order, and ``~op`` where it waits for one."""
    assert ops.awaited is not None
    here = np.flatnonzero(ops.pp == stage)
    here = here[np.argsort(ops.rank[here], kind="stable")]
    waited = here[ops.awaited[here] >= 0]
    behind = np.searchsorted(ops.rank[here], ops.awaited[waited], side="right") - 1
    place = np.concatenate([np.arange(len(here)), behind])
    steps: list[int] = np.concatenate([here, ~waited])[np.argsort(place, kind="stable")].tolist()
    return steps


def pass_of(ops: ReplicaOps, op: int) -> Pass:
    """The pass of a compute."""
    return Pass(int(ops.kind[op]), int(ops.microbatch[op]), int(ops.chunk[op]))


def unit_of(ops: ReplicaOps, op: int) -> tuple[int, int]:
    """(chunk, part) that a collective serves."""
    assert ops.part is not None
    return int(ops.chunk[op]), int(ops.part[op])


def needed_by(ops: ReplicaOps, steps: Sequence[int]) -> dict[int, Pass]:
    """Gather -> the pass of the first compute behind the wait for it.

    Gathers without a wait, or without a pass behind the wait, are left out.
    """
    kind = ops.kind.tolist()
    following: int | None = None
    passes: dict[int, Pass] = {}
    for step in reversed(steps):
        if step >= 0:
            following = step if kind[step] in PASSES else following
        elif kind[~step] == _GATHER and following is not None:
            passes[~step] = pass_of(ops, following)
    return passes


def reduced_for(ops: ReplicaOps, steps: Sequence[int]) -> dict[int, Pass]:
    """Reduction of gradients -> the backward that was begun last when it was launched."""
    kind = ops.kind.tolist()
    latest: int | None = None
    passes: dict[int, Pass] = {}
    for step in steps:
        if step < 0:
            continue
        if kind[step] == _BACKWARD:
            latest = step
        elif kind[step] in _REDUCTIONS and latest is not None:
            passes[step] = pass_of(ops, latest)
    return passes


def reduced_again(ops: ReplicaOps, steps: Sequence[int]) -> list[int]:
    """Reductions whose unit or bucket is reduced again, for a later pass."""
    passes = reduced_for(ops, steps)
    last = {(int(ops.kind[op]), unit_of(ops, op)): of_pass for op, of_pass in passes.items()}
    return [
        op for op, of_pass in passes.items() if last[int(ops.kind[op]), unit_of(ops, op)] != of_pass
    ]
