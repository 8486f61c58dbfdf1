"""PyTorch's flight recorder: what is damaged, and pickles with code."""

import collections
import copy
import datetime
import gzip
import json
import os
import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest

import requires

requires.installed("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzing import SHARED_FIXTURES
from paceline.errors import PacelineError, TraceError
from paceline.sources.call_logs import flight_recorder, plain_pickle
from paceline.sources.call_logs.files import load_call_log

NS = 1_795_245_033_000_000_000


def entry(n, **more):
    return {
        "record_id": n,
        "time_created_ns": NS + n * 1_000_000,
        "profiling_name": "nccl:all_reduce",
        "process_group": ("0", "default_pg"),
        "input_sizes": [[4, 2], [3]],
        "output_sizes": [[4, 2]],
        "state": "completed",
        "collective_seq_id": n,
        "frames": [{"name": "f", "line": 3, "filename": "a.py"}],
        **more,
    }


def dump(n=3, **more):
    return {"version": "2.10", "pg_config": {}, "entries": [entry(i) for i in range(n)], **more}


def saved(tmp_path, what, name="nccl_trace_rank_3", protocol=2):
    path = tmp_path / name
    json_too = ".json" in name
    data = json.dumps(what).encode() if json_too else pickle.dumps(what, protocol)
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("name", ["nccl_trace_rank_3", "rank3.pkl", "3.json", "fr_3.json.gz"])
def test_calls_of_a_rank(tmp_path, name, protocol):
    entries = [entry(1, profiling_name="nccl:send 0->1", process_group=("1", "")), entry(0)]
    log, notes = flight_recorder.read(saved(tmp_path, dump(entries=entries), name, protocol))
    assert log.rank.tolist() == [3, 3]
    assert log.time_s.tolist() == pytest.approx([NS * 1e-9, NS * 1e-9 + 1e-3], abs=1e-6)
    assert [log.ops[op] for op in log.op] == ["all_reduce", "send 0->1"]
    assert [log.communicators[at] for at in log.communicator] == ["0:default_pg", "1:"]
    assert log.size.tolist() == [11, 11]
    assert log.duration_s is None
    assert notes == ()


def test_durations_count_where_all_calls_have_one(tmp_path):
    entries = [entry(i, duration_ms=0.5 * i) for i in range(3)]
    log, _ = flight_recorder.read(saved(tmp_path, dump(entries=entries)))
    assert log.duration_s.tolist() == pytest.approx([0, 5e-4, 1e-3])
    del entries[1]["duration_ms"]
    log, _ = flight_recorder.read(saved(tmp_path, dump(entries=entries)))
    assert log.duration_s is None


def test_calls_that_left_the_ring_are_told(tmp_path):
    entries = [entry(7), entry(8), entry(11)]
    _, notes = flight_recorder.read(saved(tmp_path, dump(entries=entries)))
    assert notes == (
        "rank 3: its 7 earliest calls had left the recorder",
        "rank 3: 2 calls in between are missing",
    )


def test_plain_pickles_say_what_pickle_says():
    values = [
        *(0, 1, 255, 256, 65535, 65536, -1, -(2**31), 2**31, 2**63, -(2**70), 10**300),
        *(1.5, float("inf"), True, False, None, "", "a", "ü", "x" * 300, "y" * 70_000),
        *([], [1], list(range(1500)), {}, {"a": [1]}, {i: i for i in range(1100)}),
        *((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [["a"] * 3, ("a", {"a": ("a",)})]),
        dump(500),
    ]
    for value in values:
        for protocol in (2, 3, 4, 5):
            assert plain_pickle.load(pickle.dumps(value, protocol), "here") == value


RAN = []


def ran(*args):
    RAN.append(args)


class Code:
    def __init__(self, made):
        self.made = made

    def __reduce_ex__(self, protocol):
        return self.made


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        Code((ran, ("here",))),
        Code((os.system, ("echo run",))),
        Code((eval, ("1",))),
        collections.OrderedDict(a=1),
        datetime.datetime(2026, 1, 1),
        Path("a"),
        len,
        dict,
        1j,
        Code((collections.OrderedDict, (), {"a": 1})),
    ],
)
def test_pickles_with_code_are_refused_and_never_run(tmp_path, value, protocol):
    path = saved(tmp_path, dump(pg_config={"0": value}), protocol=protocol)
    with pytest.raises(TraceError, match=r"it would run code \((STACK_)?GLOBAL\), which is never"):
        flight_recorder.read(path)
    assert RAN == []


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'echo'\ntR.",
        b"(S'echo'\nios\nsystem\n.",
        b"\x80\x02(cos\nsystem\nX\x04\x00\x00\x00echoo.",
        b"\x80\x02X\x01\x00\x00\x00a\x82\x01.",
        b"\x80\x02X\x01\x00\x00\x00aQ.",
        b"Pa\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04echo\x85R.",
        b"\x80\x02}}b.",
        b"\x80\x02}}\x81.",
    ],
)
def test_every_way_to_code_is_refused(data):
    with pytest.raises(TraceError, match=r"it would run code|is an instruction .* plain data"):
        plain_pickle.load(data, "here")


