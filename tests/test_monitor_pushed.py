"""What jobs push, decoded: what is refused, with which status, and that the field is named."""

import math
import struct

import pytest

pytest.importorskip("starlette", reason="the monitor is an extra")

from msgspec import json, msgpack
from starlette.exceptions import HTTPException

from paceline.monitor.web.alerts_api import _silence_of
from paceline.monitor.web.bodies import MOST_VALUES, Body
from paceline.monitor.web.pushed import batch_of, job_of, trace_of

SHA = "0" * 64


def batch(body):
    return batch_of(body, lambda: 7.0)


def as_json(value):
    return Body(value if isinstance(value, bytes) else json.encode(value), is_msgpack=False)


def as_msgpack(value):
    return Body(value if isinstance(value, bytes) else msgpack.encode(value), is_msgpack=True)


@pytest.mark.parametrize("encoded", [as_json, as_msgpack])
def test_a_job_is_what_was_sent(encoded):
    body = {"name": "a", "gpus": 8, "labels": {"x": 1.5, "y": True}, "degrees": {"tp": 2}}
    job = job_of(encoded(body))
    assert (job.name, job.gpus, job.degrees) == ("a", 8, {"tp": 2})
    assert job.labels == {"x": 1.5, "y": True}
    assert job_of(encoded({"name": "a", "more": [1]})).gpus is None


@pytest.mark.parametrize(
    ("parse", "body", "words"),
    [
        (job_of, {}, "missing required field `name`"),
        (job_of, {"name": 1}, "Expected `str`, got `int` - at `$.name`"),
        (job_of, {"name": "a/b"}, "a job's name has 1 to 100 of"),
        (job_of, {"name": "a", "gpus": 0}, "Expected `int` >= 1 - at `$.gpus`"),
        (job_of, {"name": "a", "gpus": True}, "got `bool` - at `$.gpus`"),
        (job_of, {"name": "a", "gpus": 8.0}, "got `float` - at `$.gpus`"),
        (job_of, {"name": "a", "labels": {"x": None}}, "at `$.labels[...]`"),
        (job_of, {"name": "a", "labels": {"x": "y" * 10_001}}, "at `$.labels[...]`"),
        (job_of, {"name": "a", "labels": {str(n): 1 for n in range(51)}}, "at `$.labels`"),
        (job_of, {"name": "a", "degrees": {"tp": 1.5}}, "at `$.degrees[...]`"),
        (job_of, [], "Expected `object`, got `array`"),
        (trace_of, {"sha256": SHA + "\n", "size": 1}, "at `$.sha256`"),
        (trace_of, {"sha256": SHA, "size": 1 << 50}, "at `$.size`"),
        (trace_of, {"sha256": SHA, "size": 1, "meta": [1]}, "meta: Expected `object | null`"),
        (trace_of, {"sha256": SHA, "size": 1, "meta": {"x": "y" * (1 << 20)}}, "meta has more"),
        (batch, {"samples": [[1, 0, 1.0]]}, "missing required field `batch`"),
        (batch, {"batch": 1, "source": "\u00e4" * 101}, "source must be a text of at most 200"),
        (batch, {"batch": 1, "world": 100_001}, "at `$.world`"),
        (batch, {"batch": 1}, "steps, ranks, durations_s missing"),
        (batch, {"batch": 1, "samples": [[1, 0, 1.0]], "ranks": [-1]}, "not both"),
        (batch, {"batch": 1, "samples": [[1, 0]]}, "samples: Expected `array` of length 3"),
        (batch, {"batch": 1, "samples": [[1, 0, True]]}, "samples: Expected `float`, got `bool`"),
        (batch, {"batch": 1, "samples": [[2**53 + 1, 0, 1.0]]}, "steps must be from 0 to"),
        (batch, {"batch": 1, "samples": [[0, 100_000, 1.0]]}, "ranks must be from 0 to 99,999"),
        (batch, {"batch": 1, "samples": [[0, 0, -1.0]]}, "durations_s must be from 0"),
        (batch, {"batch": 1, "steps": [1], "ranks": ["0"], "durations_s": [1]}, "ranks: Expected"),
        (_silence_of, {"hours": 0}, "at `$.hours`"),
        (_silence_of, {"hours": 1, "comment": "a\0"}, "at `$.comment`"),
        (_silence_of, {"hours": 1, "rule": "a b"}, "a job's name has"),
    ],
)
@pytest.mark.parametrize("encoded", [as_json, as_msgpack])
def test_what_is_wrong_is_400_and_named(encoded, parse, body, words):
    with pytest.raises(HTTPException) as refused:
        parse(encoded(body))
    assert (refused.value.status_code, words in refused.value.detail) == (400, True), (
        refused.value.detail
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"name": "a"}x',
        b'\xef\xbb\xbf{"name": "a"}',
        b'{"name": "\xff"}',
        b'{"name": "\\ud800"}',
        b'{"name": "a", "labels": {"x": "\\udfff"}}',
        b'{"name": "a", "labels": {"\\ud800\\u0041": "x"}}',
        b'{"name": "a", "labels": {"x": NaN}}',
        b'{"name": "a", "labels": {"x": 1e400}}',
        b'{"name": "a", "gpus": ' + b"9" * 9000 + b"}",
        b'{"name": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"name": "a", "name": 5}',
    ],
)
def test_json_that_is_none_or_means_harm(content):
    with pytest.raises(HTTPException) as refused:
        job_of(as_json(content))
    assert refused.value.status_code == 400


