"""Cost of detected slowdowns, for the API and the pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.detect.event import SLOW_KINDS
from paceline.monitor.alerts.rules import gpu_hours_at_stake, lost_so_far_s
from paceline.monitor.levels import LevelChanges
from paceline.monitor.loss_range import slow_factor
from paceline.units import gpu_hours, moment

Row = Mapping[str, Any]

#: Hours of the stake.
_DAY_H = 24.0


def with_cost(event: Row, gpus: int | None = None) -> dict[str, Any]:
    """An event with the GPU-hours lost so far, and the loss per day at its level.

    Args:
        event: its row.
        gpus: number of the job's GPUs, if the row has none.
    """
    gpus = event.get("gpus", gpus)
    lost_s, factor = event["lost_s"], event["factor"]
    is_slow = event["kind"] in (*SLOW_KINDS, "slow-start") and factor is not None
    return {
        **event,
        "lost_gpu_hours": None if lost_s is None or gpus is None else lost_s * gpus / 3600,
        "at_stake_gpu_hours": gpu_hours_at_stake(gpus, factor, _DAY_H) if is_slow else None,
    }


def cost_text(event: Row) -> str:
    """Past and future loss of an event in words; "" if both are unknown."""
    phrases = []
    if event["lost_gpu_hours"]:
        lost = f"{gpu_hours(event['lost_gpu_hours'])} GPU-hours lost"
        phrases.append(f"{lost} by {moment(event['at'])} UTC")
    if event["at_stake_gpu_hours"]:
        at_stake = gpu_hours(event["at_stake_gpu_hours"])
        phrases.append(f"{at_stake} GPU-hours a day at stake at this level")
    return "; ".join(phrases)


def lost_by_now(job: Row, changes: LevelChanges) -> str:
    """GPU-hours lost to the current fail-slow until the job was last seen, in words.

    "" without a fail-slow, or if the GPUs or the loss are unknown.
    """
    hours = _gpu_hours_lost(job, changes)
    if hours is None:
        return ""
    return f"{gpu_hours(hours)} GPU-hours lost by {moment(job['seen_at'])} UTC"


def slow_stake(job: Row) -> float | None:
    """GPU-hours that the next day loses at the level of the current fail-slow.

    None if they are unknown, or if the job does not run.
    """
    factor = slow_factor(job) if job["status"] == "running" else None
    return None if factor is None else gpu_hours_at_stake(job["gpus"], factor, _DAY_H)


def _gpu_hours_lost(job: Row, changes: LevelChanges | None) -> float | None:
    onset = None if changes is None else changes.going_on(job, settled=True)
    if onset is None or not job["gpus"] or onset["factor"] is None:
        return None
    hours: float = lost_so_far_s(onset, job) * job["gpus"] / 3600
    return hours


@dataclass(frozen=True)
class StepLoss:
    """Cost of a job's current fail-slow, by its step times.

    Attributes:
        slowdown: step time over the healthy one, as in its alert.
        waste: 1 - 1 / slowdown.
        gpu_hours_lost: loss until the job was last seen; None if its GPUs or the loss are unknown.
    """

    slowdown: float
    waste: float
    gpu_hours_lost: float | None


def step_loss(job: Row, changes: LevelChanges | None) -> StepLoss | None:
    """The loss of a job's current fail-slow; None without one.

    Args:
        job: row of the job.
        changes: changes of its level; None without any.
    """
    slowdown = slow_factor(job)
    if slowdown is None:
        return None
    return StepLoss(slowdown, 1 - 1 / slowdown, _gpu_hours_lost(job, changes))
