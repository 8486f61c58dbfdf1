"""Groups within a pass: slow connections among their members, and work that is shared unevenly.

Tensor-, context- and expert-parallel ranks meet in every layer. All meetings of a group in a step
count together: a single one lasts microseconds, a slow connection slows them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.diagnose.candidate import Candidate
from paceline.diagnose.groups import (
    Group,
    SlowGroup,
    each_of,
    group_evidence,
    healthy,
    in_steps,
    slow_groups,
)
from paceline.diagnose.remove import Effect, Scaled
from paceline.graph import Durations, StepGraph
from paceline.graph.families import joined_sets
from paceline.trace import OpKind
from paceline.trace.kinds import PEER_KINDS

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Members that a group's name lists.
MAX_MEMBERS = 64

#: A compute is uneven if the busiest member of a group has this much more than the mean, beyond
#: what lasts on a member. It is averaged over steps and groups.
UNEVEN = 0.05

#: And this many times as much as computes that do not follow such a collective.
UNEVEN_TIMES = 3.0

#: ... and of how many standard errors each of the two may be off.
UNEVEN_ERRORS = 2.0

#: Computes that are this short, as a share of the longest of their sort, are left out.
SHORT = 0.01

#: Word for the uneven load where members exchange tokens, and where they exchange keys and values.
_UNEVEN_CAUSES = {
    OpKind.EXPERT_COMM: ("expert-imbalance", "experts get unlike numbers of tokens"),
    OpKind.CONTEXT_COMM: ("context-imbalance", "context-parallel ranks get unlike work"),
}

_NAMES = {
    OpKind.TENSOR_COMM: "tensor-parallel group",
    OpKind.EXPERT_COMM: "expert-parallel group",
    OpKind.CONTEXT_COMM: "context-parallel group",
}


def peer_causes(
    durations: Durations, ideal: Array, steps: npt.NDArray[np.int64]
) -> list[Candidate]:
    """Slow groups within passes, and work that is uneven within them.

    Args:
        durations: as measured.
        ideal: [op] the usual transfer time of the op's kind and part, seconds.
        steps: [step] step numbers.
    """
    if not np.isin(durations.graph.kind, [int(kind) for kind in PEER_KINDS]).any():
        return []
    groups = list(_groups(durations, ideal))
    slow = slow_groups(groups)
    candidates = [_of_groups(durations, slow, steps, len(groups))] if slow else []
    for kind in _UNEVEN_CAUSES:
        uneven = _uneven(durations, kind)
        candidates += [uneven] if uneven is not None else []
    return candidates


def _groups(durations: Durations, ideal: Array) -> Iterator[Group]:
    """Each set of members that meets within passes, with all its collectives of a kind."""
    graph = durations.graph
    for kind in sorted(PEER_KINDS):
        for stage in range(graph.n_pp):
            ops = np.flatnonzero((graph.kind == kind) & (graph.pp == stage))
            for family in np.unique(graph.family[graph.group[ops]]).tolist():
                own = ops[graph.family[graph.group[ops]] == family]
                usual_s = max(float(ideal[own].sum()), 1e-9)
                times = np.sum([durations.row(op) for op in own.tolist()], axis=0) / usual_s
                sets = graph.families[family]
                for number in np.unique(sets).tolist():
                    met = np.flatnonzero(sets == number)
                    if len(met) < 2:
                        continue
                    workers = [(int(replica), stage) for replica in met]
                    one_each = own.reshape(-1, 1)
                    each = None if len(own) == 1 else each_of(durations, ideal, one_each, met)
                    yield Group(kind, stage, own, times[:, met], workers, usual_s, each)


def _of_groups(
    durations: Durations, slow: list[SlowGroup], steps: npt.NDArray[np.int64], n_groups: int
) -> Candidate:
    worst = slow[0]
    name = durations.graph.worker_name(*worst.group.workers[0])
    return Candidate(
        "peer-network",
        f"the {_NAMES[worst.group.kind]} of {name} communicates {worst.factor:.1f}x slow"
        f"{in_steps(worst)}",
        {"workers": [list(worker) for worker in worst.group.workers[:MAX_MEMBERS]]},
        group_evidence(slow, steps, n_groups),
        Effect(scaled=tuple(s for entry in slow for s in healthy(durations, entry))),
        "a group whose members send more than others' takes longer in all steps, too"
        if worst.lasting
        else "",
        worst.chance,
    )


@dataclass(frozen=True)
class _Shares:
    """How the computes behind one kind of collective are shared among members.

    Attributes:
        ops: the computes.
        factor: [op, step, replica] by which a compute changes once all members share evenly.
        excess: [op] mean over steps and groups of the busiest member's over the mean, minus 1.
        error: [op] its standard error.
    """

    ops: Ints
    factor: Array
    excess: Array
    error: Array

    def of(self, chosen: npt.NDArray[np.bool_]) -> _Shares:
        """Only some of the computes."""
        return _Shares(
            self.ops[chosen], self.factor[chosen], self.excess[chosen], self.error[chosen]
        )


def _uneven(durations: Durations, kind: OpKind) -> Candidate | None:
    """Work behind the collectives of a kind that is shared unevenly, now here and now there."""
    graph = durations.graph
    if graph.n_variants > 1:
        return None
    behind, beside = _computes_behind(graph, kind)
    if not len(behind):
        return None
    sets = _joined_sets(graph, kind)
    behind, beside = (_long_enough(durations, ops) for ops in (behind, beside))
    control = usual_error = 0.0
    if len(beside):
        usual = _shares(durations, beside, sets)
        control = float(usual.excess.mean())
        usual_error = float(np.sqrt((usual.error**2).sum())) / len(beside)
    least = max(UNEVEN, UNEVEN_TIMES * (control + UNEVEN_ERRORS * usual_error))
    shares = _shares(durations, behind, sets)
    shares = shares.of(shares.excess - UNEVEN_ERRORS * shares.error >= least)
    if not len(shares.ops):
        return None
    behind, excess = shares.ops, float(shares.excess.mean())
    cause, text = _UNEVEN_CAUSES[kind]
    worst = np.argsort(-shares.excess)[:MAX_MEMBERS]
    return Candidate(
        cause,
        f"{text}: the busiest of a group computes {1 + excess:.2f}x the mean, not always the same",
        {"group": {"kind": kind.label}},
        {
            "busiest_over_mean": 1 + excess,
            "elsewhere": 1 + control,
            "computes": len(behind),
            "worst": [
                {
                    "stage": int(graph.pp[behind[i]]),
                    "kind": OpKind(int(graph.kind[behind[i]])).label,
                    "microbatch": int(graph.microbatch[behind[i]]),
                    "part": int(graph.part[behind[i]]),
                    "busiest_over_mean": 1 + float(shares.excess[i]),
                }
                for i in worst[:8].tolist()
            ],
            "threshold": 1 + UNEVEN,
            "source": "the spread of the same computes within each group",
        },
        Effect(
            scaled=tuple(
                Scaled(0, behind, replica, shares.factor[:, :, replica, None])
                for replica in range(graph.n_dp)
            )
        ),
    )


def _computes_behind(graph: StepGraph, kind: OpKind) -> tuple[Ints, Ints]:
    """Forwards and backwards that depend on a collective of the kind, and those that do not."""
    after = np.repeat(np.arange(graph.n_ops), np.diff(graph.dep_ptr))
    depends = np.zeros(graph.n_ops, dtype=bool)
    depends[after[graph.kind[graph.dep] == kind]] = True
    compute = np.isin(graph.kind, (int(OpKind.FORWARD_COMPUTE), int(OpKind.BACKWARD_COMPUTE)))
    return np.flatnonzero(compute & depends), np.flatnonzero(compute & ~depends)


def _joined_sets(graph: StepGraph, kind: OpKind) -> Ints:
    """[replica] the ranks that meet in collectives of a kind, directly or through others.

    The links of a ring join two ranks each; together they are the ring.
    """
    families = np.unique(graph.family[graph.group[graph.kind == kind]])
    return joined_sets(graph.families[families])


def _long_enough(durations: Durations, ops: Ints) -> Ints:
    """Computes that take some time: the instants between two launches differ at random."""
    usual = np.array([float(np.median(durations.row(op))) for op in ops.tolist()])
    chosen: Ints = ops[usual >= SHORT * usual.max(initial=0.0)]
    return chosen


def _shares(durations: Durations, ops: Ints, sets: npt.NDArray[np.int64]) -> _Shares:
    """Shares of the members of each set; what lasts on a member is not counted."""
    values = durations.array[ops]  # [op, step, replica]
    mean = np.empty_like(values)
    for number in np.unique(sets).tolist():
        met = sets == number
        mean[:, :, met] = values[:, :, met].mean(axis=2, keepdims=True)
    relative = np.divide(values, mean, out=np.ones_like(values), where=mean > 0)
    lasting = np.median(relative, axis=(0, 1))
    passing = relative / np.where(lasting > 0, lasting, 1.0)
    excess = np.stack(
        [passing[:, :, sets == n].max(axis=2) for n in np.unique(sets).tolist()], axis=2
    )
    factor = np.divide(1.0, passing, out=np.ones_like(passing), where=passing > 0)
    n = excess.shape[1] * excess.shape[2]
    error = excess.std(axis=(1, 2), ddof=1) / np.sqrt(n) if n > 1 else np.zeros(len(ops))
    return _Shares(ops, factor, excess.mean(axis=(1, 2)) - 1, error)
