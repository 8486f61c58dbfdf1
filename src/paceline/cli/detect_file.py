"""``paceline detect FILE`` or ``--collectives``: step times of a finished file."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from paceline.cli import detect_metrics, detect_ras, detect_report, telemetry, trace_input
from paceline.cli.detect_stream import update
from paceline.cli.progress import ProgressBar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Any

    from paceline.detect.bocd import Bocd
    from paceline.detect.detector import Detector
    from paceline.detect.event import Event
    from paceline.detect.job import JobEvent
    from paceline.detect.long_steps import LongSteps
    from paceline.detect.stacks import Stacks
    from paceline.detect.steps_of_calls import StepTimes
    from paceline.detect.who import Suspect
    from paceline.sources.step_times import StepTimes as Table
    from paceline.trace.calls import CallLog


def run(
    args: argparse.Namespace, detector_of: Callable[[int, int], Detector | Bocd], like: list[Any]
) -> int:
    """Detect in a file or a call log; merge events over ranks and name slow ranks.

    Args:
        args: the options.
        detector_of: makes a detector of a number of ranks and of samples before any event.
        like: step times of earlier runs.
    """
    from paceline.detect.detector import THRESHOLD
    from paceline.detect.few_samples import warm_up_before_rise
    from paceline.detect.limits import WARM_UP, usable, warm_up_of
    from paceline.errors import DetectError
    from paceline.sources.step_logs.files import median_of_ranks

    log = step_times = None
    if args.collectives:
        if detect_ras.applies(args.collectives):
            return detect_ras.run(args.collectives, args.input, as_json=args.json)
        metrics = detect_metrics.files_of(args.collectives)
        if metrics is not None:
            return detect_metrics.run(metrics, args.input, as_json=args.json)
        log, step_times = _calls(args)
    if args.input is not None:
        times = _table(args)
    elif step_times is not None:
        times = step_times.table()
    else:
        raise DetectError("give a FILE of step times, - for standard input, or --collectives LOG")
    for warning in times.warnings:
        print(f"note: {warning}", file=sys.stderr)
    n_steps = len(times.steps)
    warm_up = WARM_UP if args.method == "bocd" else warm_up_of(times.steps_per_sample)
    if args.method != "bocd" and not like:
        median_s = median_of_ranks(times.duration_s)
        warm_up = warm_up_before_rise(median_s, warm_up, args.threshold or THRESHOLD)
    if n_steps <= warm_up:
        few = detect_report.too_few(times, warm_up)
        if args.input is not None:
            raise DetectError(f"{args.input} has {few}")
        print(f"note: the log has {few}", file=sys.stderr)
        if args.running:
            _tell_hang(args, times, log)
        return _whole_log(args, log, step_times)
    if args.input is not None and not (usable(times.duration_s).sum(axis=0) > warm_up).any():
        raise DetectError(
            f"{args.input}: no rank has more than {warm_up} durations that can be used, of "
            f"{n_steps:,} steps; durations of 0 or less, infinite or missing durations cannot"
        )
    _tell_slow_start(args, times, like)
    job_wide = _tell_events(args, times, detector_of, warm_up, log, step_times)
    if not args.json:
        _tell_slow_ranks(args, times, job_wide)
    _tell_long_steps(args, times)
    if args.running:
        _tell_hang(args, times, log)
    if args.telemetry and any(event.kind == "onset" for event in job_wide):
        ranks = [rank for event in job_wide for s in event.suspects or () for rank in s.ranks]
        telemetry.tell_beside(args.telemetry, args.hosts, ranks, as_json=args.json)
    return 0


def _tell_events(
    args: argparse.Namespace,
    times: Table,
    detector_of: Callable[[int, int], Detector | Bocd],
    warm_up: int,
    log: CallLog | None,
    step_times: StepTimes | None,
) -> list[JobEvent]:
    """Detect, print the events and the state at the end; returns the events of the job."""
    from dataclasses import replace

    from paceline.detect.bursts import bursts_of
    from paceline.detect.episodes import are_shared, are_together, episodes_of, with_together
    from paceline.detect.event import counted
    from paceline.detect.job import JobEvent, job_events
    from paceline.detect.who_data import with_data_suspects
    from paceline.detect.who_works import with_suspects

    n_ranks = len(times.ranks)
    detector = detector_of(n_ranks, warm_up)
    rank_events = _events(times, detector, args.accept)
    merged = job_events(rank_events, n_ranks)
    together = args.input is not None and (
        are_together(times.duration_s, times.steps.tolist(), rank_events)
        or are_shared(times.duration_s, times.steps.tolist(), times.ranks.tolist(), merged)
    )
    merged = [replace(event, gpus=args.gpus, together=together) for event in merged]
    if together and not args.by_rank:
        detector = detector_of(1, warm_up)
        merged = _of_median(times, detector, args, merged)
    elif args.input is not None and not together:
        merged = with_together(merged, times.duration_s, times.steps.tolist())
    steps, ranks, duration_s = times.steps.tolist(), times.ranks.tolist(), times.duration_s
    if times.wait_s is not None:
        merged = with_suspects(merged, steps, ranks, duration_s, times.wait_s)
    job_wide = _locate(args, merged, log, step_times)
    if times.data_wait_s is not None:
        job_wide = with_data_suspects(job_wide, steps, ranks, duration_s, times.data_wait_s)
    events: Sequence[Event | JobEvent] = rank_events if args.by_rank else job_wide
    bursts = bursts_of(events)
    if args.json:
        for place, event in enumerate(events):
            waits = together or (isinstance(event, JobEvent) and event.together)
            mapping = {**event.to_mapping(), "burst": place in bursts, "together": waits}
            print(json.dumps(mapping))
        return job_wide
    detect_report.print_events(events, bursts, verbose=args.verbose)
    stake = job_wide[-1].stake() if job_wide and detector.slow.any() else None
    if stake is not None:
        print(f"  {stake}")
    if args.by_rank:  # the events of ranks name nobody
        for job in job_wide:
            for line in job.suspect_lines():
                print(f"  since step {job.since_step:,}: {line}")
    begins = [episode.places[0] for episode in episodes_of(events)]
    onsets = sum(events[place].kind == "onset" and place not in bursts for place in begins)
    n_bursts = sum(place in bursts for place in begins)
    short = f" and {counted(n_bursts, 'burst')}" if n_bursts else ""
    end_text = detect_report.at_the_end(
        detector, job_wide, times, args.gpus, warm_up, running=args.running
    )
    print(
        f"{detect_report.extent(times)} of {counted(n_ranks, 'rank')}: "
        f"{counted(onsets, 'fail-slow')}{short}, {end_text}"
    )
    return job_wide


def _of_median(
    times: Table, detector: Detector | Bocd, args: argparse.Namespace, merged: list[JobEvent]
) -> list[JobEvent]:
    """Events of ranks that are slow together: level changes of their median, others as they are."""
    from dataclasses import replace

    import numpy as np

    from paceline.detect.event import LEVEL_KINDS
    from paceline.detect.job import job_events
    from paceline.sources.step_logs.files import median_of_ranks

    median = median_of_ranks(times.duration_s)[:, None]
    one = replace(times, ranks=np.zeros(1, dtype=np.int64), duration_s=median)
    ranks = tuple(times.ranks.tolist())
    of_job = [
        replace(event, ranks=ranks, of=len(ranks), gpus=args.gpus, together=True)
        for event in job_events(_events(one, detector, args.accept), 1)
        if event.kind in LEVEL_KINDS
    ]
    others = [event for event in merged if event.kind not in LEVEL_KINDS]
    return sorted([*of_job, *others], key=lambda event: event.step)


def _tell_slow_start(args: argparse.Namespace, times: Table, like: list[Any]) -> None:
    """Say whether the run is slower than its repeats, from its first steps on or as a whole."""
    from dataclasses import asdict

    from paceline.detect.limits import WARM_UP
    from paceline.detect.slow_start import comparable, slow_run
    from paceline.sources.step_logs.files import median_of_ranks

    if not like:
        return
    earlier = comparable(int(times.steps[0]), like)
    found = slow_run(median_of_ranks(times.duration_s), earlier)
    if found is None:
        return
    mapping = {"kind": "slow-start", **asdict(found), "text": found.explain()}
    head = "slow from the start" if found.steps == WARM_UP else "slower than its repeats"
    print(json.dumps(mapping) if args.json else f"{head}: {found.explain()}")


def _tell_slow_ranks(args: argparse.Namespace, times: Table, job_wide: list[JobEvent]) -> None:
    """Name ranks that are slow in all steps, or say how to find them in a recording."""
    from paceline.detect.slow_ranks import slow_ranks

    if times.wait_s is not None:
        for found in slow_ranks(times.duration_s, times.wait_s, times.ranks.tolist()):
            print(f"slow from the first step: {found.explain()}")
        return
    is_recording = args.input is not None and args.trace == trace_input.file_name(args.input)
    if is_recording and len(times.ranks) > 1 and not job_wide:
        print(
            "a rank that is slow from the first step, or in few steps, may show no change here: "
            f"paceline analyze {args.input} shows it"
        )


def _tell_long_steps(args: argparse.Namespace, times: Table) -> None:
    """Say what single steps cost that are long again and again, unless their work may differ."""
    import numpy as np

    from paceline.detect.long_steps import long_steps
    from paceline.sources.step_logs.files import median_of_ranks

    if any(len(np.unique(work[np.isfinite(work)])) > 1 for work in times.workload.values()):
        return
    found = long_steps(median_of_ranks(times.duration_s), times.steps_per_sample)
    if found is None:
        return
    who = _who_in_long_steps(args, times, found)
    text = found.explain("" if who is None else who.explain())
    mapping = {"kind": "long-steps", **found.to_mapping(), "text": text}
    if who is not None:
        mapping["who"] = [who.to_mapping()]
    print(json.dumps(mapping) if args.json else f"long steps: {text}")


def _who_in_long_steps(args: argparse.Namespace, times: Table, found: LongSteps) -> Suspect | None:
    """The workers that the long steps wait for, if a trace shows them."""
    from paceline.detect.who_long_steps import who_in_long_steps
    from paceline.sources import load

    if args.trace is None:
        return None
    numbers = times.steps[list(found.at)].tolist()
    excess_s = dict(zip(numbers, found.excess_s, strict=True))
    usual_s = dict(zip(numbers, found.usual_s, strict=True))
    with _unusable_recording(args):
        off_beat = times.steps[list(found.off_beat)].tolist()
        return who_in_long_steps(load(args.trace, args.job), excess_s, usual_s, off_beat)
    return None


def _tell_hang(args: argparse.Namespace, times: Table, log: CallLog | None) -> None:
    """Say whether the file has grown lately; for a hang, show the absent ranks and the stacks."""
    import time
    from dataclasses import replace

    import numpy as np

    from paceline.detect.hang import hang_of, is_overdue

    names = args.collectives if args.input is None else [args.input]
    paths = [trace_input.file_name(name) for name in names]
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])]
    waited_s = time.time() - max(file.stat().st_mtime for file in files if file.is_file())
    step_s = float(np.nanmedian(times.duration_s[-10:]))
    if not is_overdue(waited_s, step_s * times.steps_per_sample, step_s):
        if not args.json:
            print(f"no hang: the last line came {max(waited_s, 0.0):.3g} s ago")
        return
    hang = hang_of(times.steps, times.ranks, times.duration_s, waited_s, step_s, log)
    if not args.no_stacks:
        hang = replace(hang, stacks=_stacks(args, paths[0], hang.of))
    if args.json:
        print(json.dumps(hang.to_mapping()))
        return
    print(hang.explain())
    for line in hang.details():
        print(f"  {line}")


def _stacks(args: argparse.Namespace, path: Path, ranks: int) -> Stacks:
    """Stacks of the processes that ``--pid`` names, that wrote a recording, or that have a rank."""
    from paceline.detect import stacks
    from paceline.errors import DetectError
    from paceline.sources import recording
    from paceline.sources.recording.files import read_files

    if args.pid:
        return stacks.stacks_of(stacks.ranks_of_pids(args.pid))
    if path.is_dir() and recording.matches(path):
        files = read_files(path)
        session = max(files, key=lambda file: int(file.meta["started_ns"])).session
        headers = [file.meta for file in files if file.session == session]
        return stacks.stacks_of(stacks.processes_of(headers))
    try:
        return stacks.stacks_of(stacks.find_processes(ranks if ranks > 1 else None))
    except DetectError as error:
        return stacks.Stacks((), (str(error),))


def _table(args: argparse.Namespace) -> Table:
    """Step times of a file or a recorded run; the recording is also the trace that names ranks."""
    from paceline.sources import recording
    from paceline.sources.step_logs.files import load_step_log

    path = trace_input.file_name(args.input)
    if not path.is_dir() or not recording.matches(path):
        return load_step_log(path, args.pattern)
    times = recording.load_recorded_step_times(path)
    if args.trace is None and not args.collectives:
        args.trace = path
    return times


def _events(times: Table, detector: Detector | Bocd, accept: list[int]) -> list[Event]:
    """All events of a table of step times, with its own numbers of ranks."""
    from dataclasses import replace

    from paceline.detect.accept import NEAR_STEPS, Accepted
    from paceline.detect.detector import Detector
    from paceline.detect.episodes import ReliefDates, without_short_levels
    from paceline.detect.refinement import Refinement

    accepted = Accepted(tuple(accept), NEAR_STEPS * times.steps_per_sample)
    events: list[Event] = []
    n_steps = len(times.steps)
    refinement = None
    if isinstance(detector, Detector):
        detector.expected_steps = n_steps
        refinement = Refinement(detector)
    with ProgressBar("detecting") as progress:
        for i, step in enumerate(times.steps.tolist()):
            row, workload = times.duration_s[i], times.workload_of(i)
            of_step = update(detector, step, row, workload, accepted)
            events += of_step
            if refinement is not None:
                refinement.take(of_step)
            if i % 256 == 0:
                progress(i, n_steps)
    found = events if refinement is None else refinement.events()
    return [
        replace(
            event,
            rank=int(times.ranks[event.rank]),
            lost_s=event.lost_s * times.steps_per_sample,
        )
        for event in without_short_levels(ReliefDates().apply(found))
    ]


def _calls(args: argparse.Namespace) -> tuple[CallLog, StepTimes]:
    """The call log and its steps; prints them."""
    from paceline.detect.steps_of_calls import step_times
    from paceline.sources.call_logs.files import load_call_log

    log, notes = load_call_log(args.collectives)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    times = step_times(log)
    if args.json:
        print(json.dumps(times.to_mapping()))
    else:
        print(times.explain())
    return log, times


@contextmanager
def _unusable_recording(args: argparse.Namespace) -> Iterator[None]:
    """Turn an error of the trace into a note, where the recording itself is the trace."""
    from paceline.errors import GraphError, TraceError

    try:
        yield
    except (TraceError, GraphError) as error:
        if str(args.trace) != args.input:
            raise
        print(f"note: the slow rank is unknown: {error}", file=sys.stderr)


def _locate(
    args: argparse.Namespace,
    events: list[JobEvent],
    log: CallLog | None,
    step_times: StepTimes | None,
) -> list[JobEvent]:
    """Events with the slow ranks, if a trace or a call log shows them."""
    from paceline.detect import locate
    from paceline.detect.who_calls import is_comparable, who_from_calls
    from paceline.mitigate.advice import advice
    from paceline.sources import load

    onsets = [event for event in events if event.kind == "onset"]
    if args.trace is not None and onsets:
        with _unusable_recording(args):
            trace = load(args.trace, args.job)
            events = locate.locate_in_trace(events, trace, advise=advice)
            if all(event.suspects is None for event in events):
                print(
                    f"note: {args.trace} has steps {trace.steps[0]} to {trace.steps[-1]}, none in "
                    "a fail-slow; the slow rank is unknown",
                    file=sys.stderr,
                )
    elif log is not None and step_times is not None and onsets:
        if args.input is None:
            events = locate.locate_in_calls(events, log, step_times)
        elif is_comparable(log):
            events = locate.locate_last(events, who_from_calls(log, step_times))
    return events


def _whole_log(args: argparse.Namespace, log: CallLog | None, step_times: StepTimes | None) -> int:
    """The slow ranks in a log that is too short to show the onset."""
    from paceline.detect.who_calls import is_comparable, who_from_calls

    if log is None or step_times is None:
        return 0
    if not is_comparable(log):
        why = "the log has one rank only; add logs of the ranks that it meets"
        print(
            json.dumps({"kind": "who", "who": None, "why": why})
            if args.json
            else f"who: unknown: {why}"
        )
        return 0
    suspects = who_from_calls(log, step_times)
    if args.json:
        mappings = [suspect.to_mapping() for suspect in suspects]
        print(json.dumps({"kind": "who", "who": mappings}))
    else:
        text = "\n".join(suspect.explain() for suspect in suspects)
        print(text or "no rank stands out")
    return 0
