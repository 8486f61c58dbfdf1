"""Messages reach their channels: grouped, in order, and again where they failed."""

import hashlib
import hmac
import json
import threading
import time
from dataclasses import replace

import pytest

import requires

requires.installed("starlette")

import monitor_alerts
from monitor_alerts import DAY, HOOK, HOUR, World, courier, hooked
from monitor_stores import STORES
from monitor_web import eventually
from paceline.monitor.alerts import delivery
from paceline.monitor.alerts.channels import Webhook
from paceline.monitor.alerts.notice import Notice
from paceline.monitor.alerts.pagers import Opsgenie, PagerDuty
from paceline.monitor.store import alerts as store
from paceline.monitor.store import jobs
from paceline.monitor.store.tables import deliveries

hook = monitor_alerts.hook


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
        assert [row["status"] for row in store.list_alerts(world.engine, "llm")] == ["resolved"]
        assert store.list_alerts(world.engine, "llm", status="firing") == []
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


def test_ends_that_come_together_are_one_message(tmp_path, hook):
    world = hooked(tmp_path, hook)
    for _ in range(2):
        world.session(1.3)
    courier(world).round()
    world.alerts.settings = replace(world.alerts.settings, group_wait_s=10)
    world.session(1.0)
    (end,) = [row for row in world.rows(deliveries) if row["status"] == "resolved"]
    assert end["next_at"] == world.now + 10


@pytest.mark.parametrize(
    ("wait_s", "told"), [(60, ["firing"]), (0, ["firing", "firing", "resolved"])]
)
def test_an_alert_that_another_one_replaces_before_its_message_is_not_told(
    tmp_path, hook, wait_s, told
):
    """A newcomer got "firing slow-job" 7 s after fail-slow had ended it."""
    world = hooked(tmp_path, hook)
    world.alerts.settings = replace(world.alerts.settings, group_wait_s=wait_s)
    world.set_job(last_step=110, healthy_s=1.0, slow_since_step=100, seen_at=world.now + DAY)
    world.happened("onset", 100, factor=1.3, lost_s=1.0)
    world.session(1.3)
    world.session(1.3)
    assert world.firing() == ["slow-job"]
    world.set_job(last_step=400)
    world.pass_time(10)
    assert world.firing() == ["fail-slow"]
    rows = world.rows(deliveries)
    assert sorted(row["status"] for row in rows) == told
    last = max(row["alert_id"] for row in rows)
    assert [row["status"] for row in rows if row["alert_id"] == last] == ["firing"]


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


def test_a_cause_that_becomes_known_is_told_once(tmp_path, hook):
    world = hooked(tmp_path, hook, more="rules: {slow-job: false}\n")
    sender = courier(world)
    world.happened("onset", 100)
    world.set_job(slow_since_step=100)
    sender.round()
    (begin,) = hook.wait(1)
    assert (begin["alerts"][0]["cause"], begin["alerts"][0]["is_update"]) == ("fail-slow", False)
    for _ in range(3):  # three traces, one message
        world.session(1.4)
        sender.round()
    world.now += 1
    sender.round()
    begin, update = hook.wait(2)
    assert len(hook.received) == 2
    (alert,) = update["alerts"]
    assert (alert["cause"], alert["status"], alert["is_update"]) == ("worker", "firing", True)
    assert update["title"] == "[CAUSE] job-1: fail-slow"
    keys = [headers["Idempotency-Key"] for _, headers, _, _ in hook.received]
    assert keys[0] != keys[1]
    world.set_job(status="ended")
    world.alerts.judge(world.job.id, world.now)
    sender.round()
    assert hook.wait(3)[2]["status"] == "resolved"


def test_a_later_session_that_names_the_cause_is_told(tmp_path, hook):
    """The first sessions had too few steps to name the worker."""
    world = hooked(tmp_path, hook)
    sender = courier(world)
    for _ in range(2):
        world.session(1.4, cause="unexplained")
    sender.round()
    (begin,) = hook.wait(1)
    assert (begin["alerts"][0]["rule"], begin["alerts"][0]["cause"]) == ("slow-job", "unexplained")
    world.session(1.4, cause="unexplained")
    for cause in ("worker", "link"):  # the second one changes the page only
        world.session(1.4, cause=cause)
        sender.round()
        world.now += 1
        sender.round()
    assert len(hook.received) == 2
    (alert,) = hook.wait(2)[1]["alerts"]
    assert (alert["cause"], alert["is_update"], alert["id"]) == (
        *("worker", True, begin["alerts"][0]["id"]),
    )


