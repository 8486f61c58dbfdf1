"""Microbatches that differ in all steps alike, by their number: of data sorted by length, say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline import robust
from paceline.diagnose.fit import (
    MAX_DISAGREEMENT,
    MIN_SPREAD,
    MIN_STEPS,
    UNLIKE_ERRORS,
    Fit,
    VariantFit,
)
from paceline.diagnose.levels import counts, lower_median
from paceline.graph import StepGraph

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Least share of replicas that show a pattern: all of them draw from the same data.
MIN_REPLICA_SHARE = 0.5

#: Every kind and stage shows the replica's profile from this Pearson correlation on. What-if paper,
#: 5.3, demands it of forwards and backwards.
MIN_CORRELATION = 0.9

#: Every kind and stage shows at least this share of the profile. A loss layer, whose cost depends
#: on the tokens only, dilutes it. The fit believes no smaller slope either.
MIN_SLOPE = 0.3

#: Least share of the steps that show half of the profile. Long microbatches at random places are at
#: the same place in some steps.
MIN_STEP_SHARE = 0.8

#: A microbatch is one of the long ones if it shows this share of the longest one's excess.
LONG_SHARE = 0.5

#: A microbatch is a usual one if it deviates by at most this share of the longest one's excess.
USUAL_SHARE = 0.25

#: Least rank correlation of costs and numbers of microbatches that are sorted.
SORTED_RANKS = 0.9

#: Time in the step explains a profile as well as the number does if it leaves at most this many
#: times the variance, or OPEN_VARIANCE of it.
OPEN_TIMES, OPEN_VARIANCE = 2.0, 0.02


@dataclass(frozen=True)
class SameMicrobatches:
    """Costs by the microbatch's number in the step.

    Attributes:
        shown: [dp, any order] whether all stages of a replica show its profile in both directions.
        profiles: per variant [microbatch, dp] logarithm of the cost beside the usual microbatch's;
            0 for replicas that do not show it.
        numbers: [microbatch] numbers of the microbatches of ``profile``.
        profile: [microbatch] the typical profile of the replicas that show one; empty where they
            are few, disagree or have unlike numbers of microbatches.
        step_share: share of the steps that show at least half of the profile.
        edge: ``first`` or ``last`` if only microbatches at this end of the step are long, the outer
            ones the most, on half of the replicas that show a profile; otherwise empty.
        in_time: whether the time in the step explains the profile as well as the number does.
    """

    shown: Mask
    profiles: tuple[Array, ...]
    numbers: npt.NDArray[np.int64]
    profile: Array
    step_share: float
    edge: str
    in_time: bool

    @property
    def long(self) -> npt.NDArray[np.int64]:
        """Indices of the long microbatches; all shorter ones are usual."""
        top = float(self.profile.max(initial=0.0))
        chosen: npt.NDArray[np.int64] = np.flatnonzero(self.profile >= LONG_SHARE * max(top, 1e-9))
        return chosen


def costs(fit: Fit, variant: VariantFit) -> Array:
    """[kind, place, microbatch, step, dp] logarithms of times by microbatches and noise."""
    table: Array = variant.residual + fit.slope[:, :, None, None, None] * variant.micro
    return table


def same_microbatches(graph: StepGraph, fit: Fit) -> SameMicrobatches:
    """The profiles of all replicas over their microbatches.

    Args:
        graph: the step.
        fit: of the job's durations.
    """
    found = [_of_variant(fit, variant) for variant in fit.variants]
    shown = np.concatenate([one.shown for one in found])
    profiles = tuple(np.where(one.shown, one.profile, 0.0) for one in found)
    nothing = np.empty(0)
    if not shown.any():
        no_numbers = np.empty(0, dtype=np.int64)
        return SameMicrobatches(shown, profiles, no_numbers, nothing, 0.0, "", in_time=False)
    largest = int(np.argmax([one.shown.sum() for one in found]))
    one, variant = found[largest], fit.variants[largest]
    ops = graph.variant_ops(largest).start + variant.ops[0, 0]
    numbers = graph.microbatch[ops].astype(np.int64)
    of_replicas = one.profile[:, one.shown]
    profile = np.median(of_replicas, axis=1)
    apart = float(np.abs(of_replicas - profile[:, None]).max())
    agreed = shown.sum() == one.shown.sum() and shown.mean() >= MIN_REPLICA_SHARE
    agreed &= apart <= MAX_DISAGREEMENT * float(np.abs(profile).max())
    edges = [_edge(own) for of in found for own in of.profile[:, of.shown].T]
    table = np.median(one.table[..., one.shown], axis=3)
    return SameMicrobatches(
        *(shown, profiles, numbers, profile if agreed else nothing),
        float((one.step_slope[:, one.shown] >= LONG_SHARE).mean()),
        next((e for e in ("first", "last") if 2 * edges.count(e) >= len(edges)), ""),
        _in_time(graph, fit, largest, table),
    )


def _edge(profile: Array) -> str:
    """The end of the step at which alone a replica's microbatches are long; mostly empty."""
    for name, cost in (("first", profile), ("last", profile[::-1])):
        if np.argmax(cost) > 0:
            continue
        unusual = np.flatnonzero(np.abs(cost) > USUAL_SHARE * cost[0])
        few = 2 * len(unusual) <= len(cost) and unusual[-1] == len(unusual) - 1
        if few and (np.diff(cost[unusual]) <= 0).all():
            return name
    return ""


