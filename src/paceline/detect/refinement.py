"""Refined factors of events, from all samples of their levels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from paceline.detect import columns
from paceline.detect.detector import Detector
from paceline.detect.estimate import estimate
from paceline.detect.event import LEVEL_KINDS, SLOW_KINDS, Event
from paceline.detect.warm_up import SETTLE_MOST


class Refinement:
    """Refines the factors of events until the next event of their rank.

    Args:
        detector: the source of the events.
    """

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self._events: list[Event] = []
        self._open: dict[int, int] = {}  # rank -> index of its last event
        self._healthy_s: dict[int, float] = {}  # rank -> healthy level of that event
        self._before = detector.columns()
        # [rank] whether its level is that of a new start, which may have no verdict yet.
        self._settling = np.zeros(detector.ranks, dtype=bool)

    def take(self, events: Iterable[Event]) -> None:
        """Take the events of an update; call it after each update, even without events."""
        for event in events:
            if event.kind in LEVEL_KINDS:
                self._close(event.rank)
                if event.kind in SLOW_KINDS or event.kind == "faster":
                    self._open[event.rank] = len(self._events)
                    self._healthy_s[event.rank] = self._former_healthy_s(event)
            self._events.append(event)
        if self._open:
            floats, wholes = self._detector.columns()
            self._settling &= wholes[:, columns.AGE] < SETTLE_MOST
            self._settling |= wholes[:, columns.SETTLE] > 0
            for array, before in zip((floats, wholes), self._before, strict=True):
                array[self._settling] = before[self._settling]
            self._before = floats, wholes

    def events(self) -> list[Event]:
        """All events so far, with refined factors."""
        for rank in list(self._open):
            self._close(rank)
        return self._events

    def _former_healthy_s(self, event: Event) -> float:
        """The healthy level before a faster one, which takes its place; nan for other events."""
        if event.kind != "faster":
            return math.nan
        floats, _ = self._detector.columns()
        return float(floats[event.rank, columns.LEVEL_S]) / event.factor

    def _close(self, rank: int) -> None:
        place = self._open.pop(rank, None)
        if place is None:
            return
        floats, wholes = (array[rank] for array in self._before)
        former_s = self._healthy_s[rank]
        healthy_s = floats[columns.HEALTHY_S] if math.isnan(former_s) else former_s
        factor = float(floats[columns.LEVEL_S] / healthy_s)
        refined = estimate(floats, wholes, factor)
        self._events[place] = replace(self._events[place], refined=refined)
