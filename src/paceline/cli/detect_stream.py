"""``paceline detect -``: reads step times line by line and prints events at once."""

from __future__ import annotations

import argparse
import json
import sys
from math import isnan
from typing import TYPE_CHECKING

from paceline.cli.detect_report import StreamReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from paceline.detect.accept import Accepted
    from paceline.detect.bocd import Bocd
    from paceline.detect.detector import Detector
    from paceline.detect.event import Event
    from paceline.detect.job import JobEvent


def run(args: argparse.Namespace, detector_of: Callable[[int], Detector | Bocd]) -> int:
    """Read JSON lines from standard input; print certain events at once."""
    from paceline.detect.accept import Accepted
    from paceline.detect.arrivals import Arrivals
    from paceline.detect.job import JobEvent
    from paceline.detect.limits import WARM_UP
    from paceline.detect.live import LiveEvents
    from paceline.sources.step_times import json_lines, sample_of, wait_of_line, workload_of_line

    ranks = 1 if args.ranks is None else args.ranks
    arrivals = Arrivals(ranks)
    live = LiveEvents(detector_of, ranks, Accepted(tuple(args.accept)), args.gpus)
    report = StreamReport(every=args.verbose or args.by_rank)

    def tell(events: Iterable[Event | JobEvent]) -> None:
        for event in events:
            if args.json:
                together = isinstance(event, JobEvent) and event.together
                print(json.dumps({**event.to_mapping(), "together": together}), flush=True)
            else:
                report.tell(event)

    def feed(steps: Iterable[tuple[int, Any]]) -> None:
        for step, row in steps:
            last = live.detector.last_step
            if last is not None and step <= last:
                restart = f"the job goes on from step {step:,} after step {last:,}"
                print(f"note: {restart}: a restart", file=sys.stderr, flush=True)
                live.go_back()
            if args.by_rank:
                tell(live.rank_events(step, row, arrivals.workload))
            else:
                tell(live.take(step, row, arrivals.workload, arrivals.wait_s))

    empty = 0
    for number, line in json_lines(sys.stdin, "standard input"):
        where = f"standard input:{number}"
        sample = sample_of(line, where, ranks)
        empty += isnan(sample[2])
        feed(arrivals.add(*sample, workload_of_line(line, where), wait_of_line(line, where)))
    feed(arrivals.end())
    tell(live.end())
    if report.blocks and not args.json:
        print(report.last_line(live))
    for n, problem in (
        (empty, "are empty"),
        (arrivals.late, "repeat a step or came after it was over; left out"),
    ):
        if n:
            print(f"note: {n:,} samples {problem}", file=sys.stderr)
    if live.detector.steps <= WARM_UP:
        few = f"{live.detector.steps} steps came; the first {WARM_UP} are the warm-up"
        print(f"note: {few}, so no event could be found", file=sys.stderr)
    return 0


def update(
    detector: Detector | Bocd,
    step: int,
    row: Any,
    workload: dict[str, float] | None,
    accepted: Accepted,
) -> list[Event]:
    """The events of a step that were not accepted as planned."""
    from paceline.detect.detector import Detector

    events = detector.update(step, row, workload)
    return accepted.apply(detector, events) if isinstance(detector, Detector) else events
