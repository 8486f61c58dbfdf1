"""Slow workers and advice, from the profiled steps of a fail-slow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paceline.detect.job import JobEvent
from paceline.detect.locate import with_slow_workers
from paceline.diagnose import diagnose
from paceline.errors import PacelineError
from paceline.graph import Measured, from_trace
from paceline.mitigate.findings import faults_of
from paceline.mitigate.forecast import forecast
from paceline.mitigate.job_model import JobModel
from paceline.mitigate.strategies import Strategies
from paceline.monitor.recording_tail import RecordingTail
from paceline.remedies import Case
from paceline.sources import load
from paceline.trace import Trace
from paceline.whatif import WhatIf, analyze


def read_steps(tail: RecordingTail, steps: list[int]) -> Trace:
    """The trace of some profiled steps.

    Raises:
        TraceError: the steps form no trace.
    """
    with TemporaryDirectory(prefix="paceline-watch-") as folder:
        tail.cut(steps, Path(folder) / "steps")
        return load(Path(folder) / "steps")


def name_suspects(
    onset: JobEvent, trace: Trace, before: Trace | None = None
) -> tuple[JobEvent, Measured, WhatIf]:
    """The onset with its suspects, and their source.

    Args:
        onset: begin of a fail-slow.
        trace: slow steps.
        before: healthy steps before it, if there are any.

    Raises:
        PacelineError: the trace has no graph, or it cannot be analysed.
    """
    named, (measured, result) = with_slow_workers(onset, trace, before)
    return named, measured, result


def plan_of(
    trace: Trace, measured: Measured, result: WhatIf, overheads: Mapping[str, float | None]
) -> tuple[str, dict[str, Any]]:
    """The planner's next actions if nothing changes: in words, and for JSON.

    Args:
        trace: trace of slow steps.
        measured: the measured graph. A pipeline's rules replace recorded programs, which do not
            show launches for another share of microbatches.
        result: analysis of the trace.
        overheads: strategy -> one-time cost in seconds; None forbids it.
    """
    try:
        if measured.graph.programmed:
            measured = from_trace(trace, by_rules=True)
            result = analyze(measured)
        faults = faults_of(Case(measured, result, diagnose(measured, result)))
        if not faults:
            return "no plan: the diagnosis of these steps names no worker and no link", {}
        strategies = Strategies(JobModel(measured), dict(overheads))
        outlook = forecast(strategies, faults, rule="loss")
    except PacelineError as error:
        return f"no plan: {error}", {}
    names = ", ".join(fault.name for fault in faults)
    due = [f"after {d.after_steps:,} steps {d.action.option.text}" for d in outlook.due]
    return f"plan ({names}): {'; '.join(due) or 'ignore it'}", outlook.to_mapping()
