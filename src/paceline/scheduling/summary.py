"""Comparison of replays of a queue: their figures, and jobs that lose by a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.scheduling.jobs import Array, Ints
from paceline.scheduling.result import QueueReplay

#: Number of resamples, and the percentiles of an 80% interval.
_RESAMPLES, _BOUNDS = 2000, (10.0, 90.0)
#: A job is worse off if its delay exceeds this share of its time and these seconds.
_WORSE_SHARE, _WORSE_S = 0.01, 60.0


@dataclass(frozen=True)
class Labelled:
    """A replay and its label in comparisons.

    Attributes:
        label: policy, and plans if several are compared.
        replay: the replay.
    """

    label: str
    replay: QueueReplay


def figures(replay: QueueReplay) -> dict[str, float | int | None]:
    """The figures for a comparison of policies; None for figures without jobs."""
    jct = replay.jct_s[np.isfinite(replay.jct_s)]
    wait = replay.wait_s[np.isfinite(replay.wait_s)]

    def at(values: Array, percentile: float) -> float | None:
        return float(np.percentile(values, percentile)) if len(values) else None

    return {
        "jobs": len(replay.jobs),
        "ran": len(jct),
        "refused": len(replay.refused),
        "deadline_ratio": replay.deadline_ratio,
        "late": replay.late,
        "mean_jct_s": float(jct.mean()) if len(jct) else None,
        "median_jct_s": at(jct, 50),
        "p95_jct_s": at(jct, 95),
        "mean_wait_s": float(wait.mean()) if len(wait) else None,
        "p95_wait_s": at(wait, 95),
        "makespan_s": replay.makespan_s,
        "gpu_hours": replay.gpu_hours,
        "utilisation": replay.utilisation,
        "restarts": int(replay.restarts.sum()),
    }


def worse_off(before: QueueReplay, after: QueueReplay) -> Ints:
    """Jobs that end later than before, or no longer run, the worst first.

    Later means by more than 1% of their time and by more than a minute.
    """
    later = after.end_s - before.end_s
    later[np.isfinite(before.end_s) & ~np.isfinite(after.end_s)] = np.inf
    worse = np.flatnonzero(later > np.maximum(_WORSE_S, _WORSE_SHARE * before.jct_s))
    order: Ints = worse[np.argsort(-later[worse], kind="stable")]
    return order


def interval_of_mean(values: Array, seed: int = 0) -> tuple[float, float] | None:
    """80% bootstrap interval of a mean over windows; None with fewer than three."""
    if len(values) < 3:
        return None
    draws = np.random.default_rng(seed).choice(values, (_RESAMPLES, len(values)))
    low, high = np.percentile(draws.mean(axis=1), _BOUNDS)
    return float(low), float(high)


@dataclass(frozen=True)
class Mean:
    """A figure over groups of jobs.

    Attributes:
        mean: mean over the groups that have the figure; None = no group has it.
        interval: 80% bootstrap interval of it; None with fewer than three groups.
    """

    mean: float | None
    interval: tuple[float, float] | None


def means(groups: Mapping[str, Sequence[Labelled]]) -> dict[str, dict[str, Mean]]:
    """Label of a replay -> figure -> its mean over separately replayed groups."""
    by_label: dict[str, list[dict[str, float | int | None]]] = {}
    for entries in groups.values():
        for entry in entries:
            by_label.setdefault(entry.label, []).append(figures(entry.replay))
    return {
        label: {name: _mean([row[name] for row in rows]) for name in rows[0]}
        for label, rows in by_label.items()
    }


def _mean(values: Sequence[float | int | None]) -> Mean:
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    return Mean(float(known.mean()) if len(known) else None, interval_of_mean(known))