def test_all_instructions_that_are_not_plain_are_refused():
    plain = {
        *("MARK", "STOP", "NONE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "NEWTRUE"),
        *("NEWFALSE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "EMPTY_LIST", "EMPTY_DICT"),
        *("EMPTY_TUPLE", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "TUPLE", "TUPLE1", "TUPLE2"),
        *("TUPLE3", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "MEMOIZE", "PROTO", "FRAME"),
    }
    for op in pickletools.opcodes:
        if op.name in plain:
            continue
        with pytest.raises(TraceError, match=r"would run code|is an instruction"):
            plain_pickle.load(b"\x80\x04" + op.code.encode("latin-1") + bytes(9) + b".", "here")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x02",
        b"\x80\x02.",
        b"\x80\x02]",
        b"\x80\x02]].",
        b"\x80\x02(.",
        b"\x80\x02(q\x00.",
        b"\x80\x02((t.",
        b"\x80\x02(e.",
        b"\x80\x02](K\x01u.",
        b"\x80\x02}(K\x01u.",
        b"\x80\x02}]K\x01s.",
        b"\x80\x02a.",
        b"\x80\x02h\x07.",
        b"\x80\x09].",
        b"\x80\x04\x8d" + b"\xff" * 8,
        b"\x80\x02X\xff\xff\xff\xff",
        b"\x80\x02\x8a\xffaaa",
        b"\x80\x02r\xff\xff\xff\x7f.",
        b"\x80\x04\x96\xff\xff\xff\xff\xff\x00\x00\x00.",
    ],
)
def test_damaged_pickles_are_refused(data):
    with pytest.raises(TraceError, match="here is no pickle of plain data: at byte"):
        plain_pickle.load(data, "here")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "1.5"}, r"is a dump of version 1\.5; version 2 is read"),
        ({"version": None}, "is a dump of version unknown"),
        ({"entries": []}, "has no entries"),
        ({"entries": 3}, "has no list of entries"),
        ({"entries": [3]}, "entry 0 is no call but a int"),
        ({"entries": [entry(0, time_created_ns="soon")]}, "time_created_ns should be nanosec"),
        ({"entries": [entry(0, time_created_ns=-1)]}, "time_created_ns should be nanoseconds"),
        ({"entries": [entry(0, profiling_name=None)]}, "profiling_name should be the name"),
        ({"entries": [entry(0, process_group=7)]}, "process_group should be a name and a"),
        ({"entries": [entry(0, input_sizes=[4])]}, "input_sizes should be lists of dimensions"),
        ({"entries": [entry(0, input_sizes=[[-4]])]}, "input_sizes should be lists of dim"),
        ({"entries": [entry(0, input_sizes=[[2**30] * 9])]}, "input_sizes should be lists"),
        ({"entries": [entry(0, record_id=None)]}, "record_id should be a whole number"),
        ({"entries": [entry(0, duration_ms=-1)]}, "duration_ms is negative"),
        ({"entries": [entry(0, duration_ms="x")]}, "duration_ms should be a number"),
        ({"entries": [entry(0), entry(0)]}, "has record 0 twice"),
        (
            {"entries": [entry(0), entry(1, time_created_ns=NS - 10**9)]},
            r"record 1 was made 1\.000 s before the previous one; the clock was set",
        ),
    ],
)
def test_dumps_that_are_refused(tmp_path, change, message):
    with pytest.raises(TraceError, match=message):
        flight_recorder.read(saved(tmp_path, dump(**change)))


