"""Faults of all kinds while a monitor takes in steps and traces, analyses, alerts and shows pages.

Each fault has a job of its own that becomes slow when it begins. After it each part has to do
something new, else the run fails. What is acknowledged has to be there at the end, once.
``benchmarks/monitor_faults.py`` makes many rounds.
"""

from __future__ import annotations

import bisect
import contextlib
import http.client
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from monitor_durability import Uploads
from monitor_instances import Instances, alive, check_log
from monitor_lab import Steps, check_steps
from monitor_postgres import Postgres
from monitor_web import Listener
from monitor_wires import HANGS, REFUSES, WELL, S3rver, Wire, signal_tree, small_disk

#: Longer than instances/membership.py's LIFE_S.
OVER_S = 13.0
#: A part that does nothing for this long after the fault is over is dead.
DEAD_S = 600.0
#: A fault lasts this much longer at most, until the parts that go on have shown it.
MEANWHILE_S = 30.0
#: A service that has not ended this long after SIGTERM never will.
STOP_S = 300.0
PARTS = ("ingest", "upload", "analysis", "alert", "page")


class Stamped(dict):
    """Notes when each value came."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[float] = []

    def __setitem__(self, key: object, value: object) -> None:
        super().__setitem__(key, value)
        self.at.append(time.monotonic())


class Looks(threading.Thread):
    """Asks living instances for a page, for whether they live, and notes what is answered."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(daemon=True)
        self.lab, self.over = lab, threading.Event()
        self.at: list[float] = []
        self.page: Counter[str] = Counter()
        self.health: Counter[str] = Counter()

    def run(self) -> None:
        while not self.over.wait(0.5):
            fault = self.lab.fault
            servers = [s for s in self.lab.instances.servers if alive(s) and s not in self.lab.out]
            if not servers:
                continue
            url = random.choice(servers).url
            self.health[f"{fault} {self._ask(url, '/healthz') == 200}"] += 1
            well = self._ask(url, "/jobs/job-0") == 200
            self.page[f"{fault} {well}"] += 1
            if well:
                self.at.append(time.monotonic())

    def _ask(self, url: str, path: str) -> int:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=8)
        try:
            headers = {"Authorization": f"Bearer {self.lab.instances.token}", "Accept": "text/html"}
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()


class Analysed(threading.Thread):
    """Notes when the store has more sessions that are done; asks the database itself."""

    def __init__(self, database: Postgres) -> None:
        super().__init__(daemon=True)
        self.url, self.over = database.url, threading.Event()
        self.at: list[float] = []

    def run(self) -> None:
        from sqlalchemy import create_engine, text
        from sqlalchemy.exc import SQLAlchemyError

        url = self.url.replace("postgresql:", "postgresql+psycopg:")
        engine = create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": 2})
        query, n = text("SELECT count(*) FROM sessions WHERE status = 'done'"), 0
        while not self.over.wait(0.25):
            with contextlib.suppress(SQLAlchemyError), engine.connect() as connection:
                now = connection.execute(query).scalar_one()
                if now > n:
                    n = now
                    self.at.append(time.monotonic())
        engine.dispose()


class Messages(threading.Thread):
    """Notes when which job's message came to the webhook."""

    def __init__(self, hook: Listener) -> None:
        super().__init__(daemon=True)
        self.hook, self.over, self.fired = hook, threading.Event(), dict[str, list[float]]()

    def run(self) -> None:
        n = 0
        while not self.over.is_set():
            with self.hook.came:
                self.hook.came.wait(0.25)
                new = self.hook.received[n:]
            for _, _, body, _ in new:
                for alert in json.loads(body)["alerts"]:
                    if alert["status"] == "firing":
                        self.fired.setdefault(alert["job"], []).append(time.monotonic())
            n += len(new)


