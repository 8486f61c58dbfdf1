"""A remedy: a change to the job, the findings it answers, its gain by simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.diagnose import Diagnosis
from paceline.diagnose.optimizers import OPTIMIZER
from paceline.errors import NotApplicableError
from paceline.graph import Durations, Measured, StepGraph
from paceline.graph.graph import Rows
from paceline.remedies.overheads import launch_overheads, start_delays
from paceline.remedies.program_order import ProgramOrder, program_order
from paceline.simulate import Rules, all_lanes, step_times
from paceline.trace.seqlens import SeqLens
from paceline.whatif import WhatIf

Array = npt.NDArray[np.float64]

INTERVAL = (5, 95)

#: From this launch slowdown on, launch delays clearly lengthen the step, so predictions replay
#: them. Smaller delays may be unrecorded waits, which shrink with the fix, as in the real jobs AR
#: and SE (1.007 and 1.005).
MIN_LAUNCH_SLOWDOWN = 1.01


@dataclass(frozen=True)
class Prediction:
    """Step times of a job, by simulation.

    Attributes:
        step_s: [step] seconds, with launch delays if the case replays them.
        undelayed_s: [step] the same without any launch delays.
    """

    step_s: Array
    undelayed_s: Array

    @property
    def mean_s(self) -> float:
        """The mean step time, seconds."""
        return float(self.step_s.mean())

    def plus(self, seconds: float) -> Prediction:
        """The prediction with some seconds added to every step."""
        return Prediction(self.step_s + seconds, self.undelayed_s + seconds)


@dataclass(frozen=True)
class Case:
    """A remedy's knowledge of the job.

    Attributes:
        measured: graph and durations of the trace.
        result: its what-if analysis.
        diagnosis: its findings.
        layers: transformer layers per stage; None = unknown.
        seqlens: sequence lengths of every microbatch; None = unknown.
        options: the user's options for this remedy, by name (``max_tokens``, ``min_layers``, ...).
    """

    measured: Measured
    result: WhatIf
    diagnosis: Diagnosis
    layers: tuple[int, ...] | None = None
    seqlens: SeqLens | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def delays(self) -> Durations | None:
        """The launch delays that predictions replay; None: they hardly lengthen the step.

        Delays that hardly lengthen the step are replayed at the start of steps only. A slow worker
        may hide that another one loads data.
        """
        if self.result.launch_slowdown < MIN_LAUNCH_SLOWDOWN:
            return self._hidden_delays
        return launch_overheads(self.measured)

    @cached_property
    def _hidden_delays(self) -> Durations | None:
        least_s = (MIN_LAUNCH_SLOWDOWN - 1) * float(self.result.simulated_s.mean())
        return start_delays(self.measured, least_s)

    @cached_property
    def before(self) -> Prediction:
        """The prediction of the unchanged job, the basis of gains."""
        return Prediction(self._own(self._unchanged_s), self.result.simulated_s)

    @cached_property
    def _unchanged_s(self) -> Array:
        """[step] step times of the unchanged job, which may overlap."""
        return self._tied_step_s(self.measured.durations)

    def _own(self, step_s: Array) -> Array:
        """[step] times from step to step: the time in which the step before still runs is not own.

        The overlap is assumed to stay.
        """
        return step_s - self.result.overlap_s

    def predicted(self, durations: Rows, delays: Rows | None = None) -> Prediction:
        """The job with other durations.

        Args:
            durations: durations of the trace's ops, or of another graph's ops.
            delays: launch delays in the layout of ``durations``; None: those of the trace.
        """
        undelayed = predicted_step_s(durations)
        if isinstance(durations, Durations) and durations.graph is self.measured.graph:
            return Prediction(self._own(self._tied_step_s(durations)), undelayed)
        delayed = undelayed
        if self.delays is not None:
            delayed = predicted_step_s(durations, delays or self.delays)
        return Prediction(self._own(delayed * self._ties_cost), undelayed)

    @cached_property
    def _program(self) -> ProgramOrder:
        return program_order(self.measured)

    @cached_property
    def _tied_delays(self) -> Durations | None:
        """The launch delays that ties do not explain; None: they hardly lengthen the step."""
        durations, ties = self.measured.durations, self._program.ties
        if not len(ties):
            return self.delays
        tied_s = predicted_step_s(self._program.on_graph(durations))
        if self.result.traced_s.mean() < MIN_LAUNCH_SLOWDOWN * tied_s.mean():
            hidden = self._hidden_delays
            return None if hidden is None else self._program.on_graph(hidden)
        return self._program.on_graph(launch_overheads(self.measured, ties))

    @cached_property
    def _ties_cost(self) -> float:
        """Step time with ties over step time without. Ties are known only for the trace's graph."""
        if not len(self._program.ties):
            return 1.0
        untied = predicted_step_s(self.measured.durations, self.delays)
        return float(self._unchanged_s.mean()) / float(untied.mean())

    def _tied_step_s(self, durations: Durations) -> Array:
        """[step] step times with these durations of the trace's ops and the program's ties."""
        unchanged = durations is self.measured.durations and self._tied_delays is None
        if unchanged and not len(self._program.ties):
            return self.result.simulated_s
        return predicted_step_s(self._program.on_graph(durations), self._tied_delays)


