"""Advice about a fail-slow if only step times are known: ignore it, or restart (S1, S4).

The slow replica or place is unknown, so S2 and S3 do not apply. The rule is the planner's ski
rental (falcon paper, Algorithm 1): a restart pays when the loss since the onset equals its cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.detect.event import SLOW_KINDS
from paceline.errors import MitigateError
from paceline.mitigate.fault import whole_number
from paceline.units import duration

#: Number of steps in ``at_stake_s_per_1000_steps``, a field of events of ``paceline detect
#: --json``.
_STAKE_STEPS = 1000


@dataclass(frozen=True)
class Restart:
    """Advice about a restart.

    Attributes:
        step: step of the line behind the advice.
        due_step: first step at which a restart pays; None = never (not allowed, or no loss).
        is_due: whether that step is reached.
        lost_s: seconds lost since the onset.
        overhead_s: cost of a restart; None = not allowed.
        factor: factor of the fail-slow; None = over.
    """

    step: int
    due_step: int | None
    is_due: bool
    lost_s: float
    overhead_s: float | None
    factor: float | None

    def explain(self) -> str:
        """The advice as text."""
        head = f"step {self.step:,}:"
        if self.factor is None:
            return f"{head} the fail-slow is over; {duration(self.lost_s)} lost: nothing to do"
        lost = f"{head} {self.factor:.2f}x, {duration(self.lost_s)} lost"
        if self.overhead_s is None or self.due_step is None:
            return f"{lost}: ignore it (S1); a restart is not allowed, or gains nothing"
        if self.is_due:
            return (
                f"{lost}, as much as a restart costs ({duration(self.overhead_s)}): run paceline "
                "validate, checkpoint, and restart without the slow machine (S4)"
            )
        return (
            f"{lost}: ignore it (S1) until step {self.due_step:,}, then checkpoint and restart (S4)"
        )

    def to_mapping(self) -> dict[str, Any]:
        """The advice in the form of JSON."""
        return {
            "step": self.step,
            "strategy": "s4" if self.is_due else "s1",
            "due_step": self.due_step,
            "lost_s": self.lost_s,
            "overhead_s": self.overhead_s,
            "factor": self.factor,
            "text": self.explain(),
        }


class TimesOnly:
    """Reads the lines of ``paceline detect --json`` and, if present, step times.

    Args:
        overhead_s: cost of a restart; None = not allowed.
    """

    def __init__(self, overhead_s: float | None) -> None:
        self.overhead_s = overhead_s
        self._factor: float | None = None
        self._healthy_s = math.nan
        self._lost_s = 0.0
        self._step = 0
        self._is_told = False

    def take(self, line: Mapping[str, Any]) -> Restart | None:
        """The advice after a line, if it is new.

        Raises:
            MitigateError: the line is neither an event nor a step.
        """
        try:
            step = whole_number(line["step"])
            if "kind" in line:
                return self._event(step, line)
            value = line["duration_s"]
            return None if value is None else self._time(step, float(value))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise MitigateError(
                "needs numbers for step (a whole one) and duration_s, or an event of detect"
            ) from None

    def _event(self, step: int, line: Mapping[str, Any]) -> Restart | None:
        kind = line["kind"]
        if kind in SLOW_KINDS:
            self._factor = float(line["factor"])
            stake = line.get("at_stake_s_per_1000_steps")
            if stake is not None and self._factor > 1:
                self._healthy_s = float(stake) / _STAKE_STEPS / (self._factor - 1)
            elif line.get("healthy_s") is not None:
                self._healthy_s = float(line["healthy_s"])
            self._lost_s = max(self._lost_s, float(line.get("lost_s") or 0.0))
            self._step, self._is_told = step, False
            return self._answer(step)
        if kind in ("relief", "faster") and self._factor is not None:
            lost_s = max(self._lost_s, float(line.get("lost_s") or 0.0))
            self._factor, self._lost_s = None, 0.0
            return Restart(step, None, False, lost_s, self.overhead_s, None)
        return None

    def _time(self, step: int, duration_s: float) -> Restart | None:
        if self._factor is None or math.isnan(self._healthy_s) or step <= self._step:
            return None
        self._step = step
        self._lost_s += max(duration_s - self._healthy_s, 0.0)
        answer = self._answer(step)
        if not answer.is_due or self._is_told:
            return None
        self._is_told = True
        return answer

    def _answer(self, step: int) -> Restart:
        """The present advice; ``due_step`` assumes that the slowdown stays."""
        due_step = None
        factor = self._factor or 1.0
        per_step_s = (factor - 1) * self._healthy_s
        left_s = math.inf if self.overhead_s is None else self.overhead_s - self._lost_s
        if left_s <= 0:
            due_step = step
        elif per_step_s > 0 and left_s < math.inf:
            due_step = step + math.ceil(left_s / per_step_s)
        is_due = left_s <= 0
        return Restart(step, due_step, is_due, self._lost_s, self.overhead_s, self._factor)
