"""Tables: those of the store are brought up to date, those of the pages say what figures show."""

import json

import numpy as np
import pytest

import requires

requires.installed("starlette")

from alembic import command, op
from alembic.autogenerate import compare_metadata
from alembic.config import Config as AlembicConfig
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, insert, make_url, select, text

from monitor_fleet import DAY_S, NOW, Monitor
from monitor_stores import STORES
from paceline.monitor.config import Config
from paceline.monitor.retention import Retention
from paceline.monitor.step_series import Series
from paceline.monitor.store import database, events, queries, sessions, tables
from paceline.monitor.web.charts import MAX_PARTS, steps_chart
from paceline.report.page.distributions import scatter_chart


@pytest.fixture(params=STORES)
def url(request, tmp_path):
    """Of an empty store of each kind."""
    with STORES[request.param](tmp_path) as found:
        yield found


def migrations(connection):
    config = AlembicConfig()
    folder = database.Path(database.__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder))
    config.attributes["connection"] = connection
    return config


def first_version(url):
    """A store as the first version of the tables made it, with some rows."""
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    engine = create_engine(parsed)
    with engine.begin() as connection:
        command.upgrade(migrations(connection), "0001")
        for name, waste in (("kept", 0.2), ("emptied", 0.3)):
            connection.execute(
                text(
                    "INSERT INTO jobs (project, name, created_at, degrees, labels, status, seen_at,"
                    " slowdown, waste, cause, headline, gpu_hours_lost, n_sessions, trend) VALUES "
                    "('p', :name, 1, '{}', '{}', 'ended', 1, 1.5, :waste, 'gc', 'x', 1, 1, '[1.5]')"
                ),
                {"name": name, "waste": waste},
            )
        connection.execute(
            text(
                "INSERT INTO sessions (job_id, sha256, size_bytes, file_name, meta, created_at,"
                " status, attempts, slowdown, waste)"
                " VALUES (1, 'a', 1, 't', '{}', 1, 'done', 1, 1.5, 0.2)"
            )
        )
        for step in (80, 90):
            connection.execute(
                text(
                    "INSERT INTO events (job_id, at, kind, step, since_step, factor, ranks, text)"
                    " VALUES (1, 1000.5, 'onset', :step, 79, 1.5, '[3]', 'slow')"
                ),
                {"step": step},
            )
    engine.dispose()


def event(**more):
    usual = {"job_id": 1, "at": 1000.5, "kind": "onset", "step": 80, "since_step": 79}
    return {**usual, "start": 0, "factor": 1.5, "lost_s": None, "ranks": [3], "text": "x", **more}


