"""Online detection of fail-slows in step times, vectorised over ranks.

A rank's healthy level (the *anchor*) is the median of its first steps, then tracked so slowly that
drift is followed and an episode is not. A fail-slow is sure when the median of the last w steps
lies more than 10% above it, for any of several w: short windows find large factors within a few
steps, long ones small factors in spite of noise. Medians do not see spikes. How much a median of w
steps strays in health is measured for every rank and w, so autocorrelated noise raises the bar by
itself. (Falcon, 4.3, verifies the change points of BOCD by such a 10% test; on its labelled streams
medians alone are faster and need no run lengths. docs/detect.md compares.)

The median of w values exceeds a level when more than half of them do: counting replaces sorting.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.detect.event import Event, Kind
from paceline.detect.state import ArrayField, State, StateReader
from paceline.errors import DetectError, StateError
from paceline.robust import SIGMA_OF_MAD, SIGMA_OF_MEAN_DEVIATION

Array = npt.NDArray[np.float64]

#: Steps of the windows (odd), and the steps between looks at how far each strays in health.
WINDOWS = (5, 7, 9, 17, 33, 65, 129, 257)
#: A level this share above the anchor counts as slow, once noise is allowed for: the paper's 10%
#: (4.3), less the error of an anchor that noise of a few percent leaves uncertain.
THRESHOLD = 0.09
#: Standard deviations of each window's median on top of it, so that a level of 8% is not taken for
#: one of 10%. Short windows are looked at more often, so they must be surer than long ones.
_SURE = np.array([2.2, 2.0, 1.8, 1.4, 0.8, 0.8, 0.8, 0.8])[:, None]
#: Spreads above the anchor that a level has in any case: where noise is larger than the threshold,
#: health itself strays above it.
_STRAYS = np.array([6.0, 5.8, 5.7, 5.4, 4.1, 2.4, 0.0, 0.0])[:, None]
#: Steps before anything is said, and steps whose median is the first anchor.
WARM_UP, ANCHOR_STEPS = 50, 512
_ANCHOR_EVERY = 16
#: The anchor moves by this share per step at most: 10% in 10,000 steps.
_DRIFT = 1e-5
#: A step this many times as long as a healthy one is a pause (checkpoint, evaluation, restart):
#: neither it nor the steps in which the job warms up again are evidence. It is over below half of
#: that: what stays above is no pause but a level.
PAUSE, _AFTER_PAUSE = 5.0, 5
#: Samples in a row that must agree before a missing one counts as the last.
_AGREED = 3
#: Relief: steps looked at, and how many of them lie nearer to health than to the onset's level.
_RELIEF_OF, _RELIEF = 9, 7
_MIN_RELIEF_LEVEL = 0.05
#: Memory of the estimates of noise, in steps; steps between medians of what it is measured around.
_NOISE_STEPS, _MIDDLE_EVERY = 400, 64
#: Durations that no clock which runs on can give; single precision knows those between.
MIN_STEP_S, MAX_STEP_S = 1e-12, 1e12
#: Steps without a sample after which a rank is called silent.
SILENT_AFTER = 10

_RING = ANCHOR_STEPS
_HALF = np.array([(w + 1) // 2 for w in WINDOWS])

#: What :meth:`Detector.state_dict` says of itself. Other fields, another meaning of one, or other
#: windows: the next version, and a file of it in tests/golden.
STATE_SCHEMA, STATE_VERSION = "paceline-detector", 1
_OF_WINDOW = (len(WINDOWS), "rank")
_STATE = {
    "x": ArrayField("<f4", (_RING, "rank"), nan=True, least=0.0),
    "number": ArrayField("<i8", (_RING,)),
    "bits": ArrayField("|u1", (WINDOWS[-1], "rank")),
    "counts": ArrayField("<i2", _OF_WINDOW, least=0, most=WINDOWS[-1]),
    "anchor": ArrayField("<f8", ("rank",), nan=True, least=0.0),
    "stray": ArrayField("<f8", _OF_WINDOW, nan=True, least=0.0),
    "level": ArrayField("<f8", _OF_WINDOW, inf=True, least=0.0),
    "seen": ArrayField("<i8", ("rank",), least=0),
    "missing": ArrayField("<i8", ("rank",), least=0),
    "hold": ArrayField("<i8", ("rank",), least=0),
    "paused": ArrayField("|b1", ("rank",)),
    "agreed": ArrayField("|i1", _OF_WINDOW, least=0, most=_AGREED),
    "middle": ArrayField("<f8", ("rank",), nan=True, least=0.0),
    "slow": ArrayField("|b1", ("rank",)),
    "since": ArrayField("<i8", ("rank",), least=0),
    "since_step": ArrayField("<i8", ("rank",)),
    "bar": ArrayField("<f8", ("rank",), least=0.0),
    "top": ArrayField("<f8", ("rank",), least=0.0),
    "healed": ArrayField("<i8", ("rank",), least=-_RING),
    "low": ArrayField("|b1", (_RELIEF_OF, "rank")),
    "low_step": ArrayField("<i8", (_RELIEF_OF, "rank")),
    "lost": ArrayField("<f8", ("rank",)),
    "spent": ArrayField("<f8", ("rank",), least=0.0),
}
_STATE_NUMBERS = ("ranks", "threshold", "warm_up", "steps", "last_step")


def checked_durations(
    step: int, durations_s: npt.ArrayLike, ranks: int, last_step: int | None
) -> Array:
    """[rank] the durations of a step that comes after ``last_step``.

    Raises:
        DetectError: they are no numbers, not one for each rank, or the step is not behind the last.
    """
    if isinstance(step, bool) or not isinstance(step, int | np.integer):
        raise DetectError(f"a step is a whole number, not {step!r}")
    try:
        x = np.asarray(durations_s, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise DetectError(f"step {step} needs a number of seconds for each rank") from None
    if len(x) != ranks:
        raise DetectError(f"step {step} has {len(x)} durations for {ranks} ranks")
    if last_step is not None and step <= last_step:
        raise DetectError(f"step {step} comes after step {last_step}; steps must grow")
    return x


class Detector:
    """Feeds on one step after another.

    Args:
        ranks: how many there are; each is judged on its own.
        threshold: share above the healthy level from which on a rank is slow.
        warm_up: steps before anything is said (at least 10).

    Raises:
        DetectError: an argument is out of range.
    """

    def __init__(self, ranks: int, *, threshold: float = THRESHOLD, warm_up: int = WARM_UP) -> None:
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
        self._x = np.full((_RING, n), np.nan, dtype=np.float32)  # [step mod ring, rank]
        self._number = np.zeros(_RING, dtype=np.int64)  # step numbers of its rows
        self._bits = np.zeros((WINDOWS[-1], n), dtype=np.uint8)  # window i: bit i
        self._counts = np.zeros((len(WINDOWS), n), dtype=np.int16)
        self._anchor = np.full(n, np.nan)
        self._stray = np.full((len(WINDOWS), n), np.nan)  # of a window's median, relative
        self._level = np.full((len(WINDOWS), n), np.inf)  # seconds above which a step counts
        self._seen = np.zeros(n, dtype=np.int64)  # samples
        self._missing = np.zeros(n, dtype=np.int64)  # steps in a row without one
        self._hold = np.zeros(n, dtype=np.int64)  # steps that are no evidence
        self._paused = np.zeros(n, dtype=bool)  # whether the last sample was of one
        self._agreed = np.zeros((len(WINDOWS), n), dtype=np.int8)  # samples in a row above
        self._middle = self._anchor.copy()  # median of the last steps, whatever they were
        self._slow = np.zeros(n, dtype=bool)
        self._since = np.zeros(n, dtype=np.int64)  # update in which the episode began
        self._since_step = np.zeros(n, dtype=np.int64)
        self._bar = np.zeros(n)  # seconds below which a step of an episode looks healthy
        self._top = np.zeros(n)  # and above which it is a pause
        self._healed = np.full(n, -_RING)  # update of the last relief
        self._low = np.zeros((_RELIEF_OF, n), dtype=bool)  # its last samples: below the bar?
        self._low_step = np.zeros((_RELIEF_OF, n), dtype=np.int64)
        self._lost = np.zeros(n)
        self._spent = np.zeros(n)  # healthy seconds of the episode's steps

    def state_dict(self) -> State:
        """All that a detector knows, to go on from there: see :data:`STATE_SCHEMA`."""
        return {
            "schema": STATE_SCHEMA,
            "version": STATE_VERSION,
            "ranks": self.ranks,
            "threshold": float(self.threshold),
            "warm_up": int(self.warm_up),
            "steps": self.steps,
            "last_step": self.last_step,
            **{name: getattr(self, f"_{name}").astype(_STATE[name].dtype) for name in _STATE},
        }

    @classmethod
    def from_state_dict(cls, state: object) -> Detector:
        """A detector that goes on where another stood.

        Raises:
            StateError: the state is of another schema or version, or a field does not fit.
        """
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
        return detector

    @property
    def slow(self) -> npt.NDArray[np.bool_]:
        """[rank] whether it is in an episode."""
        return self._slow.copy()

    @property
    def healthy_s(self) -> Array:
        """[rank] the healthy step time; nan during the warm-up."""
        return self._anchor.copy()

    def update(self, step: int, durations_s: npt.ArrayLike) -> list[Event]:
        """Take the step times of one step; returns what is sure now.

        Args:
            step: its number; it must grow from call to call.
            durations_s: [rank] seconds; nan = no sample.

        Raises:
            DetectError: no numbers, another number of ranks, or a step that is not behind the last.
        """
        x = checked_durations(step, durations_s, self.ranks, self.last_step)
        self.last_step = int(step)
        jumped = (x < MIN_STEP_S) | (x > MAX_STEP_S)
        events = [
            self._event("clock-jump", rank, step, step) for rank in np.flatnonzero(jumped).tolist()
        ]
        missing = jumped | np.isnan(x)
        self._silence(step, missing, events)
        # A missing sample repeats the last, so that medians stay what they were.
        row = self.steps % _RING
        before = self._x[row - 1]
        self._x[row] = np.where(missing, before, x)
        self._number[row] = step
        self._seen += ~missing
        x = self._x[row].astype(np.float64)
        self.steps += 1
        self._set_anchor(x, missing)
        self._count(x, missing)
        self._find_onsets(step, events)
        self._follow_episodes(step, x, missing, events)
        self._learn_noise()
        return events

    def go_back(self) -> None:
        """The job was started again from a checkpoint: the next step may have a lower number."""
        self.last_step = None

    def _event(self, kind: Kind, rank: int, step: int, since: int, factor: float = np.nan) -> Event:
        lost_s = float(self._lost[rank])
        return Event(kind, rank, int(step), int(since), factor, lost_s, float(self._anchor[rank]))

    def _silence(self, step: int, missing: npt.NDArray[np.bool_], events: list[Event]) -> None:
        self._missing = np.where(missing, self._missing + 1, 0)
        for rank in np.flatnonzero(self._missing == SILENT_AFTER).tolist():
            back = min(SILENT_AFTER - 1, self.steps)
            first = self._number[(self.steps - back) % _RING] if back else step
            events.append(self._event("silent", rank, step, int(first)))

    def _last(self, n: int, ranks: Any = slice(None)) -> npt.NDArray[np.float32]:
        """[n, rank] the last ``n`` rows, oldest first."""
        rows = np.arange(self.steps - n, self.steps) % _RING
        return self._x[rows][:, ranks]

    def _set_anchor(self, x: Array, missing: npt.NDArray[np.bool_]) -> None:
        n = self.steps
        if n == self.warm_up or (self.warm_up < n <= _RING and n % _ANCHOR_EVERY == 0):
            with np.errstate(all="ignore"):
                middle = _median(self._last(n))
            self._anchor = np.where(self._slow, self._anchor, middle)
        elif n > _RING:
            frozen = self._slow | missing | (self._hold > 0)
            self._anchor += np.where(frozen, 0.0, _DRIFT * np.sign(x - self._anchor) * self._anchor)
        late = np.isnan(self._anchor) & (self._seen >= self.warm_up)
        if late.any():  # ranks that joined during the warm-up
            self._anchor[late] = _median(self._last(min(n, self.warm_up), late))

    def _count(self, x: Array, missing: npt.NDArray[np.bool_]) -> None:
        """Count, per window, the steps above its level."""
        pause = x > PAUSE * self._anchor
        begins = pause & ~self._paused & (self._hold == 0)
        self._hold = np.where(begins, _AFTER_PAUSE + 1, self._hold)
        # A level that stays up after the pause is no pause.
        self._paused = pause | (self._paused & (x > PAUSE / 2 * self._anchor))
        no_evidence = self._hold > 0
        self._hold = np.maximum(self._hold - 1, 0)
        above = x > self._level
        counted = ~(missing | no_evidence)
        one_more = np.minimum(self._agreed + np.int8(1), np.int8(_AGREED))
        self._agreed = np.where(counted, np.where(above, one_more, np.int8(0)), self._agreed)
        above &= counted | (missing & ~no_evidence & (self._agreed == _AGREED))
        new = np.zeros(self.ranks, dtype=np.uint8)
        for i in range(len(WINDOWS)):
            new |= above[i].astype(np.uint8) << np.uint8(i)
        size = WINDOWS[-1]
        for i, window in enumerate(WINDOWS):
            old = (self._bits[(self.steps - window) % size] >> np.uint8(i)) & np.uint8(1)
            self._counts[i] += above[i].astype(np.int16) - old.astype(np.int16)
        self._bits[self.steps % size] = new

    def _find_onsets(self, step: int, events: list[Event]) -> None:
        onsets = (self._counts >= _HALF[:, None]) & ~self._slow
        for rank in np.flatnonzero(onsets.any(axis=0)).tolist():
            window = WINDOWS[int(np.argmax(onsets[:, rank]))]
            begin, factor, lost_s = self._estimate(rank, window)
            self._slow[rank] = True
            self._since[rank] = begin
            self._since_step[rank] = self._number[begin % _RING]
            anchor = float(self._anchor[rank])
            self._bar[rank] = anchor * (1 + max(_MIN_RELIEF_LEVEL, (factor - 1) / 2))
            self._top[rank] = PAUSE * anchor * factor
            self._low[:, rank] = False
            self._lost[rank] = lost_s
            self._spent[rank] = anchor * (self.steps - begin)
            events.append(self._event("onset", rank, step, self._since_step[rank], factor))

    def _estimate(self, rank: int, window: int) -> tuple[int, float, float]:
        """Update in which the episode began, its factor, and seconds lost since.

        The begin is where the sum of what exceeds the middle between both levels is largest, each
        step's share bounded so that a spike cannot move it.
        """
        n = min(self.steps, _RING, 2 * window + 9)
        x = self._last(n, rank).astype(np.float64)
        anchor = float(self._anchor[rank])
        level = float(np.median(x[-((window + 1) // 2) :]))
        x[x > PAUSE * max(level, anchor)] = anchor
        gap = max(level - anchor, self.threshold * anchor)
        excess = np.clip(x - (anchor + gap / 2), -gap, gap)
        first = n - 1 - int(np.argmax(np.cumsum(excess[::-1])))
        episode = x[first:]
        return (
            self.steps - n + first,
            float(np.median(episode)) / anchor,
            float((episode - anchor).sum()),
        )

    def _follow_episodes(
        self, step: int, x: Array, missing: npt.NDArray[np.bool_], events: list[Event]
    ) -> None:
        ranks = np.flatnonzero(self._slow)
        if not len(ranks):
            return
        older = ranks[(self._since[ranks] < self.steps - 1) & ~missing[ranks]]
        started = {event.rank for event in events if event.kind == "onset"}
        grown = older[~np.isin(older, list(started))] if started else older
        for memory, newest in ((self._low, x < self._bar), (self._low_step, np.full(len(x), step))):
            memory[:-1, grown] = memory[1:, grown]
            memory[-1, grown] = newest[grown]
        charged = grown[x[grown] <= self._top[grown]]  # not with pauses
        self._lost[charged] += x[charged] - self._anchor[charged]
        self._spent[charged] += self._anchor[charged]
        over = self._low[:, ranks].sum(axis=0) >= _RELIEF
        for rank in ranks[over].tolist():
            low = np.where(self._low[::-1, rank], 1, -1)
            since = int(self._low_step[_RELIEF_OF - 1 - int(np.argmax(np.cumsum(low))), rank])
            factor = 1 + self._lost[rank] / max(self._spent[rank], 1e-300)
            events.append(self._event("relief", rank, step, since, float(factor)))
            self._slow[rank] = False
            self._healed[rank] = self.steps
            self._lost[rank] = self._spent[rank] = 0.0
            self._counts[:, rank] = 0
            self._bits[:, rank] = 0

    def _learn_noise(self) -> None:
        """How far medians of w healthy steps stray; then the levels that count.

        From the median of the last steps, as a slow ramp is no noise around the anchor; from the
        anchor while an episode lies within those steps.
        """
        n = self.steps
        if n < self.warm_up:
            return
        if n == self.warm_up or n % _MIDDLE_EVERY == 0:
            self._middle = _median(self._last(min(n, _RING)))
        around = np.where(n - self._healed < _RING, self._anchor, self._middle)
        for i, window in enumerate(WINDOWS):
            if n < window + 10 or (n % window and n != self.warm_up):
                continue
            if np.isnan(self._stray[i]).any():
                self._first_noise(i, window)
            off = np.abs(_median(self._last(window)) / around - 1)
            off = np.minimum(off, 3 * self._stray[i] + 0.002)
            share = max(window / _NOISE_STEPS, window / n)
            share = min(share, 1.0)
            updated = (1 - share) * self._stray[i] + share * SIGMA_OF_MEAN_DEVIATION * off
            self._stray[i] = np.where(self._slow, self._stray[i], updated)
        above = np.maximum(self.threshold + _SURE * self._stray, _STRAYS * self._stray)
        level = self._anchor * (1 + above)
        self._level = np.where(np.isnan(level), np.inf, level)

    def _first_noise(self, i: int, window: int) -> None:
        """From the windows so far, half overlapping."""
        n = min(self.steps, _RING)
        rows = self._last(n)
        starts = range(0, n - window + 1, max(1, window // 2))
        off = np.stack([_median(rows[k : k + window]) for k in starts]) / self._anchor - 1
        middle = SIGMA_OF_MAD * np.median(np.abs(off), axis=0) + 0.25 * off.std(axis=0)
        fresh = np.isnan(self._stray[i])
        self._stray[i] = np.where(fresh, middle, self._stray[i])


def _median(rows: npt.NDArray[np.float32]) -> Array:
    """[rank] medians over the rows; of a rank that joined later, over its own."""
    middle = len(rows) // 2
    medians: Array = np.partition(rows, middle, axis=0)[middle].astype(np.float64)
    late = np.isnan(rows[0]) & ~np.isnan(rows[-1])
    if late.any():
        medians[late] = np.nanmedian(rows[:, late], axis=0)
    return medians
