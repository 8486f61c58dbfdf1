"""Host times: read from spans that are no trace, and who stands out by them."""

import json

import numpy as np
import pytest

from otlp_spans import request
from paceline.cli.main import run
from paceline.detect.host_times import report_times
from paceline.errors import TraceError
from paceline.sources.host_times import HostTimes, load_host_times
from paceline.sources.host_times.table import Samples

SIZES = {"dl.data_parallel.size": 2, "dl.pipeline_parallel.size": 1, "dl.world_size": 2}


def of_rank(rank, compute_s, *, groups=("microbatch", "communication")):
    """Spans of three steps of 10 s in which a rank computes, then waits until 9 s."""
    spans = []
    for step in range(3):
        base = (1_795_245_033 + 11 * step) * 10**9
        rows = [("train.iteration", 0, 10, {"megatron.iteration": step})]
        if "microbatch" in groups:
            rows += [("microbatch.forward", 0, compute_s / 3, {})]
            rows += [("microbatch.backward", compute_s / 3, compute_s, {})]
        if "communication" in groups:
            rows += [("grad_sync.finish", compute_s, 9, {})]
        spans += [
            {
                "name": f"megatron.{name}",
                "start_ns": base + round(start * 1e9),
                "end_ns": base + round(end * 1e9),
                "id": f"{100 * step + n:016x}",
                "parent": "",
                "attributes": attributes,
            }
            for n, (name, start, end, attributes) in enumerate(rows, 1)
        ]
    return request(rank, spans, SIZES)


def saved(path, requests):
    path.write_text("".join(json.dumps(one) + "\n" for one in requests))
    return path


def test_a_slow_rank_stands_out(tmp_path):
    path = saved(tmp_path / "spans.json", [of_rank(0, 4), of_rank(1, 8)])
    report = report_times(load_host_times([path]))
    assert report.steps == 3
    assert report.measures["step"] == pytest.approx((10, 10, 10))
    assert report.measures["compute"] == pytest.approx((6, 4, 8))
    first, second = report.ranks
    assert (first.stands_out, second.stands_out) == (False, True)
    assert (first.factor, second.factor) == pytest.approx((0.5, 2))
    assert (first.late_s, second.late_s) == pytest.approx((0, 4), abs=1e-6)
    assert (first.last, second.last) == (0, 1)


def test_who_is_late_shows_without_computes(tmp_path):
    late = [of_rank(rank, s, groups=("communication",)) for rank, s in ((0, 8), (1, 4))]
    report = report_times(load_host_times([saved(tmp_path / "spans.json", late)]))
    assert [rank.stands_out for rank in report.ranks] == [True, False]
    assert np.isnan(report.ranks[0].factor)


def test_one_rank_has_step_times(tmp_path, capsys):
    path = saved(tmp_path / "spans.json", [of_rank(1, 4, groups=())])
    assert run(["times", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["measures"] == {"step": {"median_s": 10.0, "least_s": 10.0, "most_s": 10.0}}
    assert [rank["rank"] for rank in report["ranks"]] == [1]
    assert any("1 of 2 ranks sent spans" in note for note in report["notes"])
    assert run(["times", str(path)]) == 0
    assert "no rank has another to be compared with" in capsys.readouterr().out


def test_the_table_names_the_slow_rank(tmp_path, capsys):
    path = saved(tmp_path / "spans.json", [of_rank(0, 4), of_rank(1, 8)])
    assert run(["times", str(path)]) == 0
    assert (
        "stands out: rank 1 computes 2.00 times as long as comparable ranks"
        in capsys.readouterr().out
    )


def test_a_late_rank_is_not_named_where_another_is_slow():
    """Rank 1's stage waited for the slow stage of its replica."""
    times = HostTimes(
        format="test",
        steps=np.arange(2),
        ranks=np.arange(4),
        groups=np.array([0, 0, 1, 1]),
        group_names={0: "stage 0", 1: "stage 1"},
        seconds={
            "step": np.full((2, 4), 10.0),
            "compute": np.array([[4.0, 4, 4, 8]] * 2),
            "grad sync": np.array([[5.0, 1, 5, 1]] * 2),
        },
        ranges={},
        notes=(),
    )
    assert [rank.stands_out for rank in report_times(times).ranks] == [False, False, False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [("nothing", "has no times of steps"), ('{"resourceSpans": []}', "has no span of Megatron-LM")],
)
def test_files_without_times_are_refused(tmp_path, text, message):
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        load_host_times([path])


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(TraceError, match="no file is otlp"):
        load_host_times([tmp_path])


def test_samples_of_one_place_add_up_or_the_last_one_counts():
    samples = Samples()
    for step, rank, seconds in ((7, 0, 1.0), (7, 0, 2.0), (9, 3, 4.0)):
        samples.add("forward", step, rank, seconds)
    samples.add_all("step", np.array([9]), np.array([3]), np.array([5.0]))
    steps, ranks = samples.steps(), samples.columns()
    assert (steps.tolist(), ranks.tolist()) == ([7, 9], [0, 3])
    assert (samples.repeated("forward"), samples.repeated("none")) == (1, 0)
    last = samples.tables(steps, ranks)
    np.testing.assert_equal(last["forward"], [[2.0, np.nan], [np.nan, 4.0]])
    np.testing.assert_equal(last["step"], [[np.nan, np.nan], [np.nan, 5.0]])
    summed = samples.tables(steps, ranks, add_up=True)
    np.testing.assert_equal(summed["forward"], [[3.0, np.nan], [np.nan, 4.0]])
