"""torchcomms' clog and its flight recorder: call logs of one rank a file."""

import json
from pathlib import Path

import numpy as np
import pytest

from paceline.cli.main import run
from paceline.detect.steps_of_calls import step_times
from paceline.detect.who_calls import who_from_calls
from paceline.errors import TraceError
from paceline.sources.call_logs.files import load_call_log

BASE_S = 1714234567.890
SIGNATURES = (
    "C1|sig|all_gather_single|in_count=64|out_count=256|dtype=bf16|async_op=t|comm=world",
    "C2|sig|all_reduce|in_count=1024|out_count=1024|dtype=f32|red_op=sum|async_op=f|comm=dp",
)


def clog(rank: int, *lines: str, ranks: int = 2) -> str:
    head = (
        f"V|1|base_timestamp={BASE_S:.3f}",
        f"new_comm|comm=world|rank={rank}|world_size={ranks}",
        f"split|parent=world|child=dp|ranks={rank % 2},{rank % 2 + 2}",
    )
    return "\n".join([*head, *SIGNATURES, *lines]) + "\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def job(folder: Path, *, steps: int = 8, slow: int = 2) -> list[Path]:
    """Steps of 140 ms with a gather and a sum; one rank computes 40 ms longer than the others.

    Its peer waits for it in the sum, the others in the next step's gather.
    """
    paths = []
    for rank in range(4):
        lines, work = [], 0
        for step in range(steps):
            begin = 0.14 * step + 0.04
            alike = rank % 2 == slow % 2
            for call, at, end in (
                (1, begin + (0.01 if alike else -0.03), begin + 0.02),
                (2, begin + (0.13 if rank == slow else 0.09), begin + (0.135 if alike else 0.095)),
            ):
                work += 1
                lines.append(f"C{call}|Q|work_id={work}|+{at:.3f}")
                lines += [f"C{call}|S|+{at + 0.001:.3f}", f"C{call}|E|+{end:.3f}"]
        paths.append(written(folder / f"clog_{rank}.log", clog(rank, *lines, ranks=4)))
    return paths


def test_calls_have_their_begin_and_duration(tmp_path: Path) -> None:
    lines = ("C1|Q|work_id=1|+0.010", "C1|S|+0.012", "C2|Q|work_id=2|+0.013", "C1|E|+0.020")
    text = clog(1, *lines, "C2|S|+0.021", "C1|W|+0.022", "C2|E|+0.030")
    log, notes = load_call_log([written(tmp_path / "a.log", text)])
    assert log.rank.tolist() == [1, 1]
    assert log.time_s - BASE_S == pytest.approx([0.012, 0.021], abs=1e-6)
    assert log.duration_s == pytest.approx([0.008, 0.009], abs=1e-6)
    assert [log.ops[op] for op in log.op] == ["all_gather_single", "all_reduce"]
    assert log.size.tolist() == [64, 1024]
    assert log.communicators == ("world", "dp[1,3]")
    assert notes == ("rank 1: clog's times are whole milliseconds",)


def test_without_lifecycle_calls_begin_when_they_were_queued(tmp_path: Path) -> None:
    text = clog(0, "C1|Q|work_id=1|+0.010", "C1|Q|work_id=2|+0.020")
    log, notes = load_call_log([written(tmp_path / "a.log", text)])
    assert log.time_s - BASE_S == pytest.approx([0.010, 0.020], abs=1e-6)
    assert log.duration_s is None
    assert notes == ()


def test_sends_are_between_two_ranks(tmp_path: Path) -> None:
    send = "C3|sig|send|in_count=8|out_count=0|dtype=f32|peer=0|async_op=t|comm=world"
    text = clog(1, send, "C3|Q|work_id=1|+0.010")
    log, _ = load_call_log([written(tmp_path / "a.log", text)])
    assert log.communicators == ("world:0-1",)


