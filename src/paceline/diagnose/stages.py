"""Stages with more computation than the others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline import robust
from paceline.diagnose.candidate import Candidate
from paceline.diagnose.fit import Fit
from paceline.diagnose.remove import Effect
from paceline.graph import Durations
from paceline.graph.computes import KINDS

Array = npt.NDArray[np.float64]

#: Least overload of a stage: one more layer among 50.
MIN_OVERLOAD = 0.02

#: Least overload in standard errors. Steps that differ make the error large.
MIN_ERRORS = 4.0

#: With two replicas, the workers of an overfull stage differ by at most this much.
MAX_WORKER_GAP = 0.03

#: Most replicas used to measure a stage's load in a step. More would only cost time.
MAX_REPLICAS = 16


def loads(fit: Fit) -> Array:
    """[kind, stage] typical seconds of a microbatch on all chunks of a stage."""
    seconds = np.exp(fit.place)
    n_stages = int(fit.stage_of_place[-1]) + 1
    of_stages: Array = seconds.reshape(len(KINDS), n_stages, -1).sum(axis=2)
    return of_stages


def stage_cause(durations: Durations, fit: Fit) -> Candidate | None:
    """The stage with the longest computes, if it passes the thresholds; None otherwise."""
    of_kinds = loads(fit)
    total = of_kinds.sum(axis=0)
    stage = int(np.argmax(total))
    relative = float(total[stage] / total.mean())
    if len(total) < 2 or relative < 1 + MIN_OVERLOAD:
        return None
    error = _relative_error(durations, fit, stage)
    if relative - 1 < MIN_ERRORS * error:
        return None
    others = np.delete(of_kinds, stage, axis=1).mean(axis=1)
    forward, backward = (float(x) for x in of_kinds[:, stage] / others)
    typical = np.log(np.exp(fit.place).mean(axis=1, keepdims=True))
    factor = (fit.place - typical)[:, :, None, None, None]
    place = _place(stage, len(total), forward, backward)
    ambiguous = _ambiguity(fit, stage, durations.graph.n_dp)
    t = (relative - 1) / max(error, 1e-12)
    n_steps = durations.n_steps
    chance = float(robust.student_chance(np.array(t), n_steps)) if n_steps > 1 else 0.0
    return Candidate(
        "stage-imbalance",
        f"stage {stage}{place} computes {forward:.2f}x (forward) and {backward:.2f}x "
        "(backward) as long as the other stages",
        {"stage": stage},
        {
            "forward_ratio": forward,
            "backward_ratio": backward,
            "load_over_mean": relative,
            "threshold": 1 + MIN_OVERLOAD,
            "loads_s": total.tolist(),
            "source": "what-if paper, 5.2",
        },
        Effect(factor=(factor,) * len(fit.variants)),
        ambiguous,
        min(chance * len(total), 1.0),
        "worker" if ambiguous else "",
    )


def _place(stage: int, n_stages: int, forward: float, backward: float) -> str:
    """A likely reason for the load: layers lengthen forwards, recomputation does not."""
    if forward < 1 + MIN_OVERLOAD <= backward:
        return " (only its backwards: recomputed activations?)"
    return {0: " (the first: embedding)", n_stages - 1: " (the last: loss layer)"}.get(stage, "")


def _ambiguity(fit: Fit, stage: int, n_dp: int) -> str:
    """Another explanation: with one or two replicas, slow workers look alike."""
    if n_dp == 1:
        return "with one replica a slow worker and an overfull stage look alike"
    if n_dp == 2:
        gap = float(np.abs(np.diff(fit.worker[:, stage].mean(axis=0)))[0])
        if gap > max(MAX_WORKER_GAP, MIN_ERRORS * float(fit.worker_error[stage].max())):
            return (
                f"the stage's two workers differ by {np.expm1(gap):.0%}: both may be slow to "
                "different degrees"
            )
    return ""


def _relative_error(durations: Durations, fit: Fit, stage: int) -> float:
    """Standard error of a stage's load over the mean load, from its differences between steps."""
    by_place = np.zeros((len(fit.stage_of_place), durations.n_steps))
    for v, variant in enumerate(fit.variants):
        block = durations.block(v)
        few = slice(None, None, -(-block.shape[2] // MAX_REPLICAS))
        for place in range(len(by_place)):
            for kind in range(len(KINDS)):
                rows = block[variant.ops[kind, place], :, few]
                by_place[place] += np.median(rows, axis=(0, 2))
    n_stages = int(fit.stage_of_place[-1]) + 1
    by_stage = by_place.reshape(n_stages, -1, durations.n_steps).sum(axis=1)
    return float(robust.error_over_time(by_stage[stage] / by_stage.mean(axis=0)))
