"""Figures of a fleet, each against plain Python over the same rows; and its page."""

import json
import re
from collections import Counter, defaultdict
from statistics import mean, median

import numpy as np
import pytest

from fleet_jobs import HERE, make_fleet
from fleet_tables import KINDS, drawn_jobs, jobs_table, steps_table
from paceline.cli.main import run
from paceline.errors import FleetError
from paceline.fleet import bootstrap
from paceline.fleet.definitions import DEFINITIONS
from paceline.fleet.definitions import KINDS as KIND_NAMES
from paceline.fleet.figures import Jobs
from paceline.fleet.run import fleet
from paceline.fleet.study import Study
from paceline.fleet.summary import as_json, summarise
from paceline.report import fleet as fleet_page
from paceline.report.fleet_coverage import left_out

ROWS = drawn_jobs(150)
STEPS = steps_table(ROWS)
COUNTED = [row for row in ROWS if row["status"] == "analysed"]
SLOW = [row for row in COUNTED if row["slowdown"] >= 1.1]


@pytest.fixture(scope="module")
def study():
    return summarise(jobs_table(ROWS), STEPS, ("queue",))


@pytest.fixture(scope="module")
def figures(study):
    return study[0]


@pytest.fixture(scope="module")
def summary(study):
    return study[1]


def values(figure, name):
    return figure.curves[name].values


def lost(row):
    return max(row["waste"], 0) * row["gpu_hours"]


def test_waste_and_what_it_costs(figures, summary):
    np.testing.assert_allclose(
        values(figures["waste"], "waste"), sorted(r["waste"] for r in COUNTED)
    )
    numbers = summary["straggling"]
    assert numbers["straggling"].value == pytest.approx(len(SLOW) / len(COUNTED))
    assert numbers["jobs"] == len(SLOW)
    whole = sum(row["gpu_hours"] for row in COUNTED)
    assert numbers["gpu_hours_wasted"].value == pytest.approx(sum(map(lost, COUNTED)) / whole)
    assert summary["coverage"]["gpu_hours"] == pytest.approx(whole)
    large = sum(row["gpus"] >= 256 for row in COUNTED) / len(COUNTED)
    assert summary["coverage"]["sizes"]["256"].value == pytest.approx(large)
    ascending = sorted(row["waste"] for row in COUNTED)
    assert numbers["p90"].value == pytest.approx(np.quantile(ascending, 0.9))
    assert numbers["p90"].low <= numbers["p90"].value <= numbers["p90"].high


def test_steps_of_straggling_jobs_over_their_job(figures):
    slowdown = {row["key"]: row["slowdown"] for row in SLOW}
    expected = sorted(
        step["slowdown"] / slowdown[step["key"]]
        for step in STEPS.to_pylist()
        if step["key"] in slowdown
    )
    np.testing.assert_allclose(values(figures["steps"], "steps"), expected)
    assert figures["steps"].jobs == len(SLOW)


def test_kinds(figures):
    for kind in KINDS:
        ours = [
            max(dict(r["waste_by_kind"])[kind], 0)
            for r in COUNTED
            if kind in dict(r["waste_by_kind"])
        ]
        np.testing.assert_allclose(values(figures["kinds"], KIND_NAMES[kind]), sorted(ours))
    assert "params-all-gather" not in figures["kinds"].numbers


