"""Acknowledged alerts: who looks at them, until when and why; they are told as before."""

import pytest

import requires

requires.installed("starlette", "sqlalchemy")

import monitor_alerts
from monitor_alerts import HOUR, World, courier, fire, hooked
from monitor_web import monitor
from paceline.cli.main import run
from paceline.errors import MonitorError
from paceline.monitor.store import alerts as store
from paceline.monitor.store import jobs
from paceline.monitor.store.acknowledgements import acknowledge, end_acknowledgement
from paceline.monitor.store.audit import Actor, list_entries

hook = monitor_alerts.hook
ANN = Actor("ann", "user", "")


def fired(engine, now, name="job-1", project="llm", hosts="n1"):
    job = jobs.register(engine, project, name, now)
    row = {"fingerprint": f"slow-job/{job.id}", "rule": "slow-job", "project": project}
    row |= {"job_id": job.id, "session_id": None, "importance": "warning", "labels": {}}
    row |= {"headline": "slow", "cause": "worker", "place": f"host {hosts}", "hosts": hosts}
    row |= {"gain": None, "status": "firing", "started_at": now, "updated_at": now}
    return fire(engine, row, now)


def test_who_until_when_and_why_are_kept_and_written_down(tmp_path):
    world = World(tmp_path)
    number, now = fired(world.engine, world.now), world.now
    values = {"until": now + HOUR, "comment": "draining n1", "now": now, "by": ANN}
    assert acknowledge(world.engine, [number, 99], "llm", **values) == [number]
    assert acknowledge(world.engine, [number], "other", **values) == []
    (row,) = store.list_alerts(world.engine, "llm")
    said = {name: row[f"acknowledged_{name}"] for name in ("by", "at", "until", "why")}
    assert said == {"by": "ann", "at": now, "until": now + HOUR, "why": "draining n1"}
    (entry,) = list_entries(world.engine, "llm")
    assert (entry["name"], entry["action"]) == ("ann", "alert-acknowledged")
    assert "draining n1" in entry["subject"]
    assert not end_acknowledgement(world.engine, number, "other", now, ANN)
    assert not end_acknowledgement(world.engine, number, "llm", now + 2 * HOUR, ANN)  # over
    assert end_acknowledgement(world.engine, number, "llm", now, ANN)
    assert store.list_alerts(world.engine, "llm")[0]["acknowledged_by"] is None
    assert list_entries(world.engine, "llm")[0]["action"] == "acknowledgement-ended"


@pytest.mark.parametrize("until", [999_999.0, float("inf"), float("nan")])
def test_its_end_is_ahead(tmp_path, until):
    world = World(tmp_path)
    number = fired(world.engine, world.now)
    with pytest.raises(MonitorError, match="ended already, or never end"):
        acknowledge(world.engine, [number], "*", until=until, comment="", now=world.now)


def test_its_end_is_told_and_a_new_alert_is_nobodys(tmp_path, hook):
    world = hooked(tmp_path, hook)
    world.session(1.3)
    world.session(1.3)
    courier(world).round()
    hook.wait(1)
    (row,) = store.list_alerts(world.engine, "*")
    values = {"until": world.now + 99 * HOUR, "comment": "", "now": world.now}
    assert acknowledge(world.engine, [row["id"]], "*", **values) == [row["id"]]
    world.session(1.0)
    world.now += 60
    courier(world).round()
    assert [each["status"] for each in hook.wait(2)] == ["firing", "resolved"]
    assert acknowledge(world.engine, [row["id"]], "*", **values) == []  # it is over
    world.session(1.3)
    world.session(1.3)
    courier(world).round()
    hook.wait(3)
    assert store.list_alerts(world.engine, "*")[0]["acknowledged_by"] is None


def test_over_http_one_or_a_card(tmp_path):
    with monitor(tmp_path) as site:
        engine, now = site.service.engine, site.service.clock()
        numbers = [fired(engine, now, f"job-{n}") for n in range(3)]
        other = fired(engine, now, "job-x", hosts="n2")
        theirs = fired(engine, now, "job-y", project="vision")
        operator, reader = site.token("operate", "llm"), site.token("read", "llm")

        def ask(number, body, token=operator, method="POST"):
            path = f"/api/v1/alerts/{number}/acknowledgement"
            return site.ask(method, path, token=token, body=body)

        card = ask(numbers[1], {"hours": 2, "comment": "seen", "together": True})
        assert (card.status, card.json["alerts"]) == (200, numbers)
        assert ask(other, {"hours": 0.5}).json["alerts"] == [other]
        assert ask(theirs, {"hours": 1}).status == 404
        assert ask(theirs, {"hours": 1, "together": True}).status == 404
        assert ask("x", {"hours": 1}).status == 404
        assert ask(other, {"hours": 1}, token=reader).status == 403
        assert [ask(other, {"hours": h}).status for h in (0, -1, 1e9, "a")] == [400] * 4
        rows = site.ask("GET", "/api/v1/alerts", token=reader).json["alerts"]
        assert [row["acknowledged_by"] is not None for row in rows] == [True] * 4
        assert ask(other, None, method="DELETE").json == {"id": other, "status": "ended"}
        assert ask(other, None, method="DELETE").status == 404
        assert ask(numbers[0], None, token=reader, method="DELETE").status == 403
        page = site.ask("GET", "/", token=reader, headers={"Accept": "text/html"}).text
        assert page.count("acknowledged by") == 3


def test_by_the_command(tmp_path, capsys):
    world = World(tmp_path)
    number = fired(world.engine, 1.0)
    data = ["--data", str(tmp_path)]
    say = ["alerts", "acknowledge", str(number)]
    assert run([*say, "--hours", "2", "--comment", "mine", *data]) == 0
    assert run(["alerts", "list", *data]) == 0
    out = capsys.readouterr().out
    assert f"alert {number} is acknowledged for 2 hours" in out
    assert ": mine" in out
    assert run([*say, "--end", *data]) == 0
    assert run([*say, "--end", *data]) == 2
    assert run(["alerts", "acknowledge", "77", *data]) == 2
    assert "no alert 77 fires" in capsys.readouterr().err
