"""What earlier releases' monitors have written is read: files of tests/golden."""

import gzip
import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

import requires

requires.installed("sqlalchemy")

from paceline.detect.detector import Detector
from paceline.errors import MonitorError, StateError
from paceline.monitor import rank_file
from paceline.monitor.backup import restore_backup
from paceline.monitor.blobs import RESULT, FileBlobs, result_key
from paceline.monitor.config import Config
from paceline.monitor.documents import read_report
from paceline.monitor.rank_file import load_rank_map, save_rank_map
from paceline.monitor.snapshot import SNAPSHOT, load_stream, save_stream
from paceline.monitor.step_files import StepFile, StepFiles
from paceline.monitor.step_series import NAME, read_rows
from paceline.monitor.step_stream import Stream
from paceline.monitor.store import events, jobs, sessions, tokens
from paceline.monitor.store.database import open_database
from paceline.monitor.web.comparison import compare
from paceline.monitor.web.sections import sections
from paceline.results.document import SCHEMA
from paceline.results.facts import fleet_facts
from step_batches import batch, of_step, same
from test_golden import files


@pytest.mark.parametrize("version", ["0", "1.1"])
def test_a_snapshot_of_another_detector_is_refused(version, tmp_path):
    """Its fields meant other things: the detector is made anew from the step files."""
    shutil.copy(Path(__file__).parent / f"golden/snapshot-{version}.npz", tmp_path / SNAPSHOT)
    with pytest.raises(StateError, match="has version 1, this Paceline reads 6"):
        load_stream(tmp_path)


@files("snapshot-[12].[23456].npz")
def test_a_snapshot_goes_on(path, tmp_path):
    shutil.copy(path, tmp_path / SNAPSHOT)
    stream = load_stream(tmp_path)
    assert (stream.last_step, stream.start, stream.session) == (69, 0, "one")
    assert stream.detector.healthy_s.tolist() == [1.0, 2.0]
    assert (stream.slow_since, stream.seen_at) == (60, 1069.0)
    assert stream.detector.lost_s == pytest.approx([10 * 0.5, 10 * 1.0])
    found = []
    for step in range(70, 90):
        for closed in stream.take(of_step(step, [1.0, 2.0], source="one/0")):
            found += [(e.kind, e.rank, e.step, e.since_step) for e in closed.events]
    assert found == [("relief", 0, 76, 70), ("relief", 1, 76, 70)]


@files("snapshot-[12].[23456].npz")
def test_a_snapshot_is_saved_as_the_current_version(path, tmp_path):
    shutil.copy(path, tmp_path / SNAPSHOT)
    stream = load_stream(tmp_path)
    save_stream(stream, tmp_path)
    again, before = load_stream(tmp_path).state_dict(), stream.state_dict()
    for state, other in ((again, before), (again.pop("detector"), before.pop("detector"))):
        for name, value in other.items():
            assert np.array_equal(state[name], value, equal_nan=isinstance(value, np.ndarray)
                and value.dtype.kind == "f"), name  # fmt: skip


def test_all_that_a_detector_and_a_stream_know_is_in_their_states():
    """An attribute that is added belongs into the state, and makes its next version."""
    detector = Detector(2)
    state = detector.state_dict()
    names = {name.removeprefix("_") for name in vars(detector)}
    assert names - set(state["expected"]) == set(state) - {"schema", "version", "expected"}
    assert set(state["expected"]) == {"scale", "likeness", "workloads"}
    # Not saved: what waits comes again from the step files, from "seen_at" on.
    waits = {"waiting", "order", "repeated", "replayed_to", "replayed_end", "workload"}
    waits |= {"earlier", "pulse"}  # looked up, listened to anew at each start
    waits |= {"is_live"}  # of the last batch; until the next one the job keeps its status
    waits |= {"place"}  # of the log of several instances, which keep it beside the state
    said = set(Stream().state_dict()) - {"schema", "version", "taken_to", "ongoing_healthy_s"}
    said = {name.removesuffix("_since") for name in said}
    assert {name.removeprefix("_") for name in vars(Stream())} - waits == said


def test_the_page_of_formats_has_the_versions_of_the_store_and_the_snapshot():
    page = (Path(__file__).parents[1] / "docs/formats.md").read_text()
    newest = max(path.stem[-4:] for path in (Path(__file__).parent / "golden").glob("store-*.sql"))
    assert f"| {newest} | 0001 to {newest}: migrated at the start |" in page
    stream, detector = Stream().state_dict()["version"], Detector(1).state_dict()["version"]
    assert f"| {stream} and {detector} | 1 to {stream} and 2 to {detector} |" in page


