"""Several instances on one PostgreSQL: leases, the log, parts of uploads, the queue of analyses."""

import threading

import numpy as np
import pytest

import requires

requires.installed("starlette", "fsspec")

from sqlalchemy import insert, select, text, update
from sqlalchemy.exc import DBAPIError

import monitor_stores
from monitor_web import eventually, monitor
from paceline.errors import MonitorError
from paceline.monitor.backup import write_backup
from paceline.monitor.blobs import trace_key
from paceline.monitor.bucket import DirectBlobs, Gate
from paceline.monitor.config import Config
from paceline.monitor.instances import claim as claims
from paceline.monitor.instances import ingest
from paceline.monitor.instances import membership as module
from paceline.monitor.instances.ingest import LogWriter
from paceline.monitor.instances.instance import Instance
from paceline.monitor.instances.log_reader import LogReader, in_order
from paceline.monitor.instances.membership import ALERTS, Membership, shard_of
from paceline.monitor.instances.part_uploads import PartUploads
from paceline.monitor.instances.shared_steps import SharedKeeper, SharedSteps
from paceline.monitor.refusal import JobGone, Refusal
from paceline.monitor.service import Service
from paceline.monitor.step_files import Batch
from paceline.monitor.step_series import ROW
from paceline.monitor.store import (
    alerts,
    database,
    events,
    jobs,
    news,
    sessions,
    step_log,
    tables,
    upload_parts,
)
from paceline.monitor.store.leases import LeaseLost


@pytest.fixture
def url(tmp_path):
    with monitor_stores.postgresql(tmp_path) as found:
        yield found


@pytest.fixture
def engine(url):
    found = database.open_database(url)
    yield found
    found.dispose()


def batch(step, ranks=4, at=1000.0, source="start/0"):
    seconds = np.full(ranks, 1.0, "f4")
    ranks = np.arange(ranks, dtype="i4")
    return Batch(source, str(step), at, np.full(len(ranks), step), ranks, seconds, len(ranks))


def member(engine, name, changed=lambda *_: None):
    found = Membership(engine, name, "serve", changed)
    found.join()
    return found


def expire(engine, one):
    """As if the instance had not beaten for long."""
    with engine.begin() as connection:
        connection.execute(
            update(tables.instances).where(tables.instances.c.id == one.id).values(expires_at=0.0)
        )


class TestLeases:
    def test_instances_share_the_shards_and_one_has_each_role(self, engine):
        one, two = member(engine, "a"), member(engine, "b")
        for _ in range(2):
            one.round()
            two.round()
        assert (one.n_shards, two.n_shards) == (16, 16)
        assert one.owns(ALERTS) != two.owns(ALERTS)

    def test_what_a_dead_instance_had_is_taken_with_a_higher_fence(self, engine):
        changes = []
        one, two = member(engine, "a"), member(engine, "b", lambda *names: changes.append(names))
        for _ in range(2):
            one.round()
            two.round()
        before = dict(one._leases)
        expire(engine, one)
        two.round()
        assert two.n_shards == module.SHARDS
        assert all(two._leases[name] == fence + 1 for name, fence in before.items())
        assert changes[-1] == (set(before), set())

    def test_a_paused_instance_that_comes_back_writes_nothing(self, engine, tmp_path):
        lost = []
        one = member(engine, "a", lambda _, gone: lost.extend(gone))
        one.round()
        job = jobs.register(engine, "p", "a", 1.0)
        steps = SharedSteps(tmp_path / "scratch", engine)
        keeper = SharedKeeper(engine, one, steps)
        folder = steps.path(job.id)
        keeper.take_up(job.id, folder)
        keeper.add_rows(job.id, np.zeros(3, ROW))
        two = member(engine, "b")
        expire(engine, one)
        two.round()  # ... and one is none the wiser
        assert one.owns(ALERTS)
        keeper.flush()
        assert len(steps.rows(job.id)) == 0
        with pytest.raises(LeaseLost):
            keeper.saved(job.id, folder, (1, 1))
        assert step_log.state_of(engine, job.id) is None
        event = {"job_id": job.id, "at": 1.0, "start": 0, "kind": "onset", "step": 1}
        event |= {"since_step": 1, "factor": 2.0, "lost_s": None, "ranks": [1], "text": "x"}
        with pytest.raises(LeaseLost):
            events.add(engine, event, keeper.held)
        assert events.list_events(engine, "*", job.id, None, 9) == []
        row = {"job_id": job.id, "seen_at": 9e9, "last_step": 7}
        jobs.update_live(engine, [row], keeper.held)
        assert jobs.by_id(engine, job.id)["last_step"] is None
        with pytest.raises(LeaseLost):
            one.check(ALERTS)
        two.check(ALERTS)
        one.round()
        assert not one._leases.keys() & two._leases.keys()
        assert lost

    def test_an_owner_in_the_middle_of_writing_is_waited_for(self, engine):
        one, two = member(engine, "a"), member(engine, "b")
        one.round()
        job = jobs.register(engine, "p", "a", 1.0)
        expire(engine, one)
        with engine.begin() as connection:
            assert one.held(connection, [job.id]) == {job.id}
            two.round()  # leaves that shard out
            assert not two.owns(f"shard-{shard_of(job.id):02d}")
        two.round()
        with engine.begin() as connection:
            assert one.held(connection, [job.id]) == set()
            assert two.held(connection, [job.id]) == {job.id}

    def test_one_that_is_paused_in_a_transaction_holds_nobody_up(self, engine):
        database.hold_nothing_up(engine, 0.2)
        one, two = member(engine, "a"), member(engine, "b")
        one.round()
        job = jobs.register(engine, "p", "a", 1.0)
        expire(engine, one)
        with pytest.raises(DBAPIError), engine.begin() as connection:  # noqa: PT012
            assert one.held(connection, [job.id]) == {job.id}
            eventually(lambda: two.round() or two.n_shards == module.SHARDS)
            connection.execute(update(tables.jobs).values(last_step=9))
        assert jobs.by_id(engine, job.id)["last_step"] is None

    def test_the_clock_is_that_of_the_database(self, engine, monkeypatch):
        one = member(engine, "a")
        monkeypatch.setattr(module.time, "time", lambda: 0.0)
        with engine.connect() as connection:
            now = connection.execute(text("SELECT extract(epoch from clock_timestamp())")).scalar()
        assert abs(one.clock() - float(now)) < 5.0


