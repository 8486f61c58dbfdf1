"""Operations as drawable events, from a simulated timeline or unchanged from a trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.graph.served import served, served_in_programs
from paceline.simulate import Timeline
from paceline.trace import OpKind, Trace
from paceline.trace.kinds import DP_KINDS, PASSES, PEER_KINDS, TRANSFERS

#: Collectives of units, buckets or layers.
_PART_KINDS = (DP_KINDS | PEER_KINDS) - {OpKind.OPTIMIZER_CLIP_MAIN_GRAD}

Ints = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Events:
    """One entry per operation, in any order.

    Attributes:
        step: step number.
        dp: data-parallel rank.
        pp: stage.
        kind: :class:`OpKind`.
        seq: number within its kind, worker and step.
        chunk: model chunk on the stage, -1 = not applicable; a transfer has its compute's chunk.
        microbatch: microbatch, -1 = not applicable or unknown; a transfer has its compute's
            microbatch.
        start_s: launch, seconds since the step's start.
        end_s: end, seconds since the step's start.
        part: number of a compute within its pass, or unit or bucket of a collective; -1: there is
            only one. None: passes are whole.
    """

    step: Ints
    dp: Ints
    pp: Ints
    kind: Ints
    seq: Ints
    chunk: Ints
    microbatch: Ints
    start_s: npt.NDArray[np.float64]
    end_s: npt.NDArray[np.float64]
    part: Ints | None = None

    def __len__(self) -> int:
        return len(self.step)


def from_timeline(timeline: Timeline, steps: Ints, replicas: Sequence[int] | None = None) -> Events:
    """The events of a simulated timeline.

    Args:
        timeline: start and end of every op.
        steps: [step] their numbers.
        replicas: data-parallel ranks to take; None takes all.
    """
    graph = timeline.graph
    drawn_dps = np.arange(graph.n_dp) if replicas is None else np.unique(np.asarray(replicas))
    chunk, microbatch = served(graph)
    part = _named_parts(graph.kind, graph.part) if graph.programmed else None
    blocks: list[list[npt.NDArray[Any]]] = []
    for v, all_dps in enumerate(graph.variant_dps):
        dps = np.intersect1d(all_dps, drawn_dps)
        ops = graph.variant_ops(v)
        shape = (len(steps), len(dps), ops.stop - ops.start)
        columns = [
            steps[:, None, None],
            dps[:, None],
            *(a[ops] for a in (graph.pp, graph.kind, graph.seq, chunk, microbatch)),
        ]
        dp_columns = graph.dp_index[dps]
        times = (
            table.block(v)[:, :, dp_columns].transpose(1, 2, 0).ravel()
            for table in (timeline.start, timeline.end)
        )
        labels = [np.broadcast_to(a, shape).ravel() for a in columns]
        parts = [] if part is None else [np.broadcast_to(part[ops], shape).ravel()]
        blocks.append([*labels, *times, *parts])
    joined: Iterable[npt.NDArray[Any]] = map(np.concatenate, zip(*blocks, strict=True))
    return Events(*joined)


def from_rows(trace: Trace, replicas: Sequence[int] | None = None) -> Events:
    """The events of a trace, as traced.

    Args:
        trace: the trace.
        replicas: data-parallel ranks to take; None takes all.
    """
    chunk, microbatch = _served_rows(trace)
    dp = trace.replica
    keep = np.full(len(trace), True) if replicas is None else np.isin(dp, list(replicas))
    labels = (trace.step, dp, trace.pp, trace.kind, trace.seq, chunk, microbatch)
    columns: list[npt.NDArray[Any]] = [*labels, trace.start, trace.end]
    if trace.program is not None:
        columns.append(_named_parts(trace.kind, trace.program.part))
    return Events(*(column[keep] for column in columns))


def _named_parts(kind: Ints, part: Ints) -> Ints:
    """[op] its part if its pass has several parts, otherwise -1."""
    numbered = np.isin(kind, [int(k) for k in _PART_KINDS])
    for compute in PASSES:
        own = kind == compute
        numbered |= own & bool(part[own].any())
    return np.where(numbered, part, -1)


def _served_rows(trace: Trace) -> tuple[Ints, Ints]:
    """Chunk and microbatch of a trace's rows: transfer k serves compute k if counts agree."""
    chunk, microbatch = trace.chunk.astype(np.int64), trace.microbatch.astype(np.int64)
    if trace.program is not None:
        worker = np.repeat(np.arange(trace.counts[..., 0].size), trace.counts.sum(axis=-1).ravel())
        first = trace.program.part == 0
        return served_in_programs(worker, trace.pp, trace.kind, first, chunk, microbatch)
    counts = trace.counts.astype(np.int64)
    first = (np.cumsum(counts.ravel()) - counts.ravel()).reshape(counts.shape)
    cell = np.repeat(np.arange(counts.size), counts.ravel())
    seq = np.arange(len(trace)) - first.ravel()[cell]
    for transfer, (compute, _) in TRANSFERS.items():
        equal_counts = counts[..., transfer] == counts[..., compute]
        towards = np.full(counts.shape, -1)
        towards[..., transfer] = np.where(equal_counts, first[..., compute], -1)
        row_of = towards.ravel()[cell]
        rows = np.flatnonzero(row_of >= 0)
        served = row_of[rows] + seq[rows]
        chunk[rows], microbatch[rows] = trace.chunk[served], trace.microbatch[served]
    return chunk, microbatch


def label(kind: OpKind, microbatch: int, chunk: int, seq: int, part: int = -1) -> str:
    """A short name: ``F3``, ``send B3``, ``F3 c1`` (chunk 1), ``grads-reduce-scatter``.

    Pass -1 as ``chunk`` if the job has one chunk per stage. Part 2 of a forward is ``F3.2``, the
    gather of unit 2 ``params-all-gather 2``.
    """
    if kind not in TRANSFERS and kind not in PASSES:
        name = kind.label if part < 0 else f"{kind.label} {part}"
        return name if chunk < 0 else f"{name} c{chunk}"
    direction = kind.name[0]  # forward, backward, weight
    prefix = {"SEND": "send ", "RECV": "recv "}.get(kind.name.rpartition("_")[2], "")
    number = f"{direction}{microbatch}" if microbatch >= 0 else f"{direction} #{seq}"
    number += f".{part}" if part >= 0 else ""
    return prefix + number + (f" c{chunk}" if chunk >= 0 else "")
