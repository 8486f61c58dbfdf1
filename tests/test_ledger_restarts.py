"""Fail-slows around a restart from a checkpoint, whose steps are done again."""

import random
from datetime import datetime, timedelta

import pytest

from paceline.detect.detector import Detector
from paceline.detect.refinement import Refinement
from paceline.ledger import goodput

TWO = ((1, 251), (201, 401))


def job(path, is_slow, starts=TWO):
    """Steps of 2 s, or 2.8 s if slow. Returns the seconds lost in the steps that count."""
    draw, at, lines, lost = random.Random(3), datetime(2026, 11, 27, 8), [], []
    for start, (first, end) in enumerate(starts):
        at += timedelta(seconds=120)
        lines.append(f"{at:%m/%d/%Y %H:%M:%S} [job] hello")
        at += timedelta(seconds=30)
        for step in range(first, end):
            healthy_s = 2 * draw.lognormvariate(0, 0.02)
            seconds = healthy_s * (1.4 if is_slow(start, step) else 1)
            at += timedelta(seconds=seconds)
            lines.append(f"{at:%m/%d/%Y %H:%M:%S} [job] it {step} | step took {seconds:.3f} s")
            if step < min((later for later, _ in starts[start + 1 :]), default=end):
                lost.append(seconds - healthy_s)
    path.write_text("\n".join(lines) + "\n")
    return sum(lost)


@pytest.mark.parametrize(
    ("is_slow", "starts"),
    [
        (lambda start, step: 150 <= step < 210, TWO),
        (lambda start, step: 150 <= step < 215, TWO),
        (lambda start, step: 150 <= step < 260, TWO),
        (lambda start, step: start == 0 and step >= 150, TWO),
        (lambda start, step: 240 <= step < 260, TWO),
        (lambda start, step: 150 <= step < 209, ((1, 231), (201, 221), (206, 401))),
        (lambda start, step: start == 0 and step >= 220, TWO),
        (lambda start, step: False, TWO),
    ],
    ids=[
        "again for 9 steps",
        "again for 14 steps",
        "over the crash",
        "until the crash",
        "from the crash on",
        "three starts",
        "lost steps alone",
        "never",
    ],
)
def test_slow_steps_that_count_are_found_on_both_sides_of_a_restart(tmp_path, is_slow, starts):
    truth_s = job(tmp_path / "job.log", is_slow, starts)
    found_s = goodput(tmp_path / "job.log").seconds["fail_slow"]
    assert found_s == pytest.approx(truth_s, rel=0.02, abs=0.5)


def test_slow_first_steps_of_a_start_alone_may_be_a_warm_up(tmp_path):
    job(tmp_path / "job.log", lambda start, step: start == 1 and step < 210)
    assert goodput(tmp_path / "job.log").seconds["fail_slow"] == 0


def test_a_restart_that_heals_does_not_change_the_factor_before_it():
    detector = Detector(1)
    refinement = Refinement(detector)
    draw = random.Random(1)
    for step in range(400):
        if step == 250:
            detector.go_back()
        factor = 1.4 if 150 <= step < 250 else 1.0
        refinement.take(detector.update(step, [2 * factor * draw.lognormvariate(0, 0.02)]))
    onset, relief = refinement.events()
    assert (onset.kind, relief.kind) == ("onset", "relief")
    assert onset.refined.low < 1.4 < onset.refined.high
