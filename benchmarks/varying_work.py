"""Fail-slows of jobs whose planned work differs from step to step, as in reinforcement learning.

Made-up jobs: a step takes ``level * (1 - b + b w / mean w)`` with noise of 1 to 4%. Its tokens w
vary by 5 to 40% and may grow over the run. Every second job is slow for 100 steps. Compared are the
detector with the tokens, the same without its model of varying work (each work is a stage of its
own), and the detector without the tokens.

    python benchmarks/varying_work.py [--jobs 60] [--seed 1]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from unittest import mock

import numpy as np

import paceline
from paceline.detect import planned

STEPS, BEGIN, END = 500, 300, 400


def jobs(seed: int, number: int) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
    random = np.random.default_rng(seed)
    for n in range(number):
        spread, noise = random.uniform(0.05, 0.4), random.uniform(0.01, 0.04)
        share, growth = random.uniform(0, 1.2), random.choice([0.0, 0.5])
        factor = 1.0 if n % 2 else random.uniform(1.15, 1.6)
        work = random.lognormal(0, spread, STEPS) * (1 + growth * np.arange(STEPS) / STEPS)
        relative = np.maximum(1 - share + share * work / work.mean(), 0.1)
        times = 10 * relative * (1 + noise * random.standard_normal(STEPS))
        times[BEGIN:END] *= factor
        yield times, np.round(4e6 * work), factor


def judge(times: np.ndarray, tokens: np.ndarray | None, factor: float) -> tuple[bool, float, int]:
    """Whether the fail-slow is found and ended, its factor's error, and the number of others."""
    detector = paceline.Detector(1)
    events = []
    for step, duration in enumerate(times.tolist()):
        work = None if tokens is None else {"tokens": float(tokens[step])}
        events += detector.update(step, [duration], workload=work)
    begun = [e for e in events if e.kind == "onset" and BEGIN - 10 <= e.since_step <= BEGIN + 20]
    ended = [e for e in events if e.kind == "relief" and END - 10 <= e.since_step <= END + 20]
    others = len(events) - len(begun) - len(ended) if factor > 1 else len(events)
    error = abs(begun[0].factor / factor - 1) if begun and factor > 1 else float("nan")
    return bool(begun and ended), error, others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(
        f"{'':24}{'found, ended':>14}{'factor error':>14}{'other events':>14}{'healthy told':>19}"
    )
    for name, has_tokens, model in (
        ("varying work", True, planned.varies),
        ("stages of work", True, lambda works: False),
        ("without the work", False, planned.varies),
    ):
        found, errors, others, told = 0, [], 0, 0
        with mock.patch.object(planned, "varies", model):
            for times, tokens, factor in jobs(options.seed, options.jobs):
                ok, error, other = judge(times, tokens if has_tokens else None, factor)
                found += ok and factor > 1
                others += other if factor > 1 else 0
                told += factor == 1.0 and other > 0
                errors.append(error)
        half = options.jobs // 2
        print(
            f"{name:24}{found:>8} of {half:<3}{np.nanmedian(errors):>13.1%}{others:>14}"
            f"{told:>13} of {half:<3}"
        )


if __name__ == "__main__":
    main()
