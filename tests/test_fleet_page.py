"""A fleet beside its figures: sizes, severe jobs, rules and gains."""

from collections import defaultdict
from dataclasses import asdict

import numpy as np
import pytest

from fleet_tables import drawn_jobs, jobs_table, steps_table
from paceline.fleet.rules import RuleOptions
from paceline.fleet.summary import summarise
from paceline.report import fleet_coverage

ROWS = drawn_jobs(150, seed=1)
COUNTED = [row for row in ROWS if row["status"] == "analysed"]
SLOW = [row for row in COUNTED if row["slowdown"] >= 1.1]


def summary_of(rows):
    return summarise(jobs_table(rows), steps_table(rows))[1]


@pytest.fixture(scope="module")
def summary():
    return summary_of(ROWS)


def test_causes_have_shares_of_the_loss_with_intervals(summary):
    lost, by_cause, diagnosed = 0.0, defaultdict(float), defaultdict(float)
    for row in SLOW:
        own = row["waste"] * row["gpu_hours"]
        lost += own
        by_cause[row["cause"]] += own
        for finding in row["causes"]:
            diagnosed[finding["cause"]] += finding["share"] * own
    assert summary["causes"]
    for row in summary["causes"]:
        share, explained = row["share_of_lost"], row["diagnosed_share"]
        assert share.value == pytest.approx(by_cause[row["cause"]] / lost, rel=1e-9)
        assert explained.value == pytest.approx(diagnosed[row["cause"]] / lost, rel=1e-9)
        assert share.low < share.value < share.high
        assert explained.low < explained.value < explained.high


def test_what_the_best_remedies_save_of_the_whole_fleet(summary):
    hours = sum(row["gpu_hours"] for row in COUNTED)
    gained = sum((row["remedy_gain"] or 0.0) * row["gpu_hours"] for row in COUNTED)
    saved = summary["saved"]
    assert saved["gpu_hours"] == pytest.approx(gained, rel=1e-9)
    assert saved["share"].value == pytest.approx(gained / hours, rel=1e-9)
    assert saved["share"].low < saved["share"].value < saved["share"].high


def test_shares_of_rules_are_of_the_jobs_before_them_and_of_failures():
    counts = {"restarts": 2, "degrees": 3, "steps": 4, "corrupt": 1, "discrepancy": 5}
    left_out = [
        {"key": f"{rule}-{i}", "status": "discarded", "rule": rule, "gpu_hours": 2.0}
        for rule, n in counts.items()
        for i in range(n)
    ]
    rows = summary_of(COUNTED[:30] + left_out)["funnel"]
    before = 45
    for row, (rule, n) in zip(rows, counts.items(), strict=True):
        assert (row["rule"], row["jobs"], row["gpu_hours"]) == (rule, n, 2.0 * n)
        assert (row["jobs_before"], row["jobs_left"]) == (before, before - n)
        assert row["gpu_hours_before"] - row["gpu_hours_left"] == pytest.approx(2.0 * n)
        assert row["share"].value == pytest.approx(n / before)
        before -= n
    failures = {row["rule"]: row["share_of_failures"] for row in rows}
    assert failures["restarts"] is None
    assert failures["discrepancy"] is None
    assert failures["degrees"].value == pytest.approx(3 / 8)
    page = fleet_coverage.funnel(rows, 45, asdict(RuleOptions(min_gpus=128)))
    assert "--max-discrepancy 0.05, --min-steps 2, --min-gpus 128" in page
    assert "37.5%" in page
    assert "ByteDance: more than 15 restarts" in page


def test_sizes_and_severe_jobs_stand_beside_those_of_the_paper(summary):
    sizes = fleet_coverage.sizes(summary["coverage"])
    large = np.mean([row["gpus"] >= 512 for row in COUNTED])
    assert f"{large:.1%}" in sizes
    assert "3,079 jobs" in sizes
    severe = fleet_coverage.severe(summary["severe"])
    assert "single workers" in severe
    assert "fewer than 3% of the workers" in severe
    none = summary_of([row | {"slowdown": 1.0} for row in COUNTED])["severe"]
    assert "No job has S above 3" in fleet_coverage.severe(none)


@pytest.mark.parametrize("of_size", [(1, 0), (0, 0), (1, 2), (0, 3)], ids=str)
def test_the_page_says_where_gpu_hours_are_from(of_size):
    given, unknown = of_size
    row = COUNTED[0]
    rows = [row | {"key": str(i), "gpu_hours_source": "traced"} for i in range(5)]
    rows[:given] = [row | {"key": "given", "gpu_hours_source": "given"}] * given
    rows[5 - unknown :] = [
        row | {"key": f"none-{i}", "gpu_hours": None, "gpu_hours_source": None}
        for i in range(unknown)
    ]
    words = fleet_coverage.hours_words(summary_of(rows)["coverage"])
    assert ("Of 1 job as the manifest gives them" in words) == bool(given)
    assert (f"{unknown} jobs say no size" in words) == bool(unknown)


def test_a_job_without_a_slowdown_is_in_no_share():
    """A job of which S is not known is no job that does not straggle."""
    bare = {"key": "bare", "status": "analysed", "name": "bare", "path": "bare", "team": "ads"}
    one, few = summary_of([bare]), summary_of([*COUNTED[:10], bare | {"gpu_hours": 1e6}])
    without = summary_of(COUNTED[:10])
    assert few["coverage"]["jobs"] == 11
    for name in ("straggling", "gpu_hours_wasted", "p90"):
        assert few["straggling"][name] == without["straggling"][name]
    for ours, theirs in zip(few["groups"]["team"], without["groups"]["team"], strict=True):
        assert (ours["straggling"], ours["waste"]) == (theirs["straggling"], theirs["waste"])
    assert one["straggling"]["straggling"].value is None
    assert one["straggling"]["gpu_hours_wasted"].value is None
    assert one["causes"] == []
    assert one["saved"]["share"].value is None