class Alarm(threading.Thread):
    """A job that is well, and becomes slow once it is told to."""

    RANKS, WELL_STEPS, SLOW_STEPS = 4, 160, 60

    def __init__(self, lab: Lab, name: str) -> None:
        super().__init__(daemon=True)
        self.name_of_job, self.client, self.error = name, lab.instances.client(300), None
        self.samples: dict[tuple[int, int], float] = {}
        self._push(0, self.WELL_STEPS, 1.0)

    def run(self) -> None:
        try:
            self._push(self.WELL_STEPS, self.SLOW_STEPS, 1.4)
        except BaseException as error:
            self.error = error

    def _push(self, first: int, n: int, level_s: float) -> None:
        steps = np.repeat(np.arange(first, first + n), self.RANKS).tolist()
        ranks = np.tile(np.arange(self.RANKS), n).tolist()
        noise = np.random.default_rng(first).normal(1.0, 0.005, len(steps))
        times = np.float32(level_s * noise).astype(float).tolist()
        where = {"source": "start/0", "batch": first, "world": self.RANKS}
        self.client.push_steps(self.name_of_job, steps, ranks, times, **where)
        self.samples |= dict(zip(zip(steps, ranks, strict=True), times, strict=True))


@dataclass
class Outcome:
    """What one fault did.

    Attributes:
        fault: its name.
        began: when, by the machine's monotonic clock, seconds.
        for_s: how long it lasted.
        during: part -> how often it succeeded meanwhile.
        after_s: part -> seconds after its end until it succeeded.
    """

    fault: str
    began: float
    for_s: float
    during: dict[str, int]
    after_s: dict[str, float]


