"""Mitigation: the falcon paper's cases, how fast the searches are, how good the planner is.

    python benchmarks/mitigate.py            # everything, about two minutes
    python benchmarks/mitigate.py --quick    # without the random lives

Part 1: S2 against its bound (D-1)f / ((D-1)f + 1) (Figures 13, 14), S3 (Figures 15, 16), both
(Figure 17). What the paper measured stands beside; its number of microbatches and the severities
are not in its text, ours are printed. Part 2: Figure 20 and Table 7. Part 3: how long S2's
allocation and S3's placement take. Part 4: random lives, planner against oracle, under both rules.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from paceline.mitigate.fault import Fault
from paceline.mitigate.job_model import JobModel
from paceline.mitigate.life import FailSlow, Scenario, compare, live
from paceline.mitigate.life_yaml import load_scenario
from paceline.mitigate.planner import Planner
from paceline.mitigate.strategies import OVERHEAD_S, Option, Strategies
from paceline.mitigate.topology import best_placement
from paceline.remedies.microbatches import redistribute
from paceline.synth import SynthSpec
from paceline.trace import OpKind

WEAK_TO_SEVERE = (1.2, 1.5, 2.0)


def job(dp: int, pp: int, microbatches: int, comm_share: float = 0.02) -> JobModel:
    """A job whose gathers and reductions are so large a share of 1 s of computes."""
    forward = 1 / (3 * (microbatches + pp - 1))
    spec = SynthSpec(dp=dp, pp=pp, microbatches=microbatches, noise=0.0)
    spec.base_s.update(
        {
            OpKind.FORWARD_COMPUTE: forward,
            OpKind.BACKWARD_COMPUTE: 2 * forward,
            OpKind.PARAMS_ALL_GATHER: comm_share / 3,
            OpKind.GRADS_REDUCE_SCATTER: comm_share * 2 / 3,
            OpKind.OPTIMIZER: 0.0,
            OpKind.OPTIMIZER_CLIP_MAIN_GRAD: 0.0,
            OpKind.EMBEDDING_GRADS_ALL_REDUCE: 0.0,
        }
    )
    for kind in range(OpKind.FORWARD_SEND, OpKind.BACKWARD_RECV + 1):
        spec.base_s[OpKind(kind)] = forward / 20
    return JobModel.of_spec(spec)


def option(model: JobModel, faults: frozenset[Fault], strategy: str) -> Option:
    options = Strategies(model, OVERHEAD_S).options(model.plain, faults)
    return next(each for each in options if each.strategy == strategy)


def slowdowns(model: JobModel, faults: frozenset[Fault], strategy: str) -> tuple[float, float]:
    """Before and after a strategy."""
    found = option(model, faults, strategy)
    after_s = found.step_s if found.applicable else found.now_s
    return found.now_s / found.healthy_s, after_s / found.healthy_s


def reduced(before: float, after: float) -> float:
    return (before - after) / (before - 1) if before > 1 else 0.0


def figure_13() -> None:
    print(
        "Figure 13: S2, one slow GPU of 8; 32 microbatches a replica (paper: 55, 78, 65%, max 83%)"
    )
    print("   D    factor  slowdown  after  reduced  bound")
    for dp, pp in ((2, 4), (4, 2), (8, 1)):
        model = job(dp, pp, 32, comm_share=0.0)
        for factor in WEAK_TO_SEVERE:
            faults = frozenset([Fault("compute", (0, 0), factor)])
            before, after = slowdowns(model, faults, "s2")
            bound = (dp - 1) * factor / ((dp - 1) * factor + 1)
            print(
                f"  {dp:2}  {factor:8.1f}  {before:8.2f}  {after:5.2f}  "
                f"{reduced(before, after):7.1%}  {bound:5.1%}"
            )


def figure_14() -> None:
    print("Figure 14: S2, slow replicas of 4 (paper: 1.9x to 1.2x for one, nothing for four)")
    model = job(4, 2, 32)
    for slow in range(1, 5):
        faults = frozenset(Fault("compute", (dp, 0), 2.0) for dp in range(slow))
        before, after = slowdowns(model, faults, "s2")
        print(f"  {slow} slow: {before:.2f}x to {after:.2f}x, {reduced(before, after):.1%}")


def between_nodes(dp: int, pp: int, factor: float) -> frozenset[Fault]:
    """Two nodes with half of the replicas each: the rings cross the congested link."""
    first = [(d, p) for d in range(dp // 2) for p in range(pp)]
    second = [(d, p) for d in range(dp // 2, dp) for p in range(pp)]
    return frozenset(Fault("link", a, factor, b) for a in first for b in second)


def figure_15() -> None:
    print(
        "Figure 15: S3, 16 GPUs, congestion between 2 nodes (paper: 53.7% at PP 4, 24.8% at PP 8)"
    )
    for dp, pp in ((4, 4), (2, 8)):
        model = job(dp, pp, 16, comm_share=0.3)
        row = []
        for factor in (2.0, 4.0, 8.0):
            before, after = slowdowns(model, between_nodes(dp, pp, factor), "s3")
            row.append(f"{before:.2f}x to {after:.2f}x ({reduced(before, after):.0%})")
        print(f"  PP {pp}: " + ", ".join(row))


def figure_16() -> None:
    print("Figure 16: S3, (4 DP, 4 PP), slow pairs (paper: 1.6 to 1.3, 1.7 to 1.3, 1.9 to 1.7)")
    for what, kind in (("NICs", "nic"), ("computes", "compute")):
        model = job(4, 4, 16, comm_share=0.3)
        row = []
        for pairs in (1, 2, 3):
            at = [((0, 1), (1, 1)), ((2, 2), (3, 2)), ((0, 3), (1, 3))][:pairs]
            faults = frozenset(Fault(kind, end, 2.0) for pair in at for end in pair)
            before, after = slowdowns(model, faults, "s3")
            row.append(f"{pairs}: {before:.2f}x to {after:.2f}x")
        print(f"  slow {what}, pairs " + ", ".join(row))


def figure_17() -> None:
    print("Figure 17: steps/s (paper: 1.7, 1.0, S3 1.3, slow compute 0.5, S2 0.9, restart 1.7)")
    model = job(4, 4, 16, comm_share=0.3)
    scale = 1 / 1.7 / model.healthy_s
    overhead_s = {"s2": 1 / scale, "s3": 30 / scale, "s4": 150 / scale}
    planner = Planner(Strategies(model, overhead_s))
    congested = between_nodes(4, 4, 6.0)
    slow = frozenset([Fault("compute", (2, 1), 2.5)])
    clock, active, done = 0.0, frozenset[Fault](), False
    print(f"  t = {0:4.0f} s: {1 / (model.healthy_s * scale):.2f} steps/s")
    for step in range(2000):
        for at, faults in ((30.0, congested), (200.0, slow)):
            if clock >= at and not faults <= active:
                active |= faults
                for fault in sorted(faults):
                    planner.onset(fault, step)
                speed = 1 / (model.step_s(planner.state.setting, active) * scale)
                print(f"  t = {clock:4.0f} s: {speed:.2f} steps/s: {len(faults)} fail-slows")
        step_s = model.step_s(planner.state.setting, active)
        clock += step_s * scale
        action = planner.update(step, step_s)
        if action is not None:
            clock += (action.option.overhead_s or 0.0) * scale
            speed = 1 / (action.option.step_s * scale)
            print(
                f"  t = {clock:4.0f} s: {speed:.2f} steps/s after {action.option.strategy.upper()}"
            )
            done = action.option.strategy == "s4"
        if done:
            break


def table_7() -> None:
    lives = compare(load_scenario(Path(__file__).with_name("falcon_64gpu.yaml")))
    print("Table 7: 64 GPUs (paper: 1.15x to 1.05x, slowdown reduced by 60.1%)")
    for name, life in lives.lives.items():
        print(
            f"  {name:24} {life.completion_s:7.0f} s  {lives.slowdown(name):.3f}x  "
            f"{lives.reduced(name):6.1%}"
        )
    print(f"  competitive ratio {lives.competitive_ratio:.2f}")


def timed(call: Callable[[], object]) -> float:
    call()
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def speed() -> None:
    print("S2's allocation, times tabulated (paper's Table 6: 35.9 s for 512), best of 5")
    rng = np.random.default_rng(0)
    for replicas in (16, 128, 512, 4096, 16_384):
        factors = np.where(rng.random(replicas) < 0.05, rng.uniform(1.1, 2.0, replicas), 1.0)
        times = factors[:, None] * np.arange(1, 65)
        now = np.full(replicas, 32)
        seconds = timed(lambda t=times, n=now, r=replicas: redistribute(t, 1, 32 * r, n))
        print(f"  {replicas:6,} replicas: {seconds * 1e3:7.2f} ms")
    print("S3's placement of slow workers")
    for dp, pp, microbatches, slow in ((125, 8, 32, 12), (32, 32, 64, 20), (16, 64, 64, 40)):
        model = JobModel.of_spec(SynthSpec(dp=dp, pp=pp, microbatches=microbatches))
        cells = rng.choice(dp * pp, slow, replace=False).tolist()
        faults = frozenset(
            Fault("compute", divmod(cell, pp), float(rng.uniform(1.2, 2))) for cell in cells
        )
        begin = time.perf_counter()
        found = best_placement(model, faults)
        seconds = time.perf_counter() - begin
        before = model.step_s(model.plain, faults)
        print(
            f"  {dp * pp:5,} workers (dp {dp}, pp {pp}), {slow} slow: {seconds:.2f} s, step "
            f"{before:.3f} to {found.step_s:.3f} s, gap {found.gap:.1%}, {found.tried} tried"
        )


def random_life(model: JobModel, seed: int) -> Scenario:
    """Eight hours; every 40 minutes a fail-slow of 10 minutes in the middle, log-normal."""
    rng = np.random.default_rng(seed)
    found: list[FailSlow] = []
    clock = float(rng.exponential(2400.0))
    while clock < 8 * 3600:
        at = int(rng.integers(model.dp)), int(rng.integers(model.pp))
        if rng.random() < 0.6:
            fault = Fault("compute", at, 1 + float(rng.uniform(0.1, 0.9)))
        else:
            other = ((at[0] + 1) % model.dp, at[1])
            fault = Fault("link", at, float(rng.uniform(2, 12)), other)
        if all(f.fault.name != fault.name or f.end_s <= clock for f in found):
            found.append(FailSlow(clock, float(rng.lognormal(np.log(600), 1.5)), fault))
        clock += float(rng.exponential(2400.0))
    return Scenario(model, 8000, tuple(found), seed=seed)


def ratios(lives: int) -> None:
    print(
        f"{lives} random lives of 8,000 steps, (8 DP, 4 PP): seconds lost over those of the oracle"
    )
    model = JobModel.of_spec(SynthSpec(dp=8, pp=4, microbatches=16), step_s=3.5)
    rows: dict[str, list[float]] = {}
    for seed in range(lives):
        scenario = random_life(model, seed)
        result = compare(scenario)
        healthy = result.lives["healthy"].completion_s
        least = result.lives["oracle"].completion_s - healthy
        lost = {n: life.completion_s - healthy for n, life in result.lives.items()}
        savings = Scenario(model, scenario.steps, scenario.fail_slows, seed=seed, rule="savings")
        lost["planner, savings"] = live(savings, "savings", dict(OVERHEAD_S)).completion_s - healthy
        for name, seconds in lost.items():
            rows.setdefault(name, []).append(seconds / least)
    for name, values in rows.items():
        if name not in ("healthy", "oracle"):
            print(f"  {name:24} mean {np.mean(values):5.2f}  worst {np.max(values):5.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without the random lives")
    args = parser.parse_args()
    for part in (figure_13, figure_14, figure_15, figure_16, figure_17, table_7, speed):
        part()
    if not args.quick:
        ratios(12)


if __name__ == "__main__":
    main()
