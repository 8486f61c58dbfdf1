"""Megatron-LM's OpenTelemetry spans, from the Collector's or the receiver's files.

:mod:`paceline.sources.otlp.names` has the names, and the versions of Megatron-LM and NeMo Lens that
they were held against. The rank is ``dl.rank``. The rank's place follows from it by Megatron's
default order of ranks (``tp-cp-ep-dp-pp``):

    rank = ((stage * dp_size + dp) * cp_size + cp) * tp_size + tp

A span belongs to the step of its rank in which it starts, so the order of the file does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import TraceError
from paceline.sources.fields import mapping, optional_whole
from paceline.sources.imported import Imported, OpTable
from paceline.sources.json_stream import head
from paceline.sources.megatron_place import MegatronPlace
from paceline.sources.otlp import json_encoding
from paceline.sources.otlp.environment import GROUPS
from paceline.sources.otlp.json_encoding import (
    attributes_of,
    resources,
    resources_of,
    spans_of,
    times_of,
)
from paceline.sources.otlp.names import (
    ITERATION,
    MICROBATCH,
    MICROBATCHES,
    PASSES,
    STEP,
    STEPS,
    TRUNCATED,
    is_used,
    kind_of,
    rank_of,
)
from paceline.sources.otlp.transfers import Row, complete
from paceline.sources.span_table import SpanOps, SpanTable
from paceline.trace import Job, OpKind

#: The file that the receiver (``paceline otlp``) fills in its folder.
FILE_NAME = "otlp.jsonl"

#: Certainty of microbatches counted by order, as for NDTimeline. The count is right for every
#: schedule that runs them in order. With several chunks per stage it assumes Megatron's order.
CERTAINTY_BY_ORDER, CERTAINTY_CHUNKS = 0.95, 0.8
#: Factor of the certainty if transfers had no span: their ends are only upper bounds.
CERTAINTY_REBUILT = 0.9

HOST_TIMES = (
    "times are the host's: a span ends when the host is done with the call. On a GPU a compute's "
    "span is only its launch. The GPU's time lies in the next call that waits for it, so "
    "computes look too short and transfers too long"
)
NO_SPANS = (
    "embedding and layernorm all-reduces, the gathers of parameters, data loading and garbage "
    "collection have no spans"
)


@dataclass
class Spans:
    """The content of files of spans, before a trace is made of it.

    Attributes:
        table: steps and operations.
        place: the degrees of parallelism and the ranks.
        others: name -> number of spans that are no part of a step.
        unplaced: reason -> number of spans that could not be used.
        microbatches: numbers of microbatches a step, in the spans around all microbatches.
    """

    table: SpanTable = field(default_factory=SpanTable)
    place: MegatronPlace = field(default_factory=MegatronPlace)
    others: Counter[str] = field(default_factory=Counter)
    unplaced: Counter[str] = field(default_factory=Counter)
    microbatches: set[int] = field(default_factory=set)

    def add_resource(self, resource: Mapping[str, Any], place: str) -> None:
        """Add the spans of one process; those of other services in the same file are skipped.

        Raises:
            TraceError: a span of a step lacks its rank, number or times.
        """
        rank: int | None = None
        attributes_of_process = attributes_of(mapping(resource, "resource"), place)
        for span in spans_of(resource, place):
            name = _printable(span.get("name"))
            if not is_used(name):
                if name in self.others or len(self.others) < 1000:
                    self.others[name] += 1
                continue
            if rank is None:
                rank = rank_of(attributes_of_process, place)
                self.place.add_sizes(attributes_of_process, rank, place)
            self._add_span(span, name, rank, place)

    def _add_span(self, span: Mapping[str, Any], name: str, rank: int, place: str) -> None:
        attributes = attributes_of(span, place)
        start_ns, end_ns = times_of(span, name, rank, place)
        if not end_ns:
            self.unplaced["that have no end"] += 1
        elif attributes.get(TRUNCATED):
            self.unplaced["that were open when the job stopped"] += 1
        elif name in STEPS:
            self.place.add_sizes(attributes, rank, place)
            iteration = optional_whole(attributes.get(ITERATION))
            if iteration is None:
                raise TraceError(f"{place}: a {name} of rank {rank} lacks {ITERATION}, its number")
            self.table.add_step(rank, iteration, start_ns, end_ns)
        elif name in PASSES:
            n_microbatches = optional_whole(
                attributes.get(MICROBATCHES, attributes.get(f"megatron.{MICROBATCHES}"))
            )
            if n_microbatches:
                self.microbatches.add(n_microbatches)
        else:
            microbatch = optional_whole(attributes.get(MICROBATCH))
            kind = kind_of(name)
            assert kind is not None  # is_used() says that the name is one of the three
            self.table.add_op(rank, kind, microbatch, start_ns, end_ns, _ids(span))


def matches(path: Path) -> bool:
    """Whether a file has OTLP spans, or a folder is the receiver's."""
    if path.is_dir():
        return (path / FILE_NAME).is_file()
    start = head(path)
    return start.lstrip().startswith("{") and '"resourceSpans"' in start


