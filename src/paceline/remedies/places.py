"""Time of a (stage, chunk) for a typical microbatch and worker, and its error."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.diagnose.fit import fit_computes
from paceline.graph import Durations
from paceline.robust import MEDIAN_ERROR

Array = npt.NDArray[np.float64]

#: Two places differ from this many standard errors of the difference on.
MIN_ERRORS = 3.0


def typical_places(durations: Durations) -> Array:
    """[kind, place] seconds; a place is stage * chunks + chunk.

    The fit's places describe the median microbatch and worker. The median residual of a place
    corrects that.
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
