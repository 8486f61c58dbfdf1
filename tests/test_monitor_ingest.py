"""What is pushed: checked, on disk before it is acknowledged, once, never another project's."""

import errno
import gzip
import hashlib
import json
import os
import time
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the monitor is an extra")

import msgpack

from jobs import Spec, make_rows
from monitor_durability import make_trace
from monitor_web import eventually, monitor
from otlp_spans import NAMES, request, requests_of, sizes_of, spans_of_ranks
from paceline.errors import PacelineError
from paceline.monitor import otlp_jobs
from paceline.monitor.analysis import Analyses
from paceline.monitor.blobs import FileBlobs, open_blobs
from paceline.monitor.config import Config
from paceline.monitor.otlp_jobs import SpanFiles
from paceline.monitor.retention import Retention
from paceline.monitor.store import jobs, sessions
from paceline.monitor.store.jobs import JobKey


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return make_trace(tmp_path_factory.mktemp("trace"), 0).read_bytes()


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A monitor that analyses nothing."""
    monkeypatch.setattr(Analyses, "start", lambda _: None)
    with monitor(tmp_path / "data") as site:
        yield site


def begin(site, data, job="job", token=None, **more):
    body = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), **more}
    path = f"/api/v1/jobs/{job}/uploads"
    return site.ask("POST", path, token=token or site.token("push"), body=body)


def put(site, upload, offset, part, token=None):
    path = f"/api/v1/uploads/{upload}?offset={offset}"
    return site.ask("PUT", path, token=token or site.token("push"), body=part)


def finish(site, upload, token=None):
    path = f"/api/v1/uploads/{upload}/finish"
    return site.ask("POST", path, token=token or site.token("push"))


def push(site, data, job="job", token=None):
    begun = begin(site, data, job, token).json
    if "session" not in begun:
        assert (
            put(site, begun["upload"], begun["offset"], data[begun["offset"] :], token).status
            == 200
        )
        begun = finish(site, begun["upload"], token).json
    return begun["session"]


class TestUploads:
    def test_a_trace_in_chunks_becomes_one_session(self, site, trace):
        upload = begin(site, trace, meta={"hosts": {}}).json["upload"]
        assert put(site, upload, 0, trace[:1000]).json == {"offset": 1000}
        assert put(site, upload, 1000, trace[1000:]).json == {"offset": len(trace)}
        session = finish(site, upload).json["session"]
        row = site.ask("GET", f"/api/v1/sessions/{session}", token=site.token()).json
        assert row["sha256"] == hashlib.sha256(trace).hexdigest()
        assert (row["job"], row["project"], row["size_bytes"]) == ("job", "default", len(trace))
        assert begin(site, trace).json == {"session": session}  # the same again is the same
        assert finish(site, upload).status == 404
        assert list(site.service.uploads.folder.iterdir()) == []

    def test_it_goes_on_where_it_stopped_also_after_a_restart(self, tmp_path, trace):
        with monitor(tmp_path) as site:
            upload = begin(site, trace).json["upload"]
            put(site, upload, 0, trace[:3000])
        with monitor(tmp_path) as site:
            again = begin(site, trace).json
            assert again == {"upload": upload, "offset": 3000}
            shown = site.ask("GET", f"/api/v1/uploads/{upload}", token=site.token("push")).json
            assert shown == {"upload": upload, "offset": 3000, "size": len(trace)}
            wrong = put(site, upload, 2000, trace[2000:])
            assert (wrong.status, wrong.json["offset"]) == (409, 3000)
            assert put(site, upload, 3000, trace[3000:]).status == 200
            assert finish(site, upload).status == 200

    def test_what_is_not_whole_or_not_as_declared_is_no_session(self, site, trace):
        upload = begin(site, trace).json["upload"]
        put(site, upload, 0, trace[:100])
        early = finish(site, upload)
        assert (early.status, early.json["offset"]) == (409, 100)
        put(site, upload, 100, bytes(len(trace) - 100))
        other = finish(site, upload)
        assert (other.status, other.json["offset"]) == (409, 0)
        assert "SHA-256" in other.json["error"]
        assert put(site, upload, 0, trace + b"x").status == 413
        start = site.service.uploads.offset(upload)
        assert put(site, upload, start, trace[start:]).status == 200
        assert finish(site, upload).status == 200

    def test_who_knows_a_hash_does_not_get_the_session(self, site, trace):
        push(site, trace, token=site.token("push", "one"))
        other = site.token("push", "two")
        upload = begin(site, trace, token=other).json["upload"]
        assert finish(site, upload, other).status == 409
        assert put(site, upload, 0, trace[:5], site.token("push", "one")).status == 404

    def test_two_jobs_may_have_the_same_trace(self, site, trace):
        one, two = push(site, trace, "one"), push(site, trace, "two")
        assert one != two
        kept = [key for key, _, _ in site.service.blobs.listed() if key.startswith("traces/")]
        assert kept == [
            f"traces/{hashlib.sha256(trace).hexdigest()[:2]}/{hashlib.sha256(trace).hexdigest()}"
        ]

    def test_only_traces_are_kept(self, site):
        for data in (b"PK\3\4 a zip", b"\x80\x04 a pickle", b"<html>"):
            upload = begin(site, data).json["upload"]
            put(site, upload, 0, data)
            assert finish(site, upload).status == 415
        assert list(site.service.blobs.listed()) == []
        assert list(site.service.uploads.folder.iterdir()) == []

    BAD = (
        {},
        {"sha256": "x" * 64, "size": 1},
        {"sha256": "../" * 21 + "x", "size": 1},
        {"sha256": "0" * 64, "size": 0},
        {"sha256": "0" * 64, "size": "1"},
        {"sha256": "0" * 64, "size": True},
        {"sha256": "0" * 64, "size": 1, "meta": [1]},
        {"sha256": "0" * 64, "size": 1, "file_name": 5},
    )

    def test_what_is_said_of_a_trace_is_checked(self, site):
        path = "/api/v1/jobs/job/uploads"
        for body in self.BAD:
            answer = site.ask("POST", path, token=site.token("push"), body=body)
            assert answer.status == 400, body
            assert answer.json["error"]

    def test_limits_of_size_and_of_what_waits(self, tmp_path, trace):
        with monitor(tmp_path, analysis_queue=0, max_upload_mib=1) as site:
            answer = begin(site, trace)
            assert answer.status == 429
            assert int(answer.headers["retry-after"]) >= 1
            body = {"sha256": "0" * 64, "size": (1 << 20) + 1}
            path = "/api/v1/jobs/job/uploads"
            assert site.ask("POST", path, token=site.token("push"), body=body).status == 413

    def test_a_trace_for_which_there_is_no_room_is_refused_before_it_comes(self, site, monkeypatch):
        full = type("usage", (), {"total": 1 << 30, "free": 1 << 20})
        monkeypatch.setattr("paceline.monitor.uploads.shutil.disk_usage", lambda _: full)
        answer = begin(site, bytes(1000))
        assert answer.status == 507
        assert answer.headers["retry-after"]

    def test_what_has_come_already_takes_no_room_twice(self, site, trace, monkeypatch):
        upload = begin(site, trace).json["upload"]
        put(site, upload, 0, trace[:-10])
        free = {"free": 1 << 30, "total": 1 << 30}
        monkeypatch.setattr(
            "paceline.monitor.uploads.shutil.disk_usage", lambda _: type("usage", (), free)
        )
        free["free"] = (1 << 30) // 20 + 1000  # the spare, and a little
        assert begin(site, trace).json == {"upload": upload, "offset": len(trace) - 10}
        assert begin(site, bytes(100)).status == 200
        assert begin(site, bytes(1100)).status == 507

    def test_one_project_does_not_take_all_the_room(self, site, monkeypatch):
        disk = type("usage", (), {"free": (1 << 30) // 20 + 1000, "total": 1 << 30})
        monkeypatch.setattr("paceline.monitor.uploads.shutil.disk_usage", lambda _: disk)
        greedy, other = site.token("push", "greedy"), site.token("push", "other")
        answers = [begin(site, bytes(n), token=greedy).status for n in (300, 150, 200)]
        assert answers == [200, 200, 507]
        assert begin(site, bytes(500), token=other).status == 200

    def test_an_upload_that_never_began_gives_its_room_back(self, site, monkeypatch):
        disk = type("usage", (), {"free": (1 << 30) // 20 + 1000, "total": 1 << 30})
        monkeypatch.setattr("paceline.monitor.uploads.shutil.disk_usage", lambda _: disk)
        upload = begin(site, bytes(900)).json["upload"]
        assert begin(site, bytes(200)).status == 507
        later = site.service.clock() + 700
        monkeypatch.setattr(site.service, "clock", lambda: later)
        assert begin(site, bytes(200)).status == 200
        assert put(site, upload, 0, bytes(900)).status == 404

    @pytest.mark.parametrize("number", ["%00", "x", "0" * 31, "%ED%A0%80"])
    def test_an_upload_that_is_none(self, site, number):
        assert put(site, number, 0, b"x").status == 404

    def test_half_a_surrogate_pair_is_no_text(self, site):
        token = site.token()
        for body in (
            {"name": "a", "labels": {"x": "\ud800"}},
            {"name": "a", "labels": {"\udfff": "x"}},
            {"name": "a", "degrees": {"dp_size": "\ud800"}},
        ):
            assert site.ask("POST", "/api/v1/jobs", token=token, body=body).status == 400
        steps = {"source": "\ud800", "batch": 1, "samples": [[0, 0, 1.0]]}
        assert site.ask("POST", "/api/v1/jobs/a/steps", token=token, body=steps).status == 400
        whole = {"name": "a", "labels": {"x": "\U0001f600"}}
        assert site.ask("POST", "/api/v1/jobs", token=token, body=whole).status == 200
        assert site.ask("GET", "/api/v1/jobs", token=token).status == 200

    def test_a_full_disk_is_an_answer_and_the_rest_goes_on_later(self, site, trace, monkeypatch):
        upload = begin(site, trace).json["upload"]
        put(site, upload, 0, trace[:100])
        real = os.write

        def full(number, data):
            if Path(f"/proc/self/fd/{number}").readlink().name == upload:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(number, data)

        monkeypatch.setattr(os, "write", full)
        assert put(site, upload, 100, trace[100:]).status == 507
        monkeypatch.undo()
        assert put(site, upload, 100, trace[100:]).status == 200
        assert finish(site, upload).status == 200

    @pytest.mark.parametrize("where", ["take", "enqueue", "unlink"])
    def test_a_crash_while_finishing_loses_nothing(self, tmp_path, trace, monkeypatch, where):
        class Crash(BaseException):
            pass

        def crash(*_):
            raise Crash

        with monitor(tmp_path) as site:
            upload = begin(site, trace).json["upload"]
            put(site, upload, 0, trace)
            row = site.service.uploads
            found = {**rows_of(site, upload)}
            with monkeypatch.context() as patch:
                if where == "take":
                    patch.setattr(FileBlobs, "take", crash)
                elif where == "enqueue":
                    patch.setattr(sessions, "enqueue", crash)
                else:
                    patch.setattr(os, "unlink", crash)
                    patch.setattr(
                        "pathlib.Path.unlink", lambda _, missing_ok=False: missing_ok or crash()
                    )
                with pytest.raises(Crash):
                    row.finish(found, 1.0)
        with monitor(tmp_path) as site:
            push(site, trace)
            listed = site.ask("GET", "/api/v1/jobs/job/sessions", token=site.token()).json
            assert len(listed["sessions"]) == 1
            assert list(site.service.uploads.folder.iterdir()) == []


def rows_of(site, upload):
    from paceline.monitor.store import uploads

    return uploads.find(site.service.engine, upload, "*")


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
                (msgpack.packb({"source": "c", "batch": 1, **columns}), as_msgpack),
                (msgpack.packb({"source": "d", "batch": 1, **packed}), as_msgpack),
                (gzip.compress(msgpack.packb({"source": "e", "batch": 1, **packed})),
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


def parts(rows, pieces):
    """Requests of all ranks, each rank's spans in so many pieces, children before their step."""
    sizes = sizes_of(rows)
    found = []
    for rank, spans in sorted(spans_of_ranks(rows).items()):
        spans = sorted(spans, key=lambda span: (span["end_ns"], bool(not span["parent"])))
        edges = [round(n * len(spans) / pieces) for n in range(pieces + 1)]
        found.append([request(rank, spans[a:b], sizes) for a, b in pairwise(edges)])
    return [piece[n] for n in range(pieces) for piece in found]


