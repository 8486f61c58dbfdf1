"""The OTLP receiver: what it takes, what it refuses, and what is on disk by then."""

import copy
import gzip
import http.client
import json
import os
import socket
import threading
import time
import zlib

import pytest

import requires
from jobs import Spec, make_rows
from otlp_spans import WITH_SPANS, requests_of
from paceline.errors import OutputError
from paceline.monitor import otlp as monitor
from paceline.monitor import otlp_body as bodies
from paceline.monitor.otlp import Receiver
from paceline.monitor.request_file import RequestFile
from paceline.sources import otlp

SMALL = {
    "resourceSpans": [
        {"resource": {"attributes": []}, "scopeSpans": [{"spans": [{"name": "a"}, {"name": "b"}]}]}
    ]
}
SHORT = make_rows(
    Spec(
        pp=2,
        microbatches=(2, 2),
        steps=2,
        **WITH_SPANS,
    )
)
JSON = {"Content-Type": "application/json"}
PROTOBUF = {"Content-Type": "application/x-protobuf"}


@pytest.fixture
def receiver(tmp_path):
    server = Receiver(tmp_path / "run", port=0)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    if not server._stopping:
        server.stop()
    thread.join(120)
    assert not thread.is_alive()


def post(receiver, body, headers=JSON, path="/v1/traces", method="POST"):
    connection = http.client.HTTPConnection("127.0.0.1", receiver.server_port, timeout=120)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def kept(receiver):
    return [json.loads(line) for line in receiver.file.path.read_text().splitlines()]


def protobuf_of(request):
    requires.installed("opentelemetry.proto")
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    return ParseDict(request, ExportTraceServiceRequest()).SerializeToString()


def test_json_and_protobuf_plain_and_packed_are_kept_alike(receiver):
    text = json.dumps(SMALL, indent=1).encode()
    binary = protobuf_of(SMALL)
    packed = {"Content-Encoding": "gzip"}
    assert post(receiver, text)[::2] == (200, b"{}")
    assert post(receiver, gzip.compress(text), JSON | packed)[0] == 200
    assert post(receiver, binary, PROTOBUF)[::2] == (200, b"")
    assert post(receiver, gzip.compress(binary), PROTOBUF | packed)[0] == 200
    with_charset = {"Content-Type": "application/json; charset=utf-8"}
    status, headers, _ = post(receiver, text, with_charset)
    assert (status, headers["Content-Type"]) == (200, "application/json")
    # The binary form has no empty lists.
    bare = {"resourceSpans": [SMALL["resourceSpans"][0] | {"resource": {}}]}
    assert kept(receiver) == [SMALL, SMALL, bare, bare, SMALL]
    receiver.stop()
    assert (receiver.counts.requests, receiver.counts.spans) == (5, 10)
    assert receiver.counts.bytes == receiver.file.path.stat().st_size
    assert not receiver.counts.refused


def test_an_empty_request_is_no_line(receiver):
    assert post(receiver, b"{}")[0] == 200
    assert receiver.file.path.read_bytes() == b""


@pytest.mark.parametrize(
    ("body", "headers", "status", "told"),
    [
        (b"{", JSON, 400, "Expecting"),
        (b"[]", JSON, 400, "no ExportTraceServiceRequest"),
        (b'{"resourceSpans": 3}', JSON, 400, "no list of objects"),
        (b'{"resourceSpans": [{"scopeSpans": [3]}]}', JSON, 400, "no list of objects"),
        (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"x": NaN}]}]}]}', JSON, 400, "JSON"),
        (b"\xff\xfe", JSON, 400, "utf-8"),
        (b"[" * 100_000, JSON, 400, "recursion"),
        (b"x", JSON | {"Content-Encoding": "gzip"}, 400, "gzip"),
        (
            gzip.compress(b"{}" * 99, mtime=0)[:-3],
            JSON | {"Content-Encoding": "gzip"},
            400,
            "cut off",
        ),
        (gzip.compress(b"{}", mtime=0) + b"x", JSON | {"Content-Encoding": "gzip"}, 400, "follows"),
        (b"{}", JSON | {"Content-Encoding": "br"}, 415, "gzip or none"),
        (b"{}", {"Content-Type": "text/plain"}, 415, "Content-Type should be"),
        (b"{}", {}, 415, "Content-Type should be"),
    ],
)
def test_bodies_that_are_refused(receiver, body, headers, status, told):
    got, _, answer = post(receiver, body, headers)
    assert got == status
    assert told in json.loads(answer)["message"]
    assert receiver.file.path.read_bytes() == b""
    assert receiver.counts.refused == {status: 1}
    assert post(receiver, json.dumps(SMALL))[0] == 200  # it serves on


