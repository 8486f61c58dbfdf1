"""Spans as Megatron-LM sends them: what has none, what is rebuilt, and what is refused."""

import pytest

from otlp_spans import attribute, request
from paceline.errors import TraceError
from paceline.sources import otlp
from paceline.trace import OpKind


def spans(one):
    return one["resourceSpans"][0]["scopeSpans"][0]["spans"]


def seconds(*rows):
    """Spans of one rank: (name, start, end) in seconds."""
    base = 1_795_245_033_000_000_000
    return [
        {
            "name": f"megatron.{name}",
            "start_ns": base + round(start * 1e9),
            "end_ns": base + round(end * 1e9),
            "id": f"{n:016x}",
            "parent": "",
            "attributes": {"megatron.iteration": 3} if name == "train.iteration" else {},
        }
        for n, (name, start, end) in enumerate(rows, 1)
    ]


def two_stages():
    """1F1B of two stages and two microbatches: what has a span, and what has none."""
    sizes = {"dl.data_parallel.size": 1, "dl.pipeline_parallel.size": 2}
    first = seconds(
        ("train.iteration", 0, 20),
        ("p2p.recv_forward", 0, 0),  # a no-op
        ("microbatch.forward", 0, 1),
        ("p2p.send_forward", 1, 1.5),
        ("p2p.recv_forward", 1.5, 1.5),
        ("microbatch.forward", 2, 3),
        # send_forward_recv_backward, until 6.5
        ("microbatch.backward", 6.5, 8),
        ("p2p.send_backward", 8, 8),
        ("p2p.recv_backward", 8, 11),
        ("microbatch.backward", 11, 13),
        ("p2p.send_backward", 13, 13),
        ("grad_sync.finish", 13, 14),
    )
    last = seconds(
        ("train.iteration", 0, 20),
        ("p2p.recv_forward", 0, 1.5),
        ("microbatch.forward", 1.5, 3),
        ("microbatch.backward", 3, 6),
        # send_backward_recv_forward, until 6.25
        ("microbatch.forward", 6.25, 7.5),
        ("microbatch.backward", 7.5, 10.5),
        ("p2p.send_backward", 10.5, 11),
        ("grad_sync.finish", 11, 14),
    )
    return [request(0, first, sizes), request(1, last, sizes)]


def test_fused_calls_lie_between_two_computes():
    got = otlp.read_requests(two_stages())
    trace = got.trace
    ops = {
        (int(trace.pp[i]), OpKind(int(trace.kind[i])).label, int(trace.seq[i])): (
            float(trace.start[i]),
            float(trace.end[i]),
        )
        for i in range(len(trace))
    }
    # Both transfers begin with the call and end when the first of its two sides returned.
    assert ops[0, "forward-send", 1] == pytest.approx((3, 6.25), abs=1e-6)
    assert ops[0, "backward-recv", 0] == pytest.approx((3, 6.25), abs=1e-6)
    assert ops[1, "backward-send", 0] == pytest.approx((6, 6.25), abs=1e-6)
    assert ops[1, "forward-recv", 1] == pytest.approx((6, 6.25), abs=1e-6)
    assert ops[0, "forward-send", 0] == pytest.approx((1, 1.5), abs=1e-6)
    assert any(note.startswith("4 sends and recvs were fused calls") for note in got.notes)
    assert got.confidence == pytest.approx(
        otlp.reader.CERTAINTY_BY_ORDER * otlp.reader.CERTAINTY_REBUILT
    )


def test_an_interleaved_schedule_is_refused_by_name():
    requests = two_stages()
    for one in requests:
        passes = {**spans(one)[0], "name": "megatron.train.iteration.forward_backward"}
        spans(one).append({**passes, "attributes": [attribute("num_microbatches", 1)]})
    with pytest.raises(TraceError, match="interleaved schedule's transfers have no spans"):
        otlp.read_requests(requests)


def test_a_lost_compute_beside_fused_calls_is_refused():
    requests = two_stages()
    assert spans(requests[0]).pop(5)["name"] == "megatron.microbatch.forward"
    with pytest.raises(TraceError, match="rank 0 has 1 forward-compute in step 3, rank 1 has 2"):
        otlp.read_requests(requests)


def only(requests, *names):
    for one in requests:
        spans(one)[:] = [span for span in spans(one) if span["name"] in names]


def test_groups_of_spans_that_are_switched_off_are_named():
    requests = two_stages()
    only(
        requests,
        *("megatron.train.iteration", "megatron.microbatch.forward"),
        *("megatron.microbatch.backward", "megatron.grad_sync.finish"),
    )
    with pytest.raises(TraceError, match=r"no span of a transfer .*SPAN_GROUPS=per_step,micro"):
        otlp.read_requests(requests)
    only(requests, "megatron.train.iteration")
    with pytest.raises(TraceError, match=r"no megatron.microbatch.forward .*SPAN_GROUPS=per_st"):
        otlp.read_requests(requests)
    for one in requests:
        spans(one)[0]["name"] = "megatron.pretrain"
    with pytest.raises(TraceError, match="by default Megatron-LM sends no steps"):
        otlp.read_requests(requests)
