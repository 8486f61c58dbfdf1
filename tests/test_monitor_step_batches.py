"""Batches of step times: checked, on disk before they are acknowledged, once."""

import gzip
import json
import time

import numpy as np

import requires

requires.installed("starlette")

from msgspec import msgpack

import monitor_uploads
from monitor_web import eventually
from paceline.errors import OutputError
from paceline.monitor.store import jobs

site = monitor_uploads.site


class TestSteps:
    URL = "/api/v1/jobs/job/steps"

    def test_rows_columns_and_packed_columns_are_the_same(self, site):
        rows = [[step, rank, 1.0 + rank] for step in range(3) for rank in range(2)]
        steps, ranks, seconds = (list(column) for column in zip(*rows, strict=True))
        columns = {"steps": steps, "ranks": ranks, "durations_s": seconds}
        packed = {
            "steps": np.array(steps, "<i8").tobytes(),
            "ranks": np.array(ranks, "<i4").tobytes(),
            "durations_s": np.array(seconds, "<f8").tobytes(),
        }
        as_msgpack = {"Content-Type": "application/msgpack"}
        as_json = {"Content-Type": "application/json"}
        for n, (body, headers) in enumerate(
            (
                (json.dumps({"source": "a", "batch": 1, "samples": rows}).encode(), as_json),
                (json.dumps({"source": "b", "batch": 1, **columns}).encode(), as_json),
                (msgpack.encode({"source": "c", "batch": 1, **columns}), as_msgpack),
                (msgpack.encode({"source": "d", "batch": 1, **packed}), as_msgpack),
                (gzip.compress(msgpack.encode({"source": "e", "batch": 1, **packed})),
                 {**as_msgpack, "Content-Encoding": "gzip"}),
            )
        ):  # fmt: skip
            token = site.token("push")
            answer = site.ask("POST", self.URL, token=token, body=body, headers=headers)
            assert answer.json == {"accepted": 6, "repeated": False}, n
        with site.service.steps.of(1) as file:
            found = list(file.read())
        for batch in found:
            assert batch.steps.tolist() == steps
            assert batch.ranks.tolist() == ranks
            assert batch.durations_s.tolist() == seconds

    def test_workload_is_kept_with_its_batch(self, site):
        body = {"batch": 1, "samples": [[7, 0, 1.0]], "workload": {"tokens": [[7, 512]]}}
        url = "/api/v1/jobs/planned/steps"
        assert site.ask("POST", url, token=site.token(), body=body).status == 200
        number = jobs.find(site.service.engine, "default", "planned").id
        with site.service.steps.of(number) as file:
            (batch,) = file.read()
        assert batch.workload == {7: {"tokens": 512.0}}
        body |= {"batch": 2, "workload": {"colour": [[7, 1]]}}
        answer = site.ask("POST", url, token=site.token(), body=body)
        assert (answer.status, "not colour" in answer.text) == (400, True)

    def test_a_repeated_batch_counts_once_and_the_steps_are_shown(self, site):
        token = site.token()
        for step in range(5):
            body = {"source": "s/0", "batch": step, "world": 2,
                    "samples": [[step, 0, 1.0], [step, 1, 1.5]]}  # fmt: skip
            first = site.ask("POST", self.URL, token=token, body=body).json
            again = site.ask("POST", self.URL, token=token, body=body).json
            assert (first["repeated"], again["repeated"]) == (False, True)
        eventually(lambda: len(site.ask("GET", self.URL, token=token).json["step"]) == 5)
        shown = site.ask("GET", self.URL, token=token).json
        assert shown["max_s"] == [1.5] * 5
        assert shown["slowest"] == [1] * 5
        assert site.ask("GET", f"{self.URL}?first=2&last=3", token=token).json["step"] == [2, 3]
        eventually(lambda: site.ask("GET", "/api/v1/jobs/job", token=token).json["last_step"] == 4)
        assert site.ask("GET", "/api/v1/jobs/job", token=token).json["status"] == "running"
        site.ask("POST", "/api/v1/jobs/job/end", token=token)
        assert site.ask("GET", "/api/v1/jobs/job", token=token).json["status"] == "ended"

    BAD = (
        {},
        {"batch": 1},
        {"batch": 1, "samples": []},
        {"batch": 1, "samples": [[1, 2]]},
        {"batch": 1, "samples": [[1, 2, 3, 4]]},
        {"batch": 1, "samples": [["1", 2, 3]]},
        {"batch": 1, "samples": [[1.5, 2, 3]]},
        {"batch": 1, "samples": [[-1, 0, 1.0]]},
        {"batch": 1, "samples": [[0, 10**9, 1.0]]},
        {"batch": 1, "samples": [[10**30, 0, 1.0]]},
        {"batch": 1, "samples": "abc"},
        {"batch": 1, "steps": [1], "ranks": [0]},
        {"batch": 1, "steps": [1], "ranks": [0, 1], "durations_s": [1.0]},
        {"batch": 1, "steps": {}, "ranks": [0], "durations_s": [1.0]},
        {"batch": True, "samples": [[1, 0, 1.0]]},
        {"batch": "x" * 101, "samples": [[1, 0, 1.0]]},
        {"batch": 1, "source": 7, "samples": [[1, 0, 1.0]]},
        {"batch": 1, "world": -1, "samples": [[1, 0, 1.0]]},
        {"batch": 1, "samples": [[1, 0, 1e300]]},
    )

    def test_a_batch_that_is_none_is_an_error_and_leaves_nothing(self, site):
        for body in self.BAD:
            answer = site.ask("POST", self.URL, token=site.token("push"), body=body)
            assert answer.status == 400, body
        assert site.service.steps.job_ids() == []

    def test_a_job_without_steps_is_silent_unless_the_service_was_away(self, site):
        token, service = site.token(), site.service
        body = {"source": "s/0", "batch": 1, "world": 1, "samples": [[0, 0, 1.0]]}
        site.ask("POST", self.URL, token=token, body=body)

        def status():
            return site.ask("GET", "/api/v1/jobs/job", token=token).json["status"]

        eventually(lambda: status() == "running")
        later = time.time() + 2000
        service.started_at = later - 500
        service._find_silent(later)
        assert status() == "running"
        service.started_at = later - 1000
        service._find_silent(later)
        assert status() == "silent"
        site.ask("POST", self.URL, token=token, body={**body, "batch": 2, "samples": [[1, 0, 1.0]]})
        eventually(lambda: status() == "running")

    def test_a_full_disk_is_an_answer(self, site, monkeypatch):
        from paceline.errors import OutputError

        def full(*_):
            raise OutputError("no space left")

        monkeypatch.setattr(site.service.steps, "append", full)
        body = {"batch": 1, "samples": [[1, 0, 1.0]]}
        answer = site.ask("POST", self.URL, token=site.token("push"), body=body)
        assert answer.status == 507
        assert answer.headers["retry-after"]


