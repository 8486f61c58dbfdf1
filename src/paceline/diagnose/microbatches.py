"""Microbatches of unequal cost: sequences of unequal length (what-if paper, 5.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline import robust
from paceline.diagnose.candidate import Candidate
from paceline.diagnose.fit import MIN_STEPS, Fit, VariantFit, fit_computes, pause_residual
from paceline.diagnose.remove import Effect
from paceline.graph import Durations

Array = npt.NDArray[np.float64]

#: Least Pearson correlation of forward and backward over microbatches (what-if paper, 5.3).
MIN_CORRELATION = 0.9

#: Least coefficient of variation of microbatches: below it their variation costs almost nothing.
MIN_VARIATION = 0.02

#: The least variation of a single replica's microbatches, which counts alone, too.
MIN_VARIATION_OF_ONE = 0.05

#: Least share of replicas that show the pattern: all of them draw from the same data.
MIN_REPLICA_SHARE = 0.5

#: Least rank correlation on these replicas. By chance, a few computes that are long in both
#: directions make a Pearson correlation of 0.9.
MIN_RANK_CORRELATION = 0.6

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

_FEW = "on one stage with {n} microbatches a step, a rank that is slow in some steps looks the same"

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
    correlations, ranked = _correlations(fit, graph.n_pp), _rank_correlations(fit, graph.n_pp)
    varied = (spread >= MIN_VARIATION) & (correlations >= MIN_CORRELATION)
    varied &= ranked.each >= MIN_RANK_CORRELATION
    if varied.mean() < MIN_REPLICA_SHARE or ranked.chance > MAX_CHANCE:
        return None
    if _between_stages(fit) < MIN_STAGE_CORRELATION:
        return None
    in_time = _between_neighbours(durations, fit)
    passing = in_time > MAX_NEIGHBOUR_SHARE * float(np.median(correlations))
    if passing and _same_in_all_steps(fit) < MIN_SORTED_SHARE:
        return None
    effect = tuple(fit.slope[:, :, None, None, None] * variant.micro for variant in fit.variants)
    cost = np.concatenate([np.exp(v.micro).ravel() for v in fit.variants])
    cv = float(cost.std() / cost.mean())
    ambiguous = _AMBIGUOUS if passing else _level_in_doubt(fit) or _few(fit, graph.n_pp)
    return Candidate(
        "sequence-length",
        f"microbatches differ in cost by {cv:.0%} (standard deviation), forward and backward "
        "alike: sequence lengths",
        {},
        {
            "coefficient_of_variation": cv,
            "correlation": float(np.median(correlations)),
            "rank_correlation": float(np.median(ranked.each)),
            "correlation_of_neighbours": in_time,
            "threshold": MIN_CORRELATION,
            "replicas_showing_it": float(varied.mean()),
            "source": "what-if paper, 5.3",
        },
        Effect(factor=effect),
        ambiguous,
        ranked.chance,
        alternative="worker" if ambiguous and not passing else "",
    )


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
    return _FEW.format(n=n) if n_pp == 1 and n < MIN_MICROBATCHES else ""


def _costs(fit: Fit, variant: VariantFit) -> Array:
    """[kind, place, microbatch, step, dp] logarithms of times by microbatches and noise."""
    costs: Array = variant.residual + fit.slope[:, :, None, None, None] * variant.micro
    return costs


def _costs_without_pauses(fit: Fit, variant: VariantFit) -> Array:
    """The costs, with NaN for paused computes: pauses would hide the common variation."""
    least = pause_residual(fit)[:, None, None, None, None]
    costs: Array = np.where(variant.residual > least, np.nan, _costs(fit, variant))
    return costs


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
        costs = _costs(fit, variant)[:, places]
        cells = costs.reshape(len(costs), -1, costs.shape[-1])
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
        costs = _costs_without_pauses(fit, variant)
        tables = (costs[:, of].mean(axis=(0, 1)) for of in (first, second))
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
        costs = _costs_without_pauses(fit, variant)
        first_op = graph.variant_ops(v).start
        for stage in range(min(graph.n_pp, 2)):
            places = np.flatnonzero(fit.stage_of_place == stage)
            ops = variant.ops[:, places]  # [kind, chunk, microbatch]
            order = np.argsort(rank[ops + first_op], axis=None)
            microbatch = np.broadcast_to(np.arange(ops.shape[2]), ops.shape).ravel()[order]
            table = costs[:, places].reshape(len(order), *costs.shape[3:])[order]
            changes = np.flatnonzero(microbatch[1:] != microbatch[:-1])
            if len(changes):
                correlations.append(_pearson(table[changes], table[changes + 1]))
            elif table.shape[1] > MIN_STEPS:  # one microbatch: use the next step
                correlations.append(_pearson(table[-1, :-1], table[0, 1:]))
    return float(np.median(np.concatenate(correlations))) if correlations else 0.0
