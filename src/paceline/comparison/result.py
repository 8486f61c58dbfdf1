"""The finished comparison of two traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from paceline.comparison.agreement import Disagreement
from paceline.remedies import Advice
from paceline.whatif import WhatIf

Unit = Literal["step", "microbatch", "token"]
Verdict = Literal["shorter", "longer", "no-difference", "unknown"]


@dataclass(frozen=True)
class Change:
    """A change in seconds per unit.

    Attributes:
        seconds: after minus before.
        interval: 90%, for all rows of its table at once; None if it cannot be known.
    """

    seconds: float
    interval: tuple[float, float] | None

    @property
    def clear(self) -> bool:
        """Whether chance alone would hardly cause it."""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)


@dataclass(frozen=True)
class TimeChange:
    """A time before and after.

    Attributes:
        before_s, after_s: seconds per unit.
        change: ``after_s`` / ``before_s`` - 1.
        interval: 90% of ``change``; None with under 4 steps on a side.
    """

    before_s: float
    after_s: float
    change: float
    interval: tuple[float, float] | None

    @property
    def verdict(self) -> Verdict:
        """The steps' evidence."""
        if self.interval is None:
            return "unknown"
        low, high = self.interval
        return "longer" if low > 0 else "shorter" if high < 0 else "no-difference"

    def times(self, factor: float) -> TimeChange:
        """The same with ``after_s`` times ``factor``."""
        interval = None
        if self.interval is not None:
            low, high = ((1 + end) * factor - 1 for end in self.interval)
            interval = (low, high)
        change = (1 + self.change) * factor - 1
        return TimeChange(self.before_s, self.after_s * factor, change, interval)


@dataclass(frozen=True)
class CauseChange:
    """One drop of the waterfalls (``compute``: what remains).

    Attributes:
        name: as in :class:`paceline.diagnose.Drop`.
        before_s, after_s: seconds per unit; 0 if a side does not have the cause.
        change: their difference; the changes of all causes add up to the change of the step.
    """

    name: str
    before_s: float
    after_s: float
    change: Change


@dataclass(frozen=True)
class PartChange:
    """A kind of operation, launch delays, or a stage.

    Attributes:
        name: kind label, "launch-delay-start", "launch-delay", or the stage's number.
        change: the change of the step that it accounts for (Shapley value); None where the
            operations of the jobs differ.
        mean_s: mean seconds before and after. For a kind, of its operation; for a stage, of a
            step's computes on one of its workers. None if there is none.
        slowdown: S_x before and after; None for launch delays.
    """

    name: str
    change: Change | None
    mean_s: tuple[float | None, float | None]
    slowdown: tuple[float | None, float | None]


@dataclass(frozen=True)
class WorkerChange:
    """A worker beside its peers.

    Attributes:
        dp, pp: the worker.
        slowdown: exact S_w before and after.
        loss_s: T with only this worker as measured, minus the same of the typical worker, before
            and after, per unit. It is negative if the worker is faster than typical.
        change: their difference.
        hosts: host and GPU before and after, as far as known.
    """

    dp: int
    pp: int
    slowdown: tuple[float, float]
    loss_s: tuple[float, float]
    change: Change
    hosts: tuple[str, str]


@dataclass(frozen=True)
class HostChange:
    """The workers of a host beside their peers.

    Attributes:
        host: its name.
        workers: number of the job's workers on it before and after.
        loss_s: T with only these workers as measured, minus the same of the typical host, per unit;
            None on a side where the job does not use the host.
        change: their difference, with 0 for None.
    """

    host: str
    workers: tuple[int, int]
    loss_s: tuple[float | None, float | None]
    change: Change


@dataclass(frozen=True)
class Side:
    """One of the two jobs.

    Attributes:
        name: name for the reader, such as its file; may be empty.
        result: its what-if analysis.
        advice: its diagnosis and waterfall, without remedies.
        units_per_step: microbatches (of all replicas) or tokens in a step, 1 per step.
        effective_steps: number of independent steps that its steps are worth.
    """

    name: str
    result: WhatIf
    advice: Advice
    units_per_step: float
    effective_steps: float

    @property
    def traced_s(self) -> float:
        """Mean seconds per unit of the traced steps, which may overlap."""
        return float(self.result.traced_s.mean()) / self.units_per_step

    @property
    def overlap_s(self) -> float:
        """Seconds per unit of ``traced_s`` in which the step before still runs."""
        return float(self.result.overlap_s.mean()) / self.units_per_step

    @property
    def simulated_s(self) -> float:
        """Mean seconds per unit in the replay, which has no launch delays."""
        return float(self.result.simulated_s.mean()) / self.units_per_step

    @property
    def ideal_s(self) -> float:
        """Mean seconds per unit without stragglers."""
        return float(self.result.ideal_s.mean()) / self.units_per_step


@dataclass(frozen=True)
class Comparison:
    """The change from one trace to another.

    Attributes:
        before, after: the two jobs.
        unit: the unit of "seconds per unit".
        disagreements: differences that make the jobs unlike; only if compared anyway.
        time: the mean time of a unit, from step to step without their overlap: the price.
        median: its median, since a few odd steps may decide the mean.
        gpu_time: GPU-seconds of a unit; None if both jobs have equally many GPUs.
        causes: drops of the waterfall, by size of the change.
        kinds: by size of the change; with the interplay they add up to the change of the step.
        stages: in order.
        workers: by size of the change.
        hosts: by size of the change.
        odd_steps: step numbers before and after that take over 1.3 times the median.
        time_with_pauses: the mean time of a step and of the pause before it, in which no worker
            runs an operation; None where under 4 pauses of a side are known.
        pause_s: the mean of these pauses before and after; None likewise.
        left_out: table -> why it is empty or has no changes.
        all_reduces: whether both jobs reduce gradients to all ranks; for names of kinds.
    """

    before: Side
    after: Side
    unit: Unit
    disagreements: tuple[Disagreement, ...]
    time: TimeChange
    median: TimeChange
    gpu_time: TimeChange | None
    causes: tuple[CauseChange, ...]
    kinds: tuple[PartChange, ...]
    stages: tuple[PartChange, ...]
    workers: tuple[WorkerChange, ...]
    hosts: tuple[HostChange, ...]
    odd_steps: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    time_with_pauses: TimeChange | None = None
    pause_s: tuple[float, float] | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    all_reduces: bool = False

    @property
    def change_s(self) -> float:
        """The change of the mean time of a unit, seconds."""
        return self.time.after_s - self.time.before_s

    def remainder_s(self, rows: Sequence[CauseChange] | Sequence[PartChange]) -> float | None:
        """The part of ``change_s`` that the rows of a table leave; None if these lack changes.

        Causes leave none. Kinds and stages leave the error of the replay, overlap of steps that no
        late begin explains and, in very large jobs, the difference to steps not exchanged.
        """
        changes = [row.change.seconds for row in rows if row.change is not None]
        return self.change_s - sum(changes) if changes else None

    @property
    def verdict(self) -> Verdict:
        """Shorter, longer, no difference that these steps can show, or unknown (too few steps)."""
        return "no-difference" if self.same_steps else self.time.verdict

    @property
    def same_steps(self) -> bool:
        """Whether both traces hold the very same steps of the same job."""
        if self.disagreements:
            return False
        steps_before, steps_after = self.before.result.traced_s, self.after.result.traced_s
        return len(steps_before) == len(steps_after) and bool((steps_before == steps_after).all())