@dataclass
class Lab:
    """Instances, a worker, and what can be broken."""

    instances: Instances
    database: Postgres
    wires: dict[str, Wire]
    folder: Path
    disk: Path | None = None  # of the first instance, where it could be made
    bucket: S3rver | None = None
    fault: str = "none"
    out: list = field(default_factory=list)  # instances that are paused
    #: Called before a part comes back without which ingest goes on.
    meanwhile: Callable[[], None] = lambda: None

    @property
    def faults(self) -> dict[str, Callable[[], None]]:
        """By name; each breaks something and mends it again."""
        kind = "service" if self.instances.alone else "instance"
        found = {
            f"{kind} kill -9": self.kill,
            f"{kind} stop": self.stop,
            f"{kind} pause": self.pause,
            "database kill -9": self.kill_database,
            "database stop": self.stop_database,
            "database pause": self.pause_database,
            "clock jump": self.jump,
            "network to the database cut": self.cut_database,
            "network to the webhook cut": self.cut_hook,
            "network to the clients cut": self.cut_clients,
        }
        if self.instances.workers:
            found["worker kill -9"] = self.kill_worker
        if self.disk is not None:
            found["disk full"] = self.fill_disk
        if self.bucket is not None:
            found["bucket kill -9"] = self.kill_bucket
            found["bucket stop"] = self.stop_bucket
            found["bucket pause"] = self.pause_bucket
        if "bucket" in self.wires:
            found["network to the bucket cut"] = self.cut_bucket
            found["network to the bucket hangs"] = self.hang_bucket
        return found

    def _any(self):
        return random.choice([s for s in self.instances.servers if alive(s)])

    @property
    def _over_s(self) -> float:
        """A short time, or one after which others take over."""
        return random.choice((0.2, 3.0 if self.instances.alone else OVER_S))

    def kill(self) -> None:
        server = self._any()
        server.kill()
        time.sleep(self._over_s)
        if not self.instances.alone:
            self.meanwhile()
        server.start()

    def stop(self) -> None:
        server = self._any()
        server.process.terminate()
        try:
            server.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            server.process.send_signal(signal.SIGUSR1)
            time.sleep(2.0)
            raise AssertionError(f"it does not stop; stacks are in {server.log}") from None
        time.sleep(random.uniform(0.1, 2.0))
        server.start()

    def pause(self) -> None:
        server = self._any()
        self.out.append(server)
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(2.0 + self._over_s)
        if not self.instances.alone:
            self.meanwhile()
        server.process.send_signal(signal.SIGCONT)
        self.out.remove(server)

    def kill_worker(self) -> None:
        worker = self.instances.workers[-1]
        assert worker.poll() is None, f"a worker ended by itself: {worker.args}"
        worker.kill()
        worker.wait()
        time.sleep(random.uniform(0.0, 2.0))
        self.instances.add_worker()

    def _postmaster(self) -> int:
        path = self.database.folder / "data" / "postmaster.pid"
        return int(path.read_text().split()[0])

    def kill_database(self) -> None:
        pid = self._postmaster()
        signal_tree(pid, signal.SIGKILL)
        while Path(f"/proc/{pid}").exists():
            time.sleep(0.05)
        time.sleep(random.uniform(0.5, 3.0))
        self.database.start()

    def stop_database(self) -> None:
        self.database.stop(random.choice(("fast", "immediate")))
        time.sleep(random.uniform(0.5, 3.0))
        self.database.start()

    def pause_database(self) -> None:
        pid = self._postmaster()
        signal_tree(pid, signal.SIGSTOP)
        time.sleep(random.uniform(0.5, 4.0))
        signal_tree(pid, signal.SIGCONT)

    def cut_database(self) -> None:
        self._cut("database", random.uniform(0.5, 3.0))

    def cut_bucket(self) -> None:
        self._cut("bucket", random.uniform(2.0, 6.0), self.meanwhile)

    def cut_hook(self) -> None:
        self._cut("hook", random.uniform(2.0, 6.0))

    def cut_clients(self) -> None:
        names = [name for name in self.wires if name.startswith("client")]
        for name in names:
            self.wires[name].mood = REFUSES
        time.sleep(random.uniform(0.5, 3.0))
        for name in names:
            self.wires[name].mood = WELL

    def _cut(self, name: str, for_s: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.wires[name].cut()
        self.wires[name].mood = REFUSES
        time.sleep(for_s)
        meanwhile()
        self.wires[name].mood = WELL

    def hang_bucket(self) -> None:
        self.wires["bucket"].mood = HANGS
        time.sleep(random.uniform(2.0, 6.0))
        self.meanwhile()
        self.wires["bucket"].mood = WELL
        self.wires["bucket"].cut()

    def kill_bucket(self) -> None:
        self._away(signal.SIGKILL)

    def stop_bucket(self) -> None:
        self._away(signal.SIGTERM)

    def _away(self, number: int) -> None:
        self.bucket.end(number)
        time.sleep(random.uniform(1.0, 5.0))
        self.bucket.start()

    def pause_bucket(self) -> None:
        self.bucket.process.send_signal(signal.SIGSTOP)
        time.sleep(random.uniform(2.0, 6.0))
        self.bucket.process.send_signal(signal.SIGCONT)

    def fill_disk(self) -> None:
        ballast = self.disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        time.sleep(random.uniform(1.0, 4.0))
        ballast.unlink()

    def jump(self) -> None:
        """The clock of all instances jumps, back or ahead, and back again."""
        shift = self.folder / "shift"
        shift.write_text(str(random.choice((-86_400, -60, 60, 86_400))))
        time.sleep(random.uniform(1.0, 4.0))
        shift.write_text("0")


#: Python's clock, shifted by what a file says, in each process that is started with it; and its
#: stacks into its log, if it is asked by a signal.
_SHIFTED = """
import faulthandler, os, signal, time
faulthandler.register(signal.SIGUSR1, all_threads=True)
_real, _path = time.time, os.environ.get("PACELINE_TEST_SHIFT")
def _shifted():
    try:
        with open(_path) as file:
            return _real() + float(file.read() or 0)
    except (OSError, ValueError):
        return _real()
if _path:
    time.time = _shifted
"""

_ALERTS = """
rules:
  slow-job: false
  fail-slow: {gpu_hours: 0, lost_s: 0}
  job-silent: false
  regression: false
channels:
  hook: {type: webhook, url: "URL"}
group_wait_s: 1
"""


@contextlib.contextmanager
def lab(
    folder: Path,
    n: int,
    hook: str,
    s3: int = 0,
    *,
    alone: bool = False,
    bucket: S3rver | None = None,
) -> Iterator[Lab]:
    """``n`` instances and a worker behind wires; or one service that is alone.

    Args:
        folder: for all.
        n: how many.
        hook: URL of the webhook of alerts.
        s3: port of an S3 server, 0 for a folder.
        alone: one process that has the store to itself.
        bucket: the server at that port, where it can be stopped.
    """
    (folder / "shift").write_text("0")
    (folder / "bucket").mkdir()
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(_SHIFTED)
    target = urlsplit(hook)
    wires = {"hook": Wire(target.port)}
    url = target._replace(netloc=f"127.0.0.1:{wires['hook'].port}").geturl()
    (folder / "alerts.yaml").write_text(_ALERTS.replace("URL", url))
    (folder / "monitor.yaml").write_text(
        f"alerts: {folder / 'alerts.yaml'}\nrequests_per_minute: 100000\nlog_level: warning\n"
    )
    before = dict(os.environ)
    with Postgres() as database, contextlib.ExitStack() as stack:
        stack.callback(lambda: (os.environ.clear(), os.environ.update(before)))
        wires["database"] = Wire(database.port)
        blobs = f"file://{folder / 'bucket'}"
        if s3:
            wires["bucket"] = Wire(s3)
            os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{wires['bucket'].port}"
            blobs = "s3://paceline/blobs"
        os.environ["PACELINE_TEST_SHIFT"] = str(folder / "shift")
        os.environ["PACELINE_TEST_SITE"] = str(folder / "site")
        for wire in wires.values():
            wire.start()
            stack.callback(wire.close)
        store = f"postgresql://paceline@127.0.0.1:{wires['database'].port}/postgres"
        options = ("--config", str(folder / "monitor.yaml"))
        instances = stack.enter_context(Instances(store, blobs, folder, *options, alone=alone))
        disk = stack.enter_context(small_disk(folder / "i0"))
        for number in range(1 if alone else n):
            server = instances.add()
            wire = wires[f"client {number}"] = Wire(server.port)
            wire.start()
            stack.callback(wire.close)
            server.url = f"http://127.0.0.1:{wire.port}"
        if not alone:
            instances.add_worker()
            instances.wait_balanced()
        yield Lab(instances, database, wires, folder, disk, bucket)


def run(
    folder: Path,
    rounds: int,
    *,
    n: int = 2,
    s3: int = 0,
    seed: int = 0,
    only: str = "",
    alone: bool = False,
    bucket: S3rver | None = None,
    for_s: float = float("inf"),
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, object]:
    """Make ``rounds`` of each fault, or as many as begin within ``for_s`` seconds.

    Raises:
        AssertionError: something is lost or twice, or a part is dead after a fault.
    """
    random.seed(seed)
    hook = Listener()
    try:
        with lab(folder, n, hook.url, s3, alone=alone, bucket=bucket) as made:
            return Run(made, hook).go(rounds, only, time.monotonic() + for_s, say)
    finally:
        hook.close()


class Run:
    """Load, faults, and the comparison of what was acknowledged with what is there."""

    def __init__(self, made: Lab, hook: Listener) -> None:
        self.lab = made
        client = made.instances.client
        self.streams = [Steps(client(300), f"job-{i}", 4, 100, 0.5) for i in range(3)]
        for stream in self.streams:
            stream.acknowledged = Stamped()
            client().register(stream.name, gpus=stream.ranks)
        self.uploads = Uploads(client(300), "traces", made.folder, pause_s=5.0)
        self.uploads.sessions = Stamped()
        self.looks, self.analysed = Looks(made), Analysed(made.database)
        self.messages = Messages(hook)
        self.alarms: list[Alarm] = []
        self.outcomes: list[Outcome] = []

    def go(
        self, rounds: int, only: str, until: float, say: Callable[[str], None]
    ) -> dict[str, object]:
        watchers = (self.looks, self.analysed, self.messages)
        for thread in (*self.streams, self.uploads, *watchers):
            thread.start()
        self._wait(lambda: all(len(s.acknowledged) > 20 for s in self.streams), "the first steps")
        faults = {name: work for name, work in self.lab.faults.items() if only in name}
        whole = 0
        while whole < rounds and (time.monotonic() < until or not whole):
            for name in random.sample(list(faults), len(faults)):
                self._make(name, faults[name])
                say(json.dumps(asdict(self.outcomes[-1])))
            whole += 1
            batches = sum(len(s.acknowledged) for s in self.streams)
            say(f"round {whole}: {len(self.outcomes)} faults, {batches} batches so far")
        self._wait(lambda: all(len(s.acknowledged) > 160 for s in self.streams), "160 steps")
        for thread in (*self.streams, self.uploads):
            thread.end()
        self._check()
        for thread in watchers:
            thread.over.set()
            thread.join(60)
        self._check_at_rest()
        repeated = sum(len(times) - 1 for times in self.messages.fired.values())
        return {
            "rounds": whole,
            "faults": len(self.outcomes),
            "batches": sum(len(s.acknowledged) for s in self.streams) + 2 * len(self.alarms),
            "sessions": len(self.uploads.sessions),
            "alerts": len(self.messages.fired),
            "alert_messages_twice": repeated,
            "pages": dict(self.looks.page),
            "health": dict(self.looks.health),
            "outcomes": self.outcomes,
        }

    def _wait(self, is_there: Callable[[], bool], what: str, most_s: float = DEAD_S) -> None:
        until = time.monotonic() + most_s
        while not is_there():
            errors = [t.error for t in (*self.streams, self.uploads, *self.alarms) if t.error]
            assert not errors, f"{what}: {errors}"
            assert time.monotonic() < until, what
            time.sleep(0.1)

    def _make(self, name: str, work: Callable[[], None]) -> None:
        alarm = Alarm(self.lab, f"alarm-{len(self.alarms)}")
        self.alarms.append(alarm)
        self.uploads.hurry()  # the fault comes into it
        time.sleep(0.5)
        began = time.monotonic()
        self.lab.fault = name
        alarm.start()
        self.lab.meanwhile = lambda: self._ingests(began)
        work()
        self.lab.fault = "none"
        ended = time.monotonic()
        self.uploads.hurry()
        times = {
            "ingest": [stream.acknowledged.at for stream in self.streams],
            "upload": [self.uploads.sessions.at],
            "analysis": [self.analysed.at],
            "alert": [self.messages.fired.setdefault(alarm.name_of_job, [])],
            "page": [self.looks.at],
        }
        during = {
            part: sum(bisect.bisect(at, ended) - bisect.bisect(at, began) for at in lists)
            for part, lists in times.items()
        }
        after_s = {}
        for part, lists in times.items():
            since = began if part == "alert" else ended

            def at(lists=lists, since=since) -> list[float]:
                return [t for one in lists for t in one[bisect.bisect(one, since) :][:1]]

            self._wait(lambda at=at: bool(at()), f"{part} after {name}")
            after_s[part] = max(0.0, min(at()) - ended)
        alarm.join(DEAD_S)
        self.outcomes.append(Outcome(name, began, ended - began, during, after_s))

    def _ingests(self, since: float) -> None:
        """Wait a while until a batch is taken: on a busy machine a fault may be over before one."""
        until = time.monotonic() + MEANWHILE_S
        while time.monotonic() < until:
            if any(at[-1] > since for at in (s.acknowledged.at for s in self.streams) if at):
                return
            time.sleep(0.1)

    def _check(self) -> None:
        """All that clients can see."""
        client = self.lab.instances.client(120)
        for each in self.streams:
            last = len(each.acknowledged) - 1
            self._wait(lambda e=each, n=last: client.job(e.name)["last_step"] == n, "last step")
        time.sleep(2.0)  # rows of the series follow
        for each in self.streams:
            series = client.steps(each.name, points=100_000)
            wrong = Counter(range(len(each.acknowledged)))
            wrong.subtract(series["step"])
            wrong = {step: -n for step, n in wrong.items() if n}  # -1: missing, 1: double
            assert not wrong, (each.name, wrong, self._faults_at(each, wrong))
            onsets = [event for event in client.events(each.name) if event["kind"] == "onset"]
            assert len(onsets) == 1, onsets
            assert abs(onsets[0]["since_step"] - each.slow_from) <= 3, onsets
        for session in self.uploads.sessions.values():
            found = client.wait(session, 300)
            assert found["status"] == "done", found
            assert client.result(session)["slowdown"] == found["slowdown"]
        listed = [session["sha256"] for session in client.sessions("traces")]
        assert len(set(listed)) == len(listed) >= len(self.uploads.sessions)
        self._check_alerts()

    def _faults_at(self, stream: Steps, steps: Iterable[int]) -> list[str]:
        """Of some steps of a stream, the faults that were being made, or had been last."""
        began = [outcome.began for outcome in self.outcomes]
        times = [
            stream.acknowledged.at[min(step, len(stream.acknowledged.at) - 1)] for step in steps
        ]
        places = [bisect.bisect(began, time) - 1 for time in times]
        return [
            f"{time - self.outcomes[place].began:.1f} s after {self.outcomes[place].fault}"
            for time, place in zip(times, places, strict=True)
            if place >= 0
        ]

    def _check_alerts(self) -> None:
        from sqlalchemy import create_engine, text

        url = self.lab.database.url.replace("postgresql:", "postgresql+psycopg:")
        engine = create_engine(url)
        query = text("SELECT name, rule FROM alerts JOIN jobs ON jobs.id = job_id")
        with engine.connect() as connection:
            slow = Counter(name for name, rule in connection.execute(query) if rule == "fail-slow")
        engine.dispose()
        names = [each.name for each in self.streams] + [each.name_of_job for each in self.alarms]
        assert slow == dict.fromkeys(names, 1), slow

    def _check_at_rest(self) -> None:
        """Each sample that was acknowledged is in the log, or in the step files, once."""
        instances, client = self.lab.instances, self.lab.instances.client(120)
        for worker in instances.workers[-1:]:
            assert worker.poll() is None, f"a worker ended by itself: {worker.args}"
        of_alarms = [_AsSteps(alarm) for alarm in self.alarms]
        ids = {each.name: client.job(each.name)["id"] for each in (*self.streams, *of_alarms)}
        if instances.alone:
            assert instances.servers[0].stop() == 0
        for each in (*self.streams, *of_alarms):
            if instances.alone:
                check_steps(instances.servers[0].data, ids[each.name], each)
            else:
                check_log(instances.store, ids[each.name], each)


class _AsSteps:
    """An alarm's samples as those of a stream."""

    def __init__(self, alarm: Alarm) -> None:
        self.name, self.ranks = alarm.name_of_job, alarm.RANKS
        steps = sorted({step for step, _ in alarm.samples})
        self.acknowledged = {
            step: [alarm.samples[step, rank] for rank in range(self.ranks)] for step in steps
        }


def table(outcomes: list[Outcome]) -> str:
    """Markdown: a row for a fault.

    In a cell: rounds in which the part went on during the fault, and the longest time after the
    fault until it did something new. Of alerts: the longest time after the fault until the message
    of the job that became slow at the fault's beginning.
    """
    lines = ["| fault | rounds | lasted, s | " + " | ".join(PARTS) + " |", "|---" * 8 + "|"]
    for name in sorted({outcome.fault for outcome in outcomes}):
        rows = [outcome for outcome in outcomes if outcome.fault == name]
        lasted = [outcome.for_s for outcome in rows]
        cells = [name, str(len(rows)), f"{min(lasted):.1f} to {max(lasted):.1f}"]
        for part in PARTS:
            went_on = sum(outcome.during[part] > 0 for outcome in rows)
            worst = max(outcome.after_s[part] for outcome in rows)
            cells.append(f"{went_on}; {worst:.1f} s")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
