"""One job's step times as they come: rows of steps, closed in order and shown to the detector."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.detect.arrivals import RESTART_STEPS
from paceline.detect.detector import Detector
from paceline.detect.event import Event
from paceline.detect.job import JobEvent
from paceline.detect.state import ArrayField, State, StateReader
from paceline.detect.who import name_ranks
from paceline.monitor.earlier_runs import EarlierRuns
from paceline.monitor.ongoing import Ongoing
from paceline.monitor.pulse import Pulse
from paceline.monitor.step_files import Batch
from paceline.monitor.step_series import ROW

Array = npt.NDArray[np.float64]

#: How long a step waits for ranks that have not told theirs.
PATIENCE_S = 30.0
#: Time for ranks to show up before any step is closed, unless a batch says how many there are.
GATHER_S = 3.0
#: Steps added at a time: a larger batch pauses in between.
PAUSE_STEPS = 1000
#: Samples that wait at most; beyond, the oldest steps are closed as they are.
MAX_WAITING = 20_000_000

#: Name of the format of :meth:`Stream.state_dict`. Another set of fields, or another meaning of
#: one: the next version, and a file of it in tests/golden.
STATE_SCHEMA, STATE_VERSION = "paceline-stream", 1
_STATE_FIELDS = (
    *("last_step", "start", "session", "old_sessions", "world", "begun_at", "joined_at"),
    *("seen_at", "taken_to", "back_at", "ongoing_since", "ongoing_healthy_s"),
    *("ranks", "sent", "detector"),
)


@dataclass(eq=False)
class _Waiting:
    """A step that is not closed: its samples, and when the first came."""

    durations_s: Array
    since: float
    place: tuple[int, int]
    count: int = 0


@dataclass(frozen=True)
class Ending:
    """A fail-slow is over without a relief: the job began anew, or its level was accepted.

    Attributes:
        event: the relief of the ranks that were slow.
        text: that, in words.
        at: when, seconds since 1970.
        start: the one that this ends.
    """

    event: JobEvent
    text: str
    at: float
    start: int


@dataclass(frozen=True, eq=False)
class Closed:
    """A step that is over.

    Attributes:
        row: of the series.
        events: what the detector was sure of then, by rank.
        ranks: [rank] those of the job then, ascending.
        durations_s: [rank] what each told; nan where it told nothing.
    """

    row: Any
    events: tuple[Event, ...]
    ranks: npt.NDArray[np.int32]
    durations_s: Array


class Stream:
    """Where a job's step times stand.

    Attributes:
        ranks: [rank] those seen so far, ascending.
        detector: judges them; None before the first step is closed.
        last_step: the last closed step; -1 before the first.
        seen_at: when the last batch came, seconds since 1970.
        start: how many times the job has begun again.
        ongoing: a fail-slow that the detector, made anew within it, takes for health.
        pulse: when batches come.
        earlier: earlier runs of the same job: what they show at the same step is planned.
        replayed_to: batches up to then may come a second time, read anew after a restart.
    """

    def __init__(self) -> None:
        self.ranks = np.zeros(0, dtype=np.int32)
        self.detector: Detector | None = None
        self.last_step, self.start = -1, 0
        self.seen_at = 0.0
        self.session = ""
        self.ongoing: Ongoing | None = None
        self.earlier = EarlierRuns()
        self.pulse = Pulse()
        self._old_sessions: list[str] = []
        self._sent = np.zeros(0, dtype=np.int64)  # [rank] the last step it has sent
        self._repeated: list[Batch] = []  # of steps that their ranks have given before
        self.replayed_to = 0.0
        self._back_at = 0.0  # when the job last went back to a checkpoint, its source the same
        self._waiting: dict[int, _Waiting] = {}
        self._order: list[int] = []  # a heap of its steps
        self._workload: dict[int, dict[str, float]] = {}  # of steps that wait
        self._world = 0
        self._place = (0, 0)  # of the last batch in the log that instances share
        self._begun_at = self._joined_at = 0.0  # first sample of this start; last new rank

    @property
    def n_bytes(self) -> int:
        """About how much memory it takes."""
        return (3000 + 8 * len(self._waiting)) * (len(self.ranks) + 8)

    def take(self, batch: Batch) -> Iterator[Closed | Ending | None]:
        """Add the samples; yields the steps that this closes, in order, and that it began anew.

        None is a pause. Nothing else may be asked to change the stream before the end.
        """
        self.seen_at = max(self.seen_at, batch.at)
        self._place = max(self._place, batch.place)
        session, slash, _ = batch.source.partition("/")
        session = session if slash else ""
        if session in self._old_sessions or batch.at < self._back_at:
            return
        self.pulse.beat(batch.at)
        if self._is_new_session(session, batch):
            if self.session:
                self._old_sessions = [*self._old_sessions[-19:], self.session]
            else:
                self._back_at = batch.at
            yield from self._restart(batch.at)
        self.session = session or self.session
        batches = self._went_back(batch)
        if batches:
            yield from self._restart(batches[0].at)
            self._back_at = batches[0].at
        for accepted in batches or [batch]:
            yield from self._take(accepted)

    def _take(self, batch: Batch) -> Iterator[Closed | None]:
        good = batch.steps > self.last_step
        if not good.any():
            return
        for number, workload in batch.workload.items():
            if number > self.last_step:
                self._workload.setdefault(number, {}).update(workload)
        steps, ranks, durations = batch.steps[good], batch.ranks[good], batch.durations_s[good]
        self._world = batch.world or self._world
        self._begun_at = self._begun_at or batch.at
        self._join(np.unique(ranks), batch.at)
        column = np.searchsorted(self.ranks, ranks)
        np.maximum.at(self._sent, column, steps)
        order = np.argsort(steps, kind="stable")
        steps, column, durations = steps[order], column[order], durations[order]
        first = np.flatnonzero(np.append(True, np.diff(steps) != 0))
        for n, (begin, end) in enumerate(zip(first, [*first[1:], len(steps)], strict=True), 1):
            self._add(int(steps[begin]), column[begin:end], durations[begin:end], batch)
            if n % PAUSE_STEPS == 0:
                yield None
        yield from self.close_due(batch.at)

    @property
    def needed_from(self) -> float:
        """When the first batch came that :meth:`state_dict` does not wholly cover."""
        return min((waiting.since for waiting in self._waiting.values()), default=self.seen_at)

    @property
    def covered_to(self) -> tuple[int, int]:
        """Up to where of the log :meth:`state_dict` covers all batches wholly."""
        if not self._waiting:
            return self._place
        position, seq = min(waiting.place for waiting in self._waiting.values())
        return position, seq - 1

    @property
    def may_be_saved(self) -> bool:
        """Whether no batch waits to be known as a new start: a restart finds that anew."""
        return not self._repeated

    def close_due(self, now: float) -> Iterator[Closed]:
        """Close the steps that are complete or have been waited for long enough, in order."""
        while self.is_due(now):
            yield self._close(self._order[0])

    def is_due(self, now: float) -> bool:
        """Whether the first step that is not closed is complete, or waited for long enough."""
        if not self._waiting:
            return False
        waiting, n = self._waiting[self._order[0]], len(self.ranks)
        late = now - waiting.since >= PATIENCE_S
        if late or len(self._waiting) * n > MAX_WAITING:
            return True
        if waiting.count < n:
            return False
        gathered = now - self._begun_at >= GATHER_S and not self._world
        settled = now - self._joined_at >= PATIENCE_S
        return n >= self._world > 0 or gathered or settled

    def _is_new_session(self, session: str, batch: Batch) -> bool:
        """Whether a source names a start of the job that is not the one before."""
        if session in ("", self.session) or self.last_step < 0:
            return False
        return bool(len(batch.steps)) and int(batch.steps.min()) <= self.last_step

    def _went_back(self, batch: Batch) -> list[Batch]:
        """All batches since a return to a checkpoint, once that is sure; else none.

        Sure are :data:`RESTART_STEPS` steps of ranks that have sent them, or later ones, before. A
        step that is late, or was repeated, is no return.
        """
        old = batch.steps <= self.last_step
        if not old.all() or not len(batch.steps):
            self._repeated.clear()
            return []
        if batch.at <= self.replayed_to or not np.isin(batch.ranks, self.ranks).all():
            return []
        if (self._sent[np.searchsorted(self.ranks, batch.ranks)] < batch.steps).any():
            return []
        self._repeated.append(batch)
        if (
            len({step for earlier in self._repeated for step in earlier.steps.tolist()})
            < RESTART_STEPS
        ):
            return []
        batches, self._repeated = self._repeated, []
        return batches

    def _restart(self, at: float) -> Iterator[Ending]:
        """Forget what the start before has told, and tell who was slow in it."""
        if self.detector is not None and self._is_slow:
            yield self._ending(self.detector, at, "slow until the job began anew")
        self.start += 1
        self.last_step, self.detector, self.ongoing = -1, None, None
        self.ranks = np.zeros(0, dtype=np.int32)
        self._waiting.clear()
        self._workload.clear()
        self._order.clear()
        self._sent, self._repeated = np.zeros(0, dtype=np.int64), []
        self._begun_at = at

    def hangs(self, now: float) -> bool:
        """Whether a step does not end, and that was not told."""
        return self.pulse.overdue_s(now, self._step_s) is not None

    def take_hang(self, now: float) -> JobEvent | None:
        """The step that does not end, with the ranks that have not sent what others have; once."""
        waited_s = self.pulse.overdue_s(now, self._step_s)
        if waited_s is None:
            return None
        self.pulse.tell()
        step = int(self._sent.max())
        late = self.ranks[self._sent < step]
        step += not len(late)
        ranks = tuple(int(rank) for rank in (late if len(late) else self.ranks))
        nan = float("nan")
        return JobEvent("hang", step, step, ranks, len(self.ranks), nan, waited_s, self._step_s)

    @property
    def _step_s(self) -> float:
        """Present step time, median of the ranks; nan where it is not known yet."""
        level_s = np.zeros(0) if self.detector is None else self.detector.level_s
        level_s = level_s[~np.isnan(level_s)]
        return float(np.median(level_s)) if len(level_s) else float("nan")

    def accept(self, at: float) -> Ending | None:
        """Call the current level healthy; returns the end of the fail-slow, None where none is."""
        if self.detector is None or not self._is_slow:
            return None
        ending = self._ending(self.detector, at, "slow until this level was accepted as healthy")
        self.detector.accept()
        self.ongoing = None
        return ending

    @property
    def _is_slow(self) -> bool:
        slow = self.detector is not None and bool(self.detector.slow.any())
        return slow or self.ongoing is not None

    def _ending(self, detector: Detector, at: float, reason: str) -> Ending:
        slow = np.flatnonzero(detector.slow | (self.ongoing is not None))
        ranks = tuple(int(rank) for rank in self.ranks[slow])
        lost_s, step = float(detector.lost_s[slow].max()), self.last_step + 1
        lost_s = lost_s if self.ongoing is None else float("nan")  # the detector knows a part of it
        event = JobEvent(
            "relief", step, step, ranks, of=len(self.ranks), factor=float("nan"), lost_s=lost_s
        )
        text = f"step {step:,}: {name_ranks(ranks)}: {reason}"
        return Ending(event, text, at, self.start)

    def _join(self, ranks: npt.NDArray[np.int32], now: float) -> None:
        """Make room for ranks not seen before."""
        new = np.setdiff1d(ranks, self.ranks)
        if not len(new):
            return
        self._joined_at = now
        old, self.ranks = self.ranks, np.union1d(self.ranks, new).astype(np.int32)
        place = np.searchsorted(self.ranks, old)
        last_steps, self._sent = (
            self._sent,
            np.full(len(self.ranks), -1, dtype=np.int64),
        )
        self._sent[place] = last_steps
        for waiting in self._waiting.values():
            row = np.full(len(self.ranks), np.nan)
            row[place] = waiting.durations_s
            waiting.durations_s = row
        if self.detector is not None:
            self.detector = self.detector.widened(len(self.ranks), place)

    def _add(self, step: int, column: Any, durations_s: Any, batch: Batch) -> None:
        waiting = self._waiting.get(step)
        if waiting is None:
            unknown = np.full(len(self.ranks), np.nan)
            waiting = self._waiting[step] = _Waiting(unknown, batch.at, batch.place)
            heappush(self._order, step)
        waiting.durations_s[column] = durations_s
        waiting.count = int(np.count_nonzero(~np.isnan(waiting.durations_s)))

    def _close(self, step: int) -> Closed:
        waiting = self._waiting.pop(heappop(self._order))
        if self.detector is None:
            self.detector = Detector(len(self.ranks), like=self.earlier.since(step))
        events = self.detector.update(step, waiting.durations_s, self._workload.pop(step, None))
        self._workload = {number: w for number, w in self._workload.items() if number > step}
        self.last_step = step
        row = np.zeros((), ROW)
        durations_s = waiting.durations_s[~np.isnan(waiting.durations_s)]
        row["step"], row["at"], row["samples"] = step, waiting.since, len(durations_s)
        row["start"], row["slowest"] = self.start, -1
        row["median_s"] = row["max_s"] = np.nan
        if len(durations_s):
            row["median_s"], row["max_s"] = np.median(durations_s), durations_s.max()
            row["slowest"] = self.ranks[int(np.nanargmax(waiting.durations_s))]
        if self.ongoing is not None:  # the detector's healthy level was slow before
            events = [event for event in events if event.kind != "faster"]
        if self.ongoing is not None and self.ongoing.is_over(float(row["median_s"])):
            events += self._end_ongoing(step, self.ongoing.healthy_s)
        row["healthy_s"] = self.healthy_s
        return Closed(row, tuple(events), self.ranks, waiting.durations_s)

    def _end_ongoing(self, step: int, healthy_s: float) -> list[Event]:
        """All ranks are healthy again; since which step, and what was lost, nobody knows."""
        self.ongoing, nan = None, float("nan")
        if self.detector is not None:
            self.detector.settle_level()
        return [Event("relief", i, step, step, nan, nan, healthy_s) for i in range(len(self.ranks))]

    @property
    def healthy_s(self) -> float:
        """The healthy step time, median of the ranks; nan where it is not known yet."""
        if self.ongoing is not None:
            return self.ongoing.healthy_s
        healthy_s = np.zeros(0) if self.detector is None else self.detector.healthy_s
        healthy_s = healthy_s[~np.isnan(healthy_s)]
        return float(np.median(healthy_s)) if len(healthy_s) else float("nan")

    @property
    def slow_since(self) -> int | None:
        """The step since which ranks are slow, median of them; None if none is."""
        if self.ongoing is not None:
            return self.ongoing.since_step
        slow = np.zeros(0, dtype=bool) if self.detector is None else self.detector.slow
        if self.detector is None or not slow.any():
            return None
        return int(np.median(self.detector.since_step[slow]))

    def state_dict(self) -> State:
        """State of the closed steps, to go on from there: see :data:`STATE_SCHEMA`."""
        return {
            "schema": STATE_SCHEMA,
            "version": STATE_VERSION,
            "last_step": self.last_step,
            "start": self.start,
            "session": self.session,
            "old_sessions": list(self._old_sessions),
            "world": self._world,
            "begun_at": float(self._begun_at),
            "joined_at": float(self._joined_at),
            "seen_at": float(self.needed_from),
            "taken_to": float(self.seen_at),
            "back_at": float(self._back_at),
            "ongoing_since": None if self.ongoing is None else self.ongoing.since_step,
            "ongoing_healthy_s": None if self.ongoing is None else self.ongoing.healthy_s,
            "ranks": self.ranks.astype("<i4"),
            "sent": self._sent.astype("<i8"),
            "detector": None if self.detector is None else self.detector.state_dict(),
        }

    @classmethod
    def from_state_dict(cls, state: object) -> Stream:
        """A stream that goes on where another stood.

        Raises:
            StateError: the state is of another schema or version, or a field does not fit.
        """
        reader = StateReader(state, STATE_SCHEMA, STATE_VERSION, _STATE_FIELDS)
        stream = cls()
        ranks = reader.value("ranks")
        n = len(ranks) if isinstance(ranks, np.ndarray) and ranks.ndim else 0
        stream.ranks = reader.array("ranks", ArrayField("<i4", ("rank",), least=0), {"rank": n})
        stream._sent = reader.array("sent", ArrayField("<i8", ("rank",)), {"rank": n})
        if (np.diff(stream.ranks) <= 0).any():
            reader.fail("ranks", "must ascend")
        if reader.value("detector") is not None:
            stream.detector = Detector.from_state_dict(reader.value("detector"))
            if stream.detector.ranks != n:
                reader.fail("detector", f"has {stream.detector.ranks} ranks of {n}")
        stream.last_step, stream.start = reader.whole("last_step", -1), reader.whole("start")
        if stream.last_step >= 0 and stream.detector is None:
            reader.fail("detector", f"is missing after step {stream.last_step}")
        stream.session, stream._old_sessions = reader.text("session"), reader.texts("old_sessions")
        stream._world = reader.whole("world")
        stream._begun_at, stream._joined_at = reader.number("begun_at"), reader.number("joined_at")
        stream.seen_at, stream.replayed_to = reader.number("seen_at"), reader.number("taken_to")
        stream._back_at = reader.number("back_at")
        if reader.value("ongoing_since") is not None:
            level_s = reader.number("ongoing_healthy_s")
            stream.ongoing = Ongoing(reader.whole("ongoing_since", least=-(2**62)), level_s)
        return stream
