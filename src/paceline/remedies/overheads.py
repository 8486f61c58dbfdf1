"""Launch delays that stay whatever else changes: without what the order of the program explains.

A program issues a receive when it comes to it, mostly behind the compute before, of whichever
direction; the graph lets receives be launched as early as the paper says (3.2). Such a delay is as
long as the worker is ahead of its neighbours (in the real job ST up to 0.5 s). It goes when the
slowness goes, so predictions must not replay it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, Measured
from paceline.remedies.program_order import ops_of
from paceline.simulate import timeline

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def launch_overheads(measured: Measured, ties: Ints | None = None) -> Durations:
    """The launch delays, but of sends and recvs only what follows the end of a compute.

    Args:
        measured: the trace.
        ties: [tie, 2] a compute, and a send or recv that waits for it, beside the graph's own.

    Returns:
        seconds in the layout of ``measured.delays``: of a send or recv its start minus the latest
        end of a compute of its worker that ended before, if that is less than its delay.
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
        # Times of simulation: what starts as a compute ends may lie a rounding error before it.
        since[:, *lane] = own - ordered[np.searchsorted(ordered, own + 1e-9, side="right") - 1]
    return since
