"""A log that does not grow any more."""

import json
import os
import time

import pytest

from paceline.cli.main import run
from paceline.detect.hang import is_overdue


@pytest.mark.parametrize(
    ("waited_s", "usual_s", "step_s", "overdue"),
    [(34, 1, 1, False), (35, 1, 1, True), (1000, 10, 400, False), (35, 1, float("nan"), False)],
)
def test_three_steps_and_half_a_minute_more_than_usual(waited_s, usual_s, step_s, overdue):
    assert is_overdue(waited_s, usual_s, step_s) is overdue


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("step,duration_s\n" + "".join(f"{n},{1 + n % 3 / 100}\n" for n in range(80)))
    return path


def aged(path, seconds):
    at = time.time() - seconds
    os.utime(path, (at, at))
    return str(path)


def test_a_log_that_is_not_written_any_more_is_a_hang_only_if_the_job_runs(log, capsys):
    assert run(["detect", aged(log, 600), "--running", "--json"]) == 0
    (event,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (event["kind"], event["step"], event["lost_s"]) == ("hang", 80, pytest.approx(600, 0.1))
    assert run(["detect", aged(log, 600), "--json"]) == 0
    assert capsys.readouterr().out == ""
    assert run(["detect", aged(log, 600), "--running"]) == 0
    assert "step 80 has not ended after 10" in capsys.readouterr().out


def test_a_log_that_grows_is_none(log, capsys):
    assert run(["detect", aged(log, 5), "--running"]) == 0
    assert "no hang: the last line came 5" in capsys.readouterr().out
    assert run(["detect", "-", "--running"]) == 2
