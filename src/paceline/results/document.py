"""The finished report of a job: all content of terminal, page and monitor, and its JSON form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from paceline.diagnose import Communication, Diagnosis, Finding, Waterfall
from paceline.errors import ResultError
from paceline.plan.expect import Expectation
from paceline.remedies import Advice, Remedy
from paceline.results.forms import mapping_of
from paceline.results.from_analysis import (
    answers_of,
    host_of,
    modes_of,
    numbers_of,
    tables_of,
)
from paceline.results.keys import KEYS, Clocks, Hosts, StepModes, StepTimes, WarningDetail
from paceline.results.path import PathSummary
from paceline.results.record import equal_values, needed_fields, read_values, write_record
from paceline.trace import Job
from paceline.trace.warning import Warning
from paceline.whatif import LaunchDelay, WhatIf

Array = npt.NDArray[np.float64]

#: Version of the document. Later versions add keys and change no meaning.
SCHEMA = 1


#: Least share of the traced step by which steps overlap, for texts.
MIN_OVERLAP = 0.1


@dataclass(frozen=True, eq=False)
class JobReport:
    """The complete report of a job. Renderers need nothing else and compute nothing.

    Numbers that :class:`paceline.whatif.WhatIf` also has keep their names. ``docs/result-json.md``
    explains them. A field that a document may lack has a default.

    Attributes:
        job, steps: the job's degrees, and the numbers of the analysed steps.
        slowdown, waste, discrepancy, launch_slowdown: numbers of the what-if analysis.
        overlap_s: mean seconds by which traced steps are longer since the step before still ran.
        step_time_s: traced, simulated and ideal step time.
        by_step, by_kind, by_stage, by_replica: S of each part.
        by_worker: [pp, replica] S of each worker.
        by_kind_by_step, by_stage_by_step, by_replica_by_step: step -> part -> S.
        slowdown_lasting, by_worker_lasting: S of the typical step; None if passes are whole.
        by_worker_by_step: step -> [pp, dp] S; None if only stages and replicas are kept.
        warnings: notes on the reliability of the numbers.
        microbatches: [dp] microbatches of each replica; empty if unknown.
        slowdown_healthy: S beside the ideal of healthy hardware; None if no finding blames any.
        findings: None if the analysis made no diagnosis.
        waterfall, remedies, architecture, not_applicable, hints: parts of the diagnosis.
        masked: ids of findings whose repair alone leaves a step that waits for other causes.
        communication: collectives for which the step waits; None without recorded programs.
        expected: the comparison with a model of the job.
        hosts: hosts of the workers; empty if unknown.
    """

    job: Job
    steps: tuple[int, ...]
    slowdown: float
    slowdown_paper: float
    waste: float
    discrepancy: float
    step_time_s: StepTimes
    by_step: Mapping[int, float]
    by_kind: Mapping[str, float]
    by_stage: Mapping[int, float]
    by_worker: Array
    by_stage_by_step: Mapping[int, Mapping[int, float]]
    by_replica_by_step: Mapping[int, Mapping[int, float]]
    slow_mode_shares: Mapping[str, float] = field(default_factory=dict)
    launch_slowdown: float = 1.0
    overlap_s: float = 0.0
    by_replica: Mapping[int, float] = field(default_factory=dict)
    by_kind_by_step: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    slowest_workers: tuple[tuple[int, int, float], ...] = ()
    m_w: float | None = None
    m_w_paper: float | None = None
    m_s: float | None = None
    m_w_only: float | None = None
    m_s_only: float | None = None
    replay_error: float | None = None
    launch_delay: LaunchDelay | None = None
    critical_path: PathSummary | None = None
    clamped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    clock_offsets_s: Clocks | None = None
    step_modes: StepModes | None = None
    not_judged: tuple[str, ...] = ()
    left_out_steps: Mapping[int, str] = field(default_factory=dict)
    warnings: tuple[Warning, ...] = ()
    microbatches: tuple[int, ...] = ()
    slowdown_lasting: float | None = None
    by_worker_lasting: Array | None = None
    by_worker_by_step: Mapping[int, Array] | None = None
    expected: Expectation | None = None
    slowdown_interval: tuple[float, float] | None = None
    slowdown_healthy: float | None = None
    findings: tuple[Finding, ...] | None = None
    waterfall: Waterfall | None = None
    remedies: tuple[Remedy, ...] = ()
    architecture: tuple[Remedy, ...] = ()
    not_applicable: Mapping[str, str] = field(default_factory=dict)
    hints: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    communication: Communication | None = None
    hosts: Hosts = field(default_factory=dict)

    #: Least ratio of S beside healthy hardware to S that is no noise.
    MIN_BOUND: ClassVar[float] = 1.01

    @classmethod
    def of(
        cls,
        result: WhatIf,
        advice: Advice | None = None,
        *,
        expectation: Expectation | None = None,
        hosts: Mapping[tuple[int, int], str | tuple[str, str]] | None = None,
        per_step_workers: bool = False,
    ) -> JobReport:
        """The report of a finished analysis.

        Args:
            result: the what-if analysis.
            advice: its diagnosis and remedies, if there is one.
            expectation: the comparison with a model of the job.
            hosts: (dp, pp) -> host or (host, gpu), if known.
            per_step_workers: keep the slowdown of every worker in every step.
        """
        return cls(
            **numbers_of(result),
            **tables_of(result, per_step_workers=per_step_workers),
            **({} if advice is None else answers_of(advice, result)),
            expected=expectation,
            hosts={place: host_of(name) for place, name in (hosts or {}).items()},
        )

    def to_mapping(self) -> dict[str, Any]:
        """The report in the form of JSON; ``docs/result-json.md`` lists the keys."""
        return {"schema": SCHEMA, **write_record(self, KEYS)}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> JobReport:
        """The report in a document of this version or an earlier one.

        Raises:
            ResultError: a field is missing or has another form; the message names it.
        """
        _check_version(mapping)
        values = read_values(KEYS, mapping, needed_fields(cls) - {"slowdown_paper"})
        values.setdefault("slowdown_paper", values["slowdown"])
        values["warnings"] = _warnings(
            values.pop("warning_texts", ()), values.pop("warning_details", ())
        )
        report = cls(**values)
        _check_shapes(report)
        if "step_modes" in values:
            return report
        return replace(report, step_modes=modes_of(report.steps, report.traced_s))

    def without_workers_by_step(self) -> JobReport:
        """The report without its largest table."""
        return replace(self, by_worker_by_step=None)

    def __eq__(self, other: object) -> bool:
        return equal_values(self, other) if isinstance(other, JobReport) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as for all classes with arrays

    @property
    def every_remedy(self) -> tuple[Remedy, ...]:
        """The remedies, then changes of the architecture."""
        return (*self.remedies, *self.architecture)

    @property
    def diagnosis(self) -> Diagnosis:
        """The findings, with the interval of S; empty without a diagnosis."""
        return Diagnosis(self.findings or (), self.slowdown_interval or (math.nan, math.nan))

    @cached_property
    def traced_s(self) -> Array:
        """[step] seconds."""
        return _column(self.step_time_s.traced)

    @cached_property
    def simulated_s(self) -> Array:
        """[step] seconds."""
        return _column(self.step_time_s.simulated)

    @cached_property
    def ideal_s(self) -> Array:
        """[step] seconds."""
        return _column(self.step_time_s.ideal)

    @cached_property
    def workers_by_step(self) -> Array:
        """[step, pp, dp] S; if only stages and replicas are kept, the smaller of the two.

        The minimum is the what-if paper's own approximation (section 5.1).
        """
        if self.by_worker_by_step is not None:
            return np.stack(list(self.by_worker_by_step.values()))
        stages, replicas = (
            np.array([list(row.values()) for row in rows.values()], dtype=np.float64)
            for rows in (self.by_stage_by_step, self.by_replica_by_step)
        )
        return np.minimum(stages[:, :, None], replicas[:, None, :])

    @cached_property
    def healthy_step_s(self) -> float:
        """The mean ideal step if blamed hardware were healthy, T_healthy; T_ideal without any."""
        if self.slowdown_healthy is None:
            return float(self.ideal_s.mean())
        return float(self.simulated_s.mean()) / self.slowdown_healthy

    @property
    def lasted_s(self) -> float:
        """Mean seconds from step to step: the traced step less its overlap with the one before."""
        return float(self.traced_s.mean()) - self.overlap_s

    @property
    def overlaps(self) -> bool:
        """Whether steps overlap enough for the traced step and that from step to step to differ."""
        return self.overlap_s >= MIN_OVERLAP * float(self.traced_s.mean())

    @property
    def largest_slowdown(self) -> float:
        """S, or S beside healthy hardware if that is larger."""
        return max(self.slowdown, self.slowdown_healthy or 0.0)

    @cached_property
    def passing_s(self) -> float:
        """Mean seconds per step that variation costs which passes from worker to worker.

        It is a part of T - T_ideal, and the same with a diagnosis and without.
        """
        if self.slowdown_lasting is None:
            return 0.0
        lasting_s = float(self.ideal_s.mean()) * self.slowdown_lasting
        return max(float(self.simulated_s.mean()) - lasting_s, 0.0)

    @property
    def passing_share(self) -> float:
        """The same as a share of T, a part of the waste."""
        return self.passing_s / float(self.simulated_s.mean())

    @property
    def lasting_slowdown(self) -> float:
        """S without the variation that passes."""
        return self.slowdown * (1 - self.passing_share)

    @property
    def other_passing_s(self) -> float | None:
        """The waterfall's passing variation, which no finding explains; None without the row.

        If hardware is blamed, it is the variation that its repair leaves.
        """
        drops = () if self.waterfall is None else self.waterfall.drops
        rows = [drop.seconds for drop in drops if drop.name == "passing-variation"]
        return sum(rows) if rows else None

    @property
    def judged_slowdown(self) -> float:
        """S without variation that passes and that no finding explains: verdicts rest on it."""
        other_s = self.other_passing_s
        unexplained_s = self.passing_s if other_s is None else min(self.passing_s, other_s)
        return self.slowdown * (1 - unexplained_s / float(self.simulated_s.mean()))

    @property
    def bounded(self) -> bool:
        """Whether S is a lower bound: slow hardware among few peers makes T_ideal too long."""
        return self.largest_slowdown >= self.MIN_BOUND * self.slowdown

    @property
    def straggling(self) -> bool:
        """Whether stragglers cost enough to look for causes."""
        largest = self.judged_slowdown * self.largest_slowdown / self.slowdown
        return largest >= WhatIf.HEALTHY_BELOW

    @property
    def healthy(self) -> bool:
        """Whether stragglers cost almost nothing, as far as reference and steps show."""
        judged = self.slowdown >= WhatIf.REFERENCE_FAILS_BELOW and self.step_modes is None
        return judged and not self.straggling

    @property
    def even(self) -> bool:
        """Whether all replicas have the same number of microbatches, as far as known."""
        return len(set(self.microbatches)) < 2

    @property
    def all_reduces(self) -> bool:
        """Whether gradients are reduced to all ranks, as in DDP; for names of kinds."""
        return self.communication is not None and self.communication.all_reduces

    @property
    def doubtful(self) -> bool:
        """Whether unrecorded delays make the simulation differ from the trace by more than 5%."""
        return self.discrepancy > WhatIf.DOUBTFUL_ABOVE

    @property
    def warning_texts(self) -> tuple[str, ...]:
        """The texts of the warnings."""
        return tuple(warning.text for warning in self.warnings)

    @property
    def warning_details(self) -> tuple[WarningDetail, ...]:
        """The warnings' codes and numbers, in the same order."""
        return tuple(WarningDetail(warning.code, warning.numbers) for warning in self.warnings)


