"""Attach who is slow to the events of a job, from a source at hand: a call log or a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.detect.job import JobEvent
from paceline.detect.steps_of_calls import StepTimes
from paceline.detect.who import Suspect
from paceline.detect.who_calls import is_comparable, steps_inside, who_from_calls
from paceline.detect.who_trace import who_from_trace
from paceline.graph import Measured, from_trace
from paceline.trace import Trace
from paceline.trace.calls import CallLog
from paceline.whatif import WhatIf, analyze


def locate_in_calls(events: Sequence[JobEvent], log: CallLog, steps: StepTimes) -> list[JobEvent]:
    """The slow ranks of each fail-slow, from the call log in which its steps were found.

    A log of one rank leaves that unknown. So does one without a whole step since then: where one
    step in n is recorded, the next one tells.
    """
    if not is_comparable(log):
        return list(events)
    return [
        replace(
            event,
            suspects=who_from_calls(log, steps, event.since_step, episode_end(event, events)),
        )
        if event.kind == "onset"
        and len(steps_inside(steps, event.since_step, episode_end(event, events)))
        else event
        for event in events
    ]


def locate_in_trace(
    events: Sequence[JobEvent],
    trace: Trace,
    *,
    keep_clocks: bool = False,
    advise: Callable[[Measured, WhatIf], str | None] | None = None,
) -> list[JobEvent]:
    """The slow ranks of those fail-slows of which the trace has steps.

    Args:
        events: of the job; step numbers are those of the trace.
        trace: some steps of the job.
        keep_clocks: do not correct clock offsets between workers.
        advise: says what to do about what the trace shows.
    """
    located = []
    for event in events:
        steps = _steps_of(event, events, trace) if event.kind == "onset" else []
        if steps:
            measured = from_trace(trace.select_steps(steps), keep_clocks=keep_clocks)
            result = analyze(measured)
            advice = None if advise is None else advise(measured, result)
            event = replace(event, suspects=who_from_trace(measured, result), advice=advice)
        located.append(event)
    return located


def locate_last(events: Sequence[JobEvent], suspects: tuple[Suspect, ...]) -> list[JobEvent]:
    """The same with suspects for the last fail-slow: from a profile taken because of it."""
    onsets = [i for i, event in enumerate(events) if event.kind == "onset"]
    return [
        replace(event, suspects=suspects) if [i] == onsets[-1:] else event
        for i, event in enumerate(events)
    ]


def episode_end(onset: JobEvent, events: Sequence[JobEvent]) -> int | None:
    """The first step behind a fail-slow; None where it goes on.

    Begins are medians over ranks, so a relief's may lie before the onset's: one step is left.
    """
    ends = [
        max(event.since_step, onset.since_step + 1)
        for event in events
        if event.kind == "relief"
        and event.step > onset.step
        and not set(event.ranks).isdisjoint(onset.ranks)
    ]
    return min(ends, default=None)


def _steps_of(onset: JobEvent, events: Sequence[JobEvent], trace: Trace) -> list[int]:
    end = episode_end(onset, events)
    return [
        step
        for step in trace.steps.tolist()
        if step >= onset.since_step and (end is None or step < end)
    ]
