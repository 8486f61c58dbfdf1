"""Real step times: how many runs the detector flags, and which faults put into them it finds.

    python benchmarks/detect.py --only real [--seed 55] [--runs 80] [--half develop|unseen]

MLPerf runs are judged by their times alone,
the others also with their workload, or with up to five earlier runs of their script. A fault
multiplies all durations from a random step on; the first of the earlier runs is then faulty, too.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from detect_bars import Bar
from detect_levels import brief
from detect_series import in_half

from paceline import Detector

FLAGS = ("onset", "worsening")
FACTORS = (1.15, 1.7)
MOST_EARLIER, FAULTS, WITHIN, SHORTEST = 5, 120, 10, 150


def events(series, run, given, fault=None):
    """What the detector says of a run that is ``given`` nothing, its workload or earlier runs."""
    rows, durations = series.rows(run), series.durations(run)
    earlier = []
    if given == "earlier runs":
        others = [n for n in np.flatnonzero(series.group == series.group[run]) if n != run]
        earlier = [series.durations(other) for other in others[:MOST_EARLIER]]
    if fault is not None:
        at, factor = fault
        durations[at:] *= factor
        if earlier:
            earlier[0][len(earlier[0]) // 3 :] *= 1.3
    detector, told = Detector(1, like=earlier), []
    for step, row in enumerate(range(rows.start, rows.stop)):
        work = {"tokens": int(series.tokens[row]), "window": int(series.window[row])}
        sample = durations[step : step + 1]
        told += detector.update(step, sample, work if given == "workload" else None)
    return [event for event in told if event.kind != "clock-jump"]


def flag(series, runs, name, given, misses=False):
    flagged = 0
    for run in runs:
        told = [event for event in events(series, run, given) if event.kind in FLAGS]
        flagged += bool(told)
        if told and misses:
            print(f"  run {run}:", *map(brief, told))
    share = 100 * flagged / max(len(runs), 1)
    print(f"{name}, given {given}: {flagged} of {len(runs)} flagged, {share:.1f}%", flush=True)
    return share


def inject(series, runs, name, given, rng, misses=False):
    found = others = steps = n = 0
    for run in runs[:FAULTS]:
        size = len(series.durations(run))
        if size < SHORTEST:
            continue
        factor, at = rng.uniform(*FACTORS), int(rng.integers(80, size - 30))
        told = events(series, run, given, (at, factor))
        hits = [e for e in told if e.kind in FLAGS and at <= e.step <= at + WITHIN]
        found, others = found + bool(hits), others + len(told) - len(hits)
        steps, n = steps + size, n + 1
        if misses and (not hits or len(told) > len(hits)):
            print(f"  run {run}: {factor:.2f}x at {at}:", *map(brief, told))
    false = 1e4 * others / max(steps, 1)
    print(
        f"{name}, given {given}: {found} of {n} faults found within {WITHIN} steps, "
        f"{false:.2f} other events per 10,000 steps",
        flush=True,
    )
    return 100 * found / max(n, 1), false


def report(series, half, seed, n_runs, misses=False):
    """Print all; the bars."""
    rng = np.random.default_rng(seed)
    chosen = np.array([in_half(group, half) for group in series.group])
    mlperf, others = np.flatnonzero(series.mlperf & chosen), np.flatnonzero(~series.mlperf & chosen)
    repeats = Counter(series.group[others].tolist())
    scheduled = [run for run in others if series.is_scheduled(run)]
    repeated = [run for run in others if repeats[str(series.group[run])] >= 4]
    scheduled = rng.permutation(scheduled)[:n_runs]
    repeated = rng.permutation(repeated)[:n_runs]
    share = flag(series, mlperf, "MLPerf", "nothing", misses)
    bars = [Bar("real MLPerf runs flagged, times only", share, 5, "%", most=True)]
    kinds = (
        (scheduled, "runs with a schedule", "workload", 90),
        (repeated, "runs with repeats", "earlier runs", 97),
    )
    for runs, name, given, _ in kinds:
        flag(series, runs, name, "nothing")
        share = flag(series, runs, name, given, misses)
        bars.append(Bar(f"real {name} flagged, with {given}", share, 4, "%", most=True))
    inject(series, rng.permutation(mlperf), "MLPerf", "nothing", rng, misses)
    for runs, name, given, bar in kinds:
        found, false = inject(series, runs, name, given, rng, misses)
        bars.append(Bar(f"faults in real {name} found, with {given}", found, bar, "%"))
        text = f"other events per 10,000 steps of {name}, with {given}"
        bars.append(Bar(text, false, 0.5, "", most=True))
    return bars