def test_protobuf_that_is_none_is_answered_in_protobuf(receiver):
    requires.installed("opentelemetry.proto")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTracePartialSuccess

    status, headers, answer = post(receiver, b"\xff\xff", PROTOBUF)
    assert (status, headers["Content-Type"]) == (400, "application/x-protobuf")
    # Of the same shape as google.rpc.Status: 1 a number, 2 a text.
    said = ExportTracePartialSuccess.FromString(answer)
    assert said.rejected_spans == 3
    assert "no ExportTraceServiceRequest" in said.error_message
    assert monitor._status_protobuf(14, "no") == b"\x08\x0e\x12\x02no"


def test_other_paths_and_methods(receiver):
    assert post(receiver, b"{}", path="/v1/metrics")[0] == 404
    status, headers, _ = post(receiver, None, {}, method="GET")
    assert (status, headers["Allow"]) == (405, "POST")
    assert post(receiver, None, {}, path="/", method="GET")[0] == 404
    assert post(receiver, b"{}", method="PUT")[0] == 501


def test_a_bomb_is_not_unpacked(receiver, monkeypatch):
    zeros = zlib.compressobj(9, wbits=31)
    bomb = b"".join(zeros.compress(bytes(1 << 20)) for _ in range(200)) + zeros.flush()
    asked = []
    unpack = zlib.decompressobj

    class Watched:
        def __init__(self, **options):
            self.inner = unpack(**options)

        def decompress(self, body, most):
            asked.append(most)
            return self.inner.decompress(body, most)

    monkeypatch.setattr(bodies.zlib, "decompressobj", Watched)
    status, _, answer = post(receiver, bomb, JSON | {"Content-Encoding": "gzip"})
    assert (status, asked) == (413, [bodies.MAX_BODY_BYTES + 1])
    assert "the unpacked body has more than" in json.loads(answer)["message"]


def raw(receiver, text, wait=True):
    """Send bytes as they are; returns the first line of the answer."""
    with socket.create_connection(("127.0.0.1", receiver.server_port), timeout=120) as connection:
        connection.sendall(text)
        if wait:
            return connection.makefile("rb").readline().split()[1]
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").readline().split()[1]


HEAD = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: 99999999\r\n", b"413"),
        (b"Content-Length: 999999999999999999999999\r\n", b"413"),
        (b"Content-Length: -1\r\n", b"411"),
        (b"Content-Length: many\r\n", b"411"),
        (b"", b"411"),
        (b"Transfer-Encoding: chunked\r\n", b"411"),
    ],
)
def test_lengths_are_checked_before_the_body_is_read(receiver, head, status):
    assert raw(receiver, HEAD + head + b"\r\n") == status


def test_a_sender_of_too_much_hears_so(receiver):
    status, _, answer = post(receiver, bytes(bodies.MAX_BODY_BYTES + 1))
    assert status == 413
    assert "send smaller batches" in json.loads(answer)["message"]


def test_a_body_that_is_cut_off_or_slow(receiver, monkeypatch):
    assert raw(receiver, HEAD + b"Content-Length: 10\r\n\r\n{}", wait=False) == b"400"
    monkeypatch.setattr(bodies, "BODY_S", 0.1)
    assert raw(receiver, HEAD + b"Content-Length: 10\r\n\r\n{}") == b"408"
    assert receiver.counts.refused == {400: 1, 408: 1}


def test_a_request_that_grows_too_long_as_json(receiver, monkeypatch):
    monkeypatch.setattr(bodies, "MAX_LINE_BYTES", 50)
    assert post(receiver, json.dumps(SMALL))[0] == 413


