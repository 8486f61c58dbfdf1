"""Online detection of fail-slows in step times, for all ranks at once.

Each rank has a healthy level of its step time, the median of the first samples. Later it follows
slow drift, but not an episode of slowness. During an episode, the current level is the episode's.

The detector compares the median of the last w samples with the current level, for several w. A
change is a difference above the threshold plus an allowance for noise. Short windows find large
changes within a few steps. Long windows find small changes despite noise. Spikes hardly move a
median. The spread of a median of w samples is measured for each rank and w. The allowance therefore
grows by itself where noise is autocorrelated.

Falcon (4.3) verifies the change points of BOCD by a 10% test; docs/detect.md compares the two. The
kernel is :mod:`paceline.detect.levels`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.detect import columns, levels, machine_code
from paceline.detect.cycles import MAX_PERIOD
from paceline.detect.estimate import estimate
from paceline.detect.event import SLOW_KINDS, Event, Kind
from paceline.detect.limits import (
    ANCHOR_STEPS,
    MAX_STEP_S,
    MIN_STEP_S,
    SILENT_AFTER,
    WARM_UP,
    checked_durations,
)
from paceline.detect.planned import Likeness, Workloads
from paceline.detect.slow_ramp import UNSURE_ERRORS, trend
from paceline.detect.state import ArrayField, State, StateReader
from paceline.errors import DetectError, StateError

Array = npt.NDArray[np.float64]

#: Least relative change of a level, before the allowance for noise (falcon, 4.3).
THRESHOLD = 0.1
_KINDS: tuple[Kind, ...] = ("onset", "worsening", "partial-relief", "relief", "faster", "silent")

#: Name and version of the format of :meth:`Detector.state_dict`. A change of the fields, their
#: meaning or the windows needs a new version, and a file of it in tests/golden.
STATE_SCHEMA, STATE_VERSION = "paceline-detector", 6
_STATE = {
    "ring": ArrayField("<f4", ("rank", columns.RING), nan=True, least=0.0),
    "number": ArrayField("<i8", ("rank", columns.RING)),
    "evidence": ArrayField("|u1", ("rank", columns.RING), least=0, most=1),
    "floats": ArrayField("<f8", ("rank", columns.N_FLOATS), nan=True),
    "wholes": ArrayField("<i8", ("rank", columns.N_WHOLES), least=-(2**62), most=2**62),
}
_STATE_NUMBERS = ("ranks", "threshold", "warm_up", "steps", "last_step", "expected")


def _from_older(state: object) -> object:
    """Convert a state of version 2 to 5 to this version; return any other unchanged.

    Version 2 has no columns for swings. Versions 2 and 3 have none for cycles and the mean. None of
    these and 4 has columns for small rises, and their threshold was that of the evidence. Up to
    version 5 the level of a cycle was that of its mean place.
    """
    if not (isinstance(state, Mapping) and state.get("version") in (2, 3, 4, 5)):
        return state
    if state["version"] == 5:
        return _with_median_places(state)
    floats, wholes, threshold = (state.get(name) for name in ("floats", "wholes", "threshold"))
    if not (isinstance(floats, np.ndarray) and isinstance(wholes, np.ndarray)):
        return state
    if not isinstance(threshold, float):
        return state
    if floats.ndim != 2 or wholes.ndim != 2 or floats.shape[1] <= columns.RISEN_FROM_S:
        return state
    if state["version"] == 2:
        unknown = [columns.RISEN_FROM_S] * (columns.STRAY - columns.RISEN_FROM_S)
        floats = np.insert(floats, unknown, np.nan, axis=1)
        wholes = _widened(wholes, columns.PERIOD - columns.RISEN_AT, 0)
    if state["version"] != 4:
        floats = _widened(floats, columns.MEAN - columns.CYCLE, 0.0)
        floats = _widened(floats, 1, 1.0)
        wholes = _widened(wholes, 1, 0)
    return _with_median_places(
        {
            **state,
            "threshold": threshold / levels.EVIDENCE,
            "floats": _widened(floats, 1, np.nan),
            "wholes": _widened(wholes, 1, 0),
        }
    )


def _with_median_places(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state of version 5 with the levels of cycles at their median places."""
    floats, wholes = state.get("floats"), state.get("wholes")
    if not (isinstance(floats, np.ndarray) and isinstance(wholes, np.ndarray)):
        return state
    if floats.shape[1:] != (columns.N_FLOATS,) or wholes.shape != (
        len(floats),
        columns.N_WHOLES,
    ):
        return state
    floats = floats.copy()
    periods = wholes[:, columns.PERIOD].clip(0, MAX_PERIOD)
    in_seconds = [columns.HEALTHY_S, columns.LEVEL_S, columns.MIDDLE_S, columns.RISEN_FROM_S]
    for rank in np.flatnonzero(periods).tolist():
        cycle = floats[rank, columns.CYCLE : columns.CYCLE + int(periods[rank])]
        ratio = np.exp(np.median(cycle))
        floats[rank, in_seconds] *= ratio
        floats[rank, columns.MEAN] *= np.exp(cycle).mean() / ratio
    return {**state, "version": STATE_VERSION, "floats": floats}


