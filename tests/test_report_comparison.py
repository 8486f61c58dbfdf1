"""A comparison in words, on the terminal, as JSON and as a page."""

import base64
import hashlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.comparison import Comparison, TimeChange, compare
from paceline.errors import ComparisonError
from paceline.report.comparison import (
    comparison_lines,
    dumps,
    page_writer,
    refusal_lines,
    to_mapping,
    words,
)
from paceline.report.comparison.rows import tables
from paceline.synth import SlowWorker, SynthSpec, synthesize
from test_report_html import HOSTILE, Elements

BASE = SynthSpec(dp=4, pp=3, microbatches=6, steps=8)
SLOW = replace(BASE, slow_workers=(SlowWorker(3, 1, 1.5),))
DOCS = Path(__file__).parents[1] / "docs" / "compare.md"


@pytest.fixture(scope="module")
def fixed() -> Comparison:
    return compare(synthesize(SLOW), synthesize(replace(BASE, seed=1)), names=("a", "b"))


@pytest.fixture(scope="module")
def same() -> Comparison:
    return compare(synthesize(BASE), synthesize(replace(BASE, seed=1)))


@pytest.fixture(scope="module")
def anyway() -> Comparison:
    after = synthesize(replace(BASE, dp=2, microbatches=12))
    return compare(synthesize(BASE), after, anyway=True)


def with_time(comparison: Comparison, change: float, low: float, high: float) -> Comparison:
    time = TimeChange(2.0, 2.0 * (1 + change), change, (low, high))
    return replace(comparison, time=time, median=time)


def page(comparison: Comparison) -> str:
    file = io.BytesIO()
    page_writer(comparison)(file)
    return file.getvalue().decode()


def screen(comparison: Comparison, width: int = 100) -> str:
    return "\n".join(line.plain for line in comparison_lines(comparison, width))


UNTOLD = "Cannot be told: the time of a step changed by between"
BETWEEN = "No difference that these steps can show: the time of a step changed by between"


@pytest.mark.parametrize(
    ("change", "low", "high", "said"),
    [
        (
            *(-0.123, -0.127, -0.118),
            "The step became 12.3% shorter (90%: 11.8 to 12.7%): 2.000 s before, 1.754 s after.",
        ),
        (
            *(0.123, 0.118, 0.127),
            "The step became 12.3% longer (90%: 11.8 to 12.7%): 2.000 s before, 2.246 s after.",
        ),
        (
            *(-0.0042, -0.0051, -0.0033),
            "The step became 0.42% shorter (90%: 0.33 to 0.51%): 2.000 s before, 1.992 s after.",
        ),
        (0.001, -0.008, 0.009, f"{BETWEEN} −0.80% and +0.90% (90%)."),
        (0.01, -0.04, 0.055, f"{BETWEEN} −4.0% and +5.5% (90%)."),
        (0.02, -0.08, 0.19, f"{UNTOLD} −8.0% and +19.0% (90%). Record more steps."),
    ],
)
def test_the_verdict_in_words(fixed, change, low, high, said) -> None:
    assert words.verdict(with_time(fixed, change, low, high)) == said


def test_more_steps_are_no_advice_where_steps_change_together(fixed) -> None:
    """A newcomer's jobs both became slow at one step: "Record more steps" was no help."""
    told = with_time(fixed, 0.02, -0.08, 0.19)
    n = len(told.after.result.steps)
    together = replace(told, after=replace(told.after, effective_steps=0.04 * n))
    said = words.verdict(together)
    assert said.endswith("compare those before and those behind the change (--steps).")
    assert "Record more steps" not in said


def test_verdicts_that_lack_an_interval_or_any_difference(fixed) -> None:
    few = compare(synthesize(replace(SLOW, steps=2)), synthesize(replace(BASE, seed=1)))
    said = words.verdict(few)
    assert said.startswith("The step became 22.")
    assert said.endswith("after; too few steps for an interval.")
    assert any(note.startswith("2 and 8 steps: an interval needs 4") for note in words.notes(few))
    trace = synthesize(BASE)
    assert words.verdict(compare(trace, trace)) == (
        "No difference: both traces contain identical steps."
    )


def test_a_unit_that_is_no_step_is_named(anyway) -> None:
    assert words.verdict(anyway).startswith("A microbatch takes ")
    notes = words.notes(anyway)
    assert notes[0].startswith("the jobs differ, so they are compared by their time over the micro")
    assert "dp: 4 before, 2 after" in notes[0]
    assert notes[1].startswith("12 GPUs before, 6 after: a microbatch takes ")
    assert any(note.startswith("not compared: workers: ") for note in notes)


