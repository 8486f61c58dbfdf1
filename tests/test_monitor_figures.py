"""What the pages draw: the report's own figures, and those of the fleet."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import requires

requires.installed("starlette")

from monitor_fleet import DAY_S, NOW, SLOW, analysed
from paceline.diagnose import diagnose
from paceline.diagnose.finding import CAUSES
from paceline.graph import from_trace
from paceline.monitor.step_series import ROW, Series
from paceline.monitor.store import queries
from paceline.monitor.web import charts, comparison, fleet
from paceline.monitor.web.results import ResultCache
from paceline.monitor.web.sections import sections
from paceline.monitor.web.templating import ago, cause
from paceline.remedies import REMEDIES, Case, Remedy, advise
from paceline.report.page import distributions
from paceline.report.page.distributions import distribution
from paceline.report.page.fall import key_numbers, parts_html, waterfall_html
from paceline.report.page.figures import figure_data
from paceline.report.page.findings import findings_html, remedies_html
from paceline.results.document import JobReport
from paceline.results.facts import fleet_facts
from paceline.synth import SynthSpec, synthesize
from paceline.units import gpu_hours
from paceline.whatif import analyze

WEEK_S = 7 * DAY_S
MONDAY = 4 * DAY_S + 100 * WEEK_S


CHUNKS = Remedy(
    "interleave", "cut the stages: a step takes 1 s", (), 1.0, 0.1, (0.0, 0.2), {"chunks": 2},
    action="cut the stages", architecture=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def slow():
    """An analysis with all that the report's pages need."""
    measured = from_trace(synthesize(SLOW))
    result = analyze(measured)
    hosts = {(dp, pp): (f"node-{dp}", str(pp)) for dp in range(SLOW.dp) for pp in range(SLOW.pp)}
    diagnosis = diagnose(measured, result, hosts)
    advice = advise(Case(measured, result, diagnosis), REMEDIES)
    return result, replace(advice, architecture=(CHUNKS,)), hosts


def report_of(slow, **options):
    result, advice, hosts = slow
    return JobReport.of(result, advice, hosts=hosts, **options)


def as_json(slow, **options):
    return json.loads(json.dumps(report_of(slow, **options).to_mapping()))


def page_of(document):
    """The sections that a stored document makes."""
    return sections(JobReport.from_mapping(document))


def test_figures_and_tables_are_those_of_the_report(slow):
    report = report_of(slow, per_step_workers=True)
    page = page_of(as_json(slow, per_step_workers=True))
    data = figure_data(report)
    assert page.exact
    assert page.few
    assert not page.healthy
    for name, value in {**page.workers, **page.workers_by_step}.items():
        assert value == data[name], name
    assert page.numbers == key_numbers(report, None)
    assert page.waterfall == waterfall_html(report, None)
    assert page.findings == findings_html(report)
    assert page.remedies == remedies_html(report)
    stages = {f"stage {stage}": s for stage, s in report.by_stage.items()}
    assert page.stages == parts_html(stages, "stage")
    assert set(page.warnings) == set(report.warning_texts)


def test_results_from_before_the_architecture_stood_apart_are_read(slow):
    text = as_json(slow)
    old = {key: value for key, value in text.items() if key != "architecture"}
    new = ("action", "architecture")
    old["remedies"] = [
        {key: value for key, value in remedy.items() if key not in new}
        for remedy in (*text["remedies"], *text["architecture"])
    ]
    names = [remedy.remedy for remedy in JobReport.from_mapping(old).every_remedy]
    assert names == [remedy["remedy"] for remedy in old["remedies"]]
    assert "interleave" in names
    assert "Interleave" in page_of(old).remedies


def test_documents_of_other_versions_make_a_page(slow):
    """Older ones lack keys, newer ones have more: neither may break the page of a session."""
    text = as_json(slow)
    now = page_of(text)
    assert "Nearly certain" in now.details
    assert "Replace worker" in now.remedies
    new = ("slowdown_paper", "slow_mode_shares", "step_modes", "not_judged", "launch_slowdown")
    old = {key: value for key, value in text.items() if key not in new}
    kept = ("id", "cause", "text", "share", "share_of_step", "interval", "confidence")
    old["findings"] = [{key: finding[key] for key in kept} for finding in text["findings"]]
    kept = ("remedy", "text", "findings", "step_time_s", "gain", "interval")
    old["remedies"] = [{key: remedy[key] for key in kept} for remedy in text["remedies"]]
    then = page_of(old)
    assert (
        "workers are slow" in then.details or "is slow" in then.details or "x slow" in then.details
    )
    assert "Replace worker" in then.remedies
    assert f"{text['slowdown']:.3f}" in then.numbers
    assert "by the paper" not in then.numbers
    more = {**text, "unheard_of": 1}
    more["findings"] = [{**finding, "mood": "bad"} for finding in text["findings"]]
    more["remedies"] = [{**remedy, "price": 7} for remedy in text["remedies"]]
    assert page_of(more).findings == now.findings


