"""Watch of a running job through its recorder's folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.detect import locate
from paceline.detect.detector import Detector
from paceline.detect.event import SLOW_KINDS
from paceline.detect.hang import hang_of
from paceline.detect.job import JobEvent, job_events
from paceline.detect.locate import STEPS_BEFORE
from paceline.detect.stacks import is_here, processes_of, stacks_of
from paceline.detect.steps_of_calls import step_times
from paceline.detect.validation_command import validation_command
from paceline.detect.validation_files import ask_validation, read_validation
from paceline.detect.who import Suspect
from paceline.detect.who_calls import is_comparable, who_from_calls
from paceline.errors import PacelineError, TraceError
from paceline.mitigate.strategies import OVERHEAD_S
from paceline.monitor.pulse import Pulse
from paceline.monitor.recording_tail import RecordingTail
from paceline.sources.call_logs.files import load_call_log
from paceline.sources.recording.status import record_now
from paceline.trace import Trace
from paceline.watch.examiner import Examine, Examiner, compare
from paceline.watch.news import News, NewsKind
from paceline.watch.plan import name_suspects, plan_of, read_steps
from paceline.watch.rows import Rows

#: Profiled steps needed for suspects, after the first slow one, which may be partly slow.
PROFILED_STEPS = 4
#: Time without these steps or a validation after which their absence is reported.
PATIENCE_S = 60.0
#: Largest number of ranks; a larger one shows a damaged header.
_MAX_RANKS = 1_000_000
#: Steps whose median is the step time, and steps with known times at an onset.
_RECENT, _KNOWN = 20, 512


class Watch:
    """Reads a job's folder; after an onset it finds suspects, a validation, and a plan.

    Args:
        folder: folder of the run.
        collectives: call logs of the job, which also show slow ranks.
        overheads: strategy -> one-time cost in seconds; None forbids it.
        steps: number of requested profiled steps.
        validate: whether to request a validation of suspects from the job
            (:mod:`paceline.hosts.periodic`).
        examine: function that pauses a job without a validator and validates its ranks.
        stacks: whether to read the stacks of the job's processes on this host in a hang.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        folder: Path,
        *,
        collectives: Sequence[Path] = (),
        overheads: Mapping[str, float | None] | None = None,
        steps: int = PROFILED_STEPS,
        validate: bool = True,
        examine: Examine | None = None,
        stacks: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder, self.collectives = folder, tuple(collectives)
        self.overheads = {**OVERHEAD_S, **(overheads or {})}
        self._steps_wanted, self._may_validate, self._clock = steps, validate, clock
        self._examiner = None if examine is None else Examiner(examine, clock)
        self._may_look = stacks
        self._tail, self._pulse = RecordingTail(folder), Pulse()
        self._session = ""
        self._rows: Rows | None = None
        self._detector: Detector | None = None
        self._step = -1
        self._recent: list[float] = []  # times of the newest steps
        self._episode: _Episode | None = None
        self._healthy_since = 0  # first step after the last fail-slow

    def look(self) -> list[News]:
        """Read the job's new data, and act on it.

        Raises:
            TraceError: a file cannot be read.
        """
        if self._tail.look():
            self._pulse.beat(self._clock())
        news = []
        for session, rank, times in self._tail.take_times():
            news += self._begin(session)
            if session == self._session and self._rows is not None:
                self._rows.add(rank, times)
        news += self._detect()
        if self._episode is None:
            self._tail.forget(self._step, keep=STEPS_BEFORE)  # to compare slow steps with
        else:
            news += self._follow(self._episode)
        return [*news, *self._hang()]

    def _hang(self) -> list[News]:
        """A hanging step, reported once, unless all processes of the job have ended."""
        if self._rows is None or not self._recent:
            return []
        step_s = float(np.median(self._recent[-_RECENT:]))
        waited_s = self._pulse.overdue_s(self._clock(), step_s)
        if waited_s is None:
            return []
        self._pulse.tell()
        headers = self._tail.headers
        pid_of = processes_of(headers)
        if not pid_of and any(is_here(header) for header in headers):
            return [self._news("ended", f"no step for {waited_s:.0f} s: no process of it runs")]
        log = None
        if self.collectives:
            try:
                log, _ = load_call_log(self.collectives)
            except PacelineError as error:
                return [self._news("not-named", f"the call log names nobody: {error}")]
        event = hang_of(*self._rows.newest(), waited_s, step_s, log)
        if self._may_look:
            event = replace(event, stacks=stacks_of(pid_of))
        said = event.to_mapping()
        return [replace(self._news("change", said["text"], said), details=tuple(event.details()))]

    def _begin(self, session: str) -> list[News]:
        """Register a new start of the job, which determines its ranks."""
        if session == self._session or session != self._tail.session:
            return []
        ranks = self._ranks()
        is_first = self._detector is None or self._detector.ranks != ranks
        if is_first:
            self._detector = Detector(ranks)
        elif self._detector is not None:
            self._detector.go_back()
        self._session, self._rows, self._step = session, Rows(ranks), -1
        self._healthy_since = 0
        if self._episode is not None:  # steps that are run again may be slow
            self._episode.healthy_until = 0
        text = f"watching {self.folder}: {ranks:,} ranks" if is_first else "the job was restarted"
        return [self._news("watching" if is_first else "restart", text, {"ranks": ranks})]

    def _ranks(self) -> int:
        """Facts of the job from its files."""
        meta = self._tail.meta
        numbers = [meta.get(name) for name in ("world", "dp", "pp", "dp_rank", "pp_rank", "rank")]
        if not all(isinstance(number, int) for number in numbers):
            raise TraceError(f"{self.folder} has a file whose header lacks the job's degrees")
        ranks = int(meta["world"])
        if not 1 <= ranks <= _MAX_RANKS:
            raise TraceError(f"{self.folder} says that the job has {ranks:,} ranks")
        return ranks

    def _detect(self) -> list[News]:
        if self._rows is None or self._detector is None:
            return []
        news = []
        for step, row in self._rows.close():
            self._step = step
            seconds = float(np.nanmax(row))
            self._recent = [*self._recent[-_KNOWN + 1 :], seconds]
            events = job_events(self._detector.update(step, row), self._detector.ranks)
            for event in events:
                news += self._change(event)
        return news

    def _change(self, event: JobEvent) -> list[News]:
        """Handle an event of the detector: an episode begins, continues, or ends."""
        news = []
        is_worse = event.kind == "worsening" and self._episode is not None and self._episode.is_over
        if event.kind in SLOW_KINDS and (self._episode is None or is_worse):
            slow_steps = max(self._step - event.since_step + 1, 1)
            lasted_s = sum(self._recent[-slow_steps:])
            healthy_until = event.since_step
            if self._episode is not None:
                healthy_until = self._episode.healthy_until
            self._episode = _Episode(event, lasted_s, self._clock(), healthy_until)
        said = event.to_mapping()
        news.append(self._news("change", said["text"], said))
        is_over = event.kind in ("relief", "faster")
        if is_over and self._detector is not None and not self._detector.slow.any():
            self._episode, self._healthy_since = None, event.since_step
        return news

    def _follow(self, episode: _Episode) -> list[News]:
        """Take the next step towards a plan, if its inputs are available."""
        if episode.is_to_pause and self._examiner is not None:
            episode.is_to_pause = False
            findings = self._examiner.examine(episode.suspected)
            return [self._news(kind, text, fields) for kind, text, fields in findings]
        if episode.suspects is None:
            return self._name(episode)
        if episode.asked_validation_s is not None:
            return self._validated(episode)
        return []

    def _name(self, episode: _Episode) -> list[News]:
        news = []
        since = episode.onset.since_step
        steps = [n for n in self._tail.ready() if since < n]
        if episode.asked_s is None:
            episode.asked_s = self._clock()
            if self.collectives:
                news += self._name_by_calls(episode)
            if episode.suspects is None and len(steps) < self._steps_wanted:
                news.append(self._ask())
        if episode.suspects is None and len(steps) >= self._steps_wanted:
            news += self._name_by_trace(episode, steps[: self._steps_wanted])
        elif self._clock() - episode.asked_s > PATIENCE_S and not episode.is_given_up:
            episode.is_given_up = True
            text = f"no profiled steps of all ranks after {PATIENCE_S:.0f} s: see record status"
            news.append(self._news("not-named", text))
        return news

    def _ask(self) -> News:
        step_s = float(np.median(self._recent[-_RECENT:]))
        try:
            until = record_now(self.folder, self._steps_wanted, last_step=self._step, step_s=step_s)
        except PacelineError as error:
            return self._news("not-named", f"profiled steps cannot be asked for: {error}")
        return self._news(
            "profile-asked",
            f"asked all ranks for operations up to step {until:,}",
            {"until": until},
        )

    def _name_by_trace(self, episode: _Episode, steps: list[int]) -> list[News]:
        try:
            trace = read_steps(self._tail, steps)
            before = self._read_before(episode)
            onset, measured, result = name_suspects(episode.onset, trace, before)
        except PacelineError as error:
            episode.suspects = ()
            return [self._news("not-named", f"the profiled steps name nobody: {error}")]
        news = self._named(episode, onset, {"steps": steps, "slowdown": result.slowdown})
        text, fields = plan_of(trace, measured, result, self.overheads)
        return [*news, self._news("plan", text, fields)]

    def _read_before(self, episode: _Episode) -> Trace | None:
        """The trace of the latest profiled steps before a fail-slow; None without any."""
        begin, end = self._healthy_since, episode.healthy_until
        steps = [n for n in self._tail.ready() if begin <= n < end][-STEPS_BEFORE:]
        try:
            return read_steps(self._tail, steps) if steps else None
        except TraceError:
            return None

    def _name_by_calls(self, episode: _Episode) -> list[News]:
        try:
            log, _ = load_call_log(self.collectives)
            if not is_comparable(log):
                return []
            suspects = who_from_calls(log, step_times(log))
        except PacelineError as error:
            return [self._news("not-named", f"the call log names nobody: {error}")]
        (onset,) = locate.locate_last([episode.onset], suspects)
        return self._named(episode, onset, {"calls": len(self.collectives)})

    def _named(self, episode: _Episode, onset: JobEvent, fields: dict[str, Any]) -> list[News]:
        episode.onset, episode.suspects = onset, onset.suspects or ()
        who = [suspect.to_mapping() for suspect in episode.suspects]
        before = onset.slow_before
        if before:
            fields = {**fields, "slow_before": [suspect.to_mapping() for suspect in before]}
        details = tuple(f"slow before the change, too: {suspect.explain()}" for suspect in before)
        named = self._news("named", onset.who, {"who": who, **fields})
        news = [replace(named, details=details)]
        ranks = sorted(episode.suspected)
        if ranks and self._may_validate:
            episode.asked_validation_s = self._clock()
            try:
                episode.validation = ask_validation(self.folder, ranks)
            except PacelineError as error:
                episode.asked_validation_s = None
                return [*news, self._news("not-validated", str(error))]
            if episode.validation is None:
                episode.asked_validation_s = None
                if self._examiner is not None:
                    episode.is_to_pause = True
                    text = "asks all ranks to stop at one collective, to validate them"
                    return [*news, self._news("pause-asked", text)]
                ranks_of_job = None if self._detector is None else self._detector.ranks
                command = validation_command(ranks_of_job)
                text = f"no validator runs in the job: to confirm, run {command}"
                return [*news, self._news("not-validated", text)]
            text = "asked the job to validate its ranks between two steps"
            news.append(self._news("validation-asked", text, {"ranks": ranks}))
        return news

    def _validated(self, episode: _Episode) -> list[News]:
        verdict = read_validation(self.folder, episode.validation)
        if verdict is None:
            if self._clock() - (episode.asked_validation_s or 0) <= PATIENCE_S:
                return []
            episode.asked_validation_s = None
            return [self._news("not-validated", f"no validation within {PATIENCE_S:.0f} s")]
        episode.asked_validation_s = None
        kind, text, fields = compare(verdict, episode.suspected)
        return [self._news(kind, text, fields)]

    def _news(self, kind: NewsKind, text: str, fields: Mapping[str, Any] | None = None) -> News:
        after_s = None
        if self._episode is not None:
            after_s = self._episode.after_s(self._clock())
        return News(kind, self._clock(), max(self._step, 0), text, after_s, fields or {})


class _Episode:
    """A current fail-slow, and the progress of its examination."""

    def __init__(self, onset: JobEvent, lasted_s: float, seen_s: float, healthy_until: int) -> None:
        self.onset, self.healthy_until = onset, healthy_until
        self._lasted_s, self._seen_s = lasted_s, seen_s
        self.asked_s: float | None = None
        self.is_given_up = False
        self.suspects: tuple[Suspect, ...] | None = None
        self.asked_validation_s: float | None = None
        self.validation: int | None = None
        self.is_to_pause = False

    @property
    def is_over(self) -> bool:
        """Whether its examination is finished; a later worsening may have another cause."""
        is_named = self.suspects is not None or self.is_given_up
        return is_named and self.asked_validation_s is None and not self.is_to_pause

    @property
    def suspected(self) -> set[int]:
        """The named ranks."""
        return {rank for suspect in self.suspects or () for rank in suspect.ranks}

    def after_s(self, now_s: float) -> float:
        """Seconds since the begin of the first slow step."""
        return self._lasted_s + max(now_s - self._seen_s, 0.0)