@dataclass(frozen=True)
class Remedy:
    """A change with its gain.

    Attributes:
        remedy: its name, as in ``paceline remedy TRACE NAME``.
        text: the advice, in one sentence with the gain.
        findings: ids of the findings it answers.
        step_time_s: predicted mean step time with the change, seconds; includes launch delays
            where they count (``MIN_LAUNCH_SLOWDOWN``).
        gain: share of the step time that is saved, 1 - new / old. Throughput grows by the share
            1 / (1 - gain) - 1.
        interval: 90% bootstrap interval of ``gain`` over the steps. It is wider if the trace leaves
            the effect of the change open.
        change: the change, as JSON can hold it.
        notes: limits and assumptions.
        action: the advice without the gain: ``text`` is ``action: effect``.
        effect: the new step time, with the gain; both are "" in older results.
        architecture: it changes the job's architecture and does not mend a fault.
    """

    remedy: str
    text: str
    findings: tuple[str, ...]
    step_time_s: float
    gain: float
    interval: tuple[float, float]
    change: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    action: str = ""
    architecture: bool = False
    effect: str = ""

    @property
    def is_bound(self) -> bool:
        """Whether ``gain`` is an upper bound: how much of it is won is not known."""
        return bool(self.change.get("bound"))

    @property
    def is_conditional(self) -> bool:
        """Whether ``gain`` holds under one reading of the trace, not the diagnosis's first one."""
        return bool(self.change.get("if_equal_stages"))

    @property
    def rank(self) -> tuple[bool, float]:
        """Key of its place in lists: conditional remedies come last, the larger gain before."""
        return self.is_conditional, -self.gain

    def to_mapping(self) -> dict[str, Any]:
        """The remedy in the form of the JSON output."""
        return {
            "remedy": self.remedy,
            "action": self.action,
            "effect": self.effect,
            "text": self.text,
            "findings": list(self.findings),
            "step_time_s": self.step_time_s,
            "gain": self.gain,
            "interval": list(self.interval),
            "change": dict(self.change),
            "notes": list(self.notes),
            "architecture": self.architecture,
        }


#: Proposes the remedy for a case. Raises NotApplicableError, with the reason, if it does not apply,
#: and RemedyError if an option has an impossible value.
Propose = Callable[[Case], Remedy]


@dataclass(frozen=True)
class RemedyKind:
    """One sort of remedy.

    Attributes:
        name: as in ``paceline remedy TRACE NAME``.
        summary: its effect.
        causes: causes whose findings it answers.
        propose: the function that proposes it.
        architecture: it changes the job's architecture and does not mend a fault.
        whole_passes: it moves or splits passes, so it needs each in one piece.
        rebuilds: it builds another pipeline, whose order follows a schedule and not the recorded
            programs.
        of_programs: it changes recorded programs; a job without them is not offered it.
        repairs: it makes faulty hardware as fast as its peers.
    """

    name: str
    summary: str
    causes: frozenset[str]
    propose: Propose
    architecture: bool = False
    whole_passes: bool = True
    rebuilds: bool = False
    of_programs: bool = False
    repairs: bool = False

    def proposed(self, case: Case) -> Remedy:
        """The remedy for a job.

        Raises:
            RemedyError: it does not apply.
        """
        graph = case.measured.graph
        if self.of_programs and not case.measured.programs:
            raise NotApplicableError(
                "the trace does not record when communication was launched and awaited (no "
                "columns issued and awaited)"
            )
        if self.whole_passes and graph.has_parts:
            raise NotApplicableError(
                "passes were recorded in parts, between launches and waits; this remedy needs "
                "whole passes"
            )
        if self.rebuilds and not graph.of_whole_passes:
            raise NotApplicableError(
                "the job's program was recorded, or computes of a worker run at once; their "
                "order in another pipeline is not known"
            )
        return self.propose(case)


def predicted_step_s(durations: Rows, delays: Rows | None = None) -> Array:
    """[step] step times with these durations of these ops (of any graph), seconds."""
    graph: StepGraph = durations.graph
    rules = Rules.own(graph, delays is not None)
    return step_times(durations, rules, all_lanes(graph, durations.n_steps), delays)


def gain_of(
    before_s: Array, after_s: Array, *, paired: bool = True
) -> tuple[float, tuple[float, float]]:
    """Gain of a change from [step] times before and after, with its 90% bootstrap interval.

    Args:
        before_s: [step] seconds.
        after_s: [step] seconds.
        paired: a step after the change is like the same step before it; otherwise they vary
            independently.
    """
    rng = np.random.default_rng(0)
    n = len(before_s)
    weights = rng.multinomial(n, np.full(n, 1 / n), size=500)
    compared = weights @ before_s if paired else n * before_s.mean()
    low, high = np.percentile(1 - (weights @ after_s) / compared, INTERVAL)
    return 1 - float(after_s.mean() / before_s.mean()), (float(low), float(high))


def answered_findings(case: Case, causes: frozenset[str]) -> tuple[str, ...]:
    """Ids of the case's findings whose cause is one of ``causes``.

    Slow optimizers beside slow workers have a remedy of their own.
    """
    ids = [f.id for f in case.diagnosis.findings if f.cause in causes]
    return tuple(i for i in ids if i != OPTIMIZER or "worker" not in ids)
