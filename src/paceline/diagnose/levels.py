"""Typical times of places, and levels of whole replicas, from the medians of every replica."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

#: Rounds of taking medians over replicas and over places in turn (Tukey's median polish).
ROUNDS = 4

#: Where most workers of a stage are slow, the fast ones show the usual level. They must be at least
#: FAST_SHARE of the replicas, and faster by FAST_GAP (logarithm) and FAST_ERRORS standard errors.
FAST_SHARE, FAST_GAP, FAST_ERRORS = 0.25, 0.03, 6.0

#: Fast workers of a stage are the healthy ones if they agree with the other stages. They may differ
#: by this share of their gap to the slow workers.
AGREEMENT_SHARE = 0.25

#: A kind counts for the level of a stage if it takes this share of the stage's longest kind. Short
#: computes are mostly noise.
COUNTED_SHARE = 0.1

#: Entry in lists of mostly slow stages: most whole replicas are slow.
REPLICAS = -1


def lower_median(values: Array) -> Array:
    """The lower median along the first axis: of two values the smaller, without a pause."""
    middle = (len(values) - 1) // 2
    median: Array = np.partition(values, middle, axis=0)[middle]
    return median


def inner_median(values: Array) -> Array:
    """The median along the first axis; with two middle values, the one nearer to 0."""
    ranked = np.sort(values, axis=0)
    low, high = ranked[(len(ranked) - 1) // 2], ranked[len(ranked) // 2]
    inner: Array = np.where(np.abs(low) <= np.abs(high), low, high)
    return inner


def places_and_levels(
    by_replica: Array, stage_of_place: npt.NDArray[np.int64]
) -> tuple[Array, Array]:
    """[kind, place] typical levels of places, and [dp] levels of whole replicas beside them.

    Both are fitted in turn: a place takes its typical replica's level, a replica its typical
    stage's. Of two replicas the faster is typical. Otherwise one slow worker of two would look like
    a stage that is half as slow.

    Args:
        by_replica: [kind, place, dp] logarithms of median seconds.
        stage_of_place: [place].
    """
    level = np.zeros(by_replica.shape[2])
    for _ in range(ROUNDS):
        place = lower_median(np.moveaxis(by_replica - level, 2, 0))
        level = levels(by_replica, place, stage_of_place)
    return place, level


def levels(by_replica: Array, place: Array, stage_of_place: npt.NDArray[np.int64]) -> Array:
    """[dp] levels of whole replicas: logarithm of their time over the typical one.

    Args:
        by_replica: [kind, place, dp] logarithms of median seconds.
        place: [kind, place] typical levels.
        stage_of_place: [place].
    """
    over = by_replica - place[..., None]
    level = inner_median(of_stages(over, place, stage_of_place))
    if by_replica.shape[2] == 2 and stage_of_place[-1] == 0:
        # A replica that is slow in its forwards alone is no slow replica. Among more replicas, the
        # others show that.
        by_kind = inner_median(over.mean(axis=1))
        level = inner_median(np.stack([level, by_kind]))
    level -= lower_median(level)
    return level


def of_stages(over: Array, place: Array, stage_of_place: npt.NDArray[np.int64]) -> Array:
    """[stage, dp] means of [kind, place, dp] over the counted kinds and chunks."""
    counted = counts(place, stage_of_place)
    n_stages = int(stage_of_place[-1]) + 1
    stages = [stage_of_place == stage for stage in range(n_stages)]
    return np.stack([over[:, here][counted[:, here]].mean(axis=0) for here in stages])


def counts(place: Array, stage_of_place: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """[kind, place] whether a kind is long enough to show the speed of its stage."""
    longest = np.array([place[:, stage_of_place == stage].max() for stage in stage_of_place])
    counted: npt.NDArray[np.bool_] = place >= longest + np.log(COUNTED_SHARE)
    return counted


def use_fast_workers(
    place: Array, by_replica: Array, stage_of_place: npt.NDArray[np.int64]
) -> list[int]:
    """Change ``place`` to the fast workers' level on stages where most workers are slow.

    Fast workers are healthy if they agree with the other stages. Returns the changed stages.

    Args:
        place: [kind, place] the typical level; changed in place.
        by_replica: [kind, place, dp] logarithms of median seconds, minus the replicas' levels.
        stage_of_place: [place].
    """
    n_stages = int(stage_of_place[-1]) + 1
    if n_stages < 2:
        return []
    by_stage = of_stages(by_replica - place[..., None], place, stage_of_place)
    typical = np.stack([place[:, stage_of_place == s].mean() for s in range(n_stages)])
    changed = []
    for stage in range(n_stages):
        fast = by_stage[stage] <= -FAST_GAP
        if not FAST_SHARE <= fast.mean() < 0.5:
            continue
        gap = -float(np.median(by_stage[stage][fast]))
        others = float(np.median(np.delete(typical, stage)))
        if abs(typical[stage] - gap - others) > AGREEMENT_SHARE * gap:
            continue
        here = stage_of_place == stage
        place[:, here] = np.median(by_replica[:, here][..., fast], axis=2)
        changed.append(stage)
    return changed


def from_the_fast(level: Array, error: Array) -> Array:
    """[dp] levels beside the fast replicas where most replicas are slow; otherwise unchanged."""
    fast = level <= -np.maximum(FAST_GAP, FAST_ERRORS * error)
    if FAST_SHARE <= fast.mean() < 0.5:
        beside: Array = level - np.median(level[fast])
        return beside
    return level
