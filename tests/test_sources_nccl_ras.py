"""NCCL RAS: who has not arrived, from one status or several."""

import json
from pathlib import Path

import pytest

from paceline.cli.main import run
from paceline.detect.not_arrived import NOT_COUNTED, ONE_STATUS, not_arrived
from paceline.errors import TraceError
from paceline.sources import nccl_ras
from paceline.sources.call_logs.files import load_call_log
from ras_files import communicator, missing, rank, saved, status


def test_a_level_job_names_nobody(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.json", communicator([rank(n, counts=5) for n in range(4)]))
    result = not_arrived([nccl_ras.read(path)])
    assert result.who == ()
    assert result.moves is None
    assert result.notes == (NOT_COUNTED, ONE_STATUS)
    assert result.explain() == (
        "2026-06-11 13:06:53: NCCL 2.30.7, 4 processes, 1 communicator, 1 of them level\n"
        "no rank is behind, and none is missing"
    )


def test_ranks_that_launched_less_are_behind_by_so_many(tmp_path: Path) -> None:
    behind = {"AllReduce": 98, "AllGather": 1}
    ranks = [rank(n, counts={"AllReduce": 101, "AllGather": 1}) for n in range(3)]
    path = saved(tmp_path / "a.json", communicator([*ranks, rank(3, counts=behind)]))
    result = not_arrived([nccl_ras.read(path)])
    ((lag,),) = (standing.lags for standing in result.standings)
    assert (lag.rank, lag.behind, lag.launched) == (3, {"AllReduce": 3}, None)
    assert "rank 3 is 3 AllReduce behind: GPU 3 of process 103 on 10.0.0.1" in result.explain()
    assert [process.pid for process in result.who] == [103]


def test_two_statuses_tell_a_hang_from_a_job_that_goes_on(tmp_path: Path) -> None:
    def at(name: str, second: int, first: int, last: int) -> nccl_ras.RasStatus:
        ranks = [rank(0, counts=first), rank(1, counts=last)]
        when = f"2026-06-11 13:06:{second:02}"
        return nccl_ras.read(saved(tmp_path / name, communicator(ranks), at=when))

    before, hung, moved = at("a", 0, 7, 6), at("b", 40, 7, 6), at("c", 40, 30, 29)
    result = not_arrived([hung, before])  # by their times, in whatever order
    assert result.moves is False
    assert result.standings[0].lags[0].launched == 0
    assert "0 collectives were launched in the 40 s before: a hang" in result.explain()
    assert "waited for: GPU 1 of process 101" in result.explain()
    result = not_arrived([before, moved])
    assert result.moves is True
    assert result.standings[0].launched == 46
    assert "behind, in a job that goes on: GPU 1" in result.explain()
    assert ONE_STATUS not in result.notes


def test_who_waits_elsewhere_holds_nobody_up(tmp_path: Path) -> None:
    # Process 101 is late in 0xa because it waits in 0xb, where process 102 is late.
    path = saved(
        tmp_path / "a.json",
        communicator([rank(0, counts=9), rank(1, counts=8)], name="0xa"),
        communicator([rank(0, counts=5, pid=101, gpu=1), rank(1, counts=4, pid=102)], name="0xb"),
    )
    result = not_arrived([nccl_ras.read(path)])
    assert [process.pid for process in result.who] == [102]


def test_processes_that_wait_for_each_other_call_in_another_order(tmp_path: Path) -> None:
    path = saved(
        tmp_path / "a.json",
        communicator([rank(0, counts=9), rank(1, counts=8)], name="0xa"),
        communicator([rank(0, counts=8), rank(1, counts=9)], name="0xb"),
    )
    result = not_arrived([nccl_ras.read(path)])
    assert result.who == ()
    assert "their calls differ in order" in result.explain()


def test_ranks_that_called_other_operations_are_said_to(tmp_path: Path) -> None:
    ranks = [rank(0, counts={"AllReduce": 9}), rank(1, counts={"AllReduce": 8, "Broadcast": 1})]
    path = saved(tmp_path / "a.json", communicator(ranks))
    (standing,) = not_arrived([nccl_ras.read(path)]).standings
    assert [lag.behind for lag in standing.lags] == [{"Broadcast": 1}, {"AllReduce": 1}]
    assert not standing.in_order


def test_ranks_that_are_missing_come_first(tmp_path: Path) -> None:
    ranks = [rank(0, counts=9), rank(1, counts=8)]
    absent = [missing(2, dead=True), missing(3), missing(4, unresponsive=False)]
    path = saved(tmp_path / "a.json", communicator(ranks, absent))
    result = not_arrived([nccl_ras.read(path)])
    assert [process.pid for process in result.who] == [102, 103, 101]
    text = result.explain()
    assert "rank 2 cannot be reached any more" in text
    assert "rank 3 did not answer" in text
    assert "rank 4 answered, but not as a member" in text


def test_states_and_errors_are_told(tmp_path: Path) -> None:
    path = saved(
        tmp_path / "a.json",
        communicator(
            [
                rank(0, counts=1),
                rank(1, counts=1, init_state=7),
                rank(2, counts=1, async_error=6),
                rank(3, counts=1, finalize=True),
                rank(4, counts=1, abort=True),
            ]
        ),
    )
    (comm,) = nccl_ras.read(path).communicators
    states = ["running", "init", "running", "finalize", "abort"]
    assert [member.state for member in comm.ranks] == states
    text = not_arrived([nccl_ras.read(path)]).explain()
    assert "rank 2: remote process error: GPU 2" in text
    assert "different states: abort, finalize, init, running" in text


def test_a_comma_that_older_versions_leave_out(tmp_path: Path) -> None:
    text = status(communicator([rank(0, counts=4)], [missing(1)]))
    path = tmp_path / "a.json"
    path.write_text("OK\n" + text.replace('"nvml_dev": 1,', '"nvml_dev": 1'))
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(path.read_text()[3:])
    (absent,) = nccl_ras.read(path).communicators[0].missing
    assert (absent.rank, absent.why) == (1, "unresponsive")


def test_communicators_that_are_being_made_are_left_out(tmp_path: Path) -> None:
    # NCCL 2.29.7 sends such (NVIDIA/nccl, issue 2346).
    level = communicator([rank(0, counts=1)], name="0xb")
    path = saved(tmp_path / "a.json", communicator([], name="0x0"), level)
    result = not_arrived([nccl_ras.read(path)])
    assert len(result.standings) == 1
    assert any("1 communicators without ranks" in note for note in result.notes)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"rank": 1', '"rank": 0', "has rank 0 twice"),
        ('"rank": 1', '"rank": 7', "of 2 ranks has rank 7"),
        ('"AllReduce": 5', '"AllReduce": -5', "AllReduce should be a whole number"),
        ('"communicators_count": 1', '"communicators_count": 2', "announces 2 communicators"),
        ("2026-06-11", "June", "timestamp should be like"),
        ('"missing_ranks"', '"missing"', "missing_ranks should be a list"),
        ('"ras"', "", "is no whole status"),
    ],
)
def test_damage_is_refused(tmp_path: Path, old: str, new: str, problem: str) -> None:
    text = status(communicator([rank(0, counts=5), rank(1, counts=5)]))
    path = tmp_path / "a.json"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(TraceError, match=problem):
        nccl_ras.read(path)


