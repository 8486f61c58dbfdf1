"""A round of each fault on two instances; ``benchmarks/monitor_faults.py`` makes many."""

import pytest

import requires

requires.installed("starlette", "fsspec")

import monitor_faults
from monitor_durability import CHUNK_BYTES
from monitor_postgres import programs

pytestmark = pytest.mark.skipif(
    programs() is None, reason="PostgreSQL is not installed: apt-get install postgresql"
)


@pytest.fixture
def s3(monkeypatch):
    """The port of an S3 server; 0 where none is installed: then the bucket is a folder."""
    if not (requires.is_installed("moto.server") and requires.is_installed("s3fs")):
        yield 0
        return
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem(endpoint_url=f"http://{host}:{port}").mkdir("paceline")
    yield port
    server.stop()


@pytest.mark.filterwarnings("ignore")  # those of botocore and aiohttp
def test_each_fault_once(tmp_path, s3, monkeypatch):
    monkeypatch.setattr("paceline.client.CHUNK_BYTES", CHUNK_BYTES)
    found = monitor_faults.run(tmp_path, 1, s3=s3, seed=3)
    assert found["faults"] >= (10 if s3 else 8)
    assert found["sessions"] > 0
    during = {outcome.fault: outcome.during for outcome in found["outcomes"]}
    bucket = ["network to the bucket cut", "network to the bucket hangs"] * bool(s3)
    # What needs not the part that is away goes on meanwhile.
    for fault in ("instance kill -9", "instance pause", *bucket):
        assert during[fault]["ingest"] > 0, during
    for fault in ("instance kill -9", "instance stop", *bucket):
        assert found["pages"].get(f"{fault} True", 0) > 0, found["pages"]
        assert found["health"].get(f"{fault} True", 0) > 0, found["health"]
    assert found["alerts"] == found["faults"] + 3  # each fault's own job, and three more
