"""Jobs whose level changes, with noise of real runs: what is told in time, what falsely.

    python benchmarks/detect_levels.py [--seed 1] [--jobs 30] [--half develop|unseen]

A change counts as found when an event of its direction comes within 10 steps (30 after a restart),
on a ramp from its begin until 10 steps after it reaches 1.12x; its factor is held against the
ramp's level since the event's begin. "false" are events further than 20 steps from each change;
on a ramp, upward ones are none until 30 steps after its end. Reliefs have no factor to check.
"""

from __future__ import annotations

import argparse

import numpy as np
from level_streams import CASES, HALVES, SERIES, residuals, stream

from paceline import Detector
from paceline.detect import levels

DOWN = ("relief", "partial-relief", "faster")
BARS = {"small": 92, "restart": 80, "planned": 0}
COUNTS = ("changes", "found", "kind", "false", "steps", "planned", "plans")


def empty():
    """Counts of nothing."""
    return {**dict.fromkeys(COUNTS, 0), "errors": [], "misses": []}


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
    count, used = empty(), set()
    for at, kind, factor in job.changes:
        count["changes"] += 1
        for i, event in enumerate(events):
            since = at if job.ramp is None else np.argmax(job.ramp > 1)
            in_time = since - 3 <= event.step <= at + within
            if i not in used and in_time and (event.before_factor < 1) == (kind in DOWN):
                used.add(i)
                if job.ramp is not None:
                    factor = float(job.ramp[event.since_step : event.step + 1].mean())
                error = 0.0 if kind == "relief" else abs(event.factor / factor - 1)
                count["found"] += 1
                count["kind"] += event.kind == kind
                if kind != "relief":
                    count["errors"].append(error)
                if event.kind != kind or error >= 0.02:
                    count["misses"].append(("wrong", at, kind, round(factor, 3), *brief(event)))
                break
        else:
            count["misses"].append(("not found", at, kind, round(factor, 3)))
    for i, event in enumerate(events):
        near = any(
            min(abs(event.since_step - at), abs(event.step - at)) <= 20 for at, *_ in job.changes
        )
        if job.ramp is not None and event.before_factor > 1:
            near = since <= event.since_step <= np.argmax(job.ramp) + 30
        if i not in used and not near:
            count["false"] += 1
            count["misses"].append(("false", *brief(event)))
    if job.planned:
        count["plans"] = 1
        count["planned"] = any(abs(event.step - job.planned) <= 30 for event in events)
    count["steps"] = len(job.x)
    return count


def brief(event):
    """An event's kind, steps and factors."""
    return (
        event.kind,
        event.since_step,
        event.step,
        *np.round([event.factor, event.before_factor], 3).tolist(),
    )


def shown(name, count, found_bar, kind_bar=95):
    """A case's line."""
    changes, found = max(count["changes"], 1), max(count["found"], 1)
    errors = 100 * np.array(count["errors"] or [np.nan])
    print(
        f"{name:15s} found {100 * count['found'] / changes:5.1f}% of {count['changes']} "
        f"(bar {found_bar}), kind {100 * count['kind'] / found:5.1f}% (bar {kind_bar}), "
        f"factor's median error {np.median(errors):.1f}% (bar {6 if name == 'ramp' else 2}), "
        f"within 2% {100 * np.mean(errors < 2):.0f}% of the time, false per 10,000 "
        f"{1e4 * count['false'] / count['steps']:.2f} (bar 0.3), "
        f"planned flagged {count['planned']} of {count['plans']} (bar 2%)",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--half", choices=HALVES, default="all")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--misses", action="store_true", help="print each miss")
    arguments = parser.parse_args()
    levels.INTERPRETED_SAMPLES = 0  # compiled code tells the same, sooner
    with np.load(SERIES) as file:
        names = ("offsets", "duration_s", "tokens", "window", "group")
        series = {name: file[name] for name in names}
    noise = residuals(series, np.random.default_rng(arguments.seed), arguments.half)
    overall = empty()
    for case in arguments.cases:
        rng = np.random.default_rng([arguments.seed, CASES.index(case)])
        total = empty()
        for n in range(arguments.jobs):
            job = stream(case, noise, rng)
            count = score(job, events_of(job), 30 if case == "restart" else 10)
            for misses in count["misses"] if arguments.misses else ():
                print(f"  {case} {n}: {misses}")
            for name, value in count.items():
                total[name] += value
                overall[name] += value
        shown(case, total, BARS.get(case, 95), 60 if case == "ramp" else 95)
    shown("all", overall, 97)


if __name__ == "__main__":
    main()
