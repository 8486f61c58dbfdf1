"""Does the diagnosis name the truth? Synthesised jobs with known causes, and a confusion matrix.

    python benchmarks/diagnose.py                # 360 jobs, seeds 0
    python benchmarks/diagnose.py --seed 7       # seeds that were not used while tuning
    python benchmarks/diagnose.py --misses       # and every job that was misjudged

Sizes from 4 x 2 to 64 x 8; each cause alone at three strengths, pairs of causes, healthy jobs with
1 to 3% noise. Single causes and pairs count where S >= 1.1.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.synth import SlowLink, SlowNic, SlowWorker, SynthSpec, synthesize
from paceline.whatif import analyze

SIZES = ((4, 2), (8, 1), (4, 4), (8, 4), (16, 4), (32, 8), (64, 8))
CAUSES = ("worker", "stage-imbalance", "sequence-length", "gc", "link", "dp-network")


@dataclass(frozen=True)
class Case:
    truth: tuple[str, ...]
    spec: SynthSpec


def with_cause(spec: SynthSpec, cause: str, strength: int, rng: np.random.Generator) -> SynthSpec:
    """The job with one more cause, weak (0), middling (1) or strong (2)."""
    dp, pp = int(rng.integers(spec.dp)), int(rng.integers(spec.pp))
    if cause == "worker":
        return replace(spec, slow_workers=(SlowWorker(dp, pp, (1.25, 1.5, 2.2)[strength]),))
    if cause == "stage-imbalance":
        return replace(spec, slow_last_stage=((1.4, 1.25), (1.7, 1.4), (2.1, 1.6))[strength])
    if cause == "sequence-length":
        return replace(spec, sequence_imbalance=(0.15, 0.3, 0.5)[strength])
    if cause == "gc":
        return replace(spec, gc_pauses=((0.005, 0.15), (0.01, 0.25), (0.02, 0.4))[strength])
    if cause == "link":
        pp = int(rng.integers(max(1, spec.pp - 1)))
        return replace(spec, slow_links=(SlowLink(dp, pp, (25.0, 50.0, 100.0)[strength]),))
    factor = (10.0, 20.0, 40.0)[strength]
    return replace(spec, slow_nics=(SlowNic(dp, 0, factor, float(rng.choice([1.0, 0.4]))),))


def possible(cause: str, dp: int, pp: int) -> bool:
    """Whether the cause can show at all in a job of this size."""
    if cause in ("stage-imbalance", "dp-network", "link"):
        return pp > 1
    return True


def cases(seed: int) -> list[Case]:
    rng = np.random.default_rng(seed)
    found = []
    number = seed * 100_000

    def base(dp: int, pp: int) -> SynthSpec:
        nonlocal number
        number += 1
        noise = float(rng.uniform(0.01, 0.03))
        return SynthSpec(
            dp=dp, pp=pp, microbatches=max(8, 2 * pp), steps=8, noise=noise, seed=number
        )

    for dp, pp in SIZES:
        for cause in (cause for cause in CAUSES if possible(cause, dp, pp)):
            found.extend(
                Case((cause,), with_cause(base(dp, pp), cause, strength, rng))
                for strength in range(3)
            )
        for one, other in combinations(CAUSES, 2):
            if possible(one, dp, pp) and possible(other, dp, pp):
                spec = with_cause(base(dp, pp), one, 1 + int(rng.integers(2)), rng)
                found.append(
                    Case((one, other), with_cause(spec, other, 1 + int(rng.integers(2)), rng))
                )
        found.extend(Case((), base(dp, pp)) for _ in range(20))
    return found


def judge(case: Case) -> tuple[float, list[tuple[str, float]]]:
    measured = from_trace(synthesize(case.spec))
    result = analyze(measured)
    found = diagnose(measured, result).findings
    return result.slowdown, [(f.cause, f.share or 0.0) for f in found if f.cause != "unexplained"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--misses", action="store_true", help="list what was misjudged")
    args = parser.parse_args()
    begin = time.perf_counter()
    jobs = cases(args.seed)
    with ProcessPoolExecutor() as pool:
        judged = list(pool.map(judge, jobs, chunksize=4))
    matrix: Counter[tuple[str, str]] = Counter()
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for case, (slowdown, found) in zip(jobs, judged, strict=True):
        sort = ("healthy", "single", "pair")[len(case.truth)]
        if case.truth and slowdown < 1.1:
            continue
        named = [cause for cause, _ in found]
        total[sort] += 1
        good = {
            "healthy": not named,
            "single": named[:1] == list(case.truth),
            "pair": set(case.truth) <= set(named),
        }[sort]
        right[sort] += good
        if sort == "single":
            matrix[case.truth[0], named[0] if named else "nothing"] += 1
        if args.misses and not good:
            size = f"{case.spec.dp}x{case.spec.pp}"
            shown = ", ".join(f"{cause} {share:.2f}" for cause, share in found)
            print(f"{size:6} S {slowdown:.2f}  truth {' + '.join(case.truth) or '-':32} {shown}")
    columns = (*CAUSES, "launch-delay", "drift", "nothing")
    print(f"{len(jobs)} jobs, {time.perf_counter() - begin:.0f} s; top cause by truth (S >= 1.1):")
    print(" " * 18 + "".join(f"{column[:9]:>10}" for column in columns))
    for truth in CAUSES:
        print(f"{truth:18}" + "".join(f"{matrix[truth, column]:10}" for column in columns))
    for sort, needed in (("single", 0.95), ("pair", 0.85), ("healthy", 0.98)):
        rate = right[sort] / max(1, total[sort])
        print(
            f"{sort:8} right {right[sort]:4} of {total[sort]:4} = {rate:.1%} (needed {needed:.0%})"
        )


if __name__ == "__main__":
    main()
