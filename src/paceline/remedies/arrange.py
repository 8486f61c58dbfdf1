"""Positions for slow workers: a search, verified on the whole trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from paceline.diagnose import MIN_OF_STEP
from paceline.diagnose.fit import fit_computes
from paceline.graph import Durations
from paceline.graph.computes import KINDS, Computes
from paceline.remedies.healthy import Worker
from paceline.remedies.outcome import copy_of
from paceline.remedies.remedy import Prediction
from paceline.remedies.typical import some_replicas, try_out, typical_durations
from paceline.robust import MEDIAN_ERROR

Array = npt.NDArray[np.float64]
Positions = tuple[Worker, ...]

#: The simpler of two arrangements wins if their step times differ by less than this per item. The
#: items are slow stages, then slow stages at the ends (falcon paper, 5.3), then swaps.
STAGE, END, SWAP = 2e-4, 1e-4, 5e-5

#: Number of arrangements simulated on all steps and replicas. One that is not the best without
#: noise must lead by MIN_LEAD. A smaller lead is chance in the traced steps.
N_VERIFIED, MIN_LEAD = 4, 0.01


#: If a worker's factor in a step stands out by this many standard errors, it replaces the lasting
#: factor. The error is that of a median over the worker's computes.
STEP_ERRORS = 3.0

Swap = tuple[Worker, Worker]


def swaps_to(workers: Sequence[Worker], positions: Sequence[Worker]) -> list[Swap]:
    """Successive swaps that bring each worker to its position."""
    at = {worker: worker for worker in workers}  # current position of each worker
    swaps = []
    for worker, target in zip(workers, positions, strict=True):
        here = at[worker]
        if here == target:
            continue
        swaps.append((here, target))
        for occupant, place in at.items():
            if place == target:
                at[occupant] = here
        at[worker] = target
    return swaps


class Arrangement:
    """Slow workers, their slowness, and the job's durations with them at other positions."""

    def __init__(self, durations: Durations, computes: Computes, workers: Sequence[Worker]) -> None:
        self.durations, self.computes, self.workers = durations, computes, tuple(workers)
        self.fit = fit_computes(durations)
        #: Worker -> [kind, step] its time over the time of a typical worker of its stage.
        self.factors: dict[Worker, Array] = {worker: self._by_step(worker) for worker in workers}

    def _lasting(self, worker: Worker) -> Array:
        """[kind, 1] a worker's factor over all steps."""
        dp, stage = worker
        factor: Array = np.exp(self.fit.worker_total[:, stage, dp])[:, None]
        return factor

    def _by_step(self, worker: Worker) -> Array:
        """[kind, step] a worker's factor."""
        dp, stage = worker
        graph, fit = self.durations.graph, self.fit
        residual = fit.variants[int(graph.replica_variant[dp])].residual
        own = residual[:, fit.stage_of_place == stage][..., int(graph.dp_index[dp])]
        middle = np.median(own, axis=(1, 2))  # over chunks and microbatches
        error = MEDIAN_ERROR * fit.sigma / np.sqrt(own.shape[1] * own.shape[2])
        stands_out = np.abs(middle) > STEP_ERRORS * error[:, None]
        factor: Array = self._lasting(worker) * np.exp(np.where(stands_out, middle, 0.0))
        return factor

    @cached_property
    def healthy(self) -> Durations:
        """The durations if no worker were slow."""
        changed = copy_of(self.durations)
        for worker, factor in self.factors.items():
            self._scale(changed, worker, 1 / factor)
        return changed

    def at(self, positions: Positions) -> Durations:
        """The durations with each worker at a position (dp, stage), by swaps.

        A worker keeps its own speed at its new position.
        """
        standing: dict[Worker, Worker] = {}  # position -> the worker that stands there
        for first, second in swaps_to(self.workers, positions):
            here, there = standing.get(first, first), standing.get(second, second)
            standing[first], standing[second] = there, here
        changed = copy_of(self.durations)
        for position, worker in standing.items():
            own, new = (
                self.factors.get(occupant, self._lasting(occupant))
                for occupant in (position, worker)
            )
            self._scale(changed, position, new / own)
        return changed

    def _scale(self, durations: Durations, position: Worker, factor: Array) -> None:
        """Multiply the computes of a position by [kind, step]."""
        dp, stage = position
        graph = durations.graph
        v, index = int(graph.replica_variant[dp]), int(graph.dp_index[dp])
        for k in range(len(KINDS)):
            ops = self.computes.of_stage(v, stage)[k].ravel()
            durations.block(v)[ops, :, index] *= factor[k]


@dataclass(frozen=True)
class Found:
    """The best arrangement: the position of each worker, and the durations there."""

    positions: Positions
    durations: Durations


