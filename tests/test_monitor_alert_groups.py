"""A hundred alerts of one host are one card."""

import pytest

pytest.importorskip("starlette", reason="the monitor is an extra")

from monitor_web import monitor
from paceline.monitor.store import alerts as store
from paceline.monitor.store import jobs
from paceline.monitor.web.alert_groups import grouped


def alert(number, *, rule="slow-job", cause="worker", place="host n1", status="firing"):
    return {"id": number, "rule": rule, "cause": cause, "place": place, "status": status}


def ids(groups):
    return [[row["id"] for row in group] for group in groups]


def test_alerts_of_one_cause_and_place_are_together_from_three_on():
    rows = [
        alert(1), alert(2, place="host n2"), alert(3), alert(4, status="resolved"), alert(5),
        alert(6, place="host n2"), *(alert(n, cause=None, place=None) for n in (7, 8, 9)),
        alert(10, rule="fail-slow"),
    ]  # fmt: skip
    assert ids(grouped(rows)) == [[1, 3, 5], [2], [6], [4], [7], [8], [9], [10]]
    assert grouped([]) == []


def test_the_page_has_a_card_for_all_of_them(tmp_path):
    with monitor(tmp_path) as site:
        engine, now = site.service.engine, site.service.clock()
        for number in range(100):
            job = jobs.register(engine, "llm", f"job-{number}", now)
            fields = {"rule": "slow-job", "importance": "warning", "cause": "worker"}
            fields |= {"place": "host n1", "project": "llm", "status": "firing", "labels": {}}
            fields |= {"headline": f"slow {number}", "started_at": now, "updated_at": now}
            store.fire(engine, {"fingerprint": f"f{number}", "job_id": job.id, **fields}, [], now)
        page = site.ask("GET", "/alerts", token=site.token(), headers={"Accept": "text/html"}).text
    assert page.count('<li class="card') == 1
    assert "100 jobs: Worker" in page
    assert "host n1" in page
    assert "job-42" in page
