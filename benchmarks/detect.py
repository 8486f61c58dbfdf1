"""How sure and how soon: the detector on labelled streams, beside a sliding window.

    python benchmarks/detect.py [--data ../shared/data/fail-slow]

Every detector is fed one step at a time. "bocd_v" is BOCD with
verification, "bocd" the same without; "window" calls a rank slow when the mean of the last 10
steps exceeds that of the 200 before them by 10%. Scores are those of ``score.py`` beside the data.
Last, the speed for 4,096 ranks on one core.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import time
from pathlib import Path

import numpy as np

from paceline import Detector
from paceline.detect.bocd import Bocd

DATA = Path(__file__).parents[2] / "shared" / "data" / "fail-slow"


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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    data = parser.parse_args().data
    if not (data / "score.py").is_file():
        sys.exit(f"{data} is not there; give --data")
    score = runpy.run_path(str(data / "score.py"))["score"]
    for name in ("comp", "comm", "benign"):
        with np.load(data / f"dev_{name}.npz") as streams:
            x = streams["x"].T
            for method in (ours, bocd_v, bocd, window):
                start = time.perf_counter()
                onsets = method(x)
                seconds = time.perf_counter() - start
                found = score(streams, onsets)
                print(
                    f"{name:7s} {method.__name__:7s} healthy series flagged "
                    f"{found['false_positive_series']:3d} of {found['healthy_series']:3d}, "
                    f"episodes "
                    f"{found['episodes_found']:2d} of {found['episodes']:2d}, delay p50 "
                    f"{found['delay_p50']} p95 {found['delay_p95']}, "
                    f"{x.size / seconds / 1e6:.1f} M samples/s"
                )
    x = np.random.default_rng(0).normal(1.0, 0.02, (2000, 4096))
    start = time.perf_counter()
    ours(x)
    print(f"4,096 ranks: {x.size / (time.perf_counter() - start) / 1e6:.1f} M samples/s")


if __name__ == "__main__":
    main()
