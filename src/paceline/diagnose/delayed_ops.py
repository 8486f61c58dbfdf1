"""Workers whose operations of one kind begin late, by work of their hosts before them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.diagnose.levels import lower_median
from paceline.diagnose.long_waits import MIN_BEYOND, long_waits, not_by_chance
from paceline.graph import Measured
from paceline.trace import OpKind

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Least share of the steps in which the delay of a worker that is delayed in most of them is long.
MIN_STEPS = 0.75

#: Workers wait alike if the shortest of their waits is at least this share of the longest, and one
#: wait is this share of all of the step's. (Median of a step of three gloo ranks whose
#: loop has a collective that is not recorded: 0.89; of three jobs without one: 0.17 to 0.38.)
ALIKE = 0.75


@dataclass(frozen=True)
class DelayedOps:
    """Workers whose operations of a kind wait for their host longer than those of the peers.

    Attributes:
        workers: (dp, pp), the most delayed first.
        delay_s: the median delay of a long step, of each of them.
        peers_s: that of the peers.
        steps: [step] whether the first worker's delay is beyond its peers'.
    """

    workers: tuple[tuple[int, int], ...]
    delay_s: tuple[float, ...]
    peers_s: float
    steps: Mask


def delayed_ops(measured: Measured, label: str, least_s: float) -> DelayedOps | None:
    """The workers that are delayed before operations of a kind; None if none stands out.

    They are delayed in most steps, or in more of the few steps with long delays than chance
    explains.

    Args:
        measured: the job.
        label: of the kind of operation.
        least_s: least delay of a step beyond the peers', seconds.
    """
    delay_s = _delays(measured, OpKind.from_label(label))
    if delay_s.shape[1] < 2:
        return None
    peers = lower_median(np.moveaxis(delay_s, 1, 0))
    beyond = delay_s - peers[:, None, :]
    longest = beyond.max(axis=(1, 2))
    long = np.ones(len(longest), dtype=bool)
    typical = np.median(beyond, axis=0)
    bar = max(least_s, MIN_BEYOND * float(np.median(longest)))
    named = np.argwhere((typical >= bar) & ((beyond >= bar).mean(axis=0) >= MIN_STEPS))
    if not len(named):
        long = long_waits(longest)
        if long.all():
            return None
        typical = np.median(beyond[long], axis=0)
        bar = MIN_BEYOND * float(np.median(longest[long]))
        costs = np.where(long[:, None, None], beyond, 0.0).mean(axis=0) >= least_s
        named = not_by_chance(np.argwhere((typical >= bar) & costs), beyond[long])
    if not len(named):
        return None
    order = np.argsort([-typical[dp, pp] for dp, pp in named], kind="stable")
    workers = tuple((int(dp), int(pp)) for dp, pp in named[order])
    first = workers[0]
    return DelayedOps(
        workers,
        tuple(float(np.median(delay_s[long, dp, pp])) for dp, pp in workers),
        float(np.median(peers[long, first[1]])),
        long & (beyond[:, first[0], first[1]] >= bar),
    )


def alike_s(measured: Measured, label: str, least_s: float) -> float | None:
    """The wait before operations of a kind that all workers share; None if they wait differently.

    It is one wait in a step. Many short ones are the host's overhead.

    Args:
        measured: the job.
        label: of the kind of operation.
        least_s: least median wait of a step, seconds.

    Returns:
        The median over the steps of the shortest wait of a worker, seconds.
    """
    kind = OpKind.from_label(label)
    delay_s, longest_s = _delays(measured, kind), _delays(measured, kind, np.maximum)
    least, most = longest_s.min(axis=(1, 2)), delay_s.max(axis=(1, 2))
    shared_s = float(np.median(least))
    if delay_s[0].size < 2 or shared_s < least_s or shared_s < ALIKE * float(np.median(most)):
        return None
    return shared_s


def delays_beyond_s(measured: Measured, label: str) -> Array:
    """[step, dp, pp] the same delays beyond those of the peers."""
    delay_s = _delays(measured, OpKind.from_label(label))
    beyond: Array = delay_s - lower_median(np.moveaxis(delay_s, 1, 0))[:, None, :]
    return beyond


def _delays(measured: Measured, kind: OpKind, joined: np.ufunc = np.add) -> Array:
    """[step, dp, pp] launch delays of a worker's operations of a kind, joined, seconds."""
    graph = measured.graph
    delay_s = np.zeros((measured.durations.n_steps, graph.n_dp, graph.n_pp))
    for v in range(graph.n_variants):
        span, block = graph.variant_ops(v), measured.delays.block(v)
        for stage in range(graph.n_pp):
            ops = np.flatnonzero((graph.kind[span] == kind) & (graph.pp[span] == stage))
            delay_s[:, graph.variant_dps[v], stage] = joined.reduce(
                block[ops].clip(0), axis=0, initial=0.0
            )
    return delay_s
