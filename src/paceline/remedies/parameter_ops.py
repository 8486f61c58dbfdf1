"""Gathers, reductions and the optimizer: ops on parameters grow with a stage's layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, StepGraph
from paceline.trace import OpKind

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PARAMETER_KINDS = (OpKind.PARAMS_ALL_GATHER, OpKind.GRADS_REDUCE_SCATTER, OpKind.OPTIMIZER)


class ParameterOps:
    """Scales the ops that handle parameters when layers move.

    A kind that takes equally long on stages with different numbers of layers (padded buckets, say)
    does not grow with the layers. If all stages have the same number of layers, growth is assumed.
    """

    def __init__(self, durations: Durations, layers: tuple[int, ...], n_pp: int) -> None:
        """From the traced durations and the present layers [virtual stage]."""
        self.now, self.n_pp = np.array(layers), n_pp
        graph = durations.graph
        #: Per variant: (op counted from the variant's first, stage, chunk or -1).
        self.ops: list[list[tuple[int, int, int]]] = []
        growing = [kind for kind in PARAMETER_KINDS if self._grows(durations, kind)]
        for v in range(graph.n_variants):
            span = graph.variant_ops(v)
            ops = np.flatnonzero(np.isin(graph.kind[span], [int(kind) for kind in growing]))
            stages, chunks = graph.pp[span][ops].tolist(), graph.chunk[span][ops].tolist()
            self.ops.append(list(zip(ops.tolist(), stages, chunks, strict=True)))

    def _per_stage(self, layouts: Ints) -> Ints:
        """[layout, stage] layers of all chunks of a stage, from [layout, virtual stage]."""
        per_stage: Ints = layouts.reshape(len(layouts), -1, self.n_pp).sum(axis=1)
        return per_stage

    def _grows(self, durations: Durations, kind: OpKind) -> bool:
        """Whether the kind grows with layers: seconds per layer vary less than seconds."""
        graph, seconds, layers = durations.graph, list[float](), list[int]()
        now = self._per_stage(self.now[None])[0]
        for stage in range(self.n_pp):
            ops = np.flatnonzero((graph.kind == kind) & (graph.pp == stage))
            if len(ops) and now[stage]:
                rows = [float(np.median(durations.row(op))) for op in ops.tolist()]
                seconds.append(max(sum(rows), 1e-9))
                layers.append(int(now[stage]))
        if len(seconds) < 2:
            return bool(seconds)
        logs, sizes = np.log(seconds), np.log(layers)
        return _spread(logs - sizes) <= _spread(logs) + 1e-9

    def scale(self, durations: Durations, variant: int, layouts: Ints) -> None:
        """Make the ops longer or shorter, in place.

        Args:
            durations: durations with candidates on the step axis, or one layout in all steps.
            variant: replica structure.
            layouts: [layout, virtual stage] one per candidate, or one for all.
        """
        block = durations.block(variant)
        of_stage = self._per_stage(layouts) / np.maximum(self._per_stage(self.now[None]), 1)
        of_chunk = layouts / np.maximum(self.now, 1)
        for op, stage, chunk in self.ops[variant]:
            virtual = chunk * self.n_pp + stage
            block[op] *= (of_stage[:, stage] if chunk < 0 else of_chunk[:, virtual])[:, None]


def stay_late(new: Durations, old: Durations, late: Sequence[Mapping[str, Any]]) -> None:
    """Keep late members late in each of the new collectives, in place.

    Args:
        new: durations of a job whose chunks have their own collectives, each with a share of the
            time.
        old: durations of the present job.
        late: members, as a finding lists them (``dp``, ``stage``, ``kind``, ``late_s``).
    """
    for member in late:
        kind, stage, dp = OpKind.from_label(member["kind"]), int(member["stage"]), int(member["dp"])
        old_ops, new_ops = (_of_worker(times.graph, kind, stage, dp) for times in (old, new))
        if len(new_ops) <= len(old_ops):
            continue
        v, index = int(new.graph.replica_variant[dp]), int(new.graph.dp_index[dp])
        share = 1 - len(old_ops) / len(new_ops)
        new.block(v)[new_ops, :, index] += share * float(member["late_s"])


def _of_worker(graph: StepGraph, kind: OpKind, stage: int, dp: int) -> Ints:
    """Ops of one kind of a worker, counted from its variant's first op."""
    span = graph.variant_ops(int(graph.replica_variant[dp]))
    ops: Ints = np.flatnonzero((graph.kind[span] == kind) & (graph.pp[span] == stage))
    return ops


def _spread(values: Array) -> float:
    """Mean distance of values from their median."""
    return float(np.abs(values - np.median(values)).mean())
