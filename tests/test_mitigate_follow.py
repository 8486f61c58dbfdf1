import dataclasses

import pytest

from paceline.detect.detector import Detector
from paceline.detect.job import job_events
from paceline.errors import MitigateError
from paceline.graph import from_trace
from paceline.mitigate.follow import Follower
from paceline.mitigate.job_model import JobModel
from paceline.mitigate.planner import Planner
from paceline.mitigate.strategies import Strategies
from paceline.synth import SynthSpec, synthesize


@pytest.fixture(scope="module")
def measured():
    return from_trace(synthesize(SynthSpec(dp=4, pp=2, tp=2, microbatches=8, steps=1, noise=0.0)))


@pytest.fixture(scope="module")
def strategies(measured):
    return Strategies(JobModel(measured), {"s2": 5.0, "s3": 60.0, "s4": 600.0})


@pytest.fixture
def notes():
    return []


@pytest.fixture
def follower(measured, strategies, notes):
    return Follower(Planner(strategies), measured, note=notes.append)


def event(kind, *ranks, step=60, factor=1.3, of=16):
    return {"kind": kind, "step": step, "since_step": 55, "ranks": list(ranks), "of": of,
            "factor": factor, "lost_s": 2.0}  # fmt: skip


def active(follower):
    return {fault.name for fault in follower.planner.state.active}


def test_a_detected_rank_is_a_slow_worker(follower, notes):
    # Rank 13 = tp 1 of dp 2 of stage 1: rank = (stage * dp + dp rank) * tp + tp rank.
    follower.take(event("onset", 13))
    (fault,) = follower.planner.state.active
    assert (fault.kind, fault.worker) == ("compute", (2, 1))
    model = follower.planner.strategies.model
    slow_s = model.step_s(model.plain, frozenset([fault]))
    assert slow_s / model.healthy_s == pytest.approx(1.3)
    assert (follower.planner.state.since_step, follower.planner.state.lost_s) == (55, 2.0)
    follower.take(event("relief", 13))
    assert active(follower) == set()
    assert notes == []


def test_the_ranks_of_a_worker_are_one_and_a_loss_counts_once(follower):
    follower.take(event("onset", 12, 13, 2))
    assert active(follower) == {"compute 2,1", "compute 1,0"}
    assert follower.planner.state.lost_s == 2.0


def test_ranks_are_where_the_trace_recorded_them(measured, strategies, notes):
    other = dataclasses.replace(measured, rank=measured.rank[::-1])
    follower = Follower(Planner(strategies), other, note=notes.append)
    follower.take(event("onset", 13))
    assert active(follower) == {"compute 1,1"}
    unknown = dataclasses.replace(measured, rank=measured.rank * 0 - 1)
    follower = Follower(Planner(strategies), unknown, note=notes.append)
    follower.take(event("onset", 13))
    assert active(follower) == {"compute 2,1"}


def test_of_a_job_that_is_slow_as_a_whole_nobody_is_known(follower, notes):
    follower.take(event("onset", *range(16)))
    assert active(follower) == set()
    assert "paceline validate" in notes[0]
    follower.take(event("onset", 0, of=1))  # step times of one rank say nothing about others
    assert active(follower) == set()
    assert len(notes) == 2


def test_ranks_that_are_said_bit_by_bit_are_all_in_the_end(follower, notes):
    follower.take(event("onset", *range(10)))
    assert len(active(follower)) == 5
    follower.take(event("onset", *range(10, 16), step=61))
    assert active(follower) == set()
    assert len(notes) == 1


def test_short_steps_do_not_show_that_a_mitigated_machine_is_healthy(follower, notes):
    follower.take(event("onset", 13))
    for step in range(60, 80):
        follower.take({"step": step, "duration_s": 5.0})
    assert follower.planner.state.phase == "mitigated"
    follower.take(event("relief", 13, step=90))
    assert active(follower) == {"compute 2,1"}
    command = "run paceline validate by torchrun on all hosts"
    assert f"{command} (docs/validate.md), and give a relief event if it is healthy" in notes[0]
    follower.take({"step": 91, "event": "relief", "kind": "compute", "worker": [2, 1]})
    assert active(follower) == set()


def test_a_slowness_of_all_ranks_has_a_command_that_names_their_number(strategies, notes):
    job = from_trace(synthesize(SynthSpec(dp=2, pp=2, microbatches=4, steps=1, noise=0.0)))
    follower = Follower(Planner(Strategies(JobModel(job), {})), job, note=notes.append)
    follower.take(event("onset", 0, 1, 2, 3, of=4))
    assert "run paceline validate --world-size 4 --run; then give an event with its" in notes[0]


def test_other_events_are_passed_over(follower, notes):
    for kind in ("silent", "clock-jump"):
        assert follower.take(event(kind, 3)) is None
    assert (active(follower), notes) == (set(), [])


def test_a_step_of_several_ranks_takes_as_long_as_the_slowest(follower):
    follower.take(event("onset", 13))
    for rank, seconds in ((3, 4.0), (0, 5.0), (1, 4.5), (2, None)):
        follower.take({"step": 61, "rank": rank, "duration_s": seconds})
    assert follower.planner.state.lost_s == 2.0  # it is not over
    follower.take({"step": 62, "rank": 0, "duration_s": 4.0})
    one_s = 2.0 + 5.0 - follower.planner.healthy_s
    assert follower.planner.state.lost_s == pytest.approx(one_s)
    follower.take({"step": 61, "rank": 2, "duration_s": 9.0})  # too late
    follower.take({"step": 40, "rank": 0, "duration_s": 4.25})  # back at a checkpoint
    two_s = one_s + 4.0 - follower.planner.healthy_s
    assert follower.planner.state.lost_s == pytest.approx(two_s)
    follower.end()
    three_s = two_s + 4.25 - follower.planner.healthy_s
    assert follower.planner.state.lost_s == pytest.approx(three_s)
    follower.end()
    follower.take({"step": 41, "duration_s": None})
    assert follower.planner.state.lost_s == pytest.approx(three_s)


@pytest.mark.parametrize("merged", [False, True])
def test_what_the_detector_says_is_understood(follower, merged):
    detector = Detector(16)
    for step in range(200):
        times = [1.0 + 0.001 * (step % 3)] * 16
        times[6] *= 1.5 if 100 <= step < 150 else 1.0
        events = detector.update(step, times)
        for said in job_events(events, 16) if merged else events:
            follower.take(said.to_mapping())
        if step == 140:
            assert active(follower) == {"compute 3,0"}
    assert active(follower) == set()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (event("onset", 16), "no rank 16; the job has 16"),
        (event("onset", 1.5), "needs numbers"),
        (event("onset", 1, factor=None), "needs numbers"),
        ({"step": 3, "rank": 1, "duration_s": float("nan")}, "above 0 s"),
        ({"step": 3, "rank": [], "duration_s": 1.0}, "needs numbers"),
        ({"step": 3, "kind": "compute", "worker": [1, 1]}, "or add event"),
    ],
)
def test_wrong_lines_are_refused(follower, line, message):
    with pytest.raises(MitigateError, match=message):
        follower.take(line)
