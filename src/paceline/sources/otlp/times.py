"""Megatron-LM's spans of any ranks -> times of steps and computes on their hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.host_times.table import COMPUTE, STEP, WAIT, Array, HostTimes, Samples
from paceline.sources.otlp.reader import HOST_TIMES, Spans, check_any, read_spans
from paceline.trace import OpKind

#: Kind -> the measures that its spans add to. A synchronisation's launch is no wait.
_MEASURES = {
    OpKind.FORWARD_COMPUTE: ("forward", COMPUTE),
    OpKind.BACKWARD_COMPUTE: ("backward", COMPUTE),
    OpKind.GRADS_REDUCE_SCATTER: (WAIT,),
    OpKind.OPTIMIZER: ("optimizer",),
    OpKind.FORWARD_SEND: ("transfers",),
    OpKind.FORWARD_RECV: ("transfers",),
    OpKind.BACKWARD_SEND: ("transfers",),
    OpKind.BACKWARD_RECV: ("transfers",),
}


def read_times(paths: Sequence[Path]) -> HostTimes:
    """The times in the spans of some ranks.

    Raises:
        TraceError: a file is damaged, or has no step.
    """
    spans, where = read_spans(paths)
    check_any(spans, where)
    whole = spans.table.steps()
    if not whole.size:
        raise TraceError(f"{where} has no whole step; is it cut off?")
    samples = Samples()
    rank, step, start_ns, end_ns = whole
    samples.add_all(STEP, step, rank, _seconds(start_ns, end_ns))
    steps, ranks = np.unique(step), np.unique(rank)
    ops = spans.table.ops(where)
    placed = np.isin(ops.rank, ranks) & (ops.step >= 0)
    for kind, measures in _MEASURES.items():
        of_kind = np.flatnonzero(placed & (ops.kind == kind))
        seconds = _seconds(ops.start_ns[of_kind], ops.end_ns[of_kind])
        for measure in measures if len(of_kind) else ():
            samples.add_all(measure, ops.step[of_kind], ops.rank[of_kind], seconds)
    groups, names = _groups(spans, ranks, where)
    return HostTimes(
        format="otlp",
        steps=steps,
        ranks=ranks,
        groups=groups,
        group_names=names,
        seconds=_ordered(samples.tables(steps, ranks, add_up=True)),
        ranges={},
        notes=_notes(spans, len(ranks)),
    )


def _seconds(start_ns: npt.NDArray[np.int64], end_ns: npt.NDArray[np.int64]) -> Array:
    return np.asarray((end_ns - start_ns) * 1e-9, dtype=np.float64)


def _ordered(seconds: dict[str, Array]) -> dict[str, Array]:
    names = dict.fromkeys((STEP, COMPUTE, *(name for of in _MEASURES.values() for name in of)))
    return {name: seconds[name] for name in names if name in seconds}


def _groups(
    spans: Spans, ranks: npt.NDArray[np.int64], where: str
) -> tuple[npt.NDArray[np.int64], dict[int, str]]:
    """[rank] the stage; without degrees in the attributes, all ranks are in one group."""
    try:
        job = spans.place.job(None, where)
    except TraceError:
        return np.zeros(len(ranks), dtype=np.int64), {0: ""}
    stage = ranks // (job.ranks // job.pp_size)
    return stage, {s: f"stage {s}" if job.pp_size > 1 else "" for s in range(job.pp_size)}


def _notes(spans: Spans, n_ranks: int) -> tuple[str, ...]:
    notes = [HOST_TIMES]
    if spans.place.world > n_ranks:
        notes.append(
            f"{n_ranks} of {spans.place.world} ranks sent spans; with "
            "MEGATRON_OTEL_EXPORT_STRATEGY=all_ranks all do"
        )
    counts = Counter({reason: n for reason, n in spans.unplaced.items() if n})
    notes += [f"{n} spans {reason} are left out" for reason, n in sorted(counts.items())]
    return tuple(notes)
