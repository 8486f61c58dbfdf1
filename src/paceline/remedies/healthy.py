"""Times of slow workers if they were as healthy as their peers.

The peers of an op are the same op on the other data-parallel ranks. The healthy time is their
median, not the ideal duration. The ideal is a mean that contains the slow rank (up to 10% off at 4
x 2). A worker keeps its variation from op to op and its pauses, for a new machine runs the same
program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.diagnose.fit import PAUSE_S, Fit, fit_computes, pause_residual
from paceline.errors import NotApplicableError
from paceline.graph import Durations, StepGraph
from paceline.graph.computes import Computes, Passes, set_passes, whole_passes
from paceline.robust import SIGMA_OF_MAD

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Worker = tuple[int, int]  # (dp, pp)

#: Enough peers for a median; more peers change it by less than a fifth of an op's noise.
MAX_PEERS = 32

#: If a worker's slowness varies from op to op by this multiple of the computes' noise, it gets its
#: peers' variation.
UNSTEADY_RATIO = 3.0

_TINY_S = 1e-9  # durations of 0 have no logarithm


@dataclass(frozen=True)
class HealthyWorker:
    """Time of a worker's computes if it were healthy.

    Attributes:
        worker: (dp, pp).
        variant: its replica structure.
        ops: [kind, chunk, microbatch] its computes, counted from the variant's first op.
        dp_index: its index among the replicas of the variant.
        own: [kind, chunk, microbatch, step] measured seconds.
        seconds: [kind, chunk, microbatch, step] seconds of a healthy worker.
        blamed: [dp] the blamed replicas of its stage, within the variant.
    """

    worker: Worker
    variant: int
    ops: Ints
    dp_index: int
    own: Array
    seconds: Array
    blamed: Mask

    def apply(self, durations: Durations) -> None:
        """Write the healthy durations."""
        set_passes(durations, self.variant, self.ops, self.seconds, self.dp_index, slow=self.blamed)


def healthy_workers(
    durations: Durations, computes: Computes, workers: Iterable[Worker]
) -> list[HealthyWorker]:
    """Healthy durations of the computes of some workers.

    They are the median of the same op in the same step over the peers. If the worker's other stages
    show that microbatches differ in cost, its own microbatches' costs apply: a new worker gets the
    old one's data.

    Raises:
        NotApplicableError: a stage has no other replica.
    """
    blamed = frozenset(workers)
    fit = fit_computes(durations)
    graph, passes = durations.graph, whole_passes(durations)
    return [
        _Peers(graph, passes, computes, worker, blamed).healthy(fit) for worker in sorted(blamed)
    ]


class _Peers:
    """A blamed worker and the workers of its stage in other replicas.

    Tables are logarithms of seconds, [kind, place, microbatch, replica, step].
    """

    def __init__(
        self,
        graph: StepGraph,
        passes: Passes,
        computes: Computes,
        worker: Worker,
        blamed: frozenset[Worker],
    ) -> None:
        self.graph, self.passes, self.computes, self.worker = graph, passes, computes, worker
        self.blamed = blamed
        dp, self.stage = worker
        self.variant = int(graph.replica_variant[dp])
        peers = [d for d in range(graph.n_dp) if (d, self.stage) not in blamed]
        if not peers:
            raise NotApplicableError(
                f"stage {self.stage} has no healthy peers: all {graph.n_dp} data-parallel ranks "
                "are blamed"
            )
        blamed_dps = {d for d, _ in blamed}
        peers = [d for d in peers if d not in blamed_dps] or peers
        # Replicas with the same number of microbatches have the same ops. Without such replicas,
        # take any.
        same_variant = [d for d in peers if graph.replica_variant[d] == self.variant]
        self.same_ops = bool(same_variant)
        peer_dps = np.array(same_variant or peers)
        peer_dps = peer_dps[:: -(-len(peer_dps) // MAX_PEERS)]
        self.peers = [
            (v, graph.dp_index[peer_dps[graph.replica_variant[peer_dps] == v]])
            for v in np.unique(graph.replica_variant[peer_dps]).tolist()
        ]
        self.me = (self.variant, graph.dp_index[[dp]])
        own_stages = {pp for d, pp in blamed if d == dp}
        #: Healthy places of the worker's replica show the cost of its microbatches.
        self.healthy_places = np.flatnonzero(~np.isin(computes.stage, list(own_stages)))
        self.mine = np.flatnonzero(computes.stage == self.stage)

    def _logs(self, group: tuple[int, Ints], places: Ints) -> Array:
        variant, index = group
        ops = self.computes.ops[variant][:, places]
        rows = self.passes.row[variant][ops]
        seconds = self.passes.blocks[variant][rows[..., None], :, index]
        return np.log(np.maximum(seconds, _TINY_S))

    def healthy(self, fit: Fit) -> HealthyWorker:
        """Healthy times of the worker; ``fit`` has the variation of computes."""
        tables = [self._logs(group, self.mine) for group in self.peers]
        own = self._logs(self.me, self.mine)
        costs, own_cost = self._costs(tables, own)
        slope = _slope(tables, costs)[:, :, None, None]
        levels = [t - slope[..., None] * c for t, c in zip(tables, costs, strict=True)]
        if self.same_ops:
            typical = np.median(levels[0], axis=3)
        else:
            flat = [np.moveaxis(t, 4, 2).reshape(*t.shape[:2], t.shape[4], -1) for t in levels]
            typical = np.median(np.concatenate(flat, axis=3), axis=3)[:, :, None]
        own_s = np.exp(own[:, :, :, 0])
        return HealthyWorker(
            worker=self.worker,
            variant=self.variant,
            ops=self.computes.ops[self.variant][:, self.mine],
            dp_index=int(self.me[1][0]),
            own=own_s,
            seconds=_as_fast(own_s, typical + slope * own_cost[:, 0], fit),
            blamed=self._blamed_at(self.stage, [(self.variant, slice(None))])[0],
        )

    def _costs(self, tables: list[Array], own: Array) -> tuple[list[Array], Array]:
        """[microbatch, replica, step] logarithm of the cost of microbatches, peers' and own.

        It comes from the healthy stages of the worker's replica. Without such stages it comes from
        the worker itself, minus its level.
        """
        if not len(self.healthy_places):
            return [_centre(_middle(t)) for t in tables], _centre(_middle(own))
        others = [self._logs(group, self.healthy_places) for group in self.peers]
        mine = self._logs(self.me, self.healthy_places)
        for place, stage in enumerate(self.computes.stage[self.healthy_places].tolist()):
            tables_of_place = [table[:, place] for table in (*others, mine)]
            _level(tables_of_place, [*self._blamed_at(stage, self.peers), np.zeros(1, dtype=bool)])
        return [_middle(table) for table in others], _middle(mine)

    def _blamed_at(self, stage: int, groups: Sequence[tuple[int, Ints | slice]]) -> list[Mask]:
        """[replica] per group of replicas: whether the replica's worker of a stage is slow."""
        return [
            np.array(
                [(dp, stage) in self.blamed for dp in self.graph.variant_dps[v][index].tolist()]
            )
            for v, index in groups
        ]


