"""A job's incoming step times: steps are closed in order and passed to the detector."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.detect import machine_code
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

#: How long a step waits for missing ranks.
PATIENCE_S = 30.0
#: Time for ranks to appear before any step is closed, unless a batch has their number.
GATHER_S = 3.0
#: Steps added between two pauses of a large batch.
PAUSE_STEPS = 1000
#: Most waiting samples; beyond, the oldest steps are closed incomplete.
MAX_WAITING = 20_000_000

#: Name of the format of :meth:`Stream.state_dict`. New fields or meanings need the next version,
#: and a file of it in tests/golden.
STATE_SCHEMA, STATE_VERSION = "paceline-stream", 2
_STATE_FIELDS = (
    *("last_step", "start", "session", "old_sessions", "world", "begun_at", "joined_at"),
    *("seen_at", "taken_to", "taken_end", "back_at", "back_end"),
    *("ongoing_since", "ongoing_healthy_s", "ranks", "sent", "detector"),
)

#: End of a batch in a job's file where it is not known, and one behind all batches.
_NOWHERE, _BEHIND_ALL = (0, 0), (2**62, 0)


@dataclass(eq=False)
class _Waiting:
    """An open step: its samples, and the arrival of the first."""

    durations_s: Array
    since: float
    place: tuple[int, int]
    count: int = 0


@dataclass(frozen=True)
class Ending:
    """The end of a fail-slow by a restart of the job, or by accepting its level.

    Attributes:
        event: relief of the slow ranks.
        text: text of the event.
        at: time, seconds since 1970.
        start: number of the job's start that ended.
    """

    event: JobEvent
    text: str
    at: float
    start: int


@dataclass(frozen=True, eq=False)
class Closed:
    """A closed step.

    Attributes:
        row: row of the series.
        events: events that the detector confirmed then, by rank.
        ranks: [rank] the job's ranks at that time, ascending.
        durations_s: [rank] step time; nan without a sample.
    """

    row: Any
    events: tuple[Event, ...]
    ranks: npt.NDArray[np.int32]
    durations_s: Array


class Stream:
    """The state of a job's step times.

    Attributes:
        ranks: [rank] the known ranks, ascending.
        detector: the job's detector; None before the first step is closed.
        last_step: the last closed step; -1 before the first.
        seen_at: arrival of the last batch, seconds since 1970.
        is_live: whether the job sent its last batch as it ran.
        start: number of restarts.
        ongoing: a fail-slow that a rebuilt detector takes for the healthy level.
        pulse: arrival pattern of batches.
        earlier: earlier runs of the job; slowness at the same step in them is planned.
        replayed_to: batches until then may come twice, as a restart reads them again.
        replayed_end: the same of batches in a file, by their ends: a clock may jump.
    """

    def __init__(self) -> None:
        self.ranks = np.zeros(0, dtype=np.int32)
        self.detector: Detector | None = None
        self.last_step, self.start = -1, 0
        self.seen_at = 0.0
        self.is_live = False
        self.session = ""
        self.ongoing: Ongoing | None = None
        self.earlier = EarlierRuns()
        self.pulse = Pulse()
        self._old_sessions: list[str] = []
        self._sent = np.zeros(0, dtype=np.int64)  # [rank] the last step it has sent
        self._repeated: list[Batch] = []  # batches with steps that their ranks have sent before
        self.replayed_to, self.replayed_end = 0.0, _NOWHERE
        # First batch since the last return to a checkpoint with unchanged source.
        self._back_at, self._back_end = 0.0, _NOWHERE
        self.taken_end = _NOWHERE  # of all batches that were taken, the last one in the file
        self._waiting: dict[int, _Waiting] = {}
        self._order: list[int] = []  # heap of open steps
        self._workload: dict[int, dict[str, float]] = {}  # samples of open steps
        self._world = 0
        self._place = (0, 0)  # place of the last batch in the shared log
        self._begun_at = self._joined_at = 0.0  # first sample of this start; last new rank

    @property
    def n_bytes(self) -> int:
        """Estimated memory use."""
        return (3000 + 8 * len(self._waiting)) * (len(self.ranks) + 8)

    def take(self, batch: Batch) -> Iterator[Closed | Ending | None]:
        """Add the samples; yields the closed steps in order, and restarts.

        None is a pause. Do not change the stream otherwise before the generator ends.
        """
        self.seen_at, self.is_live = max(self.seen_at, batch.at), batch.is_live
        self._place = max(self._place, batch.place)
        self.taken_end = max(self.taken_end, batch.end)
        session, slash, _ = batch.source.partition("/")
        session = session if slash else ""
        if session in self._old_sessions or self._is_before_return(batch):
            return
        self.pulse.beat(batch.at)
        if self._is_new_session(session, batch):
            if self.session:
                self._old_sessions = [*self._old_sessions[-19:], self.session]
            else:
                self._back_at, self._back_end = batch.at, batch.end
            yield from self._restart(batch.at)
        self.session = session or self.session
        batches = self._went_back(batch)
        if batches:
            yield from self._restart(batches[0].at)
            self._back_at, self._back_end = batches[0].at, batches[0].end
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
        """Arrival of the first batch that :meth:`state_dict` does not fully cover."""
        return min((waiting.since for waiting in self._waiting.values()), default=self.seen_at)

    @property
    def covered_to(self) -> tuple[int, int]:
        """Place in the log up to which :meth:`state_dict` fully covers all batches."""
        if not self._waiting:
            return self._place
        position, seq = min(waiting.place for waiting in self._waiting.values())
        return position, seq - 1

    @property
    def may_be_saved(self) -> bool:
        """Whether no batch waits as a possible new start; a service restart would find it again."""
        return not self._repeated

    def close_due(self, now: float) -> Iterator[Closed]:
        """Close, in order, the steps that are complete or timed out."""
        while self.is_due(now):
            yield self._close(self._order[0])

    def is_due(self, now: float) -> bool:
        """Whether the first open step is complete or timed out."""
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

    def shift(self, jump_s: float) -> None:
        """The clock has jumped by that: what began before goes on to wait as long as it would."""
        self._begun_at += jump_s if self._begun_at else 0.0
        self._joined_at += jump_s if self._joined_at else 0.0
        for waiting in self._waiting.values():
            waiting.since += jump_s
        self.pulse.shift(jump_s)

    def not_after(self, now: float) -> None:
        """Nothing was later than now: times of a clock that was ahead would hold batches up."""
        self.seen_at, self.replayed_to = min(self.seen_at, now), min(self.replayed_to, now)
        self._back_at = min(self._back_at, now)
        self._begun_at, self._joined_at = min(self._begun_at, now), min(self._joined_at, now)
        for waiting in self._waiting.values():
            waiting.since = min(waiting.since, now)
        self.pulse.not_after(now)

    def _is_new_session(self, session: str, batch: Batch) -> bool:
        """Whether a source names another start of the job than before."""
        if session in ("", self.session) or self.last_step < 0:
            return False
        return bool(len(batch.steps)) and int(batch.steps.min()) <= self.last_step

    def _is_before_return(self, batch: Batch) -> bool:
        """Whether a batch is older than the last return to a checkpoint."""
        if batch.end == _NOWHERE:
            return batch.at < self._back_at
        return batch.end < self._back_end

    def _may_come_twice(self, batch: Batch) -> bool:
        """Whether a restart may have read a batch that an earlier process took."""
        if batch.end == _NOWHERE:
            return batch.at <= self.replayed_to
        return batch.end <= self.replayed_end

    def _went_back(self, batch: Batch) -> list[Batch]:
        """All batches since a return to a checkpoint, once it is certain; else none.

        It is certain after :data:`RESTART_STEPS` steps from ranks that have sent these or later
        steps before. A late or repeated step is no return.
        """
        old = batch.steps <= self.last_step
        if not old.all() or not len(batch.steps):
            self._repeated.clear()
            return []
        if self._may_come_twice(batch) or not np.isin(batch.ranks, self.ranks).all():
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
        """Reset the state of the previous start, and end its fail-slows."""
        if self.detector is not None and self._is_slow:
            yield self._ending(self.detector, at, "slow until the job restarted")
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
        """The hanging step with the ranks that have not sent it; reported once."""
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
        """Current step time, median of the ranks; nan while unknown."""
        level_s = np.zeros(0) if self.detector is None else self.detector.level_s
        level_s = level_s[~np.isnan(level_s)]
        return float(np.median(level_s)) if len(level_s) else float("nan")

    def accept(self, at: float) -> Ending | None:
        """Accept the current level as healthy; returns the end of the fail-slow, if any."""
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
        lost_s = lost_s if self.ongoing is None else float("nan")  # the detector knows a part
        event = JobEvent(
            "relief", step, step, ranks, of=len(self.ranks), factor=float("nan"), lost_s=lost_s
        )
        text = f"step {step:,}: {name_ranks(ranks)}: {reason}"
        return Ending(event, text, at, self.start)

    def _join(self, ranks: npt.NDArray[np.int32], now: float) -> None:
        """Add new ranks."""
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
        self.detector.advance = machine_code.aside  # other jobs must not wait for it
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
        if self.ongoing is not None:  # the detector's healthy level was slow
            events = [event for event in events if event.kind != "faster"]
        if self.ongoing is not None and self.ongoing.is_over(float(row["median_s"])):
            events += self._end_ongoing(step, self.ongoing.healthy_s)
        row["healthy_s"] = self.healthy_s
        return Closed(row, tuple(events), self.ranks, waiting.durations_s)

    def _end_ongoing(self, step: int, healthy_s: float) -> list[Event]:
        """The relief of all ranks; its step and the loss are unknown."""
        self.ongoing, nan = None, float("nan")
        if self.detector is not None:
            self.detector.settle_level()
        return [Event("relief", i, step, step, nan, nan, healthy_s) for i in range(len(self.ranks))]

    @property
    def healthy_s(self) -> float:
        """Median healthy step time, median of the ranks; nan while unknown."""
        if self.ongoing is not None:
            return self.ongoing.healthy_s
        healthy_s = np.zeros(0) if self.detector is None else self.detector.healthy_s
        healthy_s = healthy_s[~np.isnan(healthy_s)]
        return float(np.median(healthy_s)) if len(healthy_s) else float("nan")

    @property
    def slow_since(self) -> int | None:
        """Median of the steps since which ranks are slow; None if no rank is slow."""
        if self.ongoing is not None:
            return self.ongoing.since_step
        slow = np.zeros(0, dtype=bool) if self.detector is None else self.detector.slow
        if self.detector is None or not slow.any():
            return None
        return int(np.median(self.detector.since_step[slow]))

    @property
    def slow_factor(self) -> float | None:
        """Step time of the present level over the healthy one, by all steps of that level.

        Where all ranks are slow, it is their median, as the job's step time is; otherwise that of
        the slowest rank. None without a fail-slow, or where its level began before the detector.
        """
        if self.ongoing is not None or self.detector is None or not self.detector.slow.any():
            return None
        slow = self.detector.slow
        factors = self.detector.level_s[slow] / self.detector.healthy_s[slow]
        return float(np.median(factors) if slow.all() else factors.max())

    def state_dict(self) -> State:
        """State of the closed steps, to continue from: see :data:`STATE_SCHEMA`."""
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
            "taken_end": list(self.taken_end),
            "back_at": float(self._back_at),
            "back_end": list(self._back_end),
            "ongoing_since": None if self.ongoing is None else self.ongoing.since_step,
            "ongoing_healthy_s": None if self.ongoing is None else self.ongoing.healthy_s,
            "ranks": self.ranks.astype("<i4"),
            "sent": self._sent.astype("<i8"),
            "detector": None if self.detector is None else self.detector.state_dict(),
        }

    @classmethod
    def from_state_dict(cls, state: object) -> Stream:
        """A stream that continues from a saved state.

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
        stream.replayed_end = _end_of(reader, "taken_end")
        stream._back_at, stream._back_end = reader.number("back_at"), _end_of(reader, "back_end")
        if stream.replayed_end == _NOWHERE:  # saved by an earlier version, or beside a shared log
            stream.replayed_end = _BEHIND_ALL
        if reader.value("ongoing_since") is not None:
            level_s = reader.number("ongoing_healthy_s")
            stream.ongoing = Ongoing(reader.whole("ongoing_since", least=-(2**62)), level_s)
        return stream


def _end_of(reader: StateReader, name: str) -> tuple[int, int]:
    """The end of a batch in a state."""
    value = reader.value(name)
    if not (isinstance(value, list) and len(value) == 2 and all(type(n) is int for n in value)):
        reader.fail(name, "must be two whole numbers")
    return value[0], value[1]
