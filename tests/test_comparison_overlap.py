"""Steps that overlap: a comparison and the top of a report take the time from step to step."""

from __future__ import annotations

from dataclasses import replace

import pytest

import paceline
from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case, advise
from paceline.remedies.replace import replace_worker
from paceline.report.comparison import comparison_lines
from paceline.report.comparison.rows import tables
from paceline.report.page.fall import key_numbers
from paceline.report.terminal import screen
from paceline.results.document import JobReport
from paceline.results.headline import details
from recordings import RankStep, data_parallel_job


def job(folder, pause_ms):
    """A job of three replicas; rank 1 pauses before its optimizer while the others go on.

    A rank computes for 60 ms, all meet behind 4 ms more, the optimizer takes 6 ms.
    """
    data_parallel_job(folder, lambda _, rank: RankStep(late=pause_ms * (rank == 1)), ranks=3)
    return paceline.load(folder, steps=range(1, 24))


def test_the_time_from_step_to_step_is_compared(tmp_path):
    """The job takes 370 ms from step to step, and a traced step nearly 300 ms more."""
    before, after = job(tmp_path / "before", 300.0), job(tmp_path / "after", 0.0)
    comparison = paceline.compare(before, after)
    assert comparison.before.traced_s == pytest.approx(0.67, abs=0.02)
    assert comparison.time.before_s == pytest.approx(0.37, abs=0.005)
    assert comparison.median.before_s == pytest.approx(0.37, abs=0.005)
    assert comparison.time.after_s == pytest.approx(0.07, abs=0.001)
    assert comparison.time.change == pytest.approx(-300 / 370, abs=0.01)
    assert "steps-overlap" not in {row.name for row in comparison.causes}
    assert comparison.remainder_s(comparison.causes) == pytest.approx(0.0, abs=1e-6)
    delays = {row.name: row.change.seconds for row in comparison.kinds if row.change}
    assert delays["launch-delay"] == pytest.approx(-0.3, abs=0.005)
    assert delays["launch-delay-start"] == pytest.approx(0.0, abs=0.005)
    text = " ".join(" ".join(line.plain for line in comparison_lines(comparison, 200)).split())
    assert "times are from step to step" in text
    missed = replace(comparison, time=replace(comparison.time, after_s=0.08))
    names = [row.name for table in tables(missed, 5) for row in table.sums]
    assert "remainder: overlap of steps, error of the replay" in names


@pytest.mark.parametrize("pause_ms", [300.0, 0.0])
def test_much_overlap_is_told_at_the_top(tmp_path, pause_ms):
    measured = from_trace(job(tmp_path, pause_ms))
    result = paceline.analyze(measured)
    case = Case(measured, result, diagnose(measured, result))
    report = JobReport.of(result, advise(case, REMEDIES))
    head = " ".join(line.plain for line in screen(report, 200, colour=False)[:8])
    assert ("Doubtful: 81% of the step passes between operations" in head) == (pause_ms > 0)
    told = "from step to step 370 ms (" in head
    assert told is (pause_ms > 0) is ("overlap with the step before" in head)
    tile = key_numbers(report, None).partition("Mean step, actual")[2][:100]
    assert ("<dd>370 ms</dd><dd>from step to step; " in tile) == told
    assert ("Steps overlap" in details(report)[0] if details(report) else False) == told


def test_a_repair_tells_the_time_from_step_to_step(tmp_path):
    """Rank 1 computes 30 ms longer from step 12 on; its pause before the optimizer overlaps."""

    def case(name, slow_ms):
        def step_of(number, rank):
            slower = slow_ms if rank == 1 and number >= 12 else 0.0
            return RankStep(forward=20 + slower, late=40.0 * (rank == 1))

        measured = from_trace(data_parallel_job(tmp_path / name, step_of, ranks=3))
        result = paceline.analyze(measured)
        return Case(measured, result, diagnose(measured, result))

    slow, healthy = case("slow", 30.0), case("healthy", 0.0)
    assert slow.result.overlap_s.mean() > 0.005
    remedy = replace_worker(slow)
    own_s = float((healthy.result.traced_s - healthy.result.overlap_s).mean())
    assert remedy.step_time_s == pytest.approx(own_s, rel=0.01)
    whole_s = float((slow.result.traced_s - slow.result.overlap_s).mean())
    assert remedy.gain == pytest.approx(1 - own_s / whole_s, abs=0.01)
