"""Exports of Nsight Systems, small enough to check by hand."""

from pathlib import Path

import pytest

from nsight_files import BEGIN_NS, kernel, process, step, two_processes, write
from paceline.cli.main import run
from paceline.errors import TraceError
from paceline.ranks import rank_report
from paceline.sources.devices.nsight import STEP_NAME
from paceline.sources.importers import find_files

Captured = pytest.CaptureFixture[str]


def test_where_the_time_of_each_process_went(tmp_path: Path) -> None:
    first, second = rank_report(two_processes(tmp_path / "a.sqlite")).ranks
    assert (first.label, second.label) == ("NVIDIA H100 0 of process 11", "GPU 1 of process 12")
    assert first.rank is None
    assert first.device is not None
    assert first.device.window_s == pytest.approx(400e-6)
    assert first.device.compute_s == pytest.approx(190e-6)
    assert first.device.communication_exposed_s == pytest.approx(100e-6)
    assert first.device.communication_hidden_s == pytest.approx(50e-6)
    assert first.device.memory_exposed_s == pytest.approx(10e-6)
    assert first.device.idle_delay_s == pytest.approx(10e-6)
    assert (first.launches.count, first.launches.missing) == (4, 0)
    assert first.launches.delay_median_s == pytest.approx((8e-6 + 13e-6) / 2)
    assert second.device is not None
    assert second.device.compute_s == pytest.approx(190e-6)
    assert second.launches.delay_median_s == pytest.approx((78e-6 + 148e-6) / 2)


def test_steps_are_ranges_of_the_process(tmp_path: Path) -> None:
    first, second = rank_report(two_processes(tmp_path / "a.sqlite")).ranks
    assert [(step.number, step.step_s) for step in first.steps] == [
        (7, pytest.approx(260e-6)),
        (8, pytest.approx(290e-6)),
    ]
    assert not second.steps


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("step 5", "5"),
        ("iteration=12", "12"),
        ("train_step_3", "3"),
        ("ProfilerStep#4", "4"),
        ("Optimizer.step#Adam.step", None),
        ("iterator 5", None),
    ],
)
def test_names_of_steps(text: str, number: str | None) -> None:
    match = STEP_NAME.fullmatch(text)
    assert (match and match[1]) == number


def test_tables_that_nothing_filled(tmp_path: Path) -> None:
    path = two_processes(
        tmp_path / "a.sqlite",
        without=(
            *("NVTX_EVENTS", "TARGET_INFO_GPU", "CUPTI_ACTIVITY_KIND_MEMCPY"),
            *("CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_RUNTIME"),
        ),
    )
    report = rank_report(path)
    assert report.ranks[0].label == "GPU 0 of process 11"
    assert report.ranks[0].launches.missing == 3
    assert any("NVTX range 'step N'" in note for note in report.notes)


def test_without_kernels_there_are_steps_and_ranges(tmp_path: Path) -> None:
    rows = [
        *step("step 1", 0, 100),
        *step("aten::mm, seq = 3, op_id = 7", 10, 40),
        *step("aten::mul, op_id = 8", 20, 30),  # within aten::mm
        *step("aten::mm, seq = 4, op_id = 9", 50, 70),
        *step("step 2", 100, 250),
        *step("load", 0, 80, pid=12),
    ]
    path = write(tmp_path / "a.sqlite", rows, without=("CUPTI_ACTIVITY_KIND_KERNEL",))
    report = rank_report(path)
    first, second = report.ranks
    assert (first.label, second.label) == ("process 11", "process 12")
    assert first.device is None
    assert [(step.number, step.step_s) for step in first.steps] == [
        (1, pytest.approx(100e-6)),
        (2, pytest.approx(150e-6)),
    ]
    (operator,) = first.operators
    assert (operator.name, operator.count) == ("aten::mm", 2)
    assert operator.total_s == pytest.approx(50e-6)
    assert [(kernel.name, kernel.count) for kernel in second.operators] == [("load", 1)]
    assert any("nsys profile --trace cuda,nvtx" in note for note in report.notes)


def test_an_empty_table_of_kernels(tmp_path: Path) -> None:
    (rank,) = rank_report(write(tmp_path / "a.sqlite", step("step 1", 0, 100))).ranks
    assert [step.number for step in rank.steps] == [1]


def test_without_kernels_and_ranges(tmp_path: Path) -> None:
    path = write(tmp_path / "a.sqlite", (), without=("CUPTI_ACTIVITY_KIND_KERNEL",))
    with pytest.raises(TraceError, match=r"no kernels .* no ranges .* nsys profile --trace cuda"):
        rank_report(path)


def test_a_kernel_that_ends_before_it_starts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.sqlite", kernel(1, 200, 100, 90))
    with pytest.raises(TraceError, match=f"gemm is from {BEGIN_NS + 200_000} to"):
        rank_report(path)


def test_another_database_is_none(tmp_path: Path) -> None:
    path = write(tmp_path / "a.sqlite", ())
    path.write_bytes(path.read_bytes().replace(b"StringIds", b"OtherName"))
    with pytest.raises(TraceError, match="not a trace file"):
        find_files([path])


def test_commands_say_where_it_belongs(tmp_path: Path, capsys: Captured) -> None:
    path = two_processes(tmp_path / "a.sqlite")
    assert run(["import", str(path), "-o", str(tmp_path / "a.parquet")]) == 2
    assert f"paceline ranks {path}" in capsys.readouterr().err
    assert run(["ranks", str(tmp_path)]) == 0
    assert "NVIDIA H100 0 of process 11" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["ranks", "import"])
def test_a_report_has_to_be_exported(tmp_path: Path, capsys: Captured, command: str) -> None:
    path = tmp_path / "a.nsys-rep"
    path.write_bytes(b"report")
    output = ["-o", str(tmp_path / "a.parquet")] if command == "import" else []
    assert run([command, str(path), *output]) == 2
    assert f"nsys export --type sqlite {path}" in capsys.readouterr().err


def test_a_process_is_taken_from_its_id() -> None:
    assert (process(111) >> 24) & 0xFFFFFF == 111
