"""A short run of ``monitor_durability.py``: what is acknowledged outlives kill -9 of anything."""

import pytest

import requires

requires.installed("starlette")

import monitor_durability as durability
from monitor_postgres import Postgres, programs


@pytest.fixture(autouse=True)
def chunks(monkeypatch):
    monkeypatch.setattr("paceline.client.CHUNK_BYTES", durability.CHUNK_BYTES)


def test_the_service_is_killed(tmp_path):
    found = durability.run(durability.kills, 2, tmp_path / "data", tmp_path, seed=1)
    assert found["batches"] > 2
    assert found["sessions"] > 0


@pytest.mark.skipif(
    programs() is None, reason="PostgreSQL is not installed: apt-get install postgresql"
)
def test_postgresql_or_the_service_is_killed(tmp_path):
    with Postgres() as database:
        trouble = durability.postgres_stops(database)
        found = durability.run(trouble, 2, tmp_path / "data", tmp_path, database.url, seed=1)
    assert found["batches"] > 2
    assert found["sessions"] > 0
