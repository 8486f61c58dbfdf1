"""Every route of the monitor, asked by another project: nothing is told, nothing is changed.

The routes are those of the application, so a new one is asked, too.
"""

import itertools

import pytest
from sqlalchemy import insert, select

import requires

requires.installed("starlette")

from monitor_web import monitor
from paceline.monitor.blobs import RESULTS, result_key
from paceline.monitor.store import accounts, alerts, events, jobs, sessions, tables, tokens, uploads
from paceline.monitor.store.audit import SERVICE
from paceline.monitor.web.app import create_app

#: In each text of theirs.
SECRET = "SECRET"
JOB = "their-job"
#: Of no project: health, files, the login; and the stream, which test_monitor_pages.py reads.
OPEN = ("/healthz", "/readyz", "/login", "/logout", "/static/", "/api/v1/openapi.json", "/events")
STEPS = {"steps": [7], "ranks": [0], "durations_s": [9.0], "source": "s/0", "batch": 7, "world": 1}
#: What is sent, by the end of the path; else an empty object.
BODIES = {
    "/jobs": {"name": JOB, "gpus": 1},
    "/ended": {"labels": {"team": SECRET}},
    "/events": {"kind": "paused", "step": 1, "at": 1.0, "text": "mine", "ranks": [0]},
    "/jobs/{name}/steps": STEPS,
    "/v1/steps": {"batches": [{"job": JOB, **STEPS}]},
    "/uploads": {"sha256": "b" * 64, "size": 9, "file_name": "mine.parquet"},
    "/acknowledgement": {"hours": 1.0},
    "/silences": {"hours": 1.0, "job": JOB},
    "/tokens": {"name": "mine", "days": 1},
    "/accounts": {"name": "mine", "scope": "read"},
    "/traces": {"resourceSpans": []},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with monitor(tmp_path_factory.mktemp("site") / "data", analysis_processes=1) as site:
        yield site


@pytest.fixture(scope="module")
def theirs(site):
    """One of each thing of another project: placeholder of a path -> its number or name."""
    engine, now = site.service.engine, site.service.clock()
    job = jobs.register(engine, "theirs", JOB, now, gpus=8, labels={"team": SECRET})
    trace = {"sha256": "a" * 64, "size_bytes": 9, "file_name": f"{SECRET}.parquet", "meta": {}}
    number = sessions.enqueue(engine, job.id, trace, now)
    values = {"status": "done", "headline": SECRET, "cause": "gc", "slowdown": 1.5, "waste": 0.3}
    sessions.finish(engine, number, {**values, "finished_at": now})
    for name in RESULTS:
        path = site.service.config.data / name
        path.write_text(SECRET)
        site.service.blobs.take(path, result_key(number, name))
    upload = uploads.begin(engine, "c" * 32, job.id, {**trace, "sha256": "c" * 64}, now)
    event = {"job_id": job.id, "at": now, "kind": "onset", "start": 0, "step": 3, "since_step": 2}
    event |= {"factor": 1.4, "lost_s": 1.0, "ranks": [0], "text": SECRET}
    events.add(engine, event)
    alert = {"fingerprint": f"fail-slow/{job.id}", "rule": "fail-slow", "project": "theirs"}
    alert |= {"job_id": job.id, "session_id": None, "importance": "warning", "labels": {}}
    alert |= {"headline": SECRET, "cause": None, "place": SECRET, "hosts": None, "gain": None}
    alert |= {"status": "firing", "started_at": now, "updated_at": now}
    (told,) = alerts.change(engine, [alerts.Firing(alert, ["hook"])], [], now, now)
    firing = told.id
    silence = alerts.add_silence(
        engine, "theirs", rule=None, job=JOB, until=now + 999, comment=SECRET, now=now, by=SERVICE
    )
    account = accounts.create_account(
        engine, SECRET, project="theirs", scope="push", now=now, by=SERVICE
    )
    token, _ = tokens.create_token(
        engine, SECRET, scope="read", project="theirs", now=now, by=SERVICE
    )
    login = {"sha256": "d" * 64, "name": SECRET, "issuer": "x", "subject": "x", "groups": []}
    with engine.begin() as connection:
        row = {**login, "created_at": now, "expires_at": now + 999}
        inserted = connection.execute(insert(tables.logins).values(**row).returning(tables.logins))
        login_id = inserted.one().id
    jobs.register(engine, "mine", "my-job", now)
    return {
        "{name}": JOB,
        "/api/v1/sessions/{id}": number,
        "/sessions/{id}": number,
        "/uploads/{id}": upload["id"],
        "/alerts/{id}": firing,
        "/silences/{id}": silence,
        "/accounts/{id}": account.id,
        "/tokens/{id}": token.id,
        "/logins/{id}": login_id,
    }


def paths_of(site, theirs):
    """(method, route, path) with the other project's names and numbers."""
    found = []
    for route in create_app(site.service).routes:
        if route.path.startswith(OPEN):
            continue
        path = route.path.replace("{name}", str(theirs["{name}"]))
        for place, number in theirs.items():
            path = path.replace(place, place.replace("{id}", str(number)))
        assert "{" not in path, f"{route.path}: say here what of another project it is asked for"
        found += [(method, route.path, path) for method in sorted(route.methods - {"HEAD"})]
    return found


def rows_of(site):
    """All rows of the other project, without the time at which a token was used."""
    with site.service.engine.connect() as connection:
        their_jobs = select(tables.jobs.c.id).where(tables.jobs.c.project == "theirs")
        found = {}
        for table in tables.metadata.sorted_tables:
            if "project" in table.c:
                mine = table.c.project == "theirs"
            elif "job_id" in table.c:
                mine = table.c.job_id.in_(their_jobs)
            elif table.name == "logins":
                mine = table.c.subject == "x"
            else:
                continue
            columns = [column for column in table.c if column.name != "used_at"]
            found[table.name] = list(connection.execute(select(*columns).where(mine)).all())
        return found


@pytest.mark.parametrize("scope", ["read", "push", "operate", "admin"])
def test_another_project_learns_and_changes_nothing(site, theirs, scope):
    token, before = site.token(scope, "mine"), rows_of(site)
    assert all(len(before[name]) >= 1 for name in ("jobs", "sessions", "uploads", "alerts"))
    asked = paths_of(site, theirs)
    assert len(asked) > 55
    queries = ("", "?project=theirs", "?project=*", "?project=mine&project=theirs")
    for (method, route, path), query in itertools.product(asked, queries):
        body = form = None
        if method != "GET" and route.startswith(("/api/", "/v1/")):
            ends = [end for end in BODIES if route.endswith(end)]
            body = BODIES[max(ends, key=len)] if ends else {}
        elif method == "POST":
            form = {"hours": "1", "days": "1", "name": "mine", "scope": "read", "note": "x"}
        answer = site.ask(method, path + query, token=token, body=body, form=form)
        assert SECRET not in answer.text, (method, path, query)
        assert answer.status < 500, (method, path, query, answer.text)
        assert answer.status != 429
        if "{id}" in route or ("project=" in query and route != "/metrics"):  # that is of one's own
            assert answer.status >= 400, (method, path, query, answer.text)
    assert rows_of(site) == before


def test_they_are_told_it_all(site, theirs):
    """So the requests above ask for what is there."""
    told = 0
    for method, _, path in paths_of(site, theirs):
        if method == "GET":
            token = site.token("admin", "theirs")
            told += SECRET in site.ask("GET", path, token=token).text
    assert told >= 12
