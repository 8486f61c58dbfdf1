"""The alert of a fail-slow: its onset, its relief, and what goes on between them."""

import pytest

import requires

requires.installed("starlette")

import monitor_alerts
from monitor_alerts import HOUR, World
from paceline.monitor.alerts.engine import Alerts
from paceline.monitor.levels import LevelChanges
from paceline.monitor.store import jobs

world = monitor_alerts.world


def test_a_fail_slow_and_its_relief(world):
    world.happened("onset", 100, ranks=(0, 1, 2, 3))
    assert world.firing() == ["fail-slow"]
    world.set_job(slow_since_step=100)
    world.now += 60
    world.alerts.tick(world.now)
    world.happened("relief", 200, ranks=(0,))
    assert world.firing() == ["fail-slow"]  # three ranks are slow
    world.happened("relief", 201, ranks=(1, 2, 3))
    world.pass_time(59)
    assert world.firing() == ["fail-slow"]  # it may come back
    world.pass_time(2)
    assert world.firing() == ["fail-slow"]  # the job's row says that ranks are slow
    world.set_job(slow_since_step=None)
    world.pass_time(1)
    assert world.firing() == []


def test_less_than_a_minute_lost_wakes_nobody(world):
    world.happened("onset", 100, lost_s=1.0)
    world.set_job(slow_since_step=100, seen_at=world.now, status="running")
    assert world.firing() == []
    for _ in range(20):  # a third of the time is lost at 1.5x
        world.now += 9
        world.set_job(seen_at=world.now)
        world.alerts.tick(world.now)
    assert world.firing() == ["fail-slow"]  # 61 s


def test_a_short_episode_wakes_nobody_and_an_idle_job_loses_nothing(world):
    world.happened("onset", 100, lost_s=1.0)
    world.set_job(slow_since_step=100, seen_at=world.now, status="running")
    world.pass_time(600)  # no step came: silence has a rule of its own
    assert world.firing() == []
    world.set_job(seen_at=world.now, slow_since_step=None)
    world.happened("relief", 110, lost_s=9.0)
    world.pass_time(600)
    assert world.firing() == []


def test_a_fail_slow_that_comes_and_goes_is_one_alert(world):
    for step in range(100, 200, 20):
        world.happened("onset", step)
        world.set_job(slow_since_step=step)
        world.pass_time(10)
        world.happened("relief", step + 10)
        world.set_job(slow_since_step=None)
        world.pass_time(10)
    assert len(world.rows()) == 1
    world.pass_time(60)
    assert world.firing() == []
    assert [data["status"] for _, _, data in world.told] == ["firing", "resolved"]


def test_a_job_that_ends_is_not_held(world):
    world.happened("onset", 100)
    world.happened("relief", 110)
    world.set_job(status="ended")
    world.pass_time(1)
    assert world.firing() == []


def test_how_long_a_relief_has_to_last_is_a_setting(tmp_path):
    world = World(tmp_path, "rules: {fail-slow: {hold_s: 0}}")
    world.happened("onset", 100)
    world.happened("relief", 110)
    assert world.firing() == []


def test_the_relief_of_ranks_that_join_later_is_seen_by_the_clock(world):
    world.happened("onset", 100, ranks=(0, 1))
    world.set_job(slow_since_step=100)
    world.happened("relief", 200, ranks=(0,))
    world.alerts.tick(world.now)
    assert world.firing() == ["fail-slow"]
    world.set_job(slow_since_step=None)
    world.pass_time(61)
    assert world.firing() == []


def test_a_job_that_begins_anew_is_not_slow_for_ever(world):
    world.happened("onset", 100)
    world.now += 10
    world.alerts.tick(world.now)
    assert world.firing() == ["fail-slow"]  # the job's row may not have followed yet
    world.now += 60
    world.alerts.tick(world.now)
    assert world.firing() == []


def going_on(job, events, *, settled):
    return LevelChanges.of([{"at": 1.0, **event} for event in events]).going_on(
        job, settled=settled
    )


def test_what_goes_on():
    job = {"status": "running", "slow_since_step": 5}
    about = {"at": 1.0, "ranks": [1, 2], "factor": 1.5, "text": "slow", "since_step": 5}
    onset, relief = ({"kind": kind, **about} for kind in ("onset", "relief"))
    other = {"kind": "onset", "ranks": [5], "factor": 1.2, "text": "5 is slow", "since_step": 9}
    half = {"kind": "relief", "ranks": [1]}
    assert going_on(job, [], settled=True) is None
    assert going_on(job, [onset], settled=True) == onset
    assert going_on(job, [relief, onset], settled=False) is None
    assert going_on(job, [half, onset, relief], settled=True) == {**onset, "ranks": [2]}
    assert going_on(job, [relief, onset], settled=True) == onset  # the row says so
    both = going_on(job, [other, onset], settled=True)
    assert (both["ranks"], both["factor"], both["text"]) == ([1, 2, 5], 1.5, "slow; 5 is slow")
    healed = {"kind": "relief", "ranks": [5]}
    assert going_on(job, [healed, other, onset], settled=True) == onset
    assert going_on({**job, "slow_since_step": None}, [onset], settled=False) == onset
    assert going_on({**job, "status": "ended"}, [onset], settled=False) is None


