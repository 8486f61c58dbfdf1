"""Event lists are read as a stream, and damage is said with its place."""

import gzip
import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import requires

requires.installed("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzing import SHARED_FIXTURES
from paceline.errors import PacelineError, TraceError
from paceline.sources import json_stream
from paceline.sources.event_shape import event_shape
from paceline.sources.json_stream import JsonStream, first_events, lines

EVENTS = [{"name": "a", "ts": 1.5}, {"name": 'quote " ] } , é', "args": {"n": [1, [2]]}}, {}]

fuzz = settings(max_examples=150, deadline=None, suppress_health_check=SHARED_FIXTURES)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_events_of_a_list(tmp_path: Path, packed: bool) -> None:
    data = json.dumps(EVENTS).encode()
    stream = JsonStream(write(tmp_path / "a", gzip.compress(data) if packed else data))
    assert list(stream) == EVENTS
    assert stream.bare
    assert stream.header == {}


def test_events_of_an_object_with_values_before_and_after(tmp_path: Path) -> None:
    text = json.dumps({"rank": 3, "traceEvents": EVENTS, "base": {"ns": 17}})
    stream = JsonStream(write(tmp_path / "a", text))
    events = iter(stream)
    next(events)
    assert stream.header == {"rank": 3}
    assert list(events) == EVENTS[1:]
    assert stream.header == {"rank": 3, "base": {"ns": 17}}
    assert not stream.bare


@fuzz
@given(
    events=st.lists(st.dictionaries(st.text(max_size=4), values, max_size=3), max_size=5),
    header=st.dictionaries(st.text(max_size=4), values, max_size=2),
    chunk=st.integers(1, 40),
    indent=st.sampled_from([None, 2]),
)
def test_windows_of_any_size_give_what_json_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events, header, chunk, indent
) -> None:
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", chunk)
    text = json.dumps({**header, "traceEvents": events}, indent=indent, ensure_ascii=False)
    stream = JsonStream(write(tmp_path / "a", text.encode("utf-8", errors="replace")))
    expected = json.loads(text.encode("utf-8", errors="replace").decode())
    assert list(stream) == expected.pop("traceEvents")
    assert stream.header == expected


@pytest.mark.parametrize("whole", [EVENTS, {"a": 12, "traceEvents": EVENTS, "b": 1}])
def test_a_file_cut_off_anywhere_is_refused_with_the_place(tmp_path: Path, whole: object) -> None:
    text = json.dumps(whole, indent=1)
    for n in range(len(text)):
        path = write(tmp_path / "a", text[:n])
        with pytest.raises(TraceError, match=r"line \d+ \(character [\d,]+\)") as caught:
            list(JsonStream(path))
        assert str(path) in str(caught.value)


def test_the_place_is_that_of_the_damage(tmp_path: Path) -> None:
    path = write(tmp_path / "a", '[{"a": 1},\n{"b": 2},\n{"c" 3}]')
    events = iter(JsonStream(path))
    assert [next(events), next(events)] == [{"a": 1}, {"b": 2}]
    with pytest.raises(TraceError, match=r"line 3 \(character 26\)"):
        next(events)