def test_a_result_that_has_no_evidence_left_makes_a_page_for_every_cause(slow):
    """Evidence that an old version wrote otherwise is left out, not shown raw."""
    text = as_json(slow)
    bare = {**text["findings"][0], "where": {}, "evidence": {}}
    for name in CAUSES:
        finding = {**bare, "id": name, "cause": name}
        page = page_of({**text, "findings": [finding]})
        assert f'id="finding-{name}"' in page.findings
        assert 'class="raw"' not in page.findings


def test_both_slowdowns_are_shown_where_the_references_differ(slow):
    text = {**as_json(slow), "slowdown_paper": 0.987, "slow_mode_shares": {"gc": 0.5}}
    assert "0.987 by the paper's reference" in page_of(text).numbers


def test_without_workers_by_step_the_smaller_of_stage_and_replica_is_shown(slow):
    result = slow[0]
    text = as_json(slow)
    assert not page_of(text).exact
    table = JobReport.from_mapping(text).workers_by_step
    assert table.shape == result.by_worker_by_step.shape
    stage, replica = result.by_stage_by_step[2, 1], result.by_replica_by_step[2, 3]
    assert table[2, 1, 3] == pytest.approx(min(stage, replica))


def test_bars_have_no_style_attributes(slow):
    """The monitor's Content-Security-Policy refuses them."""
    report = report_of(slow)
    html = waterfall_html(report, None) + parts_html({"a": 1.2, "b": 0.9}, "part")
    html += findings_html(report) + remedies_html(report)
    assert "style=" not in html
    assert '<rect class="negative"' in html
    assert '<rect class="whisker"' in html


def test_sparklines():
    assert charts.sparkline([]) == charts.sparkline([None, float("nan")]) == ""
    line = str(charts.sparkline([1.0, 1.2, None, 1.1]))
    assert '<path d="M3.0 23.0L48.0 3.0L93.0 13.0"/>' in line  # 96 x 26 with 3 to spare, top 1.2
    assert "from 1.00 to 1.10" in line
    assert 'cx="93.0"' in str(charts.sparkline([1.05]))


def series(steps, times, healthy):
    rows = np.zeros(len(steps), ROW)
    rows["step"], rows["max_s"], rows["healthy_s"], rows["slowest"] = steps, times, healthy, 3
    rows["at"] = NOW
    return Series(**{name: rows[name] for name in ROW.names}, lost=np.zeros(len(rows), bool))


def event(kind, step, at=NOW + 9):
    return {"kind": kind, "since_step": step, "text": f"{kind} at {step}", "at": at}


def test_step_times_with_events_where_they_began():
    nan = float("nan")
    drawn = series([5, 6, 7, 8], [1.0, 1.0, 2.0, 1.0], [nan, 1.0, 1.0, 1.0])
    found = [event("onset", 7), event("onset", 6), event("relief", 8)]
    found += [event("onset", 900), event("onset", 8, NOW - 1)]  # none of these steps
    spec = charts.steps_chart(drawn, found)
    curves = {one["label"]: one for one in spec["series"]}
    assert curves["slowest rank"]["points"] == [[5, 1.0], [6, 1.0], [7, 2.0], [8, 1.0]]
    assert curves["healthy"]["points"] == [[6, 1.0], [7, 1.0], [8, 1.0]]
    low, high = spec["yRange"]
    assert low < 1.0 < 2.0 < high
    marks = curves["fail-slow begins"]
    assert marks["points"] == [[7, low], [7, high], [6, low], [6, high]]
    assert marks["breaks"] == [2]  # a new line begins at point 2
    assert curves["healthy again"]["points"] == [[8, low], [8, high]]
    assert ["fail-slow begins", "onset at 7"] in [stop["lines"] for stop in spec["stops"]]
    assert [stop["x"] for stop in spec["stops"]] == sorted(stop["x"] for stop in spec["stops"])
    assert charts.steps_chart(series([], [], []), []) is None


