"""Timelines of xpu_timer, small enough to check by hand."""

from pathlib import Path

import pytest

from paceline.cli.main import run
from paceline.errors import TraceError
from paceline.ranks import rank_report
from paceline.sources.call_logs.files import load_call_log
from xpu_timer_files import BEGIN_US, garbage_collection, kernel, one_rank, write

Captured = pytest.CaptureFixture[str]


def test_where_the_time_went(tmp_path: Path) -> None:
    report = rank_report(one_rank(tmp_path))
    (rank,) = report.ranks
    assert (rank.label, rank.world_size) == ("rank 1", 4)
    device = rank.device
    assert device is not None
    assert device.window_s == pytest.approx(300e-6)
    assert device.compute_s == pytest.approx(100e-6)
    assert device.communication_exposed_s == pytest.approx(100e-6)
    assert device.idle_host_s == pytest.approx(60e-6)
    assert device.idle_device_s == pytest.approx(30e-6)
    assert rank.launches.delay_median_s == pytest.approx(10e-6)
    assert [item.name for item in rank.kernels] == [
        *("ncclAllReduce", "mm_bmnk_1_2_3_4", "memcpy"),
    ]
    assert "rank 1: GC took 40.0 µs of the host" in report.notes
    assert any("idle time may be any other kernel" in note for note in report.notes)


def test_ranks_of_a_folder(tmp_path: Path, capsys: Captured) -> None:
    for rank in range(2):
        one_rank(tmp_path, rank=rank)
    assert run(["ranks", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "rank 0 of 4: 00000-00004.timeline" in out
    assert "2 of 4 ranks" in out


@pytest.mark.parametrize("cut", ["1,xpu_timer_nc", "1,", "1", "xpu_timer_host"])
def test_names_that_are_cut_off_are_not_made_up(tmp_path: Path, cut: str) -> None:
    path = one_rank(tmp_path)
    meta = path.with_name(f"{path.name}.meta")
    meta.write_text(f"0,xpu_timer_mm_bmnk_1_2_3_4\n{cut}")
    for read in (rank_report, lambda path: load_call_log([path])):
        with pytest.raises(TraceError, match=r"\.meta has no name for code [12]: is it cut off"):
            read(path)


def test_without_its_names(tmp_path: Path) -> None:
    path = one_rank(tmp_path)
    path.with_name(f"{path.name}.meta").unlink()
    with pytest.raises(TraceError, match=r"is without 00001-00004\.timeline\.meta"):
        rank_report(path)


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    path = one_rank(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TraceError, match="cut off; dump it again"):
        rank_report(path)


def test_a_file_of_another_rank(tmp_path: Path) -> None:
    path = write(tmp_path, kernel(0, 0, 5, launch_us=0), rank=1, called=2)
    with pytest.raises(TraceError, match="is called rank 2, but says rank 1 inside"):
        rank_report(path)


def test_without_events_of_a_device(tmp_path: Path) -> None:
    path = write(tmp_path, garbage_collection(0, 5))
    with pytest.raises(TraceError, match="no events of a device"):
        rank_report(path)


def test_no_trace_can_be_made(tmp_path: Path, capsys: Captured) -> None:
    path = one_rank(tmp_path)
    assert run(["import", str(path), "-o", str(tmp_path / "a.parquet")]) == 2
    assert "is a timeline of xpu_timer" in capsys.readouterr().err


def collectives(folder: Path, rank: int, late_us: int) -> Path:
    """Three collectives to which a rank comes late, dumped in another order than they began."""
    return write(
        folder,
        *(
            kernel(
                *(1, 1000 * n + late_us, 1000 * n + 500),
                launch_us=1000 * n,
                comm_hash=2**63 + 5,
                seq=n,
                input_size_in_bytes=64,
            )
            for n in (1, 0, 2)
        ),
        kernel(1, 3000, 3100, launch_us=3000, send_recv_type=1),
        rank=rank,
    )


def test_collectives_of_a_folder(tmp_path: Path) -> None:
    for rank, late_us in enumerate((0, 300)):
        collectives(tmp_path, rank, late_us)
    log, notes = load_call_log([tmp_path])
    assert log.rank.tolist() == [0, 0, 0, 1, 1, 1]
    arrived_us = (log.time_s - BEGIN_US * 1e-6) * 1e6
    assert arrived_us == pytest.approx([0, 1000, 2000, 300, 1300, 2300], abs=1)
    assert log.duration_s == pytest.approx([500e-6] * 3 + [200e-6] * 3)
    assert (log.ops, log.communicators) == (("ncclAllReduce",), ("0x8000000000000005",))
    assert log.size.tolist() == [64] * 6
    assert "1 sends and recvs of rank 1 are left out: they name no peer" in notes


def test_what_the_tool_merges_is_left_out_of_a_folder_and_refused_alone(tmp_path: Path) -> None:
    for rank, late_us in enumerate((0, 300)):
        collectives(tmp_path, rank, late_us)
    merged = tmp_path / "trace_dp2.bin"
    merged.write_bytes(b"\n\x04\x52\x02\x08\x01")
    assert load_call_log([tmp_path])[0].rank.tolist() == [0, 0, 0, 1, 1, 1]
    assert run(["ranks", str(tmp_path)]) == 0
    for read in (rank_report, lambda path: load_call_log([path])):
        with pytest.raises(TraceError, match=r"merged by xpu_timer for Perfetto.*\(\*.timeline\)"):
            read(merged)


def test_a_timeline_without_collectives(tmp_path: Path) -> None:
    path = write(tmp_path, kernel(0, 0, 5, launch_us=0))
    with pytest.raises(TraceError, match="has no collectives"):
        load_call_log([path])
