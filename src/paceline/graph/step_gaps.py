"""Time between the steps of a trace: pauses that belong to no step, and steps that overlap."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.trace import Periods, Trace
from paceline.trace.warning import BETWEEN_STEPS, STEPS_OVERLAP, UNLIKE_STEPS, Warning
from paceline.units import count, seconds, several

Array = npt.NDArray[np.float64]

#: From this share on, time between the steps matters. A job counts as straggling from the same
#: share on.
MATTERS = 0.03

#: Least part of the steps, from the first to the last one of a trace, whose times stand for all.
MOST = 0.9

#: A step without operations is long from this many times the usual one on. Its length may hold a
#: pause, and noise of half a step is rare.
LONG = 1.5

#: Share, and standard errors, by which profiled steps may differ from the others; fewest steps of
#: both; and steps that warm up.
UNLIKE, UNLIKE_ERRORS, FEWEST, WARM_UP = 0.1, 3.0, 8, 3

#: Long steps that are listed.
MAX_SHOWN = 5


@dataclass(frozen=True, eq=False)
class AllSteps:
    """Times of all recorded steps, where a trace has operations of some of them.

    Attributes:
        seconds: [step] seconds from step to step.
        pause_share: share of this time that passes in pauses between the steps.
    """

    seconds: Array
    pause_share: float

    @property
    def pause_s(self) -> float:
        """Mean seconds of the pause before a step."""
        return self.pause_share * float(self.seconds.mean())


@dataclass(frozen=True)
class StepGaps:
    """Seconds from the end of each step's predecessor to its own start.

    Attributes:
        steps: [step] step numbers.
        start_s: [step] absolute starts, NaN = unknown.
        traced_s: [step] step times.
        gap_s: [step] seconds; negative where the steps overlap; NaN where the trace has no absolute
            times, or does not know the end of the step before.
        idle_s: [step, replica, pp] seconds from a worker's last operation of the step before to its
            first one, by work of its host or a wait of it; NaN as for ``gap_s``.
        periods: times from step to step, of the steps between these, too; None: unknown.
    """

    steps: npt.NDArray[np.int64]
    start_s: Array
    traced_s: Array
    gap_s: Array
    idle_s: Array
    periods: Periods | None = None

    @property
    def overlap_s(self) -> Array:
        """[step] seconds in which the step before still ran; the median where they are unknown."""
        known = np.isfinite(self.gap_s)
        if not known.any():
            return np.zeros(len(self.gap_s))
        overlap = np.maximum(-self.gap_s, 0.0)
        return np.where(known, overlap, np.median(overlap[known]))

    @property
    def open_overlap_s(self) -> float:
        """Largest mean overlap that the trace leaves open, seconds: 0 where some gap is known.

        Step times beyond the mean time from start to start may be overlap.
        """
        if np.isfinite(self.gap_s).any():
            return 0.0
        if len(self.steps) < 2 or not np.isfinite(self.start_s).all():
            return np.inf
        per_step_s = np.diff(self.start_s) / np.diff(self.steps)
        return max(0.0, float(self.traced_s.mean() - per_step_s.mean()))

    def notes(self) -> list[Warning]:
        """Notes on the time between the steps, and on profiled steps that are unlike the others."""
        return [*self._between(), *self._unlike()]

    def _between(self) -> list[Warning]:
        known = np.isfinite(self.gap_s)
        if not known.any():
            return []
        gap, traced = self.gap_s[known], self.traced_s[known]
        pause, overlap = np.maximum(gap, 0.0), np.maximum(-gap, 0.0)
        notes = []
        every = self.of_all_steps()
        if every is not None:
            numbers = {"share": every.pause_share, "step_s": float(every.seconds.mean())}
        else:
            numbers = {"share": float(pause.sum() / (traced.sum() + gap.sum()))}
            if known.sum() < MOST * (self.steps[-1] - self.steps[0]):
                numbers["traced_only"] = 1.0
        if (share := numbers["share"]) >= MATTERS:
            longest = int(np.argmax(pause))
            where = "of the time lies between the steps"
            if "traced_only" in numbers:
                where = (
                    "of the time of the traced steps lies before them (the times of the steps "
                    "between them are unknown)"
                )
            text = (
                f"{share:.1%} {where}, the longest before step "
                f"{self.steps[known][longest]} ({seconds(pause[longest])}): checkpoint, "
                "evaluation, data loading? It belongs to no step, so neither S nor the tables of a "
                "comparison count it"
            )
            notes.append(Warning(BETWEEN_STEPS, text, numbers))
        if (share := float(overlap.sum() / traced.sum())) >= MATTERS:
            text = (
                f"steps overlap by {share:.1%}: workers begin a step while others still run the "
                "one before, since no traced operation waits for all. That time is in both "
                "steps, so a step's traced time is too long by it"
            )
            notes.append(Warning(STEPS_OVERLAP, text, {"share": share}))
        return notes

    def _unlike(self) -> list[Warning]:
        """A note where profiled steps take longer or shorter than the others.

        The first steps are left out: they warm up. A difference within ``UNLIKE_ERRORS`` standard
        errors is chance, unless long steps make it, of which none is profiled.
        """
        if self.periods is None or not len(self.steps):
            return []
        every = self.periods.within(self.steps)
        warm = every.steps > every.steps.min(initial=0) + WARM_UP
        numbers, times_s = every.steps[warm], every.seconds[warm]
        is_profiled = np.isin(numbers, self.steps)
        both = [times_s[of] for of in (is_profiled, ~is_profiled)]
        if min(map(len, both)) < FEWEST:
            return []
        profiled_s, others_s = (float(side.mean()) for side in both)
        error_s = math.hypot(*(float(side.std(ddof=1)) / math.sqrt(len(side)) for side in both))
        usual_s = float(np.median(times_s))
        is_long = times_s > LONG * usual_s
        excess = float((times_s - usual_s)[is_long].sum() / times_s.sum())
        if abs(profiled_s - others_s) > max(UNLIKE * others_s, UNLIKE_ERRORS * error_s):
            text = (
                f"profiled steps take {seconds(profiled_s)} on average, all others "
                f"{seconds(others_s)}: the analysis is of profiled steps only. An evaluation, a "
                "checkpoint or logging may fall on them, or profiling slows them"
            )
        elif excess >= MATTERS and not is_long[is_profiled].any():
            shown = list(map(str, numbers[is_long].tolist()))
            text = (
                f"{excess:.1%} of the time passes in {count(int(is_long.sum()), 'long step')} "
                f"({several(shown, MAX_SHOWN)}), and none of them is profiled: an "
                "evaluation, a checkpoint or logging may fall on them"
            )
        else:
            return []
        text += "; record with every=1 to tell. `paceline detect` reads the times of all steps"
        all_s = float(every.seconds.mean())
        return [Warning(UNLIKE_STEPS, text, {"profiled_s": profiled_s, "all_s": all_s})]

    def of_all_steps(self) -> AllSteps | None:
        """The times from step to step and the share of pauses, with the steps between.

        Pauses before traced steps are known, and the others are estimated from the times from step
        to step. A usual step between is no longer than a traced one but for a pause, of at most the
        usual pause. The excess of a long step is a pause in the part in which that of long traced
        steps is.

        Returns:
            The times; None if few steps lie between the traced ones, or if their times are
            unknown.
        """
        if self.periods is None or len(self.steps) < 2:
            return None
        every = self.periods.within(self.steps)
        known = np.isfinite(self.gap_s)
        known[0] = False  # the step before it is no part of the trace
        is_other = ~np.isin(every.steps, self.steps[known])
        n_steps = int(self.steps[-1] - self.steps[0])
        if len(every.steps) < MOST * n_steps or not (is_other.any() and known.any()):
            return None
        pause_s = np.maximum(self.gap_s[known], 0.0)
        lasted_s = self.traced_s[known] + np.minimum(self.gap_s[known], 0.0)
        other_s = every.seconds[is_other]
        usual_s, other_usual_s = np.median(lasted_s), np.median(other_s)
        usual_pause_s = min(max(other_usual_s - usual_s, 0.0), np.median(pause_s))
        beyond_s = lasted_s + pause_s - usual_s
        is_long = beyond_s > (LONG - 1) * usual_s
        paused = 0.0
        if is_long.any():
            paused = min(1.0, pause_s[is_long].sum() / beyond_s[is_long].sum())
        excess_s = np.where(other_s > LONG * other_usual_s, other_s - other_usual_s, 0.0)
        others_pause_s = usual_pause_s * len(other_s) + paused * excess_s.sum()
        share = (pause_s.sum() + others_pause_s) / every.seconds.sum()
        return AllSteps(every.seconds, float(share))


def step_gaps(trace: Trace, offset_s: Array | None = None) -> StepGaps:
    """The times between the steps of a trace.

    Args:
        trace: some steps of a job.
        offset_s: [replica, pp] seconds that each worker's clock is ahead; None: clocks agree.
    """
    n_ops = trace.counts.sum(axis=3, dtype=np.int64)  # [step, replica, pp]
    busy, first_row = n_ops > 0, (np.cumsum(n_ops) - n_ops.ravel()).reshape(n_ops.shape)
    begin, end = np.full(n_ops.shape, np.nan), np.full(n_ops.shape, np.nan)
    begin[busy] = np.minimum.reduceat(trace.start, first_row[busy])
    end[busy] = np.maximum.reduceat(trace.end, first_row[busy])
    trace.release()
    ahead = 0.0 if offset_s is None else offset_s
    zero = trace.step_start_s[:, None, None] - ahead
    begin, end = zero + begin, zero + end
    before = np.full(n_ops.shape, np.nan)
    if trace.previous_end_s is not None:
        before = trace.previous_end_s - ahead
    follows = np.append(False, np.diff(trace.steps) == 1)
    before[follows] = end[:-1][follows[1:]]
    first = np.where(busy, begin, np.inf).min(axis=(1, 2))
    last = np.where(busy, before, -np.inf).max(axis=(1, 2))
    return StepGaps(
        trace.steps,
        trace.step_start_s,
        trace.traced_step_s(),
        first - last,
        begin - before,
        trace.periods,
    )
