"""What the slow-downs that a detector saw cost: for the API and the pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.detect.event import SLOW_KINDS
from paceline.monitor.alerts.rules import gpu_hours_at_stake

Row = Mapping[str, Any]

#: Hours over which what is at stake is told.
_DAY_H = 24.0


def with_cost(event: Row, gpus: int | None = None) -> dict[str, Any]:
    """An event with the GPU-hours that are lost so far, and those that a day loses at its level.

    Args:
        event: its row.
        gpus: of the job, where the row does not say them.
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
    """What an event with its cost has lost and will lose, in words; "" where neither is known."""
    phrases = []
    if event["lost_gpu_hours"]:
        phrases.append(f"{event['lost_gpu_hours']:,.3g} GPU-hours lost so far")
    if event["at_stake_gpu_hours"]:
        phrases.append(f"{event['at_stake_gpu_hours']:,.3g} a day at stake")
    return "; ".join(phrases)
