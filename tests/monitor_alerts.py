"""A service of alerts with a clock that is set by hand, and a channel to listen on.

A file of tests takes a fixture over by its name: ``hook = monitor_alerts.hook``.
"""

import json

import pytest

from monitor_web import Listener
from paceline.monitor.alerts import delivery
from paceline.monitor.alerts.engine import Alerts
from paceline.monitor.bus import Bus
from paceline.monitor.config import Config
from paceline.monitor.store import alerts as store
from paceline.monitor.store import jobs
from paceline.monitor.store.database import open_database
from paceline.monitor.store.tables import alerts, events, sessions
from paceline.monitor.store.tables import jobs as job_table

HOUR, DAY = 3600.0, 86_400.0
HOOK = "channels:\n  hook: {{type: webhook, url: '{url}', secret: abc}}\ngroup_wait_s: {wait}\n"


def fire(engine, alert, now):
    """Start an alert without a channel; returns its number."""
    (told,) = store.change(engine, [store.Firing(alert)], [], now, now)
    return told.id


class World:
    """A service with a clock that is set by hand."""

    def __init__(self, data, text="", store=""):
        path = data / "alerts.yaml"
        path.write_text(text)
        alerts = str(path) if text else ""
        self.config = Config(data=data, store=store, alerts=alerts, base_url="http://here")
        self.engine = open_database(self.config.store_url, pooled=False)
        self.bus, self.now, self.results = Bus(), 1_000_000.0, {}
        self.started_at = 0.0
        self.blobs = self
        self.told = []
        self.bus.publish = lambda project, kind, data: self.told.append((project, kind, data))
        self.alerts = Alerts(self)
        self.job = jobs.register(self.engine, "llm", "job-1", self.now, gpus=64)

    def may_send(self):
        """It is the only one."""

    def clock(self):
        return self.now

    def open(self, key):
        import io

        if key not in self.results:
            raise FileNotFoundError(key)
        return io.BytesIO(json.dumps(self.results[key]).encode())

    def row(self, table, **values):
        with self.engine.begin() as connection:
            return connection.execute(table.insert().values(**values)).inserted_primary_key[0]

    def set_job(self, **values):
        with self.engine.begin() as connection:
            connection.execute(
                job_table.update().where(job_table.c.id == self.job.id).values(**values)
            )

    def session(self, slowdown, step_s=1.0, **more):
        self.now += HOUR
        number = self.row(
            sessions,
            job_id=self.job.id,
            sha256=str(self.now),
            size_bytes=1,
            file_name="t",
            created_at=self.now,
            finished_at=self.now,
            status="done",
            slowdown=slowdown,
            step_s=step_s,
            **{"headline": "Worker dp 3, stage 1 is slow.", "cause": "worker", **more},
        )
        self.alerts.session_done(self.job.id, number)
        return number

    def happened(self, kind, step, ranks=(3,), factor=1.5, lost_s=100.0, is_live=True):
        """An event; live step times make a job run."""
        with self.engine.begin() as connection:
            is_new = (job_table.c.id == self.job.id) & (job_table.c.status == "new") & is_live
            connection.execute(job_table.update().where(is_new).values(status="running"))
        number = self.row(
            events,
            job_id=self.job.id,
            at=self.now,
            kind=kind,
            step=step,
            since_step=step,
            factor=factor,
            lost_s=lost_s,
            ranks=list(ranks),
            text=f"step {step}: 1.50x slower",
        )
        self.alerts.event(self.job.id, number)

    def pass_time(self, seconds):
        self.now += seconds
        self.alerts.tick(self.now)

    def rows(self, table=alerts):
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(table.select()).mappings()]

    def firing(self):
        return [row["rule"] for row in self.rows() if row["status"] == "firing"]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture
def hook():
    listener = Listener()
    yield listener
    listener.close()


def hooked(tmp_path, hook, wait=0, more=""):
    return World(tmp_path, HOOK.format(url=hook.url, wait=wait) + more)


def courier(world, number=0):
    return delivery.Courier(world, world.alerts.settings.routes[number])
