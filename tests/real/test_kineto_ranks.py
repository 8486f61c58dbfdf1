"""Reports of real profiles against HTA's figures of the same files.

The figures are what HTA (facebookresearch/HolisticTraceAnalysis, commit f4d0062) prints, with
``HTA_DISABLE_NS_ROUNDING=1``: by default it shortens each kernel of a file with nanoseconds by up
to 2 us. ``include_last_profiler_step`` is ``last_step`` here.
"""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

import requires
from paceline.cli.main import run
from paceline.errors import TraceError
from paceline.ranks import RankReport, rank_report
from paceline.sources import kineto
from paceline.sources.kineto import complete_events

Captured = pytest.CaptureFixture[str]
REAL = requires.data(
    "real",
    origin="tests/data of facebookresearch/HolisticTraceAnalysis, commit f4d0062, as hta/, and "
    "tests/traces of AMD-AGI/TraceLens, commit 171dd74, as tracelens/",
)

#: File -> (idle, computing, neither, all) in us, share of communication that is hidden in percent.
WHOLE = {
    "hta/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz": (8762.8, 110.9, 38.2, 8911.9, None),
    "hta/df_index_resolver/df_index_resolver.json.gz": (732352, 620516, 380097, 1732965, 0.0),
    "hta/execution_trace/benchmark_simple_add_trace.json.gz": (108903, 16, 0, 108919, None),
    "hta/mtia_inference_trace/mtia_inference_rank_0.json.gz": (
        *(19045.8, 382063.2, 42166.7, 443275.7),
        None,
    ),
    "hta/mtia_trace_single_rank/mtia_rank_0.json.gz": (
        *(5627274.4, 7309063.1, 391734.2, 13328071.7),
        None,
    ),
    "hta/nccl_parser_config/nccl_data.json.gz": (503051.0, 115655.8, 41844.2, 660551.0, 15.61),
    "hta/negative_queue_length_values_check/rank0.json.gz": (
        *(848216, 179676, 201180, 1229072),
        1.47,
    ),
    "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": (
        *(7574.8, 468153.6, 4300.8, 480029.2),
        None,
    ),
    "hta/timeline_analysis/sampled_rank-0.json.gz": (675191, 210320, 337336, 1222847, 14.95),
    "hta/trace_compare/base/base.json.gz": (117124, 8, 0, 117132, None),
    "hta/trace_compare/test/test.json.gz": (0, 4, 0, 4, None),
    "hta/trace_diff/control/control.json.gz": (76007, 281336, 107251, 464594, 46.24),
    "hta/trace_diff/test/test.json.gz": (51692, 514576, 178246, 744514, 69.07),
    "hta/trace_file_list/inference_rank_1.json.gz": (1599, 30, 0, 1629, None),
    "hta/trace_filter/sampled_rank-1.json.gz": (651136, 271973, 308077, 1231186, 19.93),
    "tracelens/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (4005.5, 45432.7, 214.6, 49652.8, None),
    "tracelens/linear_kineto.json.gz": (637587, 369343, 1640, 1008570, None),
    "tracelens/resnet_kineto.json.gz": (9789089, 4103141, 630681, 14522911, None),
}
#: The same without the last step.
WITHOUT_LAST = {
    "hta/df_index_resolver/df_index_resolver.json.gz": (643612, 496485, 256572, 1396669, 0.0),
    "hta/nccl_parser_config/nccl_data.json.gz": (336419.7, 76935.8, 22232.0, 435587.6, 14.76),
    "hta/negative_queue_length_values_check/rank0.json.gz": (
        *(705853, 143836, 166865, 1016554),
        1.37,
    ),
    "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": (
        *(6452.8, 374738.0, 3443.8, 384634.5),
        None,
    ),
    "hta/timeline_analysis/sampled_rank-0.json.gz": (321378, 106252, 172428, 600058, 11.81),
    "hta/trace_diff/control/control.json.gz": (62119, 234760, 86525, 383404, 47.03),
    "hta/trace_diff/test/test.json.gz": (46910, 429216, 152245, 628371, 68.8),
}
#: Stream -> (host wait, kernel wait, other) in us.
STREAMS = {
    "hta/trace_diff/control/control.json.gz": {
        7: (133311, 17152, 32751),
        20: (424456, 739, 9684),
        21: (285806, 78, 0),
        22: (340772, 1515, 0),
    },
    "hta/trace_filter/sampled_rank-1.json.gz": {
        7: (407794, 3475, 524657),
        23: (1222526, 134, 30),
        25: (556447, 17, 91823),
        84: (715850, 0, 62586),
        203: (559033, 0, 0),
    },
    "hta/nccl_parser_config/nccl_data.json.gz": {7: (540091, 2150, 0), 40: (583924, 0, 0)},
}
#: HTA counts ``cuda_sync`` events of a stream, and operators of Triton, as work of the device.
OTHER_THAN_HTA = {
    "hta/critical_path/cuda_event_sync/event_sync_trace.json.gz": (212, 49, 2, 263),
    "hta/critical_path/cuda_event_sync_multi_stream/event_sync_trace.json.gz": (
        *(19134, 369, 3),
        19506,
    ),
    "hta/triton_example/triton_example.json.gz": (0, 1.8, 0, 1.8),
}
FILES = sorted(path for name in ("hta", "tracelens") for path in (REAL / name).rglob("*.gz"))
PROFILES = [path for path in FILES if not path.name.endswith(("_et.json.gz", ".raw.gz"))]
CPU_ONLY = (
    "hta/cpu_only/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    "hta/cupti_profiler/benchmark_result_924719_1679055439_trace.json.gz",
    "hta/distributed_info_unavailable/distributed_info_not_found.json.gz",
    "hta/mixed_files/rank_non_gpu.json.gz",
    "hta/rank_non_gpu/rank_non_gpu.json.gz",
    "hta/rank_unavailable/rank_not_found.json.gz",
)


