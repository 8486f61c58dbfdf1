"""The kernel: interpreted against compiled walk, and distinct lanes against all lanes.

python benchmarks/kernel.py

All in one run on one machine, so the ratios hold though absolute times drift. "All lanes" is what
exact S_w would cost without the layout of distinct lanes: measured on a few workers and scaled.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from paceline import simulate
from paceline.graph import from_trace
from paceline.simulate import Lanes, Rules, all_lanes, step_times
from paceline.synth import SlowWorker, SynthSpec, synthesize
from paceline.whatif import Part, Scenario, ideal_durations, simulate_scenarios

SPEC = SynthSpec(dp=32, pp=8, microbatches=32, steps=4, slow_workers=(SlowWorker(3, 1, 1.5),))


def seconds(run: Callable[[], object], times: int = 3) -> float:
    best = np.inf
    for _ in range(times):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best


def main() -> None:
    measured = from_trace(synthesize(SPEC))
    durations, graph = measured.durations, measured.graph
    ideal = ideal_durations(durations)
    every = np.ones((1, graph.n_ops), dtype=bool)
    one = all_lanes(graph, SPEC.steps)
    print(f"graph of {graph.n_ops} ops, {graph.slots[1]} rows alive at once, {len(one)} lanes\n")
    print(f"{'lanes':>8}{'interpreted ns/op':>20}{'compiled ns/op':>17}")
    for copies in (1, 8, 64):
        lanes = Lanes(
            (np.arange(copies)[:, None] * SPEC.steps + one.set).ravel(),
            np.tile(one.variant, copies),
            np.tile(one.rule, copies),
            np.tile(one.column, copies),
            copies * SPEC.steps,
        )
        cells = []
        for threshold in (np.inf, 0.0):
            simulate.COLD_ABOVE_S = simulate.WARM_ABOVE_S = threshold

            def run(lanes: Lanes = lanes) -> object:
                return step_times(durations, Rules(every, ideal), lanes)

            run()
            cells.append(1e9 * seconds(run) / (len(lanes) * graph.n_ops))
        print(f"{len(lanes):8}{cells[0]:20.2f}{cells[1]:17.2f}")

    workers = [(dp, pp) for pp in range(SPEC.pp) for dp in range(SPEC.dp)]
    scenarios = [Scenario.only(Part.of_workers([worker])) for worker in workers]
    distinct = seconds(lambda: simulate_scenarios(durations, ideal, scenarios))
    few = 16
    rules = np.zeros((SPEC.pp + 1, graph.n_ops), dtype=bool)
    rules[1:] = graph.pp == np.arange(SPEC.pp)[:, None]
    rule = np.zeros((few, SPEC.steps, graph.n_dp), dtype=np.int64)
    for number, (dp, pp) in enumerate(workers[:few]):
        rule[number, :, dp] = pp + 1
    lanes = Lanes(
        (np.arange(few)[:, None] * SPEC.steps + one.set).ravel(),
        np.tile(one.variant, few),
        rule.reshape(-1),
        np.tile(one.column, few),
        few * SPEC.steps,
    )
    full = seconds(lambda: step_times(durations, Rules(rules, ideal), lanes)) * len(workers) / few
    exact = simulate_scenarios(durations, ideal, scenarios[:few])
    same = np.abs(
        step_times(durations, Rules(rules, ideal), lanes).reshape(exact.shape) / exact - 1
    )
    print(f"\nexact S_w of {len(workers)} workers: distinct lanes {distinct:.3f} s, all lanes")
    print(
        f"{full:.3f} s (scaled from {few}), ratio {full / distinct:.0f}; same to {same.max():.0e}"
    )


if __name__ == "__main__":
    main()
