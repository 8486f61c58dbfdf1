"""Slow or flapping data-parallel groups, and group members that end a collective late.

A group's time in a step is the median over its members. So jitter of single members makes no slow
group. A group is compared with the groups of other stages, and with itself over time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline import robust, units
from paceline.diagnose.candidate import Candidate
from paceline.diagnose.links import LATE_TIMES, MAX_CHANCE, OUTLIER_SIGMAS, RARE_SHARE, SLOW_TIMES
from paceline.diagnose.remove import Effect, Scaled
from paceline.graph import Durations, StepGraph
from paceline.trace import OpKind
from paceline.trace.job import place_of
from paceline.trace.kinds import PEER_KINDS
from paceline.whatif.modes import two_modes

Array = npt.NDArray[np.float64]

#: A group flaps if it is late in at least this number and this share of the steps.
FLAP_STEPS, FLAP_SHARE = 2, 0.02

#: In the typical step, a late member ends at least MEMBER_SHARE of the group's time after the
#: median member. The delay must also exceed MEMBER_ERRORS standard errors.
MEMBER_SHARE, MEMBER_ERRORS = 0.15, 6.0

#: Largest share of late members. Where more are late, the members simply differ.
FEW_MEMBERS = 0.25

MAX_LISTED = 256

#: A group with several collectives per step is slow if noise explains as many collectives above the
#: usual time with less than this chance. At most ``MAX_EACH`` collectives are compared.
MAX_CHANCE_OF_EACH, MAX_EACH = 0.05, 64


@dataclass(frozen=True)
class Group:
    """One collective of a stage; in programs, all collectives of one kind among the same members.

    Attributes:
        kind, stage: of its collectives.
        ops: members' ops, of all variants.
        times: [step, member] transfer times over the usual one of the kind.
        workers: [member] (dp, pp).
        usual_s: the usual time, seconds.
        each: gives [collective, step] the median member's time over the collective's usual time,
            for up to ``MAX_EACH`` collectives. None for a single collective.
    """

    kind: OpKind
    stage: int
    ops: npt.NDArray[np.int64]
    times: Array
    workers: Sequence[tuple[int, int]]
    usual_s: float
    each: Callable[[], Array] | None = None

    @cached_property
    def level(self) -> Array:
        """[step] the median member's time over the usual time."""
        middle: Array = robust.median(self.times, axis=1)
        return middle


@dataclass(frozen=True)
class SlowGroup:
    """A group that is slow in all steps or in some.

    Attributes:
        group: the slow group.
        factor: its time over the usual time, in the slow steps.
        steps: [step] whether the group is slow in the step.
        lasting: whether it is slow in all steps.
        chance: upper bound on the chance that noise shows its collectives as slow.
    """

    group: Group
    factor: float
    steps: npt.NDArray[np.bool_]
    lasting: bool
    chance: float = 0.0

    @property
    def excess_s(self) -> float:
        """Mean seconds a step above the usual time."""
        over = np.where(self.steps, self.group.level - 1, 0.0)
        return float(np.maximum(over, 0).mean()) * self.group.usual_s


def group_causes(
    durations: Durations, ideal: Array, steps: npt.NDArray[np.int64]
) -> list[Candidate]:
    """Slow groups, and members that end late.

    Args:
        durations: as measured.
        ideal: [op] the usual transfer time of the op's kind, seconds.
        steps: [step] step numbers.
    """
    groups = list(_groups(durations, ideal))
    slow = slow_groups(groups)
    late = [] if slow else _late_members(groups)
    candidates = [_of_groups(durations, slow, steps, len(groups))] if slow else []
    return candidates + ([_of_members(durations, late)] if late else [])


def _groups(durations: Durations, ideal: Array) -> list[Group]:
    """Each collective of a stage; of programs, all collectives of a kind among the same members.

    A program repeats a collective for each unit or bucket over the same connections. So a group's
    units cannot serve as other groups to compare it with.
    """
    graph = durations.graph
    collectives: dict[_Meeting, list[npt.NDArray[np.int64]]] = {}
    for number, members in enumerate(graph.dp_groups):
        if int(graph.kind[members[0]]) not in PEER_KINDS:
            meeting = _Meeting.of(graph, members, -1 if graph.programmed else number)
            collectives.setdefault(meeting, []).append(members)
    groups = []
    for meeting, of_meeting in collectives.items():
        usual_s = max(sum(float(ideal[members[0]]) for members in of_meeting), 1e-9)
        seconds = [
            np.concatenate([durations.row(op) for op in members.tolist()], axis=1)
            for members in of_meeting
        ]
        times = np.sum(seconds, axis=0) / usual_s
        ops, workers = np.concatenate(of_meeting), meeting.workers
        sets = graph.families[meeting.family][[dp for dp, _ in workers]]
        for number in np.unique(sets).tolist():
            own = np.flatnonzero(sets == number)
            met = [workers[at] for at in own.tolist()]
            each = None if len(of_meeting) == 1 else each_of(durations, ideal, of_meeting, own)
            groups.append(
                Group(meeting.kind, meeting.stage, ops, times[:, own], met, usual_s, each)
            )
    return groups


