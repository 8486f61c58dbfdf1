"""Jumps of a clock are noticed; time that passes, and corrections, are none."""

import pytest

import requires

requires.installed("starlette")

from monitor_web import eventually, monitor
from paceline.monitor import service as module
from paceline.monitor.clock_jumps import ClockWatch
from paceline.monitor.store import jobs


@pytest.mark.parametrize("jump_s", [86_400.0, 6.0, -60.0])
def test_a_jump_is_told_once(jump_s):
    at = {"clock": 1_000_000.0, "steady": 50.0}
    watch = ClockWatch(lambda: at["clock"], lambda: at["steady"])
    at["clock"] += 3600.0
    at["steady"] += 3600.0
    assert watch.jump_s() == 0.0
    at["clock"] += 2.0
    assert watch.jump_s() == 0.0
    at["clock"] += jump_s
    assert watch.jump_s() == jump_s
    assert watch.jump_s() == 0.0


def test_no_job_is_silent_since_a_time_of_another_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TICK_S", 0.05)
    real, ahead = module.time.time, [0.0]
    monkeypatch.setattr(module.time, "time", lambda: real() + ahead[0])
    with monitor(tmp_path, clock=None, silent_after_s=60.0) as site:
        service, token = site.service, site.token()
        body = {"steps": [0], "ranks": [0], "durations_s": [1.0], "source": "s/0", "world": 1}
        url = "/api/v1/jobs/job/steps"
        assert site.ask("POST", url, token=token, body={**body, "batch": 0}).status == 200

        def row():
            return jobs.list_jobs(service.engine, "*", -1, 10)[0]

        eventually(lambda: row()["status"] == "running")
        begun = service.started_at
        ahead[0] = 86_400.0
        eventually(lambda: service.started_at > begun + 86_000)
        service._find_silent(service.clock())
        assert row()["status"] == "running"
        answer = site.ask("POST", url, token=token, body={**body, "batch": 1, "steps": [1]})
        assert answer.status == 200
        eventually(lambda: row()["last_step"] == 1)
        ahead[0] = 0.0
        eventually(lambda: row()["seen_at"] <= service.clock())  # it may fall silent again
