"""Microbatches of unequal cost: sequences of unequal length (what-if paper, 5.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline import robust, units
from paceline.diagnose.candidate import Candidate
from paceline.diagnose.fit import (
    MIN_STEPS,
    PAUSE_SHARE,
    PAUSE_SIGMAS,
    Fit,
    VariantFit,
    fit_computes,
    pause_residual,
)
from paceline.diagnose.remove import Effect
from paceline.diagnose.same_microbatches import (
    MIN_CORRELATION,
    MIN_REPLICA_SHARE,
    SameMicrobatches,
    costs,
    same_microbatches,
)
from paceline.graph import Durations

Array = npt.NDArray[np.float64]

#: Least coefficient of variation of microbatches: below it their variation costs almost nothing.
MIN_VARIATION = 0.02

#: The least variation of a single replica's microbatches, which counts alone, too.
MIN_VARIATION_OF_ONE = 0.05

#: Least rank correlation on these replicas. By chance, a few computes that are long in both
#: directions make a Pearson correlation of 0.9.
MIN_RANK_CORRELATION = 0.6

#: Ranks of the usual microbatches are noise: with one long microbatch of six, a rank correlation is
#: at most 3 * 1/6 * 5/6 = 0.42. So replicas count, too, whose long computes agree. They are long
#: by PAUSE_SIGMAS and PAUSE_SHARE, at least this many in both directions. That is this share of
#: those that are long in either.
MIN_LONG, MIN_LONG_SHARE = 3, 0.8

#: Largest chance that unrelated computes show such rank correlations.
MAX_CHANCE = 0.001

#: On one stage, a slow step of a rank looks like long microbatches if a step has fewer than this.
MIN_MICROBATCHES = 4

#: Least correlation of costs between stages: a long sequence is long on every stage.
MIN_STAGE_CORRELATION = 0.5

#: A machine that is slow for a while slows computes that follow each other. Their correlation
#: across microbatches may be at most this share of the correlation within a microbatch.
MAX_NEIGHBOUR_SHARE = 0.5

#: Sorted data makes the same microbatches long in all steps. Their number in the step then explains
#: at least this share of the variance.
MIN_SORTED_SHARE = 0.5

_AMBIGUOUS = (
    "successive operations of different microbatches vary alike in all steps, too: sequences may "
    "come sorted by length, or the machines slow down within a step"
)

_EDGE = {
    "first": "the step begins with it: work that only the beginning has, such as a warm-up of "
    "allocator or caches, looks the same",
    "last": "the step ends with it: work that only the end has looks the same",
}

_RARE = "on one stage, a rank that is slow during a microbatch looks the same"

_FEW = "on one stage with {n} a step, a rank that is slow in some steps looks the same"

_SLOW_INSTEAD = (
    "replica {dp} takes {over:+.0%} compared with the typical one; microbatches vary too much to "
    "say whether it is slow or its sequences are longer: give the lengths (--seqlens)"
)


def sequence_cause(durations: Durations, fit: Fit) -> Candidate | None:
    """Microbatches whose cost varies, forward and backward alike; None where they do not."""
    graph = durations.graph
    spread = np.concatenate([v.micro.std(axis=(0, 1)) for v in fit.variants])  # [dp], any order
    if float(np.median(spread)) < MIN_VARIATION and float(spread.max()) < MIN_VARIATION_OF_ONE:
        return None
    pattern = _Pattern.of(graph.n_pp, fit, spread)
    same = same_microbatches(graph, fit)
    lasting = same.shown.mean() >= MIN_REPLICA_SHARE
    varied = pattern.found and _between_stages(fit) >= MIN_STAGE_CORRELATION
    if not varied and not lasting:
        return None
    in_time = _between_neighbours(durations, fit)
    passing = in_time > MAX_NEIGHBOUR_SHARE * float(np.median(pattern.correlations))
    if passing and not lasting and _same_in_all_steps(fit) < MIN_SORTED_SHARE:
        return None
    # Profiles have no noise, so that they alone are taken out where noise hides the variation.
    micro = [v.micro for v in fit.variants] if varied else [p[:, None] for p in same.profiles]
    effect = tuple(fit.slope[:, :, None, None, None] * cost for cost in micro)
    cost = np.concatenate([np.exp(of_variant).ravel() for of_variant in micro])
    cv = float(cost.std() / cost.mean())
    ambiguous, alternative = _other_reading(fit, graph.n_pp, pattern, same, passing=passing)
    return Candidate(
        "sequence-length",
        _text(cv, same, len(fit.variants[0].micro[0])),
        {},
        {
            "coefficient_of_variation": cv,
            "correlation": float(np.median(pattern.correlations)),
            "rank_correlation": float(np.median(pattern.ranked.each)),
            "correlation_of_neighbours": in_time,
            "threshold": MIN_CORRELATION,
            "replicas_showing_it": float((pattern.varied if varied else same.shown).mean()),
            **_same_evidence(same),
            "source": "what-if paper, 5.3",
        },
        Effect(factor=effect),
        ambiguous,
        pattern.chance if varied else 0.0,
        alternative=alternative,
    )


@dataclass(frozen=True)
class _Pattern:
    """Forward and backward costs that agree over microbatches, wherever the long ones are.

    Attributes:
        correlations: [dp, any order] Pearson's.
        ranked: Spearman's.
        varied: [dp, any order] whether a replica shows the pattern.
        rare: whether only the few long computes show it, and not the ranks of all.
        chance: chance that unrelated computes show it.
    """

    correlations: Array
    ranked: _Ranked
    varied: npt.NDArray[np.bool_]
    rare: bool
    chance: float

    @classmethod
    def of(cls, n_pp: int, fit: Fit, spread: Array) -> _Pattern:
        """The pattern of a job; ``spread`` [dp, any order] is that of the microbatches."""
        correlations, ranked = _correlations(fit, n_pp), _rank_correlations(fit, n_pp)
        apart = (spread >= MIN_VARIATION) & (correlations >= MIN_CORRELATION)
        varied = apart & (ranked.each >= MIN_RANK_CORRELATION)
        if varied.mean() >= MIN_REPLICA_SHARE and ranked.chance <= MAX_CHANCE:
            return cls(correlations, ranked, varied, rare=False, chance=ranked.chance)
        if apart.mean() < MIN_REPLICA_SHARE:
            return cls(correlations, ranked, varied, rare=False, chance=1.0)
        agree, chance = _long_computes(fit, n_pp)
        return cls(correlations, ranked, apart & agree, rare=True, chance=chance)

    @property
    def found(self) -> bool:
        """Whether enough replicas show it, beyond chance."""
        return bool(self.varied.mean() >= MIN_REPLICA_SHARE and self.chance <= MAX_CHANCE)


def _text(cv: float, same: SameMicrobatches, n_steps: int) -> str:
    """The finding in one sentence; the long microbatches are named where they are few."""
    long = same.long
    alike = "forward and backward alike: sequence lengths"
    if not len(same.profile):
        return f"microbatches differ in cost by {cv:.0%} (standard deviation), {alike}"
    n_shown = round(same.step_share * n_steps)
    steps = f"in {n_shown} of {n_steps} steps"
    if len(long) == 1:
        times = float(np.exp(same.profile[long[0]]))
        return f"microbatch {same.numbers[long[0]]} takes {times:.1f}x the usual {steps}, {alike}"
    return (
        f"microbatches differ in cost by {cv:.0%} (standard deviation), the same ones are long "
        f"{steps}, {alike}"
    )


def _same_evidence(same: SameMicrobatches) -> dict[str, object]:
    """Evidence of costs that depend on the number; empty without them."""
    if not len(same.profile):
        return {}
    times = np.exp(same.profile)
    return {
        "microbatches": [
            {"microbatch": int(same.numbers[at]), "times": float(times[at])} for at in same.long
        ],
        "steps_showing_it": same.step_share,
    }


def _other_reading(
    fit: Fit, n_pp: int, pattern: _Pattern, same: SameMicrobatches, *, passing: bool
) -> tuple[str, str]:
    """Another explanation and the cause that it means; empty without one."""
    if passing or same.in_time:
        return _AMBIGUOUS, ""
    if same.edge:
        return _EDGE[same.edge], ""
    other = _level_in_doubt(fit)
    if not len(same.profile):
        other = other or _few(fit, n_pp)
        other = other or (_RARE if n_pp == 1 and pattern.rare else "")
    return other, "worker" if other else ""


def _level_in_doubt(fit: Fit) -> str:
    """Note on a replica that may be slow or have longer sequences; empty without one."""
    doubt = fit.level_in_doubt
    if not doubt.any():
        return ""
    dp = int(np.argmax(np.abs(doubt)))
    return _SLOW_INSTEAD.format(dp=dp, over=float(np.expm1(doubt[dp])))


def forward_backward_correlation(durations: Durations) -> float:
    """Correlation of forward and backward over microbatches (what-if paper, 5.3, Figure 11).

    The median of the replicas' Pearson correlations. Near 1, sequences differ in length.
    """
    return float(np.median(_correlations(fit_computes(durations), durations.graph.n_pp)))


def _few(fit: Fit, n_pp: int) -> str:
    """Another explanation, if a long microbatch cannot be told from a slow step."""
    n = max(len(variant.micro) for variant in fit.variants)
    if n_pp > 1 or n >= MIN_MICROBATCHES:
        return ""
    return _FEW.format(n=units.count(n, "microbatch", "microbatches"))


def _costs_without_pauses(fit: Fit, variant: VariantFit) -> Array:
    """The costs, with NaN for paused computes: pauses would hide the common variation."""
    least = pause_residual(fit)[:, None, None, None, None]
    cost: Array = np.where(variant.residual > least, np.nan, costs(fit, variant))
    return cost


def _pearson(first: Array, second: Array) -> Array:
    """[dp] correlations of two tables [..., dp] over entries that are not NaN in either."""
    x, y = (table.reshape(-1, table.shape[-1]) for table in (first, second))
    both = np.isfinite(x) & np.isfinite(y)
    n = np.maximum(both.sum(axis=0), 1)
    x, y = (np.where(both, table, 0.0) for table in (x, y))
    x, y = (np.where(both, table - table.sum(axis=0) / n, 0.0) for table in (x, y))
    norm = np.sqrt((x**2).sum(axis=0) * (y**2).sum(axis=0))
    correlation: Array = (x * y).sum(axis=0) / np.maximum(norm, 1e-300)
    return correlation


def _second_stage(fit: Fit, n_pp: int) -> npt.NDArray[np.int64]:
    """Places to correlate: of the second stage if there is one (paper, 5.3).

    With one stage of several chunks: all chunks but the first.
    """
    places = np.flatnonzero(fit.stage_of_place == min(1, n_pp - 1))
    return places[1:] if len(places) > 1 and n_pp == 1 else places


@dataclass(frozen=True)
class _Ranked:
    """Rank correlations (Spearman's) of forward and backward.

    Attributes:
        each: [dp, any order].
        chance: chance that unrelated forwards and backwards agree equally well over all replicas.
    """

    each: Array
    chance: float


def _rank_correlations(fit: Fit, n_pp: int) -> _Ranked:
    """Rank correlations of all computes, including paused ones: rare values hardly change ranks."""
    places = _second_stage(fit, n_pp)
    correlations, freedom, orders = [], 0, 0.0
    for variant in fit.variants:
        cost = costs(fit, variant)[:, places]
        cells = cost.reshape(len(cost), -1, cost.shape[-1])
        rank = np.argsort(np.argsort(cells, axis=1, kind="stable"), axis=1, kind="stable")
        correlations.append(_pearson(*rank.astype(np.float64)))
        freedom += (cells.shape[1] - 1) * cells.shape[2]
        orders += math.lgamma(cells.shape[1] + 1) * cells.shape[2]
    each = np.concatenate(correlations)
    mean = float(each.mean())
    t = mean * math.sqrt(max(freedom - 1, 0) / max(1 - mean**2, 1e-12))
    # n computes have n! orders, and only one agrees entirely.
    chance = max(float(robust.student_chance(np.array(t), freedom)), math.exp(-orders))
    return _Ranked(each, chance)


def _long_computes(fit: Fit, n_pp: int) -> tuple[npt.NDArray[np.bool_], float]:
    """[dp, any order] whether the same microbatches are long in both directions, and the chance.

    Costs are compared with the other microbatches of the step, so that a slow step is none. The
    second value is a bound on the chance that unrelated computes agree as often.
    """
    places = _second_stage(fit, n_pp)
    agree, n, totals = [], 0, np.zeros(3)
    for variant in fit.variants:
        cost = costs(fit, variant)[:, places]
        beside = cost - np.median(cost, axis=2, keepdims=True)
        flat = beside.reshape(len(beside), -1, beside.shape[-1])  # [kind, compute, dp]
        bar = np.maximum(PAUSE_SIGMAS * robust.spread(flat, axis=1), math.log1p(PAUSE_SHARE))
        forward, backward = flat > bar[:, None]
        both = (forward & backward).sum(axis=0)
        either = (forward | backward).sum(axis=0)
        agree.append((both >= MIN_LONG) & (both >= MIN_LONG_SHARE * either))
        n += forward.size
        totals += [forward.sum(), backward.sum(), both.sum()]
    if not totals[2]:
        return np.concatenate(agree), 1.0
    chance = robust.chance_of_count(int(totals[2]), int(totals[1]), float(totals[0]) / n)
    return np.concatenate(agree), chance


def _correlations(fit: Fit, n_pp: int) -> Array:
    """[dp, any order] Pearson correlation of forward and backward over a replica's microbatches."""
    places = _second_stage(fit, n_pp)
    correlations = []
    for variant in fit.variants:
        forward, backward = _costs_without_pauses(fit, variant)[:, places]
        correlations.append(_pearson(forward, backward))
    return np.concatenate(correlations)


def _between_stages(fit: Fit) -> float:
    """The typical replica's correlation of microbatch costs on two stages."""
    first = fit.stage_of_place == 0
    if first.all():
        return 1.0
    second = fit.stage_of_place == 1
    correlations = []
    for variant in fit.variants:
        cost = _costs_without_pauses(fit, variant)
        tables = (cost[:, of].mean(axis=(0, 1)) for of in (first, second))
        correlations.append(_pearson(*tables))
    return float(np.median(np.concatenate(correlations)))


def _same_in_all_steps(fit: Fit) -> float:
    """Share of the variance of microbatch costs that the microbatch's number in the step explains.

    0 for a single step.
    """
    shares = []
    for variant in fit.variants:
        cost = variant.micro  # [microbatch, step, dp]
        by_number = cost.mean(axis=(1, 2))
        n_steps = cost.shape[1]
        shares.append(float(by_number.var() / max(cost.var(), 1e-300)) if n_steps > 1 else 0.0)
    return max(shares)


def _between_neighbours(durations: Durations, fit: Fit) -> float:
    """The correlation of successive computes that serve different microbatches.

    With one microbatch per step, computes of successive steps are used. The median over workers; 0
    without such computes.
    """
    graph = durations.graph
    rank = np.empty(graph.n_ops, dtype=np.int64)
    rank[graph.order] = np.arange(graph.n_ops)
    correlations = []
    for v, variant in enumerate(fit.variants):
        cost = _costs_without_pauses(fit, variant)
        first_op = graph.variant_ops(v).start
        for stage in range(min(graph.n_pp, 2)):
            places = np.flatnonzero(fit.stage_of_place == stage)
            ops = variant.ops[:, places]  # [kind, chunk, microbatch]
            order = np.argsort(rank[ops + first_op], axis=None)
            microbatch = np.broadcast_to(np.arange(ops.shape[2]), ops.shape).ravel()[order]
            table = cost[:, places].reshape(len(order), *cost.shape[3:])[order]
            changes = np.flatnonzero(microbatch[1:] != microbatch[:-1])
            if len(changes):
                correlations.append(_pearson(table[changes], table[changes + 1]))
            elif table.shape[1] > MIN_STEPS:  # one microbatch: use the next step
                correlations.append(_pearson(table[-1, :-1], table[0, 1:]))
    return float(np.median(np.concatenate(correlations))) if correlations else 0.0