@pytest.mark.parametrize("key", ["version", *sorted(entry(0)), "duration_ms"])
@pytest.mark.parametrize("shape", ["deep", "wide"])
def test_structures_made_to_exhaust_are_not_walked(tmp_path, key, shape):
    # Lists in lists; or tuples of twice the tuple below, 2^60 in all.
    deep = b"]" * 50_000 + b"a" * 49_999
    wide = b"(" * 60 + b"]q\xc8" + b"h\xc8tq\xc8" * 60
    nested = deep if shape == "deep" else wide
    head = pickle.dumps({"version": "2.1"}, 4)[2:-1]
    one = pickle.dumps(entry(0), 4)[2:-1]
    if key == "version":
        body = head + pickle.dumps(key, 4)[2:-1] + nested + b"s"
        body += b"\x8c\x07entries](" + one + b"es"
    else:
        one += b"\x8c" + bytes([len(key)]) + key.encode() + nested + b"s"
        body = head + b"\x8c\x07entries](" + one + b"es"
    path = tmp_path / "rank_0"
    path.write_bytes(b"\x80\x04" + body + b".")
    said = refusal(lambda: flight_recorder.read(path))
    with pytest.raises(TraceError, match="a key is no text or number"):
        plain_pickle.load(b"\x80\x04}" + wide + b"K\x01s.", "here")
    assert said is None if key in ("output_sizes", "state", "frames", "collective_seq_id") else said


def test_a_rank_has_to_be_known(tmp_path):
    with pytest.raises(TraceError, match=r"the name has to end in it: nccl_trace_rank_0"):
        flight_recorder.read(saved(tmp_path, dump(), "dump.pkl"))


@pytest.mark.parametrize("name", ["rank_3", "rank_3.json", "rank_3.json.gz"])
@pytest.mark.parametrize("share", [0.2, 0.6, 0.99])
def test_dumps_that_are_cut_off_are_refused(tmp_path, name, share):
    path = saved(tmp_path, dump(50), name)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(TraceError, match="cut off"):
        flight_recorder.read(path)


def test_the_order_of_the_entries_does_not_matter(tmp_path):
    entries = dump(20)["entries"]
    np.random.default_rng(0).shuffle(entries)
    log, _ = flight_recorder.read(saved(tmp_path, dump(entries=entries)))
    assert (np.diff(log.time_s) > 0).all()


def refusal(read):
    """What a reader says where it refuses; any other exception fails the test."""
    try:
        read()
    except PacelineError as error:
        return str(error)
    return None


FEW = settings(max_examples=300, deadline=None, suppress_health_check=SHARED_FIXTURES)


@FEW
@given(data=st.binary(max_size=60))
def test_no_bytes_break_the_pickle_reader(data):
    said = refusal(lambda: plain_pickle.load(b"\x80\x04" + data, "here"))
    assert said is None or said.startswith("here is no pickle of plain data")


OPS = [op.code.encode("latin-1") for op in pickletools.opcodes]


@FEW
@given(
    st.lists(st.sampled_from(OPS) | st.binary(min_size=1, max_size=3), max_size=25).map(b"".join)
)
def test_no_program_breaks_the_pickle_reader(program):
    said = refusal(lambda: plain_pickle.load(b"\x80\x04" + program + b".", "here"))
    assert said is None or said.startswith("here is no pickle of plain data")


@FEW
@given(at=st.floats(0, 1), some=st.binary(max_size=4), cut=st.booleans(), text=st.booleans())
def test_no_damage_breaks_the_reader(tmp_path, at, some, cut, text):
    path = saved(tmp_path, dump(), "rank_3.json" if text else "rank_3")
    data = path.read_bytes()
    place = int(at * len(data))
    path.write_bytes(data[:place] + some + (b"" if cut else data[place + len(some) :]))
    assert refusal(lambda: flight_recorder.read(path)) != ""
    assert refusal(lambda: load_call_log([path])) != ""


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


@FEW
@given(st.lists(st.tuples(st.sampled_from(sorted(entry(0))), VALUES), max_size=3), VALUES)
def test_no_value_breaks_the_reader(tmp_path, changes, version):
    entries = copy.deepcopy(dump()["entries"])
    for key, value in changes:
        entries[1][key] = value
    path = saved(tmp_path, {"version": "2.1", "entries": entries, "pg_config": version})
    assert refusal(lambda: flight_recorder.read(path)) != ""
    path = saved(tmp_path, {"version": version, "entries": entries})
    assert refusal(lambda: flight_recorder.read(path)) != ""
