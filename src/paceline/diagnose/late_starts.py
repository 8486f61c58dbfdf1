"""Workers that begin their steps late, by work of their hosts before the first operation.

A trace does not show this work: data loading, garbage collection, logging. It shows how long each
worker stood still since its own last operation of the step before. A worker that still runs the
step before does not stand still. So its overlap is no lateness, wherever that end is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from paceline.diagnose.levels import lower_median
from paceline.diagnose.long_waits import MIN_BEYOND, long_waits
from paceline.graph import Durations, Measured, StepGraph
from paceline.robust import chance_of_count
from paceline.simulate import Rules, all_lanes, step_times
from paceline.trace.kinds import P2P_KINDS

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Least lateness in a step that counts, and least saving of all late workers, as shares of T.
MIN_LATE = 0.01

#: Largest chance that some worker is late in as many of the steps with a late worker.
MAX_CHANCE = 0.01


@dataclass(frozen=True, eq=False)
class LateStarts:
    """Workers that begin their steps later than their peers.

    Attributes:
        workers: (dp, pp), the latest first.
        late_s: [step, dp, pp] seconds by which these workers begin late; 0 for all others.
        saved_s: [step] seconds that the steps would lose if all of them began with their peers.
        chance: upper bound on the chance that noise names such a worker.
        beside_data: whether known waits for data are taken off the lateness.
    """

    workers: tuple[tuple[int, int], ...]
    late_s: Array
    saved_s: Array
    chance: float
    beside_data: bool = False

    def steps_of(self, worker: tuple[int, int]) -> Mask:
        """[step] whether the worker begins late."""
        late: Mask = self.late_s[:, worker[0], worker[1]] > 0
        return late

    def typical_s(self, worker: tuple[int, int]) -> float:
        """The worker's median lateness in the steps that it begins late."""
        late_s = self.late_s[:, worker[0], worker[1]]
        return float(np.median(late_s[late_s > 0]))


def late_starts(
    measured: Measured, simulated_s: float, data_s: Array | None = None
) -> LateStarts | None:
    """The workers whose late begins cost 1% of the step or more; None if none stands out.

    Args:
        measured: the job.
        simulated_s: T, its mean step without launch delays.
        data_s: [step, dp, pp] seconds of lateness that are known waits for data; None: none.
    """
    late_s = lateness_s(measured, data_s)
    late_s = np.where(late_s >= MIN_LATE * simulated_s, late_s, 0.0)
    all_late_s = late_s
    chance = _chances(late_s > 0)
    if chance.min() > MAX_CHANCE:  # many short ones may hide the few long ones
        late_s = np.where(_is_long(late_s), late_s, 0.0)
        chance = np.minimum(2 * _chances(late_s > 0), 1.0)
    named = chance <= MAX_CHANCE
    if not named.any():
        return None
    late_s = np.where(named, late_s, 0.0)
    rarely_s, rare_chance = _rarely_late(np.where(named, 0.0, all_late_s), named, simulated_s)
    late_s = late_s + rarely_s
    chance = np.where(named, chance, rare_chance)
    named = chance <= MAX_CHANCE
    saved_s = step_s_with(measured) - step_s_with(measured, late_s)
    if float(saved_s.mean()) < MIN_LATE * simulated_s:
        return None
    mean_s = late_s.mean(axis=0)
    order = np.argsort(-mean_s, axis=None, kind="stable")[: int(named.sum())]
    places = np.unravel_index(order, mean_s.shape)
    workers = tuple((int(dp), int(pp)) for dp, pp in zip(*places, strict=True))
    of_named = float(chance[named].max())
    return LateStarts(workers, late_s, saved_s, of_named, data_s is not None)


def _rarely_late(late_s: Array, named: Mask, simulated_s: float) -> tuple[Array, Array]:
    """Other workers that begin late in a few steps, much later than all but the named ones.

    A worker that is late in half of the steps has most of all late begins, and so hides them.

    Args:
        late_s: [step, dp, pp] lateness of the others.
        named: [dp, pp] the named workers.
        simulated_s: T.

    Returns:
        [step, dp, pp] long lateness of those whose mean is 1% of T or more, and [dp, pp] chances.
    """
    if long_waits(late_s.max(axis=(1, 2))).all():
        return np.zeros(late_s.shape), np.ones(named.shape)
    late_s = np.where(_is_long(late_s), late_s, 0.0)
    chance = np.minimum(2 * _chances(late_s > 0, ~named), 1.0)
    chance = np.where(late_s.mean(axis=0) >= MIN_LATE * simulated_s, chance, 1.0)
    return np.where(chance <= MAX_CHANCE, late_s, 0.0), chance


def _is_long(late_s: Array) -> Mask:
    """[step, dp, pp] whether the lateness is long, in the few steps with most of it."""
    longest = late_s.max(axis=(1, 2))
    long = long_waits(longest)
    is_long: Mask = late_s >= MIN_BEYOND * float(np.median(longest[long]))
    return is_long & long[:, None, None]


def step_s_with(measured: Measured, late_s: Array | None = None) -> Array:
    """[step] step times with all launch delays, less some lateness of workers' begins.

    Args:
        measured: the job.
        late_s: [step, dp, pp] seconds by which workers would begin earlier; None: not earlier.
    """
    graph, delays = measured.graph, measured.delays
    if late_s is not None:
        delays = begun_earlier(measured, late_s)
    rules = Rules.own(graph, True)
    return step_times(measured.durations, rules, all_lanes(graph, delays.n_steps), delays)


