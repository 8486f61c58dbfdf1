"""Megatron-LM's spans: what becomes of them, and what is refused."""

import base64
import codecs
import copy
import gzip
import json
import random
from functools import partial

import numpy as np
import pytest

import requires

requires.installed("hypothesis")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzzing import SHARED_FIXTURES
from jobs import Spec, make_rows, trace_of
from otlp_spans import WITH_SPANS, attribute, request, requests_of, sizes_of, spans_of_ranks
from paceline.errors import PacelineError, TraceError
from paceline.sources import otlp
from paceline.sources.otlp import json_encoding, protobuf_encoding
from paceline.trace import Job, OpKind
from paceline.whatif import analyze

SPEC = Spec(
    pp=2,
    microbatches=(3, 3),
    steps=3,
    first_step=5,
    **WITH_SPANS,
    seed=3,
)
ROWS = make_rows(SPEC)


@pytest.fixture
def requests():
    return requests_of(ROWS)


def spans(request):
    return request["resourceSpans"][0]["scopeSpans"][0]["spans"]


def resource(request):
    return request["resourceSpans"][0]["resource"]["attributes"]


def named(request, name):
    return [span for span in spans(request) if span["name"] == name]


def same(a, b):
    """Whether two traces say the same, to half a microsecond (what a double holds since 1970)."""
    return (
        (a.counts == b.counts).all()
        and (a.microbatch == b.microbatch).all()
        and np.abs(a.start - b.start).max() < 1e-6
        and np.abs(a.end - b.end).max() < 1e-6
    )


def refusal(read):
    """What a reader says where it refuses; any other exception fails the test."""
    try:
        read()
    except PacelineError as error:
        return str(error)
    return None


def saved(path, requests):
    path.write_text("".join(json.dumps(request) + "\n" for request in requests))
    return path


def test_spans_are_the_trace_that_they_were_made_of(requests):
    got = otlp.read_requests(requests)
    assert same(got.trace, trace_of(ROWS))
    assert got.trace.job == Job(dp_size=2, pp_size=2)
    assert got.trace.steps.tolist() == [5, 6, 7]
    assert (got.matched, dict(got.unplaced), got.confidence) == (len(ROWS), {}, 1.0)
    assert "times are the host's" in got.notes[0]
    assert got.trace.rank.tolist() == [[0, 2], [1, 3]]


def test_a_slow_worker_is_found():
    rows = make_rows(
        Spec(
            pp=2,
            microbatches=(4, 4),
            **WITH_SPANS,
            slow=((1, 0, 2.0),),
        )
    )
    result = analyze(otlp.read_requests(requests_of(rows)).trace)
    truth = analyze(trace_of(rows))
    assert result.slowdown == pytest.approx(truth.slowdown, rel=1e-4)
    assert result.slowdown > 1.2
    assert np.unravel_index(np.argmax(result.by_worker), (2, 2)) == (0, 1)  # [stage, replica]


def test_tensor_parallel_peers_are_one_worker():
    got = otlp.read_requests(requests_of(ROWS, tp=2))
    assert got.trace.job == Job(dp_size=2, pp_size=2, tp_size=2)
    assert same(got.trace, trace_of(ROWS))


def test_context_parallel_ranks_are_one_worker():
    requests = requests_of(ROWS, tp=2)
    for one in requests:
        set_resource(one, "dl.tensor_parallel.size", 1)
        set_resource(one, "dl.context_parallel.size", 2)
    got = otlp.read_requests(requests)
    assert got.trace.job == Job(dp_size=2, pp_size=2, dsp_size=2)
    assert same(got.trace, trace_of(ROWS))


def test_the_order_of_spans_and_of_requests_does_not_matter(requests):
    shuffled = copy.deepcopy(requests)
    random.Random(1).shuffle(shuffled)
    for one in shuffled:
        random.Random(2).shuffle(spans(one))
    one_by_one = [
        {"resourceSpans": [{**one["resourceSpans"][0], "scopeSpans": [{"spans": [span]}]}]}
        for one in shuffled
        for span in spans(one)
    ]
    for given_ in (shuffled, one_by_one):
        assert same(otlp.read_requests(given_).trace, trace_of(ROWS))


