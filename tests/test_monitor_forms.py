"""Every form of the pages: not from another site, nor on things of another project."""

import pytest

import requires

requires.installed("starlette")

from starlette.routing import Route

from monitor_alerts import fire
from monitor_web import monitor
from paceline.monitor.store import accounts, jobs, tokens
from paceline.monitor.store import alerts as store
from paceline.monitor.store.audit import Actor
from paceline.monitor.store.tables import sessions
from paceline.monitor.web.app import create_app

ME = Actor("test", "token", "")
#: Forms with which one logs in, or out: they have tests of their own.
LOGINS = {"/login", "/logout"}
FIELDS = {"hours": "4", "days": "1", "name": "evil", "scope": "read"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with monitor(tmp_path_factory.mktemp("forms"), requests_per_minute=100_000) as found:
        yield found


def forms(site):
    """The paths that pages post to, out of the service's own routes."""
    found = {
        route.path
        for route in create_app(site.service).routes
        if isinstance(route, Route) and "POST" in (route.methods or ())
    }
    return sorted(p for p in found - LOGINS if not p.startswith(("/api/", "/v1/", "/login")))


def things(site, project):
    """A job with a session, an alert, a silence, a token, an account and a login: its numbers."""
    engine, now = site.service.engine, site.service.clock()
    job = jobs.register(engine, project, "job", now, gpus=8)
    with engine.begin() as connection:
        row = {"job_id": job.id, "status": "done", "sha256": "0" * 64}
        row |= {"created_at": now, "file_name": "t.parquet", "size_bytes": 1, "meta": {}}
        session = connection.execute(sessions.insert().values(**row)).inserted_primary_key[0]
    alert = {"fingerprint": f"f-{project}", "rule": "slow-job", "project": project, "labels": {}}
    alert |= {"job_id": job.id, "importance": "warning", "cause": "worker", "place": "host n1"}
    alert |= {"status": "firing", "headline": "slow", "started_at": now, "updated_at": now}
    number = fire(engine, alert, now)
    more = {"project": project, "now": now, "by": ME}
    silence = store.add_silence(
        engine, project, rule=None, job="job", until=now + 999, comment="", now=now, by=ME
    )
    account = accounts.create_account(engine, f"ci-{project}", scope="push", **more).id
    token = tokens.create_token(engine, "t", scope="read", **more)[0].id
    return {"session": session, "alert": number, "silence": silence} | {
        "account": account, "token": token, "login": 1,
    }  # fmt: skip


def filled(path, numbers):
    """A form's path about these things: {id} is of what stands before it."""
    kind = path.partition("/{id}")[0].rpartition("/")[2].rstrip("s")
    return path.replace("{id}", str(numbers.get(kind))).replace("{name}", "job")


def state(site):
    """All that a form may change."""
    names = ("jobs", "sessions", "alerts", "silences", "tokens", "accounts", "audit")
    columns = {"tokens": "id, revoked_at", "jobs": "id, status"}
    with site.service.engine.connect() as connection:
        return [
            connection.exec_driver_sql(f"SELECT {columns.get(n, '*')} FROM {n} ORDER BY 1").all()
            for n in names
        ]


def test_all_forms_are_known(site):
    assert len(forms(site)) >= 12
    assert "/alerts/{id}/silence" in forms(site)
    assert "/silences/{id}/end" in forms(site)


def test_no_form_of_another_site_does_anything(site):
    mine = things(site, "csrf")
    answer = site.ask("POST", "/login", form={"token": site.token()})
    cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
    before = state(site)
    for path in forms(site):
        path = filled(path, mine)
        for where in (
            {"Origin": "https://evil.example"}, {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
        ):  # fmt: skip
            asked = site.ask("POST", path, form=FIELDS, headers={**cookie, **where})
            assert asked.status == 403, (path, where)
        assert site.ask("GET", path, headers=cookie).status in (404, 405), path
    assert state(site) == before


def test_no_form_touches_another_projects_things(site):
    theirs = things(site, "theirs")
    for scope in ("push", "read", "operate", "admin"):
        mine = site.token(scope, "mine")
        before = state(site)
        for path in forms(site):
            if "{" not in path:
                continue  # makes something of one's own
            for query in ("", "?project=theirs", "?project=*", "?project=mine&project=theirs"):
                for more in ({}, {"group": "1"}):
                    asked = site.ask(
                        "POST", filled(path, theirs) + query, token=mine, form={**FIELDS, **more}
                    )
                    assert asked.status in (400, 403, 404), (scope, path, query)
                    assert "pcl_" not in asked.text
        assert state(site) == before, scope


def test_nobody_without_a_login_uses_a_form(site):
    mine = things(site, "nobody")
    before = state(site)
    for path in forms(site):
        asked = site.ask("POST", filled(path, mine), form=FIELDS)
        assert asked.status in (303, 401), path
        assert asked.status == 401 or asked.headers["location"].startswith("/login")
    assert state(site) == before
