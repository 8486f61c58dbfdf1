"""How sure and how soon: the detector on labelled streams, beside a sliding window.

    python benchmarks/detect.py --only streams [--stream-seeds 1 2 3 4]

Every detector is fed one step at a time. "bocd_v" is BOCD with
verification, "bocd" the same without; "window" calls a rank slow when the mean of the last 10
steps exceeds that of the 200 before them by 10%. Scores are those of ``score.py`` beside the data.
``--stream-seeds`` adds streams like these that nothing was tuned on, for
ours: 1,000 ranks of each kind and seed. Last, the speed for 4,096 ranks on one core.
"""

from __future__ import annotations

import runpy
import sys
import time

import numpy as np
from detect_bars import Bar
from fail_slow_streams import streams
from shared_folder import SHARED

from paceline import Detector
from paceline.detect.bocd import Bocd

DATA = SHARED / "data" / "fail-slow"


def ours(x):
    detector = Detector(x.shape[1])
    onsets = [[] for _ in range(x.shape[1])]
    for step, row in enumerate(x):
        for event in detector.update(step, row):
            if event.kind == "onset":
                onsets[event.rank].append(event.step)
    return onsets


def bocd(x, verify=False):
    detector = Bocd(x.shape[1], verify=verify)
    onsets = [[] for _ in range(x.shape[1])]
    for step, row in enumerate(x):
        for event in detector.update(step, row):
            if event.kind == "onset":
                onsets[event.rank].append(event.step)
    return onsets


def bocd_v(x):
    return bocd(x, verify=True)


def window(x, short=10, long=200):
    total = np.vstack([np.zeros(x.shape[1]), np.cumsum(x, axis=0, dtype=np.float64)])
    onsets = [[] for _ in range(x.shape[1])]
    slow = np.zeros(x.shape[1], dtype=bool)
    for step in range(short + long, len(x)):
        now = (total[step + 1] - total[step + 1 - short]) / short
        before = (total[step + 1 - short] - total[step + 1 - short - long]) / long
        above = now > 1.1 * before
        for rank in np.flatnonzero(above & ~slow):
            onsets[rank].append(step)
        slow = above
    return onsets


def show(name, method, labelled, score):
    x = labelled["x"].T.copy()
    start = time.perf_counter()
    onsets = method(x)
    seconds = time.perf_counter() - start
    found = score(labelled, onsets)
    print(
        f"{name:8s} {method.__name__:7s} healthy series flagged "
        f"{found['false_positive_series']:3d} of {found['healthy_series']:4d}, "
        f"episodes {found['episodes_found']:3d} of {found['episodes']:3d}, delay p50 "
        f"{found['delay_p50']} p95 {found['delay_p95']}, {x.size / seconds / 1e6:.1f} M samples/s",
        flush=True,
    )
    return found


METHODS = (ours, bocd_v, bocd, window)


def report(seeds, methods=METHODS):
    """Print all; the bars."""
    if not (DATA / "score.py").is_file():
        sys.exit(f"{DATA} is not there")
    score, bars = runpy.run_path(str(DATA / "score.py"))["score"], []
    for name in ("comp", "comm", "benign"):
        with np.load(DATA / f"dev_{name}.npz") as labelled:
            found, *_ = [show(name, method, labelled, score) for method in methods]
        bars += bars_of(name, found)
        for seed in seeds:
            show(f"{name} {seed}", ours, streams(name, seed), score)
    x = np.random.default_rng(0).normal(1.0, 0.02, (2000, 4096))
    start = time.process_time()
    ours(x)
    print(f"4,096 ranks: {x.size / (time.process_time() - start) / 1e6:.1f} M samples/s of CPU")
    return bars


def bars_of(name, found):
    """Of the given streams: today's numbers, which must not become worse."""
    flagged = found["false_positive_series"]
    if name == "benign":
        return [Bar("dev streams, benign: flagged of 100", flagged, 2, "", most=True)]
    bars = [
        Bar(f"dev streams, {name}: healthy series flagged", flagged, 0, "", most=True),
        Bar(f"dev streams, {name}: episodes found", found["episodes_found"], found["episodes"], ""),
    ]
    if name == "comp":
        bars.append(Bar("dev streams, comp: delay p95", found["delay_p95"], 3.75, "", most=True))
    return bars
