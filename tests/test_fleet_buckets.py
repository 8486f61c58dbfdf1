import time

import pytest

import requires
from fleet_jobs import HERE, job, make_fleet, settled
from paceline.errors import FleetError
from paceline.fleet import lock
from paceline.fleet.run import RunOptions, fleet
from paceline.fleet.store import BucketStore
from paceline.fleet.study import Study
from recordings import record_trace

requires.installed("fsspec")


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = make_fleet(tmp_path_factory.mktemp("fleet"))
    (folder / "meta-2.yaml").write_text("{dp_size: 2, pp_size: 2, world_size: 64}")
    (folder / "trace-9.parquet").write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def study(traces, tmp_path_factory):
    return fleet(traces, tmp_path_factory.mktemp("study") / "study", run=HERE)


def without_paths(study):
    return [{**row, "path": row["path"].rpartition("/")[2]} for row in settled(study.jobs)]


@pytest.fixture
def bucket(traces):
    """A bucket in the memory of this process, with the traces."""
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in traces.iterdir():
        memory.pipe_file(f"/fleet/traces/{path.name}", path.read_bytes())
    yield memory
    memory.rm("/fleet", recursive=True)


def test_a_study_from_bucket_to_bucket_is_that_of_folders(study, bucket):
    there = fleet("memory://fleet/traces", "memory://fleet/study")
    assert without_paths(there) == without_paths(study)
    assert there.steps.equals(study.steps)
    assert not bucket.exists("/fleet/study/.lock")


def test_going_on_in_a_bucket_reads_no_trace(study, bucket, monkeypatch):
    there = fleet("memory://fleet/traces", "memory://fleet/study")
    with monkeypatch.context() as patch:
        patch.setattr(BucketStore, "local", lambda *_: pytest.fail("a trace was read"))
        again = fleet("memory://fleet/traces", "memory://fleet/study")
    assert again.jobs.equals(there.jobs)
    bucket.pipe_file(
        "/fleet/traces/trace-1.parquet", bucket.cat_file("/fleet/traces/trace-9.parquet")
    )
    changed = fleet("memory://fleet/traces", "memory://fleet/study")
    assert changed.jobs["status"].to_pylist() == ["analysed", "failed", "analysed", "failed"]


def test_a_manifest_may_name_objects(study, bucket, tmp_path):
    lines = ["path,meta", "memory://fleet/traces/trace-2.parquet,memory://fleet/traces/meta-2.yaml"]
    (tmp_path / "jobs.csv").write_text("\n".join(lines))
    there = fleet(manifest=tmp_path / "jobs.csv", out="memory://fleet/study")
    assert there.jobs["gpus"].to_pylist() == [64]
    (tmp_path / "jobs.csv").write_text("path\nmemory://fleet/traces/absent.parquet\n")
    with pytest.raises(FleetError, match=r"absent.parquet, which .* names, does not exist"):
        fleet(manifest=tmp_path / "jobs.csv", out="memory://fleet/study")


def test_a_bucket_in_use_is_refused_until_its_owner_is_silent(bucket, monkeypatch):
    store = BucketStore("memory://fleet/study")
    with lock.locked(store):
        with pytest.raises(FleetError, match="is in use by process"):
            fleet("memory://fleet/traces", "memory://fleet/study")
        later = time.time() + 121
        monkeypatch.setattr(time, "time", lambda: later)
        fleet("memory://fleet/traces", "memory://fleet/study")


def test_buckets_that_other_processes_cannot_see_are_refused(bucket):
    for run in (RunOptions(processes=2), RunOptions(engine="ray")):
        with pytest.raises(FleetError, match="memory:// is in this process only"):
            fleet("memory://fleet/traces", "memory://fleet/study", run=run)


def test_addresses_that_mean_nothing_are_refused(tmp_path):
    for address, message in (
        ("nosuch://bucket/traces", "nosuch"),
        ("memory://fleet/empty", "has no files"),
    ):
        with pytest.raises(FleetError, match=message):
            fleet(address, tmp_path / "study")
    with pytest.raises(FleetError, match="is no study"):
        Study("memory://fleet/none")


@pytest.fixture(scope="module")
def s3(traces):
    """A bucket on an S3 server of this machine."""
    requires.installed("moto.server", "s3fs")
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("AWS_ENDPOINT_URL", f"http://{host}:{port}"),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ):
            patch.setenv(name, value)
        files = s3fs.S3FileSystem()
        files.mkdir("fleet")
        for path in traces.iterdir():
            files.pipe_file(f"fleet/traces/{path.name}", path.read_bytes())
        yield files
    server.stop()


@pytest.mark.filterwarnings("ignore")  # those of botocore and aiohttp
def test_a_study_on_s3_is_that_of_folders(study, s3):
    there = fleet("s3://fleet/traces/", "s3://fleet/study", run=RunOptions(processes=2))
    assert without_paths(there) == without_paths(study)
    assert there.steps.equals(study.steps)
    again = fleet("s3://fleet/traces/", "s3://fleet/study", run=RunOptions(processes=2))
    assert again.jobs.equals(there.jobs)
    with lock.locked(BucketStore("s3://fleet/study")), pytest.raises(FleetError, match="in use"):
        fleet("s3://fleet/traces/", "s3://fleet/study")


def test_a_recording_in_a_bucket_is_one_trace(bucket, tmp_path):
    record_trace(job(1), tmp_path / "run")
    for path in (tmp_path / "run").iterdir():
        bucket.pipe_file(f"/fleet/run/{path.name}", path.read_bytes())
    (tmp_path / "jobs.csv").write_text("path\nmemory://fleet/run\n")
    study = fleet(manifest=tmp_path / "jobs.csv", out=tmp_path / "study")
    assert study.jobs["steps"].to_pylist() == [2]
    size = sum(path.stat().st_size for path in (tmp_path / "run").iterdir())
    assert study.jobs["trace_bytes"].to_pylist() == [size]
