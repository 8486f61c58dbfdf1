"""The share of pauses between steps where few steps are profiled: that of all steps.

First met with a newcomer's job that evaluates every 20 steps and profiles every 10th: every
evaluation fell before a profiled step, and pauses of 24% of the time were told as 73.6%.
"""

from dataclasses import replace

import numpy as np
import pytest

import paceline
from paceline.comparison import compare
from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.record.recorder import Recorder
from paceline.remedies import REMEDIES, Case, advise
from paceline.report.page.fall import key_numbers
from paceline.report.terminal import screen
from paceline.results.document import JobReport
from paceline.results.headline import headline, step_to_step_s
from paceline.sources.parquet_metadata import with_stored
from paceline.trace.warning import BETWEEN_STEPS, UNLIKE_STEPS
from paceline.whatif import analyze
from recordings import MS, RankStep, SetClock, data_parallel_job, play

STEPS = 121


def recorded(folder, every, pause_ms=lambda number: 0, step_ms=lambda number: 100):
    """A rank's run: a step begins where the one before ended, and its pause is within it."""
    clock = SetClock()
    given = {"rank": 0, "world": 1}
    steps = range(0, STEPS, every)
    rec = Recorder(folder, steps=steps, flush_s=60, given=given, clock=clock)
    end = 0
    for number in range(STEPS):
        begin, first = end, end + pause_ms(number)
        half, end = first + step_ms(number) // 2, first + step_ms(number)
        ops = [
            ("forward-compute", 0, 0, first * MS, half * MS),
            ("backward-compute", 0, 0, half * MS, end * MS),
        ]
        play(rec, clock, number, ops, (begin * MS, end * MS))
    rec.close()
    return paceline.load(folder)


def told(trace):
    """The warning on the time between the steps; None without one."""
    found = [w for w in from_trace(trace).doubts if w.code == BETWEEN_STEPS]
    return found[0] if found else None


def each(interval, ms, phase=0):
    return lambda number: ms if number and number % interval == phase else 0


@pytest.mark.parametrize(
    ("every", "pause_ms"),
    [
        (10, each(20, 400)),  # falls before every other profiled step
        (10, each(10, 400)),  # before every profiled one, and before no other
        (2, each(20, 400)),
        (3, each(20, 400)),  # before some profiled ones, and before others
        (10, each(1, 40)),  # before every step
        (1, each(20, 400)),
    ],
)
def test_the_share_of_pauses_is_that_of_all_steps(tmp_path, every, pause_ms):
    trace = recorded(tmp_path, every, pause_ms)
    last = int(trace.steps[-1])
    paused = sum(map(pause_ms, range(1, last + 1)))
    warning = told(trace)
    assert warning.numbers["share"] == pytest.approx(paused / (paused + 100 * last), abs=1e-3)
    assert warning.text.startswith(f"{warning.numbers['share']:.1%} of the time lies between the")
    report = JobReport.of(paceline.analyze(from_trace(trace)))
    mean_s = (paused / last + 100) / 1000
    assert step_to_step_s(report) == pytest.approx(mean_s, rel=2e-3)


@pytest.mark.parametrize(
    "step_ms",
    [
        lambda number: 200 if number % 2 else 100,
        lambda number: 300 if number % 20 == 0 else 100,  # long computes of single steps
    ],
)
@pytest.mark.parametrize("every", [2, 3, 10])
def test_steps_of_other_lengths_are_no_pauses(tmp_path, every, step_ms):
    assert told(recorded(tmp_path, every, step_ms=step_ms)) is None


def test_pauses_of_traced_steps_are_named_so_if_the_others_are_unknown(tmp_path):
    trace = replace(recorded(tmp_path, 10, each(20, 400)), periods=None)
    warning = told(trace)
    share = 2400 / (2400 + 1200)
    assert warning.numbers == {"share": pytest.approx(share), "traced_only": 1.0}
    assert warning.text.startswith("66.7% of the time of the traced steps lies before them")
    report = JobReport.of(paceline.analyze(from_trace(trace)))
    assert headline(report).startswith("Pauses before traced steps take 66.7% of their time (ch")
    assert step_to_step_s(report) == pytest.approx(0.3)
    shown = " ".join(" ".join(line.plain for line in screen(report, 200, colour=False)).split())
    assert "300 ms to a traced step, with the pause between them" in shown
    assert "300 ms to a traced step" in key_numbers(report, None)


def test_headline_and_step_are_those_of_all_steps(tmp_path):
    report = JobReport.of(paceline.analyze(from_trace(recorded(tmp_path, 10, each(20, 400)))))
    assert headline(report).startswith("Pauses between steps take 16.7% of the time (ch")
    shown = " ".join(" ".join(line.plain for line in screen(report, 200, colour=False)).split())
    assert "120 ms from step to step, with the pause between them" in shown
    assert "120 ms from step to step" in key_numbers(report, None)
    assert JobReport.from_mapping(report.to_mapping()) == report


