"""``paceline detect``: when did a job become slow?"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.progress import ProgressBar

if TYPE_CHECKING:
    from paceline.detect.bocd import Bocd
    from paceline.detect.detector import Detector, Event

EPILOG = """\
examples:
  paceline detect iterations.csv
  tail -f steps.jsonl | paceline detect - --ranks 8 --json

Columns (CSV, parquet), or keys of a JSON line: step, duration_s (or start_s, in files), and rank
where there are several. From standard input an event is printed the moment it is sure; a file's
events are merged over ranks.
"""


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
        "input", metavar="FILE", help="step times (CSV, .parquet, JSON lines), or - for JSON lines"
    )
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="with -: number of ranks (default 1)"
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
        "--by-rank", action="store_true", help="do not merge the events of several ranks"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object per event")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Feed the detector, print its events."""
    from paceline.detect.bocd import Bocd
    from paceline.detect.detector import THRESHOLD, Detector
    from paceline.errors import DetectError

    if args.method == "bocd" and args.threshold is not None:
        raise DetectError("--threshold is for --method medians; bocd compares means by 10%")

    def detector_of(ranks: int) -> Detector | Bocd:
        if args.method == "bocd":
            return Bocd(ranks)
        return Detector(ranks, threshold=THRESHOLD if args.threshold is None else args.threshold)

    if args.input == "-":
        return _online(args, detector_of(1 if args.ranks is None else args.ranks))
    if args.ranks is not None:
        raise DetectError("--ranks is for standard input; a file says which ranks it has")
    from paceline.detect.detector import WARM_UP
    from paceline.detect.job import job_events
    from paceline.sources.step_times import load_step_times

    times = load_step_times(Path(args.input))
    for warning in times.warnings:
        print(f"note: {warning}", file=sys.stderr)
    n_steps, n_ranks = times.duration_s.shape
    if n_steps <= WARM_UP:
        raise DetectError(
            f"{args.input} has {n_steps} steps; the first {WARM_UP} are the warm-up, give more"
        )
    detector = detector_of(n_ranks)
    events: list[Event] = []
    with ProgressBar("detecting") as progress:
        for i, step in enumerate(times.steps.tolist()):
            events += detector.update(step, times.duration_s[i])
            if i % 256 == 0:
                progress(i, n_steps)
    named = [_renamed(event, int(times.ranks[event.rank])) for event in events]
    shown = named if args.by_rank else job_events(named, n_ranks)
    for event in shown:
        print(json.dumps(event.to_mapping()) if args.json else event.explain())
    if not args.json:
        slow = int(detector.slow.sum())
        print(
            f"{n_steps:,} steps of {n_ranks:,} ranks: "
            f"{sum(e.kind == 'onset' for e in shown)} fail-slows, {slow} ranks slow at the end"
        )
    return 0


def _renamed(event: Event, rank: int) -> Event:
    from dataclasses import replace

    return replace(event, rank=rank)


def _online(args: argparse.Namespace, detector: Detector | Bocd) -> int:
    """JSON lines from standard input; a step is complete when the next one begins."""
    import numpy as np

    from paceline.errors import DetectError
    from paceline.sources.step_times import json_lines

    late = 0
    step: int | None = None
    row = np.full(detector.ranks, np.nan)

    def flush() -> None:
        if step is None:
            return
        for event in detector.update(step, row):
            print(json.dumps(event.to_mapping()) if args.json else event.explain(), flush=True)

    for number, sample in json_lines(sys.stdin, "standard input"):
        try:
            at, rank = int(sample["step"]), int(sample.get("rank", 0))
            value = sample["duration_s"]
            seconds = float("nan") if value is None else float(value)
        except (KeyError, TypeError, ValueError):
            raise DetectError(
                f"standard input:{number} needs numbers for step and duration_s (and rank)"
            ) from None
        if not 0 <= rank < detector.ranks:
            raise DetectError(
                f"standard input:{number}: rank {rank} of {detector.ranks}; say --ranks N"
            )
        if step is not None and at < step:
            late += 1
            continue
        if step is None or at > step:
            flush()
            step, row = at, np.full(detector.ranks, np.nan)
        row[rank] = seconds
    flush()
    if late:
        print(f"note: {late} samples came after their step was over; left out", file=sys.stderr)
    return 0
