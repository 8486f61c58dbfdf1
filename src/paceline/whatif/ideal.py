"""Ideal durations: what every op would take if its kind had no stragglers (what-if paper, 3.2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations
from paceline.trace import OpKind
from paceline.trace.kinds import MEAN_KINDS


def ideal_durations(durations: Durations) -> npt.NDArray[np.float64]:
    """[op] one duration per kind, over all steps, ranks and microbatches, seconds.

    The mean for forward, backward, gc and optimizer (their work could be rebalanced), the median
    for everything else (a flapping link would drag a mean up). No-op sends and recvs do not count;
    each gets the mean of its own durations.
    """
    graph = durations.graph
    ideal = np.zeros(graph.n_ops)
    for kind in OpKind:
        ops = np.flatnonzero((graph.kind == kind) & ~graph.noop)
        if not len(ops):
            continue
        values = np.concatenate([_rows(durations, v, ops).ravel() for v in range(graph.n_variants)])
        ideal[ops] = (
            values.mean() if kind in MEAN_KINDS else np.median(values, overwrite_input=True)
        )
    for v in range(graph.n_variants):
        noops = np.flatnonzero(graph.noop & (graph.variant == v))
        ideal[noops] = _rows(durations, v, noops).mean(axis=(1, 2))
    return ideal


def _rows(
    durations: Durations, variant: int, ops: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """[op, step, dp] durations of those of ``ops`` that belong to the variant."""
    span = durations.graph.variant_ops(variant)
    inside = ops[(ops >= span.start) & (ops < span.stop)] - span.start
    rows: npt.NDArray[np.float64] = durations.block(variant)[inside]
    return rows
