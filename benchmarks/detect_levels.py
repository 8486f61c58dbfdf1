"""Jobs whose level changes, with noise of real runs: what is told in time, what falsely.

    python benchmarks/detect_levels.py [--seed 1] [--jobs 30]

A change counts as found when an event of its direction comes within 10 steps (30 after a restart).
"false" are events further than 20 steps from each change. The bars are those of the issue.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from level_streams import CASES, residuals, stream

from paceline import Detector

SHARED = Path(os.environ.get("PACELINE_SHARED", Path(__file__).parents[2] / "shared"))
SERIES = SHARED / "data" / "step-series" / "step_series.npz"
DOWN = ("relief", "partial-relief", "faster")
BARS = {"small": 92, "restart": 80, "planned": 0}
COUNTS = ("changes", "found", "kind", "factor", "false", "steps", "planned")


def events_of(job):
    detector, events = Detector(1, like=job.like), []
    for step in range(len(job.x)):
        if step == job.restart:
            detector.go_back()
        work = None if job.workload is None else {"tokens": int(job.workload[step])}
        events += detector.update(step, job.x[step : step + 1], work)
    return events


def score(job, events, within):
    """One job's counts."""
    count, used = dict.fromkeys(COUNTS, 0), set()
    for at, kind, factor in job.changes:
        count["changes"] += 1
        for i, event in enumerate(events):
            in_time = at - 3 <= event.step <= at + within
            if i not in used and in_time and (event.before_factor < 1) == (kind in DOWN):
                used.add(i)
                told = 1.0 if event.kind == "relief" else event.factor
                count["found"] += 1
                count["kind"] += event.kind == kind
                count["factor"] += abs(told / factor - 1) < 0.02
                break
    for i, event in enumerate(events):
        near = any(
            min(abs(event.since_step - at), abs(event.step - at)) <= 20 for at, *_ in job.changes
        )
        count["false"] += i not in used and not near
    if job.planned:
        count["planned"] = any(abs(event.step - job.planned) <= 30 for event in events)
    count["steps"] = len(job.x)
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=30)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    with np.load(SERIES) as file:
        series = {name: file[name] for name in ("offsets", "duration_s", "tokens", "window")}
    noise = residuals(series, rng)
    for case in CASES:
        jobs = [stream(case, noise, rng) for _ in range(arguments.jobs)]
        counts = [score(job, events_of(job), 30 if case == "restart" else 10) for job in jobs]
        total = {name: sum(count[name] for count in counts) for name in COUNTS}
        found = total["found"]
        print(
            f"{case:15s} found {found} of {total['changes']} (bar {BARS.get(case, 95)}%), "
            f"kind {100 * total['kind'] / max(found, 1):.0f}%, "
            f"factor within 2% {100 * total['factor'] / max(found, 1):.0f}% (bars 95%), "
            f"false per 10,000 {1e4 * total['false'] / total['steps']:.2f} (bar 0.3), "
            f"planned flagged {total['planned']} (bar 2%)",
            flush=True,
        )


if __name__ == "__main__":
    main()
