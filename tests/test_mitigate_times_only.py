"""Events and step times without a trace: when does a restart pay?"""

import io
import json

import pytest

from paceline.cli.main import run
from paceline.errors import MitigateError
from paceline.mitigate.times_only import TimesOnly

#: 1.0 s became 1.5 s in step 60; seen in step 64.
ONSET = {
    "kind": "onset",
    "step": 64,
    "since_step": 60,
    "factor": 1.5,
    "lost_s": 2.5,
    "at_stake_s_per_1000_steps": 500.0,
}


def test_an_onset_foretells_the_step():
    answer = TimesOnly(60.0).take(ONSET)
    assert (answer.due_step, answer.is_due) == (64 + 115, False)
    assert "until step 179" in answer.explain()
    assert TimesOnly(2.0).take(ONSET).is_due
    never = TimesOnly(None).take(ONSET)
    assert never.due_step is None
    assert "not allowed" in never.explain()


def test_step_times_count_what_is_lost():
    planner = TimesOnly(60.0)
    planner.take(ONSET)
    answers = [planner.take({"step": n, "duration_s": 3.0}) for n in range(65, 120)]
    (due,) = [answer for answer in answers if answer]
    assert due.step == 64 + 29  # 57.5 s at 2 s a step
    assert due.to_mapping()["strategy"] == "s4"


def test_a_worsening_brings_the_restart_nearer_and_a_relief_ends_it():
    planner = TimesOnly(1000.0)
    first = planner.take(ONSET)
    worse = ONSET | {"kind": "worsening", "step": 100, "factor": 3.0, "lost_s": 20.0}
    worse["at_stake_s_per_1000_steps"] = 2000.0
    assert planner.take(worse).due_step == 100 + 490 < first.due_step
    over = planner.take({"kind": "relief", "step": 120, "factor": 2.0, "lost_s": 60.0})
    assert (over.factor, over.lost_s, over.due_step) == (None, 60.0, None)
    assert planner.take({"step": 121, "duration_s": 9.0}) is None


@pytest.mark.parametrize(
    "line", [{}, {"step": 1}, {"step": 1.5, "duration_s": 1}, ONSET | {"factor": "x"}]
)
def test_what_cannot_be_understood_is_said(line):
    with pytest.raises(MitigateError):
        TimesOnly(1.0).take(line)


def test_detect_feeds_mitigate(tmp_path, capsys, monkeypatch):
    seconds = [1.0 + 0.001 * (n % 7) + (0.5 if n >= 80 else 0) for n in range(120)]
    table = tmp_path / "steps.csv"
    table.write_text("step,duration_s\n" + "".join(f"{n},{s}\n" for n, s in enumerate(seconds)))
    assert run(["detect", str(table), "--json"]) == 0
    events = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO(events))
    assert run(["mitigate", "--follow", "--json", "--overheads", "s4=100"]) == 0
    (answer,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert answer["strategy"] == "s1"
    assert answer["due_step"] == pytest.approx(80 + 200, abs=6)
    monkeypatch.setattr("sys.stdin", io.StringIO(events))
    assert run(["mitigate", "--follow", "--slow-worker", "0,0,2"]) == 2
    assert "needs a trace" in capsys.readouterr().err
