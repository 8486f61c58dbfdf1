"""Waits for data in a comparison: a cause of their own, and the pauses between steps."""

import json

import pytest

import paceline
from loading_jobs import job
from paceline.cli.main import run
from paceline.report.comparison.words import notes

EVEN = 100.0


def compared(tmp_path, before, after):
    """The comparison of two jobs of even computes, which differ by the given options."""
    sides = (("before", before), ("after", after))
    return paceline.compare(
        *(paceline.load(job(tmp_path / name, lambda *_: EVEN, **given)) for name, given in sides)
    )


def of_rank_1(milliseconds):
    return lambda _, rank: milliseconds * (rank == 1)


def causes(comparison):
    return {row.name: (row.before_s, row.after_s) for row in comparison.causes}


def adds_up(comparison):
    change_s = sum(row.change.seconds for row in comparison.causes)
    return change_s == pytest.approx(comparison.change_s, abs=1e-6)


@pytest.mark.parametrize("inside", [True, False])
def test_a_slow_loader_is_a_cause_of_its_own(tmp_path, inside):
    """Rank 1 waits for 60 ms, later for 5 ms: 164 and 109 ms a step."""
    before = {"wait_ms": of_rank_1(60.0), "inside": inside}
    comparison = compared(tmp_path, before, {"wait_ms": of_rank_1(5.0), "inside": inside})
    rows = causes(comparison)
    assert rows["data-loading"] == pytest.approx((0.060, 0.005), abs=1e-5)
    assert rows["launch-delay"] == pytest.approx((0, 0), abs=1e-5)
    assert comparison.causes[0].name == "data-loading"
    assert comparison.causes[0].change.clear
    assert adds_up(comparison)


def test_other_delays_stay_launch_delays(tmp_path):
    """Rank 1 waits for its data for 35 ms, and then begins 25 ms late."""
    before = {"wait_ms": of_rank_1(35.0), "late_ms": 25}
    comparison = compared(tmp_path, before, {"wait_ms": of_rank_1(0.0)})
    rows = causes(comparison)
    assert rows["data-loading"] == pytest.approx((0.035, 0), abs=1e-5)
    assert rows["launch-delay"] == pytest.approx((0.025, 0), abs=1e-5)
    assert adds_up(comparison)


def test_waits_that_one_side_has_not_measured_stay_launch_delays(tmp_path):
    comparison = compared(tmp_path, {"wait_ms": of_rank_1(60.0)}, {"late_ms": 10})
    rows = causes(comparison)
    assert "data-loading" not in rows
    assert rows["launch-delay"] == pytest.approx((0.060, 0.010), abs=1e-5)
    assert adds_up(comparison)


def test_waits_of_all_ranks_before_the_step_show_in_the_time_with_pauses(tmp_path):
    """All wait for 60 ms, later for 5 ms: the steps take 104 ms before and after."""
    before = {"wait_ms": lambda *_: 60.0, "inside": False}
    comparison = compared(tmp_path, before, {"wait_ms": lambda *_: 5.0, "inside": False})
    assert comparison.time.change == pytest.approx(0, abs=1e-6)
    assert causes(comparison)["data-loading"] == pytest.approx((0, 0), abs=1e-5)
    whole = comparison.time_with_pauses
    assert (whole.before_s, whole.after_s) == pytest.approx((0.164, 0.109))
    assert comparison.pause_s == pytest.approx((0.060, 0.005), abs=1e-6)
    assert whole.verdict == "shorter"
    (note,) = [text for text in notes(comparison) if "pauses" in text]
    assert note.startswith("with the pauses between steps, the time of a step became 33.5% shorter")
    assert note.endswith(": 164 ms before, 109 ms after")


def test_steps_that_follow_each_other_have_no_note_on_pauses(tmp_path):
    comparison = compared(tmp_path, {"wait_ms": of_rank_1(60.0)}, {"wait_ms": of_rank_1(5.0)})
    assert comparison.time_with_pauses.before_s == pytest.approx(0.164)
    assert not any("pauses" in text for text in notes(comparison))


def test_few_known_pauses_tell_nothing(tmp_path):
    """A pause is known where the step before has a time, which the first step has not."""
    given = {"wait_ms": of_rank_1(60.0), "steps": 4}
    comparison = compared(tmp_path, given, given)
    assert comparison.time_with_pauses is None
    assert comparison.pause_s is None


def test_pauses_that_hardly_differ_show_no_difference(tmp_path):
    before = {"wait_ms": lambda step, _: 60.0 + step % 3, "inside": False}
    after = {"wait_ms": lambda step, _: 60.0 + (step + 1) % 3, "inside": False}
    (note,) = [text for text in notes(compared(tmp_path, before, after)) if "pauses" in text]
    assert "the time of a step shows no difference (" in note


def test_the_command_has_the_row_and_the_pauses(tmp_path, capsys):
    for name, wait in (("before", 60.0), ("after", 5.0)):
        job(tmp_path / name, lambda *_: EVEN, wait_ms=of_rank_1(wait))
    folders = [str(tmp_path / "before"), str(tmp_path / "after")]
    assert run(["compare", *folders]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Data load")]
    assert rows[0].split()[2:7] == ["60.0", "ms", "5.00", "ms", "\N{MINUS SIGN}55.0"]
    assert run(["compare", *folders, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["causes"][0]["name"] == "data-loading"
    assert document["time_with_pauses"]["before_s"] == pytest.approx(0.164)
    assert document["pause_s"] == pytest.approx([0, 0], abs=1e-6)