@pytest.mark.parametrize(
    "content",
    [
        b"\xc1",
        b"\x81\xa4name\xa1\xff",
        b"\x82\xa4name\xa1a\xa1x" + b"\x91" * 100_000 + b"\xc0",
        msgpack.encode({"name": "a", "labels": {"x": math.nan}}),
        msgpack.encode({"name": "a", "labels": {"x": math.inf}}),
        msgpack.encode({"name": "a", "labels": {"x": b"bytes"}}),
        msgpack.encode({"name": "a", 1: 2}),
    ],
)
def test_msgpack_that_is_none_or_means_harm(content):
    with pytest.raises(HTTPException) as refused:
        job_of(as_msgpack(content))
    assert refused.value.status_code == 400


@pytest.mark.parametrize("value", [math.nan, b"bytes"])
def test_a_meta_that_json_cannot_hold(value):
    with pytest.raises(HTTPException, match="meta has values that JSON lacks"):
        trace_of(as_msgpack({"sha256": SHA, "size": 1, "meta": {"x": [value]}}))


def test_a_meta_is_as_it_was_sent():
    meta = {"job": {"dp_size": 2}, "hosts": {"0": ["a", None]}}
    body = {"sha256": SHA, "size": 1, "file_name": "a\nb", "meta": meta}
    told = trace_of(as_json(body))
    assert told == {"sha256": SHA, "size_bytes": 1, "file_name": "ab", "meta": meta}
    assert trace_of(as_json({**body, "meta": None}))["meta"] == {}


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 1.1e9])
def test_packed_columns_are_checked_too(seconds):
    body = {"batch": 1, "steps": struct.pack("<q", 1), "ranks": struct.pack("<i", 0)}
    assert batch(as_msgpack({**body, "durations_s": struct.pack("<d", 2.5)})).at == 7.0
    with pytest.raises(HTTPException, match="durations_s must be from 0"):
        batch(as_msgpack({**body, "durations_s": struct.pack("<d", seconds)}))
    with pytest.raises(HTTPException, match="durations_s must be numbers"):
        batch(as_msgpack({**body, "durations_s": b"123"}))


def test_bytes_are_columns_in_msgpack_only():
    body = {"batch": 1, "steps": "AQAAAAAAAAA=", "ranks": "AAAAAA==", "durations_s": [1.0]}
    with pytest.raises(HTTPException, match="steps: Expected `array`, got `str`"):
        batch(as_json(body))


@pytest.mark.parametrize("n", [MOST_VALUES // 4 + 1, 2**32 - 1])
def test_many_values_of_msgpack_are_refused_before_they_are_decoded(n):
    """The head of an array says how long it is, whatever follows."""
    content = b"\x82\xa5batch\x01\xa7samples\xdd" + struct.pack(">I", n)
    rows = b"\x93\x01\x00\x01" * (n if n < 1_000_000 else 0)
    with pytest.raises(HTTPException) as refused:
        batch(as_msgpack(content + rows))
    assert refused.value.status_code == (413 if rows else 400)


def test_the_number_of_a_batch_may_be_large_or_a_text():
    body = {"samples": [[1, 0, 1.0]]}
    assert batch(as_json({**body, "batch": 10**99})).number == "1" + "0" * 99
    assert batch(as_json({**body, "batch": "x"})).number == "x"
    with pytest.raises(HTTPException, match="100 digits"):
        batch(as_json({**body, "batch": 10**100}))
