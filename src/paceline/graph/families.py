"""Families: partitions of the data-parallel ranks into sets that communicate among themselves.

Hybrid sharding gathers within a shard group and reduces over the replicas of a shard. Each is one
family, and its sets are the groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import GraphError
from paceline.graph.replica import ReplicaOps
from paceline.trace import OpKind, Trace

Ints = npt.NDArray[np.int64]

#: At most this many members of a group are named in a message.
MAX_NAMED = 4


def joined_sets(partitions: Iterable[Ints]) -> Ints:
    """[replica] the lowest replica that it is connected to through sets of the partitions.

    Args:
        partitions: at least one [replica] array with the number of its set.
    """
    partitions = list(partitions)
    joined = np.arange(len(partitions[0]))
    while True:
        before = joined
        for sets in partitions:
            lowest = np.full(int(sets.max()) + 1, len(joined))
            np.minimum.at(lowest, sets, joined)
            joined = lowest[sets]
        if (joined == before).all():
            return joined


def with_families(
    trace: Trace, group: npt.NDArray[np.int32], variants: Sequence[ReplicaOps], rows: Ints
) -> tuple[list[ReplicaOps], Ints]:
    """The ops with the families in which they meet, and the [family, dp] sets of each.

    Args:
        trace: the trace with the groups.
        group: [row] numbers of groups, -1 = all ranks.
        variants: replica structures.
        rows: [step, dp] first row of each lane in use.

    Raises:
        GraphError: groups change from step to step, or differ in size within a collective. Or only
            some ranks of a collective name one, or replicas differ in structure.
    """
    if len(variants) > 1:
        raise GraphError(
            "groups of some data-parallel ranks are known for replicas of one structure only; "
            f"these have {len(variants)} (unlike numbers of microbatches?)"
        )
    (ops,) = variants
    rows = np.unique(rows, axis=0)  # equal steps share their rows
    place = np.arange(len(ops.kind))[:, None]
    first = group[rows[0] + place]  # [op, dp]
    for step in rows[1:]:
        differs = (first != group[step + place]).any(axis=1)
        if differs.any():
            which = _name(ops, int(np.argmax(differs)))
            raise GraphError(f"the groups of {which} change from step to step")
    _check_partitions(ops, first)
    distinct, example, index = _distinct_rows(first)
    _check_sizes(trace, ops, distinct, example)
    sets = np.stack(
        [np.unique(numbers, return_inverse=True)[1].reshape(-1) for numbers in distinct]
    )
    namesake = _namesakes(ops.kind, index, sets)
    rows_of = np.zeros((1 + len(sets), 1 + trace.job.replicas), dtype=np.int64)  # 0: all ranks
    rows_of[1:, :-1], rows_of[1:, -1] = sets, namesake
    families, number = np.unique(rows_of, axis=0, return_inverse=True)
    # Sorted, all ranks in one set come first.
    family = number.reshape(-1)[1:][index]
    return [replace(ops, family=family)], np.ascontiguousarray(families[:, :-1])


def _distinct_rows(table: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], Ints, Ints]:
    """The distinct rows, sorted, the first place of each, and [row] its index among these."""
    words = [row.tobytes() for row in table]
    place: dict[bytes, int] = {}
    for at, word in enumerate(words):
        place.setdefault(word, at)
    # Few rows are distinct, and to sort rows is slow.
    distinct, first = np.unique(table[list(place.values())], axis=0, return_index=True)
    example = np.array(list(place.values()))[first]
    number = dict(zip((words[at] for at in example.tolist()), range(len(example)), strict=True))
    return distinct, example, np.array([number[word] for word in words])


def _namesakes(kind: npt.NDArray[Any], index: Ints, sets: Ints) -> Ints:
    """[group numbers of an op] its index among those of one kind and equal sets, usually 0.

    Two links may join the same ranks, one in each direction, and neither waits for the other.

    Args:
        kind: [op] its kind.
        index: [op] row of ``sets``.
        sets: [distinct group numbers, dp] the sets of these groups.
    """
    namesake = np.zeros(len(sets), dtype=np.int64)
    for of_kind in np.unique(kind):
        numbers = np.unique(index[kind == of_kind])
        _, same = np.unique(sets[numbers], axis=0, return_inverse=True)
        for which in np.unique(same):
            alike = numbers[same.reshape(-1) == which]
            namesake[alike] = np.maximum(namesake[alike], np.arange(len(alike)))
    return namesake


def _check_partitions(ops: ReplicaOps, group: npt.NDArray[np.int32]) -> None:
    """Check that either all ranks of a collective name a group, or none does.

    Args:
        ops: the ops of a replica.
        group: [op, dp] numbers of groups, -1 = all ranks.
    """
    none = group < 0
    mixed = none.any(axis=1) & ~none.all(axis=1)
    if mixed.any():
        op = int(np.argmax(mixed))
        without, dp = int(np.argmax(none[op])), int(np.argmax(~none[op]))
        raise GraphError(
            f"the groups of {_name(ops, op)} are no partition of the data-parallel ranks: dp {dp} "
            f"names group {group[op, dp]}, dp {without} says -1, which is all ranks"
        )


def _check_sizes(trace: Trace, ops: ReplicaOps, rows: npt.NDArray[np.int32], example: Ints) -> None:
    """Check that the groups of a collective have one size: if not, some ranks stand alone.

    Links of a ring may differ: a rank that has no link in a turn is a group of its own.

    Args:
        trace: gives the names of the ranks.
        ops: the ops of a replica.
        rows: [distinct, dp] numbers of groups, -1 = all ranks.
        example: [distinct] the first op that has them.
    """
    for numbers, op in zip(rows, example.tolist(), strict=True):
        if ops.kind[op] == OpKind.CONTEXT_COMM or (numbers < 0).any():
            continue
        names, member, sizes = np.unique(numbers, return_inverse=True, return_counts=True)
        if (sizes == sizes[0]).all():
            continue
        small, large = int(np.argmin(sizes)), int(np.argmax(sizes))
        listed = [
            f"group {names[which]} has {sizes[which]} "
            f"({_members(trace, ops, op, np.flatnonzero(member.reshape(-1) == which))})"
            for which in (small, large)
        ]
        raise GraphError(
            f"the groups of {_name(ops, op)} are of unlike sizes: {listed[0]}, {listed[1]}; ranks "
            "that meet must write the same number into the column group, such as the lowest of "
            "their ranks"
        )


def _members(trace: Trace, ops: ReplicaOps, op: int, replicas: Ints) -> str:
    """The first members of a group, in words."""
    names = [trace.job.worker_name(int(r), int(ops.pp[op])) for r in replicas[:MAX_NAMED].tolist()]
    return "; ".join(names) + ("; ..." if len(replicas) > MAX_NAMED else "")


def _name(ops: ReplicaOps, op: int) -> str:
    return f"{OpKind(int(ops.kind[op])).label} {ops.seq[op]} of stage {ops.pp[op]}"
