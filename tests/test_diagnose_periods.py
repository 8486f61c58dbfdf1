"""Faults that begin and end within a trace, and slowness in one part of a pass.

The sizes are those of a newcomer's own jobs: a sleep of one rank in the middle third of the steps,
DDP and FSDP2 over gloo.
"""

import random

import numpy as np
import pytest

from paceline.diagnose import diagnose
from paceline.diagnose.step_runs import clusters, runs_of, when
from paceline.graph import from_trace
from paceline.graph.computes import computes_of
from paceline.jumps import period_of, slower_steps, spans
from paceline.remedies import REMEDIES, Case, advise
from paceline.remedies.healthy import healthy_workers
from paceline.remedies.outcome import copy_of
from paceline.remedies.replace import replace_worker
from paceline.results.document import JobReport
from paceline.results.headline import headline
from paceline.trace import OpKind
from paceline.whatif import analyze
from recordings import RankStep, data_parallel_job
from unit_jobs import measured_of

N = 90


def analysed(measured):
    result = analyze(measured)
    return Case(measured, result, diagnose(measured, result))


def saved_s(case):
    return float(case.result.simulated_s.mean()) - replace_worker(case).step_time_s


def ddp(folder, slow_ms, ranks=2, first=30, end=60, noisier=1.0, seed=0):
    """Rank 1's forward of 60 ms takes ``slow_ms`` more from a first step to an end.

    All times are ``noisier`` times as long from the end on.
    """
    rng = np.random.default_rng(seed)
    noise = rng.lognormal(0, 0.02, (N, ranks, 2))

    def step_of(number, rank):
        forward, backward = noise[number, rank] * (60, 130) * (noisier if number >= end else 1)
        late = slow_ms * (rank == 1 and first <= number < end)
        return RankStep(forward=forward + late, backward=backward)

    return analysed(from_trace(data_parallel_job(folder, step_of, steps=N, ranks=ranks)))


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_worker_that_is_slow_in_the_middle_third(tmp_path, ranks):
    case = ddp(tmp_path, 60, ranks)
    found = {f.cause: f for f in case.diagnosis.findings}
    worker = found["worker"]
    assert worker.where["workers"] == [[1, 0]]
    assert worker.text.endswith("in steps 30 to 59")
    assert worker.evidence["steps"] == list(range(30, 60))
    assert worker.evidence["healthy_since"] == 60
    assert worker.share_of_step == pytest.approx(20 / 210, abs=0.015)
    drift = found["drift"]
    assert drift.text.startswith("steps 30 to 59 are ")
    assert (drift.id, drift.part_of) == ("period", "worker")
    assert drift.evidence["steps"] == list(range(30, 60))
    assert saved_s(case) == pytest.approx(0.020, rel=0.15)
    assert replace_worker(case).action.endswith(" (healthy again since step 60)")
    report = JobReport.of(case.result, advise(case, REMEDIES))
    assert "worker dp 1, stage 0 was slow" in headline(report)
    assert headline(report).endswith("It is healthy again since step 60.")


def test_a_fault_that_ends_as_the_machine_becomes_noisier(tmp_path):
    """The end of the fault hides in a change of all workers, which is a finding of its own."""
    found = {f.cause: f for f in ddp(tmp_path, 60, noisier=1.12).diagnosis.findings}
    assert found["worker"].text.endswith("in steps 30 to 59")
    assert found["drift"].text.startswith("steps become 1")
    assert found["drift"].text.endswith("slower at step 60")
    assert not found["drift"].part_of
    assert not found["drift"].where


def test_a_healthy_job_has_no_period(tmp_path):
    assert not {"worker", "drift"} & {f.cause for f in ddp(tmp_path, 0).diagnosis.findings}


BURSTS = [
    ("20 to 29, 50 to 59, 80 to 89", [*range(20, 30), *range(50, 60), *range(80, 90)], None),
    ("20 to 29, 60 to 79", [*range(20, 30), *range(60, 80)], 80),
]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("told", "slow", "healthy_since"), BURSTS)
def test_a_worker_that_is_slow_several_times(tmp_path, told, slow, healthy_since, ranks):
    """These were called garbage collections, or a fault of the last burst alone."""
    rng = np.random.default_rng(3)
    noise = rng.lognormal(0, 0.02, (N, ranks, 2))

    def step_of(number, rank):
        forward, backward = noise[number, rank] * (60, 130)
        return RankStep(forward=forward + 60 * (rank == 1 and number in slow), backward=backward)

    case = analysed(from_trace(data_parallel_job(tmp_path, step_of, steps=N, ranks=ranks)))
    found = {f.cause: f for f in case.diagnosis.findings}
    assert "gc" not in found
    assert found["worker"].where["workers"] == [[1, 0]]
    assert found["worker"].text.endswith(f"in 30 of 90 steps ({told})")
    assert found["worker"].evidence["steps"] == slow
    assert found["worker"].evidence.get("healthy_since") == healthy_since
    assert found["worker"].share_of_step == pytest.approx(0.090, abs=0.008)
    assert saved_s(case) == pytest.approx(0.020, rel=0.1)


