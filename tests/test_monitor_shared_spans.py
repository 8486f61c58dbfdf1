"""Spans that come to any of several instances become sessions of whole steps, each span in one.

The requests of the last test are sent by OpenTelemetry's own exporter (opentelemetry-sdk and
opentelemetry-exporter-otlp-proto-http 1.x, PyPI).
"""

import json
import random
import time

import pytest

import requires

requires.installed("starlette", "fsspec")

from sqlalchemy import text

import monitor_stores
from monitor_instances import several
from monitor_postgres import programs
from otlp_spans import parts, rows_of_steps, sizes_of, spans_of_ranks
from paceline.errors import MonitorError
from paceline.monitor.blobs import BlobsAway, trace_key
from paceline.monitor.bucket import DirectBlobs, Gate
from paceline.monitor.instances import shared_spans as module
from paceline.monitor.instances.membership import Membership
from paceline.monitor.instances.shared_spans import SharedSpans
from paceline.monitor.otlp_steps import steps_of
from paceline.monitor.refusal import JobGone
from paceline.monitor.store import database, jobs, sessions, span_log, tables

ROWS = rows_of_steps(5, 6)
STEPS = list(range(5, 11))


@pytest.fixture
def engine(tmp_path):
    with monitor_stores.postgresql(tmp_path) as url:
        found = database.open_database(url)
        yield found
        found.dispose()


@pytest.fixture
def blobs(tmp_path):
    (tmp_path / "bucket").mkdir()
    return DirectBlobs(f"file://{tmp_path / 'bucket'}", Gate())


class Two:
    """Two instances' spans, on one database, and the sessions of which they tell."""

    def __init__(self, engine, blobs, folder):
        self.engine, self.told = engine, []
        self.members = [Membership(engine, name, "serve", lambda *_: None) for name in "ab"]
        for one in self.members:
            one.join()
        for _ in range(2):
            for one in self.members:
                one.round()
        self.spans = []
        for number, one in enumerate(self.members):
            scratch = folder / f"scratch-{number}"
            scratch.mkdir()
            tell = lambda job, session: self.told.append((job.id, session))  # noqa: E731
            self.spans.append(SharedSpans(engine, one, blobs, scratch, tell))
        self.job = jobs.register(engine, "default", "job", 1.0)

    def now(self):
        return self.members[0].clock()

    def owner(self):
        return next(n for n, one in enumerate(self.members) if self.job.id % 32 in one.shards)

    def tick(self, later=0.0):
        for spans in self.spans:
            spans.tick(self.now() + later)

    def sessions(self):
        with self.engine.connect() as connection:
            query = text("SELECT id, sha256, meta FROM sessions ORDER BY id")
            return [dict(row) for row in connection.execute(query).mappings()]


@pytest.fixture
def two(engine, blobs, tmp_path):
    return Two(engine, blobs, tmp_path)


QUIET = module.QUIET_S + 1


def test_requests_through_either_become_one_session(two, blobs):
    lines = [json.dumps(one).encode() for one in parts(ROWS, 4)]
    for number, line in enumerate(lines):
        assert two.spans[number % 2].append(two.job, line, 0.0)
        assert not two.spans[(number + 1) % 2].append(two.job, line, 0.0)  # it was sent again
    two.tick()
    assert two.sessions() == []  # more may come
    two.tick(QUIET)
    [session] = two.sessions()
    assert session["meta"]["steps"] == STEPS
    assert two.told == [(two.job.id, session["id"])]
    with blobs.open(trace_key(session["sha256"])) as file:
        assert file.read().splitlines() == lines
    two.tick(2 * QUIET)
    assert len(two.sessions()) == 1
    for number, line in enumerate(lines):  # and it is known for an hour
        assert not two.spans[number % 2].append(two.job, line, 0.0)
    two.spans[0].forget_spent(two.now() + module.KNOWN_S + 60)
    assert two.spans[0].append(two.job, lines[0], 0.0)


def test_what_is_not_whole_goes_into_the_next_session(two, blobs, monkeypatch):
    monkeypatch.setattr(module, "CUT_BYTES", 20_000)
    monkeypatch.setattr(module, "LATE_NS", 0)
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    for number, one in enumerate(parts(ROWS, 13)):
        two.spans[number % 2].append(two.job, json.dumps(one).encode(), 0.0)
        if number % 3 == 1:
            two.tick()
    two.tick(QUIET)
    found = two.sessions()
    assert len(found) > 1
    assert [step for session in found for step in session["meta"]["steps"]] == STEPS
    ids = []
    for session in found:
        with blobs.open(trace_key(session["sha256"])) as file:
            lines = file.read().splitlines()
        whole = set(session["meta"]["steps"])
        assert set(steps_of(lines).whole) >= whole
        for line in lines:
            for scope in json.loads(line)["resourceSpans"][0]["scopeSpans"]:
                ids += [(span["traceId"], span["spanId"]) for span in scope["spans"]]
    sent = [
        (span["traceId"], span["spanId"])
        for one in parts(ROWS, 1)
        for span in one["resourceSpans"][0]["scopeSpans"][0]["spans"]
    ]
    assert set(ids) >= set(sent)