def test_each_kind_of_mark_has_a_line_of_its_own():
    """Also without colour, and beside the healthy level, which is dotted."""
    web, report = Path(charts.__file__).parent, Path(distributions.__file__).parent
    rules = (web / "static" / "monitor.css").read_text()
    rules += (report / "static" / "page.css").read_text()
    classes = [f"c-{kind}.mark" for kind in charts.EVENT_KINDS] + ["c-start.mark", "c-ideal"]
    dashes = {}
    for name in classes:
        body = re.search(rf"^\.{re.escape(name)} {{(.*)}}", rules, re.MULTILINE)[1]
        dash = re.search(r"stroke-dasharray: ([\d ]+);", body)
        dashes[name] = dash[1] if dash else ""
    assert len(set(dashes.values())) == len(classes), dashes
    drawn = series([5, 6, 7], [1.0, 1.0, 2.0], [1.0, 1.0, 1.0])
    curves = charts.steps_chart(drawn, [event("onset", 6), event("faster", 7)])["series"]
    assert {"c-onset mark", "c-faster mark"} <= {curve["name"] for curve in curves}


def test_starts_are_marked_and_steps_run_again_are_apart():
    rows = replace(
        series([5, 6, 7, 6, 7, 8], [1.0, 1.0, 2.0, 1.0, 1.0, 1.0], [1.0] * 6),
        start=np.array([0, 0, 0, 1, 1, 1]),
        lost=np.array([False, True, True, False, False, False]),
    )
    spec = charts.steps_chart(rows, [])
    curves = {one["label"]: one for one in spec["series"]}
    assert curves["run again after a restart"]["points"] == [[6, 1.0], [7, 2.0]]
    actual = curves["slowest rank"]
    assert actual["points"] == [[5, 1.0], [6, 1.0], [7, 1.0], [8, 1.0]]
    assert actual["breaks"] == [1]
    assert [x for x, _ in curves["restarts"]["points"]] == [6, 6]
    lines = [stop["lines"] for stop in spec["stops"]]
    assert ["restart 1, from step 6 on"] in lines
    assert ["step 7: 2.000 s (rank 3); repeated later"] in lines
    assert spec["xRange"] == [5, 8]


def test_a_slowdown_needs_two_sessions_to_be_a_curve():
    def session(s):
        return {"slowdown": s, "created_at": NOW, "headline": None}

    assert charts.slowdown_chart([session(1.2), session(None)]) is None
    spec = charts.slowdown_chart([session(1.2), session(None), session(1.1)])
    assert spec["series"][0]["points"] == [[0, 1.2], [1, 1.1]]


def test_distributions():
    spec = distributions.cdf_chart(
        {"a": distribution([(0.3, "x"), (0.1, "y")]), "b": distribution([])},
        label="l",
        x_label="waste",
        percent=True,
    )
    (curve,) = spec["series"]
    assert curve["points"] == [[0.1, 0.0], [0.1, 0.5], [0.3, 1.0]]
    assert spec["stops"][0]["lines"] == ["10.0% (y)", "50% of 2 are at most that"]
    assert spec["table"]["rows"] == [["a", "2", "10.0%", "30.0%", "30.0%", "30.0%"]]
    assert distributions.cdf_chart({"a": distribution([])}, label="l", x_label="x") is None
    two = {"a": distribution([(2, "j")])}
    marked = distributions.cdf_chart(two, label="l", x_label="x", ref=(1, "mark"))
    low, high = marked["xRange"]
    assert low < 1 < 2 < high  # the mark is within the picture
    thousands = {"a": distribution([(i, "j") for i in range(5000)])}
    many = distributions.cdf_chart(thousands, label="l", x_label="x")
    points = many["series"][0]["points"]
    assert len(points) <= distributions.MAX_CDF_POINTS + 2
    assert points[-1] == [4999, 1.0]


def test_points_on_a_scale_of_powers_of_two():
    spec = distributions.scatter_chart(
        [(1024, 1.2, "big"), (8, 1.0, "small"), (0, 1.0, "none")],
        label="l",
        x_label="GPUs",
        y_label="S",
    )
    assert [dot["x"] for dot in spec["dots"]] == [3.0, 10.0]
    assert spec["x_names"][10] == "1,024"
    assert spec["stops"][1]["lines"] == ["big", "S 1.200", "GPUs: 1,024"]


