"""Fail-slows that are over when their step times come: one message, with its loss."""

import pytest

import requires

requires.installed("starlette")

import monitor_alerts
from monitor_alerts import DAY, courier, hooked
from monitor_web import eventually, monitor
from paceline.monitor.store import alerts as store
from paceline.monitor.store.tables import alerts, deliveries, events, jobs

hook = monitor_alerts.hook
ONLY = "rules: {slow-job: false, job-silent: false}\n"


def at_once(world, *changes, status="running"):
    """Events of one batch: they are stored before the job is judged."""
    for kind, step, lost_s in changes:
        row = {"job_id": world.job.id, "at": world.now, "kind": kind, "step": step}
        told = {"since_step": step, "factor": 1.5, "lost_s": lost_s, "ranks": [3], "text": kind}
        number = world.row(events, **row, **told)
    world.set_job(status=status, seen_at=world.now, last_step=900, healthy_s=1.0)
    world.alerts.event(world.job.id, number)


WHOLE = ("onset", 100, 9.0), ("relief", 400, 150.0)


def test_a_fail_slow_that_came_whole_is_one_message(tmp_path, hook):
    world = hooked(tmp_path, hook, more=ONLY)
    at_once(world, *WHOLE)
    courier(world).round()
    (message,) = hook.wait(1)
    (alert,) = message["alerts"]
    assert (message["title"], alert["status"]) == ("[RESOLVED] job-1: fail-slow", "resolved")
    assert alert["headline"] == (
        "Fail-slow: steps took 1.50x as long since step 100; 2.5 minutes lost in all. "
        "Steps are healthy again since step 400. It was over before this alert could begin."
    )
    assert (alert["place"], alert["started_at"]) == ("rank 3", alert["ended_at"])
    for _ in range(4):  # nothing of it is told again
        world.pass_time(100)
        courier(world).round()
    assert (len(hook.received), len(world.rows())) == (1, 1)
    at_once(world, ("onset", 700, 9.0), ("relief", 800, 90.0))  # another one
    courier(world).round()
    assert "since step 700; 90 s lost" in hook.wait(2)[1]["alerts"][0]["headline"]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ((("onset", 100, 9.0), ("relief", 130, 15.0)), "running"),  # less than a minute is lost
        (WHOLE, "new"),  # a recording pushed by hand
        (WHOLE, "ended"),
    ],
)
def test_what_wakes_nobody_while_it_goes_on_is_not_told_later(tmp_path, hook, changes, status):
    world = hooked(tmp_path, hook, more=ONLY)
    at_once(world, *changes, status=status)
    world.pass_time(40)
    assert world.rows() == []


def test_an_older_relief_is_no_news(tmp_path, hook):
    world = hooked(
        tmp_path,
        hook,
        more="rules: {slow-job: false, job-silent: false, fail-slow: {lost_s: 200}}\n",
    )
    at_once(world, *WHOLE)
    again = hooked(tmp_path, hook, more=ONLY)  # a lower threshold, hours later
    again.now = world.now + 2 * 3600
    again.alerts.judge(world.job.id, again.now)
    assert world.rows() == []


def test_a_fail_slow_that_was_told_while_it_went_on_is_not_told_again(tmp_path, hook):
    world = hooked(tmp_path, hook, more=ONLY)
    at_once(world, ("onset", 100, 90.0))
    world.set_job(slow_since_step=100)
    world.now += 10
    at_once(world, ("relief", 400, 150.0))
    world.set_job(slow_since_step=None)
    world.pass_time(100)
    world.pass_time(100)
    assert [row["status"] for row in world.rows()] == ["resolved"]
    assert "could begin" not in world.rows()[0]["headline"]


def test_a_job_whose_row_says_later_that_it_runs_is_judged_again(tmp_path, hook):
    world = hooked(tmp_path, hook, more=ONLY)
    world.pass_time(1)
    at_once(world, *WHOLE, status="new")
    assert world.rows() == []
    world.set_job(status="running")
    world.pass_time(31)
    assert [row["status"] for row in world.rows()] == ["resolved"]


def test_a_silence_forgets_it(tmp_path, hook):
    world = hooked(tmp_path, hook, more=ONLY)
    silence = {"rule": None, "job": None, "until": world.now + DAY, "comment": ""}
    store.add_silence(world.engine, "llm", **silence, now=world.now)
    at_once(world, *WHOLE)
    courier(world).round()
    assert (len(world.rows()), world.rows(deliveries)) == (1, [])


@pytest.mark.parametrize("first", [0, 100])
def test_a_batch_of_a_job_that_sends_late(tmp_path, first):
    """150 steps of 0.8 s, 200 of 1.2 s, 150 of 0.8 s: 80 s are lost. ``first``: sent before."""
    durations_s = [0.8] * 150 + [1.2] * 200 + [0.8] * 150
    samples = [[step, rank, took] for step, took in enumerate(durations_s) for rank in (0, 1)]
    with monitor(tmp_path) as site:
        engine, token = site.service.engine, site.token("push", "default")
        site.ask("POST", "/api/v1/jobs", token=token, body={"name": "late", "gpus": 64})

        def push(number, some):
            body = {"batch": number, "source": "one/0", "world": 2, "samples": some}
            answer = site.ask("POST", "/api/v1/jobs/late/steps", token=token, body=body)
            assert answer.status < 300, answer.text

        def rows(table=alerts):
            with engine.connect() as connection:
                return connection.execute(table.select()).mappings().all()

        if first:
            push("0", samples[: 2 * first])
            eventually(lambda: rows(jobs)[0]["status"] == "running")
        push("1", samples[2 * first :])
        eventually(rows)
        (row,) = rows()
        assert row["status"] == "resolved"
        assert "took 1.50x as long since step 150; " in row["headline"]
        assert "Steps are healthy again since step 350. It was over" in row["headline"]
