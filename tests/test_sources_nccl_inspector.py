"""NCCL Inspector's logs, built to the format of its source, and call logs of any format."""

import copy
import gzip
import json
import pickle

import numpy as np
import pytest

import requires

requires.installed("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzing import SHARED_FIXTURES
from paceline.detect.steps_of_calls import step_times
from paceline.errors import PacelineError, TraceError
from paceline.sources.call_logs import nccl_inspector
from paceline.sources.call_logs.files import load_call_log
from paceline.trace.calls import CallLog

US = 1_748_030_377_000_000


def line(
    rank, number, start_us, *, coll="AllReduce", size=4096, took_us=100, verbose=False, **more
):
    """A collective of a rank; process ``rank`` of host ``node-(rank // 2)``."""
    entry = {
        "header": {"id": "0xfeed", "rank": rank, "n_ranks": 4, "nnodes": 2},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "profiler_plugin",
            "dump_timestamp_us": US + start_us + took_us + 30,
            "hostname": f"node-{rank // 2}",
            "pid": 100 + rank,
        },
        "coll_perf": {
            "coll": coll,
            "coll_sn": number,
            "coll_msg_size_bytes": size,
            "coll_exec_time_us": took_us,
            "coll_algobw_gbs": 1.0,
            "coll_busbw_gbs": 1.5,
        },
    }
    if verbose:
        entry["coll_perf"]["event_trace_ts"] = {"coll_start_ts": US + start_us}
    for path, value in more.items():
        part, key = path.split("__")
        entry[part][key] = value
    return entry


def job(steps=8, ranks=4, slow_from=99, **more):
    """Rank -> its lines: two all-reduces and an all-gather of another communicator a step."""
    logs = {}
    for rank in range(ranks):
        mine = logs.setdefault(rank, [])
        at = 1000
        for step in range(steps):
            mine.append(line(rank, 2 * step, at, **more))
            mine.append(line(rank, 2 * step + 1, at + 500, size=64, **more))
            pair = {"header__id": f"0xd{rank // 2}", "header__n_ranks": 2, "header__rank": rank % 2}
            mine.append(line(rank, step, at + 900, coll="AllGather", **pair, **more))
            at += 10_000 if step < slow_from else 20_000
    return logs


def saved(tmp_path, logs):
    paths = []
    for rank, lines in logs.items():
        path = tmp_path / f"node-{rank // 2}-pid{100 + rank}.log"
        path.write_text("".join(json.dumps(one) + "\n" for one in lines))
        paths.append(path)
    return paths


def test_calls_of_all_ranks(tmp_path):
    paths = saved(tmp_path, job())
    assert all(nccl_inspector.matches(path) for path in paths)
    log, notes = nccl_inspector.read(paths)
    assert notes == ()
    assert len(log) == 4 * 8 * 3
    assert (log.ops, log.communicators) == (("AllReduce", "AllGather"), ("0xfeed", "0xd0", "0xd1"))
    for rank, rows in log.of_ranks():
        assert [log.ops[op] for op in log.op[rows]] == ["AllReduce", "AllReduce", "AllGather"] * 8
        assert log.size[rows].tolist() == [4096, 64, 4096] * 8
        # Without verbose events the start is the dump's time less the execution: 30 us late.
        assert log.time_s[rows[0]] == pytest.approx((US + 1030) * 1e-6, abs=1e-6)
        assert {log.communicators[at] for at in log.communicator[rows]} == {
            "0xfeed",
            f"0xd{rank // 2}",
        }
    assert log.duration_s.tolist() == pytest.approx([1e-4] * len(log))


def test_the_tools_own_start_is_better(tmp_path):
    log, _ = nccl_inspector.read(saved(tmp_path, job(verbose=True)))
    assert log.time_s[0] == pytest.approx((US + 1000) * 1e-6, abs=1e-6)


def test_a_call_begins_with_its_first_kernel(tmp_path):
    kernels = [{"channel_id": n, "kernel_start_ts": US + at} for n, at in ((0, 70), (1, 60))]
    trace = {"coll_start_ts": US, "kernel_events": [*kernels, {"channel_id": 2}]}
    one = line(0, 0, 1000, coll_perf__event_trace_ts=trace)
    log, _ = load_call_log(saved(tmp_path, {0: [one]}))
    assert log.time_s[0] == pytest.approx((US + 60) * 1e-6, abs=1e-6)


def send(rank, peer, number, start_us):
    """A send or recv between two ranks of the communicator of all."""
    entry = line(rank, number, start_us)
    call = entry.pop("coll_perf")
    entry["p2p_perf"] = {
        "p2p": "Send" if rank < peer else "Recv",
        "p2p_peer": peer,
        **{key.replace("coll", "p2p"): value for key, value in call.items() if key != "coll"},
    }
    return entry


