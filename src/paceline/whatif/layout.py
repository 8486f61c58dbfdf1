"""Reduce scenarios to their distinct lanes, so that each is simulated once.

In "all ideal except worker (d, p)", all replicas but ``d`` are the same ideal lane. Two lanes per
step then represent the whole job. The exact slowdown of every worker thus costs no more than the
paper's approximation by whole ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, StepGraph
from paceline.simulate import Lanes, Progress, Rules, step_times
from paceline.trace import OpKind
from paceline.whatif.scenario import Scenario

_IDEAL = 0  # number of the rule that keeps no measured duration
_MAX_CELLS = 1 << 24  # most scenarios x dp ranks in a batch
_MAX_LANES = 1 << 21

#: Most ideal lanes of a variant in a step, where replicas differ in their no-ops. The last lane
#: then also represents all faster replicas.
MAX_IDEAL_LANES = 8

_RuleKey = tuple[frozenset[OpKind] | None, frozenset[int] | None, bool]


def simulate_scenarios(
    durations: Durations,
    ideal: npt.NDArray[np.float64],
    scenarios: Sequence[Scenario],
    progress: Progress | None = None,
) -> npt.NDArray[np.float64]:
    """[scenario, step] step times without launch delays, seconds.

    Args:
        durations: as measured.
        ideal: [op] seconds, from :func:`paceline.whatif.ideal.ideal_durations`.
        scenarios: the scenarios to simulate.
        progress: called repeatedly with (simulated lanes, number of lanes known so far).
    """
    n_steps = durations.n_steps
    layout = _Layout(durations)
    times = np.empty((len(scenarios), n_steps))
    done = 0
    for low, high, rule_of_dp in layout.batches(scenarios):
        lanes = layout.lanes(rule_of_dp)
        rules = Rules(layout.keep(), ideal)

        def report(batch_done: int, batch_total: int, before: int = done) -> None:
            if progress is not None:
                progress(before + batch_done, before + batch_total)

        flat = step_times(durations, rules, lanes, progress=report)
        times[low:high] = flat.reshape(high - low, n_steps)
        done += len(lanes)
    return times


def rules_of(
    graph: StepGraph, durations: Durations, ideal: npt.NDArray[np.float64], scenario: Scenario
) -> tuple[Rules, npt.NDArray[np.int64]]:
    """The rules of one scenario, and [dp] the number of the rank's rule, for a timeline."""
    layout = _Layout(durations)
    _, _, rule_of_dp = next(layout.batches([scenario]))
    return Rules(layout.keep(), ideal), rule_of_dp[0].astype(np.int64)


@dataclass(frozen=True)
class _Ideal:
    """Ideal lanes of one step, each for a class of replicas with equal no-ops."""

    members: tuple[npt.NDArray[np.int64], ...]  # [class] dp ranks
    variant: npt.NDArray[np.int64]  # [class]
    column: npt.NDArray[np.int64]  # [class] column of one member