@pytest.mark.parametrize(
    "form", ["lines", "object", "pretty", "gzip", "folder", "two", "bom", "blank"]
)
def test_files(tmp_path, requests, form):
    path = tmp_path / "spans.json"
    whole = {"resourceSpans": [one["resourceSpans"][0] for one in requests]}
    paths = [path]
    if form == "lines":
        saved(path, requests)
    elif form == "object":
        path.write_text(json.dumps(whole))
    elif form == "pretty":
        path.write_text(json.dumps(whole, indent=2))
    elif form == "gzip":
        path.write_bytes(gzip.compress(json.dumps(whole).encode()))
    elif form == "bom":
        path.write_bytes(codecs.BOM_UTF8 + saved(path, requests).read_bytes())
    elif form == "blank":
        path.write_text("\n \r\n" + saved(path, requests).read_text())
    elif form == "folder":
        saved(tmp_path / "otlp.jsonl", requests)
        paths = [tmp_path]
    else:
        paths = [
            saved(tmp_path / "a.json", requests[:2]),
            saved(tmp_path / "b.json", requests[2:]),
        ]
    assert all(otlp.matches(path) for path in paths)
    assert same(otlp.read(paths).trace, trace_of(ROWS))


def test_only_the_steps_asked_for(requests):
    got = otlp.read_requests(requests, steps=frozenset({6}))
    assert got.trace.steps.tolist() == [6]


def test_what_is_not_megatrons_is_passed_over(tmp_path, requests):
    foreign = {
        "resourceSpans": [
            {"resource": {}, "scopeSpans": [{"spans": [{"name": "GET /"}, {"name": "GET /"}]}]}
        ]
    }
    logs = {"resourceLogs": [{}]}
    spans(requests[0]).append({**spans(requests[0])[1], "name": "megatron.save_checkpoint"})
    spans(requests[0]).append({**spans(requests[0])[1], "name": "\x1b[2J"})
    got = otlp.read([saved(tmp_path / "spans.json", [logs, *requests, foreign])])
    assert same(got.trace, trace_of(ROWS))
    assert "4 spans are no operations and were passed over: GET /, megatron.save" in got.notes[-1]
    assert got.notes[-1].isprintable()


def test_spans_that_were_sent_twice_count_once(requests):
    got = otlp.read_requests([*requests, requests[2]])
    assert same(got.trace, trace_of(ROWS))
    assert any("were there twice" in note for note in got.notes)


def test_spans_outside_of_steps_or_without_an_end_are_counted(requests):
    late = copy.deepcopy(named(requests[0], "megatron.microbatch.forward")[0])
    late |= {"startTimeUnixNano": str(2**62), "endTimeUnixNano": str(2**62 + 1), "spanId": "ff"}
    spans(requests[0]).append(late)
    spans(requests[0]).append({**late, "endTimeUnixNano": "0"})
    got = otlp.read_requests(requests)
    assert same(got.trace, trace_of(ROWS))
    assert got.unplaced == {"outside of any megatron.train.iteration": 1, "that have no end": 1}
    assert got.confidence == pytest.approx(len(ROWS) / (len(ROWS) + 2))


def test_the_names_are_those_of_megatrons_source():
    assert otlp.kind_of("megatron.p2p.send_forward") == OpKind.FORWARD_SEND
    assert otlp.kind_of("megatron.grad_sync.finish") == OpKind.GRADS_REDUCE_SCATTER
    assert otlp.kind_of("megatron.p2p.send_forward_recv_backward") is None  # has no span
    assert otlp.kind_of("megatron.evaluate") is None
    assert otlp.is_used("megatron.train.iteration")
    assert otlp.is_used("megatron.train_step")  # as Megatron's pages call it
    assert not otlp.is_used("megatron.pretrain")