def test_a_fail_slow_goes_on_while_another_rank_heals(world):
    world.happened("onset", 150, ranks=(3,))
    world.set_job(slow_since_step=150)
    world.pass_time(100)
    world.happened("onset", 250, ranks=(5,))
    assert world.rows()[0]["place"] == "ranks 3, 5"
    world.pass_time(100)
    world.happened("relief", 320, ranks=(5,))
    world.pass_time(100)
    (row,) = world.rows()
    assert (row["status"], row["place"]) == ("firing", "rank 3")


def test_an_old_onset_without_relief_does_not_page_again(world):
    world.happened("onset", 100)
    world.pass_time(2 * HOUR)
    assert world.firing() == []  # the row never said so
    world.session(1.0)
    Alerts(world)._judge_recent(world.now)
    assert len(world.rows()) == 1


@pytest.mark.parametrize(
    ("ranks", "gpus", "advice"),
    [
        ((3,), 4, "take its host out of service, or run {} --world-size 4 --run to confirm it"),
        ((2, 3), 4, "a trace says which of them is slow, or run {} --world-size 4 --run"),
        ((0, 1), 2, "a trace says which rank is slow, or run {} --world-size 2 --run"),
        ((3,), None, "take its host out of service, or run {} --world-size N --run, with N ranks"),
    ],
)
def test_the_advice_is_a_command_for_the_ranks_of_the_job(world, ranks, gpus, advice):
    world.set_job(gpus=gpus)
    world.happened("onset", 100, ranks=ranks)
    (row,) = world.rows()
    assert advice.format("paceline validate") in row["gain"]


def test_a_fail_slow_has_a_gain_and_the_hosts_of_its_ranks(world):
    world.session(1.0, meta={"hosts": {"3": ["node-0", "3"], "4": ["node-1", "0"]}})
    world.happened("onset", 100, ranks=(3, 4))
    (row,) = world.rows()
    assert row["place"] == "ranks 3-4; host node-0, node-1"
    which, of_all = "a trace says which of them is slow", "by torchrun on all hosts"
    assert row["gain"].startswith(f"33.3% of each step; {which}, or run paceline validate {of_all}")


def test_the_end_of_a_job_ends_its_fail_slow(world):
    world.set_job(slow_since_step=100)
    jobs.end(world.engine, world.job.id, world.now)
    assert jobs.by_id(world.engine, world.job.id)["slow_since_step"] is None


def test_a_job_that_has_ended_is_not_slow_once_its_steps_are_seen_again(world):
    jobs.end(world.engine, world.job.id, world.now)
    row = {"job_id": world.job.id, "seen_at": world.now - 10, "last_step": 90, "step_s": 1.5}
    jobs.update_live(world.engine, [{**row, "healthy_s": 1.0, "slow_since_step": 80}])
    found = jobs.by_id(world.engine, world.job.id)
    assert (found["status"], found["slow_since_step"]) == ("ended", None)
    later = {**row, "seen_at": world.now + 10, "healthy_s": 1.0, "slow_since_step": 80}
    jobs.update_live(world.engine, [later])
    found = jobs.by_id(world.engine, world.job.id)
    assert (found["status"], found["slow_since_step"]) == ("running", 80)


def test_a_hang_relieves_no_rank():
    job = {"status": "running", "slow_since_step": 5}
    onset = {"kind": "onset", "ranks": [1, 2], "factor": 1.5, "text": "slow", "at": 1.0}
    hang = {"kind": "hang", "ranks": [1, 2], "factor": None, "text": "hangs", "at": 2.0}
    assert going_on(job, [hang, onset], settled=True) == onset


def test_all_ranks_are_named_as_such(world):
    world.happened("onset", 100, ranks=range(64))
    (row,) = world.rows()
    assert row["place"] == "all 64 ranks"


def test_a_place_names_runs_of_ranks(world):
    world.happened("onset", 100, ranks=(1, 4, 5, 6, 7))
    (row,) = world.rows()
    assert row["place"] == "ranks 1, 4-7"


def test_a_trace_after_the_onset_names_the_cause(world):
    world.session(1.4, cause="data-loading")
    world.now += 1
    world.happened("onset", 100, ranks=range(64))
    world.set_job(slow_since_step=100)
    assert world.rows()[0]["cause"] == "fail-slow"  # that session was before
    world.session(1.1)  # ... and this one explains too little of 1.5
    assert world.rows()[0]["cause"] == "fail-slow"
    number = world.session(1.3)
    row = next(row for row in world.rows() if row["rule"] == "fail-slow")
    assert (row["cause"], row["session_id"], row["status"]) == ("worker", number, "firing")
    world.session(1.0)  # a passing lull of S does not take it back
    row = next(row for row in world.rows() if row["rule"] == "fail-slow")
    assert row["cause"] == "worker"
