"""Workers whose slowness grows or fades from step to step, as that of a GPU that throttles.

Such a worker varies too much for a test over all steps. Its ramp beside its peers is taken out, and
the rest is judged as a worker that is equally slow in all steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.diagnose.candidate import Candidate
from paceline.diagnose.fit import fit_computes
from paceline.diagnose.remove import Effect, without
from paceline.diagnose.workers import ALWAYS_SLOW_SHARE, MIN_SLOW_SHARE, slowness, worker_cause
from paceline.graph import Durations
from paceline.graph.computes import KINDS, compute_s, computes_of
from paceline.jumps import MIN_STEPS
from paceline.ramps import Ramp, ramp_of

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Worker = tuple[int, int]

#: Most workers whose ramps are sought, and their least slowness as a share of the slowest one's.
MOST, BESIDE_WORST = 16, 0.5

#: When a ramp is taken out, the worker stays as slow as in this quantile of its steps.
USUAL = 0.75

_TINY_S, _LEAST_FACTOR = 1e-9, 1e-3


def over_peers(durations: Durations, dp: int, stage: int) -> Array:
    """[step] a worker's compute time over the median of its stage's other workers."""
    return _over_peers(compute_s(durations), (dp, stage))


def _over_peers(seconds: Array, worker: Worker) -> Array:
    """[step] the same from [stage, dp, step] seconds."""
    dp, stage = worker
    peers = np.median(np.delete(seconds[stage], dp, axis=0), axis=0)
    ratio: Array = seconds[stage, dp] / np.maximum(peers, _TINY_S)
    return ratio


def along_ramps(durations: Durations, steps: Ints, worst: Worker) -> Candidate | None:
    """The workers that are slow along ramps; None unless ``worst`` (dp, stage) is the slowest.

    Args:
        durations: as measured.
        steps: [step] step numbers.
        worst: the worker that comes nearest to a slow one.
    """
    by_kind = [compute_s(durations, (kind,)) for kind in KINDS]
    seconds = np.sum(by_kind, axis=0)
    if ramp_of(_over_peers(seconds, worst)) is None:
        return None
    fit = fit_computes(durations)
    _, apparent = slowness(fit)
    near = np.argsort(-apparent, axis=None)[:MOST]
    places = [(int(i % apparent.shape[1]), int(i // apparent.shape[1])) for i in near]
    least = BESIDE_WORST * float(apparent.max())
    places = [(dp, stage) for dp, stage in places if apparent[stage, dp] >= least]
    ramps = {
        place: ramp
        for place in places
        if (ramp := ramp_of(_over_peers(seconds, place))) is not None
        and ramp.fitted.max() >= 1 + ALWAYS_SLOW_SHARE
    }
    if worst not in ramps:
        return None
    slowness_of = {
        place: np.log(
            [np.maximum(ramp.of(_over_peers(of_kind, place)), _LEAST_FACTOR) for of_kind in by_kind]
        )
        for place, ramp in ramps.items()
    }  # [kind, step]
    away = {
        place: of_kinds - np.quantile(of_kinds, USUAL, axis=1, keepdims=True)
        for place, of_kinds in slowness_of.items()
    }
    flat = without(durations, fit, [Effect(_on_places(durations, away), rebalanced=False)])
    found = worker_cause(flat, fit_computes(flat), steps)
    if found is None or tuple(found.where["workers"][0]) not in ramps:
        return None
    return _along(found, durations, steps, ramps, slowness_of)


def _on_places(durations: Durations, of_worker: Mapping[Worker, Array]) -> tuple[Array, ...]:
    """[kind, step] values of workers, per variant as [kind, place, 1, step, dp]; else 0."""
    graph = durations.graph
    values = np.zeros((len(KINDS), graph.n_pp, durations.n_steps, graph.n_dp))
    for (dp, stage), of_kinds in of_worker.items():
        values[:, stage, :, dp] = of_kinds
    by_place = values[:, computes_of(graph).stage][:, :, None]
    return tuple(by_place[..., dps] for dps in graph.variant_dps)


def _along(
    found: Candidate,
    durations: Durations,
    steps: Ints,
    ramps: Mapping[Worker, Ramp],
    slowness_of: Mapping[Worker, Array],
) -> Candidate:
    """The candidate with the slowness of each step; workers without a ramp keep theirs."""
    places = [(int(dp), int(stage)) for dp, stage in found.where["workers"]]
    factors = dict(zip(places, found.evidence["factors"], strict=True))
    on_ramp = {place: ramps[place] for place in places if place in ramps}
    first = [max(on_ramp[p].before_s, 1.0) if p in on_ramp else factors[p] for p in places]
    last = [max(on_ramp[p].after_s, 1.0) if p in on_ramp else factors[p] for p in places]
    slow = np.full(len(steps), len(on_ramp) < len(places))
    for ramp in on_ramp.values():
        slow |= ramp.fitted >= 1 + MIN_SLOW_SHARE
    along = _on_places(
        durations,
        {
            place: np.where(slowness_of[place] >= np.log1p(MIN_SLOW_SHARE), slowness_of[place], 0.0)
            for place in on_ramp
        },
    )
    is_on_ramp = _on_places(durations, dict.fromkeys(on_ramp, np.ones((len(KINDS), len(steps)))))
    effect = tuple(
        np.where(here > 0, of_ramp, of_found)
        for here, of_ramp, of_found in zip(
            is_on_ramp, along, found.effect.factor or (), strict=True
        )
    )
    evidence: dict[str, Any] = {
        **found.evidence,
        "factors": last,
        "first_factors": first,
        "steps": steps[slow].tolist(),
    }
    if not slow[-1]:
        evidence["healthy_since"] = int(steps[np.flatnonzero(slow)[-1] + 1])
    worst = durations.graph.worker_name(*places[0])
    return replace(
        found,
        text=_text(worst, len(places), ramps[places[0]], (first[0], last[0]), steps),
        evidence=evidence,
        effect=Effect(effect, rebalanced=False),
    )


def _text(worst: str, n_workers: int, ramp: Ramp, factors: tuple[float, float], steps: Ints) -> str:
    """The sentence on workers along ramps; the worst is named, with its first and last factor."""
    grows = factors[1] > factors[0]
    n = len(steps)
    first = f"until step {steps[ramp.begin]:,}"
    if ramp.begin < MIN_STEPS:
        first = f"at step {steps[0]:,}"
    then = f"from step {steps[ramp.end]:,} on"
    if ramp.end >= n - MIN_STEPS:
        then = f"at step {steps[-1]:,}"
    course = f"{factors[0]:.2f}x slow {first}, {factors[1]:.2f}x {then}"
    if n_workers == 1:
        return f"worker {worst} {'becomes slower' if grows else 'recovers'}: {course}"
    verb = "become slower" if grows else "recover"
    return f"{n_workers} workers {verb}: the worst ({worst}) {course}"