def test_more_at_a_time_than_allowed_are_told_to_come_back(receiver, monkeypatch):
    monkeypatch.setattr(monitor, "WAIT_S", 0.05)
    for _ in range(monitor.AT_A_TIME):
        receiver._slots.acquire()
    status, headers, _ = post(receiver, json.dumps(SMALL))
    assert (status, headers["Retry-After"]) == (503, "5")
    for _ in range(monitor.AT_A_TIME):
        receiver._slots.release()
    assert post(receiver, json.dumps(SMALL))[0] == 200


def test_a_connection_too_many_is_closed(receiver):
    while receiver._connections.acquire(blocking=False):
        pass
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        post(receiver, json.dumps(SMALL))
    receiver._connections.release()
    assert post(receiver, json.dumps(SMALL))[0] == 200


def test_without_protobuf_json_still_goes(receiver, monkeypatch):
    monkeypatch.setattr(bodies.protobuf_encoding, "available", lambda: False)
    status, _, answer = post(receiver, b"", PROTOBUF)
    assert status == 415
    assert b"paceline[otlp]" in answer
    assert post(receiver, json.dumps(SMALL))[0] == 200


def test_what_nobody_thought_of_is_counted(receiver, monkeypatch):
    monkeypatch.setattr(bodies, "check_request", lambda request, where: 1 / 0)
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        post(receiver, json.dumps(SMALL))
    monkeypatch.undo()
    assert post(receiver, json.dumps(SMALL))[0] == 200
    assert receiver.counts.refused == {500: 1}


def test_many_senders_at_once(receiver):
    body = json.dumps(SMALL)
    statuses = []

    def send():
        connection = http.client.HTTPConnection("127.0.0.1", receiver.server_port, timeout=60)
        for _ in range(20):
            connection.request("POST", "/v1/traces", body, JSON)
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)
        connection.close()

    threads = [threading.Thread(target=send) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 240
    assert kept(receiver) == [SMALL] * 240
    receiver.stop()
    assert receiver.counts.requests == 240


def test_what_is_acknowledged_is_on_disk(receiver, monkeypatch):
    order = []
    sync, answer = os.fsync, monitor._Handler._answer

    def synced(number):
        order.append("sync")
        sync(number)

    def answered(self, status, body):
        order.append(status)
        answer(self, status, body)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(monitor._Handler, "_answer", answered)
    assert post(receiver, json.dumps(SMALL))[0] == 200
    assert order == ["sync", 200]


def test_a_full_disk_is_told_and_leaves_no_half_line(receiver, monkeypatch):
    assert post(receiver, json.dumps(SMALL))[0] == 200

    def full(number):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        status, headers, answer = post(receiver, json.dumps(SMALL))
    assert (status, headers["Retry-After"]) == (503, "5")
    assert "No space left on device" in json.loads(answer)["message"]
    assert kept(receiver) == [SMALL]
    assert post(receiver, json.dumps(SMALL))[0] == 200
    assert kept(receiver) == [SMALL] * 2


def test_stopping_finishes_what_is_being_worked_on(receiver, monkeypatch):
    entered, go = threading.Event(), threading.Event()
    check = bodies.check_request

    def slow(request, where):
        entered.set()
        go.wait(120)
        return check(request, where)

    monkeypatch.setattr(bodies, "check_request", slow)
    answers = []
    sender = threading.Thread(target=lambda: answers.append(post(receiver, json.dumps(SMALL))))
    sender.start()
    assert entered.wait(120)
    stopper = threading.Thread(target=receiver.stop)
    stopper.start()
    time.sleep(0.05)
    go.set()
    for thread in (sender, stopper):
        thread.join(120)
    assert answers[0][0] == 200
    assert kept(receiver) == [SMALL]


def test_a_silent_connection_does_not_hold_up_the_end(receiver, monkeypatch):
    monkeypatch.setattr(monitor, "WAIT_S", 60.0)
    with socket.create_connection(("127.0.0.1", receiver.server_port)):
        begin = time.monotonic()
        receiver.stop()
        assert time.monotonic() - begin < monitor.WAIT_S


def test_addresses(tmp_path, receiver):
    assert receiver.url == f"http://127.0.0.1:{receiver.server_port}/v1/traces"
    with pytest.raises(OutputError, match=r"cannot listen on 127.0.0.1, port \d+: Address already"):
        Receiver(tmp_path / "b", port=receiver.server_port)
    with pytest.raises(OutputError, match=r"cannot listen on no\.such\.host\.invalid"):
        Receiver(tmp_path / "c", host="no.such.host.invalid", port=0)
    assert not any((tmp_path / name).exists() for name in "bc")
    with pytest.raises(OutputError, match="is in use by another receiver"):
        Receiver(tmp_path / "run", port=0)


# The file.


def test_a_file_is_continued(tmp_path):
    path = tmp_path / "a" / "otlp.jsonl"
    for _ in range(2):
        file = RequestFile(path)
        file.append(json.dumps(SMALL).encode())
        file.close()
        with pytest.raises(OutputError, match="is closed"):
            file.append(b"{}")
    assert path.read_text() == (json.dumps(SMALL) + "\n") * 2


@pytest.mark.parametrize("tail", ["{", json.dumps(SMALL)[:-1], '{"x": "' + "y" * 200_000])
def test_a_line_that_is_cut_off_is_removed(tmp_path, tail):
    path = tmp_path / "otlp.jsonl"
    line = json.dumps(SMALL) + "\n"
    path.write_text(line + tail)
    file = RequestFile(path)
    assert file.torn_bytes == len(tail)
    file.close()
    assert path.read_text() == line


def test_a_last_line_without_an_end_is_kept(tmp_path):
    path = tmp_path / "otlp.jsonl"
    path.write_text(json.dumps(SMALL))
    file = RequestFile(path)
    file.append(b"{}")
    file.close()
    assert path.read_text() == json.dumps(SMALL) + "\n{}\n"


@pytest.mark.parametrize(
    "content", ["something of mine", "{}\n", "[1]\n", '{\n "resourceSpans": []}']
)
def test_another_file_is_left_alone(tmp_path, content):
    path = tmp_path / "otlp.jsonl"
    path.write_text(content)
    with pytest.raises(OutputError, match="is no file of OTLP spans"):
        RequestFile(path)
    assert path.read_text() == content


def test_places_where_no_file_can_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be a folder"):
        RequestFile(tmp_path / "file" / "otlp.jsonl")
    (tmp_path / "otlp.jsonl").mkdir()
    with pytest.raises(OutputError, match="Is a directory"):
        RequestFile(tmp_path / "otlp.jsonl")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match="is no regular file"):
        RequestFile(tmp_path / "pipe")


