"""Launch delays that stay if other durations change: program order does not explain them.

A program mostly issues a receive behind the compute before it, of either direction. The graph
allows an earlier launch (what-if paper, 3.2). The difference is a delay as long as the worker's
lead over its neighbours (in the real job ST up to 0.5 s). It vanishes with the slowness, so
predictions must not replay it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, Measured
from paceline.remedies.program_order import ops_of
from paceline.simulate import timeline
from paceline.trace import OpKind
from paceline.trace.kinds import P2P_KINDS

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def launch_overheads(measured: Measured, ties: Ints | None = None) -> Durations:
    """The launch delays; delays of sends and recvs count only from the end of a compute.

    Args:
        measured: the trace.
        ties: [tie, 2] a compute, and a send or recv that waits for it, beyond the graph's own.

    Returns:
        seconds in the layout of ``measured.delays``. For a send or recv: the time since its worker
        last ended a compute, if that is less than its delay.
    """
    graph = measured.graph
    line = timeline(measured.durations, None, measured.delays)
    changed = Durations(graph, measured.delays.n_steps, measured.delays.values.copy())
    for v in range(graph.n_variants):
        for stage in range(graph.n_pp):
            computes, transfers = ops_of(graph, v, stage)
            if len(transfers):
                since = _since_compute(line.end.block(v)[computes], line.start.block(v)[transfers])
                block = changed.block(v)
                block[transfers] = np.minimum(block[transfers], since)
    for compute, transfer in () if ties is None else ties.tolist():
        behind = np.maximum(line.start.row(transfer) - line.end.row(compute), 0.0)
        np.minimum(changed.row(transfer), behind, out=changed.row(transfer))
    return changed


def start_delays(measured: Measured, least_s: float) -> Durations | None:
    """The launch delays at the start of steps alone; None if those of every worker are short.

    Other small delays may be unrecorded waits, which shrink with the slowness. Sends and receives
    have none: a stage waits for its neighbours.

    Args:
        measured: the trace.
        least_s: least mean over the steps, of one worker, that counts.
    """
    graph = measured.graph
    first = graph.sources | ((graph.kind == OpKind.FORWARD_COMPUTE) & (graph.seq == 0))
    first &= ~np.isin(graph.kind, [int(kind) for kind in P2P_KINDS])
    changed = Durations(graph, measured.delays.n_steps, measured.delays.values.copy())
    longest_s = 0.0
    for v in range(graph.n_variants):
        block = changed.block(v)
        block[~first[graph.variant_ops(v)]] = 0.0
        longest_s = max(longest_s, float(block.mean(axis=1).max()))
    return changed if longest_s >= least_s else None


def _since_compute(ends: Array, starts: Array) -> Array:
    """[transfer, step, dp] seconds since the latest end of a compute; infinite before the first.

    Args:
        ends: [compute, step, dp].
        starts: [transfer, step, dp].
    """
    since = np.empty(starts.shape)
    for lane in np.ndindex(*starts.shape[1:]):
        ordered = np.append(-np.inf, np.sort(ends[:, *lane]))
        own = starts[:, *lane]
        # In simulated times, rounding may put the start of an op just before the compute's end.
        since[:, *lane] = own - ordered[np.searchsorted(ordered, own + 1e-9, side="right") - 1]
    return since