class TestSpans:
    ROWS = tuple(
        row
        for row in make_rows(Spec(pp=2, microbatches=(3, 3), steps=6, first_step=5))
        if row["kind"] in NAMES
    )

    def send(self, site, body, kind="application/json", **headers):
        headers = {"Content-Type": kind, **headers}
        return site.ask("POST", "/v1/traces", token=site.token("push"), body=body, headers=headers)

    def later(self, site, seconds=otlp_jobs.QUIET_S + 1):
        site.service.spans.tick(time.time() + seconds)

    def test_spans_become_a_session_and_step_times(self, site):
        for one in requests_of(self.ROWS):
            body = json.dumps(one).encode()
            assert self.send(site, body, **{"X-Paceline-Job": "llm-1"}).status == 200
            assert self.send(site, body, **{"X-Paceline-Job": "llm-1"}).status == 200  # again
        self.later(site)
        listed = site.ask("GET", "/api/v1/jobs/llm-1/sessions", token=site.token()).json["sessions"]
        assert [row["meta"]["steps"] for row in listed] == [list(range(5, 11))]
        eventually(
            lambda: (
                site.ask("GET", "/api/v1/jobs/llm-1/steps", token=site.token()).json["step"]
                == list(range(5, 11))
            ),
            40,
        )
        self.later(site)
        again = site.ask("GET", "/api/v1/jobs/llm-1/sessions", token=site.token()).json["sessions"]
        assert len(again) == 1

    def test_protobuf_and_the_services_name(self, site):
        trace_service = pytest.importorskip(
            "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="an extra"
        )
        json_format = pytest.importorskip("google.protobuf.json_format")
        message = trace_service.ExportTraceServiceRequest()
        one = requests_of(self.ROWS)[0]
        for scope in one["resourceSpans"][0]["scopeSpans"]:
            for span in scope["spans"]:
                for key in ("traceId", "spanId", "parentSpanId"):
                    span.pop(key)
        json_format.ParseDict(one, message)
        answer = self.send(site, message.SerializeToString(), "application/x-protobuf")
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["content-type"] == "application/x-protobuf"
        assert [
            j["name"] for j in site.ask("GET", "/api/v1/jobs", token=site.token()).json["jobs"]
        ] == ["megatron"]

    def test_what_is_no_request_is_refused(self, site, monkeypatch):
        good = requests_of(self.ROWS)[0]
        nobody = json.loads(json.dumps(good).replace("service.instance.id", "x"))
        for body, kind, status in (
            (b"{", "application/json", 400),
            (b"[]", "application/json", 400),
            (b'{"resourceSpans": 3}', "application/json", 400),
            (json.dumps(nobody).encode(), "application/json", 400),
            (b"\xff\xff", "application/x-protobuf", 400),
            (json.dumps(good).encode(), "text/plain", 415),
        ):
            assert self.send(site, body, kind).status == status, body[:50]
        assert self.send(site, b"{}").status == 200
        monkeypatch.setattr("paceline.monitor.web.otlp_api.MAX_LINE_BYTES", 1000)
        assert self.send(site, json.dumps(good).encode()).status == 413
        assert list((site.service.config.data / "otlp").glob("*")) == []


