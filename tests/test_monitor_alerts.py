import contextlib
import hashlib
import hmac
import json
import smtplib
import socket
import threading
import time
from dataclasses import replace

import pytest

pytest.importorskip("starlette")

from monitor_stores import STORES
from monitor_web import Listener, eventually
from paceline.errors import MonitorError
from paceline.monitor.alerts import delivery, engine
from paceline.monitor.alerts.channels import Alertmanager, Email, Slack, Webhook
from paceline.monitor.alerts.engine import Alerts, going_on
from paceline.monitor.alerts.notice import Notice
from paceline.monitor.alerts.rules import DEFAULTS, Facts, Rule, gpu_hours_at_stake, judge
from paceline.monitor.alerts.settings import load_settings
from paceline.monitor.bus import Bus
from paceline.monitor.config import Config
from paceline.monitor.store import alerts as store
from paceline.monitor.store import jobs
from paceline.monitor.store.database import open_database
from paceline.monitor.store.tables import alerts, deliveries, events, sessions
from paceline.monitor.store.tables import jobs as job_table

HOUR, DAY = 3600.0, 86_400.0
RULES = {rule.name: rule for rule in DEFAULTS}


class World:
    """A service with a clock that is set by hand."""

    def __init__(self, data, text="", store=""):
        path = data / "alerts.yaml"
        path.write_text(text)
        alerts = str(path) if text else ""
        self.config = Config(data=data, store=store, alerts=alerts, base_url="http://here")
        self.engine = open_database(self.config.store_url)
        self.bus, self.now, self.results = Bus(), 1_000_000.0, {}
        self.started_at = 0.0
        self.blobs = self
        self.told = []
        self.bus.publish = lambda project, kind, data: self.told.append((project, kind, data))
        self.alerts = Alerts(self)
        self.job = jobs.register(self.engine, "llm", "job-1", self.now, gpus=64)

    def clock(self):
        return self.now

    def open(self, key):
        import io

        if key not in self.results:
            raise FileNotFoundError(key)
        return io.BytesIO(json.dumps(self.results[key]).encode())

    def row(self, table, **values):
        with self.engine.begin() as connection:
            return connection.execute(table.insert().values(**values)).inserted_primary_key[0]

    def set_job(self, **values):
        with self.engine.begin() as connection:
            connection.execute(
                job_table.update().where(job_table.c.id == self.job.id).values(**values)
            )

    def session(self, slowdown, step_s=1.0, **more):
        self.now += HOUR
        number = self.row(
            sessions,
            job_id=self.job.id,
            sha256=str(self.now),
            size_bytes=1,
            file_name="t",
            created_at=self.now,
            finished_at=self.now,
            status="done",
            slowdown=slowdown,
            step_s=step_s,
            headline="Worker dp 3, stage 1 is slow.",
            cause="worker",
            **more,
        )
        self.alerts.session_done(self.job.id, number)
        return number

    def happened(self, kind, step, ranks=(3,), factor=1.5):
        number = self.row(
            events,
            job_id=self.job.id,
            at=self.now,
            kind=kind,
            step=step,
            since_step=step,
            factor=factor,
            ranks=list(ranks),
            text=f"step {step}: 1.50x slower",
        )
        self.alerts.event(self.job.id, number)

    def pass_time(self, seconds):
        self.now += seconds
        self.alerts.tick(self.now)

    def rows(self, table=alerts):
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(table.select()).mappings()]

    def firing(self):
        return [row["rule"] for row in self.rows() if row["status"] == "firing"]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def facts(sessions=(), onset=None, now=1000.0, **job):
    usual = {"gpus": 64, "status": "running", "seen_at": now, "last_step": 7, "slow_since_step": 1}
    return Facts({**usual, **job}, list(sessions), onset, now)


def session(slowdown=1.0, step_s=1.0, at=0.0):
    about = {"id": 1, "headline": "", "cause": None}
    return {"slowdown": slowdown, "step_s": step_s, "created_at": at, **about}


