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

#: Pearson correlation of forward and backward over microbatches (what-if paper, 5.3).
MIN_CORRELATION = 0.9

#: Microbatches that vary less than this (coefficient of variation) cost next to nothing.
MIN_VARIATION = 0.02

#: ... unless one replica's vary by this much.
MIN_VARIATION_OF_ONE = 0.05

#: This share of the replicas must show the pattern: data is dealt out to all of them.
MIN_REPLICA_SHARE = 0.5

#: ... and of their ranks on those replicas: a few computes that are long both ways by chance make a
#: Pearson correlation of 0.9.
MIN_RANK_CORRELATION = 0.6

#: ... and chance shows such ranks in at most one job of this many.
MAX_CHANCE = 0.001

#: On one stage, a step of fewer microbatches shows no other ones of the same worker beside them.
MIN_MICROBATCHES = 4

#: A long sequence is long on every stage: below this correlation stages do not agree.
MIN_STAGE_CORRELATION = 0.5

#: A machine that is slow for a while slows neighbours in time alike. Above this share of the
#: correlation within a microbatch, those of different microbatches say so.
MAX_NEIGHBOUR_SHARE = 0.5

#: ... unless data comes sorted by length: then the same microbatches are long in all steps, which
#: explains this share of the variance at least.
MIN_SORTED_SHARE = 0.5

_AMBIGUOUS = (
    "operations that follow each other vary alike, too, whichever microbatch they serve, and so in "
    "all steps: sequences come sorted by length, or the machines slow down within a step"
)

_FEW = "on one stage with {n} microbatches a step, a rank that is slow in some steps looks alike"

_SLOW_INSTEAD = (
    "replica {dp} takes {over:+.0%} beside the typical one, and microbatches vary too much to say "
    "whether it is slow or its sequences are longer; give the lengths (--seqlens)"
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
    """The replica of which it is unsure whether it is slow; empty where there is none."""
    doubt = fit.level_in_doubt
    if not doubt.any():
        return ""
    dp = int(np.argmax(np.abs(doubt)))
    return _SLOW_INSTEAD.format(dp=dp, over=float(np.expm1(doubt[dp])))


def forward_backward_correlation(durations: Durations) -> float:
    """How alike forward and backward vary over microbatches (what-if paper, 5.3, Figure 11).

    The median of the replicas' Pearson correlations; near 1 says that sequences differ in length.
    """
    return float(np.median(_correlations(fit_computes(durations), durations.graph.n_pp)))


def _few(fit: Fit, n_pp: int) -> str:
    """Other explanations where nothing tells a microbatch from its step."""
    n = max(len(variant.micro) for variant in fit.variants)
    return _FEW.format(n=n) if n_pp == 1 and n < MIN_MICROBATCHES else ""


def _costs(fit: Fit, variant: VariantFit) -> Array:
    """[kind, place, microbatch, step, dp] logarithms of what microbatches and noise make."""
    costs: Array = variant.residual + fit.slope[:, :, None, None, None] * variant.micro
    return costs


def _costs_without_pauses(fit: Fit, variant: VariantFit) -> Array:
    """The same; NaN where one pauses, which would hide what forward and backward have in common."""
    least = pause_residual(fit)[:, None, None, None, None]
    costs: Array = np.where(variant.residual > least, np.nan, _costs(fit, variant))
    return costs


def _pearson(first: Array, second: Array) -> Array:
    """[dp] correlations of two tables [..., dp], where neither is NaN."""
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

    Of one stage that has several chunks all but the first.
    """
    places = np.flatnonzero(fit.stage_of_place == min(1, n_pp - 1))
    return places[1:] if len(places) > 1 and n_pp == 1 else places


@dataclass(frozen=True)
class _Ranked:
    """Rank correlations (Spearman's) of forward and backward.

    Attributes:
        each: [dp, any order].
        chance: that unrelated forwards and backwards agree as well over all replicas.
    """

    each: Array
    chance: float


def _rank_correlations(fit: Fit, n_pp: int) -> _Ranked:
    """Of all computes, paused ones too: rare values do not decide."""
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
    # Of n computes there are n! orders, one of which agrees entirely.
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
    """The correlation of the microbatches' costs on two stages, of the typical replica."""
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
    """Share of the variance of microbatches' costs that goes with their number in the step.

    Of one step it says nothing: 0.
    """
    shares = []
    for variant in fit.variants:
        cost = variant.micro  # [microbatch, step, dp]
        by_number = cost.mean(axis=(1, 2))
        n_steps = cost.shape[1]
        shares.append(float(by_number.var() / max(cost.var(), 1e-300)) if n_steps > 1 else 0.0)
    return max(shares)


def _between_neighbours(durations: Durations, fit: Fit) -> float:
    """The correlation of computes that follow each other but serve different microbatches.

    Where a step has one, those of neighbouring steps. Of the typical worker; 0 where none do.
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
            elif table.shape[1] > MIN_STEPS:  # one microbatch: that of the next step
                correlations.append(_pearson(table[-1, :-1], table[0, 1:]))
    return float(np.median(np.concatenate(correlations))) if correlations else 0.0
