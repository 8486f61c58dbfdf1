"""Take compute durations apart: kind x place x worker x microbatch x residual, plus pauses.

The fit uses logarithms and medians, so one slow worker, a few pauses or a long sequence do not
distort the other factors.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from paceline import robust
from paceline.diagnose.levels import (
    REPLICAS,
    counts,
    from_the_fast,
    levels,
    lower_median,
    places_and_levels,
    use_fast_workers,
)
from paceline.graph import Durations, StepGraph
from paceline.graph.computes import KINDS, computes_of, whole_passes

Array = npt.NDArray[np.float64]

#: A whole replica counts as slower only if its level exceeds both: LEVEL_ERRORS standard errors and
#: MIN_LEVEL. Otherwise its microbatches explain the difference.
LEVEL_ERRORS, MIN_LEVEL = 4.0, 0.02

#: The mean of a replica's costs shows at least this share of its level, and exceeds these standard
#: errors. Medians of microbatches of two sizes lie on either size by chance.
CONFIRMED, MEAN_ERRORS = 0.5, 3.0

#: From this many standard errors on, a level below LEVEL_ERRORS is in doubt: replica or
#: microbatches.
DOUBT_ERRORS = 2.0

#: A compute is paused if it exceeds its fit by all three: robust standard deviations of the
#: residual, share, seconds. (Garbage collections take tens to hundreds of ms: what-if paper, 5.4.)
PAUSE_SIGMAS, PAUSE_SHARE, PAUSE_S = 6.0, 0.15, 0.010

#: Microbatches are unlike in all steps from this many standard errors of their medians on.
UNLIKE_ERRORS = 6.0

#: Replicas agree on the differences up to this share of the largest.
MAX_DISAGREEMENT = 0.5

#: With fewer replicas, the others do not show which steps are long for all.
MIN_REPLICAS = 4

#: With fewer steps, the standard error of a worker's factor comes from its microbatches.
MIN_STEPS = 4

#: Below this difference of microbatches (90% quantile of the logarithm) no slope is fitted.
MIN_SPREAD = 0.05

_TINY_S = 1e-9  # durations of 0 have no logarithm


@dataclass(frozen=True)
class VariantFit:
    """Factors of the replicas of one structure.

    Attributes:
        ops: [kind, place, microbatch] compute ops, counted from the variant's first.
        micro: [microbatch, step, dp] logarithm of a microbatch's cost, the same for all stages and
            both directions.
        residual: [kind, place, microbatch, step, dp] logarithm of the part that the factors do not
            explain.
    """

    ops: npt.NDArray[np.int64]
    micro: Array
    residual: Array


@dataclass(frozen=True)
class Fit:
    """Factors of all computes of a job; logarithms, 0 = typical.

    Attributes:
        place: [kind, place] typical time of a (stage, chunk); a place is stage * chunks + chunk.
        slope: [kind, place] how strongly a microbatch's cost shows in the place. A loss layer
            dilutes it, for its cost depends on the tokens only. The slope is 1 where microbatches
            hardly differ.
        stage_of_place: [place].
        level: [dp] level of a whole replica, 0 where its microbatches may explain it.
        level_seen: [dp] the measured level, before that decision.
        level_error: [dp] its standard error.
        worker: [kind, stage, dp] factor of a worker beside its replica's level.
        worker_error: [stage, dp] standard error of worker and replica together, from their
            differences between steps. With few steps it comes from the differences between
            microbatches.
        mostly_slow: stages where most workers are slow and the few fast ones agree with the other
            stages. ``REPLICAS`` among them: most replicas are slower than a few.
        variants: microbatch factors and residuals, per replica structure.
        sigma: [kind] robust standard deviation of the residuals.
    """

    place: Array
    slope: Array
    stage_of_place: npt.NDArray[np.int64]
    level: Array
    level_seen: Array
    level_error: Array
    worker: Array
    worker_error: Array
    mostly_slow: frozenset[int]
    variants: tuple[VariantFit, ...]
    sigma: Array

    @property
    def worker_total(self) -> Array:
        """[kind, stage, dp] worker and replica together."""
        return self.worker + self.level

    @property
    def level_in_doubt(self) -> Array:
        """[dp] levels that the replica or its microbatches explain; 0 where there is no doubt."""
        least = np.maximum(MIN_LEVEL, DOUBT_ERRORS * self.level_error)
        in_doubt = (self.level == 0) & (np.abs(self.level_seen) >= least)
        doubt: Array = np.where(in_doubt, self.level_seen, 0.0)
        return doubt


_FITTED: WeakKeyDictionary[Durations, Fit] = WeakKeyDictionary()


def fit_computes(durations: Durations) -> Fit:
    """The factors of all forward and backward computes; fitted once per durations."""
    if durations not in _FITTED:
        _FITTED[durations] = _fit(durations)
    return _FITTED[durations]


def _fit(measured: Durations) -> Fit:
    graph, passes = measured.graph, whole_passes(measured)
    computes = computes_of(graph)
    ops, stage_of_place = computes.ops, computes.stage
    logs = [np.log(np.maximum(passes.of(v, ops[v]), _TINY_S)) for v in range(graph.n_variants)]
    by_replica = np.empty((*ops[0].shape[:2], graph.n_dp))
    for log, dps in zip(logs, graph.variant_dps, strict=True):
        by_replica[..., dps] = np.median(_alike(log), axis=(2, 3))
    place, level_seen = places_and_levels(by_replica, stage_of_place)
    mostly_slow = use_fast_workers(place, by_replica - level_seen, stage_of_place)
    for log in logs:
        log -= place[:, :, None, None, None]
    table = _Table(graph, logs, stage_of_place, counts(place, stage_of_place), mostly_slow)
    nothing = np.zeros((len(KINDS), graph.n_pp, graph.n_dp))
    apart = _take_apart(table, nothing, level_seen)
    slow = np.abs(apart.worker.mean(axis=0)) >= np.maximum(MIN_LEVEL, LEVEL_ERRORS * apart.error)
    if slow.any() and len(stage_of_place) > 1:
        # A slow worker raises its replica's median over few places. The replica's other workers
        # then seem slow, too.
        known = np.where(slow, apart.worker, 0.0)
        level_seen = levels(by_replica - known[:, stage_of_place], place, stage_of_place)
        apart = _take_apart(table, known, level_seen)
    mostly_slow += [REPLICAS] if (apart.level > 0).mean() > 0.5 else []
    for v, dps in enumerate(graph.variant_dps):
        of_worker = apart.worker[:, stage_of_place][:, :, dps]
        apart.residual[v][:] -= of_worker[:, :, None, None, :]
    sigma = _sigma(apart.residual)
    variants = tuple(
        VariantFit(o, m, r) for o, m, r in zip(ops, apart.micro, apart.residual, strict=True)
    )
    error = np.maximum(apart.error, _noise_of_median(graph, apart.residual, sigma))
    error = np.hypot(error, np.where(apart.level == 0, 0.0, apart.level_error))
    return Fit(
        *(place, apart.slope, stage_of_place, apart.level, level_seen, apart.level_error),
        *(apart.worker, error, frozenset(mostly_slow), variants, sigma),
    )


def _alike(values: Array) -> Array:
    """[..., microbatch, step, dp] values less the usual difference of their microbatches.

    If microbatches differ as 1 and 3, the median of all values lies at random between the two. A
    difference that chance may explain stays: lengths vary from step to step. So does one on which
    the replicas disagree: their batches differ.
    """
    n_steps, n_dp = values.shape[-2:]
    of_replicas = np.median(values, axis=-2, keepdims=True)
    usual = np.median(of_replicas, axis=-1, keepdims=True)
    differences = usual - np.median(usual, axis=-3, keepdims=True)
    noise = float(robust.spread(values - of_replicas))
    error = robust.MEDIAN_ERROR * noise / np.sqrt(n_steps * n_dp)
    largest = float(np.abs(differences).max())
    if n_steps < MIN_STEPS or largest < UNLIKE_ERRORS * error:
        return values
    own = of_replicas - np.median(of_replicas, axis=-3, keepdims=True)
    if float(np.abs(own - differences).max()) > MAX_DISAGREEMENT * largest:
        return values
    alike: Array = values - differences
    return alike


@dataclass(frozen=True)
class _Table:
    """Per variant: logarithms of seconds, minus the logarithm of the typical op at the place.

    ``counted`` [kind, place]: computes that are long enough to show levels.
    """

    graph: StepGraph
    logs: list[Array]
    stage_of_place: npt.NDArray[np.int64]
    counted: npt.NDArray[np.bool_]
    mostly_slow: list[int]

    def shown(self, log: Array) -> Array:
        """[op, microbatch, step, dp] of the computes that count."""
        if self.counted.all():
            return log.reshape(-1, *log.shape[2:])
        shown: Array = log[self.counted]
        return shown


@dataclass(frozen=True)
class _Apart:
    """Factors of a table, as in :class:`Fit`; ``error`` excludes the error of levels."""

    level: Array
    level_error: Array
    micro: list[Array]
    slope: Array
    worker: Array
    error: Array
    residual: list[Array]


def _take_apart(table: _Table, slow: Array, level_seen: Array) -> _Apart:
    """Fit replicas, microbatches, then workers; ``slow`` [kind, stage, dp] is known slowness."""
    graph, stage_of_place = table.graph, table.stage_of_place
    cleared = table.logs
    if slow.any():
        cleared = [
            log - slow[:, stage_of_place][:, :, dps][:, :, None, None, :]
            for log, dps in zip(table.logs, graph.variant_dps, strict=True)
        ]
    micro = [lower_median(table.shown(log)) for log in cleared]
    level, level_error = _levels(graph, micro, level_seen)
    if table.counted.sum() == 1:
        # With one long compute per microbatch, a costly microbatch looks like a pause.
        micro = [
            np.broadcast_to(level_seen[d], m.shape).copy()
            for m, d in zip(micro, graph.variant_dps, strict=True)
        ]
    for v, dps in enumerate(graph.variant_dps):
        micro[v] -= level[dps]
    slope = np.ones(table.counted.shape)
    if slope.size > len(KINDS):  # of two computes, the cost is the smaller, which shows no slope
        over = [c - level[d] for c, d in zip(cleared, graph.variant_dps, strict=True)]
        slope = _slopes(over, micro)
    residual = [
        log - level[dps] - slope[:, :, None, None, None] * cost
        for log, cost, dps in zip(table.logs, micro, graph.variant_dps, strict=True)
    ]
    mostly_slow = table.mostly_slow + ([REPLICAS] if (level > 0).mean() > 0.5 else [])
    worker, error = _workers(graph, residual, level, stage_of_place, mostly_slow)
    return _Apart(level, level_error, micro, slope, worker, error, residual)


def _sigma(residual: list[Array]) -> Array:
    """[kind] robust standard deviation of the residuals.

    The median of each microbatch's computes has a residual of 0, which is left out.
    """
    n = residual[0].shape[0] * residual[0].shape[1]
    sizes = [np.abs(of_variant) for of_variant in residual]
    if n == len(KINDS):  # the difference of the two
        apart = np.median(np.concatenate([size.sum(axis=0).ravel() for size in sizes]))
        return np.full(len(KINDS), robust.SIGMA_OF_MAD * apart)
    middle = 0.5 + 0.5 / n
    of_kinds = [np.concatenate([size[k].ravel() for size in sizes]) for k in range(len(KINDS))]
    return robust.SIGMA_OF_MAD * np.array([np.quantile(values, middle) for values in of_kinds])


def _noise_of_median(graph: StepGraph, residual: list[Array], sigma: Array) -> Array:
    """[stage, dp] standard error of a worker's median from the noise of computes alone."""
    error = np.zeros((graph.n_pp, graph.n_dp))
    for of_variant, dps in zip(residual, graph.variant_dps, strict=True):
        n = of_variant[0, :, :, :, 0].size // graph.n_pp  # of a kind on a stage
        error[:, dps] = robust.MEDIAN_ERROR * np.hypot(*sigma) / len(KINDS) / np.sqrt(n)
    return error


