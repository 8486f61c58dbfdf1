"""Tables of the forward and backward computes of a job."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.graph.graph import Durations, StepGraph
from paceline.trace.kinds import OpKind

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

KINDS = (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE)


@dataclass(frozen=True)
class Computes:
    """The computes of a job, by place: a (stage, chunk), counted stage by stage.

    Attributes:
        ops: per variant [kind, place, microbatch] ops, counted from the variant's first.
        stage: [place].
    """

    ops: tuple[Ints, ...]
    stage: Ints

    def of_stage(self, variant: int, stage: int) -> Ints:
        """[kind, chunk, microbatch] ops of one stage."""
        ops: Ints = self.ops[variant][:, self.stage == stage]
        return ops

    def typical(self, durations: Durations) -> Array:
        """[kind, place] median seconds over microbatches, steps and replicas."""
        places = [
            np.concatenate(
                [durations.block(v)[ops[k, p]].ravel() for v, ops in enumerate(self.ops)]
            )
            for k in range(len(KINDS))
            for p in range(len(self.stage))
        ]
        return np.array([np.median(values) for values in places]).reshape(len(KINDS), -1)


def computes_of(graph: StepGraph) -> Computes:
    """The computes of a job, in tables."""
    n_chunks = max(1, int(graph.chunk[graph.kind <= OpKind.BACKWARD_COMPUTE].max()) + 1)
    tables = []
    for v in range(graph.n_variants):
        span = graph.variant_ops(v)
        of_kinds = []
        for kind in KINDS:
            ops = np.flatnonzero(graph.kind[span] == kind)
            place = graph.pp[span][ops] * n_chunks + np.maximum(graph.chunk[span][ops], 0)
            ops = ops[np.lexsort((graph.microbatch[span][ops], place))]
            of_kinds.append(ops.reshape(graph.n_pp * n_chunks, -1))
        tables.append(np.stack(of_kinds))
    return Computes(tuple(tables), np.repeat(np.arange(graph.n_pp), n_chunks))