def test_an_owner_that_lost_its_lease_makes_no_session(two):
    for one in parts(ROWS, 1):
        two.spans[0].append(two.job, json.dumps(one).encode(), 0.0)
    old = two.owner()
    with two.engine.begin() as connection:
        connection.execute(text("UPDATE instances SET expires_at = 0 WHERE id = :id"),
                           {"id": two.members[old].id})  # fmt: skip
    two.members[1 - old].round()
    two.spans[old].tick(two.now() + QUIET)  # it does not know yet
    assert two.sessions() == []
    two.spans[1 - old].tick(two.now() + QUIET)
    assert [session["meta"]["steps"] for session in two.sessions()] == [STEPS]


def test_a_bucket_that_is_away_is_waited_for(two, monkeypatch):
    for one in parts(ROWS, 1):
        two.spans[0].append(two.job, json.dumps(one).encode(), 0.0)

    def away(path, key):
        raise BlobsAway("away")

    owner = two.spans[two.owner()]
    with monkeypatch.context() as patch:
        patch.setattr(owner._blobs, "take", away)
        two.tick(QUIET)
    assert two.sessions() == []
    assert list(owner._folder.iterdir()) == []
    two.tick(QUIET)
    assert len(two.sessions()) == 1


def test_spans_of_no_whole_step_are_looked_at_once_and_go_at_last(two, monkeypatch):
    line = json.dumps(parts(ROWS, 2)[0]).encode()
    two.spans[0].append(two.job, line, 0.0)
    looks = []
    real = span_log.lines_of
    monkeypatch.setattr(span_log, "lines_of", lambda *of: (looks.append(of), real(*of))[1])
    for _ in range(3):
        two.tick(QUIET)
    assert len(looks) == 1
    two.spans[1].append(two.job, json.dumps(parts(ROWS, 2)[1]).encode(), 0.0)
    two.tick(QUIET)
    assert len(looks) == 2
    assert two.sessions() == []
    assert two.spans[0].remove_older(two.now() - 60) == 0
    assert two.spans[0].remove_older(two.now() + 60) > 0
    assert span_log.waiting(two.engine, range(32)) == []


def test_a_job_that_was_removed_takes_its_spans_along(two):
    line = json.dumps(parts(ROWS, 1)[0]).encode()
    two.spans[0].append(two.job, line, 0.0)
    with two.engine.begin() as connection:
        connection.execute(tables.jobs.delete())
    with pytest.raises(JobGone):
        two.spans[1].append(two.job, line, 0.0)
    two.tick(QUIET)
    assert sessions.waiting(two.engine) == 0


class Either:
    """OpenTelemetry's exporter, behind a load balancer."""

    def __init__(self, instances):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._done = SpanExportResult.SUCCESS
        self._servers = instances.servers
        headers = {"Authorization": f"Bearer {instances.token}", "X-Paceline-Job": "llm-1"}
        self._exporters = {
            server: OTLPSpanExporter(f"{server.url}/v1/traces", headers=headers, timeout=10)
            for server in instances.servers
        }

    def export(self, spans):
        while True:
            server = random.choice([s for s in self._servers if s.process.poll() is None])
            if self._exporters[server].export(spans) == self._done:
                return self._done

    def shutdown(self):
        pass

    def force_flush(self, timeout_millis=0):
        return True


def export(instances, chosen):
    """Send the spans of some steps of all ranks with OpenTelemetry's SDK, some at a time."""
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    for rank, spans in sorted(spans_of_ranks(ROWS).items()):
        spans = [one for one in spans if int(one["parent"] or one["id"], 16) - 1 in chosen]
        about = {"service.instance.id": f"run-rank{rank}", **sizes_of(ROWS)}
        provider = TracerProvider(resource=Resource.create(about))
        processor = BatchSpanProcessor(
            Either(instances), max_export_batch_size=7, schedule_delay_millis=100
        )
        provider.add_span_processor(processor)
        tracer, steps = provider.get_tracer("megatron"), {}
        for span in spans:
            within = trace.set_span_in_context(steps[span["parent"]]) if span["parent"] else None
            one = tracer.start_span(
                span["name"], within, attributes=span["attributes"], start_time=span["start_ns"]
            )
            if span["parent"]:
                one.end(span["end_ns"])
            else:
                steps[span["id"]] = one
        for span in spans:
            if not span["parent"]:
                steps[span["id"]].end(span["end_ns"])
        assert processor.force_flush(120_000)
        provider.shutdown()


@pytest.mark.skipif(programs() is None, reason="no PostgreSQL: apt-get install postgresql")
def test_opentelemetrys_exporter_through_two_instances_of_which_one_dies(tmp_path):
    requires.installed("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
    with several(tmp_path, 2) as instances:
        client = instances.client()
        export(instances, STEPS[:3])
        victim = instances.owner()
        victim.kill()
        export(instances, STEPS[3:])
        until = time.monotonic() + 300
        while True:
            try:
                found = sorted(
                    step for s in client.sessions("llm-1") for step in s["meta"]["steps"]
                )
            except MonitorError:
                found = []
            if found == STEPS:
                break
            assert time.monotonic() < until, found
            time.sleep(0.5)
        for session in list(client.sessions("llm-1")):
            done = client.wait(session["id"], 300)
            assert done["status"] == "done", done
        while client.steps("llm-1", points=0)["step"] != STEPS:
            assert time.monotonic() < until
            time.sleep(0.5)
