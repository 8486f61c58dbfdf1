"""What a remedy is: a change to the job, the findings it answers, its gain by simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.diagnose import Diagnosis
from paceline.graph import Durations, Measured, StepGraph
from paceline.simulate import Rules, all_lanes, step_times
from paceline.trace.seqlens import SeqLens
from paceline.whatif import WhatIf

Array = npt.NDArray[np.float64]

INTERVAL = (5, 95)


@dataclass(frozen=True)
class Case:
    """What a remedy knows of the job.

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


@dataclass(frozen=True)
class Remedy:
    """A change, and what it gains.

    Attributes:
        remedy: its name, as in ``paceline remedy TRACE NAME``.
        text: what to do, in one sentence with the gain.
        findings: ids of the findings it answers.
        step_time_s: predicted mean step time with the change, without launch delays (to compare
            with the simulated T), seconds; for remedies of launch delays, of the traced step.
        gain: share of the step time that is saved, 1 - new / old; throughput grows by new gain
            1 / (1 - gain) - 1.
        interval: 90% bootstrap interval of ``gain`` over the steps.
        change: what to change, as JSON can hold it.
        notes: limits and assumptions.
    """

    remedy: str
    text: str
    findings: tuple[str, ...]
    step_time_s: float
    gain: float
    interval: tuple[float, float]
    change: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """The remedy as JSON holds it."""
        return {
            "remedy": self.remedy,
            "text": self.text,
            "findings": list(self.findings),
            "step_time_s": self.step_time_s,
            "gain": self.gain,
            "interval": list(self.interval),
            "change": dict(self.change),
            "notes": list(self.notes),
        }


#: Proposes the remedy for a case; raises RemedyError (says why) where it does not apply.
Propose = Callable[[Case], Remedy]


@dataclass(frozen=True)
class RemedyKind:
    """One sort of remedy: its name, what it does, which causes it answers, how it is proposed."""

    name: str
    summary: str
    causes: frozenset[str]
    propose: Propose


def predicted_step_s(durations: Durations, delays: Durations | None = None) -> Array:
    """[step] step times with these durations of these ops (of any graph), seconds."""
    graph: StepGraph = durations.graph
    keep = np.ones((1, graph.n_ops), dtype=bool)
    rules = Rules(keep, np.zeros(graph.n_ops), keep if delays is not None else None)
    return step_times(durations, rules, all_lanes(graph, durations.n_steps), delays)


def gain_of(before_s: Array, after_s: Array) -> tuple[float, tuple[float, float]]:
    """Gain of a change from [step] times before and after, with its 90% bootstrap interval."""
    rng = np.random.default_rng(0)
    n = len(before_s)
    weights = rng.multinomial(n, np.full(n, 1 / n), size=500)
    low, high = np.percentile(1 - (weights @ after_s) / (weights @ before_s), INTERVAL)
    return 1 - float(after_s.mean() / before_s.mean()), (float(low), float(high))


def answered(case: Case, causes: frozenset[str]) -> tuple[str, ...]:
    """Ids of the case's findings whose cause is one of ``causes``."""
    return tuple(f.id for f in case.diagnosis.findings if f.cause in causes)
