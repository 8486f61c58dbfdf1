"""The course of an alert from firing to resolved: its cause, its steps, its levels and its end.

The events and sessions are those of a newcomer's job of four ranks. Worker dp 2 was slow in steps
200 to 499. A disturbance of one rank began before, and two disturbances of all ranks came later.
"""

import pytest

import requires

requires.installed("starlette")

import monitor_alerts
from monitor_alerts import HOUR, World
from monitor_web import monitor
from paceline.monitor.store import jobs
from paceline.monitor.store.tables import alerts, events

world = monitor_alerts.world

TRIAL = "rules: {fail-slow: {lost_s: 2, gpu_hours: 1}, slow-job: {at_least: 1.1, sessions: 2}}"
ALL = (0, 1, 2, 3)
#: Sessions that name the worker: S is a range, as the worker is one of few.
NAMED = {"place": "worker dp 2, stage 0; host vm", "cause_gain": 0.33, "slowdown_healthy": 1.72}
#: A session of healthy steps.
HEALTHY = {"headline": "This job wastes 14% of its GPUs.", "cause": "unexplained"}


@pytest.fixture
def job(tmp_path):
    world = World(tmp_path, TRIAL)
    world.set_job(gpus=4, healthy_s=0.09)
    return world


def happened(world, kind, step, ranks, factor, lost_s, since=None, **more):
    """An event of live step times; the job's row follows it."""
    world.set_job(last_step=step, seen_at=world.now, **more)
    number = world.row(
        events,
        job_id=world.job.id,
        at=world.now,
        kind=kind,
        step=step,
        since_step=step if since is None else since,
        factor=factor,
        lost_s=lost_s,
        ranks=list(ranks),
        text=f"{kind} at step {step}",
    )
    world.set_job(status="running")
    world.alerts.event(world.job.id, number)


def session(world, slowdown, last_step, **more):
    """A session, and a second later the next judgement."""
    world.now -= HOUR  # it takes no time
    number = world.session(slowdown, last_step=last_step, **more)
    world.pass_time(1)
    return number


def fault(world):
    """The fault up to its relief, 37 s later."""
    happened(world, "onset", 186, (1, 3), 1.14, 0.17, since=173)
    happened(world, "relief", 197, (1,), 1.11, 0.18, since=192)
    happened(world, "onset", 202, (0, 1, 2), 1.44, 0.31, since=200, slow_since_step=187)
    happened(world, "worsening", 204, (3,), 1.49, 0.80, since=200)
    world.pass_time(10)
    world.set_job(last_step=260, slow_factor=1.40)
    session(world, 1.52, 296, **NAMED)
    world.pass_time(27)
    number = session(world, 1.48, 480, **NAMED)
    world.set_job(last_step=500, slow_factor=1.38)
    world.pass_time(40)
    return number


def relief(world):
    happened(world, "relief", 507, ALL, 1.36, 10.5, since=500, slow_since_step=None)


def of_rule(world, rule="fail-slow"):
    (row,) = [row for row in world.rows() if row["rule"] == rule]
    return row


def told(row):
    return row["cause"], row["place"], row["session_id"]


def test_an_alert_keeps_the_cause_of_its_costliest_fail_slow(job):
    """A small slowness of all ranks came within the minute after the relief."""
    number = fault(job)
    before = told(of_rule(job))
    assert before == ("worker", None, number)  # the result, with the place, is not stored here
    relief(job)
    job.pass_time(20)
    happened(job, "onset", 765, ALL, 1.18, 0.26, since=751, slow_since_step=751)
    job.pass_time(20)
    row = of_rule(job)
    assert told(row) == before
    assert row["headline"] == (
        "Fail-slow: steps take 1.38x as long since step 751; 26.4 GPU-hours are at stake in 24 "
        "hours at this level. Earlier: steps 173 to 499 were slow (10.5 s lost), worker dp 2, "
        "stage 0. The cause told is of these steps, not of the present ones."
    )
    happened(job, "relief", 1061, ALL, 1.15, 3.69, since=1056, slow_since_step=None)
    job.pass_time(61)
    row = of_rule(job)
    assert (row["status"], told(row)) == ("resolved", before)
    assert row["headline"] == (
        "Fail-slow: steps took 1.14x to 1.49x as long since step 173, with 1 relief between; "
        "14.2 s lost in all. Steps are healthy again since step 1,056. "
        "Steps 173 to 499 lost 10.5 s of it: worker dp 2, stage 0."
    )