def report_of(name: str, *, last_step: bool = True) -> RankReport:
    return rank_report(REAL / name, last_step=last_step).ranks[0]


def breakdown_us(rank: RankReport) -> tuple[float, ...]:
    """Idle, computing, neither, and all."""
    device = rank.device
    assert device is not None
    neither_s = device.window_s - device.idle_s - device.compute_s
    times_s = (device.idle_s, device.compute_s, neither_s, device.window_s)
    return tuple(time_s * 1e6 for time_s in times_s)


def check(name: str, figures: tuple[float | None, ...], *, last_step: bool) -> None:
    """Within 0.01% of the window, and 0.01 percentage points."""
    rank = report_of(name, last_step=last_step)
    *expected, hidden = figures
    assert breakdown_us(rank) == pytest.approx(expected, abs=1 + 1e-4 * expected[-1])
    device = rank.device
    assert device is not None
    if hidden is None:
        assert device.communication_s == 0
    else:
        share = 100 * device.communication_hidden_s / device.communication_s
        assert share == pytest.approx(hidden, abs=0.0051)


@pytest.mark.parametrize("name", WHOLE)
def test_breakdown_is_that_of_hta(name: str) -> None:
    check(name, WHOLE[name], last_step=True)


@pytest.mark.parametrize("name", WITHOUT_LAST)
def test_breakdown_without_the_last_step_is_that_of_hta(name: str) -> None:
    check(name, WITHOUT_LAST[name], last_step=False)


@pytest.mark.parametrize("name", STREAMS)
def test_idle_time_of_streams_is_that_of_hta(name: str) -> None:
    streams = {
        stream.stream: tuple(
            1e6 * time_s for time_s in (stream.host_wait_s, stream.kernel_wait_s, stream.other_s)
        )
        for stream in report_of(name).streams
    }
    assert set(streams) == set(STREAMS[name])
    for stream, times_us in STREAMS[name].items():
        assert streams[stream] == pytest.approx(times_us, abs=1)


@pytest.mark.parametrize("name", OTHER_THAN_HTA)
def test_synchronising_is_no_work(name: str) -> None:
    assert breakdown_us(report_of(name)) == pytest.approx(OTHER_THAN_HTA[name], abs=0.1)


def test_calls_as_long_as_their_work_are_no_launches() -> None:
    # On MTIA all 3,453 events begin before their call ends, and two thirds end before it, too.
    path = REAL / "hta" / "mtia_trace_single_rank" / "mtia_rank_0.json.gz"
    launches = rank_report([path]).ranks[0].launches
    assert launches.count == 3453
    assert launches.delay_median_s is launches.shorter_than_launch is None
    # On the other real machines at most 40% do so.
    other = REAL / "hta" / "nccl_parser_config" / "nccl_data.json.gz"
    known = rank_report([other]).ranks[0].launches
    assert known.delay_median_s is not None
    assert known.delay_median_s > 0


def test_only_profiles_are_taken_for_profiles() -> None:
    """An execution trace (Chakra) and a timeline of memory are none."""
    others = {path for path in FILES if not kineto.matches(path)}
    assert {path.name for path in others} == {
        "benchmark_simple_add_et.json.gz",
        "memory_timeline.raw.gz",
    }


