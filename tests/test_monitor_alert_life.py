"""How alerts begin, go on and end: slow jobs, silent jobs, restarts, labels."""

from dataclasses import replace

import requires

requires.installed("starlette")

import monitor_alerts
from advised_jobs import job
from monitor_alerts import DAY, HOUR, World
from monitor_web import eventually
from paceline.diagnose import Finding
from paceline.monitor.alerts import engine
from paceline.monitor.alerts.engine import Alerts
from paceline.monitor.store import alerts as store
from paceline.monitor.store import jobs
from paceline.monitor.store.tables import events, sessions
from paceline.monitor.store.tables import jobs as job_table
from paceline.remedies import Remedy
from paceline.results.document import JobReport

world = monitor_alerts.world


def test_a_job_slows_down_and_recovers(world):
    world.session(1.2)
    assert world.firing() == []
    number = world.session(1.3)
    assert world.firing() == ["slow-job"]
    (row,) = world.rows()
    assert (row["session_id"], row["cause"], row["importance"]) == (number, "worker", "warning")
    assert "S = 1.30" in row["headline"]
    world.session(1.4)
    assert len(world.rows()) == 1  # the same alert, brought up to date
    assert "S = 1.40" in world.rows()[0]["headline"]
    world.session(1.0)
    (row,) = world.rows()
    assert (row["status"], row["ended_at"]) == ("resolved", world.now)
    assert [data["status"] for _, _, data in world.told] == ["firing", "resolved"]
    assert world.told[0][:2] == ("llm", "alert")
    world.session(1.3)
    world.session(1.3)
    assert [row["status"] for row in world.rows()] == ["resolved", "firing"]


def remedy(text, gain):
    return Remedy("replace-worker", text, ("worker",), 1.0, gain, (gain, gain), {})


def test_where_and_what_it_gains_are_read_from_the_result(world):
    world.session(1.3)
    number = len(world.rows(sessions)) + 1
    known = job("worker")
    gc = Finding("gc", "gc", "pauses", 0.1, 0.1, (0.0, 0.2), 0.9, {}, {})
    where = {"workers": [[3, 1]], "hosts": ["gpu-7"]}
    fault = Finding("worker", "worker", "slow", 0.9, 0.3, (0.8, 1.0), 0.9, where, {})
    remedies = (
        remedy("move microbatches (gain 3%)", 0.03),
        remedy("replace worker dp 3, stage 1 (gain 26%)", 0.26),
    )
    diagnosis = replace(known.advice.diagnosis, findings=(gc, fault))
    advice = replace(known.advice, diagnosis=diagnosis, remedies=remedies)
    document = JobReport.of(known.result, advice).to_mapping()
    world.results[f"results/{number:03d}/{number}/result.json"] = document
    world.session(1.3)
    (row,) = world.rows()
    assert row["place"] == "worker dp 3, stage 1; host gpu-7"
    assert row["gain"] == "replace worker dp 3, stage 1 (gain 26%)"


def test_a_result_that_cannot_be_read_costs_only_its_words(world):
    world.session(1.3)
    number = len(world.rows(sessions)) + 1
    world.results[f"results/{number:03d}/{number}/result.json"] = {"findings": [{"cause": 3}]}
    world.session(1.3)
    (row,) = world.rows()
    assert (row["place"], row["gain"]) == (None, None)


def test_a_trace_is_no_step(world):
    from paceline.monitor.store.sessions import enqueue

    world.set_job(status="running", last_step=41, seen_at=world.now)
    world.pass_time(901)
    assert world.firing() == ["job-silent"]
    trace = {"sha256": "a", "size_bytes": 1, "file_name": "t", "meta": {}}
    enqueue(world.engine, world.job.id, trace, world.now)
    world.pass_time(1)
    assert world.firing() == ["job-silent"]


def test_a_silent_job_speaks_again(world):
    world.set_job(status="running", last_step=41, seen_at=world.now)
    world.alerts.tick(world.now + 899)
    assert world.firing() == []
    world.alerts.tick(world.now + 901)
    world.alerts.tick(world.now + 999)
    assert world.firing() == ["job-silent"]
    world.set_job(seen_at=world.now + 1000, status="running")
    world.alerts.tick(world.now + 1001)
    assert world.firing() == []


