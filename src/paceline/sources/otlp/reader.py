"""Megatron-LM's OpenTelemetry spans, out of the Collector's or the receiver's files.

The spans, from Paceline's issue 6: ``megatron.train_step`` {megatron.iteration},
``megatron.microbatch.forward`` {megatron.microbatch_id} and ``.backward``,
``megatron.p2p.{send,recv}_{forward,backward}``, ``megatron.grad_sync.*``,
``megatron.optimizer_step``; the rank in the resource attribute ``service.instance.id``, the degrees
of parallelism in ``dl.*_parallel.size``. From memory of Megatron-LM, not compared with its
source: the words for ``*`` (data, pipeline, tensor, context, virtual_pipeline; embedding and
layernorm below grad_sync), that one P2P span may be a send and a recv
(``send_forward_recv_backward``), and the order of ranks, its default ``tp-cp-ep-dp-pp``:

    rank = ((stage * dp_size + dp) * cp_size + cp) * tp_size + tp

A span belongs to the train_step of its rank in which it starts, so the order of the file does not
matter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline.errors import TraceError
from paceline.sources.fields import mapping, optional_whole
from paceline.sources.imported import Imported, OpTable
from paceline.sources.json_stream import head
from paceline.sources.megatron_place import MegatronPlace
from paceline.sources.otlp import json_encoding
from paceline.sources.otlp.json_encoding import (
    attributes_of,
    resources,
    resources_of,
    spans_of,
    times_of,
)
from paceline.sources.span_table import SpanTable
from paceline.trace import Job, OpKind

#: The file that the receiver (``paceline otlp``) fills in its folder.
FILE_NAME = "otlp.jsonl"

STEP = "megatron.train_step"
ITERATION, MICROBATCH, RANK = "megatron.iteration", "megatron.microbatch_id", "service.instance.id"

_KINDS = {
    "megatron.microbatch.forward": OpKind.FORWARD_COMPUTE,
    "megatron.microbatch.backward": OpKind.BACKWARD_COMPUTE,
    "megatron.optimizer_step": OpKind.OPTIMIZER,
}
_TRANSFERS = {
    "send_forward": OpKind.FORWARD_SEND,
    "recv_forward": OpKind.FORWARD_RECV,
    "send_backward": OpKind.BACKWARD_SEND,
    "recv_backward": OpKind.BACKWARD_RECV,
}
_TRANSFER = re.compile("|".join(_TRANSFERS))
_GRAD_SYNC = (
    ("embedding", OpKind.EMBEDDING_GRADS_ALL_REDUCE),
    ("layernorm", OpKind.LAYERNORM_GRADS_ALL_REDUCE),
    ("", OpKind.GRADS_REDUCE_SCATTER),
)

#: As NDTimeline's: counting by order is right for every schedule that runs microbatches in order;
#: with several chunks per stage it takes Megatron's interleaved order for granted.
CERTAINTY_BY_ORDER, CERTAINTY_CHUNKS = 0.95, 0.8

_HOST_TIMES = (
    "times are the host's: a span ends when the host is done with the call, for CUDA work that is "
    "its launch; sends and receives are worth little unless the job waits for them"
)
_RANK = re.compile(r"(?:rank[ _:=-]*)?(\d{1,9})", re.IGNORECASE)


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
        TraceError: a file is damaged or has no span of Megatron-LM, a rank or degree is missing, or
            ranks disagree.
    """
    files = [path / FILE_NAME if path.is_dir() else path for path in paths]
    where = str(files[0]) if len(files) == 1 else f"{len(files)} OTLP files"
    return _import((resource for file in files for resource in resources(file)), where, job, steps)


def read_requests(
    requests: Iterable[Mapping[str, Any]],
    where: str = "OTLP",
    job: Job | None = None,
    steps: frozenset[int] | None = None,
) -> Imported:
    """Read parsed ExportTraceServiceRequests, in the JSON encoding; else like :func:`read`."""
    placed = (
        resource
        for n, request in enumerate(requests, 1)
        for resource in resources_of(request, f"{where}, {n}")
    )
    return _import(placed, where, job, steps)


def check_request(request: Any, where: str) -> int:
    """Check a request as :func:`read` will, span by span; returns how many spans it has.

    Raises:
        TraceError: it is no ExportTraceServiceRequest, or a span of Megatron-LM lacks its rank,
            times or number, so that no file with it could be read.
    """
    spans, place_of = SpanTable(), MegatronPlace()
    for place, resource in resources_of(request, where):
        _add_resource(spans, place_of, resource, place, Counter(), Counter())
    return json_encoding.check_request(request, where)


