"""Typical times of places, and levels of whole replicas, from the medians of every replica."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

#: Rounds of taking medians over replicas and over places in turn (Tukey's median polish).
ROUNDS = 4

#: Where most workers of a stage are slow, the fast ones show the usual level. That is so if they
#: are this share of the replicas at least, and faster by this much (logarithm), and by this many
#: standard errors.
FAST_SHARE, FAST_GAP, FAST_ERRORS = 0.25, 0.03, 6.0

#: Fast workers of a stage are the healthy ones if they agree with the other stages. That is to this
#: share of the gap to the slow ones.
AGREEMENT_SHARE = 0.25

#: A kind counts for the level of a stage if it takes this share of the stage's longest one. The
#: noise of a few short computes says nothing of a GPU.
COUNTED_SHARE = 0.1

#: Stands for whole replicas among the stages most of whose workers are slow.
REPLICAS = -1


def lower_median(values: Array) -> Array:
    """The lower median along the first axis: of two values the smaller, which no pause raised."""
    middle = (len(values) - 1) // 2
    median: Array = np.partition(values, middle, axis=0)[middle]
    return median


def inner_median(values: Array) -> Array:
    """The median along the first axis; of two middle values the one nearer to 0."""
    ranked = np.sort(values, axis=0)
    low, high = ranked[(len(ranked) - 1) // 2], ranked[len(ranked) // 2]
    inner: Array = np.where(np.abs(low) <= np.abs(high), low, high)
    return inner


def places_and_levels(
    by_replica: Array, stage_of_place: npt.NDArray[np.int64]
) -> tuple[Array, Array]:
    """[kind, place] the typical level of a place, and [dp] how much longer whole replicas take.

    In turn: a place is its typical replica, a replica its typical stage. Of two replicas the faster
    one is typical, or one slow worker of two would look like a stage that is half as slow.

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
    """[dp] how much longer whole replicas take.

    Args:
        by_replica: [kind, place, dp] logarithms of median seconds.
        place: [kind, place] the typical ones.
        stage_of_place: [place].
    """
    level = inner_median(of_stages(by_replica - place[..., None], place, stage_of_place))
    level -= lower_median(level)
    return level


def of_stages(over: Array, place: Array, stage_of_place: npt.NDArray[np.int64]) -> Array:
    """[stage, dp] means of [kind, place, dp] over the kinds and chunks that count."""
    counted = counts(place, stage_of_place)
    n_stages = int(stage_of_place[-1]) + 1
    stages = [stage_of_place == stage for stage in range(n_stages)]
    return np.stack([over[:, here][counted[:, here]].mean(axis=0) for here in stages])


def counts(place: Array, stage_of_place: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """[kind, place] whether a kind takes long enough to show how fast its stage is."""
    longest = np.array([place[:, stage_of_place == stage].max() for stage in stage_of_place])
    counted: npt.NDArray[np.bool_] = place >= longest + np.log(COUNTED_SHARE)
    return counted


def use_fast_workers(
    place: Array, by_replica: Array, stage_of_place: npt.NDArray[np.int64]
) -> list[int]:
    """Take the fast workers of a stage as typical where most of its workers are slow, in place.

    They are the healthy ones if they agree with what the other stages take. Returns the stages.

    Args:
        place: [kind, place] the typical level; changed.
        by_replica: [kind, place, dp] logarithms of median seconds, less the replicas' levels.
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
    """[dp] levels beside the fast replicas, where most are slow; as they are otherwise."""
    fast = level <= -np.maximum(FAST_GAP, FAST_ERRORS * error)
    if FAST_SHARE <= fast.mean() < 0.5:
        beside: Array = level - np.median(level[fast])
        return beside
    return level