def no_times(request, span):
    span["endTimeUnixNano"] = "x"


def no_rank(request, span):
    resource = request["resourceSpans"][0]["resource"]
    for pair in resource["attributes"]:
        if pair["key"] == "service.instance.id":
            pair["value"] = {"stringValue": "zz"}


def no_number(request, span):
    span["attributes"] = []


def no_size(request, span):
    request["resourceSpans"][0]["resource"]["attributes"].append(
        {"key": "dl.data_parallel.size", "value": {"intValue": "-1"}}
    )


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (no_times, "endTimeUnixNano of a megatron.train.iteration of rank 0 is 'x'"),
        (no_rank, "which could end in the rank, is 'zz'"),
        (no_number, "a megatron.train.iteration of rank 0 lacks megatron.iteration"),
        (no_size, "dl.data_parallel.size of rank 0 is '-1'"),
    ],
)
def test_spans_with_which_the_file_could_not_be_read_are_refused(receiver, damage, told):
    good = requests_of(SHORT)
    bad = copy.deepcopy(good[0])
    steps = bad["resourceSpans"][0]["scopeSpans"][0]["spans"]
    damage(bad, next(span for span in steps if span["name"] == otlp.STEP))
    status, _, answer = post(receiver, json.dumps(bad))
    assert status == 400
    assert told in json.loads(answer)["message"]
    for one in good:
        assert post(receiver, json.dumps(one))[0] == 200
    assert otlp.read([receiver.file.path.parent]).matched == len(SHORT)


def test_what_was_received_is_read(receiver):
    for one in requests_of(SHORT):
        assert post(receiver, json.dumps(one))[0] == 200
    folder = receiver.file.path.parent
    assert otlp.matches(folder)
    assert otlp.read([folder]).matched == len(SHORT)