def _import(
    placed: Iterable[tuple[str, Mapping[str, Any]]],
    where: str,
    job: Job | None,
    steps: frozenset[int] | None,
) -> Imported:
    spans, place_of = SpanTable(), MegatronPlace()
    others, unplaced = Counter[str](), Counter[str]()
    for place, resource in placed:
        _add_resource(spans, place_of, resource, place, others, unplaced)
    if not len(spans):
        if unplaced:
            raise TraceError(
                f"{where} has {unplaced.total()} spans of Megatron-LM, none of which has an end; "
                "let the job export them once they are over"
            )
        names = f" (spans: {', '.join(sorted(others)[:5])})" if others else ""
        raise TraceError(
            f"{where} has no span of Megatron-LM, such as {STEP}{names}; run the job with "
            "MEGATRON_OTEL_ENABLED=1"
        )
    job = place_of.job(job, where)
    ops = OpTable()
    by_order = _fill(ops, spans, job, where, unplaced)
    notes = [_HOST_TIMES, "dp and stage follow from the rank in Megatron's order (tp, cp, dp, pp)"]
    certainty = 1.0
    if job.vpp_size > 1:
        certainty = CERTAINTY_CHUNKS
        notes.append("chunks and microbatches follow Megatron's interleaved order")
    elif by_order:
        certainty = CERTAINTY_BY_ORDER
        notes.append("microbatches of spans without megatron.microbatch_id are counted by start")
    if spans.repeated:
        notes.append(f"{spans.repeated} spans were there twice (sent again?) and count once")
    if others:
        few = ", ".join(name for name, _ in others.most_common(5))
        notes.append(f"{others.total()} spans are no operations and were passed over: {few}")
    return ops.finish(
        job,
        where,
        steps=steps,
        unplaced=unplaced,
        certainty=certainty,
        notes=tuple(notes),
        by_order=True,
    )


def _add_resource(
    spans: SpanTable,
    place_of: MegatronPlace,
    resource: Mapping[str, Any],
    place: str,
    others: Counter[str],
    unplaced: Counter[str],
) -> None:
    """Add the spans of one process; other services' in the same file are passed over."""
    rank: int | None = None
    attributes_of_process = attributes_of(mapping(resource, "resource"), place)
    for span in spans_of(resource, place):
        name = _printable(span.get("name"))
        kinds = kinds_of(name)
        if name != STEP and not kinds:
            if name in others or len(others) < 1000:
                others[name] += 1
            continue
        if rank is None:
            rank = rank_of(attributes_of_process, place)
            place_of.add_sizes(attributes_of_process, rank, place)
        attributes = attributes_of(span, place)
        start_ns, end_ns = times_of(span, name, rank, place)
        if not end_ns:
            unplaced["that have no end"] += 1
        elif name == STEP:
            place_of.add_sizes(attributes, rank, place)
            iteration = optional_whole(attributes.get(ITERATION))
            if iteration is None:
                raise TraceError(f"{place}: a {STEP} of rank {rank} lacks {ITERATION}, its number")
            spans.add_step(rank, iteration, start_ns, end_ns)
        else:
            microbatch = optional_whole(attributes.get(MICROBATCH))
            for kind in kinds:
                spans.add_op(rank, kind, microbatch, start_ns, end_ns, _ids(span))


def _printable(name: Any) -> str:
    """A span's name without what would control the terminal."""
    text = str(name)[:80] if isinstance(name, str) else type(name).__name__
    return text if text.isprintable() else ascii(text)


@lru_cache(maxsize=1024)
def kinds_of(name: str) -> tuple[OpKind, ...]:
    """The operations that a span of this name is; none where it is another one."""
    if name in _KINDS:
        return (_KINDS[name],)
    if name.startswith("megatron.p2p."):
        return tuple(_TRANSFERS[word] for word in _TRANSFER.findall(name))
    if name.startswith("megatron.grad_sync."):
        return (next(kind for word, kind in _GRAD_SYNC if word in name),)
    return ()


def rank_of(resource: Mapping[str, Any], place: str) -> int:
    """The rank of a process, by the attributes of its resource.

    Raises:
        TraceError: they do not say it.
    """
    match = _RANK.fullmatch(str(resource.get(RANK, "")).strip())
    rank = optional_whole(match[1]) if match else None
    if rank is None:
        text = repr(resource[RANK])[:40] if RANK in resource else "missing"
        raise TraceError(
            f"{place}: the resource attribute {RANK} should be the rank, but is {text}; set it "
            "for every process (OTEL_RESOURCE_ATTRIBUTES)"
        )
    return rank


def _ids(span: Mapping[str, Any]) -> tuple[str, str, str]:
    """(trace, span, parent) in one form of hex."""
    return (
        str(span.get("traceId", "")).lower(),
        str(span.get("spanId", "")).lower(),
        str(span.get("parentSpanId", "")).lower(),
    )


def _fill(ops: OpTable, spans: SpanTable, job: Job, where: str, unplaced: Counter[str]) -> bool:
    """Put the spans that lie in a step into the table; whether some had no microbatch."""
    by_order = False
    tp_cp = job.tp_size * job.dsp_size
    for rank, step, kind, microbatch, start_s, end_s in spans.ops(where):
        if step < 0:
            unplaced[f"outside of any {STEP}"] += 1
            continue
        compute = kind in (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE)
        has_microbatch = compute and microbatch >= 0 and job.vpp_size == 1
        by_order |= compute and not has_microbatch
        ops.add(
            rank=rank,
            dp=rank // tp_cp % job.dp_size,
            pp=rank // (tp_cp * job.dp_size),
            step=step,
            kind=OpKind(kind),
            start_s=start_s,
            end_s=end_s,
            chunk=0 if has_microbatch else -1,
            microbatch=microbatch if has_microbatch else -1,
        )
    return by_order