def test_a_median_that_says_otherwise_is_said(fixed) -> None:
    median = TimeChange(2.0, 1.8, -0.1, (-0.11, -0.09))
    unsure = with_time(fixed, 0.3, -0.2, 0.9)
    notes = words.notes(replace(unsure, median=median, odd_steps=((), (7, 9))))
    assert notes == [
        "the median step became 10.0% shorter (90%: 9.0 to 11.0%); unusual steps dominate the mean "
        "(7, 9 after): they cost GPU time, but leave them out (--steps) if they do not belong to "
        "the comparison"
    ]
    notes = words.notes(replace(unsure, median=median, odd_steps=((), ())))
    assert notes[0].endswith("the mean differs, and it is the cost")
    assert words.notes(replace(unsure, median=unsure.time, odd_steps=((3,), ()))) == []


@pytest.mark.parametrize(("change", "noted"), [(-0.004, True), (-0.0069, True), (-0.0071, False)])
def test_a_change_as_small_as_between_two_runs_is_noted(fixed, change, noted) -> None:
    notes = words.notes(with_time(fixed, change, change - 1e-4, change + 1e-4))
    assert any("between two runs of one job" in note for note in notes) == noted


def test_the_screen_has_verdict_tables_numbers_and_warnings(fixed) -> None:
    text = screen(fixed)
    parts = [
        "The step became",
        "By cause",
        "By kind",
        "By stage",
        "By worker",
        "Both jobs",
        "! before",
    ]
    places = [text.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)
    worker = next(line for line in text.splitlines() if line.startswith("dp 3, stage 1"))
    assert re.search(r"S 1\.\d{3} +S 1\.00\d +−\d{3} ms  −\d+ ms to −\d+ ms$", worker)
    assert "before and after: not judged" in text


def test_rows_that_hardly_change_are_counted(fixed, same) -> None:
    shown = {table.name: table for table in tables(fixed, 5)}
    kinds = shown["kinds"]
    assert len(kinds.rows) == 2
    small = [row.change.seconds for row in fixed.kinds[2:]]
    assert kinds.sums[0].name == f"{kinds.n_rows - 2} more, each under 0.1%"
    assert kinds.sums[0].sum_s == pytest.approx(sum(small))
    shown = {table.name: table for table in tables(same, 5)}
    assert shown["workers"].rows == ()
    assert shown["workers"].note.startswith("none of 12 changed by 0.1% of the step beyond chance")


def test_rows_add_up_to_the_change_of_the_step(fixed) -> None:
    shown = {table.name: table for table in tables(fixed, 5)}
    change_s = fixed.time.after_s - fixed.time.before_s
    for name in ("causes", "kinds", "stages"):
        *rest, total = shown[name].sums
        listed = sum(row.change.seconds for row in shown[name].rows)
        assert total.name == "the step"
        assert total.sum_s == change_s
        rounding = 0.0002 * fixed.time.before_s
        assert listed + sum(row.sum_s for row in rest) == pytest.approx(change_s, abs=rounding)


def test_time_that_the_replay_misses_is_a_row(fixed) -> None:
    missed_s = 0.01 * fixed.time.before_s
    time = replace(fixed.time, after_s=fixed.time.after_s + missed_s)
    shown = {table.name: table for table in tables(replace(fixed, time=time), 5)}
    (row,) = [row for row in shown["kinds"].sums if row.name.startswith("remainder")]
    assert row.sum_s == pytest.approx(missed_s)
    mapping = to_mapping(replace(fixed, time=time))
    assert mapping["remainder_s"]["kinds"] == pytest.approx(missed_s)
    assert mapping["change_s"] == time.after_s - time.before_s


def test_heads_tell_columns_that_are_no_difference_of_the_two_before(fixed) -> None:
    heads = {table.name: table.heads[1:] for table in tables(fixed, 5)}
    assert heads["causes"] == ("before", "after", "change")
    assert heads["kinds"] == ("op before", "op after", "step change")
    assert heads["stages"] == ("computes before", "computes after", "step change")
    assert heads["workers"] == ("before", "after", "cost change")
    text, html = screen(fixed), page(fixed)
    for words_of_head in heads.values():
        assert re.search(" +".join(words_of_head), text)
        assert all(f">{head}</th>" in html for head in words_of_head)


def test_a_change_of_a_percentage_is_told_in_points(fixed) -> None:
    waste = next(line for line in screen(fixed).splitlines() if line.startswith("waste"))
    before, after = (side.result.waste for side in (fixed.before, fixed.after))
    assert waste.endswith(f"  −{100 * (before - after):.1f} points")


@pytest.mark.parametrize("width", [1, 40, 80, 132])
def test_lines_fit_where_words_can_be_wrapped(fixed, width) -> None:
    """Rows of numbers, which are marked by two spaces in a row, are as wide as they are."""
    for line in comparison_lines(fixed, width):
        if "  " not in line.plain.strip():
            assert len(line.plain) <= max(width, 40)


def test_a_refusal_has_a_line_for_each_thing_that_differs() -> None:
    with pytest.raises(ComparisonError) as caught:
        compare(synthesize(BASE), synthesize(replace(BASE, dp=2, tp=4)))
    first, *rows, hint = refusal_lines(caught.value)
    assert "differ" in first
    assert rows == ["  dp: 4 before, 2 after", "  tp: 1 before, 4 after"]
    assert "--anyway" in hint


