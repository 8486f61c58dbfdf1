"""Lanes: jobs simulated side by side, and the blocks in which the kernel walks over them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.graph.graph import StepGraph


@dataclass(frozen=True)
class Lanes:
    """The lanes of a simulation, and which of them form one job in one step.

    Attributes:
        set: [lane] the set it belongs to, 0..n_sets-1, ascending.
        variant: [lane] which replica structure.
        rule: [lane] its row of ``Rules.keep``, which tells the ops that keep their own duration.
        column: [lane] its (step, dp) in its variant's block: step * n_dp_of_variant + dp index.
        n_sets: number of sets.
        meets: [family - 1, lane] for each family of ranks that communicate among themselves: lanes
            of one set with one number meet; None where there are no families.
    """

    set: npt.NDArray[np.int64]
    variant: npt.NDArray[np.int64]
    rule: npt.NDArray[np.int64]
    column: npt.NDArray[np.int64]
    n_sets: int
    meets: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.set)

    def repeated(self, n_rules: int) -> Lanes:
        """The same lanes once for each of the rules 0 to ``n_rules`` - 1, set by set."""
        meets = self.meets
        if meets is not None:
            room = meets.max(axis=1, initial=0) + 1
            meets = np.concatenate([meets + n * room[:, None] for n in range(n_rules)], axis=1)
        return Lanes(
            set=(np.arange(n_rules)[:, None] * self.n_sets + self.set).ravel(),
            variant=np.tile(self.variant, n_rules),
            rule=np.repeat(np.arange(n_rules), len(self)),
            column=np.tile(self.column, n_rules),
            n_sets=n_rules * self.n_sets,
            meets=meets,
        )


def all_lanes(
    graph: StepGraph, n_steps: int, rule_of_dp: npt.NDArray[np.int64] | None = None
) -> Lanes:
    """Every replica of every step; the steps are the sets."""
    step, dp = np.divmod(np.arange(n_steps * graph.n_dp), graph.n_dp)
    variant = graph.replica_variant[dp]
    n_dp = np.array([len(dps) for dps in graph.variant_dps])
    rule = np.zeros(len(dp), dtype=np.int64) if rule_of_dp is None else rule_of_dp[dp]
    column = step * n_dp[variant] + graph.dp_index[dp]
    meets = None
    if graph.has_families:
        partitions = graph.families[1:]
        meets = partitions[:, dp] + step * (partitions.max(axis=1, keepdims=True) + 1)
    return Lanes(step, variant, rule, column, n_steps, meets)


@dataclass(frozen=True)
class Block:
    """Lanes that are walked together, sorted by variant, then rule."""

    first_set: int
    n_sets: int
    set: npt.NDArray[np.int64]
    meets: npt.NDArray[np.int64]  # [family, lane] lanes with one number meet; family 0: of a set
    column: npt.NDArray[np.int64]
    variant_ptr: npt.NDArray[np.int64]  # [variant + 1] lanes of each variant
    segment_ptr: npt.NDArray[np.int64]  # [variant + 1] segments of each variant
    segment_rule: npt.NDArray[np.int64]  # [segment] lanes next to each other with one rule
    segment_end: npt.NDArray[np.int64]  # [segment] where its lanes end
    segment_column: npt.NDArray[np.int64]  # [segment] first column if they are consecutive, or -1


def lane_blocks(lanes: Lanes, block_lanes: int) -> Iterator[Block]:
    """Cut the lanes into blocks of about ``block_lanes``, never inside a set."""
    if not len(lanes):
        return
    first_lane = np.searchsorted(lanes.set, np.arange(lanes.n_sets + 1))
    low = 0
    while low < lanes.n_sets:
        room = first_lane[low] + max(block_lanes, 1)
        high = max(low + 1, int(np.searchsorted(first_lane, room, side="right")) - 1)
        high = min(high, lanes.n_sets)
        yield _block(lanes, low, high, slice(first_lane[low], first_lane[high]))
        low = high


def _block(lanes: Lanes, low: int, high: int, cut: slice) -> Block:
    variant, rule, column = lanes.variant[cut], lanes.rule[cut], lanes.column[cut]
    n_variants = int(lanes.variant.max()) + 1
    order = np.lexsort((column, rule, variant))
    variant, rule = variant[order], rule[order]
    key = variant * (int(rule.max()) + 1) + rule
    ends = np.append(np.flatnonzero(np.diff(key)) + 1, len(key))
    begins = np.append(0, ends[:-1])
    column = column[order]
    steady = np.append(0, np.cumsum(np.diff(column) == 1))  # steps of one column so far
    consecutive = steady[ends - 1] - steady[begins] == ends - 1 - begins
    bounds = np.arange(n_variants + 1)
    own_set = lanes.set[cut][order] - low
    meets = own_set[None]
    if lanes.meets is not None:
        numbers = [np.unique(of, return_inverse=True)[1] for of in lanes.meets[:, cut][:, order]]
        meets = np.stack([own_set, *(number.reshape(-1) for number in numbers)])
    return Block(
        first_set=low,
        n_sets=high - low,
        set=own_set,
        meets=meets,
        column=column,
        variant_ptr=np.searchsorted(variant, bounds),
        segment_ptr=np.searchsorted(variant[ends - 1], bounds),
        segment_rule=rule[ends - 1],
        segment_end=ends,
        segment_column=np.where(consecutive, column[begins], -1),
    )