class TestBatchesOfSeveralJobs:
    def ask(self, site, batches, **options):
        token = site.token("push")
        return site.ask("POST", "/api/v1/steps", token=token, body={"batches": batches}, **options)

    def test_each_has_an_answer_of_its_own(self, site):
        good = {"batch": 1, "samples": [[0, 0, 1.0], [0, 1, 1.5]]}
        answer = self.ask(
            site,
            [
                {"job": "many-1", **good},
                {"job": "many-2", **good},
                {"job": "many-1", **good},
                {"job": "no/name", **good},
                {"job": "many-2", "batch": 2, "samples": [[0, 0, -1.0]]},
            ],
        )
        assert answer.status == 200
        told = answer.json["batches"]
        assert told[:3] == [
            {"accepted": 2, "repeated": False},
            {"accepted": 2, "repeated": False},
            {"accepted": 2, "repeated": True},
        ]
        assert [one["status"] for one in told[3:]] == [400, 400]
        assert "durations_s must be from 0" in told[4]["error"]
        token = site.token("read")
        for name in ("many-1", "many-2"):
            path = f"/api/v1/jobs/{name}"
            eventually(lambda path=path: site.ask("GET", path, token=token).json["last_step"] == 0)

    def test_a_batch_without_a_job_and_too_many_are_refused(self, site):
        assert self.ask(site, [{"batch": 1, "samples": [[0, 0, 1.0]]}]).status == 400
        assert self.ask(site, []).status == 400
        many = [{"job": "x", "batch": n, "samples": [[0, 0, 1.0]]} for n in range(1001)]
        assert self.ask(site, many).status == 400

    def test_a_full_disk_is_an_answer_for_each(self, site, monkeypatch):
        def fail(*_):
            raise OutputError("no space")

        monkeypatch.setattr(site.service.steps, "append", fail)
        told = self.ask(site, [{"job": "x", "batch": 1, "samples": [[0, 0, 1.0]]}]).json
        assert told["batches"] == [{"error": "no space", "status": 507}]
