"""Watch of a running job through the NCCL plugin's calls: period, onset, slow ranks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.detect.detector import Detector
from paceline.detect.event import SLOW_KINDS
from paceline.detect.hang import hang_of
from paceline.detect.job import JobEvent, job_events
from paceline.detect.limits import WARM_UP
from paceline.detect.locate import locate_in_calls
from paceline.detect.stacks import Stacks, find_processes, stacks_of
from paceline.detect.steps_of_calls import StepTimes, step_times
from paceline.errors import DetectError
from paceline.mitigate.strategies import OVERHEAD_S, RESTART
from paceline.mitigate.times_only import TimesOnly
from paceline.monitor.pulse import Pulse
from paceline.sources.call_logs.files import load_call_log
from paceline.sources.call_logs.nccl_profiler import SUFFIX
from paceline.trace.calls import CallLog
from paceline.watch.examiner import Examine, Examiner
from paceline.watch.news import News, NewsKind

#: Each look reads all calls again, so the pause before the next is this multiple of its time.
_REST = 4.0
#: Steps by which the begin of the same event may move as more calls are read.
_SAME_STEPS = 5


def has_calls(folder: Path) -> bool:
    """Whether the plugin writes to the folder."""
    return any(folder.glob(f"*{SUFFIX}"))


def _bytes_in(folder: Path) -> int:
    size = 0
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # a process removes its oldest files
            size += path.stat().st_size
    return size


class CallsWatch:
    """Reads the folder of a job with the plugin, and reports news.

    Steps are counted from the first whole one in the newest files that each rank keeps.

    Args:
        folder: the job's PACELINE_RECORD folder.
        overheads: strategy -> one-time cost in seconds; None forbids it. Calls show no microbatches
            and no placement, so only a restart (S4) is compared with S1.
        examine: function that pauses the job and validates its ranks; called at the look after an
            onset.
        stacks: whether to read the stacks of this host's ranks in a hang.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        folder: Path,
        *,
        overheads: Mapping[str, float | None] | None = None,
        examine: Examine | None = None,
        stacks: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder, self._clock, self._may_look = folder, clock, stacks
        self._pulse = Pulse()
        self._last: tuple[CallLog, StepTimes] | None = None
        self._planner = TimesOnly({**OVERHEAD_S, **(overheads or {})}[RESTART])
        self._examiner = None if examine is None else Examiner(examine, clock)
        self._suspects: set[int] | None = None  # fail-slow to be examined next
        self._onset_s = 0.0
        self._read_bytes, self._next_s = -1, 0.0
        self._told: list[tuple[str, float]] = []  # kind, when the first slow step began
        self._unnamed: list[float] = []  # begins of onsets without suspects
        self._is_watching = False
        self._step = 0
        self._who: list[Collection[int]] = []  # ranks of each suspect of the last onset

    def look(self) -> list[News]:
        """Read the calls, and report what is new.

        Raises:
            TraceError: a file cannot be read.
        """
        if self._suspects is not None:
            return self._examine(self._suspects)
        size = _bytes_in(self.folder)
        began_s = self._clock()
        if size == self._read_bytes:
            return self._hang(began_s)
        if began_s < self._next_s:
            return []
        self._pulse.beat(began_s)
        self._read_bytes = size
        log, _ = load_call_log([self.folder])
        try:
            steps = step_times(log)
        except DetectError:
            return []  # too few calls
        finally:
            self._next_s = began_s + _REST * (self._clock() - began_s)
        self._last = log, steps
        return [*self._watching(steps), *self._changes(log, steps)]

    def _hang(self, now_s: float) -> list[News]:
        """A hanging step, reported once, with the ranks that lack the last calls."""
        if self._last is None:
            return []
        log, steps = self._last
        step_s = float(np.median(steps.duration_s))
        waited_s = self._pulse.overdue_s(now_s, step_s)
        if waited_s is None:
            return []
        self._pulse.tell()
        table = steps.table()
        event = hang_of(table.steps, table.ranks, table.duration_s, waited_s, step_s, log)
        if self._may_look:
            try:
                stacks = stacks_of(find_processes(len(table.ranks)))
            except DetectError as error:
                stacks = Stacks((), (str(error),))
            event = replace(event, stacks=stacks)
        said = event.to_mapping()
        details = tuple(event.details())
        return [News("change", now_s, event.step, said["text"], None, said, details)]

    def _watching(self, steps: StepTimes) -> list[News]:
        if self._is_watching:
            return []
        self._is_watching = True
        table = steps.table()
        ranks = len(table.ranks)
        text = f"watching {self.folder}: {ranks:,} ranks; {steps.explain()}"
        return [News("watching", self._clock(), int(table.steps[-1]), text, None, {"ranks": ranks})]

    def _changes(self, log: CallLog, steps: StepTimes) -> list[News]:
        table = steps.table()
        if len(table.steps) <= WARM_UP:
            return []
        detector = Detector(len(table.ranks))
        events = [
            event
            for step, row in zip(table.steps.tolist(), table.duration_s, strict=True)
            for event in detector.update(step, row)
        ]
        merged = job_events(events, len(table.ranks))
        news = []
        for event in locate_in_calls(merged, log, steps):
            since_s = _began_s(steps, event.since_step)
            if not self._is_told(event, since_s, steps):
                self._told.append((event.kind, since_s))
                news += self._say(event, since_s, int(table.steps[-1]))
            elif event.kind == "onset" and event.suspects is not None:
                news += self._say_late(event, since_s, steps)
        if detector.slow.any() and any(one.fields.get("kind") in SLOW_KINDS for one in news):
            news += self._ask(news[-1].step)
        return news

    def _ask(self, step: int) -> list[News]:
        """Schedule the examination of a newly slow job for the next look."""
        if self._examiner is None or self._examiner.is_resting:
            return []
        self._suspects = {rank for ranks in self._who for rank in ranks}
        text = "asks all ranks to stop at one collective, to validate them"
        return [self._news("pause-asked", step, text, self._onset_s)]

    def _examine(self, suspects: set[int]) -> list[News]:
        self._suspects = None
        assert self._examiner is not None
        return [
            self._news(kind, self._step, text, self._onset_s, fields)
            for kind, text, fields in self._examiner.examine(suspects)
        ]

    def _is_told(self, event: JobEvent, since_s: float, steps: StepTimes) -> bool:
        apart_s = _SAME_STEPS * float(np.median(steps.duration_s))
        return any(
            kind == event.kind and abs(told_s - since_s) <= apart_s for kind, told_s in self._told
        )

    def _say(self, event: JobEvent, since_s: float, step: int) -> list[News]:
        said = event.to_mapping()
        self._step = step
        news = [self._news("change", step, said["text"], since_s, said)]
        if event.kind == "onset":
            self._onset_s, self._who = since_s, []
            if event.suspects is not None:
                news.append(self._say_who(event, since_s, step))
            else:
                self._unnamed.append(since_s)
        plan = self._planner.take(said)
        if plan is not None:
            news.append(self._news("plan", step, plan.explain(), since_s, plan.to_mapping()))
        return news

    def _say_late(self, event: JobEvent, since_s: float, steps: StepTimes) -> list[News]:
        """News of the suspects, if these were unknown at the report of the onset."""
        apart_s = _SAME_STEPS * float(np.median(steps.duration_s))
        same = [began_s for began_s in self._unnamed if abs(began_s - since_s) <= apart_s]
        for began_s in same:
            self._unnamed.remove(began_s)
        return [self._say_who(event, since_s, int(steps.step.max()))] if same else []

    def _say_who(self, event: JobEvent, since_s: float, step: int) -> News:
        suspects = event.suspects or ()
        self._who = [suspect.ranks for suspect in suspects]
        who = [suspect.to_mapping() for suspect in suspects]
        kind: NewsKind = "named" if suspects else "not-named"
        return self._news(kind, step, event.who, since_s, {"who": who})

    def _news(
        self,
        kind: NewsKind,
        step: int,
        text: str,
        since_s: float,
        fields: Mapping[str, Any] | None = None,
    ) -> News:
        now_s = self._clock()
        return News(kind, now_s, step, text, max(now_s - since_s, 0.0), fields or {})


def _began_s(steps: StepTimes, step: int) -> float:
    """Begin of a step on its first rank."""
    return float(steps.start_s[steps.step == max(step, int(steps.step.min()))].min())