def test_truncated_and_broken_gzip(tmp_path: Path) -> None:
    data = gzip.compress(json.dumps([{"n": n, "s": str(n) * 9} for n in range(5000)]).encode())
    with pytest.raises(TraceError, match="cut off: its gzip stream has no end"):
        list(JsonStream(write(tmp_path / "a", data[: len(data) // 2])))
    middle = len(data) // 2
    broken = data[:middle] + b"\0" * 64 + data[middle + 64 :]
    with pytest.raises(TraceError, match=r"broken gzip|damaged"):
        list(JsonStream(write(tmp_path / "b", broken)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a list of events, or an object"),
        ("nonsense", "a list of events, or an object"),
        ("[{}] x", "something follows the end"),
        ("[1]", "an event"),
        ("{}", "no list traceEvents"),
        ('{"traceEvents": 3}', "no list traceEvents"),
        ('{"traceEvents": [], "traceEvents": []}', "a second list"),
        ("{3: 4}", "Expecting|key"),
        ('[{"a": ' + "[" * 100_000 + "]" * 100_000 + "}]", "recursion"),
        ('[{"a": ' + "9" * 5000 + "}]", "digits"),
    ],
)
def test_no_event_list_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        list(JsonStream(write(tmp_path / "a", text)))


def test_invalid_utf8_in_a_name_is_no_reason_to_refuse_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b'[{"name": "k\xff"}]')
    assert list(JsonStream(path)) == [{"name": "k�"}]


def test_a_value_that_does_not_end_is_not_read_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_stream, "MAX_VALUE_CHARS", 1000)
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 100)
    path = write(tmp_path / "a", '[{"a": "' + "x" * 100_000)
    with pytest.raises(TraceError, match="not closed, or is too large"):
        list(JsonStream(path))


@pytest.mark.parametrize("packed", [False, True])
def test_a_long_value_is_parsed_a_few_times_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    """Also if it comes in small parts, as that of a gzip stream does: the text doubles."""
    counted = 0

    class Counting(json.JSONDecoder):
        def raw_decode(self, s: str, idx: int = 0) -> Any:
            nonlocal counted
            counted += 1
            return super().raw_decode(s, idx)

    monkeypatch.setattr(json_stream, "_DECODER", Counting())
    event = {"ranks": [n * 7919 % 1_000_003 for n in range(400_000)]}
    data = json.dumps([event]).encode()
    assert len(data) > 10 * json_stream.CHUNK_BYTES
    stream = JsonStream(write(tmp_path / "a", gzip.compress(data) if packed else data))
    assert list(stream) == [event]
    assert counted < 12


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    event = json.dumps({"name": "kernel", "args": {"grid": [1, 2, 3]}, "ts": 1.25})
    path = tmp_path / "large.json.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write("[" + event)
        for _ in range(100):
            file.write(("," + event) * 1000)
        file.write("]")
    tracemalloc.start()
    try:
        n = sum(1 for _ in JsonStream(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert n == 100_001
    assert peak < 5e6  # the file holds 6.1 MB; twice a chunk and its text are 4.3


def test_first_events_stops_early_and_forgives_what_follows(tmp_path: Path) -> None:
    path = write(tmp_path / "a", '{"h": 1, "traceEvents": [{"a": 1}, {"b": 2}, nonsense')
    assert first_events(path, 1) == ([{"a": 1}], {"h": 1})
    assert first_events(path, 9) == ([{"a": 1}, {"b": 2}], {"h": 1})
    assert first_events(write(tmp_path / "b", "PAR1"), 1) is None


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        list(JsonStream(tmp_path / "none"))
    with pytest.raises(TraceError, match="is a folder"):
        list(JsonStream(tmp_path))


def test_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 3)
    path = write(tmp_path / "a", gzip.compress(b"first\n\nthird"))
    assert list(lines(path)) == ["first", "", "third"]
    monkeypatch.setattr(json_stream, "MAX_LINE_BYTES", 4)
    with pytest.raises(TraceError, match="a line of more than 4 bytes"):
        list(lines(path))


@fuzz
@given(
    data=st.binary(max_size=200),
    packed=st.booleans(),
    prefix=st.sampled_from([b"", b"[{", b"\x1f\x8b"]),
)
def test_any_bytes(tmp_path: Path, data: bytes, packed: bool, prefix: bytes) -> None:
    data = prefix + data
    path = write(tmp_path / "a", gzip.compress(data) if packed else data)
    try:
        list(JsonStream(path))
    except PacelineError as error:
        assert str(path) in str(error)  # noqa: PT017 (reading them is no error, either)


def pretty(events: list[dict[str, object]]) -> str:
    """Events as Kineto writes them, two spaces in."""
    texts = [f"  {{\n    {json.dumps(event)[1:-1]}\n  }}" for event in events]
    return '{\n  "schemaVersion": 1,\n  "traceEvents": [\n' + ",\n".join(texts) + "\n  ]}"


@pytest.mark.parametrize("with_msgspec", [True, False])
def test_events_that_are_parsed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_msgspec: bool
) -> None:
    if not with_msgspec:
        monkeypatch.setattr(json_stream, "list_decoder", lambda: json.loads)
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 700)
    nested = [{"a": "\n  },\n  {"}, {"a": [{"b": 1}, {"c": {}}]}, {"a": "\u00e9 }, {"}]
    events: list[dict[str, object]] = [{"n": n, "args": nested[n % 3]} for n in range(100)]
    path = tmp_path / "trace.json"
    path.write_text(pretty(events))
    stream = JsonStream(path)
    assert list(stream) == events
    assert stream.header == {"schemaVersion": 1}


@pytest.mark.parametrize("with_msgspec", [True, False])
def test_only_some_values_of_events_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_msgspec: bool
) -> None:
    if with_msgspec:
        requires.installed("msgspec")
    else:
        monkeypatch.setitem(sys.modules, "msgspec", None)
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 700)
    event_shape.cache_clear()
    shape = event_shape(("n", "ts"), ("stream", "Seq no"))
    assert (shape.decode is not None) == with_msgspec
    events: list[dict[str, object]] = [
        {"n": n, "ts": str(n), "cat": "x", "args": {"stream": n, "grid": [n], "Seq no": -n}}
        for n in range(60)
    ]
    # args of another type, and none: the other events' are as before.
    events[30]["args"], events[31] = 5, {"n": 31}
    path = tmp_path / "trace.json"
    path.write_text(pretty(events))
    read = list(JsonStream(path, shape=shape))
    rows = [(e.n, e.ts, e.args.stream, e.args.seq_no) for e in read]
    expected: list[tuple[object, ...]] = [(n, str(n), n, -n) for n in range(60)]
    expected[30:32] = [(30, "30", None, None), (31, None, None, None)]
    assert rows == expected
    assert not any(hasattr(event, "cat") for event in read)
    event_shape.cache_clear()


