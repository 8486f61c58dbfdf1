"""How even do the heuristics make ranks and microbatches, how fast, and what does that gain?

    python benchmarks/balance.py            # everything, about a minute
    python benchmarks/balance.py --quick    # without the job of 1,024 ranks

Part 1: one step's sequences over DP ranks: greedy against differencing (Karmarkar-Karp); then over
the microbatches of each rank: greedy, greedy and local search, differencing (which knows no limit
of tokens). "over" is the dearest above the mean (of all ranks; of the microbatches of a rank, mean
over ranks). Part 2: what plans and orders gain on a synthesised job of 32K tokens per microbatch
(what-if paper, 5.3: 23.9% of throughput, which is 19.3% of the step time). Part 3: micro-batch
redistribution for 10,000 replicas, and the paper's least variance against the least maximum.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.remedies.microbatches import redistribute
from paceline.remedies.partition import Groups, differencing, greedy, improve, pack
from paceline.remedies.remedy import Case, predicted_step_s
from paceline.remedies.sequence_assign import plan_sequences
from paceline.remedies.sequence_search import balance_of
from paceline.synth import SynthSpec, draw_seqlens, synthesize
from paceline.trace.seqlens import SeqLens
from paceline.whatif import analyze

MAX_TOKENS = 32_768


def timed(call: Callable[[], object]) -> tuple[object, float]:
    """The result, and the seconds of the fastest of three calls after the first, which compiles."""
    result = call()
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return result, min(seconds)


def uniform(dp: int, microbatches: int, per_microbatch: int, rng: np.random.Generator) -> SeqLens:
    """Sequences between 1/2 and 3/2 of a fair share: none of them is a microbatch of its own."""
    mean = 0.85 * MAX_TOKENS / per_microbatch
    shape = (dp * microbatches, per_microbatch)
    lengths = rng.uniform(0.5 * mean, 1.15 * mean, shape).astype(np.int64)
    end = per_microbatch * (1 + np.arange(dp * microbatches))
    ptr = np.stack([end - per_microbatch, end], axis=1).reshape(1, dp, microbatches, 2)
    return SeqLens(np.zeros(1, dtype=np.int64), ptr, lengths.ravel())


def heavy(dp: int, microbatches: int, per_microbatch: int, rng: np.random.Generator) -> SeqLens:
    """Long-tailed, with a fixed number of sequences per microbatch."""
    shape = (dp * microbatches, per_microbatch)
    lengths = rng.lognormal(0.0, 1.4, shape)
    lengths *= MAX_TOKENS / lengths.sum(axis=1, keepdims=True)
    end = per_microbatch * (1 + np.arange(dp * microbatches))
    ptr = np.stack([end - per_microbatch, end], axis=1).reshape(1, dp, microbatches, 2)
    whole = np.maximum(1, np.floor(lengths)).astype(np.int64)
    return SeqLens(np.zeros(1, dtype=np.int64), ptr, whole.ravel())


def over(cost: np.ndarray, found: np.ndarray, n_groups: int, n_bins: int) -> float:
    load = np.bincount(found, cost, n_groups * n_bins).reshape(n_groups, n_bins)
    return float((load.max(axis=1) / load.mean(axis=1)).mean() - 1)


def heuristics(name: str, seqlens: SeqLens) -> None:
    _, dp, microbatches, _ = seqlens.ptr.shape
    lengths = np.sort(seqlens.lengths)[::-1]
    squares = lengths.astype(np.float64) ** 2
    cost = 0.3 / squares.sum() * squares + 0.7 / lengths.sum() * lengths
    print(f"{name}: {dp} ranks x {microbatches} microbatches, {len(lengths):,} sequences")
    share = np.ones(dp)
    for label, call in (
        ("greedy", lambda: greedy(cost, share)),
        ("differencing", lambda: differencing(cost, dp)),
    ):
        rank, seconds = timed(call)
        print(f"  ranks         {label:24} over {over(cost, rank, 1, dp):9.2e}  {seconds:6.3f} s")
    order = np.argsort(rank, kind="stable")
    item_ptr = np.append(0, np.cumsum(np.bincount(rank, minlength=dp)))
    groups = Groups(
        cost[order],
        lengths[order],
        item_ptr,
        np.full(dp * microbatches, MAX_TOKENS),
        np.arange(dp + 1) * microbatches,
    )
    packed, seconds = timed(lambda: pack(groups))
    homeless = int((packed < 0).sum())
    housed = packed >= 0
    even = over(groups.cost[housed], packed[housed], dp, microbatches)
    print(f"  microbatches  {'greedy':24} over {even:9.2e}  {seconds:6.3f} s, {homeless} homeless")
    better, more = timed(lambda: improve(groups, packed))
    even = over(groups.cost[housed], better[housed], dp, microbatches)
    print(f"  microbatches  {'greedy + local search':24} over {even:9.2e}  {seconds + more:6.3f} s")
    begin = time.perf_counter()
    parts = [
        differencing(groups.cost[low:high], microbatches) + i * microbatches
        for i, (low, high) in enumerate(pairwise(item_ptr.tolist()))
    ]
    found = np.concatenate(parts)
    seconds = time.perf_counter() - begin
    too_full = float((np.bincount(found, groups.size) > MAX_TOKENS).mean())
    even = over(groups.cost, found, dp, microbatches)
    print(
        f"  microbatches  {'differencing':24} over {even:9.2e}  {seconds:6.3f} s, "
        f"{too_full:.0%} above the limit of tokens"
    )
    model = np.array([0.3 / squares.sum(), 0.7 / lengths.sum(), 0.0])
    for limit in (MAX_TOKENS, MAX_TOKENS * 5 // 4):
        plan, seconds = timed(partial(plan_sequences, seqlens, model, limit))
        print(f"  whole plan of a step, {limit} tokens: {plan.exchanged[0]}, {seconds:.3f} s")


def gains() -> None:
    print("gains on a 32K job, noise 2%: exchange and order; the best predicted and re-synthesised")
    for dp, pp, n, vpp in (
        (8, 1, 16, 1),
        (8, 4, 16, 1),
        (32, 2, 8, 1),
        (16, 8, 32, 1),
        (8, 4, 16, 2),
    ):
        seqlens = draw_seqlens(dp, n, 6, MAX_TOKENS)
        spec = SynthSpec(
            dp=dp, pp=pp, microbatches=n, vpp=vpp, steps=6, noise=0.02, seqlens=seqlens
        )
        measured = from_trace(synthesize(spec))
        result = analyze(measured)
        case = Case(measured, result, diagnose(measured, result), seqlens=seqlens)
        begin = time.perf_counter()
        found = balance_of(case)
        seconds = time.perf_counter() - begin
        again = analyze(synthesize(replace(spec, seqlens=found.plan.after))).simulated_s.mean()
        before = result.simulated_s.mean()
        table: dict[str, float] = {}
        for (what, _), gain in found.gains.items():
            table[what] = max(gain, table.get(what, -1.0))
        shown = ", ".join(f"{what} {gain:.1%}" for what, gain in table.items())
        predicted = 1 - predicted_step_s(found.durations).mean() / before
        print(
            f"  {dp}x{pp}, {n} microbatches, vpp {vpp}: S {result.slowdown:.2f}; {shown}; best "
            f"({found.plan.mostly}, {found.order}) {predicted:.2%}, truly "
            f"{1 - again / before:.2%}; {seconds:.2f} s"
        )


def least_variance(t: np.ndarray, total: int) -> np.ndarray:
    """Equation 1 of the falcon paper, by exchanges until none helps."""
    m = np.full(len(t), total // len(t))
    m[: total - m.sum()] += 1
    while True:
        best, pair = np.var(m * t), None
        for i in np.flatnonzero(m > 1):
            for j in range(len(t)):
                if i != j:
                    m[i], m[j] = m[i] - 1, m[j] + 1
                    if np.var(m * t) < best - 1e-15:
                        best, pair = np.var(m * t), (i, j)
                    m[i], m[j] = m[i] + 1, m[j] - 1
        if pair is None:
            return m
        m[pair[0]] -= 1
        m[pair[1]] += 1


def microbatches() -> None:
    rng = np.random.default_rng(0)
    for n in (512, 10_000):
        slow = np.where(rng.random(n) < 0.05, rng.uniform(1.2, 3.0, n), 1.0) * rng.lognormal(
            0, 0.01, n
        )
        times = (np.arange(1, 129) + 7) * slow[:, None]
        now = np.full(n, 64)
        counts, seconds = timed(partial(redistribute, times, 1, int(now.sum()), now))
        largest = times[np.arange(n), counts - 1].max() / times[:, 63].max()
        print(
            f"  {n} replicas x 128 numbers: {seconds * 1e3:.1f} ms, {largest:.2f} of the time now"
        )
    worse = []
    for _ in range(200):
        t = rng.uniform(1.0, 3.0, 4)
        total = int(rng.integers(12, 40))
        times = np.arange(1, total + 1) * t[:, None]
        exact = redistribute(times, 1, total, np.full(4, total // 4))
        worse.append((least_variance(t, total) * t).max() / (exact * t).max() - 1)
    late = np.array(worse) > 1e-9
    print(
        f"  least variance misses the least maximum in {late.mean():.0%} of 200 jobs of 4 "
        f"replicas, by up to {max(worse):.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without the job of 1,024 ranks")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    heuristics("long-tailed, packed", draw_seqlens(8, 16, 1, MAX_TOKENS))
    heuristics("alike", uniform(8, 16, 6, rng))
    heuristics("long-tailed, 32 per microbatch", heavy(8, 16, 32, rng))
    if not args.quick:
        heuristics("long-tailed, packed", draw_seqlens(1024, 64, 1, MAX_TOKENS))
        heuristics("long-tailed, 32 per microbatch", heavy(1024, 64, 32, rng))
    gains()
    print("micro-batch redistribution")
    microbatches()


if __name__ == "__main__":
    main()
