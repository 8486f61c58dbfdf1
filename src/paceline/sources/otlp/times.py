"""Megatron-LM's spans of any ranks -> times of steps and computes on their hosts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.host_times.table import COMPUTE, STEP, WAIT, Array, HostTimes, tables
from paceline.sources.otlp.names import SYNC_START
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
    samples: dict[tuple[str, int, int], float] = defaultdict(float)
    for rank, step, start_ns, end_ns in whole.T.tolist():
        samples[STEP, step, rank] = (end_ns - start_ns) * 1e-9
    if not samples:
        raise TraceError(f"{where} has no whole step; is it cut off?")
    with_steps = set(whole[0].tolist())
    ops = spans.table.ops(where)
    for rank, step, kind, _, start_s, end_s in ops.rows(np.arange(len(ops))):
        if rank in with_steps and step >= 0 and kind != SYNC_START:
            for measure in _MEASURES[OpKind(kind)]:
                samples[measure, step, rank] += end_s - start_s
    steps, ranks = np.unique(whole[1]), np.unique(whole[0])
    groups, names = _groups(spans, ranks, where)
    return HostTimes(
        format="otlp",
        steps=steps,
        ranks=ranks,
        groups=groups,
        group_names=names,
        seconds=_ordered(tables(samples, steps.tolist(), ranks.tolist())),
        ranges={},
        notes=_notes(spans, len(ranks)),
    )


def _ordered(seconds: dict[str, Array]) -> dict[str, Array]:
    names = dict.fromkeys((STEP, COMPUTE, *(name for of in _MEASURES.values() for name in of)))
    return {name: seconds[name] for name in names if name in seconds}


def _groups(
    spans: Spans, ranks: npt.NDArray[np.int64], where: str
) -> tuple[npt.NDArray[np.int64], dict[int, str]]:
    """[rank] the stage, if the attributes have the degrees; else all are alike."""
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
