"""One worker that waits in few steps: before its optimizer, before its first forward.

The jobs are those of a newcomer: four gloo ranks, one sleeps 300 ms in every twentieth step.
"""

import numpy as np
import pytest

from paceline.diagnose import diagnose
from paceline.diagnose.long_waits import long_waits, not_by_chance
from paceline.graph import from_trace
from paceline.whatif import analyze
from recordings import RankStep, data_parallel_job

STEPS = 160
PAUSED = list(range(19, STEPS, 20))


def findings(folder, pause, every=1, ranks=4, of=lambda rank, _: rank == 1):
    """Findings of a job with short waits of all ranks; ``pause`` names the place of the long one.

    ``of`` (rank, number of the pause) chooses the ranks that pause.
    """
    rng = np.random.default_rng(0)
    short = rng.exponential(1.5, (STEPS, ranks))
    noise = rng.lognormal(0, 0.02, (STEPS, ranks, 2))

    def step_of(number, rank):
        forward, backward = noise[number, rank] * (20, 50)
        waits = {"host": short[number, rank], "late": 0.1}
        if number in PAUSED and of(rank, PAUSED.index(number)):
            waits[pause] += 300.0
        return RankStep(forward=forward, backward=backward, **waits)

    job = data_parallel_job(folder, step_of, steps=STEPS, ranks=ranks, every=every)
    measured = from_trace(job)
    result = analyze(measured)
    found = {f.id: f for f in diagnose(measured, result).findings}
    return found, float(result.lasted_s.mean())


@pytest.mark.parametrize("pause", ["late", "host"])
def test_the_worker_is_named_with_its_steps(tmp_path, pause):
    found, step_s = findings(tmp_path, pause)
    delay = found["launch-delay"]
    assert delay.where["workers"] == [[1, 0]]
    assert delay.evidence["steps"] == PAUSED
    assert f"in {len(PAUSED)} of {STEPS} steps" in delay.text
    assert any(f"{ms} ms" in delay.text for ms in (299, 300, 301, 302))
    assert delay.confidence > 0.9
    true = 0.3 * len(PAUSED) / STEPS / step_s
    assert delay.share_of_step == pytest.approx(true, abs=0.025)
    odd = found["odd-steps"]
    assert odd.part_of == "launch-delay"
    # One pause is one loss, though the others wait for it in the step behind.
    assert odd.share_of_step == pytest.approx(true, abs=0.02)
    assert set(PAUSED) <= set(odd.evidence["steps"])


@pytest.mark.parametrize("pause", ["late", "host"])
def test_pauses_of_changing_workers_name_nobody(tmp_path, pause):
    found, _ = findings(tmp_path, pause, of=lambda rank, nth: rank == nth % 4)
    assert "workers" not in found["launch-delay"].where


def test_a_pause_between_two_profiled_steps_counts_once(tmp_path):
    """Every second step is profiled, and none of the paused ones: the next one shows the pause."""
    found, step_s = findings(tmp_path, "late", every=2)
    odd = found["odd-steps"]
    true = 0.3 * len(PAUSED) / STEPS / step_s
    assert odd.share_of_step == pytest.approx(true, rel=0.15)
    assert odd.interval[0] < true < odd.interval[1]


def test_waits_that_are_alike_are_long_in_all_steps():
    assert long_waits(np.full(20, 0.1)).all()
    few = np.where(np.arange(60) % 10 == 9, 0.3, 0.001)
    assert long_waits(few).tolist() == (few > 0.1).tolist()
    assert long_waits(np.array([0.3, *[0.001] * 40])).all()  # one pause is no habit
    assert long_waits(np.zeros(5)).all()


def test_most_of_few_long_waits_is_no_chance_from_some_number_on():
    waits = np.zeros((8, 4, 1))
    waits[:, 1] = 1.0
    one = np.array([[1, 0]])
    assert not_by_chance(one, waits).tolist() == [[1, 0]]
    assert not_by_chance(one, waits[:3]).tolist() == []
    waits[:4, 2] = 2.0
    assert not_by_chance(one, waits).tolist() == []
