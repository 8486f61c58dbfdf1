"""Cost of a microbatch, from the lengths of its sequences (what-if paper, 5.3 and Figure 9).

A layer takes ``a * sum(s^2) + b * sum(s) + c`` seconds for a microbatch with sequences of ``s``
tokens: attention, everything that goes token by token, and kernels launched in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline import robust
from paceline.diagnose.fit import Fit
from paceline.graph import Durations, Measured, StepGraph
from paceline.graph.computes import KINDS
from paceline.trace import OpKind
from paceline.trace.seqlens import SeqLens

Array = npt.NDArray[np.float64]

#: Features (squares, tokens, constant) of each model, the most plausible model first. Where
#: microbatches are packed full, tokens and constant coincide, and the tokens get the cost.
MODELS = ((0, 1), (0,), (1,), (0, 1, 2), (0, 2), (1, 2), (2,))

#: A later model must be better by this much (Bayesian information criterion; above 10 the evidence
#: is very strong: Kass and Raftery 1995).
MIN_BIC_GAIN = 10.0

#: Residuals beyond this many robust standard deviations are outliers, such as pauses.
OUTLIER_SIGMAS = 6.0


@dataclass(frozen=True)
class SequenceCost:
    """Cost of a microbatch as a function of its sequence lengths.

    Attributes:
        coefficients: [kind, place, 3] seconds per token^2, per token, and per microbatch, of the
            forward and backward computes of each place (stage * chunks + chunk).
        r2: [kind] share of the variance of durations within places that the lengths explain.
        n_sequences: number of sequences.
    """

    coefficients: Array
    r2: Array
    n_sequences: int

    def seconds(self, tokens: Array, squares: Array) -> Array:
        """[kind, place, ...] seconds of microbatches.

        Args:
            tokens: [...] sums of the lengths of their sequences.
            squares: [...] sums of the squared lengths.
        """
        a, b, c = np.moveaxis(self.coefficients, -1, 0)
        shape = (*a.shape, *([1] * tokens.ndim))
        seconds: Array = a.reshape(shape) * squares + b.reshape(shape) * tokens + c.reshape(shape)
        return seconds

    def by_kind(self, seqlens: SeqLens) -> Array:
        """[kind, step, dp, microbatch] seconds on all stages together; 0 without microbatch."""
        tokens, squares = seqlens.moments()
        total = self.coefficients.sum(axis=1)  # [kind, 3]
        a, b, c = (total[:, i, None, None, None] for i in range(3))
        seconds: Array = a * squares + b * tokens + c * seqlens.exists
        return seconds

    @property
    def total(self) -> Array:
        """[3] seconds per token^2, per token and per microbatch, summed over kinds and stages."""
        total: Array = self.coefficients.sum(axis=(0, 1))
        return total

    def evidence(self) -> Mapping[str, Any]:
        """The fit as evidence of a finding."""
        names = ("forward", "backward")
        per_kind = self.coefficients.sum(axis=1)
        units = ("seconds_per_token_squared", "seconds_per_token", "seconds_per_microbatch")
        coefficients = {
            unit: {name: float(per_kind[k, i]) for k, name in enumerate(names)}
            for i, unit in enumerate(units)
        }
        return {
            "r2": {name: float(self.r2[k]) for k, name in enumerate(names)},
            **coefficients,
            "sequences": self.n_sequences,
            "source": "what-if paper, 5.3 and Figure 9",
        }


def microbatch_counts(graph: StepGraph) -> npt.NDArray[np.int64]:
    """[dp] microbatches of each replica."""
    counts = [
        len(np.unique(graph.microbatch[ops][graph.kind[ops] == OpKind.FORWARD_COMPUTE]))
        for ops in map(graph.variant_ops, range(graph.n_variants))
    ]
    return np.array(counts, dtype=np.int64)[graph.replica_variant]


def matching(seqlens: SeqLens, measured: Measured) -> SeqLens:
    """The lengths of the steps that a trace measured.

    Raises:
        TraceError: steps, dp ranks or microbatches do not match; the message says where.
    """
    return seqlens.select(measured.steps, microbatch_counts(measured.graph))


def fit_sequence_cost(durations: Durations, fit: Fit, seqlens: SeqLens) -> SequenceCost:
    """Fit the cost of microbatches to the lengths of their sequences, by least squares.

    Slow workers are corrected first by their factors in ``fit``. Pauses are left out.

    Args:
        durations: as measured.
        fit: of these durations.
        seqlens: of the same steps, replicas and microbatches (see :func:`matching`).
    """
    tokens, squares = seqlens.moments()  # [step, dp, microbatch]
    moments_of_variants = [
        np.stack([_of_variant(table, v, fit, durations.graph) for table in (squares, tokens)])
        for v in range(durations.graph.n_variants)
    ]
    moments = np.concatenate(moments_of_variants, axis=1)  # [2, row]
    features = np.stack([*moments, np.ones(moments.shape[1])], axis=1)  # [row, 3]
    n_places = fit.place.shape[1]
    coefficients = np.zeros((len(KINDS), n_places, 3))
    r2 = np.zeros(len(KINDS))
    for k in range(len(KINDS)):
        squared_error = variance = 0.0
        for place in range(n_places):
            seconds = _seconds(durations, fit, k, place)
            coefficients[k, place], inlier = _robust(features, seconds)
            residual = (seconds - features @ coefficients[k, place])[inlier]
            squared_error += float(residual @ residual)
            variance += float(seconds[inlier].var() * inlier.sum())
        r2[k] = 1 - squared_error / variance if variance > 0 else 0.0
    return SequenceCost(coefficients, r2, int((seqlens.ptr[..., 1] - seqlens.ptr[..., 0]).sum()))


def _of_variant(table: Array, v: int, fit: Fit, graph: StepGraph) -> Array:
    """[step, dp, microbatch] -> the rows [microbatch, step, dp] of a variant's replicas."""
    n = fit.variants[v].ops.shape[2]
    return table[:, graph.variant_dps[v], :n].transpose(2, 0, 1).ravel()