@pytest.mark.parametrize(
    ("slowdowns", "fires"),
    [
        ((1.2,), 0),
        ((1.2, 1.2), 1),
        ((1.1, 1.1), 1),
        ((1.09, 1.3), 0),
        ((1.3, 1.09, 1.3), 0),
        ((), 0),
    ],
)
def test_slow_in_two_sessions_in_a_row(slowdowns, fires):
    latest_first = [session(s) for s in slowdowns]
    assert bool(judge(RULES["slow-job"], facts(latest_first))) == fires


def test_gpu_hours_at_stake():
    assert gpu_hours_at_stake(64, 1.5, 24) == pytest.approx(64 * 24 / 3)
    assert gpu_hours_at_stake(64, 0.5, 24) == 0
    assert gpu_hours_at_stake(None, 1.5, 24) is None
    onset = {"factor": 1.5, "text": "slower", "ranks": [3, 4]}
    rule = RULES["fail-slow"]
    alarm = judge(rule, facts(onset=onset))
    assert "512 GPU-hours are at stake in the next 24 hours" in alarm.headline
    assert alarm.place == "ranks 3, 4"
    assert judge(rule, facts(onset=onset, gpus=1)) is None  # 8 of them
    assert "is unknown" in judge(rule, facts(onset=onset, gpus=None)).headline
    assert judge(rule, facts()) is None


def test_silence_of_a_job_begins_and_is_forgotten():
    rule = RULES["job-silent"]
    assert judge(rule, facts(seen_at=101)) is None
    assert judge(rule, facts(seen_at=100)).headline.startswith("No step for 15 minutes")
    minute = replace(rule, after_s=60.0)
    assert judge(minute, facts(seen_at=100)).headline.startswith("No step for 1 minute;")
    assert judge(rule, facts(seen_at=100, status="ended")) is None
    assert judge(rule, facts(seen_at=100, last_step=None)) is None
    assert judge(rule, facts(seen_at=0, now=DAY)) is None


def test_regression_against_the_last_week():
    rule = RULES["regression"]
    week = [session(step_s=s, at=10 * DAY - i * DAY) for i, s in enumerate((1.2, 1.0, 1.1, 1.0))]
    assert "1.20 times the median of the last 7 days (1 s)" in judge(rule, facts(week)).headline
    assert judge(rule, facts([session(step_s=1.09, at=10 * DAY), *week[1:]])) is None
    assert judge(rule, facts(week[:3])) is None  # too few before
    healthy = {**week[0], "cause": "healthy"}
    assert judge(rule, facts([healthy, *week[1:]])).cause is None
    old = [week[0], *(session(step_s=1.0, at=2.9 * DAY) for _ in range(9))]
    assert judge(rule, facts(old)) is None
    assert judge(rule, facts([session(step_s=None)])) is None


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


def test_where_and_what_it_gains_are_read_from_the_result(world):
    world.session(1.3)
    number = len(world.rows(sessions)) + 1
    world.results[f"results/{number:03d}/{number}/result.json"] = {
        "findings": [
            {"cause": "gc", "where": {}},
            {"cause": "worker", "where": {"workers": [[3, 1]], "hosts": ["gpu-7"]}},
        ],
        "remedies": [
            {"text": "move microbatches (gain 3%)", "gain": 0.03},
            {"text": "replace worker dp 3 stage 1 (gain 26%)", "gain": 0.26},
        ],
    }
    world.session(1.3)
    (row,) = world.rows()
    assert row["place"] == "worker dp 3 stage 1; host gpu-7"
    assert row["gain"] == "replace worker dp 3 stage 1 (gain 26%)"


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


def test_what_goes_on():
    job = {"status": "running", "slow_since_step": 5}
    about = {"ranks": [1, 2], "factor": 1.5, "text": "slow"}
    onset, relief = ({"kind": kind, **about} for kind in ("onset", "relief"))
    other = {"kind": "onset", "ranks": [5], "factor": 1.2, "text": "5 is slow"}
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


def test_a_fail_slow_has_a_gain_and_the_hosts_of_its_ranks(world):
    world.session(1.0, meta={"hosts": {"3": ["node-0", "3"], "4": ["node-1", "0"]}})
    world.happened("onset", 100, ranks=(3, 4))
    (row,) = world.rows()
    assert row["place"] == "ranks 3, 4; host node-0, node-1"
    assert row["gain"] == "replace or repair what is slow (gain 33.3%)"