class TestLog:
    def test_batches_are_there_once_and_in_order(self, engine):
        job = jobs.register(engine, "p", "a", 1.0)
        writer = LogWriter(engine)
        futures = [writer.append(job.id, batch(step)) for step in (0, 1, 2, 1)]
        writer.start()
        assert {future.result(30) for future in futures[:3]} == {True}
        assert writer.append(job.id, batch(2)).result(30) is False
        writer.stop()
        rows = step_log.between(engine, [shard_of(job.id)], (0, 0), step_log.horizon(engine), 99)
        assert sorted(int(b.steps[0]) for b in in_order(rows)) == [0, 1, 2]
        assert [row.place for row in rows] == sorted(row.place for row in rows)

    def test_what_is_being_written_is_not_passed_over(self, engine):
        job = jobs.register(engine, "p", "a", 1.0)
        early, late = (step_log.NewBlock(job.id, shard_of(job.id), k, b"x") for k in (b"1", b"2"))
        with engine.begin() as connection:
            connection.execute(text("SELECT pg_current_xact_id()"))
            step_log.append(engine, [late])
            before = step_log.horizon(engine)
            assert step_log.between(engine, [shard_of(job.id)], (0, 0), before, 9) == []
        step_log.append(engine, [early])
        before = step_log.horizon(engine)
        assert len(step_log.between(engine, [shard_of(job.id)], (0, 0), before, 9)) == 2

    def test_a_job_that_was_removed_fails_alone(self, engine):
        job = jobs.register(engine, "p", "a", 1.0)
        writer = LogWriter(engine)
        gone, here = writer.append(10_000, batch(0)), writer.append(job.id, batch(0))
        writer.start()
        assert here.result(30) is True
        with pytest.raises(JobGone):
            gone.result(30)
        writer.stop()

    def test_only_what_was_seen_is_trimmed(self, engine):
        job = jobs.register(engine, "p", "a", 1.0)
        for key in (b"1", b"2"):
            step_log.append(engine, [step_log.NewBlock(job.id, shard_of(job.id), key, b"x")])
        assert step_log.trim(engine, 9e9, None) == 0
        first = next(iter(step_log.of_job(engine, job.id, (0, 0))))
        with engine.begin() as connection:
            step_log.save_state(connection, job.id, step_log.JobState(first.place, None, None))
        assert step_log.trim(engine, 9e9, None) == 1
        assert step_log.trim(engine, 9e9, None) == 0

    def test_after_a_move_to_another_postgresql_the_log_is_read_from_its_begin(self, engine):
        job = jobs.register(engine, "p", "a", 1.0)
        step_log.append(engine, [step_log.NewBlock(job.id, shard_of(job.id), b"1", b"x")])
        assert not step_log.begin_anew_behind(engine)
        with engine.begin() as connection:
            connection.execute(update(tables.step_log).values(position=2**60))
        assert step_log.begin_anew_behind(engine)
        assert step_log.unread_jobs(engine, [shard_of(job.id)], 1) == [job.id]

    def test_what_waits_for_a_database_that_hangs_has_a_limit(self, engine, monkeypatch):
        job, goes_on = jobs.register(engine, "p", "a", 1.0), threading.Event()
        real = step_log.append
        monkeypatch.setattr(step_log, "append", lambda *given: goes_on.wait(60) and real(*given))
        monkeypatch.setattr(ingest, "_MOST_WAITING_BYTES", 1000)
        writer = LogWriter(engine)
        writer.start()
        futures = [writer.append(job.id, batch(step)) for step in range(100)]
        refused = [future for future in futures if future.done()]
        assert 80 < len(refused) < 100
        with pytest.raises(Refusal, match="wait for the database"):
            refused[0].result()
        goes_on.set()
        assert all(future.result(60) for future in futures if future not in refused)
        assert writer.append(job.id, batch(99)).result(60)  # there is room again
        writer.stop()