@pytest.mark.parametrize(
    ("resource", "rank"),
    [
        ({"dl.rank": 3, "service.instance.id": "job-rank9"}, 3),
        ({"service.instance.id": "run-7-rank12"}, 12),
        ({"service.instance.id": "4711-rank0"}, 0),
        ({"service.instance.id": "0f3crank5"}, None),
        ({"service.instance.id": "rank 2"}, 2),
        ({"service.instance.id": "7"}, 7),
        ({"service.instance.id": "run-7"}, None),
    ],
)
def test_the_rank_is_what_lens_says(resource, rank):
    if rank is None:
        with pytest.raises(TraceError, match=r"has no dl\.rank"):
            otlp.rank_of(resource, "here")
    else:
        assert otlp.rank_of(resource, "here") == rank


def test_a_launch_and_its_end_are_one_synchronisation(requests):
    for one in requests:
        for n, sync in enumerate(named(one, "megatron.grad_sync.finish")):
            begin, end = int(sync["startTimeUnixNano"]), int(sync["endTimeUnixNano"])
            launched = begin + (end - begin) // 3
            start = {**sync, "name": "megatron.grad_sync.start", "spanId": f"{n + 77:016x}"}
            spans(one).append({**start, "endTimeUnixNano": str(launched)})
            sync["startTimeUnixNano"] = str(launched)
    assert same(otlp.read_requests(requests).trace, trace_of(ROWS))


def test_calls_without_a_peer_are_none(requests):
    for rank, one in enumerate(requests):
        at_end = "recv_forward" if rank < 2 else "send_forward"
        for n, compute in enumerate(named(one, "megatron.microbatch.forward")):
            span = {**compute, "name": f"megatron.p2p.{at_end}", "spanId": f"{n + 77:016x}"}
            spans(one).append({**span, "endTimeUnixNano": span["startTimeUnixNano"]})
    assert same(otlp.read_requests(requests).trace, trace_of(ROWS))


def test_context_parallel_ranks_follow_from_the_world():
    requests = requests_of(ROWS, tp=2)
    for one in requests:
        set_resource(one, "dl.tensor_parallel.size", 1)
        set_resource(one, "dl.world_size", 8)
    got = otlp.read_requests(requests)
    assert got.trace.job == Job(dp_size=2, pp_size=2, dsp_size=2)


def test_spans_that_were_open_at_the_end_are_counted(requests):
    span = {**named(requests[0], "megatron.microbatch.forward")[0], "spanId": "ff"}
    span["attributes"] = [{"key": "nemo.span.truncated", "value": {"boolValue": True}}]
    spans(requests[0]).append(span)
    got = otlp.read_requests(requests)
    assert got.unplaced == {"that were open when the job stopped": 1}
    assert same(got.trace, trace_of(ROWS))


def test_microbatches_without_a_number_are_counted(requests):
    for one in requests:
        for span in named(one, "megatron.microbatch.backward"):
            span["attributes"] = []
    got = otlp.read_requests(requests)
    assert same(got.trace, trace_of(ROWS))
    assert got.confidence == pytest.approx(otlp.reader.CERTAINTY_BY_ORDER)
    assert any("counted by start" in note for note in got.notes)


def test_virtual_stages_follow_megatrons_order():
    rows = make_rows(
        Spec(
            pp=2,
            vpp=2,
            microbatches=(4,),
            **WITH_SPANS,
            steps=1,
        )
    )
    sizes = {**sizes_of(rows), "dl.virtual_pipeline_parallel.size": 2}
    got = otlp.read_requests(
        [request(rank, some, sizes) for rank, some in spans_of_ranks(rows).items()]
    )
    truth = trace_of(rows, Job(dp_size=1, pp_size=2, vpp_size=2))
    computes = truth.kind <= OpKind.BACKWARD_COMPUTE
    assert same(got.trace, truth)
    assert (got.trace.chunk[computes] == truth.chunk[computes]).all()
    assert got.confidence == pytest.approx(otlp.reader.CERTAINTY_CHUNKS)


def test_degrees_may_be_given_instead(requests):
    for one in requests:
        resource(one)[:] = [a for a in resource(one) if not a["key"].startswith("dl.")]
    with pytest.raises(TraceError, match=r"lacks dl.data_parallel.size; .* with --job"):
        otlp.read_requests(requests)
    assert same(otlp.read_requests(requests, job=Job(2, 2)).trace, trace_of(ROWS))


# What is damaged.