def test_facts_of_a_result(slow):
    report = replace(
        report_of(slow),
        slowdown=1.25,
        by_step={1: 1.5, 2: 1.25, 3: float("nan")},
        by_kind={"gc": 1.25, "forward-compute": float("nan")},
        m_w=0.7,
        m_s=None,
    )
    assert fleet_facts(report, 0.9) == {
        "m_w": 0.7,
        "m_s": None,
        "n_stages": 3,
        "waste_by_kind": {"gc": 0.2},
        "steps": [1.0, 1.2],
        "correlation": 0.9,
    }
    long = replace(report, by_step={i: 1 + i / 1000 for i in range(1001)})
    many = fleet_facts(long, float("nan"))["steps"]
    assert len(many) == 25
    assert (many[0], many[-1]) == (0.8, 1.6)  # the ends are among them


def row(name, slowdown, facts=None, **more):
    usual = {"gpus": 8, "labels": {}, "cause": "worker", "gpu_hours_lost": 1.0, "facts": facts}
    usual |= dict.fromkeys(("slowdown_lasting", "slowdown_healthy", "gpu_hours_lost_most"))
    return {"name": name, "slowdown": slowdown, "waste": 1 - 1 / slowdown, **usual, **more}


def facts(**more):
    usual = {"m_w": 0.9, "m_s": 0.2, "n_stages": 1, "waste_by_kind": {"forward-compute": 0.1}}
    return {**usual, "steps": [0.9, 1.1], "correlation": 0.1, **more}


def test_key_numbers_and_causes_of_the_fleet():
    rows = [
        row("a", 1.25, gpus=30, gpu_hours_lost=6.0),
        row("b", 2.0, gpus=10, gpu_hours_lost=2.0, cause="gc"),
        row("c", 1.01, gpus=None, gpu_hours_lost=0.5, cause="healthy"),
    ]
    totals = fleet.totals(rows)
    assert (totals.n_jobs, totals.n_straggling, totals.gpus, totals.lost) == (3, 2, 40, 8.5)
    assert totals.n_slow == 2
    assert totals.waste == pytest.approx((30 * 0.2 + 10 * 0.5) / 40)
    found = fleet.causes_table(rows)
    assert [(line["name"], line["n_jobs"], line["share"]) for line in found] == [
        ("Worker fault", 1, 0.75),
        ("Garbage collection", 1, 0.25),
    ]
    assert fleet.totals([]).waste is None


def test_variation_that_passes_makes_no_job_straggle_but_waits_for_data_do():
    """Two jobs of a newcomer: S 1.588 of which nothing lasts, and S 1.05 beside slow loading."""
    rows = [
        row("healthy2", 1.588, slowdown_lasting=1.0, cause="unexplained"),
        row("gru", 1.05, slowdown_lasting=1.008, data_loading=0.546, cause="data-loading"),
    ]
    totals = fleet.totals(rows)
    assert (totals.n_jobs, totals.n_slow, totals.n_straggling) == (2, 1, 1)
    assert [line["name"] for line in fleet.causes_table(rows)] == ["Data loading"]
    wastes = 1 - 1 / 1.588, 1 - (1 - 0.546) / 1.05
    assert totals.waste == pytest.approx(sum(wastes) / 2)


def test_each_cause_has_a_colour_of_its_own_in_bars_and_legends():
    css = (Path(fleet.__file__).parent / "static/monitor.css").read_text()
    for name in CAUSES:
        assert re.search(rf"^rect\.cause-{name} {{ fill: var\(--", css, re.M), name


def test_sessions_of_one_minute_have_seconds_in_their_labels():
    def labels(*times):
        sessions = [{"created_at": at, "slowdown": 1.2, "headline": ""} for at in times]
        return charts.slowdown_chart(sessions)["x_names"]

    day_s = 86_400
    assert labels(0, day_s) == ["01 Jan", "02 Jan"]
    assert labels(0, 60, day_s) == ["01 Jan 00:00", "01 Jan 00:01", "02 Jan 00:00"]
    assert labels(0, 3, 63) == ["00:00:00", "00:00:03", "00:01:03"]
    assert labels(0, 3, day_s) == ["01 Jan 00:00:00", "01 Jan 00:00:03", "02 Jan 00:00:00"]


