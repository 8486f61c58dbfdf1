"""Computes as they would run if the members of each group shared the work evenly.

Of one compute nobody can tell a member's share from its noise. Computes beside the exchange have no
uneven share: they show how much members differ anyway, by their machines and by chance. A balanced
compute has the mean work of its group, and its members differ as those of one beside it do.
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

    Each takes the pattern of one compute beside it. Where these are fewer, it takes one of a later
    step, so that no two vary alike. Pauses are known to be pauses, and stay, where computes beside
    the exchange have some, too; else they are taken for shares.

    Args:
        uneven_s: [op, step, replica] seconds of the computes.
        beside_s: [op, step, replica] those of computes of the same stage and direction that are
            not shared unevenly; at least one.
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
    """[op, step, replica] seconds that a compute pauses, like those of garbage collections."""
    usual = _group_medians(values, sets)
    relative = _over(values, usual)
    lasting = np.median(relative, axis=(0, 1))
    apart = np.log(np.maximum(relative, _TINY_S)) - np.log(np.maximum(lasting, _TINY_S))
    least = max(PAUSE_SIGMAS * _noise(values, sets), float(np.log1p(PAUSE_SHARE)))
    excess_s = values - usual * lasting
    return np.where((apart > least) & (excess_s > PAUSE_S), excess_s, 0.0)


def _noise(values: Array, sets: Ints) -> float:
    """Robust standard deviation of the logarithm of computes, beside what lasts on a member."""
    log = np.log(np.maximum(values, _TINY_S))
    apart = log - group_means(log, sets)
    apart -= np.median(apart, axis=(0, 1))
    # A member is part of the mean that it is compared with.
    apart /= np.sqrt(1 - 1 / np.maximum(np.bincount(sets)[sets], 2))
    return SIGMA_OF_MAD * float(np.median(np.abs(apart)))


def _over(values: Array, usual: Array) -> Array:
    """Their ratio; 1 where there is nothing to compare with."""
    return np.divide(values, usual, out=np.ones_like(values), where=usual > 0)


def group_means(values: Array, sets: Ints) -> Array:
    """[..., replica] the mean over each group, for each of its members."""
    means = np.empty_like(values)
    for number in np.unique(sets).tolist():
        met = sets == number
        means[..., met] = values[..., met].mean(axis=-1, keepdims=True)
    return means


def _group_medians(values: Array, sets: Ints) -> Array:
    """[..., replica] the lower median over each group; of two values the smaller has no pause."""
    medians = np.empty_like(values)
    for number in np.unique(sets).tolist():
        met = np.flatnonzero(sets == number)
        ordered = np.sort(values[..., met], axis=-1)
        medians[..., met] = ordered[..., [(len(met) - 1) // 2]]
    return medians