def test_several_earlier_fail_slows_are_counted(job):
    fault(job)
    relief(job)
    for first in (600, 700):
        job.pass_time(20)
        happened(job, "onset", first, ALL, 1.18, 0.26, slow_since_step=first)
        if first == 600:
            happened(job, "relief", 650, ALL, 1.15, 0.7, slow_since_step=None)
    headline = of_rule(job)["headline"]
    assert (
        " Earlier: 2 fail-slows since step 173; steps 173 to 499 were slow (10.5 s lost), worker "
        "dp 2, stage 0. "
    ) in headline


def test_a_costlier_fail_slow_takes_the_cause_over(job):
    fault(job)
    relief(job)
    job.pass_time(20)
    happened(job, "onset", 765, ALL, 1.9, 30.0, since=751, slow_since_step=751, slow_factor=1.9)
    other = session(job, 2.2, 800, headline="Link 1 is slow.", **{**NAMED, "place": "link"})
    row = of_rule(job)
    assert row["session_id"] == other
    assert row["headline"].endswith(" Earlier: steps 173 to 499 were slow (10.5 s lost).")
    assert "since step 751; " in row["headline"]


def test_the_beginning_of_an_alert_has_one_value(job):
    """The median of the slow ranks' steps, 187, is told nowhere."""
    happened(job, "onset", 186, (1, 3), 1.14, 0.17, since=173)
    happened(job, "worsening", 204, ALL, 1.44, 3.0, since=200, slow_since_step=187)
    assert "as long since step 200; " in of_rule(job)["headline"]
    assert of_rule(job)["headline"].endswith(" They have been slow since step 173.")
    job.set_job(slow_since_step=None)
    job.pass_time(31)
    assert "187" not in of_rule(job)["headline"]
    relief(job)
    assert "since step 173, mostly since step 200; " in of_rule(job)["headline"]


def test_a_page_and_the_api_have_the_first_step_of_the_alert(tmp_path):
    with monitor(tmp_path, clock=lambda: 1000.0) as site:
        engine = site.service.engine
        number = jobs.register(engine, "default", "job", 1000.0, gpus=4).id
        event = {"job_id": number, "kind": "onset", "factor": 1.4, "lost_s": 9.0, "text": "slow"}
        with engine.begin() as connection:
            row = {"status": "running", "slow_since_step": 187, "last_step": 300}
            connection.execute(jobs.jobs.update().values(**row, seen_at=990.0, slow_factor=1.4))
            for step, since in ((186, 173), (202, 200)):
                values = {"step": step, "since_step": since, "at": 500.0 + step, "ranks": [step]}
                connection.execute(events.insert().values(**event, **values))
        token, headers = site.token("read"), {"Accept": "text/html"}
        answer = site.ask("GET", "/api/v1/jobs/job", token=token).json
        assert answer["slow_since_step"] == 173
        page = site.ask("GET", "/jobs/job", token=token, headers=headers).text
        assert "slow since step 173." in page
        assert "<b>Slow since step 173:</b>" in page
        listed = site.ask("GET", "/", token=token, headers=headers).text
        assert "slow since step 173<" in listed


def test_a_firing_alert_says_that_steps_are_healthy_again(job):
    """In the minute after the relief nothing is at stake any more."""
    fault(job)
    assert "GPU-hours are at stake" in of_rule(job)["headline"]
    relief(job)
    row = of_rule(job)
    assert row["status"] == "firing"
    assert row["headline"] == (
        "Fail-slow: steps took 1.14x to 1.49x as long since step 173, mostly since step 200; "
        "10.5 s lost in all. Steps are healthy again since step 500."
    )
    job.pass_time(61)
    assert of_rule(job)["status"] == "resolved"
    assert of_rule(job)["headline"] == row["headline"]


def test_an_alert_does_not_call_the_steps_after_a_restart_healthy(job):
    """The relief of a restart has no factor: no step after it was seen yet."""
    happened(job, "onset", 202, ALL, 1.44, 3.0, since=200, slow_since_step=200)
    job.pass_time(40)
    happened(job, "relief", 301, ALL, None, 5.0, slow_since_step=None)
    assert of_rule(job)["headline"] == (
        "Fail-slow: steps took 1.44x as long since step 200; 5 s lost in all. "
        "A restart, or the acceptance of its level, ended it at step 301."
    )


