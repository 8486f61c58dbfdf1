"""Silences: what they are about, and what they hold back."""

import pytest

import requires

requires.installed("starlette")

import monitor_alerts
from monitor_alerts import DAY, World, courier, hooked
from paceline.monitor.store import alerts as store
from paceline.monitor.store.tables import deliveries

hook = monitor_alerts.hook


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


@pytest.mark.parametrize(("rule", "status"), [("fail-slw", 2), ("fail-*", 0)])
def test_a_silence_is_about_a_rule_there_is(tmp_path, capsys, rule, status):
    from paceline.cli.main import run

    World(tmp_path)
    args = ["--rule", rule, "--job", "g*", "--data", str(tmp_path)]
    assert run(["alerts", "silence", *args]) == status
    said = capsys.readouterr()
    assert ("there is no rule fail-slw" in said.err) == (status == 2)