def test_sends_and_recvs_meet_in_communicators_of_two(tmp_path):
    logs = job(steps=2)
    for rank, peer in ((0, 1), (1, 0), (2, 3), (3, 2)):
        logs[rank].append(send(rank, peer, 0, 30_000))
    log, notes = load_call_log(saved(tmp_path, logs))
    assert set(log.ops) == {"AllReduce", "AllGather", "Send", "Recv"}
    assert {"0xfeed:0-1", "0xfeed:2-3"} <= set(log.communicators)
    assert notes == ()


def test_begins_that_are_only_dump_times_are_refused(tmp_path):
    logs = job()
    for lines_of_rank in logs.values():
        for n, one in enumerate(lines_of_rank):  # as written when the communicator ends
            one["metadata"]["dump_timestamp_us"] = US + 10**7 + n
    with pytest.raises(TraceError, match=r"written together.*DUMP_VERBOSE=1.*MICROSECONDS=500"):
        load_call_log(saved(tmp_path, logs))
    verbose = job(verbose=True)
    for lines_of_rank in verbose.values():
        for n, one in enumerate(lines_of_rank):
            one["metadata"]["dump_timestamp_us"] = US + 10**7 + n
    log, _ = load_call_log(saved(tmp_path, verbose))
    assert len(log) == sum(map(len, verbose.values()))


def test_a_header_holds_until_the_next(tmp_path):
    logs = {0: [line(0, n, 1000 * n) for n in range(3)]}
    bare = [{"coll_perf": one["coll_perf"], "metadata": one["metadata"]} for one in logs[0]]
    bare.insert(0, {"header": logs[0][0]["header"], "metadata": logs[0][0]["metadata"]})
    log, _ = load_call_log(saved(tmp_path, {0: bare}))
    assert (log.rank.tolist(), log.communicators) == ([0, 0, 0], ("0xfeed",))


def test_durations_of_the_host_are_told(tmp_path):
    logs = {0: [line(0, n, 1000 * n, coll_perf__coll_timing_source="kernel_cpu") for n in range(2)]}
    _, notes = load_call_log(saved(tmp_path, logs))
    assert any("2 of 2 durations were measured on the host" in note for note in notes)


def test_a_status_of_ras_is_refused_by_name(tmp_path):
    path = tmp_path / "ras.json"
    path.write_text(
        '{\n  "nccl_version": "2.30.7",\n  "cuda_runtime_version": 13000,\n  "timestamp": '
        '"2026-06-11 13:06:53",\n  "communicators_count": 0,\n  "communicators": []\n}\n'
    )
    with pytest.raises(TraceError, match="is a status of NCCL RAS"):
        load_call_log([path])


def test_marks_of_dumps_are_no_calls(tmp_path):
    """As ``inspector_json.cc`` after 2.30.7 writes them (v4.2), ahead of each batch."""
    logs = {0: [line(0, n, 1000 * n) for n in range(3)]}
    mark = {"header": logs[0][0]["header"], "metadata": logs[0][0]["metadata"]}
    stats = {"coll_records": 3, "coll_dropped_total": 0, "coll_dropped_since_last_dump": 0}
    logs[0].insert(0, {**mark, "dump_stats": stats})
    log, notes = load_call_log(saved(tmp_path, logs))
    assert len(log.rank) == 3
    assert not any("describe no collective" in note for note in notes)


def test_steps_are_found(tmp_path):
    log, _ = load_call_log(saved(tmp_path, job(steps=12, slow_from=6)))
    times = step_times(log)
    assert {period.calls for period in times.periods.values()} == {3}
    for rank in range(4):
        mine = times.duration_s[times.rank == rank]
        assert mine.tolist() == pytest.approx([0.01] * 6 + [0.02] * 5, abs=1e-6)


def test_the_order_of_files_and_lines_does_not_matter(tmp_path):
    logs = job()
    a, _ = nccl_inspector.read(saved(tmp_path, logs))
    everything = [one for lines in logs.values() for one in lines]
    np.random.default_rng(0).shuffle(everything)
    b, _ = nccl_inspector.read(saved(tmp_path, {0: everything})[:1])
    assert (a.time_s == b.time_s).all()
    assert (a.rank == b.rank).all()
    assert [a.ops[op] for op in a.op] == [b.ops[op] for op in b.op]


