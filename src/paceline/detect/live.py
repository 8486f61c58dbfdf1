"""Events of a stream, merged over its ranks as far as the steps so far tell.

In synchronous training a rank that waits for the slow one rises at the same step. If all ranks do,
the job is judged by their median, as a file is (:mod:`paceline.detect.episodes`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from paceline.detect.accept import Accepted
from paceline.detect.bocd import Bocd
from paceline.detect.detector import Detector
from paceline.detect.episodes import TOGETHER, ReliefDates
from paceline.detect.event import LEVEL_KINDS, SLOW_KINDS, Event
from paceline.detect.job import MERGE_STEPS, JobEvent, job_events
from paceline.detect.limits import PAUSE
from paceline.detect.who_works import with_suspects

Array = npt.NDArray[np.float64]

#: Steps that are kept, of many ranks only as many values, but some steps. The last steps before a
#: change show the usual time of a step, if they are not too few.
_KEPT, _VALUES, _LEAST_KEPT = 1024, 1 << 26, 64
_BEFORE, _FEWEST = 128, 20
#: A rank whose excess is below this share of the largest does not wait: of few steps, and of more.
_ALONE_AT_ONCE, _ALONE, _FEW_STEPS = 0.2, 0.5, 5
#: Ranks that wait for each other cannot drift apart. So sums of their steps differ by a step at
#: most, or by this many times the difference within a step (this quantile).
_JITTERS, _MOST = 2.0, 0.9
#: Steps after which ranks that became faster together are forgotten.
_FORGOTTEN = 64


class LiveEvents:
    """Takes the steps of a job one by one, and returns the events of the job.

    Args:
        detector_of: makes a detector of a number of ranks.
        ranks: number of ranks.
        accepted: steps of planned changes.
        gpus: number of GPUs of the job; None: one for each of several ranks.
    """

    def __init__(
        self,
        detector_of: Callable[[int], Detector | Bocd],
        ranks: int,
        accepted: Accepted,
        gpus: int | None = None,
    ) -> None:
        self.detector = detector_of(ranks)
        self._median = detector_of(1) if ranks > 1 else None
        self._ranks, self._accepted, self._gpus = ranks, accepted, gpus
        kept = max(_LEAST_KEPT, min(_KEPT, _VALUES // ranks))
        self._steps: deque[int] = deque(maxlen=kept)
        self._rows: deque[tuple[Array, Array | None]] = deque(maxlen=kept)
        self._dates = ReliefDates(), ReliefDates()
        self._told: set[int] = set()  # slow ranks that do not wait
        self._waiting: list[Event] = []  # of ranks that may wait
        self._of_job: list[Event] = []  # of the median, not told yet
        self._together = False  # the job's fail-slow has been told

    @property
    def slow(self) -> npt.NDArray[np.bool_]:
        """[rank] whether the rank is slow; of ranks that are slow together all or none."""
        if self._median is None:
            slow: npt.NDArray[np.bool_] = self.detector.slow
            return slow
        if self._together:
            return np.repeat(self._median.slow, self._ranks)
        return np.isin(np.arange(self._ranks), list(self._told))

    @property
    def lost_s(self) -> float:
        """Seconds that the fail-slow has lost so far."""
        if self._together and self._median is not None:
            return float(self._median.lost_s.max())
        return float(self.detector.lost_s[self.slow].max(initial=0.0))

    def go_back(self) -> None:
        """The job goes on from an earlier step."""
        self.detector.go_back()
        if self._median is not None:
            self._median.go_back()
        self._steps.clear()
        self._rows.clear()

    def rank_events(
        self, step: int, row: Array, workload: Mapping[str, float] | None = None
    ) -> list[Event]:
        """Take a step; returns the events of single ranks."""
        events = self._accept(self.detector, self.detector.update(step, row, workload))
        return self._dates[0].apply(events)

    def take(
        self,
        step: int,
        row: Array,
        workload: Mapping[str, float] | None = None,
        wait: Array | None = None,
    ) -> list[JobEvent]:
        """Take a step; returns the events of the job that are sure.

        Args:
            step: its number.
            row: [rank] seconds; nan = no sample.
            workload: planned size of the step.
            wait: [rank] seconds in which a rank waited for others; None if unknown.
        """
        self._steps.append(step)
        self._rows.append((row.copy(), None if wait is None else wait.copy()))
        events = self.rank_events(step, row, workload)
        if self._median is None:
            return self._with_gpus(job_events(events, 1))
        middle = np.array([np.nanmedian(row) if np.isfinite(row).any() else np.nan])
        of_job = self._accept(self._median, self._median.update(step, middle, workload))
        self._of_job += [
            event for event in self._dates[1].apply(of_job) if event.kind in LEVEL_KINDS
        ]
        told = [event for event in events if event.kind not in LEVEL_KINDS]
        for event in events:
            if event.kind in LEVEL_KINDS:
                told += self._sort_in(event)
        merged = job_events(told, self._ranks)
        return self._with_gpus(self._named([*merged, *self._of_all(step)]))

    def end(self) -> list[JobEvent]:
        """Events of single ranks that have been held back at the end of the stream."""
        alone = self._waiting if self._verdict(last=True) == "alone" else []
        self._waiting = []
        return self._with_gpus(job_events(alone, self._ranks))

    def _sort_in(self, event: Event) -> list[Event]:
        """The event if its rank is known not to wait; else it is held back or dropped."""
        rises = event.kind in ("onset", "worsening", "faster")
        if event.rank in self._told:
            if event.kind in ("relief", "faster"):
                self._told.discard(event.rank)
            return [event]
        if event.kind == "relief":  # it was too short, or its job has been told
            self._waiting = [other for other in self._waiting if other.rank != event.rank]
        elif not self._together and rises:
            self._waiting.append(event)
        return []

    def _of_all(self, step: int) -> list[JobEvent]:
        """Events of all ranks, or those that were held back, as soon as either is sure."""
        assert self._median is not None
        if self._together:
            events, self._of_job = self._of_job, []
            self._together = bool(self._median.slow.any())
            return [event for one in events for event in self._for_all(one)]
        if not self._waiting and not self._of_job:
            return []
        verdict = self._verdict()
        if verdict == "together" and self._of_job:
            events, self._of_job, self._waiting = self._of_job, [], []
            self._together = bool(self._median.slow.any())
            if not any(event.kind in ("onset", "faster") for event in events):
                return []
            return [event for one in events for event in self._for_all(one)]
        if verdict == "alone" and self._waiting:
            events, self._waiting, self._of_job = self._waiting, [], []
            self._told |= {event.rank for event in events if event.kind != "faster"}
            return job_events(events, self._ranks)
        slow = self.detector.slow
        self._waiting = [
            event for event in self._waiting if slow[event.rank] or step - event.step < _FORGOTTEN
        ]
        if not self._median.slow.any():
            self._of_job = [event for event in self._of_job if event.kind == "faster"]
        return []

    def _verdict(self, *, last: bool = False) -> Literal["together", "alone"] | None:
        """Whether all ranks changed at the same step; None while that is not clear."""
        events = [*self._waiting, *self._of_job]
        rises = [event for event in events if event.kind in SLOW_KINDS]
        if not events:
            return None
        since = min(event.since_step for event in rises or events)
        begin = int(np.searchsorted(np.array(self._steps), since))
        rows = np.array([row for row, _ in self._rows][max(0, begin - _BEFORE) :])
        before, after = np.split(rows, [min(begin, _BEFORE)])
        if len(before) < _FEWEST or not len(after):
            return "alone" if last or len(after) >= MERGE_STEPS else None
        known = np.isfinite(before).any(axis=0) & np.isfinite(after).any(axis=0)
        if known.sum() < 2:
            return "alone"
        before, after = before[:, known], after[:, known]
        with np.errstate(invalid="ignore"):
            jitter_s = float(np.nanquantile(np.ptp(before, axis=1), _MOST))
        step_s = float(np.nanmedian(before))
        given = after[np.isfinite(after).any(axis=1)]
        filled = np.where(np.isnan(given), np.nanmedian(given, axis=1, keepdims=True), given)
        if np.ptp(filled.sum(axis=0)) <= max(step_s, _JITTERS * jitter_s):
            return "together"
        excess_s = _excess(before, after) * (1 if rises else -1)
        least, largest = float(excess_s.min()), float(excess_s.max())
        if least > 0 and least >= TOGETHER * largest:
            return "together"
        if len(after) < _FEW_STEPS:
            alone = least < _ALONE_AT_ONCE * largest
        else:
            alone = least < _ALONE * largest or len(after) >= MERGE_STEPS
        return "alone" if alone or last else None

    def _for_all(self, event: Event) -> list[JobEvent]:
        everyone = tuple(range(self._ranks))
        return [
            replace(one, ranks=everyone, of=self._ranks, together=True)
            for one in job_events([event], 1)
        ]

    def _named(self, events: list[JobEvent]) -> list[JobEvent]:
        """Onsets with the ranks whose own work has risen, if their waits are known."""
        rows = [row for row, _ in self._rows]
        waits = [wait for _, wait in self._rows if wait is not None]
        if len(waits) < len(rows) or not any(event.kind == "onset" for event in events):
            return events
        return with_suspects(
            events, list(self._steps), range(self._ranks), np.array(rows), np.array(waits)
        )

    def _accept(self, detector: Detector | Bocd, events: list[Event]) -> list[Event]:
        if isinstance(detector, Detector):
            return self._accepted.apply(detector, events)
        return events

    def _with_gpus(self, events: Iterable[JobEvent]) -> list[JobEvent]:
        return [replace(event, gpus=self._gpus) for event in events]


def _excess(before: Array, after: Array) -> Array:
    """[rank] seconds by which steps exceed those before, without pauses of all ranks."""
    usual_s = np.nanmedian(before, axis=0)
    excess_s = after - usual_s
    common_s = np.nanmin(excess_s, axis=1, keepdims=True)
    is_pause = common_s > PAUSE * np.median(usual_s)
    total: Array = np.nansum(np.where(is_pause, excess_s - common_s, excess_s), axis=0)
    return total
