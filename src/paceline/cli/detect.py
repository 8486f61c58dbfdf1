"""``paceline detect``: when did a job become slow?"""

from __future__ import annotations

import argparse
import json
import sys
from math import isnan
from typing import TYPE_CHECKING

from paceline.cli import detect_ras, telemetry, trace_input
from paceline.cli.progress import ProgressBar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from paceline.detect.accept import Accepted
    from paceline.detect.bocd import Bocd
    from paceline.detect.detector import Detector
    from paceline.detect.event import Event
    from paceline.detect.job import JobEvent
    from paceline.detect.steps_of_calls import StepTimes
    from paceline.sources.step_times import StepTimes as Table
    from paceline.trace.calls import CallLog

EPILOG = """\
examples:
  paceline detect iterations.csv
  paceline detect train.log                 # Megatron-LM, torchtitan, NeMo, DeepSpeed, ...
  paceline detect train.log --pattern 'step (?P<step>\\d+) took (?P<duration_ms>[\\d.]+) ms'
  paceline detect iterations.csv --trace trace.parquet
  paceline detect runs/job-17
  paceline detect --collectives nccl.parquet
  paceline detect --collectives ras-1.json ras-2.json    # ncclras -f json: who has not arrived
  tail -f steps.jsonl | paceline detect - --ranks 8 --json

Logs are told by their content: Megatron-LM, Megatron-Bridge, NeMo, torchtitan, nanoGPT, DeepSpeed,
MLPerf (:::MLLOG), trainer_state.json, Weights & Biases' CSV, TensorBoard's event files,
Prometheus' range JSON.
Columns (CSV, parquet), or keys of a JSON line: step, duration_s (or start_s, in files), and rank
where there are several. The columns tokens, samples, batch, sequence_length, window and
flops say what a step has to do: changes that they explain are planned.
From standard input an event is printed the moment it is sure; events are merged over ranks.
A call log has the columns rank, time_s, op, size, communicator and,
optionally, duration_s; the logs of PyTorch's flight recorder, of NCCL Inspector and of the plugin
of paceline nccl are read too.
Who is slow takes a trace or a call log with durations.
"""


