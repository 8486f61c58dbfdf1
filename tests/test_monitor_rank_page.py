"""A job's page shows its ranks over time; held against a real job with one slow worker."""

import base64
import json

import numpy as np
import pytest

import requires

requires.installed("starlette")

from monitor_fleet import Monitor, app_of, ranks_times, slow_steps
from paceline.monitor.rank_groups import hosts_of
from paceline.monitor.rank_map import BIN, MAX_BINS, Ratios
from paceline.monitor.web.rank_page import rank_view
from shared_data import DATA
from step_batches import of_step
from test_monitor_detectors import Site
from test_monitor_pages import asking
from test_monitor_rank_answers import ratios


def unpacked(heatmap):
    packed = heatmap["values"]
    values = np.frombuffer(base64.b64decode(packed["u16"]), "<u2") * packed["unit"]
    return values.reshape(heatmap["rows"], heatmap["cols"])


class TestView:
    def test_few_ranks_have_a_row_each(self):
        view = rank_view(ratios([[1.0, 1.0, 1.5], [1.0, 1.2, 1.0]]), {2: ("n", "0")}, None)
        assert unpacked(view.heatmap) == pytest.approx(np.array([[1, 1], [1, 1.2], [1.5, 1]]))
        assert view.heatmap["names"] == ["rank 0", "rank 1", "rank 2 on n"]
        assert [(s.rank, s.first, s.last, s.host) for s in view.slowest] == [
            (2, 0, 0, "n"), (1, 1, 1, ""),
        ]  # fmt: skip
        assert (view.is_grouped, view.by_host, view.chart) == (False, False, None)

    def test_a_fail_slow_names_only_ranks_whose_own_times_show_it(self):
        values = [[1.0, 1.06, 1.0], [1.0, 1.0, 1.07], [1.0, 1.0, 1.8]]
        waiting = rank_view(ratios(values[:2]), {}, None, 1, 5.8)
        assert (waiting.slowest, waiting.slow_since) == ((), 1)
        own = rank_view(ratios(values), {}, None, 1, 1.9)
        assert [(slow.rank, slow.first) for slow in own.slowest] == [(2, 2)]
        assert [slow.rank for slow in rank_view(ratios(values[:2]), {}, None).slowest] == [2, 1]

    def test_many_are_grouped_by_host_or_else_by_number(self):
        values = np.ones((3, 256))
        values[1, 77] = 1.3
        hosts = hosts_of({"hosts": {str(r): [f"n{r // 8}", "0"] for r in range(256)}})
        by_host = rank_view(ratios(values), hosts, None)
        assert (by_host.by_host, by_host.heatmap["rows"]) == (True, 32)
        assert by_host.heatmap["names"][9] == "n9, 8 ranks from 72 to 79"
        assert by_host.heatmap["slowest"][9][1] == 77
        by_number = rank_view(ratios(values), {}, None)
        assert (by_number.by_host, by_number.heatmap["rows"]) == (False, 32)
        assert by_number.heatmap["names"][9] == "ranks 72 to 79"

    def test_one_rank_is_shown_against_its_hosts_median(self):
        values = np.ones((4, 6))
        values[2:, 4] = 1.4
        values[:, 5] = 1.1
        hosts = {4: ("n", "0"), 5: ("n", "1")}
        chart = rank_view(ratios(values), hosts, 4).chart
        own, group = chart["series"]
        assert own["points"] == [[0, 1.0], [1, 1.0], [2, 1.4], [3, 1.4]]
        assert group["label"] == "median of n's 2 ranks"
        assert [y for _, y in group["points"]] == pytest.approx([1.05, 1.05, 1.25, 1.25])
        assert chart["stops"][2]["lines"][0] == "step 2: 1.400 of the step's median"
        assert rank_view(ratios(values), {}, 4).chart["series"][1]["label"] == "median of all"
        assert rank_view(ratios(values), {}, 6).chart is None

    def test_restarts_are_marked_and_break_the_curve(self):
        found = ratios([[1.0, 1.1]] * 4)
        found.bins["start"] = found.bins["last_start"] = [0, 0, 1, 1]
        found.bins["first"] = found.bins["last"] = [5, 6, 5, 6]
        view = rank_view(found, {}, 1)
        assert view.heatmap["restarts"] == [2]
        assert view.chart["series"][0]["breaks"] == [2]

    def test_a_full_map_is_drawn_with_fewer_columns(self):
        values = np.ones((MAX_BINS, 40))
        values[:, 3] = np.nan
        values[:7, 3] = 9.0
        bins = np.zeros(MAX_BINS, BIN)
        bins["steps"], bins["first"] = 1, np.arange(MAX_BINS)
        bins["last"] = bins["first"]
        found = Ratios(np.arange(40, dtype=np.int32), bins, values.astype(np.float32))
        view = rank_view(found, {}, 3)
        assert view.heatmap["cols"] <= 96
        assert view.heatmap["top"] == 2.0
        assert view.slowest[0].ratio == 9.0
        assert len(view.chart["stops"]) == 7

    @pytest.mark.parametrize("values", [np.ones((0, 3)), np.ones((3, 1)), np.ones((0, 0))])
    def test_without_others_there_is_nothing_to_show(self, values):
        assert rank_view(ratios(values), {}, None) is None