@pytest.mark.parametrize("hiccup_ms", [0, 22, 90])
def test_one_pause_of_the_other_rank_makes_no_garbage_collection(tmp_path, hiccup_ms):
    """A newcomer's job: "21 forwards on 2 workers pause: garbage collection; very likely (96%)"."""
    rng = np.random.default_rng(1)
    noise = rng.lognormal(0, 0.01, (N, 2, 2))

    def step_of(number, rank):
        forward, backward = noise[number, rank] * (41, 60)
        late = 120 * (rank == 1 and 30 <= number < 60) + hiccup_ms * (rank == 0 and number == 15)
        return RankStep(forward=forward + late, backward=backward)

    case = analysed(from_trace(data_parallel_job(tmp_path, step_of, steps=N, ranks=2)))
    found = {f.cause: f for f in case.diagnosis.findings}
    assert "gc" not in found
    step_s = float(case.result.simulated_s.mean())
    assert found["worker"].share_of_step == pytest.approx(0.040 / step_s, rel=0.05)
    assert found["drift"].part_of == "worker"


def test_pauses_of_single_steps_are_no_runs(tmp_path):
    """Every fifth forward of rank 1 pauses, as in a garbage collection."""

    def step_of(number, rank):
        return RankStep(forward=60.0 + 60 * (rank == 1 and number % 5 == 0), backward=130.0)

    case = analysed(from_trace(data_parallel_job(tmp_path, step_of, steps=N, ranks=4)))
    found = [f for f in case.diagnosis.findings if f.cause == "worker"]
    assert not any("to" in f.text.split("(")[-1] for f in found)


def test_runs_beyond_chance():
    rng = np.random.default_rng(0)
    assert clusters(np.repeat([False, True, False, True], [20, 10, 20, 10]))
    assert not clusters(np.arange(60) % 5 == 0)
    assert not clusters(np.ones(9, dtype=bool))
    by_chance = sum(clusters(rng.random(60) < share) for share in (0.2, 0.5, 0.8) * 1000)
    assert by_chance <= 12
    assert runs_of(np.array([True, True, False, True])) == [(0, 2), (3, 4)]
    assert runs_of(np.zeros(3, dtype=bool)) == []


def test_the_steps_around_a_faster_period(tmp_path):
    """A rank is slow but in the middle, as if another job left its machine for a while."""

    def step_of(number, rank):
        return RankStep(forward=60.0 + 60 * (rank == 1 and not 30 <= number < 60), backward=130.0)

    case = analysed(from_trace(data_parallel_job(tmp_path, step_of, steps=N, ranks=4)))
    (worker,) = (f for f in case.diagnosis.findings if f.cause == "worker")
    assert worker.evidence["steps"] in ("all", [*range(30), *range(60, N)])


def slow_part(first, end, steps=60, n_dp=2):
    """Rank 1 sleeps 60 ms before its first unit's forward, as before FSDP's root module."""

    def seconds(step, dp, kind, nth):
        jitter = 1 + 0.01 * random.Random(f"{step} {dp} {kind} {nth}").random()
        if kind == "forward-compute":
            late = 0.060 * (dp == 1 and nth == 0 and first <= step < end)
            return (0.0003 if nth == 0 else 0.015) * jitter + late
        return (0.030 if kind == "backward-compute" else 0.001) * jitter

    return analysed(measured_of(5, seconds, n_dp, steps))


@pytest.mark.parametrize("n_dp", [2, 4])
@pytest.mark.parametrize(("first", "end"), [(20, 40), (0, 60)])
def test_slowness_in_one_part_of_a_pass_is_repaired_there(first, end, n_dp):
    """All units meet in their gathers: the step is 60 ms longer, and a repair gains all of it."""
    case = slow_part(first, end, n_dp=n_dp)
    lost_s = 0.060 * (end - first) / 60
    (worker,) = (f for f in case.diagnosis.findings if f.cause == "worker")
    assert worker.where["workers"] == [[1, 0]]
    step_s = float(case.result.simulated_s.mean())
    assert worker.share_of_step * step_s == pytest.approx(lost_s, rel=0.1)
    assert saved_s(case) == pytest.approx(lost_s, rel=0.1)


