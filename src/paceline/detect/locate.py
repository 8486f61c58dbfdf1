"""Add the slow ranks to the events of a job, from a call log or a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.detect.job import MERGE_STEPS, JobEvent
from paceline.detect.own_onset import Case, has_risen, own_onset
from paceline.detect.steps_of_calls import StepTimes
from paceline.detect.who import Suspect
from paceline.detect.who_calls import is_comparable, steps_inside, who_from_calls
from paceline.detect.who_host import who_from_hosts
from paceline.detect.who_trace import AS_BEFORE, is_lasting, who_from_trace, who_slow_before
from paceline.diagnose import step_to_step_s
from paceline.errors import GraphError, TraceError
from paceline.graph import Measured, from_trace
from paceline.trace import Trace
from paceline.trace.calls import CallLog
from paceline.whatif import WhatIf, analyze

#: Most steps before a fail-slow, and least, with which its slow workers are compared.
STEPS_BEFORE, _FEWEST_BEFORE = 32, 4

#: Beside a slow host, workers that cost less than this share of the host's are left out.
OF_HOST = 0.5

_Key = tuple[str, tuple[int, ...]]  # kind and ranks of a suspect


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
            slow, before = trace.select_steps(steps), _trace_before(event, events, trace)
            event, case = with_slow_workers(event, slow, before, keep_clocks=keep_clocks)
            event = replace(event, advice=None if advise is None else advise(*case))
        located.append(event)
    return located


def with_slow_workers(
    event: JobEvent, slow: Trace, before: Trace | None, *, keep_clocks: bool = False
) -> tuple[JobEvent, Case]:
    """The event with its suspects, and the measurement and analysis of their slow steps.

    Workers that were as slow before the event are none. Those that became slow later have a begin
    of their own.

    Args:
        event: begin of a fail-slow.
        slow: its slow steps.
        before: healthy steps before it; None or too few steps: there is no comparison.
        keep_clocks: do not correct clock offsets between workers.
    """
    steps = _SlowSteps(
        slow, None if before is None else _analysis_before(before, keep_clocks), keep_clocks
    )
    found = steps.found_from(slow.steps[0])
    begins = steps.begins(event, found)
    since = min(begins.values(), default=event.since_step)
    if since <= event.step and abs(since - event.since_step) <= MERGE_STEPS:
        event = replace(event, since_step=since)
    first = min((begins.get(_key(s), event.since_step) for s in found.named), default=0)
    if first > slow.steps[0] and (later := steps.found_from(first)).named:
        found = later
    judged = []
    for suspect in found.named:
        n_steps, begin = found.n_steps, begins.get(_key(suspect), event.since_step)
        if begin > first:
            later = steps.found_from(begin)
            same = [one for one in later.named if _key(one) == _key(suspect)]
            if same:
                n_steps, suspect = later.n_steps, same[0]
        if begin > event.since_step:
            suspect = replace(suspect, since_step=begin)
        judged.append(_of_slow_steps(suspect, n_steps))
    measured, result = found.case
    event = replace(
        event,
        gpus=measured.job.ranks if result.by_worker.size == 1 else event.gpus,
        suspects=tuple(judged),
        slow_before=tuple(_of_slow_steps(suspect, found.n_steps) for suspect in found.same),
    )
    return event, found.case


@dataclass(frozen=True)
class _Found:
    """The slow workers of some slow steps, with the analysis of these steps.

    Attributes:
        case: measurement and analysis.
        named: its suspects.
        same: workers that were as slow before.
    """

    case: Case
    named: list[Suspect]
    same: list[Suspect]

    @property
    def n_steps(self) -> int:
        return len(self.case[1].steps)


@dataclass(frozen=True)
class _SlowSteps:
    """The slow steps of an event.

    Attributes:
        trace: these steps.
        usual: measurement and analysis of healthy steps before them; None: there are too few.
        keep_clocks: do not correct clock offsets between workers.
    """

    trace: Trace
    usual: Case | None
    keep_clocks: bool

    def found_from(self, first: int) -> _Found:
        """The slow workers of the steps from a first one on."""
        numbers = self.trace.steps.tolist()
        later = [step for step in numbers if step >= first]
        part = self.trace if later == numbers else self.trace.select_steps(later)
        case = _analysis(part, self.keep_clocks)
        return _Found(case, *_suspects(case, self.usual))

    def begins(self, event: JobEvent, found: _Found) -> dict[_Key, int]:
        """Suspect -> its own first slow step, where it is known."""
        if self.usual is None:
            return {}
        own = {_key(s): own_onset(event, s, found.case, self.usual) for s in found.named}
        return {key: step for key, step in own.items() if step is not None}


def _key(suspect: Suspect) -> _Key:
    return suspect.kind, suspect.ranks


def _suspects(case: Case, usual: Case | None) -> tuple[list[Suspect], list[Suspect]]:
    """The workers that are slow in some steps, and those that were as slow before.

    Variation that passes, and did before, is neither. Of a job of one worker only its host can be
    slow: nothing says how long its steps should be.
    """
    healthy = None if usual is None else usual[1]
    slow = () if case[1].by_worker.size == 1 else who_from_trace(*case, healthy)
    same = () if healthy is None else who_slow_before(slow, *case, healthy)
    named = [suspect for suspect in _with_host(slow, *case, usual) if suspect not in same]
    if usual is not None and case[1].by_worker.min() >= WhatIf.HEALTHY_BELOW:  # all vary
        named = [suspect for suspect in named if has_risen(suspect, case, usual)]
    return named, [suspect for suspect in same if is_lasting(suspect, *case)]


def _with_host(
    suspects: tuple[Suspect, ...],
    measured: Measured,
    result: WhatIf,
    before: Case | None,
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


def _of_slow_steps(suspect: Suspect, steps: int) -> Suspect:
    """The suspect; the evidence says that it is of the slow steps."""
    kind, since = ("slow ", "") if suspect.since_step is None else ("", " since then")
    head = (
        f"in the {steps:,} {kind}steps of the trace{since}, " if steps > 1 else "in a slow step, "
    )
    return replace(suspect, text=head + suspect.text)


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


def _analysis_before(before: Trace, keep_clocks: bool) -> Case | None:
    """Measurement and analysis of healthy steps; None for too few."""
    if len(before.steps) < _FEWEST_BEFORE:
        return None
    try:
        return _analysis(before, keep_clocks)
    except (GraphError, TraceError):
        return None


def _analysis(trace: Trace, keep_clocks: bool) -> Case:
    measured = from_trace(trace, keep_clocks=keep_clocks)
    return measured, analyze(measured)


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