def set_resource(request, key, value):
    resource(request)[:] = [a for a in resource(request) if a["key"] != key]
    if value is not None:
        resource(request).append(attribute(key, value))


def missing_rank(requests):
    del requests[3]


def no_rank(requests):
    set_resource(requests[1], "service.instance.id", None)


def name_for_a_rank(requests):
    set_resource(requests[1], "service.instance.id", "worker-a")


def rank_beyond(requests):
    set_resource(requests[1], "service.instance.id", "9")


def other_sizes(requests):
    set_resource(requests[1], "dl.data_parallel.size", 4)


def no_size(requests):
    set_resource(requests[1], "dl.data_parallel.size", 0)


def fewer_steps(requests):
    last = named(requests[1], "megatron.train.iteration")[-1]
    kept = [span for span in spans(requests[1]) if last["spanId"] not in span.values()]
    spans(requests[1])[:] = kept


def other_clock(requests):
    for span in spans(requests[1]):
        for key in ("startTimeUnixNano", "endTimeUnixNano"):
            span[key] = str(int(span[key]) + 3600 * 10**9)


def lost_forward(requests):
    spans(requests[1]).remove(named(requests[1], "megatron.microbatch.forward")[0])


def lost_sync(requests):
    spans(requests[0]).remove(named(requests[0], "megatron.grad_sync.finish")[0])


def lost_step(requests):
    spans(requests[1]).remove(named(requests[1], "megatron.train.iteration")[0])


def no_steps(requests):
    for span in named(requests[1], "megatron.train.iteration"):
        spans(requests[1]).remove(span)


def restarted(requests):
    steps = named(requests[0], "megatron.train.iteration")
    steps[2]["attributes"] = steps[1]["attributes"]


def overlapping(requests):
    steps = named(requests[0], "megatron.train.iteration")
    steps[0]["endTimeUnixNano"] = steps[1]["endTimeUnixNano"]


def no_iteration(requests):
    named(requests[0], "megatron.train.iteration")[0]["attributes"] = []


def backwards(requests):
    span = spans(requests[0])[3]
    span["endTimeUnixNano"] = "1"


def no_time(requests):
    spans(requests[0])[3]["startTimeUnixNano"] = "soon"


def same_microbatch(requests):
    for one in requests:
        for span in spans(one):
            for pair in span["attributes"]:
                if pair["key"] == "megatron.microbatch_id":
                    pair["value"] = {"intValue": "0"}


def no_ends(requests):
    for one in requests:
        for span in spans(one):
            span["endTimeUnixNano"] = "0"


def nothing(requests):
    for one in requests:
        spans(one)[:] = [{"name": "GET /"}]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            missing_rank,
            r"the spans of 3 of 4 ranks; dp 1, stage 1 \(rank 3\) sent none .*all_ranks",
        ),
        (no_rank, "no dl.rank, and its service.instance.id, .* rank, is missing"),
        (name_for_a_rank, "could end in the rank, is 'worker-a'"),
        (rank_beyond, "has a rank 9, but the degrees of the job make only 4 ranks"),
        (other_sizes, "data_parallel.size is 4 on rank 1, but 2 on rank 0; are these two jobs"),
        (no_size, "data_parallel.size of rank 1 is '0'; it should be a whole number from 1"),
        (fewer_steps, "dp 1, stage 0 has no ops in step 7"),
        (other_clock, "in step 5 rank 1 works from .* they never meet, so their clocks"),
        (lost_forward, "dp 1, stage 0 ran 2 forwards in step 5, stage 1 ran 3 forwards"),
        (lost_sync, "stage 0 ran 0 grads-reduce-scatter in step 5 on dp 0, but 1 on dp 1"),
        (lost_step, "dp 1, stage 0 has no ops in step 5"),
        (no_steps, "rank 1 has 42 operations but no whole megatron.train.iteration"),
        (restarted, "rank 0 has step 6 more than once; was the job started again"),
        (overlapping, "steps 5 and 6 of rank 0 overlap in time"),
        (no_iteration, "a megatron.train.iteration of rank 0 lacks megatron.iteration"),
        (backwards, "of rank 0 ends before it starts"),
        (no_time, "startTimeUnixNano of a megatron.* of rank 0 is 'soon'"),
        (same_microbatch, "rank 0 ran the forward-compute of microbatch 0 more than once in step"),
        (no_ends, r"has \d+ spans of Megatron-LM, none of which has an end"),
        (nothing, r"no span of Megatron-LM, .* \(spans: GET /\); run the job with MEGATRON_OTEL"),
    ],
)
def test_damage_is_refused(requests, damage, message):
    damage(requests)
    with pytest.raises(TraceError, match=message):
        otlp.read_requests(requests)


