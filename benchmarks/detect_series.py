"""Real step times, and jobs whose level changes with noise drawn from them (``step-series``).

A stretch of real steps without its own changes is the noise: each run is divided by its running
median, and blocks of 64 steps are drawn from it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np
from shared_folder import SHARED

SERIES = SHARED / "data" / "step-series" / "step_series.npz"

BLOCK, BEFORE, STEPS = 64, 129, 2400
#: Rules are chosen on one half of the groups and judged on the other; a group is one job's runs.
HALVES = ("develop", "unseen", "all")
CASES = (
    "worsening", "partial relief", "overlap", "faster", "workload", "repeat", "flapping", "small",
    "ramp", "restart", "planned",
)  # fmt: skip


@dataclass
class Stream:
    """A job.

    Attributes:
        x: [step] seconds.
        changes: (step, kind, factor to healthy) that must be told.
        workload: [step] tokens, or None.
        like: earlier runs.
        restart: the step at which it goes back to a checkpoint, or None.
        planned: the step from which on plan makes steps longer, or None.
        ramp: the level at each step where it rises slowly, or None.
        noise: [step] the recorded noise in ``x``, around 1.
    """

    x: np.ndarray
    changes: list
    workload: np.ndarray | None = None
    like: list = field(default_factory=list)
    restart: int | None = None
    planned: int | None = None
    ramp: np.ndarray | None = None
    noise: np.ndarray | None = None


def in_half(group, half):
    """Whether a group of runs belongs to a half of the series."""
    return half == "all" or HALVES[zlib.crc32(str(group).encode()) % 2] == half


@dataclass
class Series:
    """All runs of the public half of ``shared/data/step-series``, one behind the other."""

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


def residuals(series, rng, half, runs=150):
    """Noise of stages of real runs, in which the workload stays: [step] each, around 1."""
    offsets, seconds = series.offsets, series.duration_s
    work = series.tokens.astype(np.int64) * 10_000 + series.window
    noise = []
    for run in rng.permutation(len(offsets) - 1):
        if not in_half(series.group[run], half):
            continue
        rows = slice(offsets[run] + 60, offsets[run + 1])
        cuts = np.flatnonzero(np.diff(work[rows])) + 1
        stages = np.split(seconds[rows].astype(float), cuts)
        x = max(stages, key=len)[24:]
        if len(x) >= 260:
            padded = np.pad(x, BEFORE // 2, mode="edge")
            middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, BEFORE), axis=1)
            noise.append(x / middle)
        if len(noise) == runs:
            break
    return noise


def more(run, rng, steps=STEPS):
    """[step] noise of the same run, other blocks."""
    starts = 2 * rng.integers(0, (len(run) - BLOCK) // 2, steps // BLOCK + 1)
    return np.concatenate([run[s : s + BLOCK] for s in starts])[:steps]


def stream(case, noise, rng):
    """One job of a case."""
    run = noise[rng.integers(len(noise))]
    drawn = more(run, rng)
    job = changed(case, run, drawn * rng.uniform(0.05, 5.0), rng)
    job.noise = drawn
    return job


def changed(case, run, x, rng):
    """The job of a case with this noise of a run."""
    at = int(rng.integers(600, 700))
    two = at + int(rng.integers(60, 400))
    three = two + int(rng.integers(60, 400))
    level = np.ones(len(x))
    if case == "worsening":
        a, b = rng.uniform(1.12, 1.5), rng.uniform(1.15, 2.5)
        level[at:three], level[two:three] = a, a * b
        changes = [(at, "onset", a), (two, "worsening", a * b), (three, "relief", 1)]
        return Stream(x * level, changes)
    if case == "partial relief":
        a, b = rng.uniform(1.12, 1.4), rng.uniform(1.2, 2.0)
        level[at:two], level[two:three] = a * b, a
        changes = [(at, "onset", a * b), (two, "partial-relief", a), (three, "relief", 1)]
        return Stream(x * level, changes)
    if case == "overlap":
        a, b = rng.uniform(1.15, 1.5), rng.uniform(1.15, 1.5)
        level[at:three] *= a
        level[two:] *= b
        changes = [(at, "onset", a), (two, "worsening", a * b), (three, "partial-relief", b)]
        return Stream(x * level, changes)
    if case == "faster":
        a, b = rng.uniform(0.65, 0.87), rng.uniform(1.15, 1.6)
        level[at:] = a
        level[two:three] *= b
        return Stream(x * level, [(at, "faster", a), (two, "onset", b), (three, "relief", 1)])
    if case in ("workload", "planned", "repeat"):
        a, b = rng.uniform(1.2, 2.0), rng.uniform(1.15, 1.6)
        tokens = np.where(np.arange(len(x)) < at, 4096, 8192)
        level[at:] = a
        like = [more(run, rng) * level for _ in range(3)] if case == "repeat" else []
        changes = []
        if case != "planned":
            level[two:three] *= b
            changes = [(two, "onset", b), (three, "relief", 1)]
        return Stream(x * level, changes, None if like else tokens, like, planned=at)
    if case == "flapping":
        a = rng.uniform(1.15, 1.6)
        changes = []
        for k in range(4):
            begin = at + 80 * k
            level[begin : begin + 40] = a
            changes += [(begin, "onset", a), (begin + 40, "relief", 1)]
        return Stream(x * level, changes)
    if case == "small":
        a = rng.uniform(1.105, 1.15)
        level[at:two] = a
        return Stream(x * level, [(at, "onset", a), (two, "relief", 1)])
    if case == "ramp":
        a, length = rng.uniform(1.3, 1.8), int(rng.integers(20, 100))
        level[at:] = np.interp(np.arange(len(x) - at), [0, length], [1, a])
        change = (at + int(np.argmax(level[at:] > 1.12)), "onset", a)
        return Stream(x * level, [change], ramp=level)
    a = rng.uniform(1.15, 1.6)
    level[at:] = a
    level[at : at + 6] *= np.linspace(1.8, 1.1, 6)
    return Stream(x * level, [(at, "onset", a)], restart=at)
