"""Jobs: registered, named, listed, and unseen by other projects."""

from urllib.parse import quote

import requires

requires.installed("starlette")

import monitor_uploads
from monitor_uploads import push

site, trace = monitor_uploads.site, monitor_uploads.trace


class TestJobs:
    def test_a_job_is_registered_and_learns_more(self, site):
        token = site.token("push", "llm")
        for body in (
            {"name": "job-1", "gpus": 64, "labels": {"team": "vision", "n": 3}},
            {"name": "job-1", "degrees": {"dp_size": 8}},
        ):
            assert site.ask("POST", "/api/v1/jobs", token=token, body=body).status == 200
        row = site.ask("GET", "/api/v1/jobs/job-1", token=site.token("read", "llm")).json
        assert (row["gpus"], row["labels"], row["degrees"], row["status"]) == (
            64, {"team": "vision", "n": "3"}, {"dp_size": 8}, "new",
        )  # fmt: skip

    def test_another_projects_job_is_not_there(self, site, trace):
        session = push(site, trace, "secret", site.token("push", "one"))
        theirs = site.token("read", "two")
        for path in (
            "jobs/secret", "jobs/secret/sessions", "jobs/secret/steps", "events?job=secret",
            "jobs/secret/ranks", "jobs/secret/ranks?project=one",
            f"sessions/{session}", f"sessions/{session}/result", "jobs?project=one",
        ):  # fmt: skip
            answer = site.ask("GET", f"/api/v1/{path}", token=theirs)
            assert answer.status == 404, path
        assert site.ask("GET", "/api/v1/jobs", token=theirs).json["jobs"] == []
        ended = site.ask("POST", "/api/v1/jobs/secret/end", token=site.token("push", "two"))
        assert ended.status == 404

    def test_names_are_no_paths(self, site):
        body = {"source": "s/0", "batch": 1, "samples": [[0, 0, 1.0]]}
        token = site.token("push")
        for name in ("..", ".", "a/b", "../x", "a b", "é", "x" * 101, "a\0", ""):
            path = f"/api/v1/jobs/{quote(name, safe='')}/steps"
            assert site.ask("POST", path, token=token, body=body).status in (400, 404, 405), name
            answer = site.ask("POST", "/api/v1/jobs", token=token, body={"name": name})
            assert answer.status == 400, name
        assert site.service.steps.job_ids() == []

    def test_pages_of_rows_end(self, site):
        token = site.token()
        for n in range(5):
            site.ask("POST", "/api/v1/jobs", token=token, body={"name": f"job-{n}"})
        names, after = [], ""
        while True:
            page = site.ask("GET", f"/api/v1/jobs?limit=2{after}", token=token).json
            names += [row["name"] for row in page["jobs"]]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert names == [f"job-{n}" for n in range(5)]
