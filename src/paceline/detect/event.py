"""Events of a detector."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from paceline.units import duration

Kind = Literal["onset", "worsening", "partial-relief", "relief", "faster", "silent", "clock-jump"]
#: Kinds of events that leave a rank slow, and all kinds of level changes.
SLOW_KINDS = ("onset", "worsening", "partial-relief")
LEVEL_KINDS = (*SLOW_KINDS, "relief", "faster")


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 step", "1,000 steps"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


@dataclass(frozen=True)
class Estimate:
    """The ratio of a level to the healthy level, with its interval.

    Attributes:
        factor: the level over the healthy level.
        low, high: its 95% interval.
        samples: number of samples of the level.
    """

    factor: float
    low: float
    high: float
    samples: int

    def explain(self) -> str:
        """Factor, interval and number of samples."""
        return f"{self.factor:.2f}x ({self.low:.2f} to {self.high:.2f}; {self.samples:,} samples)"

    def to_mapping(self) -> dict[str, Any]:
        """The same as JSON values."""
        low, high = (None if not math.isfinite(value) else value for value in (self.low, self.high))
        return {"factor": self.factor, "low": low, "high": high, "samples": self.samples}


@dataclass(frozen=True)
class Event:
    """Something happened to a rank.

    Attributes:
        kind: for a fail-slow "onset", "worsening", "partial-relief" or "relief". "faster": the rank
            became faster than healthy; a relief tells that this level did not last. "silent": the
            rank sends no samples. "clock-jump": a duration is impossible, such as 0.
        rank: the rank.
        step: the step of the update that returned the event.
        since_step: estimated first step of the new level. For a relief because the onset was too
            small, the onset's; silent: the first step without a sample; clock-jump: the step.
        factor: robust mean of the step time since ``since_step``, over the healthy one until then;
            relief: the mean of the episode, nan if none ended; silent and clock-jump: nan.
        lost_s: seconds lost since the onset.
        healthy_s: the healthy step time; faster: the new one.
        before_factor: the new level over the previous level; nan without a change of level.
        planned: whether the plan explains the change; always False, as such changes are no events.
        estimate: ``factor`` with its interval; None for a relief or without a change of level.
        refined: the estimate from all samples of the level; None until the level ends.
        bursts_up_to: relief of a recurring burst: length in samples up to which further bursts are
            not reported. Otherwise 0.
        bursts_every: period of these bursts in samples, if bursts at other times are reported.
            Otherwise 0.
    """

    kind: Kind
    rank: int
    step: int
    since_step: int
    factor: float
    lost_s: float
    healthy_s: float
    before_factor: float = math.nan
    planned: bool = False
    estimate: Estimate | None = None
    refined: Estimate | None = None
    bursts_up_to: int = 0
    bursts_every: int = 0

    def explain(self) -> str:
        """The event in words and numbers."""
        head = f"step {self.step:,}: rank {self.rank}"
        if self.kind == "onset":
            return (
                f"{head} is {self.factor:.2f}x slower since step {self.since_step:,} "
                f"({self.healthy_s * self.factor:.4g} s instead of {self.healthy_s:.4g} s); "
                f"{duration(self.lost_s)} lost so far"
            )
        if self.kind == "relief" and math.isnan(self.factor):
            return f"{head} {back(self.since_step, self.before_factor)}"
        if self.kind == "relief":
            return (
                f"{head} is healthy again since step {self.since_step:,}; it was "
                f"{self.factor:.2f}x slower and lost {duration(self.lost_s)}"
                f"{recurring(self.bursts_up_to, self.bursts_every)}"
            )
        if self.kind in ("worsening", "partial-relief"):
            verb = "slower still" if self.kind == "worsening" else "partly relieved"
            return (
                f"{head} is {verb} since step {self.since_step:,}: {self.factor:.2f}x as long as "
                f"healthy, {self.before_factor:.2f}x the level before; {duration(self.lost_s)} "
                "lost so far"
            )
        if self.kind == "faster":
            return (
                f"{head} is faster since step {self.since_step:,}: {self.factor:.2f}x "
                f"the former healthy time, now {self.healthy_s:.4g} s"
            )
        if self.kind == "silent":
            return f"{head} has given no sample since step {self.since_step:,}"
        return f"{head} reports an impossible duration: its clock jumped"

    def to_mapping(self) -> dict[str, Any]:
        """The same as JSON values."""
        factor = None if math.isnan(self.factor) else self.factor
        before = None if math.isnan(self.before_factor) else self.before_factor
        return {
            "kind": self.kind,
            "rank": self.rank,
            "step": self.step,
            "since_step": self.since_step,
            "factor": factor,
            "before_factor": before,
            "planned": self.planned,
            "lost_s": self.lost_s,
            "healthy_s": None if math.isnan(self.healthy_s) else self.healthy_s,
            **estimates(self.estimate, self.refined),
            "bursts_up_to": self.bursts_up_to,
            "bursts_every": self.bursts_every,
            "text": self.explain(),
        }


def back(since_step: int, before_factor: float) -> str:
    """A relief without a fail-slow; ``before_factor`` is above 1 after a faster level."""
    short = ", as the faster level did not last" if before_factor > 1 else ""
    return f"healthy again since step {since_step:,}{short}"


def recurring(up_to: int, every: int) -> str:
    """A clause about recurring bursts; empty without any."""
    if not up_to:
        return ""
    when = f" every {every} steps" if every else ""
    return f"; bursts recur{when}: those of up to {up_to} steps are not reported from now on"


def estimates(first: Estimate | None, refined: Estimate | None) -> dict[str, Any]:
    """Both estimates as JSON values."""
    return {
        "factor_low": None if first is None else first.to_mapping()["low"],
        "factor_high": None if first is None else first.to_mapping()["high"],
        "refined": None if refined is None else refined.to_mapping(),
    }