class TestReader:
    class Fed:
        n_waiting = 0

        def __init__(self):
            self.resumed, self.fed = [], []

        def resume(self, keys):
            self.resumed.append([key.name for key in keys])

        def feed(self, key, batch):
            self.fed.append((key.name, int(batch.steps[0])))

    def test_a_shard_is_taken_up_and_then_followed(self, engine):
        job = jobs.register(engine, "p", "a", 1.0)
        writer, fed = LogWriter(engine), self.Fed()
        writer.start()
        reader = LogReader(engine, fed)
        assert writer.append(job.id, batch(0)).result(30)
        reader.change([shard_of(job.id)], [])
        reader.round()
        assert (fed.resumed, fed.fed) == ([["a"]], [])
        assert writer.append(job.id, batch(1)).result(30)
        reader.round()
        reader.round()
        assert fed.fed == [("a", 1)]
        # Lost, and regained with a higher fence, between two beats: it is taken up anew.
        assert [key.name for key in reader.change([shard_of(job.id)], [shard_of(job.id)])] == ["a"]
        reader.round()
        assert fed.resumed == [["a"], ["a"]]
        reader.change([], [shard_of(job.id)])
        assert writer.append(job.id, batch(2)).result(30)
        reader.round()
        assert fed.fed == [("a", 1)]
        writer.stop()


class TestSeries:
    def test_rows_of_a_commit_whose_answer_was_lost_are_not_there_twice(self, engine, tmp_path):
        one = member(engine, "a")
        one.round()
        job = jobs.register(engine, "p", "a", 1.0)
        steps = SharedSteps(tmp_path / "scratch", engine)
        keeper = SharedKeeper(engine, one, steps)
        keeper.take_up(job.id, steps.path(job.id))
        rows = np.zeros(5, ROW)
        rows["step"] = range(5)
        keeper.add_rows(job.id, rows[:3])
        added = {job.id: list(keeper._added[job.id])}
        keeper.flush()
        keeper._added, keeper._unsure = added, True
        keeper.add_rows(job.id, rows[3:])
        keeper.flush()
        assert steps.rows(job.id)["step"].tolist() == [0, 1, 2, 3, 4]
        keeper.saved(job.id, steps.path(job.id), (5, 5))
        with engine.connect() as connection:
            assert connection.execute(text("SELECT n FROM step_rows")).scalars().all() == [5]
        assert step_log.state_of(engine, job.id).place == (5, 5)


