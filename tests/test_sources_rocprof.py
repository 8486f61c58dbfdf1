"""Files of rocprofv3, small enough to check by hand."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from paceline.cli.main import run
from paceline.errors import TraceError
from paceline.ranks import rank_report
from paceline.sources.devices.rocprof_json import Records
from rocpd_files import UUID, write_rocpd
from rocprof_files import document, write_csv, write_json

Captured = pytest.CaptureFixture[str]


def test_where_the_time_of_each_step_went(tmp_path: Path) -> None:
    (rank,) = rank_report(write_json(tmp_path / "908_results.json")).ranks
    assert rank.label == "MI350X 2 of process 908"
    first, second = (step.device for step in rank.steps)
    assert [step.number for step in rank.steps] == [1, 2]
    assert first is not None
    assert second is not None
    assert first.compute_s == pytest.approx(100e-6)
    assert first.communication_exposed_s == pytest.approx(100e-6)
    assert first.idle_host_s == pytest.approx(60e-6)
    # HIP's fill is a set of memory; the copy to the host counts for the GPU it leaves.
    assert second.memory_exposed_s == pytest.approx(30e-6)
    assert second.compute_s == pytest.approx(90e-6)
    assert rank.launches.missing == 0
    assert {stream.stream for stream in rank.streams} == {7, 20}


def test_csv_of_kernels_and_those_beside_it(tmp_path: Path) -> None:
    (rank,) = rank_report(write_csv(tmp_path)).ranks
    assert rank.label == "GPU 2 in 908_kernel_trace.csv"
    assert rank.device is not None
    assert rank.device.window_s == pytest.approx(400e-6)
    assert rank.device.communication_hidden_s == pytest.approx(50e-6)
    assert [step.number for step in rank.steps] == [3]
    assert (rank.launches.count, rank.launches.missing) == (1, 3)


def test_a_csv_that_is_cut_off(tmp_path: Path) -> None:
    path = write_csv(tmp_path)
    path.write_text(path.read_text()[:-2])
    with pytest.raises(TraceError, match="ends within a line"):
        rank_report(path)


def test_without_kernels(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.json", document(kernel_dispatch=[]))
    with pytest.raises(TraceError, match="has no kernels; profile with rocprofv3 --kernel-trace"):
        rank_report(path)


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.json")
    path.write_text(path.read_text()[:-400])
    with pytest.raises(TraceError, match="it is cut off"):
        rank_report(path)


def test_a_kernel_without_times(tmp_path: Path) -> None:
    record = {"dispatch_info": {"kernel_id": 8}}
    path = write_json(tmp_path / "a.json", document(kernel_dispatch=[record]))
    with pytest.raises(TraceError, match="Cijk_Ailk_Bljk_BBS_BH is from -1 to -1 ns"):
        rank_report(path)


def test_commands_say_where_it_belongs(tmp_path: Path, capsys: Captured) -> None:
    path = write_json(tmp_path / "908_results.json")
    assert run(["import", str(path), "-o", str(tmp_path / "a.parquet")]) == 2
    assert "is a file of rocprofv3" in capsys.readouterr().err
    assert run(["ranks", str(tmp_path)]) == 0
    assert "MI350X 2 of process 908" in capsys.readouterr().out


def test_records_are_the_same_in_one_go_and_one_by_one(tmp_path: Path) -> None:
    """The tool's own layout is parsed in one go: each record has its size first."""
    value = document()
    process = value["rocprofiler-sdk-tool"][0]
    apart = list(Records(write_json(tmp_path / "a.json", value)))
    for name, records in process["buffer_records"].items():
        process["buffer_records"][name] = [{"size": 184, **record} for record in records]
    together = list(Records(write_json(tmp_path / "b.json", value)))
    assert len(apart) == len(together) == 6 + 12
    for item in together:
        for record in item.values():
            if isinstance(record, dict):
                record.pop("size", None)
    assert apart == together


def test_its_database_says_what_its_json_says(tmp_path: Path) -> None:
    (of_json,) = rank_report(write_json(tmp_path / "a.json")).ranks
    (of_database,) = rank_report(write_rocpd(tmp_path / "a.db")).ranks
    expected, got = of_json.to_mapping(), of_database.to_mapping()
    del expected["file"], got["file"]
    assert got == expected


def test_a_database_of_two_processes(tmp_path: Path) -> None:
    """As ``rocpd merge`` makes it: tables of both, each with its id behind its name."""
    path, other = write_rocpd(tmp_path / "a.db"), document()
    other["rocprofiler-sdk-tool"][0]["metadata"]["pid"] = 909
    second = write_rocpd(tmp_path / "b.db", other)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("attach ? as other", (str(second),))
        names = [row[0] for row in connection.execute("select name from other.sqlite_master")]
        for name in names:
            if name.startswith("rocpd_"):
                connection.execute(f"create table `{name}2` as select * from other.`{name}`")
        connection.commit()
    labels = [rank.label for rank in rank_report(path).ranks]
    assert labels == ["MI350X 2 of process 908", "MI350X 2 of process 909"]


def test_a_range_that_is_called_as_a_step(tmp_path: Path) -> None:
    """ROCm Systems Profiler keeps the range's name as the region's, without a message."""
    path = write_rocpd(tmp_path / "a.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"update rocpd_event{UUID} set extdata = '{{}}'")
        rename = f"update rocpd_string{UUID} set string = 'step 7' where string like 'roctx%'"
        connection.execute(rename)
        connection.commit()
    (rank,) = rank_report(path).ranks
    assert [step.number for step in rank.steps] == [7, 7]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (f"delete from rocpd_kernel_dispatch{UUID}", "has no kernels; profile with rocprofv3"),
        (f"drop table rocpd_kernel_dispatch{UUID}", "has no kernels; profile with rocprofv3"),
        (
            f"alter table rocpd_kernel_dispatch{UUID} drop column agent_id",
            "another version of rocpd: .* has no agent_id; version 3 is read",
        ),
        (f"update rocpd_kernel_dispatch{UUID} set start = -5", "from -5 to"),
    ],
)
def test_databases_that_are_refused(tmp_path: Path, change: str, problem: str) -> None:
    path = write_rocpd(tmp_path / "a.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
        connection.commit()
    with pytest.raises(TraceError, match=problem):
        rank_report(path)


def test_a_database_is_no_trace(tmp_path: Path, capsys: Captured) -> None:
    path = write_rocpd(tmp_path / "908_results.db")
    assert run(["import", str(path), "-o", str(tmp_path / "a.parquet")]) == 2
    assert "is a database of rocprofv3 (rocpd)" in capsys.readouterr().err
    assert run(["ranks", str(path)]) == 0
    assert "MI350X 2 of process 908" in capsys.readouterr().out


def test_a_database_of_rocm_profile_data_is_refused_by_name(tmp_path: Path) -> None:
    """Tables as ROCm/rocmProfileData makes them; rocprofv3 took their names."""
    with closing(sqlite3.connect(tmp_path / "a.rpd")) as connection:
        connection.execute("create table rocpd_metadata (id, tag, value)")
        connection.execute("create table rocpd_api (id, pid, tid, start, end, apiName_id)")
        connection.execute("create table rocpd_op (id, gpuId, queueId, start, end, opType_id)")
        connection.commit()
    with pytest.raises(TraceError, match=r"is of rocmProfileData \(rpd\), .* with rocprofv3"):
        rank_report(tmp_path / "a.rpd")
