"""Garbage collection: forwards that pause at irregular places (what-if paper, 5.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paceline import robust, units
from paceline.diagnose.candidate import Candidate
from paceline.diagnose.fit import Fit, pause_residual, pauses
from paceline.diagnose.remove import Effect
from paceline.graph import Durations

Array = npt.NDArray[np.float64]

#: Garbage collection needs at least MIN_PAUSES pauses in the trace. Forwards must pause
#: FORWARD_TO_BACKWARD times as often as backwards, for only forwards are launched from Python.
MIN_PAUSES, FORWARD_TO_BACKWARD = 3, 3.0

#: Largest chance that pauses which hit both directions equally often show such an imbalance.
MAX_CHANCE = 0.05

#: If one microbatch has more than this share of MANY_PAUSES or more pauses, its work causes them.
SAME_MICROBATCH, MANY_PAUSES = 0.5, 10

#: From this number of trials on, a bound replaces the exact binomial chance.
MANY_TRIALS = 200

#: A slow worker explains pauses of its own, if this share of their time lies in its slow steps, and
#: this share of its forwards there are longer by half of a typical pause (logarithm). Noise leaves
#: some of them below the limit of pauses.
OF_SLOW_WORKER = 0.9

_ONE_WORKER = (
    "only one worker pauses: its collector may have more to do, or another process on its host "
    "takes turns with it"
)

_SHORT = (
    "such short pauses do not show in backwards, which take longer: another cause may pause both"
)


def garbage_cause(durations: Durations, fit: Fit) -> Candidate | None:
    """Garbage collection, where pauses of forwards look like it."""
    forward, backward = pauses(durations, fit, 0), pauses(durations, fit, 1)
    n_forward, n_backward = _count(forward), _count(backward)
    if n_forward < MIN_PAUSES or n_forward < FORWARD_TO_BACKWARD * n_backward:
        return None
    # Forwards may vary less or be shorter than backwards: count only pauses that would show in
    # both.
    least = float(pause_residual(fit).max())
    chance = _chance(*(_count(pauses(durations, fit, k, least)) for k in (0, 1)))
    if chance > MAX_CHANCE:
        return None
    visible_s = float(np.max(np.expm1(pause_residual(fit)) * np.exp(fit.place).max(axis=1)))
    short = _chance(_count(forward, visible_s), _count(backward, visible_s)) > MAX_CHANCE
    hit = _workers_paused(durations, fit, forward)
    one_worker = len(hit) == 1 < durations.graph.n_dp * durations.graph.n_pp
    repeated = _on_one_microbatch(forward)
    if repeated > SAME_MICROBATCH and n_forward >= MANY_PAUSES:
        return None
    seconds = np.concatenate([excess[excess > 0] for excess in forward])
    share = n_forward / sum(excess.size for excess in forward)
    backwards = "no backwards do" if n_backward == 0 else "backwards hardly do"
    on = "1 worker" if len(hit) == 1 else f"{len(hit)} workers"
    return Candidate(
        "gc",
        f"{n_forward} forwards ({share:.2%}) on {on} pause for "
        f"{units.seconds(float(np.median(seconds)))} (median), {backwards}: garbage collection",
        {"workers": [[dp, pp] for pp, dp in hit[:16]]},
        {
            "pauses": n_forward,
            "backward_pauses": n_backward,
            "median_s": float(np.median(seconds)),
            "total_s": float(seconds.sum()),
            "workers": len(hit),
            "on_one_microbatch": repeated,
            "growth_over_trace": _growth(forward),
            "source": "what-if paper, 5.4",
        },
        Effect(excess=tuple(forward)),
        _ONE_WORKER if one_worker else _SHORT if short else "",
        chance,
        alternative="worker" if one_worker else "",
    )


def explained_by(
    garbage: Candidate,
    worker: Candidate,
    steps: npt.NDArray[np.int64],
    durations: Durations,
    fit: Fit,
) -> bool:
    """Whether workers that are slow in some steps explain the pauses: most of these are theirs.

    Args:
        garbage: garbage collection.
        worker: slow workers.
        steps: [step] step numbers.
        durations: as measured.
        fit: of these durations.
    """
    slow = worker.evidence["steps"]
    places = {(int(dp), int(pp)) for dp, pp in worker.where["workers"]}
    if slow == "all":
        return False
    in_slow, of_slow_s = np.isin(steps, slow), 0.0
    forwards, paused = [np.empty(0)], [np.empty(0)]  # logarithms over the fit, in the slow steps
    for excess, variant, dps in zip(
        garbage.effect.excess or (), fit.variants, durations.graph.variant_dps, strict=True
    ):  # [place, microbatch, step, dp]
        is_slow = np.array(
            [
                [(dp, stage) in places for dp in dps.tolist()]
                for stage in fit.stage_of_place.tolist()
            ]
        )
        own = excess[:, :, in_slow] * is_slow[:, None, None]
        of_slow_s += float(own.sum())
        has_pauses = (excess > 0).any(axis=(1, 2)) & is_slow
        residual = np.moveaxis(variant.residual[0][:, :, in_slow], 3, 1)  # [place, dp, ...]
        forwards.append(residual[has_pauses].ravel())
        paused.append(residual[np.moveaxis(own, 3, 1) > 0])
    of_worker, of_pauses = np.concatenate(forwards), np.concatenate(paused)
    if of_slow_s < OF_SLOW_WORKER * garbage.evidence["total_s"] or not of_pauses.size:
        return False
    return float((of_worker >= np.median(of_pauses) / 2).mean()) >= OF_SLOW_WORKER


def _count(excess: Sequence[Array], least_s: float = 0.0) -> int:
    """Number of computes that pause longer than ``least_s``."""
    return sum(int((seconds > least_s).sum()) for seconds in excess)


def _chance(n_forward: int, n_backward: int) -> float:
    """Chance of at least ``n_forward`` forwards if both directions were equally likely."""
    n = n_forward + n_backward
    if n > MANY_TRIALS:
        return robust.chance_of_count(n_forward, n, 0.5)
    return float(sum(math.comb(n, k) for k in range(n_forward, n + 1)) / 2**n)


def _on_one_microbatch(excess: Sequence[Array]) -> float:
    """Share of pauses on the microbatch with most pauses; 0 for fewer than 4 microbatches."""
    n_microbatches = max(pauses_s.shape[1] for pauses_s in excess)
    counts = np.zeros(n_microbatches)
    for pauses_s in excess:
        counts[: pauses_s.shape[1]] += (pauses_s > 0).sum(axis=(0, 2, 3))
    return float(counts.max() / counts.sum()) if n_microbatches >= 4 else 0.0


def _growth(excess: Sequence[Array]) -> float:
    """Growth of pauses from the first step to the last: a leak makes the heap grow."""
    steps = [
        np.concatenate([p[:, :, s][p[:, :, s] > 0] for p in excess]) for s in range(_n(excess))
    ]
    medians = np.array([np.median(step) if len(step) else np.nan for step in steps])
    at = np.flatnonzero(np.isfinite(medians))
    if len(at) < 4:
        return 0.0
    first, second = np.triu_indices(len(at), 1)
    slope = np.median((medians[at][second] - medians[at][first]) / (at[second] - at[first]))
    return float(slope * (_n(excess) - 1) / np.median(medians[at]))


def _n(excess: Sequence[Array]) -> int:
    return int(excess[0].shape[2])


def _workers_paused(
    durations: Durations, fit: Fit, excess: Sequence[Array]
) -> list[tuple[int, int]]:
    """(stage, dp) of workers with pauses, those with the longest first."""
    graph = durations.graph
    total = np.zeros((graph.n_pp, graph.n_dp))
    for pauses_s, dps in zip(excess, graph.variant_dps, strict=True):
        by_place = pauses_s.sum(axis=(1, 2))  # [place, dp]
        for place, stage in enumerate(fit.stage_of_place):
            total[stage, dps] += by_place[place]
    order = np.argsort(-total, axis=None, kind="stable")
    hit = order[: int((total > 0).sum())]
    return [(int(i // graph.n_dp), int(i % graph.n_dp)) for i in hit]