class TestUploads:
    def test_chunks_may_come_to_any_instance(self, engine, tmp_path):
        (tmp_path / "bucket").mkdir()
        blobs = DirectBlobs(f"file://{tmp_path / 'bucket'}", Gate())
        blobs.claim("x")
        places = [Config(data=tmp_path / name) for name in "ab"]
        one, two = (PartUploads(config, engine, blobs) for config in places)
        content = b"PAR1" + bytes(range(256)) * 40
        trace = {
            "sha256": digest(content),
            "size_bytes": len(content),
            "file_name": "t",
            "meta": {},
        }
        job = jobs.register(engine, "p", "a", 1.0)
        begun = one.begin(job.id, "p", trace, 1.0)
        row = tables_row(engine, begun["upload"])
        put(one, row, 0, content[:1000])
        with pytest.raises(Refusal) as refused:
            put(two, row, 0, content[:500])
        assert refused.value.extra == {"offset": 1000}
        put(two, row, 1000, content[1000:])
        number = one.finish(row, 2.0)
        with blobs.open(trace_key(trace["sha256"])) as file:
            assert file.read() == content
        assert sessions.by_id(engine, number, "*")["status"] == "queued"
        assert [key for key, _, _ in blobs.listed()] == [trace_key(trace["sha256"])]
        assert list((tmp_path / "a" / "uploads").iterdir()) == []

    def test_an_upload_that_two_instances_finish_is_one_session(
        self, engine, tmp_path, monkeypatch
    ):
        (tmp_path / "bucket").mkdir()
        blobs = DirectBlobs(f"file://{tmp_path / 'bucket'}", Gate())
        one, two = (PartUploads(Config(data=tmp_path / name), engine, blobs) for name in "ab")
        content = b"PAR1 x"
        trace = {"sha256": digest(content), "size_bytes": 6, "file_name": "t", "meta": {}}
        job = jobs.register(engine, "p", "a", 1.0)
        row = tables_row(engine, one.begin(job.id, "p", trace, 1.0)["upload"])
        put(one, row, 0, content)
        real, numbers = upload_parts.parts_of, []

        def finished_meanwhile(*of):
            monkeypatch.setattr(upload_parts, "parts_of", real)
            found = real(*of)
            numbers.append(two.finish(row, 2.0))
            return found

        monkeypatch.setattr(upload_parts, "parts_of", finished_meanwhile)
        assert [one.finish(row, 2.0)] == numbers
        assert [key for key, _, _ in blobs.listed()] == [trace_key(trace["sha256"])]

    def test_parts_that_are_gone_are_sent_again(self, engine, tmp_path):
        (tmp_path / "bucket").mkdir()
        blobs = DirectBlobs(f"file://{tmp_path / 'bucket'}", Gate())
        uploads = PartUploads(Config(data=tmp_path / "a"), engine, blobs)
        trace = {"sha256": digest(b"PAR1 x"), "size_bytes": 6, "file_name": "t", "meta": {}}
        job = jobs.register(engine, "p", "a", 1.0)
        row = tables_row(engine, uploads.begin(job.id, "p", trace, 1.0)["upload"])
        put(uploads, row, 0, b"PAR1 x")
        for key, _, _ in list(blobs.listed()):
            blobs.delete(key)
        with pytest.raises(Refusal) as refused:
            uploads.finish(row, 2.0)
        assert refused.value.extra == {"offset": 0}
        put(uploads, row, 0, b"PAR1 x")
        assert uploads.finish(row, 3.0) > 0

    def test_another_content_begins_again(self, engine, tmp_path):
        (tmp_path / "bucket").mkdir()
        blobs = DirectBlobs(f"file://{tmp_path / 'bucket'}", Gate())
        uploads = PartUploads(Config(data=tmp_path / "a"), engine, blobs)
        trace = {"sha256": digest(b"PAR1 x"), "size_bytes": 6, "file_name": "t", "meta": {}}
        job = jobs.register(engine, "p", "a", 1.0)
        row = tables_row(engine, uploads.begin(job.id, "p", trace, 1.0)["upload"])
        put(uploads, row, 0, b"PAR1 y")
        with pytest.raises(Refusal, match="SHA-256"):
            uploads.finish(row, 2.0)
        assert uploads.offset(row["id"]) == 0
        assert list(blobs.listed()) == []


def digest(content):
    import hashlib

    return hashlib.sha256(content).hexdigest()


def tables_row(engine, upload_id):
    with engine.connect() as connection:
        query = select(tables.uploads).where(tables.uploads.c.id == upload_id)
        return dict(connection.execute(query).mappings().one())


def put(uploads, row, offset, content):
    import asyncio

    async def chunks():
        yield content

    return asyncio.run(uploads.put(row, offset, chunks(), 1.0))


