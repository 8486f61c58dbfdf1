"""A GPU that is 10% slow among its peers: how often it is found, and healthy ones are accused.

    python benchmarks/detect.py --only gpus [--trials 400] [--seed 1]

Five validations, of 1% noise, 3% of the results disturbed by 1.3x. Healthy GPUs differ by a
standard deviation, normally or with a longer tail. "before" is the median and 4.5 robust standard
deviations, the rule until version 0.2; "best" is what Student's t finds with the same rate of
false names if it knows which GPU to test: no unbiased test that knows neither mean nor deviation
finds more.
"""

from __future__ import annotations

import statistics

import numpy as np
from detect_bars import Bar

from paceline.hosts.result import Result
from paceline.hosts.verdict import RECENT, judge_units, peer_bound
from paceline.robust import SIGMA_OF_MAD, t_quantile

FLOOR, NOISE, SLOW = 0.05, 0.01, 1.1
SPREADS = (0.005, 0.01, 0.015, 0.02, 0.03)
FLEETS = ((16, 1), (16, 4), (64, 1), (64, 8), (256, 1), (1024, 1))


def chips(rng, spread, gpus, tail):
    """[gpu] how much longer each takes than it should, standard deviation ``spread``."""
    if tail == "long":
        return 1 + spread * rng.standard_t(5, gpus) / np.sqrt(5 / 3)
    if tail == "skewed":
        return 1 + spread * (rng.gamma(4, 1, gpus) - 4) / 2
    return 1 + spread * rng.standard_normal(gpus)


def fleet(rng, slow, spread, gpus, tail="normal", validations=RECENT):
    """[validation, gpu] ratios to the low median; the first ``slow`` GPUs are 10% slow."""
    times = chips(rng, spread, gpus, tail) * (1 + NOISE * rng.standard_normal((validations, gpus)))
    times *= np.where(rng.random(times.shape) < 0.03, 1.3, 1.0)
    times[:, :slow] *= SLOW
    return times / np.sort(times, axis=1)[:, (gpus - 1) // 2, None]


def before(values, test):
    """The bound of the rule before."""
    usual = statistics.median_low(values)
    sigma = SIGMA_OF_MAD * statistics.median(abs(value - usual) for value in values)
    return max(usual * (1 + FLOOR), usual + 4.5 * sigma)


def rates(bound_of, rng, spread, gpus, slow, tail, trials):
    """Shares: slow GPUs found, healthy ones accused where none is slow."""
    found = wrong = 0
    for _ in range(trials):
        values = np.median(fleet(rng, slow, spread, gpus, tail), axis=0)
        found += int((values[:slow] > bound_of(values.tolist(), "gemm")).sum())
        values = np.median(fleet(rng, 0, spread, gpus, tail), axis=0)
        wrong += int((values > bound_of(values.tolist(), "gemm")).sum())
    return found / trials / slow, wrong / trials / gpus


def student(rng, spread, gpus, trials=20_000):
    """[trial] Student's t of a known candidate that is 10% slow, and of one that is healthy."""
    sigma = np.hypot(spread, NOISE * np.sqrt(np.pi / 2 / RECENT))
    peers = sigma * rng.standard_normal((trials, gpus - 1))
    healthy = sigma * rng.standard_normal(trials)
    error = peers.std(axis=1, ddof=1) * np.sqrt(1 + 1 / (gpus - 1))
    slow = SLOW * (1 + healthy) - 1
    return (slow - peers.mean(axis=1)) / error, (healthy - peers.mean(axis=1)) / error


def best(rng, spread, gpus, misses):
    """Share found by Student's t of a known candidate, with this rate of false names."""
    return float(np.mean(student(rng, spread, gpus)[0] > t_quantile(2 * misses, gpus - 2.0)))


def needed(rng, spread, gpus, share=0.95):
    """Rate of false names with which Student's t finds this share."""
    slow, healthy = student(rng, spread, gpus, 200_000)
    return float(np.mean(healthy > np.quantile(slow, 1 - share)))


def own_past(rng, spread, gpus, trials):
    """Shares against 40 earlier results: found, healthy accused."""
    found = wrong = 0
    for _ in range(trials):
        ratios = fleet(rng, 0, spread, gpus, validations=40 + RECENT)
        ratios[40:, 0] *= SLOW
        rows = [
            Result(t, "j", "n", gpu, "H100", "gemm", ratio, ratio, gpus)
            for t, row in enumerate(ratios)
            for gpu, ratio in enumerate(row.tolist())
        ]
        slow = {verdict.gpu for verdict in judge_units(rows) if verdict.slow}
        found, wrong = found + (0 in slow), wrong + len(slow - {0})
    return found / trials, wrong / trials / (gpus - 1)


def report(trials, seed):
    """Print all; the bars."""
    bars = []
    for tail in ("normal", "long", "skewed"):
        for gpus, slow in FLEETS if tail == "normal" else FLEETS[:3:2]:
            n = max(trials * 16 // gpus, 50)
            for spread in SPREADS:
                shares = [
                    rates(rule, np.random.default_rng(seed), spread, gpus, slow, tail, n)
                    for rule in (peer_bound, before)
                ]
                if (tail, gpus, slow, spread) in {("normal", 16, 1, s) for s in (0.01, 0.02)}:
                    share = 100 * shares[0][0]
                    text = f"10% slow GPU of 16 that differ by {spread:.0%}, found"
                    bars.append(Bar(text, share, 95, "%"))
                now, old = (f"{found:4.0%}, {wrong:.3%}" for found, wrong in shares)
                text = f"{tail:6s} {gpus:4d} GPUs, {slow} slow, differ by {spread:.1%}: "
                limit = ""
                if tail == "normal" and slow == 1 and shares[0][1] > 0:
                    share = best(np.random.default_rng(seed), spread, gpus, shares[0][1])
                    limit = f"; best {share:.0%}"
                print(f"{text}found, accused {now} (before {old}){limit}", flush=True)
    for gpus in (16, 64, 256):
        misses = needed(np.random.default_rng(seed), 0.02, gpus)
        print(f"95% of {gpus} GPUs that differ by 2% take {misses:.2%} of healthy ones accused")
    for spread in SPREADS:
        found, wrong = own_past(np.random.default_rng(seed), spread, 16, max(trials // 4, 20))
        print(f"own past, 16 GPUs differ by {spread:.1%}: found, accused {found:.0%}, {wrong:.3%}")
        if spread == 0.02:
            bars.append(Bar("10% slow GPU by its own past, chips 2%, found", 100 * found, 95, "%"))
    return bars
