"""Events of a detector."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["onset", "worsening", "partial-relief", "relief", "faster", "silent", "clock-jump"]
#: Changes of the level: those after which a rank is slow, and all.
SLOW_KINDS = ("onset", "worsening", "partial-relief")
LEVEL_KINDS = (*SLOW_KINDS, "relief", "faster")


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.3g} s"


def counted(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


@dataclass(frozen=True)
class Estimate:
    """A level's factor to the healthy one, with an interval.

    Attributes:
        factor: how many times as long as healthy.
        low, high: hold the true one in 95% of the cases.
        samples: of the level, that it rests on.
    """

    factor: float
    low: float
    high: float
    samples: int

    def explain(self) -> str:
        """In numbers."""
        return f"{self.factor:.3f}x ({self.low:.3f} to {self.high:.3f}; {self.samples:,} samples)"

    def to_mapping(self) -> dict[str, Any]:
        """As JSON knows it."""
        low, high = (None if not math.isfinite(value) else value for value in (self.low, self.high))
        return {"factor": self.factor, "low": low, "high": high, "samples": self.samples}


@dataclass(frozen=True)
class Event:
    """Something happened to a rank.

    Attributes:
        kind: "onset" of a fail-slow, its "worsening", its "partial-relief", its "relief". Or a rank
            that became "faster" than healthy for good, one that fell "silent", or a "clock-jump" (a
            duration that is not above 0).
        rank: whose.
        step: the step of the update that returned the event.
        since_step: changes of level: the step in which it is estimated to have begun (ended);
            silent: the first step without a sample; clock-jump: the step.
        factor: step time over the healthy one. It is the median since ``since_step``, at a relief
            the mean of the episode; nan for a silent rank and for a clock that jumps.
        lost_s: seconds lost since the onset.
        healthy_s: the healthy step time; at "faster" the new one.
        before_factor: the new level over the level before; nan where no level changed.
        planned: whether plan explains the change; False, as such changes are no events.
        estimate: ``factor`` with an interval; None where it is not that of one level.
        refined: the same once all samples of the level were there; None before.
        bursts_up_to: at the relief of a burst that recurs: bursts up to this many samples belong to
            the job from now on, and are not told. 0: none do, or this was no burst.
        bursts_every: samples from the begin of one to the next, where only those in their place are
            not told. 0: they come at any time.
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
                f"{self.lost_s:.3g} s lost so far"
            )
        if self.kind == "relief":
            return (
                f"{head} is healthy again since step {self.since_step:,}; it was "
                f"{self.factor:.2f}x slower and lost {self.lost_s:.3g} s"
                f"{recurring(self.bursts_up_to, self.bursts_every)}"
            )
        if self.kind in ("worsening", "partial-relief"):
            verb = "slower still" if self.kind == "worsening" else "partly relieved"
            return (
                f"{head} is {verb} since step {self.since_step:,}: {self.factor:.2f}x as long as "
                f"healthy, {self.before_factor:.2f}x the level before; {self.lost_s:.3g} s lost "
                "so far"
            )
        if self.kind == "faster":
            return (
                f"{head} is faster for good since step {self.since_step:,}: {self.factor:.2f}x "
                f"of what was healthy ({self.healthy_s:.4g} s)"
            )
        if self.kind == "silent":
            return f"{head} has given no sample since step {self.since_step:,}"
        return f"{head} reports a duration that cannot be: its clock jumped"

    def to_mapping(self) -> dict[str, Any]:
        """As JSON knows it."""
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


def recurring(up_to: int, every: int) -> str:
    """A clause on bursts that recur; empty where there are none."""
    if not up_to:
        return ""
    when = f" every {every} steps" if every else ""
    return f"; bursts recur{when}: those of up to {up_to} steps are not told from now on"


def estimates(first: Estimate | None, refined: Estimate | None) -> dict[str, Any]:
    """Both as JSON knows them."""
    return {
        "factor_low": None if first is None else first.to_mapping()["low"],
        "factor_high": None if first is None else first.to_mapping()["high"],
        "refined": None if refined is None else refined.to_mapping(),
    }