def test_a_new_cause_does_not_keep_the_place_of_another(tmp_path, hook):
    world = hooked(tmp_path, hook)
    for _ in range(2):
        world.session(1.4, cause="worker")
    with world.engine.begin() as connection:
        told = {"place": "worker dp 1, stage 0", "hosts": "node7", "gain": "replace it"}
        connection.execute(store.alerts.update().values(**told))
    number = world.session(1.4, cause="sequence-length")
    (row,) = world.rows()
    names = ("cause", "session_id", "place", "hosts", "gain")
    assert [row[name] for name in names] == ["sequence-length", number, None, None, None]


def test_a_cause_that_is_known_at_once_is_in_the_first_message(tmp_path, hook):
    world = hooked(tmp_path, hook, more="rules: {slow-job: false}\n")
    world.happened("onset", 100)
    world.set_job(slow_since_step=100)
    world.session(1.4)  # before anybody was told
    courier(world).round()
    courier(world).round()
    (begin,) = hook.wait(1)
    assert begin["alerts"][0]["cause"] == "worker"
    assert len(hook.received) == 1


def test_a_cause_that_is_learned_again_after_a_worsening_is_not_told_again(tmp_path, hook):
    """A newcomer's rank became slower and slower: each trace named it, at each level."""
    world = hooked(tmp_path, hook, more="rules: {slow-job: false}\n")
    sender = courier(world)
    world.happened("onset", 100)
    world.set_job(slow_since_step=100)
    world.session(1.4)
    sender.round()
    (begin,) = hook.wait(1)
    assert begin["alerts"][0]["cause"] == "worker"
    world.now += 1
    world.happened("worsening", 300, factor=2.5)  # a larger rise, of which no trace tells yet
    assert world.rows()[0]["cause"] == "fail-slow"
    world.session(2.5)
    assert world.rows()[0]["cause"] == "worker"
    world.now += 1
    sender.round()
    assert len(hook.received) == 1


def test_another_cause_after_a_worsening_is_told(tmp_path, hook):
    world = hooked(tmp_path, hook, more="rules: {slow-job: false}\n")
    sender = courier(world)
    world.happened("onset", 100)
    world.set_job(slow_since_step=100)
    world.session(1.4)
    sender.round()
    world.now += 1
    world.happened("worsening", 300, factor=2.5)
    world.session(2.5, cause="link")
    world.now += 1
    sender.round()
    assert [m["alerts"][0]["cause"] for m in hook.wait(2)] == ["worker", "link"]
    assert hook.wait(2)[1]["title"] == "[CAUSE] job-1: fail-slow"


def test_a_cause_that_a_worsening_makes_unknown_before_its_message_is_not_told(tmp_path, hook):
    world = hooked(tmp_path, hook, more="rules: {slow-job: false}\n")
    sender = courier(world)
    world.happened("onset", 100)
    world.set_job(slow_since_step=100)
    sender.round()
    world.session(1.4)
    world.now += 1
    world.happened("worsening", 300, factor=2.5)
    sender.round()
    assert len(hook.received) == 1  # it would name no cause
    world.session(2.5)
    world.now += 1
    sender.round()
    assert [m["alerts"][0]["cause"] for m in hook.wait(2)] == ["fail-slow", "worker"]


def test_the_cause_of_what_is_over_is_not_told(tmp_path, hook):
    world = hooked(tmp_path, hook, more="rules: {slow-job: false}\n")
    sender = courier(world)
    world.happened("onset", 100)
    world.set_job(slow_since_step=100)
    sender.round()
    world.session(1.4)
    world.set_job(status="ended")
    world.alerts.judge(world.job.id, world.now)
    sender.round()
    assert [message["status"] for message in hook.wait(2)] == ["firing", "resolved"]


def test_opsgenie_gets_a_new_description_and_no_new_alert(tmp_path, hook):
    notice = Notice(
        7, "firing", "fail-slow", "critical", "llm", "job-1", "Slow.", "worker", "gpu-7", None,
        "http://here/jobs/job-1", 1.0, is_update=True,
    )  # fmt: skip
    Opsgenie("pager", "key", hook.url).send([notice], 2.0)
    path, _, body, _ = hook.received[0]
    assert path.endswith("/description?identifierType=alias")
    assert json.loads(body)["description"].startswith("Slow.\nCause: worker\nWhere: gpu-7")
    PagerDuty("pager", "key", hook.url).send([notice], 2.0)
    event = json.loads(hook.received[1][2])
    assert event["event_action"] == "trigger"
    assert event["payload"]["class"] == "worker"


def test_a_clock_that_was_ahead_for_a_while_holds_no_message_back(tmp_path, hook):
    world = hooked(tmp_path, hook)
    world.now += DAY
    world.session(1.3)
    world.session(1.3)
    world.now -= DAY  # before the message was sent
    courier(world).round()
    assert [message["status"] for message in hook.wait(1)] == ["firing"]
    (row,) = world.rows(deliveries)
    store.mark(world.engine, [row["id"]], next_at=world.now + DAY)
    assert len(store.repeatable(world.engine, row["channel"], world.now)) == 1