#: Of which a detector keeps the state: 7 KB each.
MAX_RANKS = 1_000_000


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "detect",
        help="when did a job become slow? step times in, fail-slows out",
        description="Find onsets and reliefs of fail-slows in step times, one step at a time.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "input",
        metavar="FILE",
        nargs="?",
        help="step times (CSV, .parquet, JSON lines), a trainer's log or metrics, a recorded run's "
        "folder, or - for JSON lines; not needed with --collectives",
    )
    parser.add_argument(
        "--pattern",
        metavar="REGEX",
        help="for logs of no known format: a line of a step, with groups such as (?P<step>\\d+), "
        "(?P<duration_s>...) or duration_ms or elapsed_s, rank, tokens, batch",
    )
    parser.add_argument(
        "--collectives",
        metavar="LOG",
        nargs="+",
        help="logs of collective calls: finds their period, the step times (without FILE), and, "
        "where they say how long calls took, who is slow",
    )
    parser.add_argument(
        "--trace",
        metavar="TRACE",
        type=trace_input.file_name,
        help="a trace of slow steps, numbered as in FILE: says who is slow",
    )
    parser.add_argument(
        "--job", metavar="YAML", type=trace_input.file_name, help="the job of --trace"
    )
    parser.add_argument(
        "--telemetry",
        metavar="FILE",
        nargs="+",
        type=trace_input.file_name,
        help="what GPUs say of themselves (paceline telemetry), shown beside who is slow",
    )
    parser.add_argument(
        "--hosts",
        metavar="CSV",
        type=trace_input.file_name,
        help="with --telemetry: host and GPU of each rank (columns rank, host, gpu)",
    )
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="with -: number of ranks (default 1)"
    )
    parser.add_argument(
        "--gpus",
        type=int,
        metavar="N",
        help="GPUs of the job, for GPU-hours lost (default: the number of ranks, if several)",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="X",
        help="share above the healthy level that counts as slow, noise allowed for (default 0.09)",
    )
    parser.add_argument(
        "--method",
        choices=("medians", "bocd"),
        default="medians",
        help="medians of several windows (default), or Bayesian change points with verification, "
        "as the falcon paper has them",
    )
    parser.add_argument(
        "--like",
        metavar="RUNS",
        nargs="+",
        help="step times of earlier runs of the same job, files or folders of them: changes that "
        "most of them show at the same step are planned",
    )
    parser.add_argument(
        "--accept",
        metavar="STEP",
        type=int,
        action="append",
        default=[],
        help="the change that began at this step (10 steps around it) was planned: its level is "
        "healthy; repeat for several",
    )
    parser.add_argument(
        "--running",
        action="store_true",
        help="the job runs still: tell whether its last step hangs, by when FILE was last written",
    )
    parser.add_argument(
        "--by-rank", action="store_true", help="do not merge the events of several ranks"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object per event")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Feed the detector, print its events."""
    from paceline.detect.bocd import Bocd
    from paceline.detect.detector import THRESHOLD, Detector
    from paceline.errors import DetectError

    if args.gpus is not None and args.gpus < 1:
        raise DetectError(f"--gpus must be 1 or more, not {args.gpus}")
    if args.method == "bocd" and args.threshold is not None:
        raise DetectError("--threshold is for --method medians; bocd compares means by 10%")

    if args.method == "bocd" and (args.like or args.accept):
        raise DetectError("--like and --accept are for --method medians")
    like = _earlier_runs(args)

    def detector_of(ranks: int) -> Detector | Bocd:
        if args.method == "bocd":
            return Bocd(ranks)
        threshold = THRESHOLD if args.threshold is None else args.threshold
        return Detector(ranks, threshold=threshold, like=[seconds for _, seconds in like])

    if args.input == "-":
        if args.collectives or args.trace or args.telemetry:
            raise DetectError(
                "--collectives, --trace and --telemetry are for a file, not for a stream"
            )
        if args.pattern is not None or args.running:
            raise DetectError("--pattern and --running are for files, not for standard input")
        ranks = 1 if args.ranks is None else args.ranks
        if not 1 <= ranks <= MAX_RANKS:
            raise DetectError(f"--ranks must be from 1 to {MAX_RANKS:,}, not {ranks:,}")
        return _online(args, detector_of(ranks))
    if args.pattern is not None and args.input is None:
        raise DetectError("--pattern is for FILE")
    if args.ranks is not None:
        raise DetectError("--ranks is for standard input; a file says which ranks it has")
    if args.job is not None and args.trace is None:
        raise DetectError("--job describes the job of --trace; give that too")
    if args.hosts is not None and not args.telemetry:
        raise DetectError("--hosts says where the GPUs of --telemetry run; give that too")
    return _offline(args, detector_of, like)


def _earlier_runs(args: argparse.Namespace) -> list[Any]:
    """Of each file of ``--like`` its first step, and [step] the median of the ranks."""
    from paceline.sources.step_logs.files import earlier_runs

    if not args.like:
        return []
    itself = None if args.input in (None, "-") else trace_input.file_name(args.input)
    runs = earlier_runs(map(trace_input.file_name, args.like), but=itself)
    if len(runs) < 3:
        few = f"{len(runs)} earlier runs; with fewer than 3, a fault in one of them counts as plan"
        print(f"note: {few}", file=sys.stderr)
    return runs


def _offline(
    args: argparse.Namespace, detector_of: Callable[[int], Detector | Bocd], like: list[Any]
) -> int:
    """Step times from a file or a call log; events merged over ranks, with who is slow."""
    from dataclasses import replace

    from paceline.detect.job import job_events
    from paceline.detect.limits import WARM_UP
    from paceline.errors import DetectError

    log = step_times = None
    if args.collectives:
        if detect_ras.applies(args.collectives):
            return detect_ras.run(args.collectives, args.input, as_json=args.json)
        log, step_times = _calls(args)
    if args.input is not None:
        times = _table(args)
    elif step_times is not None:
        times = step_times.table()
    else:
        raise DetectError("give a FILE of step times, - for standard input, or --collectives LOG")
    for warning in times.warnings:
        print(f"note: {warning}", file=sys.stderr)
    n_steps, n_ranks = times.duration_s.shape
    if n_steps <= WARM_UP:
        few = f"{n_steps} steps; the first {WARM_UP} are the warm-up"
        if args.input is not None:
            raise DetectError(f"{args.input} has {few}, give more")
        print(f"note: the log has {few}, so {WARM_UP + 1 - n_steps} more at least", file=sys.stderr)
        return _whole_log(args, log, step_times)
    _tell_slow_start(args, times, like)
    detector = detector_of(n_ranks)
    rank_events = _events(times, detector, args.accept)
    merged = [replace(event, gpus=args.gpus) for event in job_events(rank_events, n_ranks)]
    job_wide = _locate(args, merged, log, step_times)
    events = rank_events if args.by_rank else job_wide
    for event in events:
        print(json.dumps(event.to_mapping()) if args.json else event.explain())
    if not args.json:
        stakes = [event.stake() for event in job_wide]
        if stakes and stakes[-1] is not None:
            print(f"  {stakes[-1]}")
        for suspect in {s: None for job in job_wide for s in job.suspects or ()}:
            print(f"  {suspect.explain()}")
        slow = int(detector.slow.sum())
        print(
            f"{n_steps:,} steps of {n_ranks:,} ranks: "
            f"{sum(e.kind == 'onset' for e in events)} fail-slows, {slow} ranks slow at the end"
        )
    if args.running:
        _tell_hang(args, times)
    if args.telemetry and any(event.kind == "onset" for event in job_wide):
        ranks = [rank for event in job_wide for s in event.suspects or () for rank in s.ranks]
        telemetry.tell_beside(args.telemetry, args.hosts, ranks, as_json=args.json)
    return 0


def _tell_slow_start(args: argparse.Namespace, times: Table, like: list[Any]) -> None:
    """Say where the run is slower than its repeats from its first steps on, or as a whole."""
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


def _tell_hang(args: argparse.Namespace, times: Table) -> None:
    """Say whether the file has grown lately."""
    import time

    import numpy as np

    from paceline.detect.hang import is_overdue
    from paceline.detect.job import JobEvent

    if args.input is None:
        return
    path = trace_input.file_name(args.input)
    files = [path] if path.is_file() else [entry for entry in path.rglob("*") if entry.is_file()]
    waited_s = time.time() - max(entry.stat().st_mtime for entry in files)
    step_s = float(np.nanmedian(times.duration_s[-10:]))
    if is_overdue(waited_s, step_s * times.steps_per_sample, step_s):
        step, ranks = int(times.steps[-1]) + 1, tuple(times.ranks.tolist())
        hang = JobEvent("hang", step, step, ranks, len(ranks), np.nan, waited_s, step_s)
        print(json.dumps(hang.to_mapping()) if args.json else hang.explain())
    elif not args.json:
        print(f"no hang: the last line came {max(waited_s, 0.0):.3g} s ago")


def _table(args: argparse.Namespace) -> Table:
    """Step times of a file, or of a recorded run, which is also the trace that says who."""
    from paceline.sources import recording
    from paceline.sources.step_logs.files import load_step_log

    path = trace_input.file_name(args.input)
    if not path.is_dir() or not recording.matches(path):
        return load_step_log(path, args.pattern)
    times = recording.load_recorded_step_times(path)
    if args.trace is None and not args.collectives:
        args.trace = path
    return times


def _update(
    detector: Detector | Bocd,
    step: int,
    row: Any,
    workload: dict[str, float] | None,
    accepted: Accepted,
) -> list[Event]:
    """The events of a step that nobody has accepted."""
    from paceline.detect.detector import Detector

    events = detector.update(step, row, workload)
    return accepted.apply(detector, events) if isinstance(detector, Detector) else events


def _events(times: Table, detector: Detector | Bocd, accept: list[int]) -> list[Event]:
    """All events of a table of step times, with its own numbers of ranks."""
    from dataclasses import replace

    from paceline.detect.accept import NEAR_STEPS, Accepted
    from paceline.detect.detector import Detector

    accepted = Accepted(tuple(accept), NEAR_STEPS * times.steps_per_sample)
    events: list[Event] = []
    n_steps = len(times.steps)
    if isinstance(detector, Detector):
        detector.expected_steps = n_steps
    with ProgressBar("detecting") as progress:
        for i, step in enumerate(times.steps.tolist()):
            row, workload = times.duration_s[i], times.workload_of(i)
            events += _update(detector, step, row, workload, accepted)
            if i % 256 == 0:
                progress(i, n_steps)
    return [
        replace(
            event,
            rank=int(times.ranks[event.rank]),
            lost_s=event.lost_s * times.steps_per_sample,
        )
        for event in events
    ]


def _calls(args: argparse.Namespace) -> tuple[CallLog, StepTimes]:
    """The call log and its steps, which are told."""
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


def _locate(
    args: argparse.Namespace,
    events: list[JobEvent],
    log: CallLog | None,
    step_times: StepTimes | None,
) -> list[JobEvent]:
    """Events with who is slow, where a trace or a call log says it."""
    from paceline.detect import locate
    from paceline.detect.who_calls import is_comparable, who_from_calls
    from paceline.errors import TraceError
    from paceline.mitigate.advice import advice
    from paceline.sources import load

    onsets = [event for event in events if event.kind == "onset"]
    if args.trace is not None and onsets:
        try:
            trace = load(args.trace, args.job)
        except TraceError as error:
            if str(args.trace) != args.input:
                raise
            print(f"note: who is slow is unknown: {error}", file=sys.stderr)
            return events
        events = locate.locate_in_trace(events, trace, advise=advice)
        if all(event.suspects is None for event in events):
            print(
                f"note: {args.trace} has steps {trace.steps[0]} to {trace.steps[-1]}, none in a "
                "fail-slow; who is slow is unknown",
                file=sys.stderr,
            )
    elif log is not None and step_times is not None and onsets:
        if args.input is None:
            events = locate.locate_in_calls(events, log, step_times)
        elif is_comparable(log):
            events = locate.locate_last(events, who_from_calls(log, step_times))
    return events


def _whole_log(args: argparse.Namespace, log: CallLog | None, step_times: StepTimes | None) -> int:
    """The slow ranks in a log that is too short to say since when."""
    from paceline.detect.who_calls import is_comparable, who_from_calls

    if log is None or step_times is None:
        return 0
    if not is_comparable(log):
        why = "the log has one rank only; logs of the ranks that it meets would tell"
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
        print(text or "who: nobody stands out")
    return 0


def _online(args: argparse.Namespace, detector: Detector | Bocd) -> int:
    """JSON lines from standard input; sure events are printed at once."""
    from dataclasses import replace

    from paceline.detect.accept import Accepted
    from paceline.detect.arrivals import Arrivals
    from paceline.detect.job import job_events
    from paceline.detect.limits import WARM_UP
    from paceline.sources.step_times import json_lines, sample_of, workload_of_line

    arrivals = Arrivals(detector.ranks)
    accepted = Accepted(tuple(args.accept))

    def feed(steps: Iterable[tuple[int, Any]]) -> None:
        for step, row in steps:
            if detector.last_step is not None and step <= detector.last_step:
                restart = f"the job goes on from step {step:,} after step {detector.last_step:,}"
                print(f"note: {restart}: a restart", file=sys.stderr, flush=True)
                detector.go_back()
            events = _update(detector, step, row, arrivals.workload, accepted)
            merged = [replace(e, gpus=args.gpus) for e in job_events(events, detector.ranks)]
            for event in events if args.by_rank else merged:
                line = json.dumps(event.to_mapping()) if args.json else event.explain()
                print(line, flush=True)

    empty = 0
    for number, line in json_lines(sys.stdin, "standard input"):
        sample = sample_of(line, f"standard input:{number}", detector.ranks)
        empty += isnan(sample[2])
        feed(arrivals.add(*sample, workload_of_line(line, f"standard input:{number}")))
    feed(arrivals.end())
    for n, problem in (
        (empty, "are empty"),
        (arrivals.late, "repeat a step or came after it was over; left out"),
    ):
        if n:
            print(f"note: {n:,} samples {problem}", file=sys.stderr)
    if detector.steps <= WARM_UP:
        few = f"{detector.steps} steps came; the first {WARM_UP} are the warm-up"
        print(f"note: {few}, so nothing could be said", file=sys.stderr)
    return 0