def test_graphs_warnings_and_calls_without_an_end_are_told(tmp_path: Path) -> None:
    lines = ("C1|Q|work_id=1|+0.01", "C1|S|+0.02", "C1|E|+0.03", "C1|Q|work_id=2|+0.04")
    graph = ("G42|C1|Q|work_id=3|+1.0", "G42|C1|S|+1.1", "G42|R1|C1|S|+2.0", "WARN|comm=world|x")
    log, notes = load_call_log([written(tmp_path / "a.log", clog(0, *lines, *graph))])
    assert len(log.rank) == 1
    assert [note.removeprefix("rank 0: ") for note in notes[1:]] == [
        "1 calls that have no begin or no end are left out",
        "1 calls in CUDA graphs are left out",
        "clog warns 1 times (lines WARN)",
    ]


def test_the_slow_rank_of_a_job(tmp_path: Path) -> None:
    log, _ = load_call_log(job(tmp_path))
    times = step_times(log)
    assert {period.calls for period in times.periods.values()} == {2}
    assert np.nanmedian(times.duration_s) == pytest.approx(0.14, abs=1e-3)
    assert [suspect.ranks for suspect in who_from_calls(log, times)] == [(2,)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("V|2|base_timestamp=1.0\n", "clog of version 2; version 1 is read"),
        ("V|1|base_timestamp=1.0\n" + SIGNATURES[0], "does not say its rank"),
        (clog(0), "has no calls outside of CUDA graphs"),
        (clog(0, "C9|Q|work_id=1|+0.0"), "C9 has no signature before it"),
        (clog(0, "C1|S|+0.0"), "C1 has more S than Q"),
        (clog(0, "C1|Q|work"), "is no line of clog"),
        (clog(0, "new_comm|comm=x|rank=4|world_size=2"), "rank 4 of 2"),
        (clog(0, "C3|sig|barrier|async_op=f"), "without a number or communicator"),
    ],
)
def test_damage_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        load_call_log([written(tmp_path / "a.log", text)])


def test_a_log_that_ends_within_a_number_is_told(tmp_path: Path) -> None:
    path = job(tmp_path)[0]
    path.write_text(path.read_text()[:-2])
    _, notes = load_call_log([path])
    assert any("ends within a line" in note for note in notes)


def test_no_trace_is_made_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = job(tmp_path)[0]
    assert run(["import", str(path), "-o", str(tmp_path / "a.parquet")]) == 2
    assert "is a log of torchcomms" in capsys.readouterr().err


def flight_recorder_dump(folder: Path) -> Path:
    """As ``FlightRecorder::dump_json`` (59426ba) writes it: keys sorted, without spaces."""
    entry = {
        "collective_seq_id": 0,
        "input_dtypes": ["Float"],
        "input_sizes": [[4, 2]],
        "is_p2p": False,
        "op_id": 1,
        "output_dtypes": ["Float"],
        "output_sizes": [[4, 2]],
        "p2p_seq_id": 0,
        "pg_id": 0,
        "process_group": ["world", "world"],
        "profiling_name": "all_reduce",
        "retired": True,
        "state": "completed",
        "thread_id": "7",
        "thread_name": "main",
        "time_discovered_completed_ns": 0,
        "time_discovered_started_ns": 0,
        "timeout_ms": 600000,
    }
    entries = [{**entry, "record_id": n, "time_created_ns": 10**18 + n * 10**6} for n in range(3)]
    document = {"comm_lib_version": "", "entries": entries, "pg_config": {}, "pg_status": {}}
    text = json.dumps({**document, "version": "2.10"}, sort_keys=True, separators=(",", ":"))
    return written(folder / "torchcomm_fr_trace_3", text)


def test_its_flight_recorder_s_json(tmp_path: Path) -> None:
    log, _ = load_call_log([flight_recorder_dump(tmp_path)])
    assert log.rank.tolist() == [3] * 3
    assert log.ops == ("all_reduce",)
    assert log.size.tolist() == [8] * 3
    assert log.communicators == ("world:world",)