def _level(tables: list[Array], blamed: list[Mask]) -> None:
    """Take the usual level off tables [kind, microbatch, replica, step] of one place, in place.

    Healthy peers lose their common level, slow replicas their own. If all peers are slow, every
    replica loses its own level, for there is no healthy one to compare with.

    Args:
        tables: those of the peers, then that of the replica in question.
        blamed: [replica] for each table.
    """
    peers = zip(tables[:-1], blamed[:-1], strict=True)
    healthy = [table[:, :, ~is_blamed].reshape(len(table), -1) for table, is_blamed in peers]
    values = np.concatenate(healthy, axis=1)  # [kind, microbatch and the rest]
    for table, is_blamed in zip(tables, blamed, strict=True):
        level = np.median(table, axis=(1, 3), keepdims=True)
        if values.size:
            usual = np.median(values, axis=1)[:, None, None, None]
            level = np.where(is_blamed[None, None, :, None], level, usual)
        table -= level


def _as_fast(own_s: Array, like_peers: Array, fit: Fit) -> Array:
    """[kind, chunk, microbatch, step] a worker's computes at the peers' speed.

    In each step they get the peers' median, for a worker may be slow in some steps only. Within the
    step the worker keeps its own variation, unless that is part of its slowness. Pauses keep their
    length.

    Args:
        own_s: its computes, seconds.
        like_peers: logarithm of the seconds if they were entirely like the peers'.
        fit: the fit, with the variation of computes.
    """
    over = np.log(np.maximum(own_s, _TINY_S)) - like_peers
    residual = over - np.median(over, axis=(1, 2), keepdims=True)
    excess = np.where(residual[0] > pause_residual(fit)[0], own_s[0] * -np.expm1(-residual[0]), 0.0)
    paused = excess > PAUSE_S
    residual[0][paused] = 0.0
    spread = SIGMA_OF_MAD * np.median(np.abs(residual), axis=(1, 2, 3))
    steady = spread <= UNSTEADY_RATIO * np.maximum(fit.sigma, _TINY_S)
    healthy: Array = np.exp(like_peers + np.where(steady[:, None, None, None], residual, 0.0))
    healthy[0] += np.where(paused, excess, 0.0)
    return healthy


def _middle(table: Array) -> Array:
    """The lower median over kinds and places: the smaller of two values has no pause."""
    flat = table.reshape(-1, *table.shape[2:])
    middle = (len(flat) - 1) // 2
    median: Array = np.partition(flat, middle, axis=0)[middle]
    return median


def _centre(cost: Array) -> Array:
    """The cost minus each replica's median over microbatches and steps."""
    centred: Array = cost - np.median(cost, axis=(0, 2), keepdims=True)
    return centred


def _slope(tables: list[Array], costs: list[Array]) -> Array:
    """[kind, chunk] how strongly the cost of microbatches shows, by least squares over the peers.

    The slope is about 1 where microbatches differ, and about 0 where the difference is noise. A
    loss layer dilutes it, for its cost depends on the tokens only.
    """
    x = np.concatenate([cost.ravel() for cost in costs])
    x = x - x.mean()
    shape = tables[0].shape[:2]
    slope = np.zeros(shape)
    for at in np.ndindex(*shape):
        y = np.concatenate([table[at].ravel() for table in tables])
        y = y - np.median(y)
        far = np.abs(y - x)
        inside = far <= 4 * np.median(far) + 1e-12  # pauses lie outside
        square = float(x[inside] @ x[inside])
        slope[at] = float(x[inside] @ y[inside]) / square if square > 0 else 0.0
    return slope