class Adopted:
    """Sessions as they are adopted; may crash before or after it has taken one."""

    def __init__(self):
        self.sessions, self.crash = {}, ""

    def __call__(self, job, path, meta):
        if self.crash == "before":
            raise OSError("crash")
        data = path.read_bytes()
        path.unlink()
        self.sessions[hashlib.sha256(data).hexdigest()] = (meta["steps"], data)
        if self.crash == "after":
            raise OSError("crash")


class TestCuts:
    JOB = JobKey(7, "default", "job")
    ROWS = TestSpans.ROWS

    def files(self, folder, adopted):
        files = SpanFiles(folder, adopted, lambda number: self.JOB if number == 7 else None)
        files.start(0.0)
        return files

    @pytest.mark.parametrize("pieces", [1, 4, 13])
    @pytest.mark.parametrize("crash", ["", "before", "after", "write"])
    @pytest.mark.parametrize("restart", [True, False])
    def test_every_step_is_whole_in_one_session(
        self, tmp_path, monkeypatch, pieces, crash, restart
    ):
        monkeypatch.setattr(otlp_jobs, "CUT_BYTES", 20_000)
        monkeypatch.setattr(otlp_jobs, "LATE_NS", 0)
        adopted = Adopted()
        files = self.files(tmp_path, adopted)
        real = otlp_jobs._written
        for n, one in enumerate(parts(self.ROWS, pieces)):
            line = json.dumps(one).encode()
            assert files.append(self.JOB, line, float(n))
            assert not files.append(self.JOB, line, float(n))
            if crash and n % 3 == 1:
                if crash == "write":
                    monkeypatch.setattr(otlp_jobs, "_written", self.fails_on_requests(real))
                adopted.crash = crash
                files.tick(float(n))
                adopted.crash = ""
                monkeypatch.setattr(otlp_jobs, "_written", real)
                if restart:
                    files.stop()
                    files = self.files(tmp_path, adopted)
            else:
                files.tick(float(n))
        files.tick(1e6)
        files.stop()
        steps = [step for some, _ in adopted.sessions.values() for step in some]
        assert sorted(steps) == list(range(5, 11))
        assert self.ops(tmp_path, adopted) == len(self.ROWS)

    def fails_on_requests(self, real):
        def write(path, data):
            if path.name == otlp_jobs.FILE:
                raise OSError("crash")
            return real(path, data)

        return write

    def ops(self, folder, adopted):
        from paceline.sources import otlp

        n = 0
        for steps, data in adopted.sessions.values():
            path = folder / "read.jsonl"
            path.write_bytes(data)
            n += len(otlp.read([path], steps=frozenset(steps)).trace)
        return n

    def test_spans_without_a_whole_step_wait_and_are_bounded(self, tmp_path, monkeypatch):
        adopted = Adopted()
        files = self.files(tmp_path, adopted)
        for one in parts(self.ROWS, 1)[:-1]:  # a rank is missing
            files.append(self.JOB, json.dumps(one).encode(), 0.0)
        files.tick(1e6)
        assert adopted.sessions == {}
        monkeypatch.setattr(otlp_jobs, "MOST_BYTES", 10)
        files.append(self.JOB, json.dumps(parts(self.ROWS, 2)[0]).encode(), 2e6)
        files.tick(3e6)
        assert [steps for steps, _ in adopted.sessions.values()] == [[]]
        files.stop()

    def test_a_line_cut_off_by_a_crash_goes(self, tmp_path):
        adopted = Adopted()
        files = self.files(tmp_path, adopted)
        lines = [json.dumps(one).encode() for one in parts(self.ROWS, 1)]
        for line in lines[:-1]:
            files.append(self.JOB, line, 0.0)
        files.stop()
        with (tmp_path / "7" / "requests.jsonl").open("ab") as file:
            file.write(lines[-1][:500])
        files = self.files(tmp_path, adopted)
        files.append(self.JOB, lines[-1], 1.0)
        files.tick(1e6)
        files.stop()
        assert [steps for steps, _ in adopted.sessions.values()] == [list(range(5, 11))]

    def test_spans_that_never_become_whole_go_at_last(self, tmp_path):
        files = self.files(tmp_path, Adopted())
        line = json.dumps(parts(self.ROWS, 1)[0]).encode()
        files.append(self.JOB, line, 0.0)
        assert files.remove_older(time.time() - 60) == 0
        assert files.remove_older(time.time() + 60) == len(line) + 1
        assert files.append(self.JOB, line, 0.0)
        files.stop()


