"""Add the slow ranks to the events of a job, from a call log or a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from paceline.detect.job import MERGE_STEPS, JobEvent
from paceline.detect.steps_of_calls import StepTimes
from paceline.detect.who import Suspect
from paceline.detect.who_calls import is_comparable, steps_inside, who_from_calls
from paceline.detect.who_host import who_from_hosts
from paceline.detect.who_trace import AS_BEFORE, ranks_of, who_from_trace, who_slow_before
from paceline.diagnose import step_to_step_s
from paceline.diagnose.regimes import jump_of, over_peers
from paceline.errors import GraphError, TraceError
from paceline.graph import Measured, from_trace
from paceline.trace import Trace
from paceline.trace.calls import CallLog
from paceline.whatif import WhatIf, analyze

#: Most steps before a fail-slow, and least, with which its slow workers are compared.
STEPS_BEFORE, _FEWEST_BEFORE = 32, 4

#: Beside a slow host, workers that cost less than this share of the host's are left out.
OF_HOST = 0.5


def locate_in_calls(events: Sequence[JobEvent], log: CallLog, steps: StepTimes) -> list[JobEvent]:
    """The slow ranks of each fail-slow, from the call log in which its steps were found.

    They stay unknown with a log of one rank, or without a whole step since the onset. If one step
    in n is recorded, the next recorded step shows them.
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
    """The slow ranks of the fail-slows with steps in the trace.

    A worker that was as slow in the trace's steps before the fail-slow is no suspect.

    Args:
        events: events of the job, with the trace's step numbers.
        trace: some steps of the job.
        keep_clocks: do not correct clock offsets between workers.
        advise: function that recommends an action for the trace.
    """
    located = []
    for event in events:
        steps = _steps_of(event, events, trace) if event.kind == "onset" else []
        if steps:
            measured = from_trace(trace.select_steps(steps), keep_clocks=keep_clocks)
            result = analyze(measured)
            advice = None if advise is None else advise(measured, result)
            before = _trace_before(event, events, trace)
            event = with_slow_workers(event, measured, result, before, keep_clocks=keep_clocks)
            event = replace(event, advice=advice)
        located.append(event)
    return located


def with_slow_workers(
    event: JobEvent,
    measured: Measured,
    result: WhatIf,
    before: Trace | None,
    *,
    keep_clocks: bool = False,
) -> JobEvent:
    """The event with its suspects; workers that were as slow before it are none.

    Of a job of one worker only its host can be one: nothing says how long its steps should be.

    Args:
        event: begin of a fail-slow.
        measured: its slow steps.
        result: their analysis.
        before: healthy steps before it; None or too few steps: there is no comparison.
        keep_clocks: do not correct clock offsets between workers.
    """
    is_alone, steps = result.by_worker.size == 1, len(result.steps)
    usual = None if before is None else _analysis_before(before, keep_clocks)
    healthy = None if usual is None else usual[1]
    suspects = () if is_alone else who_from_trace(measured, result, healthy)
    same = () if healthy is None else who_slow_before(suspects, measured, result, healthy)
    suspects = _with_host(suspects, measured, result, usual)
    named = [suspect for suspect in suspects if suspect not in same]
    if named and usual is not None:
        event = replace(event, since_step=_own_onset(event, named[0], (measured, result), usual))
    return replace(
        event,
        gpus=measured.job.ranks if is_alone else event.gpus,
        suspects=_of_slow_steps(named, steps),
        slow_before=_of_slow_steps(same, steps),
    )


def _own_onset(
    event: JobEvent,
    suspect: Suspect,
    slow: tuple[Measured, WhatIf],
    before: tuple[Measured, WhatIf],
) -> int:
    """The first step of a fail-slow: the jump of its slow worker's computes beside its peers.

    All workers share the noise of the job's step times, which this ratio does not have. The
    event's own step stays if no jump is near it, or if not all traced steps between contradict it.
    """
    by_worker = slow[1].by_worker
    stage, dp = (int(i) for i in np.unravel_index(int(by_worker.argmax()), by_worker.shape))
    is_it = suspect.ranks and suspect.ranks == ranks_of([(dp, stage)], slow[0])
    if not is_it or suspect.kind != "compute" or suspect.steps or by_worker.shape[1] < 2:
        return event.since_step
    parts = [over_peers(measured.durations, dp, stage) for measured, _ in (before, slow)]
    steps = np.concatenate([before[1].steps, slow[1].steps])
    ratio, since = np.concatenate(parts), event.since_step
    jump = jump_of(ratio)
    if jump is None or jump.after_s < jump.before_s or abs(steps[jump.at] - since) > MERGE_STEPS:
        return since
    own = int(steps[jump.at])
    between = ratio[(steps >= min(own, since)) & (steps < max(own, since))]
    is_slow = between > np.sqrt(jump.before_s * jump.after_s)
    return own if len(between) and (is_slow == (own < since)).all() else since


def _with_host(
    suspects: tuple[Suspect, ...],
    measured: Measured,
    result: WhatIf,
    before: tuple[Measured, WhatIf] | None,
) -> tuple[Suspect, ...]:
    """The suspects and the one by its host, unless it was as slow before.

    Beside it, workers that cost little in comparison are its victims, or noise.
    """
    host = who_from_hosts(measured, result)
    if host is None:
        return suspects
    usual = None if before is None else who_from_hosts(*before)
    if usual is not None and usual.share >= AS_BEFORE * host.share:
        return suspects
    of_time = float(result.simulated_s.mean() / step_to_step_s(measured, result).mean())
    return (host, *(s for s in suspects if of_time * s.share >= OF_HOST * host.share))


def _of_slow_steps(suspects: Sequence[Suspect], steps: int) -> tuple[Suspect, ...]:
    """The suspects; the evidence says that it is of the slow steps."""
    head = f"in the {steps:,} slow steps of the trace, " if steps > 1 else "in a slow step, "
    return tuple(replace(suspect, text=head + suspect.text) for suspect in suspects)


def _trace_before(onset: JobEvent, events: Sequence[JobEvent], trace: Trace) -> Trace | None:
    """The healthy steps before a fail-slow, the latest ones; None if the trace has none."""
    ends = [
        event.since_step
        for event in events
        if event.kind == "relief" and event.since_step <= onset.since_step
    ]
    begin = max(ends, default=0)
    steps = [step for step in trace.steps.tolist() if begin <= step < onset.since_step]
    return trace.select_steps(steps[-STEPS_BEFORE:]) if steps else None


def _analysis_before(before: Trace, keep_clocks: bool) -> tuple[Measured, WhatIf] | None:
    """Measurement and analysis of healthy steps; None for too few."""
    if len(before.steps) < _FEWEST_BEFORE:
        return None
    try:
        measured = from_trace(before, keep_clocks=keep_clocks)
        return measured, analyze(measured)
    except (GraphError, TraceError):
        return None


def locate_last(events: Sequence[JobEvent], suspects: tuple[Suspect, ...]) -> list[JobEvent]:
    """The events with suspects for the last fail-slow, from a profile that it triggered."""
    onsets = [i for i, event in enumerate(events) if event.kind == "onset"]
    return [
        replace(event, suspects=suspects) if [i] == onsets[-1:] else event
        for i, event in enumerate(events)
    ]


def episode_end(onset: JobEvent, events: Sequence[JobEvent]) -> int | None:
    """The first step after a fail-slow; None if it continues.

    As begins are medians over ranks, a relief may precede its onset; at least one step remains.
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