def test_a_repair_leaves_the_proportions_of_the_passes_of_others():
    case = slow_part(20, 40)
    durations = case.measured.durations
    slow = np.arange(20, 40)
    repaired = copy_of(durations.of_steps(slow))
    (healthy,) = healthy_workers(repaired, computes_of(durations.graph), [(1, 0)])
    healthy.apply(repaired)
    forward = np.flatnonzero(durations.graph.kind == OpKind.FORWARD_COMPUTE)
    before, after = durations.array[forward][:, slow], repaired.array[forward]
    np.testing.assert_array_equal(after[:, :, 0], before[:, :, 0])
    assert (before[:, :, 1].max(axis=0) > 0.060).all()
    np.testing.assert_allclose(after[:, :, 1], before[:, :, 0], rtol=0.03)


def test_periods_are_rare_in_noise():
    """At the threshold of 0.001, in 3,000 series each; tails with and without a variance."""
    rng = np.random.default_rng(1)
    for n in (12, 30, 90):
        for draw in (rng.normal, lambda *size: rng.standard_t(2, size[-1])):
            found = sum(period_of(1 + 0.05 * draw(0, 1, n)) is not None for _ in range(3000))
            assert found <= 6


@pytest.mark.parametrize("lengths", [(20, 30, 15), (30, 30, 30), (10, 10, 10), (60, 10, 20)])
def test_the_ends_of_a_period(lengths):
    rng = np.random.default_rng(0)
    for factor in (1.3, 0.7):
        times = np.repeat([1, factor, 1.0], lengths) * rng.normal(1, 0.02, sum(lengths))
        first, end = lengths[0], lengths[0] + lengths[1]
        period = period_of(times)
        assert (period.first, period.end) == (first, end)
        assert period.inside_s == pytest.approx(factor, abs=0.02)
        assert period.outside_s == pytest.approx(1, abs=0.02)
        assert spans(times, 10) == [(0, first), (first, end), (end, len(times))]
        inside = np.repeat([False, True, False], lengths)
        np.testing.assert_array_equal(slower_steps(times), inside == (factor > 1))


def test_one_jump_is_no_period():
    rng = np.random.default_rng(0)
    times = np.repeat([1, 1.3], 30) * rng.normal(1, 0.02, 60)
    assert period_of(times) is None
    assert slower_steps(times).tolist() == [False] * 30 + [True] * 30
    assert period_of(np.ones(20)) is None
    assert slower_steps(np.ones(20)) is None


def test_the_steps_of_a_mask_in_words():
    steps = np.arange(1000, 1010) * 2
    assert when(np.arange(10) >= 4, steps) == "from step 2,008 on"
    assert when(np.arange(10) < 4, steps) == "before step 2,008"
    inside = (np.arange(10) >= 4) & (np.arange(10) < 7)
    assert when(inside, steps) == "in steps 2,008 to 2,012"
    assert when(~inside, steps) == "before step 2,008 and from step 2,014 on"
    odd = np.arange(10) % 3 == 1
    assert when(odd, steps) == "in 3 of 10 steps (2,002, 2,008, 2,014)"
    assert when(~odd, steps).endswith(" (2,000, 2,004 to 2,006, 2,010 to 2,012, ...)")


def test_a_slow_worker_in_a_period_of_a_longer_noisy_trace(tmp_path):
    """One in ten steps pauses on a random rank; rank 1 is 25% slow in 40 of 120 steps."""
    rng = np.random.default_rng(4)
    pause = 30 * (rng.random((120, 4)) < 0.03)
    noise = rng.lognormal(0, 0.03, (120, 4))

    def step_of(number, rank):
        factor = 1.25 if rank == 1 and 50 <= number < 90 else 1.0
        return RankStep(
            forward=60 * factor * noise[number, rank] + pause[number, rank],
            backward=130 * factor * noise[number, rank],
        )

    case = analysed(from_trace(data_parallel_job(tmp_path, step_of, steps=120, ranks=4)))
    (worker,) = (f for f in case.diagnosis.findings if f.cause == "worker")
    assert worker.where["workers"] == [[1, 0]]
    assert set(range(50, 90)) ^ set(worker.evidence["steps"]) <= {48, 49, 90, 91}
