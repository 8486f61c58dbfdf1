"""How sure and how soon: the detector on labelled streams, beside a sliding window.

    python benchmarks/detect.py [--data ../shared/data/fail-slow] [--seeds 1 2 3 4]

Every detector is fed one step at a time. "bocd_v" is BOCD with
verification, "bocd" the same without; "window" calls a rank slow when the mean of the last 10
steps exceeds that of the 200 before them by 10%. Scores are those of ``score.py`` beside the data.
``--seeds`` adds streams like these that nothing was tuned on, for
ours: 1,000 ranks of each kind and seed. Last, the speed for 4,096 ranks on one core.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import time
from pathlib import Path

import numpy as np
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    arguments = parser.parse_args()
    data = arguments.data
    if not (data / "score.py").is_file():
        sys.exit(f"{data} is not there; give --data")
    score = runpy.run_path(str(data / "score.py"))["score"]
    for name in ("comp", "comm", "benign"):
        with np.load(data / f"dev_{name}.npz") as labelled:
            for method in (ours, bocd_v, bocd, window):
                show(name, method, labelled, score)
        for seed in arguments.seeds:
            show(f"{name} {seed}", ours, streams(name, seed), score)
    x = np.random.default_rng(0).normal(1.0, 0.02, (2000, 4096))
    start = time.perf_counter()
    ours(x)
    print(f"4,096 ranks: {x.size / (time.perf_counter() - start) / 1e6:.1f} M samples/s")


if __name__ == "__main__":
    main()
