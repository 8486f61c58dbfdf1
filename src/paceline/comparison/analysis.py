"""Compare two traces: refuse unlike jobs, then report the changes and how sure they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from paceline.comparison.agreement import (
    Disagreement,
    Load,
    check_alike,
    disagreements,
    same_operations,
)
from paceline.comparison.causes import absent_cause, cause_means
from paceline.comparison.interval import (
    MIN_STEPS,
    Means,
    difference,
    means_of,
    ratio_means,
    relative_difference,
)
from paceline.comparison.losses import Hosts, Lost, change_of, host_changes, worker_changes
from paceline.comparison.median import median_of
from paceline.comparison.parts import kind_changes, stage_changes
from paceline.comparison.result import (
    CauseChange,
    Comparison,
    HostChange,
    PartChange,
    Side,
    TimeChange,
    Unit,
    WorkerChange,
)
from paceline.diagnose import diagnose, step_to_step_s, waits_in_steps_s
from paceline.diagnose.late_starts import without_overlap
from paceline.errors import ComparisonError
from paceline.graph import Measured, from_trace
from paceline.remedies import Advice, Case, advise
from paceline.simulate import Progress
from paceline.trace import Trace
from paceline.whatif import WhatIf, analyze

Array = npt.NDArray[np.float64]

NO_HOSTS: Hosts = MappingProxyType({})

#: A step is odd if it takes this many times the median (as for findings of drift).
ODD_TIMES = 1.3


def compare(
    before: Trace | Measured | Case,
    after: Trace | Measured | Case,
    *,
    anyway: bool = False,
    hosts_before: Hosts = NO_HOSTS,
    hosts_after: Hosts = NO_HOSTS,
    tokens_before: float | None = None,
    tokens_after: float | None = None,
    names: tuple[str, str] = ("", ""),
    progress: Callable[[str], Progress] | None = None,
) -> Comparison:
    """The change from one trace of a job to another: did the fix work?

    Seconds are per step. If unlike jobs are compared ``anyway``, they are per token, if both sides'
    tokens are known, or else per microbatch of all replicas if their numbers differ. Intervals are
    of 90% and hold for these steps only: another run of the same job may differ by more
    (``docs/compare.md``).

    Args:
        before: a trace, or a diagnosed case, which may know layers and sequence lengths.
        after: the other one.
        anyway: compare jobs that differ in degrees, microbatches, kinds, schedule, layers, tokens.
        hosts_before: (dp, pp) -> (host, gpu) of ``before``.
        hosts_after: (dp, pp) -> (host, gpu) of ``after``.
        tokens_before: tokens of a step, if the case has no sequence lengths.
        tokens_after: those of ``after``.
        names: names of the two for the reader, such as their files.
        progress: called with the name of each piece of work; returns a callable for its progress.

    Raises:
        ComparisonError: the jobs are unlike; the message lists the differences.
        TraceError: a trace has no whole step.
        GraphError: the operations of a trace do not form a step.
    """
    job_before = _job(before, hosts_before, tokens_before, progress)
    job_after = _job(after, hosts_after, tokens_after, progress)
    jobs = (job_before.measured, job_after.measured, job_before.load, job_after.load)
    if not anyway:
        check_alike(*jobs)
    unlike = disagreements(*jobs)
    unit = _unit(unlike, job_before, job_after)
    return _Tables(job_before, job_after, unit, unlike, progress).comparison(names)


@dataclass(frozen=True)
class _Job:
    """One of the jobs, analysed and diagnosed."""

    measured: Measured
    case: Case
    advice: Advice
    hosts: Hosts
    load: Load

    def units(self, unit: Unit) -> Array:
        """[step] units in each step."""
        n_steps = len(self.case.result.steps)
        if unit == "token" and self.load.tokens is not None:
            return self.load.tokens
        per_step = self.measured.microbatches.sum() if unit == "microbatch" else 1
        return np.full(n_steps, float(per_step))


def _job(
    source: Trace | Measured | Case,
    hosts: Hosts,
    tokens: float | None,
    progress: Callable[[str], Progress] | None,
) -> _Job:
    if isinstance(source, Case):
        case = source
    else:
        measured = source if isinstance(source, Measured) else from_trace(source)
        result = analyze(measured, progress=progress("simulating") if progress else None)
        case = Case(measured, result, diagnose(measured, result, hosts))
    return _Job(case.measured, case, advise(case, ()), hosts, _load(case, tokens))


def _load(case: Case, tokens: float | None) -> Load:
    layers = None if case.layers is None else sum(case.layers)
    if tokens is not None:
        if not 0 < tokens < np.inf:
            raise ComparisonError(f"tokens of a step are a positive number, not {tokens}")
        return Load(layers, np.full(len(case.result.steps), float(tokens)))
    if case.seqlens is None:
        return Load(layers)
    lengths = case.seqlens.select(case.result.steps, case.measured.microbatches)
    return Load(layers, lengths.moments()[0].sum(axis=(1, 2)))


def _unit(unlike: tuple[Disagreement, ...], before: _Job, after: _Job) -> Unit:
    if not unlike:
        return "step"
    if before.load.tokens is not None and after.load.tokens is not None:
        return "token"
    as_many = np.array_equal(before.measured.microbatches, after.measured.microbatches)
    return "step" if as_many else "microbatch"


@dataclass(frozen=True)
class _Tables:
    """Makes the tables of a comparison."""

    job_before: _Job
    job_after: _Job
    unit: Unit
    unlike: tuple[Disagreement, ...]
    progress: Callable[[str], Progress] | None

    def comparison(self, names: tuple[str, str]) -> Comparison:
        left_out: dict[str, str] = {}
        time = self._time()
        with_pauses, pause_s = self._with_pauses()
        return Comparison(
            before=self._side(self.job_before, names[0]),
            after=self._side(self.job_after, names[1]),
            unit=self.unit,
            disagreements=self.unlike,
            time=time,
            median=self._median(),
            time_with_pauses=with_pauses,
            pause_s=pause_s,
            gpu_time=self._gpu_time(time),
            causes=self._causes(),
            kinds=self._kinds(left_out),
            stages=self._stages(left_out),
            workers=self._workers(left_out),
            hosts=self._hosts(left_out),
            odd_steps=(_odd_steps(self.job_before), _odd_steps(self.job_after)),
            left_out=left_out,
            all_reduces=all(
                job.measured.graph.all_reduces for job in (self.job_before, self.job_after)
            ),
        )

    def _side(self, job: _Job, name: str) -> Side:
        effective = float(means_of(job.case.result.lasted_s).effective)
        units = float(job.units(self.unit).mean())
        return Side(name, job.case.result, job.advice, units, effective)

    def _per_unit(self, job: _Job) -> Means:
        return ratio_means(job.case.result.lasted_s, job.units(self.unit))

    def _time(self) -> TimeChange:
        return _time_change(self._per_unit(self.job_before), self._per_unit(self.job_after))

    def _median(self) -> TimeChange:
        medians = [
            median_of(job.case.result.lasted_s / job.units(self.unit))
            for job in (self.job_before, self.job_after)
        ]
        return _time_change(*medians)

    def _with_pauses(self) -> tuple[TimeChange | None, tuple[float, float] | None]:
        """The time of a step and the pause before it, and the pause, by steps with a known one."""
        sides = [_with_pauses_s(job) for job in (self.job_before, self.job_after)]
        if self.unit != "step" or min(len(times_s) for times_s, _ in sides) < MIN_STEPS:
            return None, None
        before, after = (means_of(times_s) for times_s, _ in sides)
        return _time_change(before, after), (sides[0][1], sides[1][1])

    def _gpu_time(self, time: TimeChange) -> TimeChange | None:
        gpus = [job.measured.job.world_size for job in (self.job_before, self.job_after)]
        if gpus[0] == gpus[1]:
            return None
        scaled = time.times(gpus[1] / gpus[0])
        return TimeChange(
            scaled.before_s * gpus[0], scaled.after_s * gpus[0], scaled.change, scaled.interval
        )

    def _causes(self) -> tuple[CauseChange, ...]:
        sides: list[dict[str, Means]] = []
        absent: list[Means] = []
        jobs = (self.job_before, self.job_after)
        waits = [waits_in_steps_s(job.measured, job.case.result.lost_s) for job in jobs]
        if any(data_s is None for data_s in waits):  # a row needs both sides
            waits = [None, None]
        for job, data_s in zip(jobs, waits, strict=True):
            means = cause_means(job.measured, job.case.result, job.advice, data_s)
            units = float(job.units(self.unit).mean())
            sides.append({name: mean.scaled(1 / units) for name, mean in means.items()})
            absent.append(absent_cause(job.case.result).scaled(1 / units))
        names = list(dict.fromkeys([*sides[0], *sides[1]]))
        rows = []
        for name in names:
            before, after = (side.get(name, none) for side, none in zip(sides, absent, strict=True))
            change, low, high = difference(before, after, len(names))
            row = change_of(float(change), float(low), float(high))
            rows.append(CauseChange(name, float(before.mean), float(after.mean), row))
        return tuple(sorted(rows, key=lambda row: -abs(row.change.seconds)))

    def _exchangeable(self, left_out: dict[str, str], table: str) -> float | None:
        """Units in a step of both jobs, if durations of one fit into the other's step."""
        units = [job.units(self.unit).mean() for job in (self.job_before, self.job_after)]
        if not same_operations(self.job_before.measured.graph, self.job_after.measured.graph):
            reason = "the operations of a step differ, so durations cannot be exchanged"
        elif units[0] != units[1]:
            reason = (
                f"the {self.unit}s of a step differ, so its changes are no changes of a {self.unit}"
            )
        else:
            return float(units[0])
        left_out[table] = reason
        return None

    def _kinds(self, left_out: dict[str, str]) -> tuple[PartChange, ...]:
        units = self._exchangeable(left_out, "kinds")
        return kind_changes(*self._pairs(), units, self._work("exchanging kinds"))

    def _stages(self, left_out: dict[str, str]) -> tuple[PartChange, ...]:
        counts = [job.measured.graph.n_pp for job in (self.job_before, self.job_after)]
        if counts[0] != counts[1]:
            left_out["stages"] = f"{counts[0]} stages before, {counts[1]} after"
            return ()
        if counts[0] == 1:
            left_out["stages"] = "there is one stage"
            return ()
        units = self._exchangeable(left_out, "stages")
        if units is None:
            return ()
        return stage_changes(*self._pairs(), units, self._work("exchanging stages"))

    def _workers(self, left_out: dict[str, str]) -> tuple[WorkerChange, ...]:
        shapes = [job.case.result.by_worker.shape for job in (self.job_before, self.job_after)]
        if shapes[0] != shapes[1]:
            left_out["workers"] = "the jobs have other workers (dp, stage)"
            return ()
        if self.job_before.case.result.by_worker.size == 1:
            left_out["workers"] = "one worker has no peers"
            return ()
        return worker_changes(self._loss_input(self.job_before), self._loss_input(self.job_after))

    def _hosts(self, left_out: dict[str, str]) -> tuple[HostChange, ...]:
        has_hosts = [bool(job.hosts) for job in (self.job_before, self.job_after)]
        if any(has_hosts) and not all(has_hosts):
            unnamed = "AFTER" if has_hosts[0] else "BEFORE"
            left_out["hosts"] = f"the hosts of {unnamed} are not known"
        if not all(has_hosts):
            return ()
        return host_changes(self._loss_input(self.job_before), self._loss_input(self.job_after))

    def _loss_input(self, job: _Job) -> Lost:
        units = float(job.units(self.unit).mean())
        return Lost(job.measured, job.case.result, job.hosts, units)

    def _pairs(self) -> tuple[tuple[Measured, Measured], tuple[WhatIf, WhatIf]]:
        before, after = (
            without_overlap(job.measured, job.case.result.overlap_s)
            for job in (self.job_before, self.job_after)
        )
        return (before, after), (self.job_before.case.result, self.job_after.case.result)

    def _work(self, name: str) -> Progress | None:
        return self.progress(name) if self.progress else None


def _with_pauses_s(job: _Job) -> tuple[Array, float]:
    """[step] seconds from step to step, and the mean pause in them.

    They are those of all recorded steps where a recording knows these. An evaluation in each
    twentieth step may fall before profiled steps only.
    """
    every, pause_s = job.measured.all_steps, job.measured.pause_s
    if every is not None:
        return every.seconds, every.pause_s
    known = np.isfinite(pause_s)
    times_s = step_to_step_s(job.measured, job.case.result)[known]
    return times_s, float(pause_s[known].mean()) if known.any() else 0.0


def _time_change(before: Means, after: Means) -> TimeChange:
    change, low, high = relative_difference(before, after)
    interval = None if np.isnan(low) or np.isnan(high) else (low, high)
    return TimeChange(float(before.mean), float(after.mean), change, interval)


def _odd_steps(job: _Job) -> tuple[int, ...]:
    times = job.case.result.lasted_s
    odd = times > ODD_TIMES * np.median(times)
    return tuple(job.case.result.steps[odd].tolist())
