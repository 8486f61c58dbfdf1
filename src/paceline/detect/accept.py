"""Changes that a user declares as planned: their new level is healthy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paceline.detect.detector import Detector
from paceline.detect.event import SLOW_KINDS, Event

#: A change within this distance of the step matches, as its begin is an estimate.
NEAR_STEPS = 10


@dataclass(frozen=True)
class Accepted:
    """Steps in which planned changes began.

    Attributes:
        steps: their numbers.
        near: largest distance of a change's begin, in steps.
    """

    steps: tuple[int, ...] = ()
    near: int = NEAR_STEPS

    def apply(self, detector: Detector, events: Iterable[Event]) -> list[Event]:
        """The unplanned events; planned ones make their rank's level healthy."""
        others = []
        for event in events:
            if event.kind in SLOW_KINDS and self._covers(event):
                detector.accept(event.rank)
            else:
                others.append(event)
        return others

    def _covers(self, event: Event) -> bool:
        return any(abs(event.since_step - step) <= self.near for step in self.steps)
