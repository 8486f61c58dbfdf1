"""Look for causes: each detector sees one pattern, shows its evidence, and owns an effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.diagnose.fit import Fit, fit_computes, pause_residual
from paceline.diagnose.remove import Effect
from paceline.graph import Durations
from paceline.graph.computes import KINDS

Array = npt.NDArray[np.float64]

#: A worker or stage is slow from here on: under 5% it is within the spread of healthy hardware
#: (falcon paper, section 3, counts fail-slows from 10%; what costs less is dropped by its share).
SLOW = 0.05

#: Pearson correlation of forward and backward over microbatches (what-if paper, 5.3).
CORRELATED = 0.9

#: Microbatches that vary less than this (coefficient of variation) cost next to nothing.
VARIED = 0.02

#: At one stage, where stages cannot agree, this share of the replicas must show the pattern.
MANY = 0.25

#: Deviations of a worker in single steps count from so many standard errors.
STEP_ERRORS = 6.0


@dataclass(frozen=True)
class Candidate:
    """A cause that a detector sees; whether it matters is for the simulation to say."""

    cause: str
    text: str
    where: Mapping[str, Any]
    evidence: Mapping[str, Any]
    effect: Effect
    ambiguous: str = ""


def compute_causes(durations: Durations, fit: Fit) -> list[Candidate]:
    """Causes that show in forward and backward computes."""
    found = (_stages(durations, fit), _workers(durations, fit), *_microbatches(durations, fit))
    return [candidate for candidate in found if candidate]


def _loads(fit: Fit) -> Array:
    """[kind, stage] typical seconds of a microbatch on all chunks of a stage."""
    seconds = np.exp(fit.place)
    n_stages = int(fit.stage_of_place[-1]) + 1
    loads: Array = seconds.reshape(len(KINDS), n_stages, -1).sum(axis=2)
    return loads


def _stages(durations: Durations, fit: Fit) -> Candidate | None:
    loads = _loads(fit)
    total = loads.sum(axis=0)
    stage = int(np.argmax(total))
    relative = total[stage] / total.mean()
    if len(total) < 2 or relative < 1 + SLOW:
        return None
    others = np.delete(loads, stage, axis=1).mean(axis=1)
    forward, backward = (float(x) for x in loads[:, stage] / others)
    typical = np.log(np.exp(fit.place).mean(axis=1, keepdims=True))
    factor = (fit.place - typical)[:, :, None, None, None]
    last = " (the last: loss layer)" if stage == len(total) - 1 else ""
    first = " (the first: embedding)" if stage == 0 else ""
    alone = durations.graph.n_dp == 1
    return Candidate(
        "stage-imbalance",
        f"stage {stage}{last}{first} computes {forward:.2f}x (forward) and {backward:.2f}x "
        "(backward) as long as the other stages",
        {"stage": stage},
        {
            "forward_ratio": forward,
            "backward_ratio": backward,
            "load_over_mean": float(relative),
            "threshold": 1 + SLOW,
            "loads_s": total.tolist(),
            "source": "what-if paper, 5.2",
        },
        Effect(factor=(factor,) * len(fit.variants)),
        "with one replica a slow worker and an overfull stage look alike" if alone else "",
    )


def _workers(durations: Durations, fit: Fit) -> Candidate | None:
    loads = _loads(fit)
    weight = loads / loads.sum(axis=0)
    lasting = (weight[:, :, None] * np.expm1(fit.worker_total)).sum(axis=0)  # [stage, dp]
    slow = lasting >= SLOW
    by_step = _step_deviations(durations, fit)  # [stage, step, dp] logarithms, mostly 0
    at_times = (by_step > 0).any(axis=1) & ~slow
    if not slow.any() and not at_times.any():
        return None
    kept = np.where(slow[None, :, None, :], fit.worker_total[:, :, None, :], 0.0) + by_step
    cost = lasting * slow + np.expm1(by_step).mean(axis=1)
    order = np.argsort(-cost, axis=None)[: int((slow | at_times).sum())]
    workers = [[int(i % slow.shape[1]), int(i // slow.shape[1])] for i in order]
    factors = [float(1 + cost.ravel()[i]) for i in order]
    worst = workers[0]
    how = "" if slow.any() else " in some steps"
    if len(workers) == 1:
        text = f"worker dp {worst[0]}, stage {worst[1]} is {factors[0]:.2f}x slow{how}"
    else:
        text = (
            f"{len(workers)} workers are slow{how}, the worst (dp {worst[0]}, stage {worst[1]}) "
            f"{factors[0]:.2f}x"
        )
    effects = tuple(
        kept[:, fit.stage_of_place][:, :, None][..., dps] for dps in durations.graph.variant_dps
    )
    return Candidate(
        "worker",
        text,
        {"workers": workers},
        {
            "factors": factors,
            "threshold": 1 + SLOW,
            "pattern": _pattern(workers, slow.shape),
            "steps": "all" if slow.any() else int((by_step > 0).any(axis=(0, 2)).sum()),
            "source": "what-if paper, 5.1",
        },
        Effect(factor=effects),
    )


def _pattern(workers: Sequence[Sequence[int]], shape: tuple[int, ...]) -> str:
    """How slow workers lie."""
    replicas, stages = {dp for dp, _ in workers}, {pp for _, pp in workers}
    if len(workers) == 1:
        return "one worker"
    if len(replicas) == 1:
        return "all of one dp rank" if len(stages) == shape[0] else "one dp rank"
    return "one stage" if len(stages) == 1 else "several workers"


def _step_deviations(durations: Durations, fit: Fit) -> Array:
    """[stage, step, dp] how much slower a worker is in single steps; 0 where it is not.

    At one stage a worker's step cannot be told from its microbatches: then there are none.
    """
    graph = durations.graph
    found = np.zeros((graph.n_pp, durations.n_steps, graph.n_dp))
    if graph.n_pp == 1:
        return found
    for variant, dps in zip(fit.variants, graph.variant_dps, strict=True):
        for stage in range(graph.n_pp):
            rest = variant.residual[:, fit.stage_of_place == stage]
            flat = rest.reshape(-1, *rest.shape[-2:])  # [kind x chunk x microbatch, step, dp]
            middle = np.median(flat, axis=0)
            error = 1.2533 * float(fit.sigma.max()) / np.sqrt(len(flat))
            found[stage][:, dps] = np.where(middle > max(SLOW, STEP_ERRORS * error), middle, 0.0)
    return found


def _microbatches(durations: Durations, fit: Fit) -> list[Candidate | None]:
    """Sequence lengths: microbatches whose cost varies, forward and backward alike."""
    graph = durations.graph
    spread = np.concatenate([v.micro.std(axis=(0, 1)) for v in fit.variants])  # [dp], any order
    if float(np.median(spread)) < VARIED and float(spread.max()) < SLOW:
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