def test_workers_stages_and_sequences(figures):
    m_w = [row for row in SLOW if row["m_w"] is not None]
    above = [row for row in m_w if row["m_w"] > 0.5]
    numbers = figures["m_w"].numbers
    assert numbers["above_half"].value == pytest.approx(len(above) / len(m_w))
    assert numbers["mean_slowdown_above"].value == pytest.approx(mean(r["slowdown"] for r in above))
    assert numbers["mean_slowdown"].value == pytest.approx(mean(r["slowdown"] for r in m_w))
    clipped = sorted(min(max(row["m_w"], 0), 1) for row in m_w)
    np.testing.assert_allclose(values(figures["m_w"], "M_W"), clipped)
    for name, rows in (("m_s", COUNTED), ("m_s_slow", SLOW)):
        m_s = [0.0 if row["pp"] == 1 else row["m_s"] for row in rows]
        numbers = figures[name].numbers
        assert numbers["at_least_half"].value == pytest.approx(
            sum(v >= 0.5 for v in m_s) / len(rows)
        )
        single = sum(row["pp"] == 1 for row in rows) / len(rows)
        assert numbers["one_stage"].value == pytest.approx(single)
    high = [row for row in SLOW if row["forward_backward_correlation"] >= 0.9]
    numbers = figures["correlation"].numbers
    assert numbers["high"].value == pytest.approx(len(high) / len(SLOW))
    assert numbers["mean_slowdown_high"].value == pytest.approx(mean(r["slowdown"] for r in high))


def test_size_and_sequence_length_by_rank(figures):
    stats = pytest.importorskip("scipy.stats")
    for name, column in (("gpus", "gpus"), ("sequences", "max_seq_len")):
        rows = [row for row in COUNTED if row[column]]
        rho = stats.spearmanr([r[column] for r in rows], [r["slowdown"] for r in rows]).statistic
        assert figures[name].numbers["rank_correlation"].value == pytest.approx(rho)
        assert figures[name].jobs == len(rows)


def test_the_discrepancy_has_the_jobs_that_it_leaves_out(figures):
    ours = sorted(row["discrepancy"] for row in ROWS if row["status"] != "failed")
    np.testing.assert_allclose(values(figures["discrepancy"], "discrepancy"), ours)


def test_the_funnel(summary):
    counts = Counter(row["rule"] for row in ROWS)
    corrupt, discrepancy = summary["funnel"]
    assert (corrupt["rule"], corrupt["jobs"]) == ("corrupt", counts["corrupt"])
    assert corrupt["jobs_left"] == len(ROWS) - counts["corrupt"]
    assert discrepancy["jobs_left"] == len(COUNTED)
    assert discrepancy["gpu_hours_left"] == pytest.approx(sum(r["gpu_hours"] for r in COUNTED))


def test_causes_remedies_hosts_and_the_worst(summary):
    hours, diagnosed, saved = defaultdict(float), defaultdict(float), 0.0
    hosts = defaultdict(set)
    for row in COUNTED:
        saved += (row["remedy_gain"] or 0) * row["gpu_hours"]
        for host in row["slow_hosts"]:
            hosts[host].add(row["name"])
        if row["slowdown"] >= 1.1:
            hours[row["cause"]] += lost(row)
            for finding in row["causes"]:
                diagnosed[finding["cause"]] += finding["share"] * lost(row)
    for row in summary["causes"]:
        assert row["gpu_hours_lost"] == pytest.approx(hours[row["cause"]])
        assert row["diagnosed_gpu_hours"] == pytest.approx(diagnosed[row["cause"]])
    order = [row["cause"] for row in summary["causes"]]
    assert order == sorted(hours, key=lambda cause: -hours[cause])
    (remedy,) = summary["remedies"]
    assert remedy["gpu_hours"] == pytest.approx(saved)
    assert {row["host"]: row["jobs"] for row in summary["hosts"]} == {
        host: len(jobs) for host, jobs in hosts.items() if len(jobs) > 1
    }
    worst = sorted(SLOW, key=lost)[::-1][:10]
    assert [row["name"] for row in summary["worst"]] == [row["name"] for row in worst]