def test_damage_keeps_its_place_where_events_are_parsed_together(tmp_path: Path) -> None:
    text = pretty([{"n": n} for n in range(50)])
    line = text[: text.index('"n": 30')].count("\n") + 1
    path = tmp_path / "trace.json"
    path.write_text(text.replace('"n": 30', '"n": 3x'))
    values = iter(JsonStream(path))
    assert [next(values) for _ in range(30)] == [{"n": n} for n in range(30)]
    with pytest.raises(TraceError, match=f"trace.json, line {line} "):
        next(values)
    path.write_text(text.replace('{\n    "n": 30\n  }', "30"))
    with pytest.raises(TraceError, match=r"an event, \{...\}, should be here"):
        list(JsonStream(path))


def test_a_list_of_objects_with_the_same_layout_inside_an_event(tmp_path: Path) -> None:
    inner = '{"list": [\n  {\n    "x": 1\n  },\n  {\n    "y": 2\n  }]}'
    path = tmp_path / "trace.json"
    path.write_text(f"[{inner},\n{inner}]")
    assert list(JsonStream(path)) == [json.loads(inner)] * 2


def test_events_that_cannot_be_parsed_together_are_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def refuse(text: str) -> object:
        tries.append(len(text))
        raise ValueError("NaN is no JSON")

    monkeypatch.setattr(json_stream, "list_decoder", lambda: refuse)
    events: list[dict[str, object]] = [{"n": n} for n in range(200)]
    path = tmp_path / "trace.json"
    path.write_text(pretty(events))
    assert list(JsonStream(path)) == events
    assert len(tries) == 1
