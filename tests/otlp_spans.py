"""Rows of a job -> spans as Megatron-LM names them, as OTLP's JSON.

More than Megatron-LM sends: every transfer has a span, and every compute its microbatch.
``megatron_spans_job.py`` sends what the tool itself sends.
"""

from collections.abc import Iterable
from itertools import pairwise

from jobs import Spec, make_rows

#: A job's operations that Megatron-LM has spans for: what to leave out of a ``Spec``.
WITH_SPANS = dict.fromkeys(("gc", "gather", "clip", "layernorm", "embedding"), False)

START_NS = 1_795_245_033_000_000_000
STEP_GAP_S = 0.05

NAMES = {
    "forward-compute": "megatron.microbatch.forward",
    "backward-compute": "megatron.microbatch.backward",
    "forward-send": "megatron.p2p.send_forward",
    "forward-recv": "megatron.p2p.recv_forward",
    "backward-send": "megatron.p2p.send_backward",
    "backward-recv": "megatron.p2p.recv_backward",
    "grads-reduce-scatter": "megatron.grad_sync.finish",
    "optimizer": "megatron.train.iteration.optimizer",
}


def attribute(name: str, value: object) -> dict:
    kind = "intValue" if isinstance(value, int) else "stringValue"
    return {"key": name, "value": {kind: str(value)}}


def spans_of_ranks(rows: Iterable[dict], tp: int = 1) -> dict[int, list[dict]]:
    """Rank -> its spans, each op's beneath that of its step; tensor-parallel peers say the same.

    A span is {name, start_ns, end_ns, id, parent, attributes}.
    """
    rows = list(rows)
    dp_size = 1 + max(row["dp"] for row in rows)
    base, length = START_NS, {}
    for row in rows:
        length[row["step"]] = max(length.get(row["step"], 0), row["start"] + row["duration"])
    begin = {}
    for step in sorted(length):
        begin[step] = base
        base += round((length[step] + STEP_GAP_S) * 1e9)
    spans: dict[int, list[dict]] = {}
    for row in rows:
        for t in range(tp):
            mine = spans.setdefault((row["pp"] * dp_size + row["dp"]) * tp + t, [])
            parent = f"{row['step'] + 1:016x}"
            if not any(span["id"] == parent for span in mine):
                mine.append(
                    {
                        "name": "megatron.train.iteration",
                        "start_ns": begin[row["step"]],
                        "end_ns": begin[row["step"]] + round(length[row["step"]] * 1e9),
                        "id": parent,
                        "parent": "",
                        "attributes": {"megatron.iteration": row["step"]},
                    }
                )
            start = begin[row["step"]] + round(row["start"] * 1e9)
            mine.append(
                {
                    "name": NAMES[row["kind"]],
                    "start_ns": start,
                    "end_ns": start + round(row["duration"] * 1e9),
                    "id": f"{len(mine) + 1_000_000:016x}",
                    "parent": parent,
                    "attributes": {"megatron.microbatch_id": row["microbatch"]}
                    if row["microbatch"] >= 0
                    else {},
                }
            )
    return spans


def sizes_of(rows: Iterable[dict], tp: int = 1) -> dict[str, int]:
    rows = list(rows)
    return {
        "dl.data_parallel.size": 1 + max(row["dp"] for row in rows),
        "dl.pipeline_parallel.size": 1 + max(row["pp"] for row in rows),
        "dl.tensor_parallel.size": tp,
    }


def request(rank: int, spans: Iterable[dict], sizes: dict[str, int]) -> dict:
    """One ExportTraceServiceRequest of one rank."""
    resource = {"service.name": "megatron", "service.instance.id": str(rank), **sizes}
    written = [
        {
            "traceId": f"{rank + 1:032x}",
            "spanId": span["id"],
            "parentSpanId": span["parent"],
            "name": span["name"],
            "kind": 1,
            "startTimeUnixNano": str(span["start_ns"]),
            "endTimeUnixNano": str(span["end_ns"]),
            "attributes": [attribute(*pair) for pair in span["attributes"].items()],
        }
        for span in spans
    ]
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [attribute(*pair) for pair in resource.items()]},
                "scopeSpans": [{"scope": {"name": "megatron"}, "spans": written}],
            }
        ]
    }


def requests_of(rows: list[dict], tp: int = 1) -> list[dict]:
    """A request per rank."""
    sizes = sizes_of(rows, tp)
    return [request(rank, some, sizes) for rank, some in sorted(spans_of_ranks(rows, tp).items())]


def rows_of_steps(first: int, n: int) -> tuple[dict, ...]:
    """Operations with spans of a job of two stages."""
    spec = Spec(pp=2, microbatches=(3, 3), steps=n, first_step=first)
    return tuple(row for row in make_rows(spec) if row["kind"] in NAMES)


def parts(rows: Iterable[dict], pieces: int) -> list[dict]:
    """Requests of all ranks, each rank's spans in some pieces, children before their step."""
    sizes = sizes_of(rows)
    found = []
    for rank, spans in sorted(spans_of_ranks(rows).items()):
        spans = sorted(spans, key=lambda span: (span["end_ns"], bool(not span["parent"])))
        edges = [round(n * len(spans) / pieces) for n in range(pieces + 1)]
        found.append([request(rank, spans[a:b], sizes) for a, b in pairwise(edges)])
    return [piece[n] for n in range(pieces) for piece in found]