class TestBlobs:
    @pytest.fixture(params=["files", "bucket"])
    def blobs(self, request, tmp_path):
        if request.param == "files":
            return open_blobs("", tmp_path)
        pytest.importorskip("fsspec")
        return open_blobs(f"memory://{tmp_path.name}", tmp_path)

    def test_they_come_back(self, blobs, tmp_path):
        path = tmp_path / "one"
        path.write_bytes(b"content")
        blobs.take(path, "results/001/1/result.json")
        assert not path.exists()
        assert blobs.exists("results/001/1/result.json")
        assert blobs.size("results/001/1/result.json") == 7
        with blobs.open("results/001/1/result.json") as file:
            assert file.read() == b"content"
        with blobs.local("results/001/1/result.json") as found:
            assert found.read_bytes() == b"content"
        assert [(key, size) for key, size, _ in blobs.listed()] == [
            ("results/001/1/result.json", 7)
        ]
        blobs.delete("results/001/1/result.json")
        blobs.delete("results/001/1/result.json")
        assert blobs.size("results/001/1/result.json") == 0
        with pytest.raises(FileNotFoundError):
            blobs.open("results/001/1/result.json")

    def test_a_url_of_no_bucket_is_an_error(self, tmp_path):
        with pytest.raises(PacelineError, match="nosuch"):
            open_blobs("nosuch://x", tmp_path)