def test_statuses_of_two_runs_are_refused(tmp_path: Path) -> None:
    paths = [
        saved(tmp_path / f"{name}.json", communicator([rank(0, counts=1)], name=name))
        for name in ("0xa", "0xb")
    ]
    with pytest.raises(TraceError, match="no communicator in common"):
        not_arrived([nccl_ras.read(path) for path in paths])


def test_the_command_says_who(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = saved(tmp_path / "a.json", communicator([rank(0, counts=5), rank(1, counts=3)]))
    assert run(["detect", "--collectives", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["who"] == [{"host": "10.0.0.1", "pid": 101, "gpu": 1}]
    (behind,) = document["communicators"][0]["behind"]
    assert (behind["rank"], behind["calls"], behind["launched"]) == (1, {"AllReduce": 2}, None)
    assert run(["detect", "--collectives", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "behind when asked: GPU 1 of process 101" in out
    assert "one status cannot tell a hang" in err
    assert run(["detect", "steps.csv", "--collectives", str(path)]) == 2
    assert "give them alone" in capsys.readouterr().err


def test_a_log_of_calls_it_is_not(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.json", communicator([rank(0, counts=1)]))
    with pytest.raises(TraceError, match="has no times"):
        load_call_log([path])


def test_text_for_people_is_no_log_of_calls(tmp_path: Path) -> None:
    # As rasClientRunInit and rasClientRunComms of NCCL 2.30.7 print it.
    text = (
        "NCCL version 2.30.7 compiled with CUDA 13.0\nCUDA runtime version 13000, driver version "
    )
    path = tmp_path / "ras.txt"
    path.write_text(text + "13000\n\nJob summary\n===========\n\n  Nodes  Processes\n")
    with pytest.raises(TraceError, match="has no times"):
        load_call_log([path])