def test_groups(summary):
    groups = summary["groups"]
    assert set(groups) == {"team", "size", "cause", "week", "queue"}
    for name, of in (("team", lambda r: r["team"]), ("queue", lambda r: r["labels"][0][1])):
        for group in groups[name]:
            rows = [row for row in COUNTED if of(row) == group["value"]]
            assert group["jobs"] == len(rows)
            slow = sum(row["slowdown"] >= 1.1 for row in rows)
            assert group["straggling"].value == pytest.approx(slow / len(rows))
            assert group["gpu_hours_lost"] == pytest.approx(sum(map(lost, rows)))
    for group in groups["size"]:
        low, high = (int(end.replace(",", "")) for end in group["value"].split("–"))
        assert group["jobs"] == sum(low <= row["gpus"] <= high for row in COUNTED)
    weeks = Counter((r["started"].date().toordinal() - r["started"].weekday()) for r in COUNTED)
    assert [g["jobs"] for g in groups["week"]] == [weeks[day] for day in sorted(weeks)]
    with pytest.raises(FleetError, match="no job of the study has the label 'ward'"):
        summarise(jobs_table(ROWS), STEPS, ("ward",))


def test_severe_jobs(summary):
    bad = [row for row in COUNTED if row["slowdown"] > 3]
    assert summary["severe"]["jobs"] == len(bad)
    assert len(bad) > 0
    assert summary["severe"]["median_gpus"] == median(row["gpus"] for row in bad)


@pytest.mark.parametrize("n", [0, 1, 19])
def test_few_jobs_have_numbers_and_no_interval(n):
    rows = [row for row in drawn_jobs(60, seed=3) if row["status"] == "analysed"][:n]
    figures, summary = summarise(jobs_table(rows), steps_table(rows))
    straggling = summary["straggling"]["straggling"]
    assert (straggling.low, straggling.high, straggling.n) == (None, None, n)
    assert figures["waste"].jobs == n
    json.dumps(as_json(summary), allow_nan=False)


def test_intervals_hold_the_truth_of_drawn_fleets():
    """Of 95% intervals, nine in ten at least hold the numbers of the fleet they are drawn from."""
    rng, inside = np.random.default_rng(0), Counter()
    for _ in range(200):
        waste, hours = rng.beta(0.6, 4, 80), rng.lognormal(3, 1, 80)
        slow = int((waste >= 0.1).sum())
        truth = 1 - _beta_below(0.1)
        one, two = bootstrap.share(slow, 80), bootstrap.weighted(waste, hours)
        inside["share"] += one.low <= truth <= one.high
        inside["mean"] += two.low <= 0.6 / 4.6 <= two.high
    assert min(inside.values()) >= 176


def _beta_below(x, steps=200_000):
    """Of the beta distribution above: its share below x, by summation."""
    at = (np.arange(steps) + 0.5) / steps
    density = at ** (0.6 - 1) * (1 - at) ** 3
    return float(density[at < x].sum() / density.sum())


def test_a_share_of_none_or_all_has_a_bound():
    assert bootstrap.share(0, 100).high == pytest.approx(1 - 0.025**0.01)
    assert bootstrap.share(100, 100).low == pytest.approx(0.025**0.01)


def test_unknown_figures_and_names(figures):
    assert set(figures) == set(DEFINITIONS)
    jobs = Jobs(jobs_table(ROWS))
    curve = figures["waste"].curves["waste"]
    largest = max(COUNTED, key=lambda row: row["waste"])
    assert jobs.name(int(curve.row[-1])) == largest["name"]


def test_variation_that_passes_makes_no_job_straggle():
    """S of 1.3 that passes; S of 1.4 of which a worker is 1.2; S of 1.3 in whole passes."""
    judged = {1.31: 1.02, 1.41: 1.2, 1.32: 1.32}
    rows = [
        row | {"slowdown": s, "slowdown_judged": lasts, "waste": 1 - 1 / s}
        for row, (s, lasts) in zip(COUNTED, judged.items(), strict=False)
    ]
    summary = summarise(jobs_table(rows), steps_table(rows))[1]
    assert summary["straggling"]["jobs"] == 2
    assert summary["straggling"]["straggling"].value == pytest.approx(2 / 3)
    assert summary["straggling"]["slow_with_passing"].value == 1
    assert {row["name"] for row in summary["worst"]} == {row["name"] for row in rows[1:]}
    older = [row | {"slowdown_judged": None} for row in rows]
    assert summarise(jobs_table(older), steps_table(older))[1]["straggling"]["jobs"] == 3


