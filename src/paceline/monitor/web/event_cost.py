"""Cost of detected slowdowns, for the API and the pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.detect.event import SLOW_KINDS
from paceline.monitor.alerts.course import lost_so_far_s
from paceline.monitor.alerts.judgement import gpu_hours_at_stake
from paceline.monitor.levels import LevelChanges
from paceline.monitor.loss_range import may_go_on, slow_factor
from paceline.units import gpu_hours, moment

Row = Mapping[str, Any]

#: Hours of the stake.
_DAY_H = 24.0


@dataclass(frozen=True)
class EventCost:
    """Past and future loss of an event.

    Attributes:
        lost_gpu_hours: loss until ``until``; None if it or the job's GPUs are unknown.
        at_stake_gpu_hours: loss per day at the event's level; None if it is unknown, if the event
            is no slowness, or if the job does not run.
        until: the time of the event; a step of a job that does not run.
    """

    lost_gpu_hours: float | None
    at_stake_gpu_hours: float | None
    until: str

    @property
    def text(self) -> str:
        """The losses in words; "" if both are unknown."""
        phrases = []
        if self.lost_gpu_hours:
            phrases.append(f"{gpu_hours(self.lost_gpu_hours)} GPU-hours lost by {self.until}")
        if self.at_stake_gpu_hours:
            at_stake = gpu_hours(self.at_stake_gpu_hours)
            phrases.append(f"{at_stake} GPU-hours a day at stake at this level")
        return "; ".join(phrases)


def event_cost(event: Row, job: Row, changes: LevelChanges | None = None) -> EventCost:
    """The loss of an event. A fail-slow that lasted until the job's end has the loss until then.

    Args:
        event: its row.
        job: ``gpus`` and ``status`` of its job; with ``changes``, the whole row. A recording pushed
            by hand is a job that does not run.
        changes: changes of the job's level; None: the loss is that at the event.
    """
    gpus, runs, step = job["gpus"], job["status"] == "running", event["step"]
    lost_s, factor = event["lost_s"], event["factor"]
    is_slow = event["kind"] in (*SLOW_KINDS, "slow-start") and factor is not None
    if changes is not None and _lasted(event, job, changes):
        lost_s, step = lost_so_far_s(event, job), max(step, job["last_step"] or 0)
    return EventCost(
        None if lost_s is None or gpus is None else lost_s * gpus / 3600,
        gpu_hours_at_stake(gpus, factor, _DAY_H) if is_slow and runs else None,
        f"{moment(event['at'])} UTC" if runs else f"step {step:,}",
    )


def _lasted(event: Row, job: Row, changes: LevelChanges) -> bool:
    """Whether the event left a job slow that does not run any more."""
    if may_go_on(job) or changes.slow is None or changes.onset is None:
        return False
    last = changes.onset
    is_level = event["kind"] in SLOW_KINDS and event["factor"] is not None
    return is_level and (event["at"], event["text"]) == (last["at"], last["text"])


def with_cost(event: Row) -> dict[str, Any]:
    """An event of the API with its losses.

    Args:
        event: its row, with ``gpus`` and ``job_status`` of its job.
    """
    cost = event_cost(event, {"gpus": event["gpus"], "status": event["job_status"]})
    return {
        **{name: value for name, value in event.items() if name != "job_status"},
        "lost_gpu_hours": cost.lost_gpu_hours,
        "at_stake_gpu_hours": cost.at_stake_gpu_hours,
    }


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
