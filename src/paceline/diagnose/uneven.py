"""Work that is shared unevenly within groups of a pass: experts, context-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.diagnose.balanced import balanced_s, group_means
from paceline.diagnose.candidate import Candidate
from paceline.diagnose.remove import Effect, Scaled
from paceline.graph import Durations, StepGraph
from paceline.graph.families import joined_sets
from paceline.robust import MEDIAN_ERROR, spread
from paceline.trace import OpKind

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Most computes listed in the evidence, the most uneven first.
MAX_WORST = 8

#: A compute is uneven if a group's busiest member exceeds the mean by this share, averaged over
#: steps and groups. Each member's lasting factor is removed before.
UNEVEN = 0.05

#: The excess must also be this many times that of computes that follow no such collective.
UNEVEN_TIMES = 3.0

#: Standard errors that are allowed for each of these two excesses.
UNEVEN_ERRORS = 2.0

#: A compute behind the exchange is balanced if it exceeds the rest by this many standard errors.
#: The number is larger than UNEVEN_ERRORS, for the level it is compared with has few computes.
CLEAR_ERRORS = 3.0

#: Computes below this share of the longest one are left out.
SHORT = 0.01

#: Lower bound of a level before its logarithm.
_TINY = 1e-9

#: Cause and text of uneven work, by the kind of collective.
_UNEVEN_CAUSES = {
    OpKind.EXPERT_COMM: ("expert-imbalance", "experts get unequal numbers of tokens"),
    OpKind.CONTEXT_COMM: ("context-imbalance", "context-parallel ranks get unequal work"),
}


def uneven_causes(durations: Durations) -> list[Candidate]:
    """Unevenly shared work behind the exchanges of experts and of context-parallel ranks.

    Args:
        durations: as measured.
    """
    candidates = (_uneven(durations, kind) for kind in _UNEVEN_CAUSES)
    return [candidate for candidate in candidates if candidate is not None]


@dataclass(frozen=True)
class _Shares:
    """Shares of members in the computes behind one kind of collective.

    Attributes:
        ops: the computes.
        passing: [op, step, replica] a member's seconds over its group's mean, without the member's
            lasting factor.
        busiest: [op, step and group] the busiest member's passing share.
        excess: [op] mean of ``busiest`` over steps and groups, minus 1.
        error: [op] its standard error.
    """

    ops: Ints
    passing: Array
    busiest: Array
    excess: Array
    error: Array

    @property
    def level(self) -> tuple[float, float]:
        """The excess of all of them, and its standard error."""
        error = float(np.sqrt((self.error**2).sum())) / len(self.ops)
        return float(self.excess.mean()), error

    def of(self, chosen: npt.NDArray[np.bool_]) -> _Shares:
        """Only some of the computes."""
        return _Shares(
            self.ops[chosen],
            self.passing[chosen],
            self.busiest[chosen],
            self.excess[chosen],
            self.error[chosen],
        )


def _balanced(durations: Durations, shares: _Shares, usual: _Shares | None, sets: Ints) -> Effect:
    """Effect: clearly uneven computes vary like the other computes of their stage."""
    kind, pp = durations.graph.kind, durations.graph.pp
    uneven = _clearly_uneven(shares, usual)
    beside = shares.ops[~uneven]
    if usual is not None:
        beside = np.concatenate([usual.ops, beside])
    seconds = durations.array[shares.ops]
    balanced = np.where(uneven[:, None, None], seconds / shares.passing, seconds)
    for stage, way in np.unique([pp[shares.ops], kind[shares.ops]], axis=1).T.tolist():
        own = uneven & (pp[shares.ops] == stage) & (kind[shares.ops] == way)
        like = beside[pp[beside] == stage]
        like = like[kind[like] == way] if (kind[like] == way).any() else like
        if own.any() and len(like):
            balanced[own] = balanced_s(seconds[own], durations.array[like], sets)
    factor = np.divide(balanced, seconds, out=np.ones_like(seconds), where=seconds > 0)
    return Effect(
        scaled=tuple(
            Scaled(0, shares.ops, replica, factor[:, :, replica, None])
            for replica in range(durations.graph.n_dp)
        )
    )


def _clearly_uneven(shares: _Shares, usual: _Shares | None) -> npt.NDArray[np.bool_]:
    """[op] whether a compute is less even than usual, beyond chance. Medians ignore pauses.

    A few computes give only a rough usual level. So computes behind the exchange that fit the level
    are added to it, the most even first. Not all of them have uneven work.
    """
    uneven = np.ones(len(shares.ops), dtype=bool)
    if usual is None:
        return uneven
    every = np.concatenate([usual.busiest, shares.busiest]) - 1  # [op, step and group]
    level = np.maximum(np.median(every, axis=1), _TINY)
    variation = float(np.median(spread(every, axis=1) / level))
    error = MEDIAN_ERROR * variation / np.sqrt(every.shape[1])  # of the logarithm of a level
    members = np.log(level[: len(usual.ops)]).tolist()
    own = np.log(level[len(usual.ops) :])
    for op in np.argsort(own).tolist():
        if own[op] - np.mean(members) > CLEAR_ERRORS * error * np.sqrt(1 + 1 / len(members)):
            break
        uneven[op] = False
        members.append(float(own[op]))
    return uneven


def _uneven(durations: Durations, kind: OpKind) -> Candidate | None:
    """Unevenly shared work behind the collectives of a kind; the busiest member changes."""
    graph = durations.graph
    if graph.n_variants > 1:
        return None
    behind, beside = _computes_behind(graph, kind)
    if not len(behind):
        return None
    sets = _joined_sets(graph, kind)
    behind, beside = (_long_enough(durations, ops) for ops in (behind, beside))
    usual = _shares(durations, beside, sets) if len(beside) else None
    control, usual_error = usual.level if usual else (0.0, 0.0)
    least = max(UNEVEN, UNEVEN_TIMES * (control + UNEVEN_ERRORS * usual_error))
    every = _shares(durations, behind, sets)
    shares = every.of(every.excess - UNEVEN_ERRORS * every.error >= least)
    if not len(shares.ops):
        return None
    behind, excess = shares.ops, float(shares.excess.mean())
    cause, text = _UNEVEN_CAUSES[kind]
    worst = np.argsort(-shares.excess)[:MAX_WORST]
    return Candidate(
        cause,
        f"{text}: the busiest of a group computes {1 + excess:.2f}x the mean, not always the same",
        {"group": {"kind": kind.label}},
        {
            "busiest_over_mean": 1 + excess,
            "elsewhere": 1 + control,
            "computes": len(behind),
            "computes_beside": len(beside),
            "worst": [
                {
                    "stage": int(graph.pp[behind[i]]),
                    "kind": OpKind(int(graph.kind[behind[i]])).label,
                    "microbatch": int(graph.microbatch[behind[i]]),
                    "part": int(graph.part[behind[i]]),
                    "busiest_over_mean": 1 + float(shares.excess[i]),
                }
                for i in worst.tolist()
            ],
            "threshold": 1 + UNEVEN,
            "source": "the spread of the same computes within each group",
        },
        _balanced(durations, every, usual, sets),
    )


def _computes_behind(graph: StepGraph, kind: OpKind) -> tuple[Ints, Ints]:
    """Computes that depend on a collective of the kind, and computes that do not."""
    after = np.repeat(np.arange(graph.n_ops), np.diff(graph.dep_ptr))
    depends = np.zeros(graph.n_ops, dtype=bool)
    depends[after[graph.kind[graph.dep] == kind]] = True
    compute = np.isin(graph.kind, (int(OpKind.FORWARD_COMPUTE), int(OpKind.BACKWARD_COMPUTE)))
    return np.flatnonzero(compute & depends), np.flatnonzero(compute & ~depends)


def _joined_sets(graph: StepGraph, kind: OpKind) -> Ints:
    """[replica] number of the set of ranks that collectives of a kind join, directly or indirectly.

    Each link of a ring joins two ranks; together they form the ring.
    """
    families = np.unique(graph.family[graph.group[graph.kind == kind]])
    return joined_sets(graph.families[families])


def _long_enough(durations: Durations, ops: Ints) -> Ints:
    """Computes that are not negligibly short: instants between two launches differ at random."""
    usual = np.array([float(np.median(durations.row(op))) for op in ops.tolist()])
    chosen: Ints = ops[usual >= SHORT * usual.max(initial=0.0)]
    return chosen


def _shares(durations: Durations, ops: Ints, sets: Ints) -> _Shares:
    """Shares of the members of each set, without each member's lasting factor on its stage."""
    values, pp = durations.array[ops], durations.graph.pp[ops]  # [op, step, replica]
    mean = group_means(values, sets)
    relative = np.divide(values, mean, out=np.ones_like(values), where=mean > 0)
    passing = relative.copy()
    for stage in np.unique(pp).tolist():
        lasting = np.median(relative[pp == stage], axis=(0, 1))
        passing[pp == stage] /= np.where(lasting > 0, lasting, 1.0)
    busiest = np.concatenate(
        [passing[:, :, sets == n].max(axis=2) for n in np.unique(sets).tolist()], axis=1
    )
    n = busiest.shape[1]
    error = busiest.std(axis=1, ddof=1) / np.sqrt(n) if n > 1 else np.zeros(len(ops))
    return _Shares(ops, passing, busiest, busiest.mean(axis=1) - 1, error)