def read(
    paths: Sequence[Path], job: Job | None = None, steps: frozenset[int] | None = None
) -> Imported:
    """Read the spans of all ranks of a job.

    Args:
        paths: the collector's files, or the receiver's folder; ranks may be mixed.
        job: degrees of parallelism; None takes those in the attributes.
        steps: iterations to keep; None keeps all.

    Raises:
        TraceError: a file is damaged or has no span of Megatron-LM, or a rank or degree is missing.
            Or ranks disagree, or the spans are too few for a trace.
    """
    spans, where = read_spans(paths)
    return _import(spans, where, job, steps)


def read_spans(paths: Sequence[Path]) -> tuple[Spans, str]:
    """The spans of some files, and a name for the files in messages.

    Raises:
        TraceError: a file is damaged, or a span lacks its rank, number or times.
    """
    files = [path / FILE_NAME if path.is_dir() else path for path in paths]
    spans = Spans()
    for file in files:
        for place, resource in resources(file):
            spans.add_resource(resource, place)
    return spans, str(files[0]) if len(files) == 1 else f"{len(files)} OTLP files"


def read_requests(
    requests: Iterable[Mapping[str, Any]],
    where: str = "OTLP",
    job: Job | None = None,
    steps: frozenset[int] | None = None,
) -> Imported:
    """Read parsed ExportTraceServiceRequests, in the JSON encoding; otherwise like :func:`read`."""
    spans = Spans()
    for n, request in enumerate(requests, 1):
        for place, resource in resources_of(request, f"{where}, {n}"):
            spans.add_resource(resource, place)
    return _import(spans, where, job, steps)


def check_request(request: Any, where: str) -> int:
    """Check a request, span by span, as :func:`read` will; returns its number of spans.

    Raises:
        TraceError: it is no ExportTraceServiceRequest, or a span of Megatron-LM lacks its rank,
            times or number, so that no file with it could be read.
    """
    spans = Spans()
    for place, resource in resources_of(request, where):
        spans.add_resource(resource, place)
    return json_encoding.check_request(request, where)


def _import(spans: Spans, where: str, job: Job | None, steps: frozenset[int] | None) -> Imported:
    check_any(spans, where)
    measured = spans.table.ops(where)
    spans.unplaced[f"outside of any {STEP}"] += int((measured.step < 0).sum())
    _check_groups(measured, where)
    job = _with_chunks(spans.place.job(job, where), measured, spans, job)
    _check_ranks(measured, job, where)
    ops, by_order, n_rebuilt = OpTable(), False, 0
    by_step = np.argsort(measured.step, kind="stable")
    numbers, first = np.unique(measured.step[by_step], return_index=True)
    for number, which in zip(numbers, np.split(by_step, first[1:]), strict=True):
        if number >= 0:  # one step at a time: Python's rows take ten times the memory
            rows, n = complete((Row(*row) for row in measured.rows(which)), job, where)
            by_order |= _fill(ops, rows, job)
            n_rebuilt += n
    certainty, notes = _notes(spans, job, by_order, n_rebuilt)
    return ops.finish(
        job,
        where,
        steps=steps,
        unplaced=spans.unplaced,
        certainty=certainty,
        notes=notes,
        by_order=True,
    )


def check_any(spans: Spans, where: str) -> None:
    """Check that there is a span of a step or of its parts.

    Raises:
        TraceError: there is no such span; the message explains how to get them.
    """
    if len(spans.table):
        return
    if spans.unplaced:
        raise TraceError(
            f"{where} has {spans.unplaced.total()} spans of Megatron-LM, none of which has an end; "
            "let the job export them once they are over"
        )
    names = f" (spans: {', '.join(sorted(spans.others)[:5])})" if spans.others else ""
    enabled = "MEGATRON_OTEL_ENABLED=1"
    if any(name.startswith("megatron.") for name in spans.others):
        enabled = f"MEGATRON_OTEL_SPAN_GROUPS={GROUPS}: by default Megatron-LM sends no steps"
    raise TraceError(
        f"{where} has no span of Megatron-LM, such as {STEP}{names}; run the job with {enabled}"
    )