def test_a_session_that_is_analysed_after_the_relief_names_the_cause(job):
    """It came late: its last step is of the fault."""
    happened(job, "onset", 202, ALL, 1.44, 3.0, since=200, slow_since_step=200)
    job.pass_time(40)
    relief(job)
    late = session(job, 1.5, 499, **NAMED)
    assert told(of_rule(job))[::2] == ("worker", late)
    session(job, 1.5, 530, **{**NAMED, "headline": "of later steps"})
    assert of_rule(job)["session_id"] == late


def test_the_levels_of_an_ended_alert_hold_those_that_it_said(job):
    """The events say 1.21x and 1.10x, but the level by all of its steps was 1.09x."""
    happened(job, "onset", 411, ALL, 1.21, 3.0, since=394, slow_since_step=394, slow_factor=1.23)
    job.pass_time(40)
    assert "steps take 1.23x as long" in of_rule(job)["headline"]
    happened(job, "partial-relief", 591, ALL, 1.10, 5.2, since=568, slow_factor=1.087)
    job.pass_time(40)
    assert "steps take 1.09x as long" in of_rule(job)["headline"]
    happened(job, "relief", 692, ALL, 1.15, 5.8, since=689, slow_since_step=None)
    job.pass_time(61)
    row = of_rule(job)
    assert "steps took 1.09x to 1.23x as long since step 394; " in row["headline"]
    assert (row["factor_least"], row["factor_most"]) == pytest.approx((1.087, 1.23))


def test_a_session_that_names_the_worker_of_the_fail_slow_starts_no_alert(job):
    """The upper end of its S, 1.80, is a bound: more than twice the excess of 1.38x."""
    fault(job)
    place = {"place": NAMED["place"]}
    with job.engine.begin() as connection:  # as by the session's result
        connection.execute(alerts.update().values(**place))
    for last_step in (440, 460):
        session(job, 1.53, last_step, **{**NAMED, "slowdown_healthy": 1.80})
    assert [row["rule"] for row in job.rows()] == ["fail-slow"]
    for last_step in (480, 490):  # another worker is another change
        other = {**NAMED, "slowdown_healthy": 1.80, "place": "worker dp 0, stage 0; host vm"}
        session(job, 1.53, last_step, **other)
    assert [row["rule"] for row in job.rows()] == ["fail-slow", "slow-job"]


def test_the_end_of_a_slow_job_says_what_the_latest_session_shows(job):
    named = {"slowdown_lasting": 1.158, "slowdown_healthy": 1.412}
    said = "This job wastes 23%: worker dp 2 is slow."
    for last_step in (888, 912):
        session(job, 1.297, last_step, **named, headline=said)
    row = of_rule(job, "slow-job")
    assert row["headline"].startswith(f"{said} S = 1.297 to 1.412, of which 1.158 to 1.261 lasts")
    session(job, 1.141, 944, slowdown_lasting=1.0, **HEALTHY)
    row = of_rule(job, "slow-job")
    assert row["status"] == "resolved"
    assert row["headline"] == (
        "S was 1.297 to 1.412, of which 1.158 to 1.261 lasted or had a cause: 1.1 or more in 2 "
        f"sessions in a row. A session up to step 912 said: {said} "
        "The latest session, up to step 944, has S = 1.141, of which 1.000 is beyond chance."
    )


def test_a_slow_job_that_ends_was_slow_to_the_end(job):
    for last_step in (888, 912):
        session(job, 1.3, last_step, data_loading=0.1, headline="Worker dp 2 is slow.")
    jobs.end(job.engine, job.job.id, job.now)
    job.alerts.judge(job.job.id, job.now)
    assert of_rule(job, "slow-job")["headline"] == (
        "S was 1.300; with data loading, 10.0% of the step, it was 1.444: 1.1 or more in 2 "
        "sessions in a row. A session up to step 912 said: Worker dp 2 is slow. "
        "The job has ended."
    )


def test_the_end_of_a_regression_has_the_present_step(job):
    for _ in range(3):
        session(job, 1.0, 100, step_s=1.0, **HEALTHY)
        job.now += HOUR
    session(job, 1.0, 200, step_s=1.5, cause="healthy", headline="")
    assert of_rule(job, "regression")["headline"].startswith("A step takes 1.500 s, 1.50 times")
    session(job, 1.0, 300, step_s=1.01, cause="healthy", headline="")
    row = of_rule(job, "regression")
    assert row["status"] == "resolved"
    assert row["headline"] == (
        "A step took 1.500 s, 1.50 times the median of the last 3 hours (1.000 s). "
        "A step of the latest session, up to step 300, takes 1.010 s."
    )
