"""The microbatch and chunk that a transfer serves."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.graph.graph import StepGraph
from paceline.trace.kinds import TRANSFERS, OpKind

Ints = npt.NDArray[np.int64]


def served(graph: StepGraph) -> tuple[Ints, Ints]:
    """[op] chunk and microbatch; a transfer has those of the compute before or after it."""
    chunk, microbatch = graph.chunk.astype(np.int64), graph.microbatch.astype(np.int64)
    if graph.programmed:
        worker = graph.variant * (int(graph.pp.max()) + 1) + graph.pp
        first = graph.pass_of == np.arange(graph.n_ops)
        return served_in_programs(worker, graph.pp, graph.kind, first, chunk, microbatch)
    after = np.repeat(np.arange(graph.n_ops), np.diff(graph.dep_ptr))
    before = graph.dep
    for transfer, (compute, _) in TRANSFERS.items():
        receives = transfer in (OpKind.FORWARD_RECV, OpKind.BACKWARD_RECV)
        first, second = (before, after) if receives else (after, before)
        tied = (graph.kind[first] == transfer) & (graph.kind[second] == compute)
        chunk[first[tied]] = graph.chunk[second[tied]]
        microbatch[first[tied]] = graph.microbatch[second[tied]]
    return chunk, microbatch


def served_in_programs(
    worker: Ints,
    pp: npt.NDArray[np.integer[Any]],
    kind: npt.NDArray[np.integer[Any]],
    first: npt.NDArray[np.bool_],
    chunk: Ints,
    microbatch: Ints,
) -> tuple[Ints, Ints]:
    """[op] chunk and microbatch where workers run programs; -1 where they are not clear.

    Count the passes of a worker (and chunk, if known) that have a transfer: the n-th transfer
    belongs to the n-th of these.

    Args:
        worker: [op] number of its worker; ops of a kind come in the order of their launches.
        pp: [op] stage.
        kind: [op] :class:`OpKind`.
        first: [op] whether it is the first part of its pass.
        chunk: [op] chunk, -1 = not applicable.
        microbatch: [op] microbatch, -1 = not applicable.
    """
    of_chunk, of_microbatch = chunk.copy(), microbatch.copy()
    last_pp, last_chunk = int(pp.max()), int(chunk.max())
    for transfer, (compute, at_first) in TRANSFERS.items():
        passes = np.flatnonzero((kind == compute) & first)
        end_pp, end_chunk = (0, 0) if at_first else (last_pp, last_chunk)
        inner = (pp[passes] != end_pp) | (chunk[passes] != end_chunk)
        ops = np.flatnonzero(kind == transfer)
        keys, index = np.unique(np.stack([worker[ops], chunk[ops]]), axis=1, return_inverse=True)
        for number, (own, named) in enumerate(keys.T.tolist()):
            transfers = ops[index.reshape(-1) == number]
            mine = worker[passes] == own
            if named >= 0:
                mine &= chunk[passes] == named
            for candidates in (passes[mine], passes[mine & inner]):
                if len(candidates) == len(transfers):
                    of_chunk[transfers] = chunk[candidates]
                    of_microbatch[transfers] = microbatch[candidates]
    return of_chunk, of_microbatch