class Search:
    """Local search: move one slow worker at a time, on typical durations."""

    def __init__(
        self,
        arrangement: Arrangement,
        predict: Callable[[Durations], Prediction],
        closed: frozenset[int] = frozenset(),
    ) -> None:
        self.arrangement, self.predict = arrangement, predict
        #: Stages that no worker enters or leaves.
        self.closed = closed
        self.workers = arrangement.workers
        graph = arrangement.durations.graph
        self.n_pp = graph.n_pp
        slow = sorted({dp for dp, _ in self.workers})
        clean = [dp for dp in range(graph.n_dp) if dp not in slow]
        #: Replicas to simulate: the ones with slow workers, and some clean ones (all alike).
        self.dps = np.array(sorted(slow + clean[: len(self.workers)]))
        self.graph = some_replicas(graph, self.dps)
        self.typical = typical_durations(arrangement.healthy)
        self.scores: dict[Positions, float] = {}

    def best(self) -> Found:
        """The best arrangement found; the present one if none is better."""
        self._learn([self.workers, *self._consolidated()])
        while True:
            centre = min(self.scores, key=lambda positions: self.scores[positions])
            before = self.scores[centre]
            self._learn(self._moves(centre))
            if min(self.scores.values()) >= before:
                break
        return self._verified()

    def _verified(self) -> Found:
        # A change that gains nothing without noise gains only by chance in the traced steps.
        now = self.scores[self.workers]
        better = [p for p, seconds in self.scores.items() if seconds < now * (1 - MIN_OF_STEP)]
        order = sorted(better, key=lambda positions: self.scores[positions])
        best = Found(self.workers, self.arrangement.durations)
        least = self._score(self.workers, self.predict(best.durations).mean_s)
        for positions in order[:N_VERIFIED]:
            durations = self.arrangement.at(positions)
            score = self._score(positions, self.predict(durations).mean_s)
            needed = least if best.positions == self.workers else least * (1 - MIN_LEAD)
            if score < needed:
                best, least = Found(positions, durations), score
        return best

    def _score(self, positions: Positions, seconds: float) -> float:
        stages = {pp for _, pp in positions}
        ends = sum(pp in (0, self.n_pp - 1) for pp in stages)
        swaps = sum(a != b for a, b in zip(self.workers, positions, strict=True))
        return seconds * (1 + STAGE * len(stages) + END * ends + SWAP * swaps)

    def _consolidated(self) -> list[Positions]:
        """All slow workers in the fewest stages that hold them, starting at each stage (5.3)."""
        arrangements = []
        dps = self.dps.tolist()
        for stage in range(self.n_pp):
            cells = [(dp, (stage + i) % self.n_pp) for i in range(self.n_pp) for dp in dps]
            arrangements.append(tuple(cells[: len(self.workers)]))
            own = tuple((dp, stage) for dp, _ in self.workers)
            if len(set(own)) == len(own):
                arrangements.append(own)
        return arrangements

    def _moves(self, positions: Positions) -> list[Positions]:
        """All arrangements with one worker moved; the worker that stood there swaps with it."""
        arrangements = []
        for i, here in enumerate(positions):
            for dp in self.dps.tolist():
                for stage in range(self.n_pp):
                    new = [here if place == (dp, stage) else place for place in positions]
                    new[i] = (dp, stage)
                    arrangements.append(tuple(new))
        return arrangements

    def _allowed(self, positions: Positions) -> bool:
        between = zip(self.workers, positions, strict=True)
        return all(a == b or not {a, b} & self.closed for (_, a), (_, b) in between)

    def _learn(self, arrangements: Sequence[Positions]) -> None:
        new = [a for a in dict.fromkeys(arrangements) if a not in self.scores and self._allowed(a)]
        if not new:
            return
        computes = self.arrangement.computes
        small = {int(dp): place for place, dp in enumerate(self.dps)}
        factors = [self.arrangement.factors[worker].mean(axis=1) for worker in self.workers]

        def change(durations: Durations, rows: slice) -> None:
            graph = durations.graph
            for row, positions in enumerate(new[rows]):
                for factor, (dp, stage) in zip(factors, positions, strict=True):
                    place = small[dp]
                    v, index = int(graph.replica_variant[place]), int(graph.dp_index[place])
                    for k in range(len(KINDS)):
                        ops = computes.of_stage(v, stage)[k].ravel()
                        durations.block(v)[ops, row, index] *= factor[k]

        times = try_out(self.graph, self.typical, len(new), change)
        seconds = [self._score(a, float(t)) for a, t in zip(new, times, strict=True)]
        self.scores.update(zip(new, seconds, strict=True))
