"""Steps of a trace that are whole and alike, and the ops of one step of each replica."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import NoStepError, TraceError
from paceline.graph.families import with_families
from paceline.graph.program_check import check_same_programs, difference
from paceline.graph.replica import ReplicaOps
from paceline.trace import Job, OpKind, Trace
from paceline.trace.kinds import MICROBATCH_KINDS

#: Streams whose order of ops is read from the start times; other ops are ordered by rule.
_MIXED_STREAMS = (
    (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE),
    (OpKind.PARAMS_ALL_GATHER, OpKind.GRADS_REDUCE_SCATTER),
)


@dataclass(frozen=True)
class Structure:
    """The common structure of a trace's steps.

    Attributes:
        variants: distinct replica structures.
        replica_variant: [dp] the variant of each data-parallel rank.
        kept: [kept step] indices into the trace's steps.
        left_out: step number -> why it does not fit.
        families: [family, dp] sets of ranks that meet in collectives; family 0 is all of them.
    """

    variants: tuple[ReplicaOps, ...]
    replica_variant: npt.NDArray[np.int64]
    kept: npt.NDArray[np.int64]
    left_out: dict[int, str]
    families: npt.NDArray[np.int64]


def find_structure(trace: Trace) -> Structure:
    """Vote on the structure of each replica; steps where some replica deviates are left out.

    Most steps decide the parts of a replica (ops, chunks, microbatches). Replicas may differ in
    their numbers of microbatches only. For the order within a stream, most steps and replicas of
    equal content decide.

    Raises:
        TraceError: no step is left, or a worker never occurs.
    """
    _check_workers(trace)
    left_out: dict[int, str] = {}
    usual_hash, usual = _usual_counts(trace, left_out)
    kept = _drop(trace, np.arange(trace.n_steps), left_out)
    replica_variant, first_dp = _variants(usual_hash)
    rows = trace.lane_rows()
    variants = []
    for v, dp in enumerate(first_dp):
        dps = np.flatnonzero(replica_variant == v)
        variants.append(_variant_ops(trace, usual[dp], rows, kept, dps, left_out))
    kept = _drop(trace, kept, left_out)
    if trace.program is not None:
        check_same_programs(variants, first_dp, trace.job)
    families = np.zeros((1, len(replica_variant)), dtype=np.int64)
    if trace.program is not None and trace.program.group is not None:
        variants, families = with_families(trace, trace.program.group, variants, rows[kept])
    return Structure(tuple(variants), replica_variant, kept, left_out, families)


def _drop(
    trace: Trace, kept: npt.NDArray[np.int64], left_out: dict[int, str]
) -> npt.NDArray[np.int64]:
    kept = kept[~np.isin(trace.steps[kept], list(left_out))]
    if not len(kept):
        number, reason = next(iter(left_out.items()))
        raise NoStepError(
            f"no step is whole and like the others: {len(left_out)} left out, for example step "
            f"{number}: {reason}"
        )
    return kept


def _check_workers(trace: Trace) -> None:
    absent = np.argwhere(trace.counts.sum(axis=(0, 3)) == 0)
    if len(absent):
        shown = ", ".join(f"({trace.job.worker_name(*w)})" for w in absent[:5].tolist())
        raise TraceError(
            f"{len(absent)} of {trace.job.workers} workers have no rows in any step: {shown}"
            f"{', ...' if len(absent) > 5 else ''}; a trace needs one rank of every (dp, stage)"
        )


def _hashes(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """[row] a 64-bit number per row of a table; equal rows have equal numbers."""
    weights = np.random.default_rng(0).integers(1, 2**63, size=values.shape[1], dtype=np.uint64)
    out = np.empty(len(values), dtype=np.uint64)
    chunk = max(1, (1 << 22) // max(1, values.shape[1]))
    for low in range(0, len(values), chunk):
        part = values[low : low + chunk]
        # The multiplication mixes high bits down: sums of small counts would collide otherwise.
        mixed = (part + np.uint64(1)) * weights
        mixed ^= mixed >> np.uint64(29)
        out[low : low + chunk] = (mixed * weights).sum(axis=1, dtype=np.uint64)
    return out


def _usual_counts(
    trace: Trace, left_out: dict[int, str]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
    """[dp] hash of the usual counts of ops, and [dp, pp, kind] these counts.

    Fills ``left_out`` with the steps in which a replica's counts are not its usual ones.
    """
    n_steps, n_dp = trace.counts.shape[:2]
    table = trace.counts.reshape(n_steps * n_dp, -1)
    content = _hashes(table.astype(np.uint64)).reshape(n_steps, n_dp)
    overall = Counter(content.ravel().tolist())
    n_ops = dict(zip(content.ravel().tolist(), table.sum(axis=1).tolist(), strict=True))
    usual_hash = np.empty(n_dp, dtype=np.uint64)
    for dp in range(n_dp):
        votes = Counter(content[:, dp].tolist())
        # Ties (two steps, one of them broken): prefer counts of more replicas, then of more ops.
        usual_hash[dp] = max(votes, key=lambda h: (votes[h], overall[h], n_ops[h]))
    place = np.argmax(content == usual_hash, axis=0)
    usual = trace.counts[place, np.arange(n_dp)]
    _expect_equal_tails(usual, usual_hash, overall, trace.job)
    for step, dp in np.argwhere(content != usual_hash):
        number = int(trace.steps[step])
        if number not in left_out:
            left_out[number] = _difference(trace.counts[step, dp], usual[dp], int(dp), trace.job)
    return usual_hash, usual


def _expect_equal_tails(
    usual: npt.NDArray[np.int32],
    usual_hash: npt.NDArray[np.uint64],
    overall: Counter[int],
    job: Job,
) -> None:
    """Check that replicas differ in microbatches only, not in collectives or once-a-step ops."""
    fixed = [int(kind) for kind in OpKind if kind not in MICROBATCH_KINDS]
    common = int(np.argmax([overall[int(h)] for h in usual_hash]))
    odd = np.argwhere((usual[:, :, fixed] != usual[common][:, fixed]).any(axis=(1, 2)))
    if len(odd):
        dp = int(odd[0, 0])
        raise TraceError(
            f"{len(odd)} of {len(usual)} dp ranks consist of other ops than most, in most steps: "
            f"{_difference(usual[dp], usual[common], dp, job)}"
        )


def _difference(
    have: npt.NDArray[np.int32], expected: npt.NDArray[np.int32], replica: int, job: Job
) -> str:
    """The first difference between two tables [pp, kind] of counts, in words."""
    if not have.any():
        return f"{job.replica_name(replica)} has no rows"
    for pp in range(len(have)):
        if not have[pp].any():
            return f"{job.worker_name(replica, pp)} has no rows"
    pp, kind = (int(i) for i in np.argwhere(have != expected)[0])
    return (
        f"{job.worker_name(replica, pp)} has {have[pp, kind]} {OpKind(int(kind)).label} ops, "
        f"usual are {expected[pp, kind]}"
    )


def _variants(
    usual_hash: npt.NDArray[np.uint64],
) -> tuple[npt.NDArray[np.int64], list[int]]:
    """[dp] variant number in order of appearance, and the first dp of each variant."""
    _, first, index = np.unique(usual_hash, return_index=True, return_inverse=True)
    renumber = np.argsort(np.argsort(first))
    return renumber[index.reshape(-1)].astype(np.int64), sorted(first.tolist())


def _variant_ops(
    trace: Trace,
    counts: npt.NDArray[np.int32],
    lane_rows: npt.NDArray[np.int64],
    kept: npt.NDArray[np.int64],
    dps: npt.NDArray[np.int64],
    left_out: dict[int, str],
) -> ReplicaOps:
    """The ops of one variant; fills ``left_out`` with steps whose ops or order differ."""
    flat = counts.ravel()
    n_ops = int(flat.sum())
    first = np.cumsum(flat, dtype=np.int64) - flat
    cell = np.repeat(np.arange(len(flat)), flat)
    pp, kind = np.divmod(cell, len(OpKind))
    seq = np.arange(n_ops) - first[cell]
    rows = lane_rows[np.ix_(kept, dps)].ravel()
    numbers = np.repeat(trace.steps[kept], len(dps))
    label = _vote_labels(trace, rows, n_ops)
    usual = _most_common(label)
    odd = np.flatnonzero(label != label[usual])
    ops = _ops_of_lane(trace, kind, pp, seq, int(rows[usual]))
    for lane in odd[[int(numbers[lane]) not in left_out for lane in odd]]:
        own = _ops_of_lane(trace, kind, pp, seq, int(rows[lane]))
        reason = _deviation(trace, own, ops, int(dps[lane % len(dps)]))
        left_out.setdefault(int(numbers[lane]), reason)
    if trace.program is not None:
        return ops
    alike = label == label[usual]
    for kinds in _MIXED_STREAMS:
        for stage in range(int(pp.max()) + 1):
            stream = np.flatnonzero((pp == stage) & np.isin(kind, kinds))
            order, odd = _vote_order(trace, rows, stream, alike)
            ops.rank[stream[order]] = np.arange(len(stream))
            for lane in odd:
                left_out.setdefault(
                    int(numbers[lane]),
                    f"{trace.job.worker_name(dps[lane % len(dps)], stage)} runs its "
                    f"{kinds[0].label} and {kinds[1].label} ops in another order than usual",
                )
    return ops


def _deviation(trace: Trace, own: ReplicaOps, usual: ReplicaOps, dp: int) -> str:
    """Why a lane with the usual counts of ops differs from the others."""
    text = "" if trace.program is None else difference(own, usual, dp, trace.job)
    return text or f"{trace.job.replica_name(dp)} has other microbatches or chunks than usual"


def _ops_of_lane(
    trace: Trace,
    kind: npt.NDArray[np.int64],
    pp: npt.NDArray[np.int64],
    seq: npt.NDArray[np.int64],
    row: int,
) -> ReplicaOps:
    """The ops of one lane, from its first row on; without ranks where no program is recorded."""
    rows = slice(row, row + len(kind))
    chunk = trace.chunk[rows].astype(np.int64)
    microbatch = _renumber(trace.microbatch[None, rows])[0]
    if trace.program is None:
        return ReplicaOps(kind, pp, seq, chunk, microbatch, np.zeros(len(kind), dtype=np.int64))
    program = trace.program.take(rows)
    issued = program.issued.astype(np.int64)
    return ReplicaOps(kind, pp, seq, chunk, microbatch, issued, program.part, program.awaited)


def _lane_table(
    values: npt.NDArray[Any], rows: npt.NDArray[np.int64], ops: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    """[lane, op] values of some ops."""
    table: npt.NDArray[Any] = values[rows[:, None] + ops]
    return table


def _most_common(label: npt.NDArray[np.uint64]) -> int:
    """The first lane that carries the most frequent label."""
    counts = Counter(label.tolist())
    return int(np.argmax(label == np.uint64(counts.most_common(1)[0][0])))


def _vote_labels(trace: Trace, rows: npt.NDArray[np.int64], n_ops: int) -> npt.NDArray[np.uint64]:
    """[lane] a number for the lane's sequence of chunks and microbatches, and for its program."""
    first = _labelled(trace, rows[:1], n_ops)
    rows, lane = np.unique(rows, return_inverse=True)  # equal steps share their rows
    label = np.empty(len(rows), dtype=np.uint64)
    block = max(1, (1 << 22) // n_ops)
    for low in range(0, len(rows), block):
        columns = _labelled(trace, rows[low : low + block], n_ops)
        differs = [(own != usual).any(axis=1) for own, usual in zip(columns, first, strict=True)]
        other = np.logical_or.reduce(differs)
        label[low : low + block] = 0
        if other.any():
            packed = [
                (one[other].astype(np.int64) + 1) << 33 | (two[other].astype(np.int64) + 1)
                for one, two in zip(columns[::2], columns[1::2], strict=True)
            ]
            hashes = _hashes(np.concatenate(packed, axis=1).view(np.uint64))
            label[low : low + block][other] = hashes | np.uint64(1)
    labels: npt.NDArray[np.uint64] = label[lane.reshape(-1)]
    return labels


def _labelled(
    trace: Trace, rows: npt.NDArray[np.int64], n_ops: int
) -> tuple[npt.NDArray[Any], ...]:
    """[lane, op] values that lanes of one structure share; an even number of columns."""
    ops = np.arange(n_ops)
    chunk = _lane_table(trace.chunk, rows, ops)
    columns = (chunk, _renumber(_lane_table(trace.microbatch, rows, ops)))
    if trace.program is None:
        return columns
    part, issued, awaited = (
        _lane_table(column, rows, ops)
        for column in (trace.program.part, trace.program.issued, trace.program.awaited)
    )
    return (*columns, chunk, issued, part, awaited)


def _renumber(microbatch: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Microbatches of each lane, numbered as they first appear.

    Some jobs number them over all replicas or steps, or by sample. Only equality within a lane
    counts.
    """
    renumbered = microbatch.copy()
    known: dict[bytes, npt.NDArray[np.int32]] = {}
    for lane in range(len(microbatch)):
        named = microbatch[lane] >= 0
        relative = microbatch[lane, named]
        relative = relative - relative[:1]  # most lanes differ by an offset at most
        key = relative.tobytes()
        if key not in known:
            _, first, index = np.unique(relative, return_index=True, return_inverse=True)
            known[key] = np.argsort(np.argsort(first))[index.reshape(-1)].astype(np.int32)
        renumbered[lane, named] = known[key]
    return renumbered


def _ascending(table: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """[row] whether its values never decrease."""
    return np.asarray((table[:, 1:] >= table[:, :-1]).all(axis=1))


def _vote_order(
    trace: Trace,
    rows: npt.NDArray[np.int64],
    ops: npt.NDArray[np.int64],
    alike: npt.NDArray[np.bool_],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The order of ``ops`` by start in most lanes, and the lanes with another order.

    A lane agrees if its starts do not decrease along the order, so ties never disagree.
    """
    starts = _lane_table(trace.start, rows, ops)
    order = np.argsort(starts[np.argmax(alike)], kind="stable")
    agree = _ascending(starts[:, order])
    if 2 * (agree & alike).sum() < alike.sum():
        orders = np.argsort(starts[alike], axis=1, kind="stable")
        order = orders[_most_common(_hashes(orders.astype(np.uint64)))]
        agree = _ascending(starts[:, order])
    return order, np.flatnonzero(~agree & alike)