def _levels(graph: StepGraph, micro: list[Array], level_seen: Array) -> tuple[Array, Array]:
    """[dp] levels of replicas where they exceed the noise of their microbatches, and their errors.

    The costs in ``micro`` are shifted to the levels ``level_seen``. Their own level is the lower
    median of few noisy places and too high if one of them is slow.
    """
    error, by_mean, mean_error = np.zeros((3, graph.n_dp))
    for cost, dps in zip(micro, graph.variant_dps, strict=True):
        cost += level_seen[dps] - np.median(_alike(cost), axis=(0, 1))
        by_mean[dps] = cost.mean(axis=(0, 1))
        if len(dps) > 1:
            beside = cost - (cost.sum(axis=-1, keepdims=True) - cost) / (len(dps) - 1)
            mean_error[dps] = beside.std(axis=(0, 1)) / np.sqrt(cost[..., 0].size)
        error[dps] = _level_error(cost)
        if len(dps) >= MIN_REPLICAS:
            error[dps] = np.minimum(error[dps], _level_error(cost - _of_others(cost)))
    level = from_the_fast(level_seen, error)
    stands_out = np.abs(level) >= np.maximum(MIN_LEVEL, LEVEL_ERRORS * error)
    usual = np.abs(level) <= np.abs(level).min() + MIN_LEVEL
    by_mean -= np.median(by_mean[usual])
    least = np.maximum(CONFIRMED * np.abs(level), MEAN_ERRORS * mean_error)
    stands_out &= by_mean * np.sign(level) >= least
    return np.where(stands_out, level, 0.0), error