class _Layout:
    """Collects the rules of scenarios, and assigns them to lanes."""

    def __init__(self, durations: Durations) -> None:
        self.durations, self.graph = durations, durations.graph
        self.n_steps = durations.n_steps
        self.rule_ids: dict[_RuleKey, int] = {}
        self.masks: list[npt.NDArray[np.bool_]] = []
        # No-ops keep their measured durations in every scenario. If these are equal, they are the
        # ideal values, and no rule must keep them.
        self.kept_noops = _varying_noops(durations)
        self.rule((None, frozenset(), True))
        if self.kept_noops.any():
            self.ideal_lanes = [self._ideal_lanes(step) for step in range(self.n_steps)]
        else:
            variants = np.arange(self.graph.n_variants)
            common = _Ideal(self.graph.variant_dps, variants, np.zeros_like(variants))
            self.ideal_lanes = [common] * self.n_steps

    def rule(self, key: _RuleKey) -> int:
        """Number of the rule that keeps measured durations inside or outside kinds and stages."""
        if key not in self.rule_ids:
            kinds, stages, inside = key
            mask = np.ones(self.graph.n_ops, dtype=bool)
            if kinds is not None:
                mask &= np.isin(self.graph.kind, [int(kind) for kind in kinds])
            if stages is not None:
                mask &= np.isin(self.graph.pp, list(stages))
            mask = mask if inside else ~mask
            mask[self.kept_noops] = True
            self.rule_ids[key] = len(self.masks)
            self.masks.append(mask)
        return self.rule_ids[key]

    def keep(self) -> npt.NDArray[np.bool_]:
        """[rule, op] whether the rule keeps the measured duration, for all rules so far."""
        return np.stack(self.masks)

    def batches(
        self, scenarios: Sequence[Scenario]
    ) -> Iterator[tuple[int, int, npt.NDArray[np.int32]]]:
        """Batches of scenarios that fit into memory: (first, end, [scenario, dp] rule)."""
        n_dp = self.graph.n_dp
        room = max(1, _MAX_CELLS // n_dp)
        low = 0
        while low < len(scenarios):
            part = scenarios[low : low + room]
            table = np.empty((len(part), n_dp), dtype=np.int32)
            lanes = 0
            for row, scenario in enumerate(part):
                lanes += self._fill(table[row], scenario) * self.n_steps
                if lanes > _MAX_LANES:
                    part = part[: row + 1]
                    break
            yield low, low + len(part), table[: len(part)]
            low += len(part)

    def _fill(self, row: npt.NDArray[np.int32], scenario: Scenario) -> int:
        """Fill the [dp] rules of one scenario; returns the approximate number of lanes per step."""
        scenario.part.check(self.graph)
        kinds, inside = scenario.part.kinds, scenario.measured_inside
        row[:] = self.rule((None, frozenset(), inside))
        chosen = scenario.part.stages_of(self.graph)
        if len(chosen) == len(row) and len(set(chosen.values())) == 1:
            row[:] = self.rule((kinds, next(iter(chosen.values())), inside))
            return len(row)
        for dp, stages in chosen.items():
            row[dp] = self.rule((kinds, stages, inside))
        return len(chosen) + 1 if inside else len(row)

    def lanes(self, rule_of_dp: npt.NDArray[np.int32]) -> Lanes:
        """The distinct lanes of a batch, with a set for each scenario and step."""
        graph, n_steps = self.graph, self.n_steps
        if graph.has_families:
            return _lanes_of_classes(graph, n_steps, rule_of_dp)
        n_dp = np.array([len(dps) for dps in graph.variant_dps])
        special = rule_of_dp != _IDEAL
        scenario, dp = np.nonzero(special)
        steps = np.arange(n_steps)
        variant = graph.replica_variant[dp]
        column = steps * n_dp[variant][:, None] + graph.dp_index[dp][:, None]
        parts: list[tuple[npt.NDArray[np.int64], ...]] = [
            (
                (scenario[:, None] * n_steps + steps).ravel(),
                np.repeat(variant, n_steps),
                np.repeat(rule_of_dp[scenario, dp].astype(np.int64), n_steps),
                column.ravel(),
            )
        ]
        parts.extend(self._ideal_parts(~special))
        sets, variants, rules, columns = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(sets, kind="stable")
        return Lanes(
            sets[order], variants[order], rules[order], columns[order], len(rule_of_dp) * n_steps
        )

    def _ideal_parts(
        self, ideal: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[npt.NDArray[np.int64], ...]]:
        """Yield lanes: one per scenario, step and class of its ideal replicas."""
        cached: tuple[_Ideal, list[npt.NDArray[np.int64]]] | None = None
        for step, lanes in enumerate(self.ideal_lanes):
            if cached is None or cached[0] is not lanes:
                cached = lanes, [np.flatnonzero(ideal[:, dps].any(axis=1)) for dps in lanes.members]
            for number, having in enumerate(cached[1]):
                yield (
                    having * self.n_steps + step,
                    np.full(len(having), lanes.variant[number]),
                    np.full(len(having), _IDEAL),
                    np.full(len(having), lanes.column[number]),
                )

    def _ideal_lanes(self, step: int) -> _Ideal:
        members, variants, columns = [], [], []
        for v, dps in enumerate(self.graph.variant_dps):
            for alike in self._alike(v, step):
                members.append(dps[alike])
                variants.append(v)
                columns.append(step * len(dps) + int(alike[0]))
        return _Ideal(tuple(members), np.array(variants), np.array(columns))

    def _alike(self, variant: int, step: int) -> list[npt.NDArray[np.int64]]:
        """Groups of replicas with the same ideal lane, as indices within the variant.

        Of more than ``MAX_IDEAL_LANES`` groups, the fastest are merged with the last slower one.
        """
        kept = np.flatnonzero(self.kept_noops[self.graph.variant_ops(variant)])
        values = self.durations.block(variant)[kept, step]  # [no-op, dp]
        _, index = np.unique(values, axis=1, return_inverse=True)
        index = index.reshape(-1)
        groups = [np.flatnonzero(index == number) for number in range(int(index.max()) + 1)]
        groups.sort(key=lambda group: -float(values[:, group[0]].sum()))
        few, rest = groups[:MAX_IDEAL_LANES], groups[MAX_IDEAL_LANES:]
        few[-1] = np.concatenate([few[-1], *rest])
        return few


def _lanes_of_classes(graph: StepGraph, n_steps: int, rule_of_dp: npt.NDArray[np.int32]) -> Lanes:
    """The distinct lanes of a job whose collectives have sets of ranks.

    An ideal replica that meets a deviating one differs from one that does not. Ideal replicas are
    therefore split into classes by the replicas that they meet, until no class splits further.
    """
    partitions = graph.families[1:]
    n_dp = np.array([len(dps) for dps in graph.variant_dps])
    columns: list[tuple[npt.NDArray[np.int64], ...]] = []
    meets: list[npt.NDArray[np.int64]] = []
    steps = np.arange(n_steps)
    met = np.zeros((len(partitions), 1), dtype=np.int64)  # sets numbered so far, per family
    known: dict[bytes, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = {}
    for scenario, rules in enumerate(rule_of_dp):
        deviating = rules != _IDEAL
        key = deviating.tobytes()  # scenarios of workers of one replica have equal classes
        if key not in known:
            colour = classes(partitions, np.where(deviating, np.arange(len(rules)) + 1, 0))
            _, dp = np.unique(colour, return_index=True)  # one replica stands for its class
            sets = np.stack([_of_sets(colour, partition)[dp] for partition in partitions])
            known[key] = dp, sets
        dp, own = known[key]
        width = own.max(axis=1, keepdims=True) + 1
        in_steps = own[:, None, :] + steps[:, None] * width[:, :, None]
        meets.append((met[:, :, None] + in_steps).reshape(len(partitions), -1))
        met = met + width * n_steps
        variant = graph.replica_variant[dp]
        column = steps[:, None] * n_dp[variant] + graph.dp_index[dp]
        columns.append(
            (
                np.repeat(scenario * n_steps + steps, len(dp)),
                np.tile(variant, n_steps),
                np.tile(rules[dp].astype(np.int64), n_steps),
                column.ravel(),
            )
        )
    sets, variants, rules_, columns_ = (np.concatenate(c) for c in zip(*columns, strict=True))
    n_sets = len(rule_of_dp) * n_steps
    return Lanes(sets, variants, rules_, columns_, n_sets, np.concatenate(meets, axis=1))


def classes(
    partitions: npt.NDArray[np.int64], colour: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """[dp] class of the replica; replicas of a class always have equal times.

    The classes are split by the classes of the replicas met in each family, until none splits.

    Args:
        partitions: [family, dp] number of the replica's set.
        colour: [dp] first class of the replica.
    """
    while True:
        refined = colour
        for partition in partitions:
            number = _of_sets(colour, partition)
            keys = refined * (int(number.max()) + 1) + number
            _, refined = np.unique(keys, return_inverse=True)
            refined = refined.reshape(-1)
        if refined.max(initial=0) == np.unique(colour).size - 1:
            return refined
        colour = refined


def _of_sets(
    colour: npt.NDArray[np.int64], partition: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """[dp] number of the combination of classes in the replica's set."""
    present = np.zeros((int(partition.max()) + 1, int(colour.max()) + 1), dtype=bool)
    present[partition, colour] = True
    words = present.view(f"S{present.shape[1]}")  # rows as words sort much faster
    _, number = np.unique(words, return_inverse=True)
    numbers: npt.NDArray[np.int64] = number.reshape(-1)[partition]
    return numbers


def ideal_lane_error_s(durations: Durations) -> float:
    """Largest possible error of a step time, because ideal replicas were merged.

    It is 0 if none were merged, else the longest time of one replica's no-ops in a step.
    """
    graph = durations.graph
    if not _varying_noops(durations).any():
        return 0.0
    worst = 0.0
    for v, dps in enumerate(graph.variant_dps):
        if len(dps) > MAX_IDEAL_LANES:
            noops = np.flatnonzero(graph.noop[graph.variant_ops(v)])
            worst = max(worst, float(durations.block(v)[noops].sum(axis=0).max()))
    return worst


def _varying_noops(durations: Durations) -> npt.NDArray[np.bool_]:
    """[op] whether it is a no-op, if no-ops differ between steps or replicas; else False."""
    graph = durations.graph
    for v in range(graph.n_variants):
        noops = np.flatnonzero(graph.noop[graph.variant_ops(v)])
        values = durations.block(v)[noops]
        if (values != values[:, :1, :1]).any():
            return graph.noop
    return np.zeros(graph.n_ops, dtype=bool)
