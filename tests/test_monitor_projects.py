"""What each project keeps and may send: the file, retention, quotas."""

import pytest

import requires

requires.installed("starlette")

from monitor_web import monitor
from paceline.errors import MonitorError
from paceline.monitor.projects import Limits, Projects, load_projects
from paceline.monitor.store import events, jobs, retained, sessions, tables

DAY_S = 86_400.0
FILE = """\
short: {keep_days: 1}
ever: {keep_days: 0}
small: {keep_gib: 2e-6, keep_days: 0, sessions_per_day: 2, step_samples_per_minute: 10}
"""


@pytest.fixture
def site(tmp_path):
    path = tmp_path / "projects.yaml"
    path.write_text(FILE)
    # By this clock the service itself finds nothing that is old, whenever it looks.
    with monitor(tmp_path / "data", lambda: 1001.0, projects=str(path), keep_days=10.0) as found:
        yield found


def fill(site, project, n, same_trace=False):
    """n sessions of a kilobyte each, at 1000 s, 1001 s, ..., and an event each."""
    for number in range(n):
        path = site.service.uploads.folder.parent / f"{project}-{number}.parquet"
        mark = b"same" if same_trace else project.encode()
        path.write_bytes(b"PAR1" + mark + bytes([number]) * 1000)
        job = jobs.register(site.service.engine, project, "job", 1.0)
        at = 1000.0 + number
        session = site.service.uploads.adopt(job.id, path, "x", {}, at)
        values = {"status": "done", "slowdown": 1.0, "finished_at": 1.0}
        sessions.finish(site.service.engine, session, values)
        with site.service.engine.begin() as connection:
            connection.execute(
                tables.events.insert().values(
                    job_id=job.id, at=at, kind="onset", start=0, step=number, since_step=0, text="x"
                )
            )


def left(site, project):
    engine = site.service.engine
    happened = events.list_events(engine, project, None, None, 100)
    return retained.n_since(engine, project, 0.0), len(happened)


def test_each_project_keeps_what_it_says(site):
    for project in ("short", "ever", "usual"):
        fill(site, project, 3)
    site.service.retention.run(1001.5 + DAY_S)
    assert [left(site, p) for p in ("short", "ever", "usual")] == [(1, 1), (3, 3), (3, 3)]
    site.service.retention.run(1001.5 + 10 * DAY_S)
    assert [left(site, p) for p in ("short", "ever", "usual")] == [(0, 0), (3, 3), (1, 1)]
    page = site.ask("GET", "/jobs/job?project=short", token=site.token())
    assert "none of the last 1 days" in page.text


def test_a_project_that_is_too_large_empties_its_own_sessions_only(site):
    fill(site, "small", 4)
    fill(site, "usual", 4)
    removed = site.service.retention.run(2000.0)
    assert (removed.sessions, removed.emptied) == (0, 2)  # 2e-6 GiB are 2,147 bytes
    assert left(site, "small") == (4, 4)
    assert site.service.retention._size("small") == 2 * 1009
    assert site.service.retention._size("usual") == 4 * 1009


def test_a_trace_that_another_project_has_stays(site):
    fill(site, "small", 4, same_trace=True)
    fill(site, "usual", 4, same_trace=True)
    site.service.retention.run(2000.0)
    assert site.service.retention._size("usual") == 4 * 1008


def test_a_project_may_push_so_many_sessions_a_day(site):
    now = site.service.clock()
    mine, other = site.token("push", "small"), site.token("push", "usual")
    for token, statuses in ((mine, [200, 200, 429]), (other, [200, 200, 200])):
        for number, status in enumerate(statuses):
            body = {"sha256": f"{number:064d}", "size": 10}
            answer = site.ask("POST", "/api/v1/jobs/x/uploads", token=token, body=body)
            assert answer.status == status
            if status == 429:
                assert "2 sessions of a day" in answer.json["error"]
                assert int(answer.headers["retry-after"]) > 0
                continue
            job = jobs.find(site.service.engine, "small" if token == mine else "usual", "x")
            with site.service.engine.begin() as connection:
                connection.execute(
                    tables.sessions.insert().values(
                        job_id=job.id, sha256=f"{number:064d}", size_bytes=10, file_name="t",
                        created_at=now,
                    )
                )  # fmt: skip


def test_a_project_shares_its_step_samples_among_its_tokens(site):
    def send(token, number, query=""):
        samples = [[step, 0, 0.1] for step in range(6)]
        body = {"source": "a", "batch": number, "world": 1, "samples": samples}
        return site.ask("POST", f"/api/v1/jobs/x/steps{query}", token=token, body=body)

    tokens = [site.token("push", "small"), site.token("admin", "small")]
    assert send(tokens[0], 1).status == 200
    answer = send(tokens[1], 2)
    assert answer.status == 429
    assert "step samples of small" in answer.json["error"]
    assert send(site.token(), 3, "?project=small").status == 429
    assert send(site.token(), 3, "?project=usual").status == 200


def test_limits_of_those_that_say_nothing():
    projects = Projects(90.0, {"ever": Limits(keep_days=0.0), "long": Limits(keep_days=400.0)})
    assert [projects.days(name) for name in ("ever", "long", "x")] == [0.0, 400.0, 90.0]
    assert projects.longest_days == 0.0
    assert Projects(90.0, {"long": Limits(keep_days=400.0)}).longest_days == 400.0
    assert Projects(0.0, {"long": Limits(keep_days=400.0)}).longest_days == 0.0
    assert projects.before(["ever", "x"], 100 * DAY_S, DAY_S) == {"x": 10 * DAY_S}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("llm: {keep_dais: 1}", "line 1: llm.keep_dais: unknown field; did you mean keep_days"),
        ("llm: {keep_days: -1}", "must be a number, 0 or more"),
        ("llm: {keep_days: yes}", "must be a number, 0 or more"),
        ("llm: {sessions_per_day: 0}", "must be a whole number >= 1"),
        ('"*": {keep_days: 1}', "is no project"),
        ("a b: {keep_days: 1}", "is no project"),
        ("llm: 7", "must be a mapping"),
    ],
)
def test_mistakes_in_the_file_name_their_line(tmp_path, text, reason):
    path = tmp_path / "projects.yaml"
    path.write_text(text)
    with pytest.raises(MonitorError, match=reason.replace("*", r"\*")):
        load_projects(str(path), 90.0)
    path.write_text("")
    assert load_projects(str(path), 90.0).named == {}
