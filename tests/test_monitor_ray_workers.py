"""Workers of a monitor as actors of a real Ray cluster, on a real PostgreSQL."""

import os
import signal
import subprocess
import sys
import time

import pytest

import requires

requires.installed("sqlalchemy", "starlette")

from sqlalchemy import create_engine, text

from monitor_durability import make_trace
from monitor_instances import Instances
from monitor_lab import environment
from monitor_postgres import Postgres, programs
from paceline.cli.main import run
from paceline.fleet.ray_cluster import is_installed

on_ray = pytest.mark.skipif(
    not is_installed("ray") or programs() is None, reason="needs Ray and PostgreSQL"
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "2"], "options of --engine ray"),
        (["--address", "auto"], "options of --engine ray"),
        (["--engine", "ray", "--workers", "0"], "--workers must be 1 or more, not 0"),
    ],
)
def test_options_that_do_not_fit(options, message, capsys):
    assert run(["work", *options]) == 2
    assert message in capsys.readouterr().err


def actors():
    """Processes of Ray's actors, which name their class."""
    found = subprocess.run(["pgrep", "-f", "ray::Actor"], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def wait(holds, log, most_s=180.0):
    until = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.5)


class Queue:
    """The sessions in the store, which no instance analyses any more."""

    def __init__(self, url):
        self.engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))

    def ask(self, statement):
        with self.engine.begin() as connection:
            done = connection.execute(text(statement))
            return done.scalar() if done.returns_rows else None

    def fill(self):
        self.ask("UPDATE sessions SET status = 'queued', attempts = 0, slowdown = NULL")

    def is_done(self):
        return not self.ask("SELECT count(*) FROM sessions WHERE status <> 'done'")


@on_ray
def test_actors_analyse_and_one_that_is_killed_is_begun_again(tmp_path):
    (tmp_path / "bucket").mkdir()
    log = tmp_path / "ray.log"
    with Postgres() as database:
        blobs = f"file://{tmp_path / 'bucket'}"
        with Instances(database.url, blobs, tmp_path) as instances:
            client = instances.add().client(patience_s=300)
            numbers = [client.push_trace("job", make_trace(tmp_path, n)) for n in range(4)]
            before = {n: client.wait(n, 180)["slowdown"] for n in numbers}
            token = instances.token
            instances.servers[0].stop()
        queue = Queue(database.url)
        queue.fill()
        command = [sys.executable, "-m", "paceline", "work", "--store", database.url]
        command += ["--blobs", blobs, "--engine", "ray", "--workers", "2"]
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env=environment())
        try:
            wait(queue.is_done, log)
            killed = actors()
            assert len(killed) == 2
            queue.fill()
            os.kill(killed[0], signal.SIGKILL)
            wait(queue.is_done, log)
            wait(lambda: len(actors()) == 2 and killed[0] not in actors(), log)
            with Instances(database.url, blobs, tmp_path) as instances:
                instances.token = token
                client = instances.add().client(patience_s=300)
                after = {n: client.session(n)["slowdown"] for n in numbers}
                results = {n: client.result(n)["slowdown"] for n in numbers}
            assert after == results == before
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0, log.read_text()
            assert actors() == []
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            queue.engine.dispose()