def _level_error(cost: Array) -> Array:
    """[dp] standard error of the medians of [microbatch, step, dp] costs."""
    cost = _alike(cost)
    flat = cost.reshape(-1, cost.shape[-1])
    by_step = np.median(cost, axis=0)  # [step, dp]
    # All replicas draw microbatches from the same data. A replica whose few microbatches are alike
    # by chance has no smaller error than the others.
    of_all = robust.wide_spread(flat - np.median(flat, axis=0))
    pooled_error = robust.MEDIAN_ERROR * of_all / np.sqrt(len(flat))
    own_error = np.maximum(robust.median_error(flat), robust.error_over_time(by_step))
    larger: Array = np.maximum(pooled_error, own_error)
    return larger


def _of_others(cost: Array) -> Array:
    """[microbatch, step, dp] the median of the other replicas, which a long step slows together.

    The median of all replicas would vary with the replica itself.
    """
    in_order = np.sort(cost, axis=-1)
    rank = np.argsort(np.argsort(cost, axis=-1), axis=-1)
    n_others = cost.shape[-1] - 1

    def of_rank(wanted: int) -> Array:  # among the others: those behind a replica move up
        chosen: Array = np.take_along_axis(in_order, wanted + (rank <= wanted), axis=-1)
        return chosen

    median: Array = 0.5 * (of_rank((n_others - 1) // 2) + of_rank(n_others // 2))
    return median


def _slopes(logs: list[Array], micro: list[Array]) -> Array:
    """[kind, place] slope of the logarithms of times over the logarithms of microbatches' costs."""
    cost = np.concatenate([of_variant.ravel() for of_variant in micro])
    spread = float(np.quantile(np.abs(cost), 0.9))
    slope = np.ones(logs[0].shape[:2])
    if spread < MIN_SPREAD:
        return slope
    for k, p in np.ndindex(*slope.shape):
        values = np.concatenate([log[k, p].ravel() for log in logs])
        # Slow and paused computes lie outside; the rest is symmetric about the line.
        far = np.abs(values - cost)
        inside = (far <= 3 * np.median(far)) & (np.abs(cost) <= 3 * spread)
        slope[k, p] = (values[inside] @ cost[inside]) / max(cost[inside] @ cost[inside], 1e-12)
    slope[(slope < 0.3) | (slope > 3)] = 1.0
    return slope


def _workers(
    graph: StepGraph,
    residual: list[Array],
    level: Array,
    stage_of_place: npt.NDArray[np.int64],
    mostly_slow: Collection[int],
) -> tuple[Array, Array]:
    """[kind, stage, dp] median of the worker's ops beside its stage's typical worker.

    Of two workers the typical one is the faster of each kind, with its replica's ``level`` [dp]. A
    replica that is slow in its forwards alone has a level above its backwards.

    The second value is its standard error [stage, dp].
    """
    worker = np.zeros((len(KINDS), graph.n_pp, graph.n_dp))
    error = np.zeros((graph.n_pp, graph.n_dp))
    for of_variant, dps in zip(residual, graph.variant_dps, strict=True):
        for stage in range(graph.n_pp):
            of_stage = of_variant[:, stage_of_place == stage]  # [kind, chunk, microbatch, step, dp]
            flat = of_stage.reshape(len(KINDS), -1, len(dps))
            worker[:, stage, dps] = np.median(_alike(of_stage), axis=(1, 2, 3))
            by_step = of_stage.reshape(-1, *of_stage.shape[-2:])
            error[stage, dps] = robust.error_over_time(np.median(by_step, axis=0))
            if by_step.shape[1] < MIN_STEPS:
                deviation = flat - worker[:, stage, dps][:, None]
                pooled_error = robust.median_error(np.concatenate(list(deviation)))
                error[stage, dps] = np.maximum(error[stage, dps], pooled_error)
    if graph.n_dp == 2:  # the faster of two is the only peer of the slower, in all kinds
        total = worker + level
        faster = total.mean(axis=0).argmin(axis=1)  # [stage]
        usual = np.take_along_axis(total, faster[None, :, None], axis=2)[..., 0]
    else:
        usual = lower_median(np.moveaxis(worker, 2, 0))
    usual[:, [stage for stage in mostly_slow if stage != REPLICAS]] = 0.0
    worker -= usual[:, :, None]
    return worker, error


def pause_residual(fit: Fit) -> Array:
    """[kind] residual (logarithm) above which a compute is paused."""
    return np.maximum(PAUSE_SIGMAS * fit.sigma, np.log1p(PAUSE_SHARE))


def pauses(durations: Durations, fit: Fit, kind: int, least: float | None = None) -> list[Array]:
    """Per variant [place, microbatch, step, dp] seconds of pauses; 0 where there is none.

    Args:
        durations: as measured.
        fit: of these durations.
        kind: index into ``KINDS``: 0 forward, 1 backward.
        least: residual (logarithm) above which a compute is paused; None: the kind's threshold.
    """
    least = float(pause_residual(fit)[kind]) if least is None else least
    passes = whole_passes(durations)
    tables = []
    for v, variant in enumerate(fit.variants):
        residual = variant.residual[kind]
        excess = np.zeros(residual.shape)
        at = np.nonzero(residual > least)
        rows = passes.row[v][variant.ops[kind][at[0], at[1]]]
        duration_s = passes.blocks[v][rows, at[2], at[3]]
        seconds = duration_s * -np.expm1(-residual[at])
        excess[at] = np.where(seconds > PAUSE_S, seconds, 0.0)
        tables.append(excess)
    return tables