def _check_groups(ops: SpanOps, where: str) -> None:
    """Refuse spans without computes: a job may send steps only, which make no trace."""
    if not ((ops.kind == OpKind.FORWARD_COMPUTE) & (ops.step >= 0)).any():
        raise TraceError(
            f"{where} has no megatron.microbatch.forward in a step, so no trace can be made of it; "
            f"run the job with MEGATRON_OTEL_SPAN_GROUPS={GROUPS}, or see paceline times"
        )


def _with_chunks(job: Job, ops: SpanOps, spans: Spans, given: Job | None) -> Job:
    """The job with its virtual stages; without an attribute, by the forwards of a step."""
    if given is not None or job.vpp_size > 1 or len(spans.microbatches) != 1:
        return job
    forwards = (ops.kind == OpKind.FORWARD_COMPUTE) & (ops.step >= 0)
    cells = np.stack([ops.rank[forwards], ops.step[forwards]])
    most = int(np.unique(cells, axis=1, return_counts=True)[1].max())
    chunks, rest = divmod(most, next(iter(spans.microbatches)))
    return replace(job, vpp_size=chunks) if chunks > 1 and not rest and job.pp_size > 1 else job


def _check_ranks(ops: SpanOps, job: Job, where: str) -> None:
    """Check that each worker has a rank that sent spans."""
    peers = job.tp_size * job.dsp_size
    ranks = np.unique(ops.rank[ops.step >= 0])
    workers = set((ranks // peers).tolist())
    missing = next((w for w in range(job.dp_size * job.pp_size) if w not in workers), None)
    if missing is not None:
        raise TraceError(
            f"{where} has the spans of {len(ranks)} of {job.ranks} ranks; "
            f"{job.worker_name(missing % job.dp_size, missing // job.dp_size)} (rank "
            f"{missing * peers}) sent none in a step. Let all send: "
            "MEGATRON_OTEL_EXPORT_STRATEGY=all_ranks, or see paceline times"
        )


def _notes(spans: Spans, job: Job, by_order: bool, n_rebuilt: int) -> tuple[float, tuple[str, ...]]:
    """Certainty of the places, and notes on inferred facts."""
    notes = [
        HOST_TIMES,
        "dp and stage follow from the rank in Megatron's order (tp, cp, dp, pp)",
        NO_SPANS,
    ]
    certainty = 1.0
    if job.vpp_size > 1:
        certainty = CERTAINTY_CHUNKS
        notes.append("chunks and microbatches follow Megatron's interleaved order")
    elif by_order:
        certainty = CERTAINTY_BY_ORDER
        notes.append("microbatches of spans without megatron.microbatch_id are counted by start")
    if n_rebuilt:
        certainty *= CERTAINTY_REBUILT
        notes.append(
            f"{n_rebuilt} sends and recvs were fused calls, which have no span: each is taken to "
            "last from one compute to the next, or until the peer's call returned"
        )
    if spans.table.repeated:
        notes.append(f"{spans.table.repeated} spans were there twice (sent again?) and count once")
    if spans.others:
        few = ", ".join(name for name, _ in spans.others.most_common(5))
        notes.append(f"{spans.others.total()} spans are no operations and were passed over: {few}")
    return certainty, tuple(notes)


def _printable(name: Any) -> str:
    """A span's name without characters that would control the terminal."""
    text = str(name)[:80] if isinstance(name, str) else type(name).__name__
    return text if text.isprintable() else ascii(text)


def _ids(span: Mapping[str, Any]) -> tuple[str, str]:
    """(trace, span) in one form of hex."""
    return str(span.get("traceId", "")).lower(), str(span.get("spanId", "")).lower()


def _fill(ops: OpTable, rows: Iterable[Row], job: Job) -> bool:
    """Put the rows into the table; returns whether some had no microbatch."""
    by_order = False
    tp_cp = job.tp_size * job.dsp_size
    for row in rows:
        compute = row.kind in (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE)
        has_microbatch = compute and row.microbatch >= 0 and job.vpp_size == 1
        by_order |= compute and not has_microbatch
        ops.add(
            rank=row.rank,
            dp=row.rank // tp_cp % job.dp_size,
            pp=row.rank // (tp_cp * job.dp_size),
            step=row.step,
            kind=OpKind(row.kind),
            start_s=row.start_s,
            end_s=row.end_s,
            chunk=0 if has_microbatch else -1,
            microbatch=row.microbatch if has_microbatch else -1,
            issued=row.issued,
            awaited=row.awaited,
        )
    return by_order