def _seconds(durations: Durations, fit: Fit, kind: int, place: int) -> Array:
    """[row] durations in one place, corrected to typical workers; rows as in ``_of_variant``."""
    slow = np.exp(fit.worker_total[kind, fit.stage_of_place[place]])  # [dp]
    return np.concatenate(
        [
            (durations.block(v)[variant.ops[kind, place]] / slow[dps]).ravel()
            for v, (variant, dps) in enumerate(
                zip(fit.variants, durations.graph.variant_dps, strict=True)
            )
        ]
    )


def _robust(features: Array, seconds: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Coefficients, and a mask of the rows that are no outliers."""
    inlier = np.ones(len(seconds), dtype=bool)
    for _ in range(3):
        coefficients = _least_squares(features[inlier], seconds[inlier])
        predicted = features @ coefficients
        # Noise of hardware is a share of the time.
        off = np.log(np.maximum(seconds, 1e-9) / np.maximum(predicted, 1e-9))
        spread = float(robust.spread(off))
        near = np.abs(off - np.median(off)) <= max(OUTLIER_SIGMAS * spread, 1e-6)
        if (near == inlier).all():
            break
        inlier = near
    return coefficients, inlier


def _least_squares(features: Array, seconds: Array) -> Array:
    """[3] coefficients >= 0 with the least squares, of the simplest model that is good enough.

    Three features have few active sets, so each is tried.
    """
    scale = np.sqrt((features**2).mean(axis=0))
    table = features / scale
    gram, moment = table.T @ table, table.T @ seconds
    energy, n = float(seconds @ seconds), len(seconds)
    best, best_score = np.zeros(3), np.inf
    for model in MODELS:
        used = list(model)
        solved = np.linalg.lstsq(gram[np.ix_(used, used)], moment[used], rcond=1e-10)[0]
        if (solved < 0).any():
            continue
        error = energy - 2 * solved @ moment[used] + solved @ gram[np.ix_(used, used)] @ solved
        # Without noise the error is only rounding, which must not decide.
        score = n * np.log(max(float(error), 1e-14 * energy)) + len(used) * np.log(n)
        if score < best_score - (MIN_BIC_GAIN if np.isfinite(best_score) else 0.0):
            best, best_score = np.zeros(3), score
            best[used] = solved
    best /= scale
    return best