def test_times_from_step_to_step_stay_with_the_trace(tmp_path):
    trace = recorded(tmp_path / "run", 10, each(20, 400))
    assert trace.periods.steps.tolist() == list(range(1, STEPS))
    expected = [(100 + each(20, 400)(number)) / 1000 for number in range(1, STEPS)]
    assert trace.periods.seconds == pytest.approx(np.array(expected))
    paceline.write(trace, tmp_path / "trace.parquet")
    stored = paceline.load(tmp_path / "trace.parquet")
    inside = trace.periods.within(trace.steps)
    assert stored.periods.steps.tolist() == inside.steps.tolist()
    assert stored.periods.seconds == pytest.approx(inside.seconds)
    assert told(stored).numbers == pytest.approx(told(trace).numbers)
    few = told(trace.select_steps(range(20, 61))).numbers  # steps 21 to 60
    assert few["share"] == pytest.approx(800 / 4800)


@pytest.mark.parametrize(
    "stored", [{"1": 10**400}, {"9" * 19: 1.0}, {"1": -1.0}, {"1": float("nan")}, {"1": "long"}, 3]
)
def test_impossible_times_in_a_file_are_ignored(tmp_path, stored):
    trace = recorded(tmp_path, 10)
    assert with_stored(trace, {"period_s": stored}).periods is None


def test_a_pause_before_profiled_steps_is_named_as_what_makes_them_longer(tmp_path):
    (doubt,) = unlike(recorded(tmp_path, 10, each(20, 400)))
    assert doubt.text.startswith("profiled steps take 300 ms on average, all others 100 ms: ")
    assert "An evaluation, a checkpoint or logging may fall on them" in doubt.text


def test_long_steps_of_which_none_is_profiled_are_told(tmp_path):
    """A job of 17% evaluations must not be called healthy for want of a profiled one."""
    trace = recorded(tmp_path / "long", 10, each(20, 400, phase=7))
    (doubt,) = unlike(trace)
    assert doubt.text.startswith(
        "17.0% of the time passes in 6 long steps (7, 27, 47, 67, 87 and 1 more)"
    )
    assert doubt.numbers == pytest.approx({"profiled_s": 0.1, "all_s": 0.12}, rel=0.01)
    report = JobReport.of(paceline.analyze(from_trace(trace)))
    shown = " ".join(" ".join(line.plain for line in screen(report, 200, colour=False)).split())
    assert "Profiled steps take 100 ms, all steps 120 ms on average: all shares below are" in shown
    assert unlike(recorded(tmp_path / "even", 10)) == []


def unlike(trace):
    return [doubt for doubt in from_trace(trace).doubts if doubt.code == UNLIKE_STEPS]


def evaluated(folder, every, data_ms=0.0, evaluation_ms=400.0):
    """Two ranks that meet before each step: 70 ms, and an evaluation in every 20th step."""

    def step(number, rank):
        evaluation = evaluation_ms if number and number % 20 == 0 else 0.0
        return RankStep(data=data_ms if rank else 0.0, host=evaluation)

    kept = {"steps": STEPS, "ranks": 2, "every": every, "meets": True, "measures": True}
    return data_parallel_job(folder, step, **kept)


@pytest.mark.parametrize("every", [1, 2, 10])
def test_a_comparison_counts_the_pauses_of_all_steps(tmp_path, every):
    """The evaluation becomes half as long; it falls before every other profiled step."""
    before = evaluated(tmp_path / "before", every)
    after = evaluated(tmp_path / "after", every, evaluation_ms=200.0)
    comparison = compare(before, after)
    assert comparison.pause_s == pytest.approx((0.020, 0.010), abs=2e-3)
    whole = comparison.time_with_pauses
    assert (whole.before_s, whole.after_s) == pytest.approx((0.090, 0.080), abs=2e-3)


@pytest.mark.parametrize("every", [1, 2, 10])
def test_waits_for_data_are_a_share_of_all_steps(tmp_path, every):
    """Rank 1 waits 20 ms for each batch: 20 of 110 ms."""
    measured = from_trace(evaluated(tmp_path, every, data_ms=20.0))
    result = analyze(measured)
    diagnosis = diagnose(measured, result)
    (waits,) = (f for f in diagnosis.findings if f.cause == "data-loading")
    assert waits.share_of_step == pytest.approx(20 / 110, abs=4e-3)
    case = Case(measured, result, diagnosis)
    (ahead,) = (r for r in advise(case, REMEDIES).remedies if r.remedy == "load-ahead")
    assert ahead.gain == pytest.approx(20 / 110, abs=4e-3)
    assert ahead.step_time_s == pytest.approx(0.090, abs=2e-3)


def test_waits_before_profiled_steps_alone_are_at_most_the_pauses_of_all_steps(tmp_path):
    """Rank 1 waits 400 ms for the first batch behind each tenth step: 40 of 110 ms."""

    def step(number, rank):
        return RankStep(data=400.0 if rank and number and number % 10 == 0 else 0.0)

    kept = {"steps": STEPS, "ranks": 2, "every": 10, "meets": True, "measures": True}
    measured = from_trace(data_parallel_job(tmp_path, step, **kept))
    diagnosis = diagnose(measured, analyze(measured))
    (waits,) = (f for f in diagnosis.findings if f.cause == "data-loading")
    assert waits.share_of_step == pytest.approx(40 / 110, abs=4e-3)