def test_the_page_shows_them_and_one_that_is_asked_for(tmp_path):
    monitor = Monitor(tmp_path)
    job, rng = monitor.add_job("job", last_step=300), np.random.default_rng(0)
    monitor.add_steps(job, slow_steps(rng, 200), 2.0)
    monitor.add_ranks(job, ranks_times(rng, 200, 64), 120)
    monitor.add_job("bare")
    with asking(app_of(monitor)) as ask:

        def get(path):
            status, _, page = ask(path)
            assert status == 200
            return page

        page = get("/jobs/job")
        assert "Ranks over time" in page
        assert '<a href="/jobs/job?rank=11#ranks">rank 11</a>' in page
        assert "median of all" in get("/jobs/job?rank=40")
        assert "Rank 99 has pushed no step time" in get("/jobs/job?rank=99")
        for odd in ("x", "-1", "1e9", "", "99999999999999999999"):
            assert "Ranks over time" in get(f"/jobs/job?rank={odd}")
        assert "Ranks over time" not in get("/jobs/bare")
    monitor.close()


def compute_seconds(name):
    """[step, worker] seconds of computing in a real job's trace, worker = dp x stages + stage."""
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = ["step", "dp_rank", "stage", "optype", "duration"]
    table = parquet.read_table(DATA / "whatif" / f"trace-{name}.parquet", columns=columns)
    rows = {column: np.array(table[column].to_pylist()) for column in columns}
    computes = np.char.endswith(rows["optype"], "compute")
    step, dp, stage, seconds = (rows[c][computes] for c in ("step", "dp_rank", "stage", "duration"))
    steps, row = np.unique(step, return_inverse=True)
    total = np.zeros((len(steps), (dp.max() + 1) * (stage.max() + 1)))
    np.add.at(total, (row, dp * (stage.max() + 1) + stage), seconds)
    return total


@pytest.mark.skipif(not (DATA / "whatif").is_dir(), reason="the real jobs are not here")
@pytest.mark.parametrize("name", ["AR", "ST"])
def test_the_slow_workers_of_real_jobs_stand_out(name, tmp_path):
    """AR has one slowed worker, ST a long last stage: so says the artifact's own analysis."""
    result = json.loads((DATA / "whatif" / f"result-{name}.json").read_text())
    stages, replicas = (result[f"blocking_decompose_by_{part}"] for part in ("stage", "dp_rank"))
    stage = int(max(stages, key=stages.get))
    seconds = compute_seconds(name)
    site = Site(tmp_path)
    for number, row in enumerate(seconds):
        site.push(of_step(number, row))
    site.stop()
    found = site.detectors.ratios(site.job)
    site.engine.dispose()
    wanted = seconds / np.median(seconds, axis=1, keepdims=True)
    assert np.allclose(found.values, wanted, atol=2e-3)
    slow = {s.rank for s in rank_view(found, {}, None).slowest}
    if name == "AR":
        replica = int(max(replicas, key=replicas.get))
        assert found.values.mean(axis=0).argmax() == replica * len(stages) + stage
        assert (found.values.argmax(axis=1) == replica * len(stages) + stage).all()
    else:
        assert slow >= {replica * len(stages) + stage for replica in range(len(replicas))}
