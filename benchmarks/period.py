"""Periods of call logs: the paper's autocorrelation against ours, and the time for a million calls.

python benchmarks/period.py

The paper's (Falcon, 4.3): the first lag of at most 199 (the default of the usual implementation)
where the biased autocorrelation of the calls' numeric codes reaches 0.95.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from call_logs import Call, deepspeed, fsdp, make, megatron, of_length
from paceline.detect.period import find_period
from paceline.detect.steps_of_calls import step_times

THRESHOLD, LONGEST = 0.95, 199
TRIES = 4


def biased(codes: np.ndarray) -> int | None:
    """The first lag whose sum of products reaches 0.95 of the variance; None where none does."""
    x = codes - codes.mean()
    variance = float(x @ x)
    for lag in range(1, min(LONGEST, len(x) - 1) + 1):
        if variance and float(x[lag:] @ x[:-lag]) / variance >= THRESHOLD:
            return lag
    return None


def sequence(step: list[Call], repetitions: int, damage: int, seed: int) -> np.ndarray:
    """Codes from a random call on; so many calls missing, and as many extra."""
    rng = np.random.default_rng(seed)
    name = {call: code for code, call in enumerate(dict.fromkeys(step))}
    one = np.array([name[call] for call in step])
    codes = np.roll(np.tile(one, repetitions), -int(rng.integers(len(one))))
    codes = np.delete(codes, rng.choice(len(codes), damage, replace=False))
    for _ in range(damage):
        codes = np.insert(codes, rng.integers(len(codes) + 1), rng.integers(len(name)))
    return codes


def main() -> None:
    jobs = {
        "Megatron": megatron(),
        "Megatron, large": megatron(24, 16, 4),
        "FSDP": fsdp(),
        "FSDP, 80 layers": fsdp(80),
        "DeepSpeed": deepspeed(),
        **{f"{calls} calls": of_length(calls) for calls in (4, 5, 17, 100, 777, 2000)},
    }
    print(f"periods found exactly, of {TRIES}; damage d: d calls missing and d extra\n")
    head = [(repetitions, damage) for repetitions in (3, 5, 20) for damage in (0, 1)]
    print(f"{'job':18}{'period':>7}" + "".join(f"{r:>6}x, d {d}" for r, d in head))
    for name, step in jobs.items():
        cells = []
        for repetitions, damage in head:
            made = [sequence(step, repetitions, damage, seed) for seed in range(TRIES)]
            ours = [find_period(codes) for codes in made]
            right = sum(found is not None and found.calls == len(step) for found in ours)
            paper = sum(biased(codes) == len(step) for codes in made)
            cells.append(f"{right:>6} ({paper:2})")
        print(f"{name:18}{len(step):7}" + "".join(cells))
    print("(in brackets: the paper's)\n")
    made_log = make([megatron(24, 16, 4)] * 4, 156, noise=0.02)
    begin = time.perf_counter()
    found = step_times(made_log.log)
    seconds = time.perf_counter() - begin
    truth = float(np.median(np.diff(made_log.start_s[0])))
    print(
        f"{len(made_log.log):,} calls of 4 ranks: {seconds:.2f} s; iteration time "
        f"{found.iteration_s:.4f} s, truth {truth:.4f} s ({found.iteration_s / truth - 1:+.2%})"
    )


if __name__ == "__main__":
    main()
