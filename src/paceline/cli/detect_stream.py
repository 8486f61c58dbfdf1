"""``paceline detect -``: reads step times line by line and prints events at once."""

from __future__ import annotations

import argparse
import json
import sys
from math import isnan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from paceline.detect.accept import Accepted
    from paceline.detect.bocd import Bocd
    from paceline.detect.detector import Detector
    from paceline.detect.event import Event


def run(args: argparse.Namespace, detector: Detector | Bocd) -> int:
    """Read JSON lines from standard input; print certain events at once."""
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
            events = update(detector, step, row, arrivals.workload, accepted)
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
