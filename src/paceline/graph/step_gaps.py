"""Time between the steps of a trace: pauses that belong to no step, and steps that overlap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.trace import Trace
from paceline.trace.warning import BETWEEN_STEPS, STEPS_OVERLAP, Warning
from paceline.units import seconds

Array = npt.NDArray[np.float64]

#: From this share on, time between the steps matters. A job counts as straggling from the same
#: share on.
MATTERS = 0.03


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
    """

    steps: npt.NDArray[np.int64]
    start_s: Array
    traced_s: Array
    gap_s: Array
    idle_s: Array

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
        """Notes on the time between the steps."""
        known = np.isfinite(self.gap_s)
        if not known.any():
            return []
        gap, traced = self.gap_s[known], self.traced_s[known]
        pause, overlap = np.maximum(gap, 0.0), np.maximum(-gap, 0.0)
        notes = []
        if (share := float(pause.sum() / (traced.sum() + gap.sum()))) >= MATTERS:
            longest = int(np.argmax(pause))
            text = (
                f"{share:.1%} of the time lies between the steps, the longest before step "
                f"{self.steps[known][longest]} ({seconds(pause[longest])}): checkpoint, "
                "evaluation, data loading? It belongs to no step, so neither S nor the tables of a "
                "comparison count it"
            )
            notes.append(Warning(BETWEEN_STEPS, text, {"share": share}))
        if (share := float(overlap.sum() / traced.sum())) >= MATTERS:
            text = (
                f"steps overlap by {share:.1%}: workers begin a step while others still run the "
                "one before, since no traced operation waits for all. That time is in both "
                "steps, so a step's traced time is too long by it"
            )
            notes.append(Warning(STEPS_OVERLAP, text, {"share": share}))
        return notes


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
        trace.steps, trace.step_start_s, trace.traced_step_s(), first - last, begin - before
    )