def test_without_a_communicator_of_all_processes_are_numbered(tmp_path):
    logs = {
        rank: [one for one in lines if one["header"]["id"] != "0xfeed"]
        for rank, lines in job().items()
    }
    for lines in logs.values():
        for one in lines:
            one["metadata"]["hostname"] = one["metadata"]["hostname"].replace("node-1", "node-10")
            one["metadata"]["hostname"] = one["metadata"]["hostname"].replace("node-0", "node-9")
    log, notes = nccl_inspector.read(saved(tmp_path, logs))
    assert "numbered by host and pid; these are not the job's ranks" in notes[0]
    assert [log.communicators[log.communicator[rows[0]]] for _, rows in log.of_ranks()] == [
        *("0xd0", "0xd0", "0xd1", "0xd1")
    ]


def test_what_is_missing_is_told(tmp_path):
    logs = job()
    del logs[3], logs[0][0], logs[0][3:6]
    logs[1].append({"header": {}, "metadata": {}, "p2p_perf": {}})
    _, notes = nccl_inspector.read(saved(tmp_path, logs))
    assert notes[0] == "1 of 4 ranks have no log here"
    assert notes[1] == "1 lines describe no collective and are left out"
    assert notes[2].startswith("3 calls between the 68 logged are missing, by their sequence")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"header__rank": 4}, "rank 4 of 4 in communicator 0xfeed contradicts"),
        ({"header__rank": 2}, "rank 2 of 4 in communicator 0xfeed contradicts"),
        ({"header__n_ranks": 8}, "rank 1 of 8 in communicator 0xfeed contradicts"),
        ({"header__rank": "x"}, "rank should be a whole number from 0, not 'x'"),
        ({"metadata__pid": None}, "pid should be a whole number from 0, not None"),
        ({"metadata__hostname": 3}, "hostname and coll should be names"),
        ({"coll_perf__coll": None}, "hostname and coll should be names"),
        ({"coll_perf__coll_sn": -1}, "coll_sn should be a whole number from 0"),
        ({"coll_perf__coll_sn": 0}, "call 0 of rank 1 in communicator 0xfeed is there twice"),
        ({"coll_perf__coll_msg_size_bytes": 1.5}, "coll_msg_size_bytes should be a whole number"),
        ({"coll_perf__coll_exec_time_us": -5}, "coll_exec_time_us is negative"),
        ({"coll_perf__coll_exec_time_us": "x"}, "coll_exec_time_us should be a number, not 'x'"),
        ({"metadata__dump_timestamp_us": 5}, "dumped before the previous call; was the clock"),
        ({"metadata__pid": 999}, "two processes have one rank in communicator 0xfeed"),
    ],
)
def test_lines_that_are_refused(tmp_path, change, message):
    logs = job()
    for path, value in change.items():
        part, key = path.split("__")
        logs[1][1][part][key] = value
    with pytest.raises(TraceError, match=message):
        nccl_inspector.read(saved(tmp_path, logs))


@pytest.mark.parametrize("share", [0.3, 0.99])
@pytest.mark.parametrize("packed", [False, True])
def test_logs_that_are_cut_off_are_refused(tmp_path, share, packed):
    (path,) = saved(tmp_path, {0: job()[0]})
    data = path.read_bytes().rstrip()
    data = gzip.compress(data) if packed else data
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(TraceError, match="cut off"):
        nccl_inspector.read([path])


def test_logs_with_no_collective_are_refused(tmp_path):
    path = tmp_path / "a.log"
    for text in ("", "\n\n", '{"header": {}, "p2p_perf": {}}'):
        path.write_text(text)
        with pytest.raises(TraceError, match="has no collective"):
            nccl_inspector.read([path])
    path.write_text("[1]")
    with pytest.raises(TraceError, match="line 1 is no object; is it a log of NCCL Inspector"):
        nccl_inspector.read([path])


# Any format.

CSV = "rank,time_s,op,size,communicator\n"


def recorded(tmp_path, rank, at_s=0.0, n=3):
    entries = [
        {
            "record_id": i,
            "time_created_ns": round((at_s + i) * 1e9),
            "profiling_name": "nccl:all_reduce",
            "process_group": ("0", "x"),
            "input_sizes": [[4]],
        }
        for i in range(n)
    ]
    path = tmp_path / f"trace_{rank}"
    path.write_bytes(pickle.dumps({"version": "2.9", "entries": entries}, 2))
    return path