def test_the_papers_figures():
    rows = [
        row("a", 1.25, facts(), labels={"seq_len": "32768"}),
        row("b", 1.5, facts(n_stages=4, correlation=0.95), gpus=64),
        row("c", 1.0, facts(m_w=0.1), cause="healthy"),
        row("d", 1.2),
    ]
    figures = {figure.name: figure for figure in fleet.figures(rows)}

    def xs(name):
        return sorted(x for x, y in figures[name].chart["series"][0]["points"] if y > 0)

    assert xs("waste") == pytest.approx([0.0, 1 - 1 / 1.2, 0.2, 1 / 3])  # Figure 3
    assert len(figures["gpus"].chart["dots"]) == 4
    assert xs("kinds") == [0.1, 0.1, 0.1]  # Figure 5
    assert xs("steps") == [0.9, 0.9, 1.1, 1.1]  # Figure 4, of a and b, which straggle
    assert xs("m_w") == [0.9, 0.9]  # Figure 6
    assert xs("m_s_slow") == [0.0, 0.2]  # Figure 7: one stage has no last one
    assert xs("correlation") == [0.1, 0.95]  # Figure 11, of those that straggle
    (dot,) = figures["sequences"].chart["dots"]  # Figure 12
    assert (dot["x"], dot["y"]) == (15.0, 1.25)
    empty = fleet.figures([])
    assert all(figure.chart is None and figure.empty for figure in empty)


def test_weeks_as_bars_of_one_scale():
    lost = [{"gc": 1.0, "worker": 3.0}, {}, {"": 2.0}]
    weeks = [queries.Week(MONDAY + i * WEEK_S, one, 1, 0.1) for i, one in enumerate(lost)]
    before = queries.Week(MONDAY - WEEK_S, {}, 0, None)
    table = fleet.weeks_table([before, *weeks])
    assert fleet.weeks_table([before]) == {"rows": [], "key": []}
    assert [line["lost"] for line in table["rows"]] == [4.0, 0, 2.0]
    bar = str(table["rows"][0]["bar"])
    assert 'class="cause-gc" x="0.00%" width="25.00%"' in bar
    assert 'class="cause-worker" x="25.00%" width="75.00%"' in bar
    assert {entry["name"] for entry in table["key"]} == {
        "Garbage collection",
        "Worker fault",
        "No cause found",
    }


def test_compared_sessions_say_what_is_worse(slow):
    text = analysed(synthesize(SynthSpec(dp=5, pp=3, steps=3))).result
    before, after = JobReport.from_mapping(json.loads(text)), report_of(slow)
    found = comparison.compare(before, after)
    s = found.numbers[0]
    assert (s.name, s.mood) == ("Slowdown S", "worse")
    assert float(s.change) == pytest.approx(after.slowdown - before.slowdown, abs=1e-3)
    assert comparison.compare(after, before).numbers[0].mood == "better"
    assert found.kinds[0].name == "backward-compute"  # the largest change
    fault = next(line for line in found.falls if line.name == "Worker fault")
    assert (fault.before, fault.mood) == ("0 s", "worse")
    assert found.workers[0]["top"] == found.workers[1]["top"] > 1.1
    same = comparison.compare(after, after)
    assert {line.mood for line in [*same.numbers, *same.falls, *same.kinds]} == {""}


def test_words_for_numbers():
    assert [gpu_hours(v) for v in (math.nan, 0.0, 1e-4, 0.01234, 12.34, 99.97, 1234.5, -5.0)] == [
        *("–", "0", "under 0.001", "0.0123", "12.3", "100", "1,234", "−5"),
    ]
    assert [ago(NOW - age, NOW) for age in (-5, 59, 3600, 3 * DAY_S)] == [
        *("just now", "just now", "1 h ago", "3 days ago"),
    ]
    assert [cause(name) for name in (None, "gc", "healthy")] == [
        *("–", "Garbage collection", "Healthy"),
    ]


def test_what_was_not_asked_for_longest_is_dropped():
    kept, made = ResultCache(2), []

    def get(key):
        return kept.get(key, lambda: made.append(key) or key)

    assert [get(key) for key in "abacab"] == list("abacab")
    assert made == list("abcb")


def test_an_unexplained_session_says_how_to_send_more_steps():
    report = JobReport.from_mapping(json.loads(analysed(synthesize(SLOW)).result))
    (rest,) = (f for f in report.findings if f.cause == "unexplained")
    evidence = {"steps_needed": 30, "suspect": [[3, 1]], "factor": 1.4}
    rest = replace(rest, share=1.0, evidence=evidence)
    report = replace(report, findings=(rest,), remedies=())
    text = sections(report).details
    assert "Worker dp 3, stage 1 seems 1.40x slow" in text
    assert "PACELINE_SESSION_STEPS=30" in text
    assert "paceline push FOLDER" in text
    short = replace(rest, evidence={"steps_needed": 10})
    text = sections(replace(report, findings=(short,))).details
    assert "cut this session short. Push all steps" in text
    enough = replace(report, findings=(replace(rest, evidence={}),))
    assert "PACELINE_SESSION_STEPS" not in sections(enough).details