class TestRetention:
    def fill(self, site, n):
        for number in range(n):
            upload = site.service.uploads
            path = upload.folder.parent / f"{number}.parquet"
            path.write_bytes(b"PAR1" + bytes([number]) * 1000)
            job = jobs.register(site.service.engine, "default", "job", 1.0)
            session = upload.adopt(job.id, path, "x", {}, 1000.0 + number)
            values = {"status": "done", "slowdown": 1.0 + number, "finished_at": 1.0, "facts": None}
            values.pop("facts")
            sessions.finish(site.service.engine, session, values)

    def settings(self, site, **changes):
        service = site.service
        config = Config(**{**vars(service.config), **changes})
        return Retention(
            config, service.engine, service.blobs, service.steps, service.uploads, service.spans
        )

    def test_what_is_too_old_goes_and_the_job_follows(self, site):
        self.fill(site, 4)
        removed = self.settings(site, keep_days=1.0).run(86_400.0 + 1002.0)
        assert removed.sessions == 2
        assert removed.freed_bytes == 2 * 1004
        row = site.ask("GET", "/api/v1/jobs/job", token=site.token()).json
        assert (row["n_sessions"], row["slowdown"]) == (2, 4.0)

    def test_what_is_too_much_goes_the_oldest_first_and_the_numbers_stay(self, site):
        self.fill(site, 4)
        removed = self.settings(site, keep_days=0.0, keep_gib=2100 / (1 << 30)).run(2000.0)
        assert (removed.sessions, removed.emptied) == (0, 2)
        assert len(list(site.service.blobs.listed())) == 2
        row = site.ask("GET", "/api/v1/jobs/job", token=site.token()).json
        assert row["n_sessions"] == 4

    def test_strays_and_abandoned_uploads_are_collected(self, site, trace):
        upload = begin(site, trace).json["upload"]
        put(site, upload, 0, trace[:10])
        stray = site.service.blobs.folder / "traces" / "ab" / ("ab" + "0" * 62)
        stray.parent.mkdir(parents=True)
        stray.write_bytes(b"x")
        os.utime(stray, (1, 1))
        retention = self.settings(site, keep_days=0.0)
        assert retention.run(time.time()).uploads == 0
        removed = retention.collect(time.time() + 90_000)
        assert (removed.uploads, removed.strays) == (1, 1)
        assert not stray.exists()
        assert list(site.service.uploads.folder.iterdir()) == []
