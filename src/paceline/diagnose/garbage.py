"""Garbage collection: forwards that pause, here and there (what-if paper, 5.4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paceline import units
from paceline.diagnose.candidate import Candidate
from paceline.diagnose.fit import Fit, pauses
from paceline.diagnose.remove import Effect
from paceline.graph import Durations

Array = npt.NDArray[np.float64]

#: Fewer pauses than this in the whole trace, or not this many times as often in forwards as in
#: backwards, are no garbage collection (only forwards are launched from Python).
MIN_PAUSES, FORWARD_TO_BACKWARD = 3, 3.0

#: Pauses of which this share hits one microbatch of all follow the work, not the collector.
SAME_MICROBATCH, MANY_PAUSES = 0.5, 10

_ONE_WORKER = (
    "only one worker pauses: its collector may have more to do, or another process on its host "
    "takes turns with it"
)


def garbage_cause(durations: Durations, fit: Fit) -> Candidate | None:
    """Garbage collection, where pauses of forwards look like it."""
    forward, backward = pauses(durations, fit, 0), pauses(durations, fit, 1)
    n_forward = sum(int((excess > 0).sum()) for excess in forward)
    n_backward = sum(int((excess > 0).sum()) for excess in backward)
    if n_forward < MIN_PAUSES or n_forward < FORWARD_TO_BACKWARD * n_backward:
        return None
    hit = _workers_paused(durations, fit, forward)
    one_worker = len(hit) == 1 < durations.graph.n_dp * durations.graph.n_pp
    repeated = _on_one_microbatch(forward)
    if repeated > SAME_MICROBATCH and n_forward >= MANY_PAUSES:
        return None
    seconds = np.concatenate([excess[excess > 0] for excess in forward])
    share = n_forward / sum(excess.size for excess in forward)
    backwards = "no backwards do" if n_backward == 0 else "backwards hardly do"
    return Candidate(
        "gc",
        f"{n_forward} forwards ({share:.2%}) on {len(hit)} workers pause for "
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
        _ONE_WORKER if one_worker else "",
        alternative="worker" if one_worker else "",
    )


def _on_one_microbatch(excess: Sequence[Array]) -> float:
    """Share of the pauses on the most paused microbatch; 0 where there are too few to say."""
    n_microbatches = max(pauses_s.shape[1] for pauses_s in excess)
    counts = np.zeros(n_microbatches)
    for pauses_s in excess:
        counts[: pauses_s.shape[1]] += (pauses_s > 0).sum(axis=(0, 2, 3))
    return float(counts.max() / counts.sum()) if n_microbatches >= 4 else 0.0


def _growth(excess: Sequence[Array]) -> float:
    """How much longer pauses become from the first step to the last: leaks make the heap grow."""
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
