"""A session is analysed again; sessions and jobs are removed with all that is theirs."""

import pytest

import requires

requires.installed("starlette")

from monitor_alerts import fire
from monitor_site import lines as lines
from monitor_web import eventually, monitor
from paceline.cli.main import run
from paceline.monitor.blobs import RESULT, result_key, trace_key
from paceline.monitor.store import alerts as store
from paceline.monitor.store import events, jobs, sessions

SHA = "a" * 64


@pytest.fixture
def site(tmp_path):
    with monitor(tmp_path / "data", analysis_processes=1) as site:
        site.service.analyses.stop()  # what is queued stays so
        yield site


def session(site, job="job", sha256=SHA, status="done", project="default"):
    service, now = site.service, site.service.clock()
    key = jobs.register(service.engine, project, job, now)
    trace = {"sha256": sha256, "size_bytes": 5, "file_name": "t.parquet", "meta": {}}
    number = sessions.enqueue(service.engine, key.id, trace, now)
    sessions.finish(service.engine, number, {"status": status, "slowdown": 1.2})
    for name in (trace_key(sha256), result_key(number, RESULT)):
        path = service.config.data / "incoming"
        path.write_bytes(b"trace")
        service.blobs.take(path, name)
    return number


def ask(site, method, path, scope="admin", project="*"):
    return site.ask(method, path, token=site.token(scope, project))


@pytest.mark.parametrize("status", ["done", "failed"])
def test_a_session_that_is_over_is_queued_again(site, status):
    number = session(site, status=status)
    answer = ask(site, "POST", f"/api/v1/sessions/{number}/analyse", "push")
    assert (answer.status, answer.json) == (200, {"id": number, "status": "queued"})
    assert sessions.by_id(site.service.engine, number, "*")["status"] == "queued"
    assert ask(site, "POST", f"/api/v1/sessions/{number}/analyse", "push").status == 200
    site.service.blobs.delete(trace_key(SHA))
    answer = ask(site, "POST", f"/api/v1/sessions/{number}/analyse", "push")
    assert (answer.status, answer.json["error"]) == (409, "its trace was removed; push it again")


def test_pushing_the_trace_of_a_session_that_failed_queues_it(site):
    number = session(site, status="failed")
    uploads, engine = site.service.uploads, site.service.engine
    trace = {"sha256": SHA, "size_bytes": 5, "file_name": "t.parquet", "meta": {}}
    job = jobs.find(engine, "default", "job")
    assert uploads.begin(job.id, "default", trace, 1.0) == {"session": number}
    assert sessions.by_id(engine, number, "*")["status"] == "queued"
    sessions.finish(engine, number, {"status": "failed"})
    site.service.blobs.delete(trace_key(SHA))
    assert set(uploads.begin(job.id, "default", trace, 1.0)) == {"upload", "offset"}
    assert sessions.enqueue(engine, job.id, trace, 2.0) == number
    row = sessions.by_id(engine, number, "*")
    assert (row["status"], row["attempts"], row["reason"]) == ("queued", 0, None)


def test_a_removed_session_takes_its_results_and_its_trace_if_it_is_the_last(site):
    one, other = session(site), session(site, job="other")
    blobs = site.service.blobs
    assert ask(site, "DELETE", f"/api/v1/sessions/{one}").json["status"] == "removed"
    assert not blobs.exists(result_key(one, RESULT))
    assert blobs.exists(trace_key(SHA))
    assert ask(site, "GET", f"/api/v1/sessions/{one}").status == 404
    ask(site, "DELETE", f"/api/v1/sessions/{other}")
    assert not blobs.exists(trace_key(SHA))
    assert jobs.find(site.service.engine, "default", "other")


def test_a_removed_job_is_gone_and_its_number_is_not_given_again(site, lines):
    number = session(site)
    engine, steps = site.service.engine, site.service.steps
    batch = {"source": "a", "batch": 1, "world": 1, "samples": [[n, 0, 1.0] for n in range(5)]}
    push = "/api/v1/jobs/job/steps"
    assert site.ask("POST", push, token=site.token("push"), body=batch).status == 200
    job = jobs.find(engine, "default", "job")
    eventually(lambda: (steps.path(job.id) / "series.rows").exists())
    assert ask(site, "DELETE", "/api/v1/jobs/job").json["status"] == "removed"
    assert ask(site, "GET", "/api/v1/jobs/job").status == 404
    assert sessions.by_id(engine, number, "*") is None
    assert events.list_events(engine, "*", job.id, None, 10) == []
    assert any('"job removed"' in line and '"who"' in line for line in lines)
    eventually(lambda: job.id not in site.service.detectors._live)
    answer = site.ask("POST", push, token=site.token("push"), body=batch)
    assert answer.json == {"accepted": 5, "repeated": False}
    assert jobs.find(engine, "default", "job").id > job.id
    assert job.id not in steps.job_ids()


