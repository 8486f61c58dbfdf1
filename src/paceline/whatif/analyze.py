"""The analysis: simulate what is needed, and divide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.graph import Durations, Measured, StepGraph, from_trace
from paceline.simulate import Lanes, Progress, Rules, all_lanes, step_times
from paceline.trace import KIND_GROUPS, OpKind, Trace
from paceline.trace.kinds import DP_KINDS, P2P_KINDS
from paceline.whatif.ideal import ideal_durations
from paceline.whatif.layout import ideal_lane_error_s, simulate_scenarios
from paceline.whatif.result import LaunchDelay, WhatIf
from paceline.whatif.scenario import Part, Scenario

#: M_W looks at the slowest 3% of workers (what-if paper, 5.1), rounded up.
SLOWEST_PERCENT = 3

#: M_X divides by T - T_ideal; under this share of T it would be noise over noise.
MIN_GAP = 0.001

Array = npt.NDArray[np.float64]
K = TypeVar("K")


def analyze(
    trace: Trace | Measured, *, keep_clocks: bool = False, progress: Progress | None = None
) -> WhatIf:
    """How much stragglers cost a job, and which parts of it cost it.

    Args:
        trace: what happened, or what :func:`paceline.graph.from_trace` made of it.
        keep_clocks: do not correct clock offsets between workers.
        progress: called with (lanes done, lanes in all) now and then.

    Raises:
        TraceError: no whole step is left.
        GraphError: the ops do not form a step.
    """
    measured = trace if isinstance(trace, Measured) else from_trace(trace, keep_clocks=keep_clocks)
    graph = measured.graph
    ideal = ideal_durations(measured.durations)
    kinds = [
        label
        for label, members in KIND_GROUPS.items()
        if np.isin(graph.kind, [int(kind) for kind in members]).any()
    ]
    workers = [(dp, pp) for pp in range(graph.n_pp) for dp in range(graph.n_dp)]
    first = [
        Scenario.measured(),
        Scenario.ideal(),
        *(Scenario.only(Part.of_kind(label)) for label in kinds),
        *(Scenario.only(Part.of_stage(pp)) for pp in range(graph.n_pp)),
        *(Scenario.only(Part.of_replica(dp)) for dp in range(graph.n_dp)),
        *(Scenario.only(Part.of_workers([worker])) for worker in workers),
    ]
    times = simulate_scenarios(measured.durations, ideal, first, progress)
    simulated, ideal_s = times[0], times[1]
    cuts = np.cumsum([len(kinds), graph.n_pp, graph.n_dp])
    if not (ideal_s > 0).all():
        raise TraceError("the ideal step takes 0 s: (nearly) all durations in the trace are 0")
    slowdown_by_step = times[2:] / ideal_s
    kind_by_step, stage_by_step, replica_by_step, worker_by_step = np.split(slowdown_by_step, cuts)
    kind_s, stage_s, replica_s, worker_s = np.split(times[2:].mean(axis=1) / ideal_s.mean(), cuts)
    slowest = _slowest(workers, worker_s)
    paper = _slowest(workers, np.minimum.outer(stage_s, replica_s).ravel())
    shares = _Shares(measured.durations, ideal, float(simulated.mean()), float(ideal_s.mean()))
    one_stage = graph.n_pp == 1
    last_stage = Part.of_stage(graph.n_pp - 1)
    blamed = Part.of_workers(slowest)
    m_w, m_w_paper, m_s = shares.vanishing([blamed, Part.of_workers(paper), last_stage])
    m_w_only, m_s_only = shares.remaining([blamed, last_stage])
    delay, replayed = _launch_delays(measured)
    traced = measured.traced_step_s
    by_worker = worker_s.reshape(graph.n_pp, graph.n_dp)
    discrepancy = abs(float(simulated.mean() / traced.mean()) - 1)
    return WhatIf(
        job=measured.job,
        steps=measured.steps,
        slowdown=float(simulated.mean() / ideal_s.mean()),
        waste=float(1 - ideal_s.mean() / simulated.mean()),
        discrepancy=discrepancy,
        launch_slowdown=float(traced.mean() / simulated.mean()),
        replay_error=abs(float(replayed.mean() / traced.mean()) - 1),
        traced_s=traced,
        simulated_s=simulated,
        ideal_s=ideal_s,
        by_step=_keyed(measured.steps, simulated / ideal_s),
        by_kind=_keyed(kinds, kind_s),
        by_stage=_keyed(range(graph.n_pp), stage_s),
        by_replica=_keyed(range(graph.n_dp), replica_s),
        by_worker=by_worker,
        by_kind_by_step=dict(zip(kinds, kind_by_step, strict=True)),
        by_stage_by_step=stage_by_step.T,
        by_replica_by_step=replica_by_step.T,
        by_worker_by_step=worker_by_step.T.reshape(-1, graph.n_pp, graph.n_dp),
        slowest_workers=tuple((dp, pp, float(by_worker[pp, dp])) for dp, pp in slowest),
        m_w=m_w,
        m_w_paper=m_w_paper,
        m_s=0.0 if one_stage else m_s,
        m_w_only=m_w_only,
        m_s_only=0.0 if one_stage else m_s_only,
        launch_delay=delay,
        clamped=measured.clamped,
        clocks=measured.clocks,
        left_out_steps=measured.left_out,
        warnings=(
            *measured.warnings,
            *_doubts(discrepancy, delay),
            *_merged_noops(measured.durations, float(ideal_s.mean())),
            *_not_judged(graph),
        ),
    )


def _keyed(keys: Iterable[K], values: Array) -> dict[K, float]:
    return {key: float(value) for key, value in zip(keys, values, strict=True)}


def _slowest(workers: Sequence[tuple[int, int]], slowdown: Array) -> list[tuple[int, int]]:
    """The slowest 3% (rounded up) of the workers (dp, pp), worst first, ties by (pp, dp)."""
    n_slowest = -(-SLOWEST_PERCENT * len(workers) // 100)
    # The list is in (pp, dp) order; rounding makes ties of what differs by arithmetic noise only.
    order = np.argsort(-np.round(slowdown, 12), kind="stable")
    return [workers[i] for i in order[:n_slowest]]


class _Shares:
    """M_X: which share of the slowdown is due to a part (what-if paper, Eq. 5)."""

    def __init__(self, durations: Durations, ideal: Array, t: float, t_ideal: float) -> None:
        self.durations, self.ideal, self.t, self.t_ideal = durations, ideal, t, t_ideal

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


def _launch_delays(measured: Measured) -> tuple[LaunchDelay, Array]:
    """What delays cost, and [step] times with all of them replayed."""
    graph, n_steps = measured.graph, measured.durations.n_steps
    labels = [kind for kind in OpKind if (graph.kind == kind).any()]
    first = np.zeros(graph.n_ops, dtype=bool)
    first[_first_computes(graph)] = True
    masks = [
        np.zeros(graph.n_ops, dtype=bool),
        np.ones(graph.n_ops, dtype=bool),
        graph.sources | first,
        *(graph.kind == kind for kind in labels),
    ]
    lanes = all_lanes(graph, n_steps)
    n = len(masks)
    rules = Rules(np.ones((n, graph.n_ops), dtype=bool), np.zeros(graph.n_ops), np.stack(masks))
    repeated = Lanes(
        set=(np.arange(n)[:, None] * n_steps + lanes.set).ravel(),
        variant=np.tile(lanes.variant, n),
        rule=np.repeat(np.arange(n), len(lanes)),
        column=np.tile(lanes.column, n),
        n_sets=n * n_steps,
    )
    times = step_times(measured.durations, rules, repeated, measured.delays).reshape(n, n_steps)
    without, replayed, start, *by_kind = times
    factors = {
        kind.label: float(t.mean() / without.mean())
        for kind, t in zip(labels, by_kind, strict=True)
    }
    return LaunchDelay(factors, float(start.mean() / without.mean())), replayed


def _first_computes(graph: StepGraph) -> npt.NDArray[np.int64]:
    """The first compute op of every stage of every variant."""
    return np.flatnonzero((graph.kind == OpKind.FORWARD_COMPUTE) & (graph.seq == 0))


def _doubts(discrepancy: float, delay: LaunchDelay) -> list[str]:
    if discrepancy <= WhatIf.DOUBTFUL_ABOVE:
        return []
    worst = sorted(delay.by_kind.items(), key=lambda item: -item[1])[:3]
    causes = [f"{label} +{factor - 1:.1%}" for label, factor in worst if factor > 1.001]
    if delay.step_start > 1.001:
        causes.append(f"at the start of steps +{delay.step_start - 1:.1%}")
    named = f"; delays before {', '.join(causes)}" if causes else ""
    return [
        f"the simulation differs from the trace by {discrepancy:.1%} (over 5%): the analysis is "
        f"doubtful, time is lost between operations{named}"
    ]


def _merged_noops(durations: Durations, t_ideal: float) -> list[str]:
    error = ideal_lane_error_s(durations)
    if error <= 1e-6 * t_ideal:
        return []
    return [
        "no-op sends and recvs differ between replicas; where others are ideal only the slowest "
        f"were simulated: slowdowns may be too low by up to {error / t_ideal:.1e}"
    ]


def _not_judged(graph: StepGraph) -> list[str]:
    """Kinds whose constant slowness cannot show, since nothing healthy is there to compare with."""
    present = {OpKind(int(kind)) for kind in np.unique(graph.kind)}
    alone = []
    links = graph.n_dp * (graph.n_pp - 1)
    for label, kinds in KIND_GROUPS.items():
        kind = kinds[0]
        if not present & set(kinds):
            continue
        if kind in P2P_KINDS:
            peers = links
        elif kind == OpKind.OPTIMIZER_CLIP_MAIN_GRAD:
            peers = 1
        elif kind == OpKind.EMBEDDING_GRADS_ALL_REDUCE:
            peers = graph.n_dp
        elif kind in DP_KINDS:
            peers = graph.n_pp
        else:
            peers = graph.n_dp * graph.n_pp
        if peers == 1:
            alone.append(label)
    if not alone:
        return []
    return [
        "not judged, for want of peers to compare with (lasting slowness cannot show): "
        + ", ".join(alone)
    ]