def test_time_in_which_the_service_was_away_is_no_silence(world):
    world.set_job(status="running", last_step=41, seen_at=world.now)
    told = jobs.register(world.engine, "llm", "told", world.now - 2000)
    gone = jobs.register(world.engine, "llm", "gone", world.now - 2000)
    with world.engine.begin() as connection:
        which = job_table.c.id.in_((told.id, gone.id))
        connection.execute(job_table.update().where(which).values(status="running", last_step=1))
    world.pass_time(1)
    assert world.firing() == ["job-silent"] * 2
    world.now += 10_000
    world.started_at = world.now  # it was away
    world.alerts = Alerts(world)
    world.alerts._judge_recent(world.now)
    world.pass_time(5)
    assert world.firing() == ["job-silent"] * 2  # those of which it was told before
    with world.engine.begin() as connection:
        row = job_table.update().where(job_table.c.id == told.id)
        connection.execute(row.values(seen_at=world.now))
    world.pass_time(5)
    assert [row["job_id"] for row in world.rows() if row["status"] == "firing"] == [gone.id]
    world.pass_time(891)  # 15 minutes after the start
    assert len(world.firing()) == 2
    world.pass_time(10)
    assert len(world.firing()) == 3


def test_jobs_that_stay_silent_are_not_judged_again_and_again(world, monkeypatch):
    for n in range(5):
        job = jobs.register(world.engine, "llm", f"quiet-{n}", world.now)
        with world.engine.begin() as connection:
            values = {"status": "running", "last_step": 4, "seen_at": world.now}
            connection.execute(job_table.update().where(job_table.c.id == job.id).values(**values))
    world.alerts.tick(world.now)
    judged = []
    real = world.alerts.judge_many
    monkeypatch.setattr(
        world.alerts, "judge_many", lambda jobs, now: (judged.extend(jobs), real(jobs, now))
    )
    world.pass_time(901)
    assert len(judged) == 5
    for _ in range(5):
        world.pass_time(5)
    assert len(judged) == 5
    assert world.firing() == ["job-silent"] * 5
    world.pass_time(DAY)  # forgotten
    assert world.firing() == []


def test_a_restart_misses_nothing_and_tells_nothing_twice(world):
    world.alerts._judge_recent(world.now)
    world.set_job(status="running")
    world.row(  # stored, but the service ended before the alerts heard of it
        events, job_id=world.job.id, at=world.now, kind="onset", step=9, since_step=9, factor=2.0,
        ranks=[1], text="slow", lost_s=100.0,
    )  # fmt: skip
    Alerts(world)._judge_recent(world.now)
    Alerts(world)._judge_recent(world.now)
    assert [row["rule"] for row in world.rows()] == ["fail-slow"]
    world.set_job(slow_since_step=None)
    Alerts(world)._judge_recent(world.now + 2 * HOUR)
    assert world.firing() == []


def test_labels_say_how_important_a_job_is_and_which_rules_it_has(tmp_path):
    world = World(
        tmp_path,
        """
rules:
  slow-job: {sessions: 1, match: {team: "vision*"}, labels: {page: "yes"}}
  fail-slow: false
  mine: {kind: slowdown, at_least: 2, sessions: 1, job: "other-*"}
""",
    )
    world.session(3.0)
    assert world.firing() == []
    world.set_job(labels={"team": "vision-2", "importance": "critical"})
    world.session(3.0)
    (row,) = world.rows()
    assert (row["importance"], row["labels"]["page"], row["labels"]["team"]) == (
        "critical",
        "yes",
        "vision-2",
    )
    world.happened("onset", 10)
    assert world.firing() == ["slow-job"]
    world.set_job(labels={})
    world.alerts.judge(world.job.id, world.now)
    assert world.firing() == []  # the rule is not for it any more


def test_an_alert_whose_rule_is_gone_is_over(world):
    world.session(1.3)
    world.session(1.3)
    world.alerts.settings = replace(world.alerts.settings, rules=())
    world.alerts._judge_recent(world.now)
    assert world.firing() == []


def test_a_store_that_comes_late_is_waited_for(world, monkeypatch):
    monkeypatch.setattr(engine, "_RETRY_S", 0.01)
    calls = []

    def recent(*_):
        from sqlalchemy.exc import OperationalError

        calls.append(1)
        if len(calls) < 3:
            raise OperationalError("x", {}, Exception("down"))
        return []

    monkeypatch.setattr(store, "recent_jobs", recent)
    world.alerts.start()
    eventually(lambda: len(calls) == 3)
    world.alerts.stop()


def test_the_end_of_a_job_ends_its_alerts_and_none_begins_later(world):
    world.session(1.3)
    world.session(1.3)
    assert world.firing() == ["slow-job"]
    jobs.end(world.engine, world.job.id, world.now)
    world.pass_time(engine.AGAIN_S)
    (row,) = world.rows()
    assert (row["status"], row["ended_at"]) == ("resolved", world.now)
    assert row["headline"].endswith(" The job has ended.")
    world.session(1.4)  # of its last steps, analysed late
    assert world.firing() == []
    world.set_job(status="running")  # it goes on
    world.session(1.4)
    assert world.firing() == ["slow-job"]