def test_other_projects_and_smaller_scopes_remove_nothing(site):
    number = session(site, project="llm")
    for method, path in (
        ("DELETE", f"/api/v1/sessions/{number}"),
        ("POST", f"/api/v1/sessions/{number}/analyse"),
        ("DELETE", "/api/v1/jobs/job"),
    ):
        assert ask(site, method, path, "admin", "vision").status == 404
        assert ask(site, method, path, "read", "llm").status == 403
    assert ask(site, "DELETE", f"/api/v1/sessions/{number}", "push", "llm").status == 403
    assert sessions.by_id(site.service.engine, number, "llm")["status"] == "done"


def test_the_buttons_of_the_page(site):
    number = session(site)
    read = site.ask("GET", "/jobs/job", token=site.token("read"), headers={"Accept": "text/html"})
    assert "Remove" not in read.text
    admin = site.ask("GET", "/jobs/job", token=site.token(), headers={"Accept": "text/html"})
    assert f"Analyse session #{number} again" in admin.text
    again = site.ask("POST", f"/jobs/job/sessions/{number}/analyse", token=site.token())
    assert (again.status, again.headers["location"]) == (
        303, f"/jobs/job?project=default&session={number}"
    )  # fmt: skip
    assert (
        site.ask("POST", f"/jobs/job/sessions/{number + 1}/remove", token=site.token()).status
        == 404
    )
    assert site.ask("POST", f"/jobs/job/sessions/{number}/remove", token=site.token()).status == 303
    assert sessions.by_id(site.service.engine, number, "*") is None
    assert site.ask("POST", "/jobs/job/remove", token=site.token("push")).status == 403
    assert site.ask("POST", "/jobs/job/remove", token=site.token()).headers["location"] == "/"
    assert jobs.find(site.service.engine, "default", "job") is None


def test_the_commands_ask_the_service(site, monkeypatch, capsys):
    number = session(site, status="failed")
    monkeypatch.setenv("PACELINE_TOKEN", site.token())
    to = ["--to", f"http://127.0.0.1:{site.port}"]
    assert run(["admin", "session", "analyse", str(number), *to]) == 0
    assert run(["admin", "session", "remove", str(number), *to]) == 0
    assert run(["admin", "session", "remove", str(number), *to]) == 2
    assert "refuses: there is no such session" in capsys.readouterr().err
    assert run(["admin", "job", "remove", "job", *to]) == 0
    assert capsys.readouterr().out == "job is removed\n"
    monkeypatch.delenv("PACELINE_MONITOR", raising=False)
    assert run(["admin", "job", "remove", "job"]) == 2
    assert "say where the service is" in capsys.readouterr().err


def test_an_alert_is_silenced_by_a_click(site, lines):
    job = jobs.register(site.service.engine, "llm", "job", site.service.clock())
    now = site.service.clock()
    alert = {
        "fingerprint": f"slow-job/{job.id}", "rule": "slow-job", "job_id": job.id, "project": "llm",
        "headline": "slow", "importance": "warning", "status": "firing", "started_at": now,
        "updated_at": now, "labels": {},
    }  # fmt: skip
    fire(site.service.engine, alert, now)
    page = site.ask("GET", "/alerts", token=site.token(), headers={"Accept": "text/html"})
    assert 'action="/alerts/1/silence"' in page.text
    form = {"hours": "4", "why": "seen: hosts are moved \u2014 Ana"}
    path = "/alerts/1/silence"
    assert site.ask("POST", path, token=site.token("admin", "vision"), form=form).status == 404
    assert site.ask("POST", path, token=site.token("read"), form=form).status == 403
    for hours in ("0", "169", "x", ""):
        bad = site.ask("POST", path, token=site.token(), form={**form, "hours": hours})
        assert bad.status == 400
    assert site.ask("POST", path, token=site.token(), form=form).status == 303
    (silence,) = store.list_silences(site.service.engine, "llm", now)
    assert (silence["rule"], silence["job"], silence["project"]) == ("slow-job", "job", "llm")
    assert (silence["comment"], silence["who"]) == (form["why"], "admin of all")
    assert silence["until"] - silence["created_at"] == 4 * 3600
    assert any('"silence"' in line and "admin of all" in line for line in lines)