def _column(times: Mapping[int, float]) -> Array:
    return np.array(list(times.values()), dtype=np.float64)


def _warnings(texts: Sequence[str], details: Sequence[WarningDetail]) -> tuple[Warning, ...]:
    """The warnings of a document; older documents have only texts."""
    if len(details) != len(texts):
        return tuple(Warning("", text) for text in texts)
    pairs = zip(texts, details, strict=True)
    return tuple(Warning(detail.code, text, detail.numbers) for text, detail in pairs)


def _check_version(mapping: Mapping[str, Any]) -> None:
    version = mapping_of(mapping).get("schema", SCHEMA)
    if not isinstance(version, int) or not 1 <= version <= SCHEMA:
        raise ResultError(
            f"is {version!r}, but this version of Paceline reads up to {SCHEMA}", "schema"
        )


def _check_shapes(report: JobReport) -> None:
    """Check that tables have the steps, stages and ranks of the job, for pages rely on it."""
    n_steps, shape = len(report.steps), (report.job.pp_size, report.job.replicas)
    times, by_worker = report.step_time_s, report.by_worker_by_step
    lengths: dict[str, tuple[object, object]] = {
        "steps": (n_steps, max(n_steps, 1)),
        "by_step": (len(set(report.steps) & report.by_step.keys()), n_steps),
        "step_time_s.traced": (len(times.traced), n_steps),
        "step_time_s.simulated": (len(times.simulated), n_steps),
        "step_time_s.ideal": (len(times.ideal), n_steps),
        "by_stage_by_step": (_extent(report.by_stage_by_step), (n_steps, shape[0])),
        "by_replica_by_step": (_extent(report.by_replica_by_step), (n_steps, shape[1])),
        "by_worker": (report.by_worker.shape, shape),
    }
    if by_worker is not None:
        tables = {table.shape for table in by_worker.values()}
        lengths["by_worker_by_step"] = ((len(by_worker), tables), (n_steps, {shape}))
    for name, (size, expected) in lengths.items():
        if size != expected:
            raise ResultError(f"must have the size {expected} of the job, not {size}", name)


def _extent(rows: Mapping[int, Mapping[int, float]]) -> tuple[int, int]:
    """Number of rows, and of entries per row; -1 if these differ."""
    widths = {len(row) for row in rows.values()}
    return len(rows), widths.pop() if len(widths) == 1 else -1