def test_each_format_is_recognised(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = {"rank": [0], "time_s": [1.0], "op": ["a"], "size": [1], "communicator": ["b"]}
    pq.write_table(pa.table(table), tmp_path / "calls.parquet")
    (tmp_path / "calls.csv").write_text(CSV + "0,1,a,1,b\n")
    logs = [
        load_call_log([path])[0]
        for path in (
            tmp_path / "calls.parquet",
            tmp_path / "calls.csv",
            recorded(tmp_path, 0),
            saved(tmp_path, {0: job()[0]})[0],
        )
    ]
    assert [len(log) for log in logs] == [1, 1, 3, 24]
    assert all(isinstance(log, CallLog) for log in logs)


def test_a_folder_is_all_of_its_files(tmp_path):
    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / ".hidden").write_text("")
    for rank in (1, 0, 10):
        recorded(folder, rank)
    log, notes = load_call_log([folder])
    assert [rank for rank, _ in log.of_ranks()] == [0, 1, 10]
    assert (log.ops, log.communicators, notes) == (("all_reduce",), ("0:x",), ())


def test_tables_of_several_ranks_are_joined(tmp_path):
    (tmp_path / "a.csv").write_text(CSV + "0,1,a,1,b\n0,2,c,1,b\n")
    (tmp_path / "b.csv").write_text(CSV + "1,1,c,1,d\n1,2,a,1,b\n")
    log, _ = load_call_log([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert [log.ops[op] for op in log.op] == ["a", "c", "c", "a"]
    assert [log.communicators[at] for at in log.communicator] == ["b", "b", "d", "b"]
    assert log.duration_s is None


def test_logs_that_do_not_belong_together_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.csv").write_text(CSV + "0,1,a,1,b\n")
    (tmp_path / "b.csv").write_text(CSV + "0,1,a,1,b\n")
    one, other = recorded(tmp_path, 0), recorded(tmp_path, 1, at_s=3600.0)
    for paths, message in (
        ([one, tmp_path / "a.csv"], r"a\.csv is a table file, .*trace_0 a flight-recorder file"),
        ([tmp_path / "a.csv", tmp_path / "b.csv"], r"rank 0 is in .*a\.csv and in .*b\.csv"),
        ([one, other], "calls of rank 1 begin 3,598 s after those of rank 0 have ended"),
        ([tmp_path / "none"], "none does not exist"),
        ([tmp_path / "empty"], "empty has no files"),
        ([], "no call log was given"),
    ):
        with pytest.raises(TraceError, match=message):
            load_call_log(paths)


def test_inspector_logs_of_another_clock_are_refused(tmp_path):
    logs = job()
    for one in logs[2]:
        one["metadata"]["dump_timestamp_us"] += 3600 * 10**6
    with pytest.raises(TraceError, match="calls of rank 2 begin 3,600 s after those of rank"):
        load_call_log(saved(tmp_path, logs))


def refusal(read):
    """What a reader says where it refuses; any other exception fails the test."""
    try:
        read()
    except PacelineError as error:
        return str(error)
    return None


FEW = settings(max_examples=250, deadline=None, suppress_health_check=SHARED_FIXTURES)
SMALL = [one for lines in job(steps=2, ranks=2, verbose=True).values() for one in lines]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)
PLACES = [
    (n, part, key)
    for n in range(len(SMALL))
    for part in SMALL[n]
    for key in (None, *SMALL[n][part])
]


@FEW
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=4))
def test_no_value_breaks_the_reader(tmp_path, changes):
    lines = copy.deepcopy(SMALL)
    for (n, part, key), value in changes:
        if key is None:
            lines[n][part] = value
        elif isinstance(lines[n][part], dict):
            lines[n][part][key] = value
    (path,) = saved(tmp_path, {0: lines})
    assert refusal(lambda: load_call_log([path])) != ""


@FEW
@given(at=st.floats(0, 1), some=st.binary(max_size=4), cut=st.booleans())
def test_no_damage_breaks_the_reader(tmp_path, at, some, cut):
    (path,) = saved(tmp_path, {0: SMALL})
    data = path.read_bytes()
    place = int(at * len(data))
    path.write_bytes(data[:place] + some + (b"" if cut else data[place + len(some) :]))
    assert refusal(lambda: nccl_inspector.read([path])) != ""
    assert refusal(lambda: load_call_log([path])) != ""


@FEW
@given(
    data=st.binary(max_size=80), name=st.sampled_from(["a", "a_0", "a.csv", "a.parquet", "3.gz"])
)
def test_no_bytes_break_the_choice_of_a_reader(tmp_path, data, name):
    path = tmp_path / name
    path.write_bytes(data)
    assert refusal(lambda: load_call_log([path])) != ""
    path.write_bytes(gzip.compress(data))
    assert refusal(lambda: load_call_log([path])) != ""
