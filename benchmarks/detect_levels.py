"""Jobs whose level changes, with noise of real runs: what is told in time, what falsely.

    python benchmarks/detect.py --only levels [--seed 1] [--jobs 30] [--half develop|unseen]

A change counts as found when an event of its direction comes within 10 steps (30 after a restart),
on a ramp from its begin until 10 steps after it reaches 1.12x; its factor is held against the
ramp's level since the event's begin. "refined" is the factor at the end of the event's level;
"intervals" are those of 95%, around the factor at first and around the refined one. "false" are
events further than 20 steps from each change; on a ramp, upward ones are none until 30 steps after
its end. Reliefs have no factor to check. "recorded" are the false ones above 1 whose steps are at
least 10% longer than the 32 before in the real run itself: the noise has a slow stretch there.
"""

from __future__ import annotations

import numpy as np
from detect_bars import Bar
from detect_series import CASES, residuals, stream

from paceline import Detector
from paceline.detect.refinement import Refinement

DOWN = ("relief", "partial-relief", "faster")
BARS = {"small": 92, "restart": 80, "planned": 0}
COUNTS = ("changes", "found", "kind", "false", "up", "recorded", "steps", "planned", "plans")


def empty():
    """Counts of nothing."""
    lists = ("errors", "refined", "held", "refined held", "misses")
    return {**dict.fromkeys(COUNTS, 0), **{name: [] for name in lists}}


def events_of(job):
    detector = Detector(1, like=job.like)
    refinement = Refinement(detector)
    for step in range(len(job.x)):
        if step == job.restart:
            detector.go_back()
        work = None if job.workload is None else {"tokens": int(job.workload[step])}
        refinement.take(detector.update(step, job.x[step : step + 1], work))
    return refinement.events()


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
                    said = event.estimate  # None of a relief where the change was a partial one
                    count["held"].append(said is not None and said.low <= factor <= said.high)
                if event.refined is not None and job.ramp is None:
                    last = event.refined
                    count["refined"].append(abs(last.factor / factor - 1))
                    count["refined held"].append(last.low <= factor <= last.high)
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
            count["up"] += event.before_factor > 1
            count["recorded"] += event.before_factor > 1 and is_recorded(job.noise, event)
            count["misses"].append(("false", *brief(event)))
    if job.planned:
        count["plans"] = 1
        count["planned"] = any(abs(event.step - job.planned) <= 30 for event in events)
    count["steps"] = len(job.x)
    return count


def is_recorded(noise, event):
    """Whether the real run itself has a stretch at least 10% slow where an event is told."""
    before = noise[max(0, event.since_step - 32) : event.since_step]
    return np.median(noise[event.since_step : event.step + 1]) >= 1.1 * np.median(before)


def brief(event):
    """An event's kind, steps and factors."""
    return (
        event.kind,
        event.since_step,
        event.step,
        *np.round([event.factor, event.before_factor], 3).tolist(),
    )


def percent(values):
    """Share of true values, nan of none."""
    return 100 * np.mean(values) if len(values) else np.nan


def shown(name, count, found_bar, kind_bar=95):
    """A case's line, and its bars."""
    changes, found = max(count["changes"], 1), max(count["found"], 1)
    errors = 100 * np.array(count["errors"] or [np.nan])
    refined = percent(np.array(count["refined"]) < 0.02)
    factor_bar = 6 if name == "ramp" else 2
    share, kind = 100 * count["found"] / changes, 100 * count["kind"] / found
    false = 1e4 * count["false"] / count["steps"]
    print(
        f"{name:15s} found {share:5.1f}% of {count['changes']} (bar {found_bar}), "
        f"kind {kind:5.1f}% (bar {kind_bar}), "
        f"factor's median error {np.median(errors):.1f}% (bar {factor_bar}), "
        f"within 2% {percent(errors < 2):.0f}%, refined {refined:.0f}%, intervals "
        f"hold {percent(count['held']):.0f}, {percent(count['refined held']):.0f}% of the time, "
        f"false per 10,000 {false:.2f} (bar 0.3), recorded {count['recorded']} of {count['up']}, "
        f"planned flagged {count['planned']} of {count['plans']} (bar 2%)",
        flush=True,
    )
    bars = [
        Bar(f"{name}: found", share, found_bar, "%"),
        Bar(f"{name}: kind right", kind, kind_bar, "%"),
        Bar(f"{name}: factor's median error", np.median(errors), factor_bar, "%", most=True),
    ]
    return bars if changes > 1 else []


def all_bars(overall, worst):
    """Those of all cases together."""
    return [
        Bar("all: refined factor within 2%", percent(np.array(overall["refined"]) < 0.02), 95, "%"),
        Bar("all: intervals at first hold", percent(overall["held"]), 95, "%"),
        Bar("all: refined intervals hold", percent(overall["refined held"]), 95, "%"),
        Bar(
            "all: false events per 10,000 steps",
            1e4 * overall["false"] / overall["steps"], 0.3, "", most=True,
        ),
        Bar("worst case: false events per 10,000 steps", worst, 0.3, "", most=True),
        Bar(
            "planned changes flagged", 100 * overall["planned"] / max(overall["plans"], 1), 2, "%",
            most=True,
        ),
    ]  # fmt: skip


def report(series, half, seed, jobs, cases=CASES, misses=False):
    """Print all; the bars."""
    noise = residuals(series, np.random.default_rng(seed), half)
    overall, bars, worst = empty(), [], 0.0
    for case in cases:
        rng = np.random.default_rng([seed, CASES.index(case)])
        total = empty()
        for n in range(jobs):
            job = stream(case, noise, rng)
            count = score(job, events_of(job), 30 if case == "restart" else 10)
            for miss in count["misses"] if misses else ():
                print(f"  {case} {n}: {miss}")
            for name, value in count.items():
                total[name] += value
                overall[name] += value
        bars += shown(case, total, BARS.get(case, 95), 60 if case == "ramp" else 95)
        worst = max(worst, 1e4 * total["false"] / total["steps"])
    return [*bars, *shown("all", overall, 97), *all_bars(overall, worst)]
