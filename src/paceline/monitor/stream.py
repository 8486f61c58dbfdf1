"""One job's step times as they come: rows of steps, closed in order and shown to the detector."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from paceline.detect.detector import Detector
from paceline.detect.event import Event
from paceline.monitor.step_files import Batch
from paceline.monitor.step_series import ROW

Array = npt.NDArray[np.float64]

#: A step is waited for so long, for ranks that have not told theirs.
PATIENCE_S = 30.0
#: Before any step is closed, ranks have so long to show up, unless a batch says how many there are.
GATHER_S = 3.0
#: Samples that wait at most; beyond, the oldest steps are closed as they are.
MOST_WAITING = 20_000_000

SNAPSHOT = "detector.npz"


@dataclass(eq=False)
class _Waiting:
    """A step that is not closed: its samples, and when the first came."""

    durations_s: Array
    since: float
    count: int = 0


@dataclass(frozen=True, eq=False)
class Closed:
    """A step that is over.

    Attributes:
        row: of the series.
        events: what the detector was sure of then, by rank.
    """

    row: Any
    events: tuple[Event, ...]


class Stream:
    """Where a job's step times stand.

    Attributes:
        ranks: [rank] those seen so far, ascending.
        detector: judges them; None before the first step is closed.
        last_step: the last closed step; -1 before the first.
        seen_at: when the last batch came, seconds since 1970.
        start: how many times the job has begun again, as its sources say.
    """

    def __init__(self) -> None:
        self.ranks = np.zeros(0, dtype=np.int32)
        self.detector: Detector | None = None
        self.last_step, self.start = -1, 0
        self.seen_at = 0.0
        self.session = ""
        self._old_sessions: list[str] = []
        self._waiting: dict[int, _Waiting] = {}
        self._world = 0
        self._begun_at = self._joined_at = 0.0  # first sample of this start; last new rank

    @property
    def n_bytes(self) -> int:
        """About how much memory it takes."""
        return (3000 + 8 * len(self._waiting)) * (len(self.ranks) + 8)

    def take(self, batch: Batch) -> Iterator[Closed]:
        """Add the samples; yields the steps that this closes, in order."""
        self.seen_at = max(self.seen_at, batch.at)
        if not self._follow_session(batch):
            return
        good = batch.steps > self.last_step
        if not good.any():
            return
        steps, ranks, durations = batch.steps[good], batch.ranks[good], batch.durations_s[good]
        self._world = batch.world or self._world
        self._begun_at = self._begun_at or batch.at
        self._join(np.unique(ranks), batch.at)
        column = np.searchsorted(self.ranks, ranks)
        order = np.argsort(steps, kind="stable")
        steps, column, durations = steps[order], column[order], durations[order]
        first = np.flatnonzero(np.append(True, np.diff(steps) != 0))
        for begin, end in zip(first, [*first[1:], len(steps)], strict=True):
            self._add(int(steps[begin]), column[begin:end], durations[begin:end], batch.at)
        yield from self.close_due(batch.at)

    @property
    def needed_from(self) -> float:
        """When the first batch came that :meth:`save` does not wholly cover."""
        return min((waiting.since for waiting in self._waiting.values()), default=self.seen_at)

    def close_due(self, now: float) -> Iterator[Closed]:
        """Close the steps that are complete or have been waited for long enough, in order."""
        while self._waiting:
            step = min(self._waiting)
            if not self._is_due(self._waiting[step], now):
                return
            yield self._close(step)

    def _is_due(self, waiting: _Waiting, now: float) -> bool:
        n = len(self.ranks)
        late = now - waiting.since >= PATIENCE_S
        if late or len(self._waiting) * n > MOST_WAITING:
            return True
        if waiting.count < n:
            return False
        gathered = now - self._begun_at >= GATHER_S and not self._world
        settled = now - self._joined_at >= PATIENCE_S
        return n >= self._world > 0 or gathered or settled

    def _follow_session(self, batch: Batch) -> bool:
        """Notice a new start of the job; False for what an older one still sends."""
        session, slash, _ = batch.source.partition("/")
        if not slash or session == self.session:
            return True
        if session in self._old_sessions:
            return False
        begins_anew = bool(len(batch.steps)) and int(batch.steps.min()) <= self.last_step
        if self.session and begins_anew:
            self._old_sessions = [*self._old_sessions[-19:], self.session]
            self.start += 1
            self.last_step, self.detector = -1, None
            self.ranks = np.zeros(0, dtype=np.int32)
            self._waiting.clear()
            self._begun_at = batch.at
        self.session = session
        return True

    def _join(self, ranks: npt.NDArray[np.int32], now: float) -> None:
        """Make room for ranks not seen before."""
        new = np.setdiff1d(ranks, self.ranks)
        if not len(new):
            return
        self._joined_at = now
        old, self.ranks = self.ranks, np.union1d(self.ranks, new).astype(np.int32)
        place = np.searchsorted(self.ranks, old)
        for waiting in self._waiting.values():
            row = np.full(len(self.ranks), np.nan)
            row[place] = waiting.durations_s
            waiting.durations_s = row
        if self.detector is not None:
            self.detector = widened(self.detector, len(self.ranks), place)

    def _add(self, step: int, column: Any, durations_s: Any, at: float) -> None:
        waiting = self._waiting.get(step)
        if waiting is None:
            waiting = self._waiting[step] = _Waiting(np.full(len(self.ranks), np.nan), at)
        waiting.durations_s[column] = durations_s
        waiting.count = int(np.count_nonzero(~np.isnan(waiting.durations_s)))

    def _close(self, step: int) -> Closed:
        waiting = self._waiting.pop(step)
        if self.detector is None:
            self.detector = Detector(len(self.ranks))
        events = self.detector.update(step, waiting.durations_s)
        self.last_step = step
        row = np.zeros((), ROW)
        known = waiting.durations_s[~np.isnan(waiting.durations_s)]
        row["step"], row["at"], row["samples"] = step, waiting.since, len(known)
        row["start"], row["slowest"] = self.start, -1
        row["median_s"] = row["max_s"] = np.nan
        if len(known):
            row["median_s"], row["max_s"] = np.median(known), known.max()
            row["slowest"] = self.ranks[int(np.nanargmax(waiting.durations_s))]
        row["healthy_s"] = self.healthy_s
        return Closed(row, tuple(events))

    @property
    def healthy_s(self) -> float:
        """The healthy step time, median of the ranks; nan where it is not known yet."""
        known = np.zeros(0) if self.detector is None else self.detector.healthy_s
        known = known[~np.isnan(known)]
        return float(np.median(known)) if len(known) else float("nan")

    @property
    def slow_since(self) -> int | None:
        """The step since which ranks are slow, median of them; None if none is."""
        slow = np.zeros(0, dtype=bool) if self.detector is None else self.detector.slow
        if self.detector is None or not slow.any():
            return None
        return int(np.median(self.detector._since_step[slow]))

    def save(self, folder: Path) -> None:
        """Write what is known of the closed steps; a restart goes on from there."""
        about = {
            "last_step": self.last_step,
            "start": self.start,
            "session": self.session,
            "old_sessions": self._old_sessions,
            "world": self._world,
            "begun_at": self._begun_at,
            "joined_at": self._joined_at,
            "seen_at": self.needed_from,
        }
        arrays: dict[str, Any] = {"ranks": self.ranks}
        if self.detector is not None:
            state = vars(self.detector)
            about["detector"] = {k: v for k, v in state.items() if not isinstance(v, np.ndarray)}
            arrays |= {f"d{k}": v for k, v in state.items() if isinstance(v, np.ndarray)}
        partial = folder / f".{SNAPSHOT}.partial"
        with partial.open("wb") as file:
            np.savez(file, about=np.array(json.dumps(about)), **arrays)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(folder / SNAPSHOT)


def load_stream(folder: Path) -> Stream:
    """The stream as it was saved last; a new one where nothing (or nothing whole) was saved."""
    stream = Stream()
    try:
        with (folder / SNAPSHOT).open("rb") as file, np.load(file, allow_pickle=False) as saved:
            arrays = {name: saved[name] for name in saved.files}
        about = json.loads(str(arrays["about"]))
        if "detector" in about:
            detector = Detector(int(about["detector"]["ranks"]))
            state = {k.removeprefix("d"): v for k, v in arrays.items() if k.startswith("d")}
            vars(detector).update(about["detector"], **state)
            stream.detector = detector
        stream.ranks = arrays["ranks"]
        stream.last_step, stream.start = about["last_step"], about["start"]
        stream.session, stream._old_sessions = about["session"], about["old_sessions"]
        stream._world, stream.seen_at = about["world"], about["seen_at"]
        stream._begun_at, stream._joined_at = about["begun_at"], about["joined_at"]
    except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile):
        return Stream()
    return stream


def widened(detector: Detector, ranks: int, place: npt.NDArray[np.int64]) -> Detector:
    """A detector of more ranks that knows what the old one did of its own, now at ``place``."""
    wide = Detector(ranks, threshold=detector.threshold, warm_up=detector.warm_up)
    for name, value in vars(detector).items():
        if isinstance(value, np.ndarray) and name != "_number":
            getattr(wide, name)[..., place] = value
        elif name != "ranks":
            setattr(wide, name, value.copy() if isinstance(value, np.ndarray) else value)
    return wide
