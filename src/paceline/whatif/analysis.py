"""The what-if analysis: simulate scenarios, and compare their step times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.graph import Durations, Measured, StepGraph, from_trace
from paceline.simulate import Progress, Rules, all_lanes, step_times
from paceline.trace import KIND_GROUPS, OpKind, Trace
from paceline.whatif.critical_path import critical_path
from paceline.whatif.doubts import (
    clock_doubts,
    delay_doubts,
    judged,
    noop_doubts,
    peers_of,
    reference_notes,
    resolution_doubts,
    step_doubts,
)
from paceline.whatif.ideal import Reference, reference
from paceline.whatif.lasting import lasting
from paceline.whatif.layout import simulate_scenarios
from paceline.whatif.result import LaunchDelay, WhatIf
from paceline.whatif.scenario import Part, Scenario

#: Share of workers in M_W, the slowest, rounded up (what-if paper, 5.1).
SLOWEST_PERCENT = 3

#: Least T - T_ideal as a share of T. M_X divides by it, and would only show noise below.
MIN_GAP = 0.001

Array = npt.NDArray[np.float64]
K = TypeVar("K")


def analyze(
    trace: Trace | Measured, *, keep_clocks: bool = False, progress: Progress | None = None
) -> WhatIf:
    """Measure the cost of stragglers in a job, and of each part of the job.

    Args:
        trace: a trace, or the result of :func:`paceline.graph.from_trace` for it.
        keep_clocks: do not correct clock offsets between workers.
        progress: called repeatedly with (simulated lanes, total lanes).

    Raises:
        TraceError: the trace has no whole step, or its durations are (nearly) all 0.
        GraphError: the ops do not form a step.
    """
    measured = trace if isinstance(trace, Measured) else from_trace(trace, keep_clocks=keep_clocks)
    judged_by = reference(measured.durations)
    ideal = judged_by.seconds
    slow = _simulate(measured, ideal, progress)
    shares = _Shares(measured.durations, ideal, slow)
    slowest = _slowest(slow.workers, slow.worker.mean)
    paper = _slowest(slow.workers, np.minimum.outer(slow.stage.mean, slow.replica.mean).ravel())
    blamed, last_stage = Part.of_workers(slowest), Part.of_stage(measured.graph.n_pp - 1)
    m_w, m_w_paper, m_s = shares.vanishing([blamed, Part.of_workers(paper), last_stage])
    m_w_only, m_s_only = shares.remaining([blamed, last_stage])
    one_stage = measured.graph.n_pp == 1
    path = critical_path(measured)
    delay = _launch_delays(measured, slow.simulated)
    t, traced = float(slow.simulated.mean()), float(measured.traced_step_s.mean())
    overlap_s = _overlap_s(measured, traced - t)
    lasted = traced - float(overlap_s.mean())
    discrepancy, replay_error = (
        abs(lasted - t) / traced,
        abs(float(path.step_s.mean()) / traced - 1),
    )
    peers, names = peers_of(measured.graph), measured.graph.kind_name
    clamped = sum(sum(counts.values()) for counts in measured.clamped.values())
    by_worker = slow.worker.mean.reshape(measured.graph.n_pp, measured.graph.n_dp)
    t_paper = _ideal_by_paper(measured, judged_by, slow)
    doubts = (
        *step_doubts(measured.durations),
        *delay_doubts(discrepancy, delay, names),
        *clock_doubts(replay_error, clamped),
        *resolution_doubts(measured.durations),
        *noop_doubts(measured.durations, slow.t_ideal),
        *reference_notes(
            judged_by, measured.durations.n_steps, t / slow.t_ideal, t / t_paper, names
        ),
        *judged(peers, names),
    )
    return WhatIf(
        job=measured.job,
        steps=measured.steps,
        slowdown=t / slow.t_ideal,
        slowdown_paper=t / t_paper,
        waste=1 - slow.t_ideal / t,
        discrepancy=discrepancy,
        launch_slowdown=lasted / t,
        replay_error=replay_error,
        traced_s=measured.traced_step_s,
        overlap_s=overlap_s,
        simulated_s=slow.simulated,
        ideal_s=slow.ideal,
        by_step=_keyed(measured.steps.tolist(), slow.simulated / slow.ideal),
        by_kind=_keyed(slow.kinds, slow.kind.mean),
        by_stage=_keyed(range(measured.graph.n_pp), slow.stage.mean),
        by_replica=_keyed(range(measured.graph.n_dp), slow.replica.mean),
        by_worker=by_worker,
        by_kind_by_step=dict(zip(slow.kinds, slow.kind.by_step, strict=True)),
        by_stage_by_step=slow.stage.by_step.T,
        by_replica_by_step=slow.replica.by_step.T,
        by_worker_by_step=slow.worker.by_step.T.reshape(-1, *by_worker.shape),
        slowest_workers=tuple((dp, pp, float(by_worker[pp, dp])) for dp, pp in slowest),
        m_w=m_w,
        m_w_paper=m_w_paper,
        m_s=0.0 if one_stage else m_s,
        m_w_only=m_w_only,
        m_s_only=0.0 if one_stage else m_s_only,
        launch_delay=delay,
        critical_path=path,
        clamped=measured.clamped,
        clocks=measured.clocks,
        microbatches=measured.microbatches,
        not_judged=tuple(label for label, n in peers.items() if n == 1),
        slow_mode_shares={kind.label: modes.share for kind, modes in judged_by.modes.items()},
        left_out_steps=measured.left_out,
        doubts=(*measured.doubts, *doubts),
        lasting=lasting(measured.durations, judged_by),
    )


@dataclass(frozen=True)
class _Family:
    """S_x of all parts of one kind, such as stages."""

    mean: Array  # [part]
    by_step: Array  # [part, step]


@dataclass(frozen=True)
class _Slowdowns:
    """Step times of the whole job, and S_x of its parts."""

    kinds: list[str]
    workers: list[tuple[int, int]]  # (dp, pp) in (pp, dp) order
    simulated: Array  # [step] seconds
    ideal: Array  # [step] seconds
    kind: _Family
    stage: _Family
    replica: _Family
    worker: _Family

    @property
    def t_ideal(self) -> float:
        return float(self.ideal.mean())


def _simulate(measured: Measured, ideal: Array, progress: Progress | None) -> _Slowdowns:
    """Simulate the job as measured, ideal, and with only each part as measured."""
    graph = measured.graph
    kinds = [
        label
        for label, members in KIND_GROUPS.items()
        if np.isin(graph.kind, [int(kind) for kind in members]).any()
    ]
    workers = [(dp, pp) for pp in range(graph.n_pp) for dp in range(graph.n_dp)]
    scenarios = [
        Scenario.measured(),
        Scenario.ideal(),
        *(Scenario.only(Part.of_kind(label)) for label in kinds),
        *(Scenario.only(Part.of_stage(pp)) for pp in range(graph.n_pp)),
        *(Scenario.only(Part.of_replica(dp)) for dp in range(graph.n_dp)),
        *(Scenario.only(Part.of_workers([worker])) for worker in workers),
    ]
    times = simulate_scenarios(measured.durations, ideal, scenarios, progress)
    ideal_s = times[1]
    if not (ideal_s > 0).all():
        raise TraceError("the ideal step takes 0 s: (nearly) all durations in the trace are 0")
    cuts = np.cumsum([len(kinds), graph.n_pp, graph.n_dp])
    families = [
        _Family(part.mean(axis=1) / ideal_s.mean(), part / ideal_s)
        for part in np.split(times[2:], cuts)
    ]
    return _Slowdowns(kinds, workers, times[0], ideal_s, *families)


def _ideal_by_paper(measured: Measured, judged_by: Reference, slow: _Slowdowns) -> float:
    """T_ideal with the paper's reference, seconds."""
    if not judged_by.differs:
        return slow.t_ideal
    times = simulate_scenarios(measured.durations, judged_by.paper, [Scenario.ideal()])
    return float(times.mean())