class TestQueue:
    def queue(self, engine, n):
        job = jobs.register(engine, "p", "a", 1.0)
        with engine.begin() as connection:
            for number in range(n):
                row = {"job_id": job.id, "sha256": str(number), "size_bytes": 1, "file_name": "t"}
                connection.execute(insert(tables.sessions).values(**row, created_at=number))

    def test_workers_that_ask_together_get_different_sessions(self, engine):
        self.queue(engine, 8)
        taken, start = [], threading.Barrier(8)

        def work(name):
            start.wait(30)
            taken.append(sessions.start_next(engine, 9.0, name))

        threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len({row["id"] for row in taken if row is not None}) == 8

    def test_what_a_dead_worker_had_is_taken_again_and_its_outcome_refused(self, engine):
        self.queue(engine, 1)
        old = sessions.start_next(engine, 9.0, "dead")
        assert sessions.requeue_of_dead(engine, ["dead"]) == 0
        assert sessions.requeue_of_dead(engine, ["alive"]) == 1
        new = sessions.start_next(engine, 9.0, "alive")
        assert (new["id"], new["attempts"]) == (old["id"], 2)
        values = {"status": "done", "slowdown": 1.5}
        assert not sessions.finish(engine, old["id"], values, None, old)
        assert sessions.by_id(engine, old["id"], "*")["status"] == "running"
        sessions.put_back(engine, old)
        sessions.try_later(engine, old, 99.0)
        assert sessions.by_id(engine, old["id"], "*")["status"] == "running"
        assert sessions.finish(engine, new["id"], values, None, new)
        assert sessions.by_id(engine, new["id"], "*")["slowdown"] == 1.5

    def test_one_that_could_not_be_run_waits(self, engine):
        self.queue(engine, 1)
        row = sessions.start_next(engine, 9.0, "w")
        sessions.try_later(engine, row, 20.0)
        assert sessions.start_next(engine, 19.0, "w") is None
        assert sessions.start_next(engine, 20.0, "w")["attempts"] == 2


