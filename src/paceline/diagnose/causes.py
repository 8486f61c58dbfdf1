"""Causes that show in computes: stages, workers, and microbatches of unequal cost."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.diagnose.candidate import Candidate
from paceline.diagnose.fit import Fit, fit_computes, pause_residual
from paceline.diagnose.remove import Effect
from paceline.diagnose.stages import stage_cause
from paceline.diagnose.workers import worker_cause
from paceline.graph import Durations
from paceline.graph.computes import KINDS

Array = npt.NDArray[np.float64]

#: Pearson correlation of forward and backward over microbatches (what-if paper, 5.3).
CORRELATED = 0.9

#: Microbatches that vary less than this (coefficient of variation) cost next to nothing.
VARIED = 0.02

#: ... unless one replica's vary by this much.
VARIED_ONE = 0.05

#: At one stage, where stages cannot agree, this share of the replicas must show the pattern.
MANY = 0.25


def compute_causes(durations: Durations, fit: Fit, steps: npt.NDArray[np.int64]) -> list[Candidate]:
    """Causes that show in forward and backward computes.

    Args:
        durations: as measured.
        fit: of these durations.
        steps: [step] step numbers.
    """
    found = (
        stage_cause(durations, fit),
        worker_cause(durations, fit, steps),
        *_microbatches(durations, fit),
    )
    return [candidate for candidate in found if candidate]


def _microbatches(durations: Durations, fit: Fit) -> list[Candidate | None]:
    """Sequence lengths: microbatches whose cost varies, forward and backward alike."""
    graph = durations.graph
    spread = np.concatenate([v.micro.std(axis=(0, 1)) for v in fit.variants])  # [dp], any order
    if float(np.median(spread)) < VARIED and float(spread.max()) < VARIED_ONE:
        return []
    correlations = _correlations(fit, graph.n_pp)
    varied = (spread >= VARIED) & (correlations >= CORRELATED)
    if varied.mean() < MANY:
        return []
    effect = tuple(fit.slope[:, :, None, None, None] * variant.micro for variant in fit.variants)
    cost = np.concatenate([np.exp(v.micro).ravel() for v in fit.variants])
    cv = float(cost.std() / cost.mean())
    text = (
        f"microbatches differ in cost by {cv:.0%} (standard deviation), forward and backward "
        "alike: sequence lengths"
    )
    evidence = {
        "coefficient_of_variation": cv,
        "correlation": float(np.median(correlations)),
        "threshold": CORRELATED,
        "replicas_showing_it": float(varied.mean()),
        "source": "what-if paper, 5.3",
    }
    return [Candidate("sequence-length", text, {}, evidence, Effect(factor=effect))]


def forward_backward_correlation(durations: Durations) -> float:
    """How alike forward and backward vary over microbatches (what-if paper, 5.3, Figure 11).

    The median of the replicas' Pearson correlations; near 1 says that sequences differ in length.
    """
    return float(np.median(_correlations(fit_computes(durations), durations.graph.n_pp)))


def _correlations(fit: Fit, n_pp: int) -> Array:
    """[dp, any order] Pearson correlation of forward and backward over a replica's microbatches.

    On the second stage if there is one, without the first chunk under VPP (paper, 5.3).
    """
    stage = min(1, n_pp - 1)
    places = np.flatnonzero(fit.stage_of_place == stage)
    places = places[1:] if len(places) > 1 and n_pp == 1 else places
    found = []
    for variant in fit.variants:
        # Pauses hit forwards only: left in, they would hide what the two have in common.
        least = pause_residual(fit)[:, None, None, None, None]
        rest = np.where(variant.residual > least, 0.0, variant.residual)
        logs = rest + fit.slope[:, :, None, None, None] * variant.micro
        both = logs[:, places].reshape(len(KINDS), -1, logs.shape[-1])
        both = both - both.mean(axis=1, keepdims=True)
        norm = np.sqrt((both**2).sum(axis=1)).prod(axis=0)
        found.append((both[0] * both[1]).sum(axis=0) / np.maximum(norm, 1e-300))
    return np.concatenate(found)
