"""A real PostgreSQL is restored to an earlier time, from a base backup and its WAL.

One process has step times in its data folder, which is then ahead of the database. Several
instances have all in the database.
"""

import time

import pytest

import requires

requires.installed("sqlalchemy", "starlette")

from monitor_durability import make_trace
from monitor_instances import Instances
from monitor_lab import Server, stored_samples
from monitor_postgres import Postgres, programs
from paceline.errors import MonitorError

pytestmark = pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed")


@pytest.fixture
def database():
    with Postgres() as made:
        made.archive()
        yield made


def ask(database, query):
    import psycopg

    with psycopg.connect(database.url, autocommit=True) as connection:
        return connection.execute(query).fetchone()[0]


def push(client, name, first, last):
    for step in range(first, last):
        client.push_steps(name, [step] * 2, [0, 1], [1.0, 1.0], source="s/0", batch=step, world=2)


def lose(database, until):
    """All that came after a time."""
    ask(database, "SELECT pg_switch_wal()::text")
    expected = time.monotonic() + 60
    while ask(database, "SELECT count(*) FROM pg_stat_archiver WHERE last_archived_wal IS NULL"):
        assert time.monotonic() < expected
        time.sleep(0.1)
    database.stop()  # which archives the rest
    database.recover(until)
    while ask(database, "SELECT pg_is_in_recovery()"):
        assert time.monotonic() < expected + 60
        time.sleep(0.1)


def now_of(database):
    time.sleep(0.1)
    now = ask(database, "SELECT clock_timestamp()::text")
    time.sleep(0.1)
    return now


def test_one_process_notices_that_its_folder_is_ahead(database, tmp_path):
    server = Server(tmp_path / "data", "--store", database.url)
    with server:
        client = server.client(patience_s=60)
        push(client, "one", 0, 20)
        database.base_backup()
        push(client, "one", 20, 40)
        until = now_of(database)
        push(client, "one", 40, 60)
        push(client, "two", 0, 20)
        assert server.stop() == 0
    with server:  # its next start is a beat that the restored database does not have
        assert server.client().job("two")["last_step"] == 19
        assert server.stop() == 0
    lose(database, until)
    with server:
        log = server.log.read_text()
        assert "lies 1 minutes behind its data folder: was it restored?" in log
        assert "step times of an unknown job moved" in log
        client = server.client(patience_s=60)
        with pytest.raises(MonitorError, match="no such job"):
            client.job("two")
        push(client, "one", 60, 80)
        push(client, "two", 0, 20)  # its number was that of the lost job
        expected = time.monotonic() + 60
        while client.job("one")["last_step"] != 79 or client.job("two")["last_step"] != 19:
            assert time.monotonic() < expected
            time.sleep(0.2)
        jobs = {name: client.job(name)["id"] for name in ("one", "two")}
        assert server.stop() == 0
    for name, n in (("one", 80), ("two", 20)):  # the folder had lost nothing of the first
        samples = [(step, rank) for step, rank, _ in stored_samples(server.data, jobs[name])]
        assert sorted(samples) == [(step, rank) for step in range(n) for rank in range(2)]
    assert len(list((server.data / "orphaned").iterdir())) == 1


def test_instances_go_on_at_the_restored_time(database, tmp_path):
    (tmp_path / "bucket").mkdir()
    with Instances(database.url, f"file://{tmp_path / 'bucket'}", tmp_path) as instances:
        for _ in range(2):
            instances.add()
        instances.add_worker()
        client = instances.client(120)
        push(client, "one", 0, 20)
        database.base_backup()
        push(client, "one", 20, 40)
        kept = client.push_trace("one", make_trace(tmp_path, 0))
        assert client.wait(kept, 120)["status"] == "done"
        until = now_of(database)
        push(client, "one", 40, 60)
        push(client, "two", 0, 20)
        lost = client.push_trace("two", make_trace(tmp_path, 1))
        assert client.wait(lost, 120)["status"] == "done"
        for worker in instances.workers:
            worker.terminate()
            worker.wait(60)
        assert [server.stop() for server in instances.servers] == [0, 0]
        lose(database, until)
        for server in instances.servers:
            server.start()
        instances.add_worker()
        client = instances.client(120)
        push(client, "one", 40, 70)  # what was lost is taken when it is sent again
        push(client, "two", 0, 20)
        expected = time.monotonic() + 90
        while client.job("one")["last_step"] != 69 or client.job("two")["last_step"] != 19:
            assert time.monotonic() < expected
            time.sleep(0.2)
        time.sleep(2.0)  # rows of the series follow
        assert client.steps("one", points=1000)["step"] == list(range(70))
        assert client.steps("two", points=1000)["step"] == list(range(20))
        assert client.result(kept)["slowdown"] > 1
        again = client.push_trace("two", make_trace(tmp_path, 1))
        assert client.wait(again, 120)["status"] == "done"