@pytest.mark.parametrize("name", [str(path.relative_to(REAL)) for path in PROFILES])
def test_parts_add_up(name: str) -> None:
    rank = report_of(name)
    assert json.loads(json.dumps(rank.to_mapping()))["file"].endswith(name)
    for device in (rank.device, *(step.device for step in rank.steps)):
        if device is not None:
            numbers = device.to_mapping()
            assert min(numbers.values()) >= -1e-12
            assert device.communication_exposed_s <= device.communication_s + 1e-12
            assert device.idle_delay_s <= device.idle_device_s + 1e-12
    assert rank.device is None or sum(k.share for k in rank.kernels) == pytest.approx(1)
    windows = [step.device.window_s for step in rank.steps if step.device is not None]
    if rank.device is not None and windows:
        assert sum(windows) <= rank.device.window_s * (1 + 1e-9)


@pytest.mark.parametrize("name", CPU_ONLY)
def test_profiles_without_a_device_say_what_is_there(name: str) -> None:
    report = rank_report(REAL / name)
    rank = report.ranks[0]
    assert rank.device is None
    assert rank.steps or rank.operators
    assert any("no event of a device is in the files" in note for note in report.notes)


def test_two_ranks_of_128(capsys: Captured) -> None:
    folder = REAL / "hta" / "trace_filter"
    assert run(["ranks", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "rank 0 of 128: sampled_rank-0.json.gz" in out
    assert "rank 1 of 128: sampled_rank-1.json.gz" in out
    assert "2 of 128 ranks: the job's slowdown S" in out
    assert run(["ranks", "--json", str(folder)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]


def test_a_file_of_another_kind_in_the_folder(tmp_path: Path, capsys: Captured) -> None:
    for name in ("trace_filter/sampled_rank-0.json.gz", "memory_analysis/memory_timeline.raw.gz"):
        (tmp_path / Path(name).name).symlink_to(REAL / "hta" / name)
    (tmp_path / "notes.txt").write_text("of the run")
    assert run(["ranks", str(tmp_path)]) == 0
    assert "2 other files in the folder left out" in capsys.readouterr().out


def test_import_names_the_rank_report(tmp_path: Path, capsys: Captured) -> None:
    path = REAL / "hta" / "nccl_parser_config" / "nccl_data.json.gz"
    assert run(["import", str(path), "-o", str(tmp_path / "trace.parquet")]) == 2
    said = capsys.readouterr().err
    assert "1 profile is here, but the job has 2 ranks (rank 1's is missing)" in said
    assert "paceline ranks reports on the ranks that are here" in said


def test_analyze_names_the_rank_report(capsys: Captured) -> None:
    assert run(["analyze", str(REAL / "hta" / "trace_diff" / "control" / "control.json.gz")]) == 2
    assert "paceline ranks reports on the ranks that are here" in capsys.readouterr().err


def test_missing_ranks_are_refused_by_the_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    def unread(path: Path) -> None:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr("paceline.sources.kineto.reader.read_profile", unread)
    with pytest.raises(TraceError, match="rank 1's is missing"):
        kineto.read([REAL / "hta" / "nccl_parser_config" / "nccl_data.json.gz"])
    with pytest.raises(TraceError, match="no distributedInfo with a rank"):
        kineto.read([REAL / "hta" / "rank_unavailable" / "rank_not_found.json.gz"])


@pytest.mark.filterwarnings("ignore")  # those of HTA and pandas are not ours
@pytest.mark.parametrize("name", ["trace_diff/control/control.json.gz"])
def test_hta_itself_says_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs HTA where it is installed (pip install HolisticTraceAnalysis)."""
    requires.installed("hta")
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    from hta.trace_analysis import TraceAnalysis

    logging.disable(logging.CRITICAL)
    path = REAL / "hta" / name
    analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir="")
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    kinds = ("idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)")
    ours = breakdown_us(report_of(f"hta/{name}", last_step=False))
    assert ours == pytest.approx([row[kind] for kind in kinds], abs=1)


def test_values_that_are_passed_over_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is the same where all values of each event are made."""
    path = REAL / "hta/nccl_parser_config/nccl_data.json.gz"
    report = rank_report(path).to_mapping()
    shape = complete_events.event_shape
    without = lambda *keys: replace(shape(*keys), decode=None)  # noqa: E731
    monkeypatch.setattr(complete_events, "event_shape", without)
    assert rank_report(path).to_mapping() == report
