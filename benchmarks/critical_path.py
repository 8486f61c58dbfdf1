"""The critical path and slack of one large job, beside the analysis that they are a part of.

    python benchmarks/critical_path.py                 # dp 128, pp 16, 64 microbatches, 10 steps
    python benchmarks/critical_path.py --dp 8 --pp 4 --microbatches 16 --steps 1000

The peer: the analysis without them, in the same process. Each is run three times; the best counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from paceline.graph import Measured, from_trace
from paceline.simulate import ends
from paceline.synth import SlowWorker, SynthSpec, synthesize
from paceline.whatif import analyze
from paceline.whatif.critical_path import path_of
from paceline.whatif.segments import Replay
from paceline.whatif.slack import slack_of, slack_summary


def best(work: Callable[[], object], runs: int = 3) -> float:
    """Seconds of the fastest run."""
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dp", type=int, default=128)
    parser.add_argument("--pp", type=int, default=16)
    parser.add_argument("--microbatches", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    spec = SynthSpec(
        dp=args.dp,
        pp=args.pp,
        microbatches=args.microbatches,
        steps=args.steps,
        slow_workers=(SlowWorker(args.dp // 2, args.pp // 2, 1.5),),
        sequence_imbalance=0.1,
    )
    measured = from_trace(synthesize(spec))
    n_ops = len(measured.durations.values)
    result = analyze(measured)  # loads the compiled walk
    path, step_s = result.critical_path, result.critical_path.step_s
    print(f"{n_ops:,} operations, {len(path.op):,} segments, {np.diff(path.ptr).mean():.0f} a step")
    whole = best(lambda: analyze(measured))
    ends_s = best(lambda: [first for first, _ in ends(measured.durations, delays=measured.delays)])
    path_s = best(lambda: _path(measured))
    summary_s = best(lambda: slack_summary(measured, step_s))
    for name, seconds in (
        ("analysis, all of it", whole),
        ("  its critical path", path_s),
        ("    of which ends of all operations", ends_s),
        ("  its summary of the slack", summary_s),
        ("analysis without them", whole - path_s - summary_s),
        ("slack of every operation (on demand)", best(lambda: slack_of(measured))),
    ):
        print(f"{name:40}{seconds:9.3f} s{seconds / n_ops * 1e9:9.1f} ns per operation")


def _path(measured: Measured) -> object:
    parts = ends(measured.durations, delays=measured.delays)
    replay = Replay(measured.durations, measured.delays)
    return path_of(measured.graph, measured.steps, parts, replay)


if __name__ == "__main__":
    main()