def test_jobs_left_out_that_wait_for_data_are_named():
    wait = {"cause": "data-loading", "share": None, "share_of_step": 0.3, "low": 0.2, "high": 0.4,
            "confidence": 1.0, "place": "worker dp 1, stage 0"}  # fmt: skip
    rows = [dict(row) for row in COUNTED[:4]]
    for row, share in zip(rows, (0.3, 0.2, None, 0.4), strict=True):
        row["causes"] = [] if share is None else [wait | {"share_of_step": share}]
    for row in rows[:3]:
        row |= {"status": "discarded", "rule": "discrepancy"}
    summary = summarise(jobs_table(rows), steps_table(rows))[1]
    assert [row["share_of_step"] for row in summary["waiting"]] == [0.3, 0.2]
    first, second = (row["name"] for row in rows[:2])
    assert left_out(summary, {"max_discrepancy": 0.05}) == (
        "discrepancy: 3 jobs left out, whose simulated step differs from the traced one by more "
        "than 5.0%, as time passes between operations; in 2 of them workers wait for data, a "
        f"share of the step: {first} 30.0%, {second} 20.0%"
    )
    assert left_out(summarise(jobs_table(rows[3:]), steps_table(rows))[1], {}) == ""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    return fleet(make_fleet(folder / "traces"), folder / "study", run=HERE)


def test_a_study_answers_by_figure(small):
    row = next(r for r in small.jobs.to_pylist() if r["slowdown"] >= 1.1)
    assert small.summary["straggling"]["jobs"] == 1
    assert small.summary["worst"][0]["name"] == row["name"]
    assert small.figure("waste").curves["waste"].values[-1] == pytest.approx(row["waste"])
    with pytest.raises(FleetError, match="no figure 'wast'; there are waste, steps"):
        small.figure("wast")
    stored = json.loads(small.store.read("summary.json"))
    assert stored == json.loads(json.dumps(as_json(small.summary)))


def test_the_page_is_one_file_that_fetches_nothing(small, capsys):
    assert run(["fleet", small.address, "--report"]) == 0
    out = capsys.readouterr().out
    assert "33.3% of the jobs straggle" in out
    text = small.store.read("report.html").decode()
    assert text == fleet_page.page(Study(small.address))
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert {"waste", "steps", "kinds", "gpus", "m_s"} <= set(data)
    for name in data:
        assert f'id="fig-{name}"' in text
    assert "too few for an interval" in text
    assert not re.search(r'(?:src|href)="(?!#|results/)', text)


def test_names_of_others_are_no_code(tmp_path):
    rows = [row | {"name": "<script>x</script>", "path": "javascript:x"} for row in COUNTED[:30]]
    study = Study.__new__(Study)
    study.__dict__ |= {"jobs": jobs_table(rows), "steps": steps_table(rows), "_by": ()}
    study.address, study.about = "study", {"traces": 30}
    text = fleet_page.page(study)
    assert "<script>x" not in text
    assert 'href="javascript' not in text


def test_the_worst_jobs_are_linked_to_their_results(small):
    assert run(["fleet", small.address, "--report"]) == 0
    text = small.store.read("report.html").decode()
    (link,) = re.findall(r'href="(results/[^"]*)"', text)
    assert json.loads(small.store.read(link))["row"]["slowdown"] >= 1.1
    assert f"paceline analyze <bdi>{small.summary['worst'][0]['path']}" in text


def test_words_of_the_command(small, tmp_path, capsys):
    assert run(["fleet", str(tmp_path), "--report"]) == 2
    assert "is no study" in capsys.readouterr().err
    assert run(["fleet", small.address]) == 2
    assert "give the study's folder" in capsys.readouterr().err
    assert run(["fleet", small.address, "--report", "-o", "x"]) == 2
    assert "takes only the study" in capsys.readouterr().err
