"""Computes as they would run if the members of each group shared the work evenly.

In a single compute, a member's uneven share cannot be told from noise. Computes that do not depend
on the exchange have no uneven share. They show how much members differ anyway, through their
machines and by chance. A balanced compute takes the mean time of its group, and its members differ
as in one of those other computes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.diagnose.fit import PAUSE_S, PAUSE_SHARE, PAUSE_SIGMAS
from paceline.robust import SIGMA_OF_MAD

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_TINY_S = 1e-9  # durations of 0 have no logarithm


def balanced_s(uneven_s: Array, beside_s: Array, sets: Ints) -> Array:
    """[op, step, replica] seconds of computes if the members of each group shared them evenly.

    Each balanced compute takes the relative times of one compute of ``beside_s``. Where these are
    fewer, they are used again, shifted by a step, so that no two computes vary alike. Long outliers
    stay as pauses if computes of ``beside_s`` pause, too. Otherwise they count as uneven shares.

    Args:
        uneven_s: [op, step, replica] seconds of the computes.
        beside_s: [op, step, replica] seconds of evenly shared computes of the same stage and
            direction; at least one compute.
        sets: [replica] number of its group.
    """
    beside_pause_s = _pauses_s(beside_s, sets)
    without_pauses = beside_s - beside_pause_s
    pattern = _over(without_pauses, group_means(without_pauses, sets))
    pause_s = _pauses_s(uneven_s, sets) if beside_pause_s.any() else np.zeros_like(uneven_s)
    n_patterns, n_steps = pattern.shape[:2]
    turn, of = np.divmod(np.arange(len(uneven_s))[:, None], n_patterns)
    relative = pattern[of, (np.arange(n_steps) + turn) % n_steps]
    seconds: Array = group_means(uneven_s - pause_s, sets) * relative + pause_s
    return seconds


def _pauses_s(values: Array, sets: Ints) -> Array:
    """[op, step, replica] seconds of a compute's pause, by the thresholds of garbage collection."""
    usual = _group_medians(values, sets)
    relative = _over(values, usual)
    lasting = np.median(relative, axis=(0, 1))
    apart = np.log(np.maximum(relative, _TINY_S)) - np.log(np.maximum(lasting, _TINY_S))
    least = max(PAUSE_SIGMAS * _noise(values, sets), float(np.log1p(PAUSE_SHARE)))
    excess_s = values - usual * lasting
    return np.where((apart > least) & (excess_s > PAUSE_S), excess_s, 0.0)


def _noise(values: Array, sets: Ints) -> float:
    """Robust standard deviation of the logarithms, without each member's lasting part."""
    log = np.log(np.maximum(values, _TINY_S))
    apart = log - group_means(log, sets)
    apart -= np.median(apart, axis=(0, 1))
    # A member is part of the mean that it is compared with.
    apart /= np.sqrt(1 - 1 / np.maximum(np.bincount(sets)[sets], 2))
    return SIGMA_OF_MAD * float(np.median(np.abs(apart)))


def _over(values: Array, usual: Array) -> Array:
    """``values / usual``; 1 where ``usual`` is 0."""
    return np.divide(values, usual, out=np.ones_like(values), where=usual > 0)


def group_means(values: Array, sets: Ints) -> Array:
    """[..., replica] the mean over each group, for each of its members."""
    means = np.empty_like(values)
    for number in np.unique(sets).tolist():
        met = sets == number
        means[..., met] = values[..., met].mean(axis=-1, keepdims=True)
    return means


def _group_medians(values: Array, sets: Ints) -> Array:
    """[..., replica] the lower median over each group: the smaller of two values has no pause."""
    medians = np.empty_like(values)
    for number in np.unique(sets).tolist():
        met = np.flatnonzero(sets == number)
        ordered = np.sort(values[..., met], axis=-1)
        medians[..., met] = ordered[..., [(len(met) - 1) // 2]]
    return medians
