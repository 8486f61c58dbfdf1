"""A bucket that hangs, fails or is another store's: nobody waits for it, and nothing is lost."""

import threading
import time

import pytest

import requires

requires.installed("starlette")
requires.installed("fsspec")

from monitor_web import eventually, monitor
from paceline.errors import MonitorError
from paceline.monitor import bucket as module
from paceline.monitor.blobs import BlobsAway, result_key, trace_key
from paceline.monitor.bucket import BucketBlobs, Gate, SpooledBlobs, open_blobs
from paceline.monitor.store import jobs, sessions


class Switch:
    """A file system in memory that can be told to hang or to fail."""

    def __init__(self, fs):
        self.fs, self.mood, self.go_on, self.calls = fs, "well", threading.Event(), 0

    def __getattr__(self, name):
        work = getattr(self.fs, name)
        if name.startswith("_") or not callable(work):
            return work

        def call(*args, **options):
            self.calls += 1
            if self.mood == "hangs":
                self.go_on.wait(60)
            if self.mood == "fails":
                raise ConnectionError("no route to host")
            return work(*args, **options)

        return call


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_FIRST_TRY_S", 0.02)
    gate = Gate(limit_s=0.2)
    bucket = BucketBlobs(f"memory://{tmp_path.name}", gate)
    bucket._fs = switch = Switch(bucket._fs)
    blobs = SpooledBlobs(bucket, tmp_path / "outbox", gate)
    yield blobs, switch
    switch.mood = "well"
    switch.go_on.set()
    blobs.stop()


def put(blobs, tmp_path, key, content=b"content"):
    path = tmp_path / "incoming"
    path.write_bytes(content)
    blobs.take(path, key)


def content(blobs, key):
    with blobs.open(key) as file:
        return file.read()


def moved(blobs):
    eventually(lambda: blobs.waiting == (0, 0), timeout=30)


KEY, TRACE = result_key(1, "result.json"), trace_key("a" * 64)


def test_what_comes_is_here_at_once_and_moved_later(place, tmp_path):
    blobs, switch = place
    switch.mood = "fails"
    put(blobs, tmp_path, KEY)
    put(blobs, tmp_path, TRACE, b"trace")
    assert blobs.waiting == (2, 12)
    blobs.start()
    assert content(blobs, KEY) == b"content"
    eventually(lambda: "no route to host" in blobs.problem, timeout=30)
    with blobs.local(TRACE) as path:
        assert path.read_bytes() == b"trace"
        switch.mood = "well"
        moved(blobs)
        assert path.read_bytes() == b"trace"  # whoever works on it keeps it
    assert blobs.problem == ""
    assert content(blobs, KEY) == b"content"
    assert {key for key, _, _ in blobs.listed()} == {KEY, TRACE}
    blobs.delete(KEY)
    assert not blobs.exists(KEY)


def test_a_restart_goes_on_with_what_waits(place, tmp_path):
    blobs, switch = place
    put(blobs, tmp_path, KEY)
    again = SpooledBlobs(blobs._bucket, tmp_path / "outbox", blobs._gate)
    assert again.waiting == (1, 7)
    again.start()
    moved(again)
    again.stop()
    assert switch.fs.exists(f"{tmp_path.name}/{KEY}")