def test_a_job_that_contradicts_the_spans_is_refused(requests):
    with pytest.raises(TraceError, match="recorded with dp_size 2, but the given job has 4"):
        otlp.read_requests(requests, job=Job(4, 2))


@pytest.mark.parametrize("form", ["lines", "object"])
@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_file_that_is_cut_off_is_refused(tmp_path, requests, form, share):
    path = tmp_path / "spans.json"
    whole = {"resourceSpans": [one["resourceSpans"][0] for one in requests]}
    texts = [json.dumps(one) for one in requests] if form == "lines" else [json.dumps(whole)]
    text = "\n".join(texts)
    path.write_text(text[: int(len(text) * share)])
    with pytest.raises(TraceError, match="cut off"):
        otlp.read([path])


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "7\n7", '{"resourceSpans": 3}', "\x00"])
def test_files_that_are_none(tmp_path, text):
    path = tmp_path / "spans.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"spans\.json"):
        otlp.read([path])
    assert not otlp.matches(path) or "resourceSpans" in text
    with pytest.raises(TraceError, match="does not exist"):
        otlp.read([tmp_path / "none.json"])


def test_protobuf_and_json_are_one():
    requires.installed("opentelemetry.proto")
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    for one in requests_of(ROWS):
        in_base64 = copy.deepcopy(one)
        for span in spans(in_base64):
            for key in ("traceId", "spanId", "parentSpanId"):
                span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
        message = ParseDict(in_base64, ExportTraceServiceRequest())
        decoded = protobuf_encoding.decode(message.SerializeToString(), "here")
        # An empty parent or list of attributes is not there in the binary form.
        for span in spans(one):
            for key in [key for key, value in span.items() if value in ("", [])]:
                del span[key]
        assert decoded == one


@settings(max_examples=150, deadline=None)
@given(body=st.binary(max_size=200))
def test_no_bytes_break_the_protobuf_reader(body):
    requires.installed("opentelemetry.proto")
    said = refusal(lambda: protobuf_encoding.decode(body, "body"))
    assert said is None or said.startswith("body: no ExportTraceServiceRequest")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def places_in(value, path=()):
    """All keys and indices of nested lists and objects."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places_in(inner, (*path, key))


SMALL = requests_of(
    make_rows(
        Spec(
            pp=1,
            microbatches=(1, 1),
            steps=1,
            **WITH_SPANS,
        )
    )
)
PLACES = list(places_in(SMALL))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.sampled_from(PLACES), JSON | st.just("delete")), min_size=1, max_size=3)
)
def test_no_value_breaks_the_reader(changes):
    requests = copy.deepcopy(SMALL)
    for path, value in changes:
        inner = requests
        try:
            for key in path[:-1]:
                inner = inner[key]
            if value == "delete":
                del inner[path[-1]]
            else:
                inner[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change removed it
    checked = [refusal(partial(json_encoding.check_request, one, "request")) for one in requests]
    read = refusal(lambda: otlp.read_requests(requests))
    assert read if any(checked) else read != ""


@settings(max_examples=150, deadline=None, suppress_health_check=SHARED_FIXTURES)
@given(at=st.floats(0, 1), some=st.binary(max_size=4), cut=st.booleans())
def test_no_bytes_break_the_reader_of_files(tmp_path, at, some, cut):
    data = "".join(json.dumps(one) + "\n" for one in SMALL).encode()
    place = int(at * len(data))
    path = tmp_path / "spans.json"
    path.write_bytes(data[:place] + some + (b"" if cut else data[place + len(some) :]))
    assert otlp.matches(path) in (True, False)
    assert refusal(lambda: otlp.read([path])) != ""
