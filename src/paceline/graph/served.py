"""Which microbatch and chunk a transfer serves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.graph.graph import StepGraph
from paceline.trace.kinds import TRANSFERS, OpKind

Ints = npt.NDArray[np.int64]


def served(graph: StepGraph) -> tuple[Ints, Ints]:
    """[op] chunk and microbatch; a transfer takes those of the compute it feeds or follows."""
    chunk, microbatch = graph.chunk.astype(np.int64), graph.microbatch.astype(np.int64)
    after = np.repeat(np.arange(graph.n_ops), np.diff(graph.dep_ptr))
    before = graph.dep
    for transfer, (compute, _) in TRANSFERS.items():
        receives = transfer in (OpKind.FORWARD_RECV, OpKind.BACKWARD_RECV)
        first, second = (before, after) if receives else (after, before)
        tied = (graph.kind[first] == transfer) & (graph.kind[second] == compute)
        chunk[first[tied]] = graph.chunk[second[tied]]
        microbatch[first[tied]] = graph.microbatch[second[tied]]
    return chunk, microbatch