def test_a_bucket_that_hangs_takes_few_threads_and_little_time(place, tmp_path):
    blobs, switch = place
    blobs.start()
    put(blobs, tmp_path, KEY)
    moved(blobs)
    switch.mood = "hangs"
    before, seen = switch.calls, []
    began = time.monotonic()

    def read():
        try:
            blobs.open(KEY)
        except BlobsAway as away:
            seen.append(str(away))

    readers = [threading.Thread(target=read) for _ in range(40)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(30)
    assert len(seen) == 40
    assert switch.calls - before <= module.CALLS
    assert blobs.problem == "the bucket does not answer within 0.2 s"
    assert time.monotonic() - began < 30
    put(blobs, tmp_path, TRACE)  # and what comes is taken
    assert blobs.exists(TRACE)


def test_a_read_that_hangs_in_the_middle_ends(place, tmp_path):
    blobs, _ = place
    blobs.start()
    put(blobs, tmp_path, KEY, bytes(5_000_000))
    moved(blobs)
    with blobs.open(KEY) as file:
        assert len(file.read(1 << 20)) == 1 << 20
        hanging = threading.Event()
        file.raw._raw = type("Hung", (), {"read": lambda *_: hanging.wait(60), "close": int})()
        with pytest.raises(BlobsAway):
            file.read()
        hanging.set()


def test_a_bucket_is_of_one_store(tmp_path):
    url = f"memory://{tmp_path.name}"
    one, same, other = (open_blobs(url, tmp_path / name) for name in ("one", "same", "other"))
    one.claim("store-1")
    same.claim("store-1")
    with pytest.raises(MonitorError, match=r"belongs to another store \(store-1\)"):
        other.claim("store-2")
    assert list(one.listed()) == []


def test_a_bucket_of_another_store_that_was_away_at_the_start_is_not_written(place, tmp_path):
    blobs, switch = place
    blobs._bucket.claim("store-1")
    switch.mood = "fails"
    blobs.claim("store-2")  # it is away: the service starts
    put(blobs, tmp_path, KEY)
    switch.mood = "well"
    blobs.start()
    eventually(lambda: "belongs to another store" in blobs.problem, timeout=30)
    assert blobs.waiting == (1, 7)
    assert not switch.fs.exists(f"{tmp_path.name}/{KEY}")
    with pytest.raises(BlobsAway, match="another store"):
        blobs.open(TRACE)


def test_a_mark_that_cannot_be_read_is_named(place):
    blobs, switch = place
    switch.fs.pipe_file(blobs._bucket._path(module.MARK), b"?")
    with pytest.raises(MonitorError, match="cannot be read"):
        blobs.claim("store-1")


@pytest.mark.filterwarnings("ignore")  # those of botocore and aiohttp
def test_what_others_write_and_remove_is_seen_after_a_listing(monkeypatch):
    requires.installed("moto.server", "s3fs")
    import boto3
    from moto.server import ThreadedMotoServer

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        another = boto3.client("s3")
        another.create_bucket(Bucket="paceline")
        place = {"Bucket": "paceline", "Key": "blobs/traces/ab/abc"}
        another.put_object(**place, Body=b"first")
        bucket = BucketBlobs("s3://paceline/blobs", Gate())
        assert [key for key, _, _ in bucket.listed()] == ["traces/ab/abc"]
        another.put_object(Bucket="paceline", Key="blobs/traces/ab/abd", Body=b"second")
        assert bucket.exists("traces/ab/abd")
        assert bucket.size("traces/ab/abd") == 6
        assert content(bucket, "traces/ab/abd") == b"second"
        another.delete_object(**place)
        assert not bucket.exists("traces/ab/abc")
    finally:
        server.stop()


def test_the_service_goes_on_while_its_bucket_hangs(tmp_path):
    """40 reports at a time are asked for: health, pages and step times do not wait for them."""
    with monitor(tmp_path / "data", blobs=f"memory://{tmp_path.name}") as site:
        service = site.service
        job = jobs.register(service.engine, "default", "job", service.clock())
        trace = {"sha256": "a" * 64, "size_bytes": 9, "file_name": "t", "meta": {}}
        number = sessions.enqueue(service.engine, job.id, trace, service.clock())
        sessions.finish(service.engine, number, {"status": "done", "slowdown": 1.2})
        put(service.blobs, tmp_path, result_key(number, "report.html"))
        moved(service.blobs)
        bucket = service.blobs._bucket
        bucket._fs = switch = Switch(bucket._fs)
        bucket._gate._limits_s = 1.0, 60.0
        switch.mood, told = "hangs", []
        path, token = f"/api/v1/sessions/{number}/report", site.token("read")
        askers = [
            threading.Thread(target=lambda: told.append(site.ask("GET", path, token=token)))
            for _ in range(40)
        ]
        for asker in askers:
            asker.start()
        assert site.ask("GET", "/healthz").status == 200
        batch = {"source": "a", "batch": 1, "samples": [[1, 0, 1.0]]}
        pushed = site.ask("POST", "/api/v1/jobs/job/steps", token=site.token("push"), body=batch)
        assert pushed.status == 200
        for asker in askers:
            asker.join(120)
        assert {answer.status for answer in told} == {503}
        assert {answer.headers["retry-after"] for answer in told} == {"10"}
        page = site.ask("GET", "/jobs/job", token=token, headers={"Accept": "text/html"})
        assert page.status == 200
        assert "The result cannot be read now" in page.text
        ready = site.ask("GET", "/readyz").json
        assert ready["status"] == "ready"
        assert "does not answer within 1 s" in ready["problems"][0]
        metrics = site.ask("GET", "/metrics", token=site.token("read")).text
        assert "paceline_blobs_up 0.0" in metrics
        switch.mood = "well"
        switch.go_on.set()
        bucket._gate._closed_until = 0.0
        eventually(lambda: site.ask("GET", path, token=token).status == 200)
