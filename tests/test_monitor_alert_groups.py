"""A hundred alerts of one host are one card."""

import pytest

pytest.importorskip("starlette", reason="the monitor is an extra")

from monitor_alerts import fire
from monitor_web import monitor
from paceline.monitor.store import alerts as store
from paceline.monitor.store import jobs
from paceline.monitor.web.alert_groups import group_of, grouped
from paceline.units import moment


def alert(number, *, rule="slow-job", cause="worker", hosts="n1", place="", status="firing"):
    place = f"host {hosts}" if hosts else place or None
    row = {"id": number, "rule": rule, "cause": cause, "hosts": hosts, "place": place}
    return {**row, "status": status}


def ids(groups):
    return [[row["id"] for row in group] for group in groups]


def test_alerts_of_one_cause_and_place_are_together_from_three_on():
    rows = [
        alert(1), alert(2, hosts="n2"), alert(3), alert(4, status="resolved"), alert(5),
        alert(6, hosts="n2"), *(alert(n, cause=None, hosts=None) for n in (7, 8, 9)),
        alert(10, rule="fail-slow"),
    ]  # fmt: skip
    assert ids(grouped(rows)) == [[1, 3, 5], [2], [6], [4], [7], [8], [9], [10]]
    assert grouped([]) == []


def test_a_host_is_one_whatever_the_rank_and_a_rank_is_another_in_each_job():
    rows = [alert(n, hosts="n1", cause="fail-slow") for n in (1, 2, 3)]
    rows += [alert(n, hosts=None, place="rank 5", cause="fail-slow") for n in (4, 5, 6)]
    rows += [alert(n, hosts=None, cause="silent") for n in (7, 8, 9)]
    assert ids(grouped(rows)) == [[1, 2, 3], [4], [5], [6], [7, 8, 9]]
    assert ids([group_of(rows[1], rows), group_of(rows[4], rows)]) == [[1, 2, 3], [5]]


def test_the_page_has_a_card_for_all_of_them(tmp_path):
    with monitor(tmp_path) as site:
        engine, now = site.service.engine, site.service.clock()
        for number in range(100):
            job = jobs.register(engine, "llm", f"job-{number}", now)
            fields = {"rule": "slow-job", "importance": "warning", "cause": "worker"}
            fields |= {
                "place": "host n1",
                "hosts": "n1",
                "project": "llm",
                "status": "firing",
                "labels": {},
            }
            fields |= {"headline": f"slow {number}", "started_at": now, "updated_at": now}
            fire(engine, {"fingerprint": f"f{number}", "job_id": job.id, **fields}, now)
        page = site.ask("GET", "/alerts", token=site.token(), headers={"Accept": "text/html"}).text
        other = {"project": "vision", "job_id": jobs.register(engine, "vision", "x", now).id}
        fire(engine, {"fingerprint": "other", **fields, **other}, now)
        operator = site.token("operate", "llm")
        form = {"hours": "2", "why": "host is out", "group": "1"}
        assert site.ask("POST", "/alerts/1/silence", token=operator, form=form).status == 303
        silences = store.list_silences(engine, "*", now)
        ended = site.ask("POST", f"/silences/{silences[0]['id']}/end", token=operator, form={})
        theirs = store.add_silence(
            engine, "vision", rule=None, job="x", until=now + 99, comment="", now=now
        )
        refused = site.ask("POST", f"/silences/{theirs}/end", token=operator, form={})
        left = store.list_silences(engine, "llm", site.service.clock())
        form = {"hours": "3", "why": "I drain it", "group": "1"}
        card = site.ask("POST", "/alerts/5/acknowledge", token=operator, form=form)
        theirs_too = site.ask("POST", "/alerts/101/acknowledge", token=operator, form=form)
        over = site.ask("POST", "/alerts/7/acknowledge/end", token=operator, form={})
        silenced = site.ask("GET", "/alerts", token=operator, headers={"Accept": "text/html"}).text
    assert {(row["project"], row["job"], row["comment"]) for row in silences} == {
        ("llm", f"job-{number}", "host is out") for number in range(100)
    }
    assert (ended.status, refused.status, len(left)) == (303, 404, 99)
    assert (card.status, theirs_too.status, over.status) == (303, 404, 303)
    assert "99 of 100 are acknowledged" in silenced
    assert silenced.count("I drain it") == 99
    assert "99 of 100 are silenced, the first until" in silenced
    assert "Silence all 100" in page
    assert "Acknowledge all 100" in page
    assert silenced.count('aria-label="End silence') == 99
    assert page.count('<li class="card') == 1
    assert "100 jobs: Worker" in page
    assert "host n1" in page
    assert "job-42" in page


def test_a_card_says_until_when_it_is_silenced(tmp_path):
    def page():
        headers = {"Accept": "text/html"}
        return site.ask("GET", "/alerts", token=operator, headers=headers).text

    with monitor(tmp_path) as site:
        engine, now = site.service.engine, site.service.clock()
        job = jobs.register(engine, "llm", "job", now)
        fields = {"rule": "slow-job", "importance": "warning", "headline": "slow", "labels": {}}
        fields |= {"project": "llm", "status": "firing", "started_at": now, "updated_at": now}
        fire(engine, {"fingerprint": "f", "job_id": job.id, **fields}, now)
        operator = site.token("operate", "llm")
        assert "<button formaction=" in page()
        form = {"hours": "4", "why": ""}
        assert site.ask("POST", "/alerts/1/silence", token=operator, form=form).status == 303
        (silence,) = store.list_silences(engine, "*", now)
        card = page()
        assert '<span class="tag">silenced</span>' in card
        said = f"<dt>Silenced</dt><dd>until {moment(silence['until'])} UTC, by <bdi>operate of llm"
        assert said in card
        assert "<button formaction=" not in card
        assert "<button>Acknowledge</button>" in card
        assert '<b class="count">1' in card  # a silence holds messages back; the alert fires
        path = f"/silences/{silence['id']}/end"
        assert site.ask("POST", path, token=operator, form={}).status == 303
        assert "Silenced</dt>" not in page()
        assert "<button formaction=" in page()