def test_the_end_of_a_job_ends_its_fail_slow(world):
    world.set_job(slow_since_step=100)
    jobs.end(world.engine, world.job.id, world.now)
    assert jobs.by_id(world.engine, world.job.id)["slow_since_step"] is None


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
    real = world.alerts.judge
    monkeypatch.setattr(
        world.alerts, "judge", lambda *args, **more: (judged.append(args[0]), real(*args, **more))
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
    world.row(  # stored, but the service ended before the alerts heard of it
        events, job_id=world.job.id, at=world.now, kind="onset", step=9, since_step=9, factor=2.0,
        ranks=[1], text="slow",
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


HOOK = "channels:\n  hook: {{type: webhook, url: '{url}', secret: abc}}\ngroup_wait_s: {wait}\n"


@pytest.fixture
def hook():
    listener = Listener()
    yield listener
    listener.close()


def hooked(tmp_path, hook, wait=0, more=""):
    return World(tmp_path, HOOK.format(url=hook.url, wait=wait) + more)


def courier(world, number=0):
    return delivery.Courier(world, world.alerts.settings.routes[number])


def test_a_webhook_is_told_of_the_beginning_and_the_end(tmp_path, hook):
    world = hooked(tmp_path, hook)
    world.session(1.3)
    world.session(1.3)
    world.session(1.0)
    courier(world).round()
    courier(world).round()
    courier(world).round()
    begin, end = hook.wait(2)
    assert (begin["status"], end["status"]) == ("firing", "resolved")
    (alert,) = begin["alerts"]
    assert (alert["job"], alert["rule"], alert["cause"]) == ("job-1", "slow-job", "worker")
    assert alert["url"] == "http://here/jobs/job-1?project=llm&session=2"
    assert end["alerts"][0]["ended_at"] == world.now
    path, headers, body, _ = hook.received[0]
    assert path == "/hook/very-secret"
    signature = hmac.new(b"abc", body, hashlib.sha256).hexdigest()
    assert headers["X-Paceline-Signature"] == f"sha256={signature}"
    assert headers["Idempotency-Key"] != hook.received[1][1]["Idempotency-Key"]
    assert [row["state"] for row in world.rows(deliveries)] == ["delivered"] * 2


@pytest.mark.parametrize("kind", STORES)
def test_the_life_of_an_alert_in_each_store(tmp_path, hook, kind):
    hook.statuses += [500]
    with STORES[kind](tmp_path) as url:
        world = World(tmp_path, HOOK.format(url=hook.url, wait=0), url)
        quiet = store.add_silence(
            world.engine, "llm", rule=None, job="x", until=2e6, comment="ä", now=world.now
        )
        world.session(1.3)
        world.session(1.3)
        world.session(1.4)
        courier(world).round()
        fires, sent = store.counts(world.engine)
        assert (fires[0]["rule"], fires[0]["n"]) == ("slow-job", 1)
        assert (sent[0]["state"], sent[0]["n"]) == ("waiting", 1)
        world.now += HOUR
        courier(world).round()
        world.session(1.0)
        courier(world).round()
        assert [each["status"] for each in hook.wait(3)] == ["firing", "firing", "resolved"]
        world.alerts._judge_recent(world.now)
        assert store.recent_jobs(world.engine, 0.0) == [world.job.id]
        assert [row["status"] for row in store.listed(world.engine, "llm")] == ["resolved"]
        assert store.listed(world.engine, "llm", status="firing") == []
        assert [row["id"] for row in store.list_silences(world.engine, "llm", 1e6)] == [quiet]
        assert not store.end_silence(world.engine, quiet, "other", world.now)
        assert store.end_silence(world.engine, quiet, "llm", world.now)
        store.remove_older(world.engine, 1e12)
        assert world.rows() == world.rows(deliveries) == []  # messages go with their alert
        world.engine.dispose()


def test_a_message_that_cannot_be_said_holds_up_no_other(tmp_path, hook):
    world = hooked(tmp_path, hook)
    world.set_job(labels={"team": "half a pair: \ud800"})
    world.session(1.3)
    world.session(1.3)
    courier(world).round()
    assert hook.wait(1)[0]["alerts"][0]["labels"]["team"] == "half a pair: ?"


def test_a_channel_with_a_fault_is_tried_again(tmp_path, hook, monkeypatch):
    world = hooked(tmp_path, hook)
    world.session(1.3)
    world.session(1.3)
    with monkeypatch.context() as patch:
        patch.setattr(Webhook, "send", lambda *_: 1 / 0)
        courier(world).round()
    (row,) = world.rows(deliveries)
    assert (row["state"], row["attempts"]) == ("waiting", 1)
    assert row["error"].startswith("ZeroDivisionError")
    world.job = jobs.register(world.engine, "llm", "job-2", world.now)
    world.session(1.3)
    world.session(1.3)
    world.now = min(r["next_at"] for r in world.rows(deliveries) if not r["attempts"])
    courier(world).round()  # what is new does not wait for what failed
    assert any(each["alerts"][0]["job"] == "job-2" for each in hook.wait(1))
    world.now += HOUR
    courier(world).round()
    assert {row["state"] for row in world.rows(deliveries)} == {"delivered"}


def test_a_failed_delivery_is_retried_later_and_later(tmp_path, hook, monkeypatch):
    monkeypatch.setattr(delivery.random, "uniform", lambda *_: 1.0)
    hook.statuses += [500, 500, 301]
    world = hooked(tmp_path, hook)
    world.session(1.3)
    world.session(1.3)
    began = world.now
    for wait_s in (5, 10, 20):
        courier(world).round()
        (row,) = world.rows(deliveries)
        assert row["next_at"] == world.now + wait_s
        world.now += wait_s - 0.1
        courier(world).round()  # not yet
        world.now += 0.1
    assert "answers 301" in row["error"]
    assert "very-secret" not in row["error"]
    courier(world).round()  # by a courier of a new service, as after a restart
    assert len(hook.wait(4)) == 4
    (row,) = world.rows(deliveries)
    assert (row["state"], row["error"]) == ("delivered", None)
    keys = {headers["Idempotency-Key"] for _, headers, _, _ in hook.received}
    assert len(keys) == 1
    assert world.now == began + 35


def test_nobody_listens_and_at_last_it_is_given_up(tmp_path, hook):
    world = hooked(tmp_path, hook)
    hook.close()
    world.session(1.3)
    world.session(1.3)
    courier(world).round()
    (row,) = world.rows(deliveries)
    assert (row["state"], row["attempts"]) == ("waiting", 1)
    assert "127.0.0.1" in row["error"]
    world.now += 8 * DAY
    courier(world).round()
    assert world.rows(deliveries)[0]["state"] == "given-up"


def test_the_end_waits_for_the_beginning(tmp_path, hook):
    hook.statuses += [500]
    world = hooked(tmp_path, hook)
    world.session(1.3)
    world.session(1.3)
    courier(world).round()
    world.session(1.0)
    world.now = world.rows(deliveries)[0]["next_at"] - 1
    courier(world).round()
    assert len(hook.received) == 1
    world.now += HOUR
    courier(world).round()
    courier(world).round()
    assert [each["status"] for each in hook.wait(3)] == ["firing", "firing", "resolved"]


def test_alerts_of_a_rule_that_begin_together_are_one_message(tmp_path, hook):
    world = hooked(tmp_path, hook, wait=10)
    for name in ("a", "b", "c"):
        world.job = jobs.register(world.engine, "llm", name, world.now, gpus=64)
        world.happened("onset", 10)
        world.now += 4
    courier(world).round()  # the first has waited for 10 s, and takes the others with it
    (message,) = hook.wait(1)
    assert [alert["job"] for alert in message["alerts"]] == ["a", "b", "c"]
    assert message["title"] == "[CRITICAL] 3 jobs: fail-slow"
    courier(world).round()
    assert len(hook.received) == 1


def test_a_silence_holds_back_and_forgets_what_is_over(tmp_path, hook):
    world = hooked(tmp_path, hook)
    quiet = store.add_silence(
        world.engine,
        "*",
        rule="slow-job",
        job=None,
        until=world.now + DAY,
        comment="",
        now=world.now,
    )
    world.session(1.3)
    world.session(1.3)
    courier(world).round()
    world.session(1.0)
    world.now += 60
    courier(world).round()
    assert world.rows(deliveries) == []  # began and ended in silence
    world.session(1.3)
    world.session(1.3)
    courier(world).round()
    assert hook.received == []
    assert store.end_silence(world.engine, quiet, "*", world.now)
    world.now += 60
    courier(world).round()
    assert [each["status"] for each in hook.wait(1)] == ["firing"]


@pytest.mark.parametrize(
    ("project", "rule", "job", "holds"),
    [
        ("*", None, None, True),
        ("llm", "slow-job", "job-1", True),
        ("other", None, None, False),
        ("*", "fail-slow", None, False),
        ("*", None, "job-2", False),
        ("*", "slow-*", "job-?", True),
        ("*", None, "g*", False),
    ],
)
def test_what_a_silence_is_about(tmp_path, hook, project, rule, job, holds):
    world = hooked(tmp_path, hook)
    world.session(1.3)
    store.add_silence(
        world.engine, project, rule=rule, job=job, until=world.now + DAY, comment="", now=world.now
    )
    world.session(1.3)
    courier(world).round()
    assert world.rows(deliveries)[0]["state"] == ("waiting" if holds else "delivered")


def test_ends_that_come_together_are_one_message(tmp_path, hook):
    world = hooked(tmp_path, hook)
    for _ in range(2):
        world.session(1.3)
    courier(world).round()
    world.alerts.settings = replace(world.alerts.settings, group_wait_s=10)
    world.session(1.0)
    (end,) = [row for row in world.rows(deliveries) if row["status"] == "resolved"]
    assert end["next_at"] == world.now + 10


@pytest.mark.parametrize(("rule", "status"), [("fail-slw", 2), ("fail-*", 0)])
def test_a_silence_is_about_a_rule_there_is(tmp_path, capsys, rule, status):
    from paceline.cli.main import run

    World(tmp_path)
    args = ["--rule", rule, "--job", "g*", "--data", str(tmp_path)]
    assert run(["alerts", "silence", *args]) == status
    said = capsys.readouterr()
    assert ("there is no rule fail-slw" in said.err) == (status == 2)


def test_channels_take_what_is_meant_for_them(tmp_path, hook):
    more = """
  rest: {type: slack, url: 'http://x/y', rules: [fail-*], projects: llm, importance: critical}
"""
    world = World(tmp_path, HOOK.format(url=hook.url, wait=0).replace("group", more + "group"))
    world.session(1.3)
    world.session(1.3)
    world.happened("onset", 10)
    told = {(row["channel"], row["alert_id"]) for row in world.rows(deliveries)}
    assert told == {("hook", 1), ("hook", 2), ("rest", 2)}
    world.alerts.settings = replace(world.alerts.settings, routes=world.alerts.settings.routes[:1])
    world.alerts._judge_recent(world.now)
    gone = [row for row in world.rows(deliveries) if row["channel"] == "rest"]
    assert [(row["state"], row["error"]) for row in gone] == [("given-up", "no such channel")]


def test_alertmanager_is_told_again_and_again(tmp_path, hook):
    text = f"channels:\n  am: {{type: alertmanager, url: '{hook.url}/'}}\ngroup_wait_s: 0\n"
    world = World(tmp_path, text)
    world.set_job(labels={"team-name": "vision", "9": "x"})
    world.session(1.3)
    world.session(1.3)
    courier(world).round()
    courier(world).round()
    world.now += 61
    courier(world).round()
    world.session(1.0)
    courier(world).round()
    world.now += 61
    courier(world).round()
    first, again, end = hook.wait(3)
    assert len(hook.received) == 3
    assert hook.received[0][0] == "/hook/very-secret/api/v2/alerts"
    assert first[0]["labels"] == again[0]["labels"] == end[0]["labels"]
    assert first[0]["labels"] == {
        "alertname": "slow-job",
        "job": "job-1",
        "project": "llm",
        "severity": "warning",
        "team_name": "vision",
        "_9": "x",
    }
    assert first[0]["startsAt"] == end[0]["startsAt"]
    assert first[0]["startsAt"] < first[0]["endsAt"] < again[0]["endsAt"]
    assert end[0]["endsAt"] == "1970-01-12T16:47:41Z"  # when it ended
    assert first[0]["annotations"]["cause"] == "worker"
    assert first[0]["generatorURL"] == "http://here/jobs/job-1?project=llm&session=2"


def test_every_channel_says_all_of_it(hook):
    """Headline, cause, where, gain and link."""
    wanted = ("S = 1.3", "worker", "dp 3", "replace it", "http://here/jobs/job-1")
    for channel in (Webhook("w", hook.url), Slack("s", hook.url), Alertmanager("a", hook.url)):
        channel.send([NOTICE], 1000.0)
    hook.wait(3)
    sent = [body.decode() for _, _, body, _ in hook.received]
    lines = []
    port = smtp_server(lines)
    Email("m", "127.0.0.1", "a@b", ("c@d",), port, security="none").send([NOTICE], 1000.0)
    sent.append("\n".join(lines))
    assert [word for text in sent for word in wanted if word not in text] == []


NOTICE = Notice(
    7, "firing", "slow-job", "warning", "llm", "job-1", "S = 1.3 <b>&\nX", "worker", "dp 3",
    "replace it", "http://here/jobs/job-1", 1000.0,
)  # fmt: skip


def test_slack(hook):
    Slack("chat", hook.url).send([NOTICE] * 12, 1000.0)
    (message,) = hook.wait(1)
    assert message["text"].startswith(
        "*[WARNING] 12 jobs: slow-job*\n<http://here/jobs/job-1|job-1>"
    )
    assert "S = 1.3 &lt;b&gt;&amp;" in message["text"]
    assert "Best fix: replace it" in message["text"]
    assert message["text"].endswith("and 2 more")


def smtp_server(lines):
    """Takes one mail."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError), listening:
            connection, _ = listening.accept()
            with connection, connection.makefile("rwb", buffering=0) as file:
                file.write(b"220 here\r\n")
                take(file)

    def take(file):
        data = False
        while line := file.readline():
            lines.append(line.decode("latin-1").rstrip())
            if data:
                data = line != b".\r\n"
                if not data:
                    file.write(b"250 ok\r\n")
            elif line.upper().startswith(b"DATA"):
                data = True
                file.write(b"354 go\r\n")
            elif line.upper().startswith(b"QUIT"):
                file.write(b"221 bye\r\n")
                return
            else:
                file.write(b"250 ok\r\n")

    threading.Thread(target=serve, daemon=True).start()
    return listening.getsockname()[1]


def test_mail():
    lines = []
    port = smtp_server(lines)
    mail = Email(
        "mail", "127.0.0.1", "Paceline <me@x.org>", ("a@x.org", "b@x.org"), port, security="none"
    )
    mail.send([replace(NOTICE, job="job\r\nBcc: all@x.org")], 1000.0)
    text = "\n".join(lines)
    assert "rcpt TO:<a@x.org>" in text
    assert "rcpt TO:<b@x.org>" in text
    head = lines[: lines.index("", lines.index("data"))]
    assert not any(line.startswith("Bcc") for line in head)
    assert "Message-ID: <paceline-7-firing-1@x.org>" in text
    assert "Where: dp 3" in text
    with pytest.raises(MonitorError, match=r"127\.0\.0\.1:9"):
        Email("mail", "127.0.0.1", "a@b", ("c@d",), 9, security="none").send([NOTICE], 1.0)
    assert issubclass(smtplib.SMTPException, OSError)


def test_mail_is_not_sent_in_the_clear_where_it_should_not_be():
    for security in ("starttls", "tls"):
        lines = []
        port = smtp_server(lines)
        mail = Email("m", "127.0.0.1", "a@b", ("c@d",), port, "me", "very-secret", security)
        with pytest.raises(MonitorError) as error:
            mail.send([NOTICE], 1000.0)
        assert "very-secret" not in str(error.value)
        assert not any("mail" in line.lower() or "auth" in line.lower() for line in lines[1:])


def test_channels_say_why_without_their_secrets(monkeypatch):
    monkeypatch.setattr("paceline.monitor.alerts.channels.TIMEOUT_S", 0.2)
    hanging = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{hanging.getsockname()[1]}/services/T0/B0/secret"
    for channel in (Slack("s", url), Webhook("w", url), Alertmanager("a", url)):
        with pytest.raises(MonitorError, match=r"^127.0.0.1:\d+: no answer within 0.2 s$"):
            channel.send([NOTICE], 1.0)
    hanging.close()


def test_a_running_service_delivers_by_itself(tmp_path, hook):
    world = hooked(tmp_path, hook)
    world.clock = time.time
    world.now = time.time()
    world.session(1.3)
    world.alerts.start()
    try:
        world.session(1.3)
        assert hook.wait(1)[0]["status"] == "firing"
        world.session(1.0)
        assert hook.wait(2)[1]["status"] == "resolved"
    finally:
        world.alerts.stop()
    eventually(lambda: not any(t.name == "alerts-hook" for t in threading.enumerate()))


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


def test_settings_from_the_environment(tmp_path, monkeypatch):
    path = tmp_path / "alerts.yaml"
    path.write_text(
        """
rules:
  slow-job: {at_least: 1.2, sessions: 3}
channels:
  chat: {type: slack, url: "${CHAT_URL}"}
  mail: {type: email, host: smtp, from: a@b, to: [c@d], user: u, password: "${MAIL_PW}"}
"""
    )
    monkeypatch.setenv("CHAT_URL", "https://hooks.example/x")
    with pytest.raises(
        MonitorError, match=r"alerts.yaml, line 6: .*password: the environment has no"
    ):
        load_settings(str(path), 900)
    monkeypatch.setenv("MAIL_PW", "hush")
    settings = load_settings(str(path), 600)
    chat, mail = (route.channel for route in settings.routes)
    assert (chat.url, mail.password, mail.port) == ("https://hooks.example/x", "hush", 587)
    rules = {rule.name: rule for rule in settings.rules}
    assert (rules["slow-job"].at_least, rules["slow-job"].sessions) == (1.2, 3)
    assert rules["job-silent"].after_s == 600


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rules: {x: {at_least: 2}}", "line 1: rules.x: is no default rule and needs a kind"),
        ("rules: {slow-job: {kind: fast}}", "kind must be one of"),
        ("rules: {slow-job: {at_least: 1}}", "rules.slow-job: at_least must be above 1"),
        ("rules: {slow-job: {at_leest: 2}}", "did you mean at_least?"),
        ("rules: {slow-job: {sessions: 0}}", "must be a whole number >= 1"),
        ("rules: {slow-job: {gpu_hours: .nan}}", "must be a number, not nan"),
        ("rules: {slow-job: {sessions: 500}}", "sessions must be 200 at most"),
        ("rules: {slow-job: {importance: huge}}", "importance must be one of"),
        ("rules: {slow-job: 3}", "or false to remove the rule"),
        ("rools: {}", "did you mean rules?"),
        ("channels: {a: {type: pager}}", "type: must be one of webhook, slack"),
        ("channels: {a: {type: slack}}", "url is missing"),
        (
            "channels: {a: {type: slack, url: 'http://x', rules: [fail-slw]}}",
            "rules: no rule is like fail-slw; known are slow-job, fail-slow",
        ),
        (
            "channels: {a: {type: email, host: x, from: a@b, to: c@d, port: 99999}}",
            "port: must be from 1 to 65535",
        ),
        ("channels: {a: {type: slack, url: 'file:///etc/passwd'}}", "must begin with http"),
        (
            "channels: {a: {type: webhook, url: 'http://x', headers: {A: \"b\\nC: d\"}}}",
            "line break",
        ),
        ("channels: {a: {type: email, host: x, from: a@b}}", "to: must be an address"),
        (
            "channels: {a: {type: email, host: x, from: a, to: b, security: ssl}}",
            "must be starttls",
        ),
        ("channels: {a: {type: slack, url: 'http://x', importance: 1}}", "must be a text"),
        ("group_wait_s: fast", "number of seconds"),
    ],
)
def test_what_is_wrong_in_the_file_is_said_with_its_line(tmp_path, text, words):
    path = tmp_path / "alerts.yaml"
    path.write_text(text + "\n")
    with pytest.raises(MonitorError, match="line 1: ") as error:
        load_settings(str(path), 900)
    assert words in str(error.value)


def test_rules_check_themselves():
    with pytest.raises(MonitorError, match="after_s must be above 0"):
        Rule("x", "silent", after_s=0)
