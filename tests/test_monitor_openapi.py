"""The API's document says what the API does: held against the routes, and against its answers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import requires

requires.installed("starlette")

from starlette.routing import Route

from monitor_web import eventually, monitor
from paceline.monitor.blobs import RESULT, result_key
from paceline.monitor.step_series import read_rows
from paceline.monitor.store import jobs, tables
from paceline.monitor.store.logins import begin_login
from paceline.monitor.store.tokens import SCOPES
from paceline.monitor.web.app import create_app
from paceline.monitor.web.ops import openapi_json

METHODS = ("get", "put", "post", "delete", "patch")
#: What people see, or is for pages; docs/api.md is about programs.
PAGES = re.compile(
    r"/|/(login|logout|events|fleet|alerts|access|silences|static|jobs|sessions)(/.*)?"
)


@pytest.fixture(scope="module")
def document():
    return json.loads(openapi_json())


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with monitor(
        tmp_path_factory.mktemp("site"), max_body_mib=1, requests_per_minute=10**9
    ) as found:
        yield found


def operations(document):
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                yield method.upper(), path, item[method], item.get("parameters", [])


def test_routes_and_document_are_the_same(site, document):
    app = create_app(site.service)
    routes = {
        (method, route.path)
        for route in app.routes
        if isinstance(route, Route) and not PAGES.fullmatch(route.path)
        for method in route.methods - {"HEAD"}
    }
    assert routes == {(method, path) for method, path, _, _ in operations(document)}


def test_operations_are_complete(document):
    names = [operation["operationId"] for _, _, operation, _ in operations(document)]
    assert len(set(names)) == len(names)
    for method, path, operation, shared in operations(document):
        told = json.dumps([operation.get("parameters", []), shared])
        for name in re.findall(r"{(\w+)}", path):
            parameters = [*operation.get("parameters", []), *shared]
            found = [resolved(document, parameter)["name"] for parameter in parameters]
            assert name in found, (method, path, told)
        assert operation["summary"], path
        assert "200" in operation["responses"], path
        assert "401" in operation["responses"], path


def resolved(document, node):
    while "$ref" in node:
        found = document
        for part in node["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        node = found
    return node


def test_the_service_gives_it_to_everybody(site, document):
    answer = site.ask("GET", "/api/v1/openapi.json")
    assert answer.status == 200
    assert answer.json == document


@pytest.mark.parametrize(
    ("method", "path", "scopes"),
    [
        ("POST", "/api/v1/jobs", "push"),
        ("POST", "/api/v1/jobs/x/end", "push"),
        ("POST", "/api/v1/jobs/x/accept", "push"),
        ("POST", "/api/v1/ended", "push"),
        ("POST", "/api/v1/jobs/x/events", "push"),
        ("POST", "/api/v1/jobs/x/uploads", "push"),
        ("POST", "/api/v1/jobs/x/steps", "push"),
        ("GET", "/api/v1/uploads/x", "push"),
        ("PUT", "/api/v1/uploads/x", "push"),
        ("POST", "/api/v1/uploads/x/finish", "push"),
        ("POST", "/v1/traces", "push"),
        ("POST", "/api/v1/steps", "push"),
        ("GET", "/api/v1/jobs", "read"),
        ("GET", "/api/v1/jobs/x", "read"),
        ("GET", "/api/v1/jobs/x/steps", "read"),
        ("GET", "/api/v1/jobs/x/ranks", "read"),
        ("GET", "/api/v1/jobs/x/goodput", "read"),
        ("GET", "/api/v1/jobs/x/sessions", "read"),
        ("GET", "/api/v1/sessions/1", "read"),
        ("POST", "/api/v1/sessions/1/analyse", "push"),
        ("DELETE", "/api/v1/sessions/1", "admin"),
        ("DELETE", "/api/v1/jobs/x", "admin"),
        ("GET", "/api/v1/sessions/1/result", "read"),
        ("GET", "/api/v1/sessions/1/report", "read"),
        ("GET", "/api/v1/sessions/1/perfetto", "read"),
        ("GET", "/api/v1/events", "read"),
        ("GET", "/api/v1/alerts", "read"),
        ("POST", "/api/v1/alerts/x/acknowledgement", "operate"),
        ("DELETE", "/api/v1/alerts/x/acknowledgement", "operate"),
        ("GET", "/api/v1/silences", "read"),
        ("POST", "/api/v1/silences", "operate"),
        ("DELETE", "/api/v1/silences/1", "operate"),
        ("GET", "/api/v1/tokens", "admin"),
        ("POST", "/api/v1/tokens", "admin"),
        ("DELETE", "/api/v1/tokens/x", "admin"),
        ("GET", "/api/v1/accounts", "admin"),
        ("POST", "/api/v1/accounts", "admin"),
        ("DELETE", "/api/v1/accounts/x", "admin"),
        ("POST", "/api/v1/accounts/x/tokens", "admin"),
        ("GET", "/api/v1/logins", "admin"),
        ("DELETE", "/api/v1/logins/x", "admin"),
        ("GET", "/api/v1/audit", "admin"),
        ("GET", "/metrics", "read"),
        ("GET", "/healthz", ""),
        ("GET", "/readyz", ""),
        ("GET", "/api/v1/openapi.json", ""),
    ],
)
def test_every_operation_wants_its_scope(site, document, method, path, scopes):
    statuses = {
        scope: site.ask(method, path, token=site.token(scope) if scope else None).status
        for scope in ("", *SCOPES)
    }
    if not scopes:
        assert set(statuses.values()) == {200}
        return
    for scope, status in statuses.items():
        if scope and scopes in SCOPES[scope]:
            assert status not in (401, 403)
        else:
            assert status == (403 if scope else 401)


def test_that_list_of_operations_is_whole(document):
    mark = next(
        mark
        for mark in test_every_operation_wants_its_scope.pytestmark
        if mark.name == "parametrize"
    )
    asked = {(method, path) for method, path, _ in mark.args[1]}
    known = {
        (method, re.sub(r"{\w+}", "1" if "sessions/" in path or "silences" in path else "x", path))
        for method, path, _, _ in operations(document)
    }
    assert asked == known


@pytest.fixture(scope="module")
def filled(site, tmp_path_factory):
    """The site with a job that has one of everything."""
    service, now = site.service, site.service.clock()
    job = jobs.register(service.engine, "default", "full", now, gpus=8, degrees={"dp_size": 8})
    with service.engine.begin() as connection:
        connection.execute(tables.jobs.update().values(status="running"))

    def add(table, **values):
        with service.engine.begin() as connection:
            return connection.execute(table.insert().values(**values)).inserted_primary_key[0]

    session = add(
        tables.sessions, job_id=job.id, sha256="0" * 64, size_bytes=9, file_name="t", status="done",
        created_at=now, finished_at=now, slowdown=1.2, waste=1 / 6, step_s=1.5, cause="worker",
        headline="Worker dp 3 is slow.", first_step=1, last_step=9, meta={"a": [1]},
    )  # fmt: skip
    result = tmp_path_factory.mktemp("result") / RESULT
    result.write_text("{}")
    service.blobs.take(result, result_key(session, RESULT))
    add(
        tables.events, job_id=job.id, at=now, kind="onset", step=7, since_step=5, factor=1.5,
        ranks=[3], text="slow", lost_s=100.0,
    )  # fmt: skip
    service.alerts.judge(job.id, now)
    answer = site.ask("POST", "/api/v1/silences", token=site.token(), body={"hours": 1})
    assert answer.status == 200
    body = {"name": "ci", "scope": "push"}
    assert site.ask("POST", "/api/v1/accounts", token=site.token(), body=body).status == 200
    begin_login(
        service.engine, name="a", issuer="i", subject="s", groups=["g"], now=now,
        expires_at=now + 99, client="", project="*",
    )  # fmt: skip
    samples = [[n, 0, 1.0] for n in range(5)]
    batch = {"source": "a", "batch": 1, "world": 1, "samples": samples}
    assert site.ask("POST", "/api/v1/jobs/full/steps", token=site.token(), body=batch).status == 200
    eventually(lambda: len(read_rows(service.steps.path(job.id))) == 5)

    def last_step():
        query = tables.jobs.select().where(tables.jobs.c.id == job.id)
        with service.engine.begin() as connection:
            return connection.execute(query).mappings().one()["last_step"]

    eventually(lambda: last_step() == 4)  # told behind the series: nothing of it comes later
    return session


@pytest.mark.parametrize(
    ("path", "key", "schema"),
    [
        ("/api/v1/jobs", "jobs", "Job"),
        ("/api/v1/jobs/full", None, "Job"),
        ("/api/v1/jobs/full/sessions", "sessions", "Session"),
        ("/api/v1/sessions/{}", None, "Session"),
        ("/api/v1/jobs/full/steps", None, "Series"),
        ("/api/v1/jobs/full/ranks", None, "Ranks"),
        ("/api/v1/jobs/full/goodput", None, "Goodput"),
        ("/api/v1/events", "events", "Event"),
        ("/api/v1/alerts", "alerts", "Alert"),
        ("/api/v1/silences", "silences", "Silence"),
        ("/api/v1/tokens", "tokens", "Token"),
        ("/api/v1/accounts", "accounts", "Account"),
        ("/api/v1/logins", "logins", "Login"),
        ("/api/v1/audit", "entries", "Act"),
    ],
)
def test_answers_have_what_the_document_says_and_nothing_else(
    site, filled, document, path, key, schema
):
    answer = site.ask("GET", path.format(filled), token=site.token("admin"))
    assert answer.status == 200
    rows = answer.json[key] if key else [answer.json]
    told = document["components"]["schemas"][schema]
    assert rows
    for row in rows:
        assert set(row) - {"job", "project"} == set(told["properties"]) - {"job", "project"}
        assert set(told["required"]) <= set(row)


def test_the_metrics_have_the_degrees_of_the_job(site, filled):
    answer = site.ask("GET", "/metrics", token=site.token("read"))
    info = next(x for x in answer.text.splitlines() if "job_info{" in x and 'job="full"' in x)
    assert 'gpus="8"' in info
    assert 'dp="8"' in info


def test_a_level_is_accepted_only_where_a_job_is_slow(site, filled):
    service, token = site.service, site.token()
    path = "/api/v1/jobs/full/accept"
    assert site.ask("POST", path, token=token).status == 409
    row = {"job_id": jobs.find(service.engine, "default", "full").id, "seen_at": service.clock()}
    row |= {"last_step": 4, "step_s": 1.5, "healthy_s": 1.0, "slow_since_step": 2}
    jobs.update_live(service.engine, [row])
    button = "Accept this level as healthy"
    page = site.ask("GET", "/jobs/full?project=default", token=token)
    assert button in page.text
    assert button not in site.ask("GET", "/jobs/full", token=site.token("read")).text
    assert site.ask("POST", path, token=site.token("read")).status == 403
    answer = site.ask("POST", path, token=token)
    assert (answer.status, answer.json) == (200, {"status": "accepted"})


def test_a_pause_is_told_once_and_is_on_the_page(site, filled):
    path, token = "/api/v1/jobs/full/events", site.token()
    event = {"kind": "paused", "step": 3, "at": 1.7e9, "text": "paused 8 ranks for 11.2 s"}
    first = site.ask("POST", path, body=event, token=token)
    assert (first.status, site.ask("POST", path, body=event, token=token).json) == (200, first.json)
    confirmed = {**event, "kind": "validated", "text": "validation confirms rank 5", "ranks": [5]}
    assert site.ask("POST", path, body=confirmed, token=token).json["id"] != first.json["id"]
    page = site.ask("GET", "/jobs/full?project=default", token=token).text
    assert "validation confirms rank 5" in page
    assert "paused 8 ranks for 11.2 s" in page
    (row,) = [
        row
        for row in site.ask("GET", "/api/v1/events?job=full", token=token).json["events"]
        if row["kind"] == "validated"
    ]
    assert (row["ranks"], row["factor"], row["step"]) == ([5], None, 3)
    for wrong in ({"kind": "onset"}, {"text": ""}, {"step": -1}, {"ranks": [-1]}, {"at": -1}):
        assert site.ask("POST", path, body={**event, **wrong}, token=token).status == 400
    assert site.ask("POST", path, body=event, token=site.token("read")).status == 403


CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance,negative_data_rejection,"
    "unsupported_method,allow_header_conformance,ignored_auth"
)


def test_schemathesis_finds_nothing(site, filled, tmp_path):
    """For some seconds; PACELINE_SCHEMATHESIS_S=600 looks longer.

    It removes jobs, so it is the last. It must not revoke the token that it asks with.
    """
    tool = Path(sys.executable).with_name("schemathesis")
    if not tool.exists():
        pytest.skip(f"schemathesis is not installed: {requires.how_to_install('schemathesis')}")
    seconds = os.environ.get("PACELINE_SCHEMATHESIS_S")  # a long run; else by examples, not time
    done = subprocess.run(
        [
            *(tool, "run", f"http://127.0.0.1:{site.port}/api/v1/openapi.json"),
            *("--header", f"Authorization: Bearer {site.token()}", "--checks", CHECKS),
            *("--phases", "coverage,fuzzing" if seconds else "fuzzing"),
            *(("--max-time", seconds) if seconds else ()),
            *("--max-examples", "500" if seconds else "4"),
            *("--exclude-operation-id", "revoke_token"),
            *("--seed", "7", "--no-shrink", "--warnings", "off", "--request-timeout", "600"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=float(seconds or 0) + 3600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.search(r"Tested: +[1-9]\d", done.stdout), done.stdout[-2000:]