@dataclass(frozen=True)
class _Profile:
    """Profiles of a variant's replicas.

    Attributes:
        shown: [dp].
        profile: [microbatch, dp] beside the usual microbatch.
        step_slope: [step, dp] how much of the profile a step shows.
        table: [kind, place, microbatch, dp] medians over the steps.
    """

    shown: Mask
    profile: Array
    step_slope: Array
    table: Array


def _of_variant(fit: Fit, variant: VariantFit) -> _Profile:
    _, _, n_microbatches, n_steps, n_dp = variant.residual.shape
    if n_steps < MIN_STEPS or n_microbatches < 2:
        none = np.zeros(n_dp, dtype=bool)
        return _Profile(none, np.zeros((n_microbatches, n_dp)), np.empty(0), np.empty(0))
    cost = costs(fit, variant)
    beside = cost - np.median(cost, axis=2, keepdims=True)  # a long step is long for all
    table = np.median(beside, axis=3)
    noise = robust.spread(beside - table[:, :, :, None], axis=(2, 3))  # [kind, place, dp]
    error = robust.MEDIAN_ERROR * noise / np.sqrt(n_steps)
    counted = counts(fit.place, fit.stage_of_place)
    profile = np.median(table[counted], axis=0)  # [microbatch, dp]
    profile -= lower_median(profile)
    shape = profile - profile.mean(axis=0)
    square = np.maximum((shape**2).sum(axis=0), 1e-300)
    shown = np.abs(profile).max(axis=0) >= MIN_SPREAD
    for kind, stage in np.ndindex(len(counted), int(fit.stage_of_place[-1]) + 1):
        here = counted[kind] & (fit.stage_of_place == stage)
        if here.any():
            own = table[kind, here].mean(axis=0)
            own_error = np.sqrt((error[kind, here] ** 2).sum(axis=0)) / here.sum()
            shown &= _shows(own - own.mean(axis=0), shape, square, own_error)
    by_step = beside[counted].mean(axis=0)  # [microbatch, step, dp]
    by_step = by_step - by_step.mean(axis=0)
    step_slope = (by_step * shape[:, None]).sum(axis=0) / square
    shown &= (step_slope >= LONG_SHARE).mean(axis=0) >= MIN_STEP_SHARE
    return _Profile(shown, profile, step_slope, table)


def _shows(own: Array, shape: Array, square: Array, error: Array) -> Mask:
    """[dp] whether the computes of one kind and stage, [microbatch, dp], show the profile."""
    product = (own * shape).sum(axis=0)
    correlation = product / np.maximum(np.sqrt((own**2).sum(axis=0) * square), 1e-300)
    clear = product / np.sqrt(square) >= UNLIKE_ERRORS * error
    shown: Mask = (correlation >= MIN_CORRELATION) & (product >= MIN_SLOPE * square) & clear
    return shown


def _in_time(graph: StepGraph, fit: Fit, v: int, table: Array) -> bool:
    """Whether the time in the step explains sorted microbatches as well as their number does.

    Under 1F1B, the first forwards of a stage follow each other and the later ones do not. So its
    forwards and backwards would differ if the machine became slower within the step.

    Args:
        graph: the step.
        fit: of its durations.
        v: the variant.
        table: [kind, place, microbatch] logarithms of costs.
    """
    number = np.arange(table.shape[2])
    by_number = table.mean(axis=(0, 1))
    ranks = np.argsort(np.argsort(by_number))
    if abs(float(np.corrcoef(ranks, number)[0, 1])) < SORTED_RANKS:
        return False
    rank = np.empty(graph.n_ops, dtype=np.int64)
    rank[graph.order] = np.arange(graph.n_ops)
    at = rank[graph.variant_ops(v).start + fit.variants[v].ops]
    position = np.empty(at.shape)
    for stage in np.unique(fit.stage_of_place).tolist():
        here = fit.stage_of_place == stage
        order = np.argsort(np.argsort(at[:, here], axis=None))
        position[:, here] = order.reshape(at[:, here].shape)
    values = (table - table.mean(axis=2, keepdims=True)).ravel()
    powers = [position / position.max(), (position / position.max()) ** 2]
    features = np.stack([(p - p.mean(axis=2, keepdims=True)).ravel() for p in powers], axis=1)
    left = values - features @ np.linalg.lstsq(features, values, rcond=None)[0]
    centred = np.broadcast_to(by_number - by_number.mean(), table.shape).ravel()
    by_number_left = float(((values - centred) ** 2).sum())
    total = float((values**2).sum())
    return float((left**2).sum()) <= max(OPEN_TIMES * by_number_left, OPEN_VARIANCE * total)
