"""Counters for a viewer: slowdown and launch delay by step, workers in launch delay."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations
from paceline.report.scene import Counter
from paceline.simulate import Rules, Timeline, all_lanes, step_times
from paceline.trace.kinds import LOCAL_KINDS
from paceline.whatif import Scenario, simulate_scenarios

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Number of samples of a counter that changes within a step.
SAMPLES = 256


def job_counters(
    durations: Durations, delays: Durations, ideal: Floats, steps: Ints
) -> tuple[Counter, Counter]:
    """The slowdown S of each step, and its slowdown by launch delays.

    Args:
        durations: measured durations of these steps.
        delays: their launch delays.
        ideal: [op] ideal durations.
        steps: [step] their numbers.
    """
    graph = durations.graph
    lanes = all_lanes(graph, len(steps))
    replayed = step_times(durations, Rules.own(graph, True), lanes, delays)
    times = simulate_scenarios(durations, ideal, [Scenario.measured(), Scenario.ideal()])
    at = np.zeros(len(steps))
    late_ms = (replayed - times[0]) * 1e3
    return (
        Counter("slowdown", "S", steps, at, times[0] / times[1]),
        Counter("launch delay", "ms", steps, at, late_ms),
    )


def waiting_counter(timeline: Timeline, delays: Durations, steps: Ints) -> Counter:
    """Number of workers (of all replicas) in the launch delay of a compute, over time.

    Each sample is the mean until the next sample.

    Args:
        timeline: the steps with launch delays.
        delays: their launch delays.
        steps: [step] their numbers.
    """
    graph = timeline.graph
    local = np.isin(graph.kind, [int(kind) for kind in LOCAL_KINDS])
    ends = timeline.step_times()
    times, values = [], []
    for step, end in enumerate(ends.tolist()):
        edges = np.linspace(0.0, end, SAMPLES + 1)
        waited = np.zeros(SAMPLES + 1)
        for v in range(graph.n_variants):
            ops = np.flatnonzero(local[graph.variant_ops(v)])
            stop = timeline.start.block(v)[ops, step].ravel()
            start = stop - np.maximum(delays.block(v)[ops, step].ravel(), 0.0)
            waited += _seconds_until(start, edges) - _seconds_until(stop, edges)
        times.append(edges[:-1])
        values.append(np.diff(waited) / max(end / SAMPLES, 1e-12))
    return Counter(
        "workers in launch delay",
        "workers",
        np.repeat(steps, SAMPLES),
        np.concatenate(times),
        np.concatenate(values),
    )


def _seconds_until(moment: Floats, edges: Floats) -> Floats:
    """[edge] seconds since each earlier moment, summed over these moments."""
    ordered = np.sort(moment)
    n = np.searchsorted(ordered, edges, side="right")
    total = np.append(0.0, np.cumsum(ordered))
    seconds: Floats = n * edges - total[n]
    return seconds