def begun_earlier(measured: Measured, earlier_s: Array) -> Durations:
    """The launch delays of workers that begin [step, dp, pp] ``earlier_s`` seconds earlier."""
    graph = measured.graph
    delays = Durations(graph, measured.delays.n_steps, measured.delays.values.copy())
    for v, stage, ops in first_ops(graph):
        block = delays.block(v)
        block[ops] -= np.minimum(earlier_s[:, graph.variant_dps[v], stage], block[ops].clip(0))
    return delays


def begin_s(measured: Measured) -> Array:
    """[step, dp, pp] seconds from the step's begin to each worker's; NaN: it waits for others."""
    graph = measured.graph
    begin = np.full((measured.durations.n_steps, graph.n_dp, graph.n_pp), np.nan)
    for v, stage, ops in first_ops(graph):
        begin[:, graph.variant_dps[v], stage] = measured.delays.block(v)[ops].min(axis=0)
    return begin


def begun_late_s(measured: Measured) -> Array:
    """[step, dp, pp] seconds by which workers begin late since they still run the step before."""
    return np.maximum(np.nan_to_num(begin_s(measured) - measured.idle_before_s), 0.0)


def without_overlap(measured: Measured, overlap_s: Array) -> Measured:
    """The same without late begins by the [step] overlap with the step before.

    Where the end of the step before is not known, a late begin counts as overlap.
    """
    known = np.isfinite(measured.idle_before_s)
    late_s = np.where(known, begun_late_s(measured), np.nan_to_num(begin_s(measured)))
    earlier_s = np.minimum(late_s, overlap_s[:, None, None])
    return replace(measured, delays=begun_earlier(measured, earlier_s))


def first_ops(graph: StepGraph) -> list[tuple[int, int, npt.NDArray[np.int64]]]:
    """Variant, stage, and the operations that wait for nothing there, sends and recvs apart.

    A stage that begins with a receive waits for its neighbour, so its begin tells nothing.
    """
    own = graph.sources & ~np.isin(graph.kind, [int(kind) for kind in P2P_KINDS])
    found = []
    for v in range(graph.n_variants):
        span = graph.variant_ops(v)
        for stage in range(graph.n_pp):
            ops = np.flatnonzero(own[span] & (graph.pp[span] == stage))
            if len(ops):
                found.append((v, stage, ops))
    return found


def lateness_s(measured: Measured, data_s: Array | None = None) -> Array:
    """[step, dp, pp] seconds by which each worker begins later than its stage's usual one.

    Args:
        measured: the job.
        data_s: [step, dp, pp] seconds of waits for data that do not count; None: none.
    """
    begin, idle = begin_s(measured), measured.idle_before_s
    late_s = np.zeros(begin.shape)
    for stage in np.flatnonzero(np.isfinite(begin).all(axis=(0, 1))).tolist():
        begin_of, idle_of = begin[:, :, stage], idle[:, :, stage]
        if data_s is not None:
            begin_of = _without(begin_of, data_s[:, :, stage])
            idle_of = _without(idle_of, data_s[:, :, stage])
        late_s[:, :, stage] = _beside_peers(begin_of, idle_of)
    late: Array = np.fmin(late_s, begin)
    return late


def _without(seconds: Array, data_s: Array) -> Array:
    """[step, dp] times of begins without waits for data, at least those of the earliest worker.

    A wait of a step may lie before its later microbatches, too.
    """
    earliest = np.fmin.reduce(seconds, axis=1)[:, None]
    return np.where(data_s > 0, np.maximum(seconds - data_s, earliest), seconds)


def _beside_peers(begin_s: Array, idle_s: Array) -> Array:
    """[step, dp] lateness of the workers of a stage: by their idle time, or else by their begin.

    Where the step before is known for some steps only, the median of these stands for the others.
    """
    excess = _excess(idle_s)
    known = np.flatnonzero(np.isfinite(excess).all(axis=1))
    if not len(known):
        return _excess(begin_s)
    usual = np.median(excess[known], axis=0)
    return np.where(np.isfinite(excess), excess, usual)


def _excess(seconds: Array) -> Array:
    """[step, dp] seconds beyond the lower median of the ranks: of two, the faster is usual."""
    excess: Array = seconds - lower_median(seconds.T)[:, None]
    return excess


def _chances(late: Mask, may_be: Mask | None = None) -> Array:
    """[dp, pp] upper bounds on the chance that any worker is late as often as this one.

    By chance, those that are late in a step are any of the stage's workers.

    Args:
        late: [step, dp, pp] whether the worker begins late.
        may_be: [dp, pp] the workers that may be late; None: all.
    """
    _, n_dp, n_pp = late.shape
    chance = np.ones((n_dp, n_pp))
    for stage in range(n_pp):
        of_step = late[:, :, stage].sum(axis=1)  # late workers of each step
        n_steps = int((of_step > 0).sum())
        n_workers = n_dp if may_be is None else int(may_be[:, stage].sum())
        if n_steps and n_workers > 1:
            share = float(of_step[of_step > 0].mean()) / n_workers
            for dp, n_late in enumerate(late[:, :, stage].sum(axis=0).tolist()):
                of_one = chance_of_count(n_late, n_steps, share)
                chance[dp, stage] = min(1.0, n_dp * n_pp * of_one)
    return chance
