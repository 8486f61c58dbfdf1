"""Spans that are pushed become sessions of whole steps, whatever crashes."""

import hashlib
import json
import time

import pytest

import requires

requires.installed("starlette")

import monitor_uploads
from monitor_web import eventually
from otlp_spans import parts, requests_of, rows_of_steps
from paceline.monitor import otlp_jobs
from paceline.monitor.otlp_jobs import SpanFiles
from paceline.monitor.store.jobs import JobKey

site = monitor_uploads.site


class TestSpans:
    ROWS = rows_of_steps(5, 6)

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
        requires.installed("opentelemetry.proto")
        from google.protobuf import json_format
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_service

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
        real = otlp_jobs._write_beside
        for n, one in enumerate(parts(self.ROWS, pieces)):
            line = json.dumps(one).encode()
            assert files.append(self.JOB, line, float(n))
            assert not files.append(self.JOB, line, float(n))
            if crash and n % 3 == 1:
                if crash == "write":
                    monkeypatch.setattr(otlp_jobs, "_write_beside", self.fails_on_requests(real))
                adopted.crash = crash
                files.tick(float(n))
                adopted.crash = ""
                monkeypatch.setattr(otlp_jobs, "_write_beside", real)
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
        monkeypatch.setattr(otlp_jobs, "MAX_BYTES", 10)
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

    @pytest.mark.parametrize("plan", ['{"version": 2}', "{", '["size"]', '{"size": 1}'])
    def test_a_plan_that_does_not_fit_is_made_anew(self, tmp_path, plan):
        adopted = Adopted()
        files = self.files(tmp_path, adopted)
        for one in parts(self.ROWS, 1):
            files.append(self.JOB, json.dumps(one).encode(), 0.0)
        files.stop()
        (tmp_path / "7" / otlp_jobs.PLAN).write_text(plan)
        files = self.files(tmp_path, adopted)
        files.tick(1e6)
        files.stop()
        assert [steps for steps, _ in adopted.sessions.values()] == [list(range(5, 11))]
        assert not (tmp_path / "7" / otlp_jobs.PLAN).exists()

    def test_spans_that_never_become_whole_go_at_last(self, tmp_path):
        files = self.files(tmp_path, Adopted())
        line = json.dumps(parts(self.ROWS, 1)[0]).encode()
        files.append(self.JOB, line, 0.0)
        assert files.remove_older(time.time() - 60) == 0
        assert files.remove_older(time.time() + 60) == len(line) + 1
        assert files.append(self.JOB, line, 0.0)
        files.stop()