class TestUpgrade:
    def test_the_tables_are_those_of_the_code_and_the_rows_stay(self, url):
        first_version(url)
        engine = database.open_database(url)
        with engine.connect() as connection:
            context = MigrationContext.configure(connection)
            assert compare_metadata(context, tables.metadata) == []
            rows = connection.execute(select(tables.events).order_by("id")).mappings().all()
            assert [(row["step"], row["start"], row["ranks"]) for row in rows] == [
                (80, None, [3]),
                (90, None, [3]),
            ]
            names = connection.execute(select(tables.sessions.c.sha256)).scalars().all()
            assert names == ["a"]
        engine.dispose()
        database.open_database(url).dispose()  # once more changes nothing

    def test_a_new_store_has_the_same_tables(self, url):
        engine = database.open_database(url)
        with engine.connect() as connection:
            context = MigrationContext.configure(connection)
            assert compare_metadata(context, tables.metadata) == []
        engine.dispose()

    def test_an_event_that_is_seen_again_after_the_upgrade_is_no_new_one(self, url):
        first_version(url)
        engine = database.open_database(url)
        assert events.add(engine, event(start=2, at=1001.0)) == (1, False)
        assert events.add(engine, event(start=2, at=1001.0)) == (1, False)
        number, new = events.add(engine, event(start=3, at=1020.0))
        assert (number > 2, new) == (True, True)
        number, new = events.add(engine, event(step=90, at=9000.0))  # of a later start
        assert (number > 3, new) == (True, True)
        starts = {row["id"]: row["start"] for row in events.list_events(engine, "*", 1, None, 9)}
        assert (starts[1], starts[2]) == (2, None)
        engine.dispose()

    def test_a_job_without_sessions_has_no_slowdown(self, url):
        first_version(url)
        engine = database.open_database(url)
        with engine.connect() as connection:
            rows = connection.execute(select(tables.jobs).order_by("name")).mappings().all()
            found = queries.list_jobs(connection, "*", status=queries.ANY).rows
        assert [(row["name"], row["slowdown"], row["trend"]) for row in rows] == [
            ("emptied", None, []),
            ("kept", 1.5, [1.5]),
        ]
        assert [row["name"] for row in found] == ["kept", "emptied"]
        engine.dispose()

    def test_an_upgrade_that_is_cut_off_is_begun_again(self, url, monkeypatch):
        first_version(url)

        def cut_off(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(op, "execute", cut_off)
        with pytest.raises(KeyboardInterrupt):
            database.open_database(url)
        monkeypatch.undo()
        engine = database.open_database(url)
        assert events.add(engine, event(start=1, at=9000.0))[1]
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
        engine.dispose()

    def test_there_is_a_way_back(self, url):
        engine = database.open_database(url)
        with engine.begin() as connection:
            job = {"project": "p", "name": "a", "created_at": 1.0, "seen_at": 1.0}
            connection.execute(insert(tables.jobs).values(**job))
        for start in (0, 1):
            assert events.add(engine, event(start=start))[1]
        with engine.begin() as connection:
            command.downgrade(migrations(connection), "0001")
        with engine.connect() as connection:
            assert connection.execute(text("SELECT id FROM events")).scalars().all() == [1]
        engine.dispose()


class TestRetention:
    def test_a_job_whose_sessions_are_all_removed_is_not_the_worst(self, url, tmp_path):
        monitor = Monitor(tmp_path, store=url)
        gone, here = monitor.add_job("gone"), monitor.add_job("here")
        done = {"status": "done", "slowdown": 2.0, "waste": 0.5, "cause": "gc", "headline": "slow"}
        for at in (NOW - 200 * DAY_S, NOW - 100 * DAY_S):
            monitor.add_session(gone, at, None, **done, gpu_hours_lost=8.0)
        monitor.add_session(here, NOW - 100 * DAY_S, None, **{**done, "slowdown": 3.0})
        new = monitor.add_session(here, NOW - DAY_S, None)
        sessions.finish(monitor.engine, new, {**done, "slowdown": 1.25, "waste": 0.2})
        with monitor.engine.begin() as connection:
            sessions.summarise(connection, gone)

        def listed():
            with monitor.engine.connect() as connection:
                return {row["name"]: row for row in queries.list_jobs(connection, "*").rows}

        assert [*listed()] == ["gone", "here"]
        config = Config(data=tmp_path, keep_days=90)
        pending = spans = Nothing()
        Retention(config, monitor.engine, monitor.blobs, monitor.steps, pending, spans).run(NOW)
        rows = listed()
        assert [*rows] == ["here", "gone"]
        names = ("slowdown", "waste", "cause", "headline", "trend", "n_sessions")
        assert [rows["gone"][name] for name in names] == [None, None, None, None, [], 0]
        assert (rows["here"]["slowdown"], rows["here"]["trend"]) == (1.25, [1.25])
        monitor.close()


class Nothing:
    """No uploads and no spans."""

    def remove_older(self, before):
        return 0


def series(n, healthy=1.0):
    times = np.full(n, 1.0, "f4")
    times[n // 2] = 1.75
    return Series(
        step=np.arange(100, 100 + n),
        at=np.arange(n) * 1.0,
        samples=np.full(n, 4),
        median_s=times,
        max_s=times,
        slowest=np.arange(n) % 4,
        start=np.zeros(n, int),
        lost=np.zeros(n, bool),
        healthy_s=np.full(n, healthy, "f4"),
    )


class TestFigures:
    def test_sizes_are_told_by_powers_of_two(self):
        points = [(8, 1.2, "a"), (15, 1.0, "b"), (8, 1.1, "c"), (64, 1.5, "<d>"), (7, 1.0, "e")]
        table = scatter_chart(points, label="l", x_label="GPUs", y_label="S")["table"]
        assert table["head"] == ["GPUs", "jobs", "median S", "largest S", "slowest job"]
        assert table["rows"] == [
            ["7", "1", "1.000", "1.000", "e"],
            ["8–15", "3", "1.100", "1.200", "a"],
            ["64", "1", "1.500", "1.500", "<d>"],
        ]

    def test_very_many_jobs_are_few_rows(self):
        points = [(n, 1.0 + n / 1e5, f"job-{n}") for n in range(1, 5000)]
        table = scatter_chart(points, label="l", x_label="GPUs", y_label="S")["table"]
        assert len(table["rows"]) == 13
        assert table["rows"][-1] == ["4,096–4,999", "904", "1.045", "1.050", "job-4999"]
        assert sum(int(row[1].replace(",", "")) for row in table["rows"]) == len(points)

    def test_step_times_are_told_in_parts(self):
        table = steps_chart(series(600), [])["table"]
        assert len(table["rows"]) == MAX_PARTS
        assert table["rows"][0] == ["100", "1.000 s", "1.000 s", "step 100, rank 0", "1.000 s"]
        assert table["rows"][10] == ["400", "1.000 s", "1.750 s", "step 400, rank 0", "1.000 s"]

    @pytest.mark.parametrize("n", [1, 2, 19, 20, 21, 39])
    def test_few_steps_are_all_there(self, n):
        rows = steps_chart(series(n, float("nan")), [])["table"]["rows"]
        assert len(rows) == min(n, MAX_PARTS)
        assert (rows[0][0], rows[0][-1]) == ("100", "–")
        assert any("1.750 s" in row for row in rows)
        json.dumps(rows)  # as the page takes it