def test_an_alert_that_two_instances_judge_at_once_fires_once(engine):
    job = jobs.register(engine, "p", "a", 1.0)
    alert = {"fingerprint": "rule/1", "rule": "rule", "project": "p", "job_id": job.id}
    alert |= {"session_id": None, "importance": "high", "labels": {}, "headline": "x"}
    alert |= {"cause": None, "place": None, "hosts": None, "gain": None}
    alert |= {"status": "firing", "started_at": 1.0}
    alert["updated_at"] = 1.0
    start, told = threading.Barrier(6), []

    def fire(order):
        start.wait(30)
        rows = [alerts.Firing({**alert, "fingerprint": f"rule/{k}"}, ["hook"]) for k in order]
        told.extend(alerts.change(engine, rows, [], 1.0, 1.0))

    orders = [(1, 2, 3), (3, 2, 1), (2, 1, 3)] * 2
    threads = [threading.Thread(target=fire, args=[order]) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(one.fingerprint for one in told) == ["rule/1", "rule/2", "rule/3"]
    assert len(alerts.firing(engine)) == 3
    assert len(alerts.waiting(engine, "hook")) == 3


class TestStore:
    def test_a_single_service_and_instances_do_not_share(self, url, engine, tmp_path):
        (tmp_path / "bucket").mkdir()
        blobs = f"file://{tmp_path / 'bucket'}"
        shared = Config(data=tmp_path / "a", store=url, blobs=blobs, instance="a")
        instance = Instance(shared)
        with pytest.raises(MonitorError, match="in use by another"):
            Service(Config(data=tmp_path / "one", store=url))
        twin = Instance(Config(data=tmp_path / "b", store=url, blobs=blobs, instance="b"))
        keys = [(tmp_path / name / claims.COOKIE_KEY).read_bytes() for name in "ab"]
        assert keys[0] == keys[1]
        for each in (instance, twin):
            each.stop()
        with (
            pytest.raises(MonitorError, match="back up the database"),
            (tmp_path / "b.tar").open("wb") as f,
        ):
            write_backup(shared, engine, f)
        with pytest.raises(MonitorError, match="start with --instance"):
            Service(Config(data=tmp_path / "one", store=url))

    def test_step_times_of_a_single_service_are_not_left_behind(self, url, engine, tmp_path):
        job = jobs.register(engine, "p", "a", 1.0)
        with engine.begin() as connection:
            connection.execute(update(tables.jobs).values(last_step=5))
            row = {"name": "x" * 32, "beat": 0, "created_at": 1.0}
            connection.execute(insert(tables.stores).values(**row))
        assert job.id
        with pytest.raises(MonitorError, match="need another store"):
            claims.claim(engine, 1.0)

    def test_instances_need_a_postgresql_and_a_bucket(self, tmp_path):
        for options in (
            {},
            {"store": "postgresql://h/d"},
            {"store": "sqlite:///x", "blobs": "s3://b"},
        ):
            with pytest.raises(MonitorError, match="need a PostgreSQL"):
                Config(data=tmp_path, instance="a", **options)


class TestRollingUpgrade:
    def later(self, url, additive):
        engine = database.open_database(url)
        with engine.begin() as connection:
            row = {"revision": "9999", "additive": additive}
            connection.execute(insert(tables.revisions).values(**row))
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
            connection.execute(text("ALTER TABLE jobs ADD COLUMN later TEXT"))
        engine.dispose()

    def test_a_version_before_goes_on_beside_one_that_has_added_to_the_tables(self, url):
        self.later(url, True)
        engine = database.open_database(url)
        assert jobs.register(engine, "p", "a", 1.0).id
        engine.dispose()

    def test_not_beside_one_that_has_changed_them(self, url):
        self.later(url, False)
        with pytest.raises(MonitorError, match="later version"):
            database.open_database(url)


def test_an_instance_finds_what_another_has_stored(url, engine, tmp_path, monkeypatch):
    """Steps that one instance took are seen by the detector of another, and their page by all."""
    monkeypatch.setattr(module, "BEAT_S", 0.1)
    (tmp_path / "bucket").mkdir()
    places = {"store": url, "blobs": f"file://{tmp_path / 'bucket'}", "analysis_processes": 1}
    one = Instance(Config(data=tmp_path / "a", instance="a", **places))
    two = Instance(Config(data=tmp_path / "b", instance="b", **places))
    one.start()
    two.start()
    try:
        eventually(lambda: (one.members.n_shards, two.members.n_shards) == (16, 16))
        keys = [jobs.register(one.engine, "p", f"job-{n}", one.clock()) for n in range(4)]
        for step in range(60):
            for key in keys:
                seconds = batch(step)
                assert (one if step % 2 else two).take_steps(key, seconds)
        assert not two.take_steps(keys[0], batch(59))

        def last_steps():
            return {jobs.by_id(one.engine, key.id)["last_step"] for key in keys}

        eventually(lambda: last_steps() == {59})
        eventually(lambda: [len(one.steps.rows(key.id)) for key in keys] == [60] * 4)
        assert [len(two.steps.rows(key.id)) for key in keys] == [60] * 4
        told = news.changes(two.engine, 0.0)
        assert {data["job"] for _, kind, data in told if kind == "steps"} == {k.name for k in keys}
        lives = [set(each.detectors._live) for each in (one, two)]
        assert not lives[0] & lives[1]
        assert lives[0] | lives[1] == {key.id for key in keys}
    finally:
        one.stop()
        two.stop()
    states = [step_log.state_of(engine, key.id) for key in keys]
    assert all(state is not None and state.detector for state in states)


def test_a_job_that_another_instance_removed_is_begun_anew(url, tmp_path):
    """Each instance has the numbers of the jobs that it has heard of."""
    (tmp_path / "bucket").mkdir()
    places = {"store": url, "blobs": f"file://{tmp_path / 'bucket'}"}
    body = {"steps": [0], "ranks": [0], "durations_s": [1.0], "source": "s/0", "world": 1}
    trace = {"sha256": "a" * 64, "size": 100, "file_name": "a.parquet"}
    event = {"kind": "paused", "step": 1, "at": 1.0, "text": "a pause", "ranks": [0]}
    with (
        monitor(tmp_path / "a", instance="a", **places) as one,
        monitor(tmp_path / "b", instance="b", **places) as two,
    ):
        token = one.token()
        pushes = [("steps", {**body, "batch": 1}), ("uploads", trace), ("events", event)]
        for path, content in pushes:
            job = f"/api/v1/jobs/{path}"
            first = two.ask("POST", f"{job}/steps", token=token, body={**body, "batch": 0})
            assert first.status == 200, first.text
            assert one.ask("DELETE", job, token=token).status == 200
            answer = two.ask("POST", f"{job}/{path}", token=token, body=content)
            assert answer.status == 200, (path, answer.text)