def test_json_has_the_documented_keys(fixed, anyway) -> None:
    documented = set(re.findall(r"`(\w+)`", DOCS.read_text().partition("## JSON")[2]))
    for comparison in (fixed, anyway):
        mapping = json.loads(dumps(comparison))
        own = {key: value for key, value in mapping.items() if key not in ("before", "after")}
        assert set(mapping) <= documented
        for value in own.values():
            rows = value if isinstance(value, list) else [value]
            for row in rows:
                if isinstance(row, dict) and row is not own["left_out"]:
                    assert set(row) <= documented


def test_json_holds_every_number_and_the_warnings_of_both(fixed) -> None:
    mapping = to_mapping(fixed)
    assert mapping["schema"] == 1
    assert mapping["names"] == ["a", "b"]
    assert mapping["verdict"] == "shorter"
    assert mapping["time"]["interval"] == list(fixed.time.interval)
    change = mapping["time"]["after_s"] - mapping["time"]["before_s"]
    for table in ("causes", "kinds", "stages"):
        assert sum(row["change_s"] for row in mapping[table]) == pytest.approx(change)
    assert (mapping["workers"][0]["dp"], mapping["workers"][0]["pp"]) == (3, 1)
    assert mapping["n_workers"] == len(mapping["workers"]) == 12
    for side in ("before", "after"):
        assert mapping["warnings"][side] == mapping[side]["warnings"] != []
    assert mapping["before"]["slowdown"] > 1.1 > mapping["after"]["slowdown"]


def test_json_says_what_cannot_be_said(anyway) -> None:
    few = compare(synthesize(replace(BASE, steps=1)), synthesize(replace(BASE, steps=1, seed=1)))
    mapping = json.loads(dumps(few))
    assert mapping["verdict"] == "unknown"
    assert mapping["time"]["interval"] is None
    assert {row["clear"] for row in mapping["causes"]} == {None}
    mapping = json.loads(dumps(anyway))
    assert {row["change_s"] for row in mapping["kinds"]} == {None}
    assert mapping["gpu_time"]["verdict"] in ("shorter", "longer")


def test_the_page_has_every_part_in_order(fixed) -> None:
    text = page(fixed)
    parts = [
        *("<h1", 'id="causes"', 'id="kinds"', 'id="stages"', 'id="workers"', 'id="numbers"'),
        *('id="definitions"', 'id="warnings"', "<footer"),
    ]
    places = [text.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)
    found = Elements(text)
    assert found.of("h1") == [{"class": "healthy"}]
    assert "became" in found.text
    ids = [a["id"] for _, a in found.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for a in found.of("a")} <= set(ids)


@pytest.mark.parametrize(("change", "mood"), [(-0.1, "healthy"), (0.1, "slow"), (0.0, "same")])
def test_the_mood_of_the_page_is_that_of_the_verdict(fixed, change, mood) -> None:
    comparison = with_time(fixed, change, change - 0.01, change + 0.01)
    assert Elements(page(comparison)).of("h1") == [{"class": mood}]


def test_the_page_fetches_nothing_and_runs_only_its_script(fixed) -> None:
    text = page(fixed)
    found = Elements(text)
    assert not any(found.of(tag) for tag in ("link", "img", "iframe"))
    assert not any("src" in attributes for _, attributes in found.tags)
    assert "url(" not in text
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for a in found.of("meta") if "http-equiv" in a)
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_hostile_names_are_only_text(fixed) -> None:
    hosts = {(dp, pp): (HOSTILE, HOSTILE) for dp in range(4) for pp in range(3)}
    traces = [synthesize(SLOW), synthesize(replace(BASE, seed=1))]
    for i, trace in enumerate(traces):
        job = replace(trace.job)
        object.__setattr__(job, "name", HOSTILE + str(i))
        traces[i] = replace(trace, job=job, warnings=(HOSTILE, "half a pair \ud800"))
    comparison = compare(*traces, hosts_before=hosts, hosts_after=hosts, names=(HOSTILE, HOSTILE))
    before, after = Elements(page(fixed)), Elements(page(comparison))
    assert {tag for tag, _ in after.tags} <= {tag for tag, _ in before.tags} | {
        "ul",
        "li",
        "bdi",
        "small",
    }
    assert len(after.of("script")) == len(before.of("script"))
    assert not [name for _, a in after.tags for name in a if name.startswith("on")]
    assert after.text.count("alert(1)") >= 6
    json.loads(dumps(comparison))


def test_tables_of_the_page_can_be_read_aloud(fixed) -> None:
    found = Elements(page(fixed))
    scopes = [a.get("scope") for a in found.of("th")]
    assert set(scopes) == {"col", "row"}
    groups = [a for a in found.of("div") if a.get("class") == "scroll"]
    assert len(groups) == len(found.of("table"))
    assert all(a["role"] == "group" and a["aria-label"] and a["tabindex"] == "0" for a in groups)
    assert all(a["aria-hidden"] == "true" for a in found.of("span") if a.get("class") == "track")