@files("result-*.json")
def test_result(path, tmp_path):
    blobs = FileBlobs(tmp_path)
    (tmp_path / result_key(1, RESULT)).parent.mkdir(parents=True)
    shutil.copy(path, tmp_path / result_key(1, RESULT))
    report = read_report(blobs, 1)
    assert (report.job.dp_size, report.steps) == (2, (0, 1))
    assert report.traced_s == pytest.approx([0.8771, 0.8771])
    assert report.waste == pytest.approx(1 - 1 / report.slowdown)
    assert report.slowest_workers[0][:2] == (1, 0)
    worker, *_ = report.findings
    assert (worker.cause, worker.where) == ("worker", {"workers": [[1, 0]]})
    assert "dp&nbsp;1, stage&nbsp;0" in sections(report).findings
    assert compare(report, report).numbers[0].change == "0.000"
    assert fleet_facts(report, 0.5)["n_stages"] == 2


def test_a_result_of_a_later_version_is_none(tmp_path):
    blobs = FileBlobs(tmp_path)
    place = tmp_path / result_key(1, RESULT)
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"schema": SCHEMA + 1}))
    assert read_report(blobs, 1) is None


@files("steps-*.steps")
def test_step_times(path, tmp_path):
    shutil.copy(path, tmp_path / "00000000.steps")
    file = StepFile(tmp_path)
    one, two = file.read()
    wanted = batch(0, [7, 7, 8, 8], [0, 1, 0, 1], [1.0, 2.0, 3.0, 4.0], at=1000.5, world=2)
    assert same(one, wanted)
    assert same(two, batch(1, [9], [0], [5.0], at=1001.5, world=2))
    assert file.append(wanted) is None  # it is known
    file.close()


@files("series-*.rows")
def test_series(path, tmp_path):
    files = StepFiles(tmp_path)
    files.path(1).mkdir(parents=True)
    shutil.copy(path, files.path(1) / NAME)
    assert read_rows(files.path(1))["max_s"].tolist() == [2.0, 3.0, 2.5]
    series = files.series(1)
    assert series.start.tolist() == [0, 0, 1]
    last = series.start == 1
    assert (series.step[last].tolist(), series.at[last].tolist()) == ([0], [20.0])
    assert (series.median_s[last].tolist(), series.slowest[last].tolist()) == ([1.25], [1])


@files("ranks-*.npz")
def test_rank_map(path, tmp_path):
    shutil.copy(path, tmp_path / rank_file.NAME)
    rank_map = load_rank_map(tmp_path)
    found = rank_map.read()
    assert (rank_map.counted, found.ranks.tolist()) == ((1, 2), [0, 1, 5])
    assert found.bins[["start", "first"]].tolist() == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2)]
    wanted = [[1, np.nan, 1]] * 3 + [[1, 1, 1.5]] * 2
    assert np.array_equal(found.values, np.array(wanted, np.float32), equal_nan=True)
    save_rank_map(rank_map, tmp_path)
    assert load_rank_map(tmp_path).read().bins.tolist() == found.bins.tolist()


def store_of(path, folder):
    """The database that a golden file describes."""
    connection = sqlite3.connect(folder / "store.db")
    connection.executescript(path.read_text(encoding="utf-8"))
    connection.close()
    return f"sqlite:///{folder / 'store.db'}"


@files("store-*.sql")
def test_store(path, tmp_path):
    engine = open_database(store_of(path, tmp_path))
    job = jobs.by_id(engine, 1)
    assert (job["name"], job["gpus"], job["degrees"]) == ("job", 64, {"dp_size": 4})
    assert (job["healthy_s"], job["slow_since_step"], job["trend"]) == (1.0, 80, [1.25])
    session = sessions.by_id(engine, 1, "*")
    assert (session["cause"], session["slowdown"]) == ("slow-worker", 1.25)
    (event,) = events.list_events(engine, "*", 1, None, 10)
    assert (event["kind"], event["since_step"], event["ranks"]) == ("onset", 80, [0, 1])
    (token,) = tokens.list_tokens(engine)
    assert (token.name, token.scope) == ("ann", "push")
    again = {**{k: event[k] for k in ("job_id", "at", "kind", "step", "since_step")}, "start": 0}
    row = {**again, "factor": 1.5, "lost_s": 1.5, "ranks": [0, 1], "text": "again"}
    assert events.add(engine, row) == (1, False)  # it is known, though it says no start
    engine.dispose()


def test_a_store_of_a_later_version_is_refused(tmp_path):
    last = sorted(Path(__file__).parent.glob("golden/store-*.sql"))[-1]
    url = store_of(last, tmp_path)
    connection = sqlite3.connect(tmp_path / "store.db")
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    with pytest.raises(MonitorError, match="later version"):
        open_database(url)


@files("backup-*.tar.gz")
def test_backup(path, tmp_path):
    (tmp_path / "backup.tar").write_bytes(gzip.decompress(path.read_bytes()))
    config = Config(data=tmp_path / "data")
    assert restore_backup(config, tmp_path / "backup.tar") == {"rows": 1, "files": 1}
    engine = open_database(config.store_url)
    assert jobs.by_id(engine, 1)["gpus"] == 64
    engine.dispose()
    with StepFiles(config.data / "steps").of(1) as file:
        assert [one.steps.tolist() for one in file.read()] == [[7, 7, 8, 8], [9]]
