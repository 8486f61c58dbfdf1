"""Time of a (stage, chunk) for a typical microbatch and worker, and how sure it is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.diagnose.fit import fit_computes
from paceline.graph import Durations
from paceline.robust import MEDIAN_ERROR

Array = npt.NDArray[np.float64]

#: A place is slower than another if they differ by this many standard errors of the difference.
MIN_ERRORS = 3.0


def typical_places(durations: Durations) -> Array:
    """[kind, place] seconds; a place is stage * chunks + chunk.

    The fit's places describe the microbatches and workers in the middle. The offsets of those
    microbatches and workers are taken off.
    """
    fit = fit_computes(durations)
    residual = np.empty(fit.place.shape)
    for k, place in np.ndindex(*residual.shape):
        residuals = [variant.residual[k, place].ravel() for variant in fit.variants]
        residual[k, place] = np.median(np.concatenate(residuals))
    seconds: Array = np.exp(fit.place + residual)
    return seconds


def least_difference(durations: Durations) -> Array:
    """[kind] relative difference of two places below which it is noise."""
    fit = fit_computes(durations)
    n = sum(variant.residual[0, 0].size for variant in fit.variants)
    least: Array = MIN_ERRORS * np.sqrt(2) * MEDIAN_ERROR * fit.sigma / np.sqrt(n)
    return least
