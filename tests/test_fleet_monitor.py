"""The monitor and a study draw the same figures of the same jobs."""

import json
import re

import pytest

from fleet_tables import drawn_jobs, jobs_table, steps_table
from paceline.fleet.figures import Jobs
from paceline.fleet.summary import summarise
from paceline.monitor.web import fleet as monitor
from paceline.report.fleet import chart

ROWS = [row for row in drawn_jobs(120, seed=2) if row["status"] == "analysed"]


def session(row):
    """A job as the monitor's store gives it."""
    facts = {
        "m_w": row["m_w"],
        "m_s": row["m_s"],
        "n_stages": row["pp"],
        "waste_by_kind": dict(row["waste_by_kind"]),
        "steps": [],
        "correlation": row["forward_backward_correlation"],
    }
    numbers = {name: row[name] for name in ("name", "slowdown", "waste", "gpus", "cause")}
    lost = max(row["waste"], 0.0) * row["gpu_hours"]
    return numbers | {
        "facts": facts,
        "labels": {"max_seq_len": row["max_seq_len"]},
        "gpu_hours_lost": lost,
        **dict.fromkeys(("slowdown_healthy", "gpu_hours_lost_most")),
    }


@pytest.fixture(scope="module")
def of_study():
    figures, summary = summarise(jobs_table(ROWS), steps_table(ROWS))
    jobs = Jobs(jobs_table(ROWS))
    return {name: chart(figure, jobs) for name, figure in figures.items()}, summary


@pytest.fixture(scope="module")
def of_monitor():
    return {figure.name: figure for figure in monitor.figures([session(row) for row in ROWS])}


@pytest.mark.parametrize("name", ["waste", "kinds", "m_w", "m_s_slow", "correlation", "gpus"])
def test_figures_are_the_same(of_study, of_monitor, name):
    ours, theirs = of_study[0][name], of_monitor[name].chart
    assert ours is not None
    assert without_names(ours) == without_names(theirs)


def without_names(spec):
    """A chart; of equal values either may name any of the jobs first."""
    words = re.compile(r" \(job-\d+\)|, job-\d+|job-\d+")
    return json.loads(words.sub("", json.dumps(spec)))


def test_counts_and_causes_are_the_same(of_study):
    _, summary = of_study
    sessions = [session(row) for row in ROWS]
    totals = monitor.totals(sessions)
    assert totals.n_jobs == summary["coverage"]["jobs"]
    assert totals.n_slow == summary["straggling"]["jobs"]
    theirs = [(row["n_jobs"], pytest.approx(row["lost"])) for row in monitor.causes_table(sessions)]
    assert [(row["n"], row["gpu_hours_lost"]) for row in summary["causes"]] == theirs