def _keyed(keys: Iterable[K], values: Array) -> dict[K, float]:
    return {key: float(value) for key, value in zip(keys, values, strict=True)}


def _slowest(workers: Sequence[tuple[int, int]], slowdown: Array) -> list[tuple[int, int]]:
    """The slowest 3% (rounded up) of the workers (dp, pp), worst first, ties by (pp, dp)."""
    n_slowest = -(-SLOWEST_PERCENT * len(workers) // 100)
    # The list is in (pp, dp) order; rounding makes ties of values that differ only by arithmetic
    # noise.
    order = np.argsort(-np.round(slowdown, 12), kind="stable")
    return [workers[i] for i in order[:n_slowest]]


class _Shares:
    """M_X: the share of the slowdown due to a part (what-if paper, Eq. 5)."""

    def __init__(self, durations: Durations, ideal: Array, slow: _Slowdowns) -> None:
        self.durations, self.ideal = durations, ideal
        self.t, self.t_ideal = float(slow.simulated.mean()), slow.t_ideal

    def _mean_times(self, scenarios: Sequence[Scenario]) -> Array:
        times: Array = simulate_scenarios(self.durations, self.ideal, scenarios).mean(axis=1)
        return times

    def _divide(self, gains: Array) -> list[float | None]:
        gap = self.t - self.t_ideal
        if gap < MIN_GAP * self.t:
            return [None] * len(gains)
        return [float(gain / gap) for gain in gains]

    def vanishing(self, parts: Sequence[Part]) -> list[float | None]:
        """(T - T with X ideal) / (T - T_ideal)."""
        return self._divide(self.t - self._mean_times([Scenario.without(part) for part in parts]))

    def remaining(self, parts: Sequence[Part]) -> list[float | None]:
        """(T with only X measured - T_ideal) / (T - T_ideal)."""
        return self._divide(
            self._mean_times([Scenario.only(part) for part in parts]) - self.t_ideal
        )


def _overlap_s(measured: Measured, beyond_s: float) -> Array:
    """[step] overlap with the step before, as far as it lengthens the traced step.

    Where a fast worker is the last of a step, its end delays nobody. So all overlap together is at
    most ``beyond_s``, the mean of traced steps less T.
    """
    all_of_it = float(measured.overlap_s.mean())
    share = min(1.0, max(beyond_s, 0.0) / all_of_it) if all_of_it > 0 else 0.0
    return share * measured.overlap_s


def _launch_delays(measured: Measured, without: Array) -> LaunchDelay:
    """Cost of launch delays, relative to the [step] seconds ``without`` them.

    Workers that still run the step before begin late. This overlap is no delay.
    """
    graph, n_steps = measured.graph, measured.durations.n_steps
    labels = [kind for kind in OpKind if (graph.kind == kind).any()]
    first = np.zeros(graph.n_ops, dtype=bool)
    first[_first_computes(graph)] = True
    first |= graph.sources
    masks = [first, *(graph.kind == kind for kind in labels)]
    lanes = all_lanes(graph, n_steps)
    n = len(masks)
    rules = Rules.own(graph, np.stack(masks))
    repeated = lanes.repeated(n)
    times = step_times(measured.durations, rules, repeated, measured.delays).reshape(n, n_steps)
    factors = times.mean(axis=1) / without.mean()
    overlap = float(measured.overlap_s.mean() / without.mean())
    at_start = np.array([bool((mask & first).any()) for mask in masks])
    less = np.maximum(factors - overlap, np.minimum(factors, 1.0))
    start, *by_kind = np.where(at_start, less, factors).tolist()
    return LaunchDelay({kind.label: f for kind, f in zip(labels, by_kind, strict=True)}, start)


def _first_computes(graph: StepGraph) -> npt.NDArray[np.int64]:
    """The first compute op of every stage of every variant."""
    return np.flatnonzero((graph.kind == OpKind.FORWARD_COMPUTE) & (graph.seq == 0))
