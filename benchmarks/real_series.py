"""Real step times: how many runs the detector flags, and which faults put into them it finds.

    python benchmarks/real_series.py [--seed 55] [--runs 80] [--half develop|unseen]

Reads the public half of ``shared/data/step-series``: MLPerf runs are judged by their times alone,
the others also with their workload, or with up to five earlier runs of their script. A fault
multiplies all durations from a random step on; the first of the earlier runs is then faulty, too.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass

import numpy as np
from detect_levels import brief
from level_streams import HALVES, SERIES, in_half

from paceline import Detector
from paceline.detect import levels

FLAGS = ("onset", "worsening")
FACTORS = (1.15, 1.7)
MOST_EARLIER, FAULTS, WITHIN, SHORTEST = 5, 120, 10, 150


@dataclass
class Series:
    """All runs, one behind the other."""

    offsets: np.ndarray
    duration_s: np.ndarray
    tokens: np.ndarray
    window: np.ndarray
    group: np.ndarray
    mlperf: np.ndarray

    @classmethod
    def read(cls):
        with np.load(SERIES) as file:
            names = ("offsets", "duration_s", "tokens", "window", "group")
            mlperf = np.array(["mlcommons" in source for source in file["source"]])
            return cls(*(file[name] for name in names), mlperf)

    def rows(self, run):
        return slice(self.offsets[run], self.offsets[run + 1])

    def durations(self, run):
        return self.duration_s[self.rows(run)].astype(float)

    def is_scheduled(self, run):
        rows = self.rows(run)
        stages = np.unique(np.stack([self.tokens[rows], self.window[rows]]), axis=1)
        return stages.shape[1] > 1 and self.tokens[rows.start] > 0


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
    print(
        f"{name}, given {given}: {flagged} of {len(runs)} flagged, "
        f"{100 * flagged / max(len(runs), 1):.1f}%",
        flush=True,
    )


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
    print(
        f"{name}, given {given}: {found} of {n} faults found within {WITHIN} steps, "
        f"{1e4 * others / max(steps, 1):.2f} other events per 10,000 steps",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=55)
    parser.add_argument("--runs", type=int, default=80, help="drawn of each kind on 8 GPUs")
    parser.add_argument("--half", choices=HALVES, default="all")
    parser.add_argument("--misses", action="store_true", help="print each flag and each miss")
    args = parser.parse_args()
    levels.INTERPRETED_SAMPLES = 0  # compiled code tells the same, sooner
    rng, series = np.random.default_rng(args.seed), Series.read()
    chosen = np.array([in_half(group, args.half) for group in series.group])
    mlperf, others = np.flatnonzero(series.mlperf & chosen), np.flatnonzero(~series.mlperf & chosen)
    repeats = Counter(series.group[others].tolist())
    scheduled = [run for run in others if series.is_scheduled(run)]
    repeated = [run for run in others if repeats[str(series.group[run])] >= 4]
    scheduled = rng.permutation(scheduled)[: args.runs]
    repeated = rng.permutation(repeated)[: args.runs]
    flag(series, mlperf, "MLPerf", "nothing", args.misses)
    for runs, name, given in (
        (scheduled, "runs with a schedule", "workload"),
        (repeated, "runs with repeats", "earlier runs"),
    ):
        flag(series, runs, name, "nothing")
        flag(series, runs, name, given, args.misses)
    inject(series, rng.permutation(mlperf), "MLPerf", "nothing", rng, args.misses)
    inject(series, scheduled, "runs with a schedule", "workload", rng, args.misses)
    inject(series, repeated, "runs with repeats", "earlier runs", rng, args.misses)


if __name__ == "__main__":
    main()
