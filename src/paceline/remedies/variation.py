"""The part of computes that is not their work: variation from op to op, and pauses.

A stage that is cut into chunks launches more and smaller computes. Each varies independently, so
together they vary less than one large compute. A pause hits one of them and keeps its length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.diagnose.fit import fit_computes, pauses
from paceline.graph import Durations
from paceline.graph.computes import KINDS, computes_of
from paceline.robust import MEDIAN_ERROR

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


#: A worker is slow in a step if the median of its computes is off by this many standard errors.
STEP_ERRORS = 3.5


@dataclass(frozen=True)
class Variation:
    """Variation and pauses of all computes of a job with one chunk per stage.

    Attributes:
        residual: per variant [kind, stage, microbatch, step, dp] logarithms; without pauses, and
            without the slowness of workers in whole steps.
        pause_s: per variant [stage, microbatch, step, dp] seconds of pauses in forwards.
    """

    residual: tuple[Array, ...]
    pause_s: tuple[Array, ...]

    def steps(self, index: Ints) -> Variation:
        """The variation of some steps."""
        return Variation(
            tuple(table[..., index, :] for table in self.residual),
            tuple(table[..., index, :] for table in self.pause_s),
        )


def variation_of(durations: Durations, *, by_microbatch: bool) -> Variation:
    """Variation and pauses from the fit of the computes.

    Args:
        durations: of a job with one chunk per stage.
        by_microbatch: whether microbatches differ in cost. The common part of a microbatch's
            computes is then its work, not variation.
    """
    fit = fit_computes(durations)
    paused = tuple(pauses(durations, fit, 0))
    residual = []
    for v, (variant, pause_s) in enumerate(zip(fit.variants, paused, strict=True)):
        left_over = variant.residual.copy()
        if by_microbatch:
            _take_out(left_over, variant.micro)
        else:
            left_over += fit.slope[:, :, None, None, None] * variant.micro
        if pause_s.any():
            own = durations.block(v)[variant.ops[0]]
            left_over[0] += np.log1p(-pause_s / np.maximum(own, 1e-9))
        # A worker that is slow in a step is slow in all chunks of the step.
        level = np.median(left_over, axis=2, keepdims=True)
        error = MEDIAN_ERROR * fit.sigma / np.sqrt(left_over.shape[2])
        left_over -= np.where(
            np.abs(level) > STEP_ERRORS * error[:, None, None, None, None], level, 0.0
        )
        residual.append(left_over)
    return Variation(tuple(residual), paused)


def _take_out(residual: Array, cost: Array) -> None:
    """Remove the part that follows the cost of microbatches from residuals, in place.

    The slopes of the fit are uncertain if a slow worker has few peers.

    Args:
        residual: [kind, stage, microbatch, step, dp] logarithms.
        cost: [microbatch, step, dp] logarithms.
    """
    own = cost - cost.mean()
    square = max(float((own * own).sum()), 1e-12)
    slope = (residual * own).sum(axis=(2, 3, 4)) / square  # [kind, stage]
    residual -= slope[:, :, None, None, None] * own
    residual -= np.median(residual, axis=(2, 3), keepdims=True)


def spread_over_chunks(new: Durations, variation: Variation, share: Array) -> None:
    """Let chunks vary independently, in place.

    A chunk takes the residual of another microbatch, step and replica of its stage. One chunk takes
    each pause as a whole.

    Args:
        new: durations in which each chunk has its share of its microbatch's compute, with variation
            and pause.
        variation: of the job with one chunk per stage.
        share: [kind, stage, chunk].
    """
    computes = computes_of(new.graph)
    _, n_stages, n_chunks = share.shape
    for v, (residual, pause_s) in enumerate(
        zip(variation.residual, variation.pause_s, strict=True)
    ):
        block, microbatch = new.block(v), np.arange(residual.shape[2])
        for k, stage, chunk in np.ndindex(len(KINDS), n_stages, n_chunks):
            ops = computes.of_stage(v, stage)[k, chunk]
            paused = pause_s[stage] if k == 0 and pause_s[stage].any() else None
            if chunk == 0 and paused is None:
                continue
            seconds = block[ops]
            if paused is not None:
                seconds -= share[k, stage, chunk] * paused
            if chunk:
                own = residual[k, stage]
                seconds *= np.exp(np.roll(own, (-chunk,) * 3, axis=(0, 1, 2)) - own)
            if paused is not None:
                seconds += np.where((microbatch % n_chunks == chunk)[:, None, None], paused, 0.0)
            block[ops] = seconds