def each_of(
    durations: Durations,
    ideal: Array,
    of_meeting: Sequence[npt.NDArray[np.int64]] | npt.NDArray[np.int64],
    own: npt.NDArray[np.int64],
) -> Callable[[], Array]:
    """The function for ``Group.each``: some collectives of the members ``own``."""

    def each() -> Array:
        few = of_meeting[:: -(-len(of_meeting) // MAX_EACH)]
        return np.stack(
            [
                robust.median(
                    np.concatenate([durations.row(op) for op in members.tolist()], axis=1)[:, own],
                    axis=1,
                )
                / max(float(ideal[members[0]]), 1e-9)
                for members in few
            ]
        )

    return each


class _Meeting(NamedTuple):
    """Key that the collectives of one group share; without programs each collective has its own."""

    kind: OpKind
    stage: int
    family: int
    workers: tuple[tuple[int, int], ...]
    number: int

    @classmethod
    def of(cls, graph: StepGraph, members: npt.NDArray[np.int64], number: int) -> _Meeting:
        """The group of a collective with these ops, of all variants."""
        first = int(members[0])
        workers = tuple(
            (int(dp), int(graph.pp[op]))
            for op in members.tolist()
            for dp in graph.variant_dps[int(graph.variant[op])]
        )
        kind, family = OpKind(int(graph.kind[first])), int(graph.family[graph.group[first]])
        return cls(kind, int(graph.pp[first]), family, workers, number)


def slow_groups(groups: Sequence[Group]) -> list[SlowGroup]:
    """The slow groups, the most costly first; none of a kind where most groups of it seem slow."""
    slow = []
    for kind in {group.kind for group in groups} - {OpKind.OPTIMIZER_CLIP_MAIN_GRAD}:
        of_kind = [group for group in groups if group.kind == kind]
        table = np.stack([group.level for group in of_kind])
        typical = np.median(table, axis=1)
        judged = [_judge(g, _Others(table, typical, at)) for at, g in enumerate(of_kind)]
        blamed = [entry for entry in judged if entry is not None]
        if len(of_kind) > 2 and 2 * len(blamed) > len(of_kind):
            continue
        slow += blamed
    return sorted(slow, key=lambda entry: -entry.excess_s)


@dataclass(frozen=True)
class _Others:
    """All groups of a kind, to compare one of them with the others.

    Attributes:
        table: [group, step] levels of all groups, including the compared one.
        typical: [group] medians over the steps.
        one: index of the compared group.
    """

    table: Array
    typical: Array
    one: int

    @property
    def levels(self) -> Array:
        """[other] median levels of the other groups over the steps."""
        levels: Array = np.delete(self.typical, self.one)
        return levels

    def late_share(self, limit: float) -> float:
        """The largest share of steps in which another group is above a limit."""
        shares = np.delete((self.table > limit).mean(axis=1), self.one)
        return float(shares.max(initial=0.0))


def _judge(group: Group, others: _Others) -> SlowGroup | None:
    """The slow group, if it is slow beside the others of its kind or beside itself over time."""
    levels = others.levels
    level = group.level
    usual = float(robust.median(levels)) if len(levels) else 1.0
    if usual <= 0:  # most groups take no time: no comparison
        return None
    factor = float(others.typical[others.one]) / max(usual, 1e-9)
    noise = np.array([robust.median_error(np.log(np.maximum(level, 1e-9)))])
    if len(levels) > 2:
        noise = np.append(noise, robust.spread(np.log(np.maximum(levels, 1e-9))))
    if len(levels) and factor >= max(
        SLOW_TIMES, float(np.exp(min(OUTLIER_SIGMAS * noise.max(), 50.0)))
    ):
        every = np.ones(len(level), dtype=bool)
        chance = _chance_of_each(group, every, len(others.typical))
        if chance < MAX_CHANCE_OF_EACH:
            return SlowGroup(group, factor, every, True, chance)
    late = level > LATE_TIMES * usual
    if late.sum() < FLAP_STEPS or late.mean() < FLAP_SHARE:
        return None
    modes = two_modes(np.maximum(level, 1e-9))
    two_apart = modes is not None and bool((modes.slow == late).all())
    rare = max(RARE_SHARE, others.late_share(LATE_TIMES * usual))
    chance = robust.chance_of_count(int(late.sum()), len(late), rare)
    # Without other groups the usual share of late steps is unknown. Then the late steps must form a
    # mode of their own.
    if not (two_apart or (len(levels) and chance < MAX_CHANCE)):
        return None
    chance = _chance_of_each(group, late, len(others.typical))
    if chance >= MAX_CHANCE_OF_EACH:
        return None
    return SlowGroup(group, float(np.median(level[late])) / usual, late, False, chance)


def _chance_of_each(group: Group, steps: npt.NDArray[np.bool_], n_groups: int) -> float:
    """Bound on the chance that noise alone lifts as many collectives above their usual times.

    A slow network slows all collectives of a step. With jitter, a few long ones make the step's sum
    large, but half of the collectives stay below their usual times. Sums of few steps do not show
    the difference.
    """
    if group.each is None:
        return 0.0
    above = group.each()[:, steps] > 1
    return min(1.0, n_groups * robust.chance_of_count(int(above.sum()), above.size, 0.5))


def _of_groups(
    durations: Durations, slow: Sequence[SlowGroup], steps: npt.NDArray[np.int64], n_groups: int
) -> Candidate:
    worst, graph = slow[0], durations.graph
    stage, label = worst.group.stage, worst.group.kind.label
    evidence = group_evidence(slow, steps, n_groups)
    place: dict[str, Any] = {"stage": stage, "kind": label}
    of_members, common = f"of stage {stage}", ""
    if len(worst.group.workers) < graph.n_dp:  # one of several groups of the stage
        place["workers"] = [list(worker) for worker in worst.group.workers[:MAX_LISTED]]
        first = graph.worker_name(*worst.group.workers[0])
        of_members = f"of {first} ({len(worst.group.workers)} members)"
    if (worker := _in_all(slow)) is not None:
        evidence["in_all"] = list(worker)
        common = f"; all slow groups have worker {graph.worker_name(*worker)}"
    return Candidate(
        "dp-network",
        f"the data-parallel group {of_members} is {worst.factor:.1f}x slow{in_steps(worst)} "
        f"({graph.kind_name(label)}){common}",
        {"group": place},
        evidence,
        Effect(scaled=tuple(scaling for entry in slow for scaling in healthy(durations, entry))),
        _ambiguity(worst, one_of_several="workers" in place),
        worst.chance,
    )


def _in_all(slow: Sequence[SlowGroup]) -> tuple[int, int] | None:
    """The only worker that all slow groups share: its NIC, not their network, is slow."""
    members = {frozenset(entry.group.workers) for entry in slow}
    common = frozenset.intersection(*members)
    return next(iter(common)) if len(members) > 1 and len(common) == 1 else None


def in_steps(worst: SlowGroup) -> str:
    """`` in 3 of 20 steps``; empty for all steps."""
    return "" if worst.lasting else f" in {int(worst.steps.sum())} of {len(worst.steps)} steps"


def group_evidence(
    slow: Sequence[SlowGroup], steps: npt.NDArray[np.int64], n_groups: int
) -> dict[str, Any]:
    """The numbers that show slow groups, the worst first, of ``n_groups`` in all."""
    worst = slow[0]
    evidence: dict[str, Any] = {
        "median_over_usual": worst.factor,
        "slow_share": int(worst.steps.sum()) / len(steps),
        "groups": [
            {
                "stage": entry.group.stage,
                "kind": entry.group.kind.label,
                "median_over_usual": entry.factor,
                "slow_share": float(entry.steps.mean()),
            }
            for entry in slow[:MAX_LISTED]
        ],
        "n_groups": n_groups,
        "threshold": SLOW_TIMES if worst.lasting else LATE_TIMES,
        "source": "what-if paper, 4.3; falcon paper, 3",
    }
    if not worst.lasting:
        evidence["steps"] = steps[worst.steps].tolist()
    return evidence


def _ambiguity(worst: SlowGroup, one_of_several: bool) -> str:
    if not worst.lasting or worst.factor >= LATE_TIMES:
        return ""
    if one_of_several:
        return "other work on the hosts of these members slows their transfers, too"
    return "a stage with more parameters (embedding, output layer) takes longer in all steps, too"


def healthy(durations: Durations, entry: SlowGroup) -> list[Scaled]:
    """Times of a slow group's members if the group were like the others."""
    graph, level = durations.graph, entry.group.level
    over = np.full(len(level), entry.factor) if entry.lasting else level
    by_step = np.where(entry.steps, 1 / np.maximum(over, 1e-9), 1.0)
    factor = by_step[None, :, None]
    members = {replica for replica, _ in entry.group.workers}
    rows = _rows(durations, entry.group.ops)
    if len(members) == graph.n_dp:
        return [Scaled(variant, ops, None, factor) for variant, ops in rows]
    return [
        Scaled(variant, ops, int(graph.dp_index[replica]), factor)
        for variant, ops in rows
        for replica in sorted(members)
        if graph.replica_variant[replica] == variant
    ]


def _rows(
    durations: Durations, ops: npt.NDArray[np.int64]
) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """(variant, [op] counted from the variant's first) of a group's members."""
    graph = durations.graph
    variants = graph.variant[ops]
    return [(int(v), ops[variants == v] - int(graph.variant_ptr[v])) for v in np.unique(variants)]


def _late_members(groups: Sequence[Group]) -> list[tuple[Group, int, float]]:
    """(group, member, seconds late) of members that end after the others, the worst first."""
    late = []
    for group in groups:
        n_steps, n_members = group.times.shape
        usual = float(robust.median(group.level))
        if n_steps < FLAP_STEPS or usual <= 0:  # wrong clocks can make times 0
            continue
        behind = group.times - group.level[:, None]
        typical = robust.median(behind, axis=0)
        # In a healthy group each member is late at times. The error covers the member's spread over
        # steps and the spread of all members.
        error = np.maximum(robust.median_error(behind), robust.spread(typical))
        blamed = np.flatnonzero(typical >= np.maximum(MEMBER_SHARE * usual, MEMBER_ERRORS * error))
        if len(blamed) <= FEW_MEMBERS * n_members:
            late += [(group, int(m), float(typical[m]) * group.usual_s) for m in blamed]
    return sorted(late, key=lambda entry: -entry[2])


def _of_members(durations: Durations, late: Sequence[tuple[Group, int, float]]) -> Candidate:
    group, member, seconds = late[0]
    name = durations.graph.worker_name(*group.workers[member])
    workers = list(dict.fromkeys(group.workers[member] for group, member, _ in late))
    others = f" (and {len(workers) - 1} more)" if len(workers) > 1 else ""
    kind = durations.graph.kind_name(group.kind.label)
    return Candidate(
        "dp-network",
        f"worker {name} ends {kind} {units.seconds(seconds)} after the "
        f"other members of its group{others}",
        {"workers": [list(worker) for worker in workers[:MAX_LISTED]]},
        {
            "late_s": seconds,
            "late_share": seconds / (group.usual_s * float(np.median(group.level))),
            "kinds": sorted({entry.kind.label for entry, _, _ in late}),
            "members": [_member_entry(durations, *entry) for entry in late[:MAX_LISTED]],
            "threshold": MEMBER_SHARE,
            "source": "falcon paper, 4.3",
        },
        Effect(scaled=tuple(_on_time(durations, *entry[:2]) for entry in late)),
        "a clock that is ahead looks the same if the worker takes part only in collectives",
    )


def _member_entry(
    durations: Durations, group: Group, member: int, seconds: float
) -> dict[str, Any]:
    place = place_of(*group.workers[member], durations.graph.peers)
    named = dict(zip(("dp", "stage", "peer"), place, strict=False))
    return {**named, "kind": group.kind.label, "late_s": seconds}


def _on_time(durations: Durations, group: Group, member: int) -> Scaled:
    """Effect: the member ends with the median member and keeps its jitter."""
    graph = durations.graph
    dp, pp = group.workers[member]
    v = int(graph.replica_variant[dp])
    own_op = (graph.variant[group.ops] == v) & (graph.pp[group.ops] == pp)
    behind = group.times[:, member] - group.level
    own = group.times[:, member]
    on_time_s = np.maximum(own - max(float(np.median(behind)), 0.0), 0.0)
    factor = np.where(own > 0, on_time_s / np.maximum(own, 1e-12), 1.0)
    rows = group.ops[own_op] - int(graph.variant_ptr[v])
    return Scaled(v, rows, int(graph.dp_index[dp]), factor[None, :, None])
