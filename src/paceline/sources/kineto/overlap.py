"""Steps of data-parallel GPUs whose gradients are exchanged during the backward, as programs.

A profile without stream events does not show waits. For gradients a rule gives them. A bucket's
kernel starts when its gradients are there. The work after the backward needs all buckets, since DDP
waits after the last gradient. Gathers of parameters within a pass (FSDP) have no such rule, so
such jobs are read as whole passes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from paceline.errors import TraceError
from paceline.sources.kineto.events import Profile
from paceline.sources.kineto.ops import RankOp
from paceline.trace import OpKind

_PASSES: Final = (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE, OpKind.OPTIMIZER)


#: If a larger share of the shorter pass overlaps, a forward and a backward ran on two streams. A
#: smaller overlap may be copies on another stream at their ends.
MAX_OVERLAP_SHARE: Final = 0.1


def check_overlaps(ops: Sequence[RankOp], profile: Profile) -> None:
    """Refuse two passes that run at the same time: the times of kernels would describe neither.

    Raises:
        TraceError: two computes of a step overlap.
    """
    passes = sorted((op for op in ops if op.kind in _PASSES[:2]), key=lambda op: op.start_s)
    for before, after in pairwise(passes):
        shared_s = min(before.end_s, after.end_s) - after.start_s
        shorter_s = min(before.end_s - before.start_s, after.end_s - after.start_s)
        if shared_s > MAX_OVERLAP_SHARE * shorter_s and before.step == after.step:
            assert before.kind is not None
            assert after.kind is not None
            raise TraceError(
                f"{profile.path}, step {before.step}: a {before.kind.label} and a "
                f"{after.kind.label} overlap by {shared_s * 1e3:.3g} ms, as in DualPipe. "
                "The profile does not say which pass a kernel is of, so this reader takes one pass "
                "at a time. Write a trace with both (docs/trace-format.md); paceline ranks reports "
                "on the file alone"
            )


def with_tails(ops: Sequence[RankOp], profile: Profile) -> list[RankOp]:
    """Ops of a rank; each backward with the end of the GPU's work before the next pass.

    Such work is copies of reduced gradients, their norm, and the like.
    """
    if not profile.on_gpu or profile.transfers:
        return list(ops)
    copies = np.array(profile.copies).reshape(-1, 2)
    starts = np.concatenate([profile.work.start_s, copies[:, 0]])
    order = np.argsort(starts)
    starts = starts[order]
    ends = np.concatenate([profile.work.end_s, copies[:, 1]])[order]
    passes = sorted(op.start_s for op in ops if op.kind in _PASSES)
    tailed = []
    for op in ops:
        if op.kind == OpKind.BACKWARD_COMPUTE:
            following = bisect_left(passes, op.end_s)
            until_s = passes[following] if following < len(passes) else op.end_s
            low, high = np.searchsorted(starts, [op.end_s, until_s])
            op = op._replace(tail_s=float(ends[low:high].max(initial=op.end_s)))
        tailed.append(op)
    return tailed


def overlaps(ops: Sequence[RankOp]) -> bool:
    """Whether a rank's gradients are exchanged during its backwards, and no parameters gathered."""
    ordered = sorted((op for op in ops if op.kind in _PASSES), key=lambda op: op.start_s)
    starts = [op.start_s for op in ordered]

    def around(item: RankOp) -> RankOp | None:
        at = bisect_left(starts, item.start_s) - 1
        return ordered[at] if at >= 0 and item.start_s < ordered[at].end_s else None

    inside = [
        (op.kind, span.kind)
        for op in ops
        if op.kind not in _PASSES and (span := around(op)) is not None
    ]
    return bool(inside) and set(inside) == {(OpKind.GRADS_REDUCE_SCATTER, OpKind.BACKWARD_COMPUTE)}


def overlapped_ops(ops_of: Mapping[int, Sequence[RankOp]]) -> dict[int, list[RankOp]]:
    """Rank -> its ops with their places in the program; backwards are cut at launches of buckets.

    A launch before the last kernel of a backward, in the order of the host, cuts it.
    """
    return {
        rank: [op for step in sorted({op.step for op in ops}) for op in _step(ops, step)]
        for rank, ops in ops_of.items()
    }


def _step(ops: Sequence[RankOp], step: int) -> list[RankOp]:
    here = sorted((op for op in ops if op.step == step), key=lambda op: op.start_s)
    passes = [op for op in here if op.kind in _PASSES]
    if not passes:
        return []  # the check of the ranks' ops reports it
    begun = [op.start_s for op in passes]
    launched: list[list[RankOp]] = [[] for _ in passes]
    for op in here:
        if op.kind not in _PASSES:
            launched[max(0, bisect_left(begun, op.start_s) - 1)].append(op)
    program: list[RankOp] = []
    counted: Counter[OpKind | None] = Counter()
    for span, items in zip(passes, launched, strict=True):
        microbatch = -1 if span.kind == OpKind.OPTIMIZER else counted[span.kind]
        counted[span.kind] += 1
        _pass(program, span._replace(microbatch=microbatch), items)
    return program


def _pass(program: list[RankOp], span: RankOp, items: Sequence[RankOp]) -> None:
    """Append a pass, its launches and the ops before the next pass to a program."""

    def add(op: RankOp, number: int) -> None:
        program.append(op._replace(part=number, issued=len(program)))

    first, n_parts, open_s = len(program), 0, span.start_s
    items = sorted(items, key=lambda item: item.launch_s)
    inside = [item for item in items if item.launch_s < span.launch_s]
    for item in inside:
        cut_s = min(max(open_s, item.start_s), span.end_s)
        add(span._replace(start_s=open_s, end_s=cut_s), n_parts)
        add(item, n_parts)
        n_parts, open_s = n_parts + 1, cut_s
    add(span._replace(start_s=open_s), n_parts)
    for number, item in enumerate(items[len(inside) :], len(inside)):
        add(item, number)
    if not items:
        return
    for place, op in enumerate(program[first:], first):
        if op.kind not in _PASSES:
            program[place] = op._replace(awaited=len(program) - 1)
    if span.kind == OpKind.BACKWARD_COMPUTE:
        over_s = max(span.end_s, *(item.end_s for item in items))
        add(span._replace(start_s=over_s, end_s=max(over_s, span.tail_s)), n_parts + 1)