def _widened(values: npt.NDArray[Any], count: int, value: float) -> npt.NDArray[Any]:
    """[row, column] with ``count`` more columns of one value."""
    return np.hstack([values, np.full((len(values), count), value, dtype=values.dtype)])


class Detector:
    """Takes the step times of all ranks step by step, and returns events.

    Args:
        ranks: number of ranks; each is judged on its own.
        threshold: least relative change of a level, before the allowance for noise.
        warm_up: least number of a rank's samples before its first level, 10 to 512.
        like: step times of earlier runs of the same job, each [step] seconds in the order of the
            updates. A change that most runs show at the same step is planned. At least three runs
            are needed to outvote a fault of one.

    Raises:
        DetectError: an argument is out of range.
    """

    #: Total number of updates, if known; for many, the first update compiles the kernel. Not saved.
    expected_steps: int = 0
    #: The runner of the kernel; a service has :func:`machine_code.aside`. No state.
    advance: Callable[..., int] = staticmethod(machine_code.at_once)

    def __init__(
        self,
        ranks: int = 1,
        *,
        threshold: float = THRESHOLD,
        warm_up: int = WARM_UP,
        like: Sequence[npt.ArrayLike] = (),
    ) -> None:
        if isinstance(ranks, bool) or not isinstance(ranks, int | np.integer) or ranks < 1:
            raise DetectError(f"ranks must be a whole number >= 1, not {ranks!r}")
        if not 0 < threshold < 10:
            raise DetectError(f"threshold must be above 0 and below 10, not {threshold:g}")
        if not 10 <= warm_up <= ANCHOR_STEPS:
            raise DetectError(f"warm_up must be from 10 to {ANCHOR_STEPS} steps, not {warm_up}")
        n = int(ranks)
        self.ranks, self.threshold, self.warm_up = n, threshold, warm_up
        self.steps = 0  # updates so far
        self.last_step: int | None = None
        self._ring = np.full((n, columns.RING), np.nan, dtype=np.float32)
        self._number = np.zeros((n, columns.RING), dtype=np.int64)
        self._evidence = np.zeros((n, columns.RING), dtype=np.uint8)
        self._floats = np.full((n, columns.N_FLOATS), np.nan)
        zero = [columns.LOST_S, columns.SPENT_S, columns.ODD, columns.QUANTUM_S]
        self._floats[:, zero] = 0.0
        self._floats[:, columns.CYCLE : columns.MEAN] = 0.0
        self._floats[:, columns.MEAN] = 1.0
        self._wholes = np.zeros((n, columns.N_WHOLES), dtype=np.int64)
        self._likeness = Likeness(like)
        self._workloads = Workloads()
        self._scale = 1.0

    def state_dict(self) -> State:
        """The whole state, for :meth:`from_state_dict`; its format is :data:`STATE_SCHEMA`."""
        return {
            "schema": STATE_SCHEMA,
            "version": STATE_VERSION,
            "ranks": self.ranks,
            "threshold": float(self.threshold),
            "warm_up": int(self.warm_up),
            "steps": self.steps,
            "last_step": self.last_step,
            "expected": {
                "scale": self._scale,
                "likeness": self._likeness.state(),
                "workloads": self._workloads.state(),
            },
            **{name: getattr(self, f"_{name}").copy() for name in _STATE},
        }

    @classmethod
    def from_state_dict(cls, state: object) -> Detector:
        """Restore a detector from the result of :meth:`state_dict`.

        Raises:
            StateError: the schema or version differs, or a field is invalid.
        """
        state = _from_older(state)
        reader = StateReader(state, STATE_SCHEMA, STATE_VERSION, (*_STATE_NUMBERS, *_STATE))
        ranks = reader.whole("ranks", least=1)
        arrays = {name: reader.array(name, _STATE[name], {"rank": ranks}) for name in _STATE}
        try:
            detector = cls(
                ranks, threshold=reader.number("threshold"), warm_up=reader.whole("warm_up")
            )
        except DetectError as error:
            raise StateError(f"{STATE_SCHEMA}: {error}") from None
        detector.steps = reader.whole("steps")
        if reader.value("last_step") is not None:
            detector.last_step = reader.whole("last_step", least=-(2**62))
        for name, array in arrays.items():
            setattr(detector, f"_{name}", array)
        if (detector._wholes[:, columns.SEEN] < 0).any():
            reader.fail("wholes", "has a negative count of samples")
        periods = detector._wholes[:, columns.PERIOD]
        if ((periods < 0) | (periods > MAX_PERIOD)).any():
            reader.fail("wholes", "has a period out of range")
        expected = reader.value("expected")
        try:
            detector._scale = float(expected["scale"])
            detector._likeness = Likeness.from_state(expected["likeness"])
            detector._workloads = Workloads.from_state(expected["workloads"])
        except (TypeError, KeyError, ValueError, IndexError, DetectError):
            reader.fail("expected", "has missing or invalid fields")
        return detector

    def widened(self, ranks: int, place: npt.NDArray[np.int64]) -> Detector:
        """A detector for ``ranks`` ranks, where this one's rank i becomes rank ``place[i]``."""
        wide = Detector(ranks, threshold=self.threshold, warm_up=self.warm_up)
        for name in _STATE:
            getattr(wide, f"_{name}")[place] = getattr(self, f"_{name}")
        wide.steps, wide.last_step, wide._scale = self.steps, self.last_step, self._scale
        wide._likeness, wide._workloads = self._likeness, self._workloads
        return wide

    @property
    def slow(self) -> npt.NDArray[np.bool_]:
        """[rank] whether the rank is in an episode of slowness."""
        slow: npt.NDArray[np.bool_] = self._wholes[:, columns.SLOW] != 0
        return slow

    @property
    def since_step(self) -> npt.NDArray[np.int64]:
        """[rank] first step of the rank's latest episode; 0 without any."""
        return self._wholes[:, columns.SINCE_STEP].copy()

    @property
    def lost_s(self) -> Array:
        """[rank] seconds lost in the current episode; 0 outside an episode."""
        return self._floats[:, columns.LOST_S].copy()

    @property
    def healthy_s(self) -> Array:
        """[rank] healthy step time for the last step's workload; nan during the warm-up."""
        healthy_s: Array = self._floats[:, columns.HEALTHY_S] * self._scale
        return healthy_s

    @property
    def level_s(self) -> Array:
        """[rank] current step time for the last step's workload; nan during the warm-up."""
        level_s: Array = self._floats[:, columns.LEVEL_S] * self._scale
        return level_s

    @property
    def unsure_rise(self) -> Array:
        """[rank] share by which steps became longer with no certain fail-slow; 0 without a rise.

        It compares the last third of up to 512 samples with the first third. Ranks that had an
        event are left out.
        """
        seen, age = (self._wholes[:, column] for column in (columns.SEEN, columns.AGE))
        numbers = np.minimum(np.minimum(seen, age), columns.RING)
        on_first = (self._wholes[:, columns.INITIAL] == 1) & ~self.slow
        rises = np.zeros(self.ranks)
        for rank in np.flatnonzero(on_first).tolist():
            at = (seen[rank] - 1 - np.arange(numbers[rank])) % columns.RING
            newest_first = self._ring[rank, at].astype(np.float64)
            rise, _, errors = trend(newest_first, len(newest_first))
            if rise > self.threshold and errors > UNSURE_ERRORS:
                rises[rank] = rise
        return rises

    def columns(self) -> tuple[Array, npt.NDArray[np.int64]]:
        """Copies of the kernel's ``floats`` and ``wholes`` (:mod:`paceline.detect.columns`)."""
        return self._floats.copy(), self._wholes.copy()

    def update(
        self,
        step: int,
        durations_s: npt.ArrayLike,
        workload: Mapping[str, float] | None = None,
    ) -> list[Event]:
        """Take the step times of one step, and return the events that they confirm.

        Args:
            step: step number, higher than in the last call.
            durations_s: [rank] seconds; nan = no sample.
            workload: planned size of the step, by any names: ``{"tokens": 4096}``.

        Raises:
            DetectError: the durations are not one number per rank, or the step is not after the
                last.
        """
        x = checked_durations(step, durations_s, self.ranks, self.last_step)
        self.last_step = int(step)
        jumped = (x < MIN_STEP_S) | (x > MAX_STEP_S)
        missing = np.isnan(x) | jumped
        events = []
        if jumped.any():
            events = [self._jump(rank, step) for rank in np.flatnonzero(jumped).tolist()]
        like = self._likeness.expected(step, self.steps)
        self.steps += 1
        for number, row, scale in self._workloads.take(int(step), x, missing, like, workload):
            events += self._judge(number, row, scale, int(step))
        return events

    def _judge(self, number: int, x: Array, scale: float, step: int) -> list[Event]:
        """Events of a step with the relative expected time ``scale``."""
        if scale != 1.0:
            x = x / scale
        self._scale = scale
        jumped = ~((x >= MIN_STEP_S) & (x <= MAX_STEP_S))
        out = np.empty((2 * self.ranks, columns.N_OUT))
        n = self.advance(
            max(self.steps, self.expected_steps) * self.ranks,
            number,
            x,
            jumped,
            scale,
            levels.EVIDENCE * float(self.threshold),
            int(self.warm_up),
            self._ring,
            self._number,
            self._evidence,
            self._floats,
            self._wholes,
            out,
        )
        if not n:
            return []
        for code, rank, *_ in out[:n].tolist():
            if code == levels.FASTER and number < step:  # first samples of a stage: it is planned
                self.accept(int(rank))
        silent = [int(rank) for code, rank, *_ in out[:n].tolist() if code == levels.SILENT]
        first_missing = self._first_missing(silent, step) if silent else {}
        return [self._event(row, step, first_missing) for row in out[:n].tolist()]

    def _first_missing(self, ranks: list[int], step: int) -> dict[int, int]:
        """Rank -> first step without a sample, by the other ranks; without any, by equal gaps."""
        seen = self._wholes[:, columns.SEEN]
        at = (seen[:, None] - 1 - np.arange(SILENT_AFTER)) % columns.RING
        steps = np.take_along_axis(self._number, at, axis=1)
        known = np.unique(steps[~np.isnan(np.take_along_axis(self._ring, at, axis=1))])
        first_missing = {}
        for rank in ranks:
            last = min(int(steps[rank, 0]), step - SILENT_AFTER) if seen[rank] else None
            later = known if last is None else known[known > last]
            if len(later):
                first_missing[rank] = int(later[0])
            elif last is None:
                first_missing[rank] = step - SILENT_AFTER + 1
            else:
                first_missing[rank] = last + round((step - last) / SILENT_AFTER)
        return first_missing

    def _event(self, row: list[float], step: int, first_missing: dict[int, int]) -> Event:
        code, rank, since, factor, before, lost_s, healthy_s, bursts, every = row
        kind = _KINDS[int(code)]
        if kind == "silent":
            since = first_missing[int(rank)]
        first = None
        if kind in SLOW_KINDS or kind == "faster":
            first = estimate(self._floats[int(rank)], self._wholes[int(rank)], factor)
        return Event(
            *(kind, int(rank), step, int(since), factor, lost_s, healthy_s),
            before_factor=before,
            estimate=first,
            bursts_up_to=int(bursts),
            bursts_every=int(every),
        )

    def _jump(self, rank: int, step: int) -> Event:
        healthy_s, lost_s = float(self.healthy_s[rank]), float(self.lost_s[rank])
        return Event("clock-jump", rank, int(step), int(step), np.nan, lost_s, healthy_s)

    def go_back(self) -> None:
        """Note a restart of the job from a checkpoint: the next step may have a lower number.

        Levels are not judged again before at least six samples without a trend.
        """
        self.last_step = None
        self._wholes[:, columns.SETTLE] = 1

    def settle_level(self) -> None:
        """Take the median of the last 7 samples as the healthy level, and end any episode.

        For a relief that the caller knows from another source.
        """
        at = (self._wholes[:, columns.SEEN, None] - 1 - np.arange(levels.LOW)) % columns.RING
        with np.errstate(all="ignore"):
            level_s = np.median(np.take_along_axis(self._ring, at, axis=1), axis=1)
        usable = np.isfinite(level_s) & np.isfinite(self._floats[:, columns.LEVEL_S])
        for column in (columns.LEVEL_S, columns.HEALTHY_S, columns.MIDDLE_S):
            self._floats[usable, column] = level_s[usable]
        self._wholes[usable, columns.AGE] = levels.LOW
        self._end_episodes(usable)

    def accept(self, rank: int | None = None) -> None:
        """Take the current level as healthy, for example after a planned change.

        Args:
            rank: the rank; None: all ranks.

        Raises:
            DetectError: the detector has no such rank.
        """
        if rank is not None and not 0 <= rank < self.ranks:
            raise DetectError(f"rank {rank} is not among the {self.ranks} ranks")
        rows = slice(None) if rank is None else slice(rank, rank + 1)
        self._floats[rows, columns.HEALTHY_S] = self._floats[rows, columns.LEVEL_S]
        self._end_episodes(rows)

    def _end_episodes(self, rows: slice | npt.NDArray[np.bool_]) -> None:
        """End the episodes of some ranks without events, also for ramps that go on."""
        floats, wholes = self._floats, self._wholes
        floats[rows, columns.LOST_S] = floats[rows, columns.SPENT_S] = 0.0
        floats[rows, columns.SMALL_RISEN] = np.nan
        on_ramp = wholes[rows, columns.INITIAL] == columns.ON_RAMP
        level_s, middle_s = floats[rows, columns.LEVEL_S], floats[rows, columns.MIDDLE_S]
        floats[rows, columns.MIDDLE_S] = np.where(on_ramp, level_s, middle_s)
        wholes[rows, columns.INITIAL] = np.where(on_ramp, 0, wholes[rows, columns.INITIAL])
        on_trial = wholes[rows, columns.INITIAL] == columns.ON_TRIAL
        wholes[rows, columns.INITIAL] = np.where(on_trial, 1, wholes[rows, columns.INITIAL])
        wholes[rows, columns.SLOW] = 0
