"""Faults of all kinds while instances take in steps and traces, analyse, alert and show pages.

What is acknowledged has to be there at the end, once; what needs not the part that is away has to
go on meanwhile. ``benchmarks/monitor_faults.py`` makes many rounds.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import selectors
import signal
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from monitor_durability import Uploads
from monitor_instances import Instances, alive, check_log
from monitor_lab import Steps, free_port
from monitor_postgres import Postgres
from monitor_web import Listener

#: Longer than instances/membership.py's LIFE_S.
OVER_S = 13.0
WELL, REFUSES, HANGS = "well", "refuses", "hangs"


class Wire(threading.Thread):
    """A TCP proxy that can refuse, hang, and cut what is open."""

    def __init__(self, target: int) -> None:
        super().__init__(daemon=True)
        self.target, self.port, self.mood = target, free_port(), WELL
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._cut, self._over = False, False
        self._listener: socket.socket | None = None

    def cut(self) -> None:
        """Reset all connections."""
        self._cut = True

    def close(self) -> None:
        self._over = True
        self.join(30)

    def run(self) -> None:
        while not self._over:
            self._listen(self.mood != REFUSES)
            if self._cut or self.mood == REFUSES:
                self._drop_all()
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self._listener:
                    self._accept()
                elif self.mood == WELL:
                    self._pump(key.fileobj)
                else:
                    time.sleep(0.01)
        self._drop_all()
        self._listen(False)

    def _listen(self, wanted: bool) -> None:
        if wanted and self._listener is None:
            self._listener = socket.socket()
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(("127.0.0.1", self.port))
            self._listener.listen(128)
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif not wanted and self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", self.target), 5)
        except OSError:
            near.close()
            return
        for one, other in ((near, far), (far, near)):
            self._pairs[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pump(self, one: socket.socket) -> None:
        other = self._pairs.get(one)
        if other is None:
            return
        try:
            data = one.recv(1 << 16)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        self._drop(one)

    def _drop(self, one: socket.socket) -> None:
        for each in (one, self._pairs.get(one)):
            if each is not None and self._pairs.pop(each, None) is not None:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(each)
                with contextlib.suppress(OSError):  # a reset, not a goodbye
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                each.close()

    def _drop_all(self) -> None:
        self._cut = False
        for one in list(self._pairs):
            self._drop(one)


class Looks(threading.Thread):
    """Asks living instances for a page, for whether they live, and counts what is answered."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(daemon=True)
        self.lab, self.over = lab, threading.Event()
        self.page: Counter[str] = Counter()
        self.health: Counter[str] = Counter()

    def run(self) -> None:
        while not self.over.wait(0.15):
            fault = self.lab.fault
            servers = [s for s in self.lab.instances.servers if alive(s) and s not in self.lab.out]
            if not servers:
                continue
            port = random.choice(servers).port
            self.health[f"{fault} {self._ask(port, '/healthz') == 200}"] += 1
            self.page[f"{fault} {self._ask(port, '/jobs/job-0') == 200}"] += 1

    def _ask(self, port: int, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=8)
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


@dataclass
class Lab:
    """Instances, a worker, and what can be broken."""

    instances: Instances
    database: Postgres
    wires: dict[str, Wire]
    folder: Path
    disk: Path | None = None  # of the first instance, where it could be made
    fault: str = "none"
    out: list = field(default_factory=list)  # instances that are paused

    @property
    def faults(self) -> dict[str, Callable[[], None]]:
        """By name; each breaks something and mends it again."""
        found = {
            "instance kill -9": self.kill,
            "instance stop": self.stop,
            "instance pause": self.pause,
            "worker kill -9": self.kill_worker,
            "database stop": self.stop_database,
            "database pause": self.pause_database,
            "network to the database cut": self.cut_database,
            "clock jump": self.jump,
        }
        if self.disk is not None:
            found["disk full"] = self.fill_disk
        if "bucket" in self.wires:
            found |= {"bucket stop": self.stop_bucket, "bucket hang": self.hang_bucket}
        return found

    def _any(self):
        return random.choice([s for s in self.instances.servers if alive(s)])

    def kill(self) -> None:
        server = self._any()
        server.kill()
        time.sleep(random.choice((0.2, OVER_S)))
        server.start()

    def stop(self) -> None:
        server = self._any()
        server.stop()
        time.sleep(random.uniform(0.1, 2.0))
        server.start()

    def pause(self) -> None:
        server = self._any()
        self.out.append(server)
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(random.choice((2.0, OVER_S)))
        server.process.send_signal(signal.SIGCONT)
        self.out.remove(server)
        time.sleep(1.0)

    def kill_worker(self) -> None:
        worker = self.instances.workers[-1]
        worker.kill()
        worker.wait()
        self.instances.add_worker()
        time.sleep(1.0)

    def stop_database(self) -> None:
        self.database.stop(random.choice(("fast", "immediate")))
        time.sleep(random.uniform(0.5, 3.0))
        self.database.start()

    def pause_database(self) -> None:
        postmaster = self.database.folder / "data" / "postmaster.pid"
        pid = int(postmaster.read_text().split()[0])
        pids = [pid, *_children(pid)]
        for number in pids:
            _signal(number, signal.SIGSTOP)
        time.sleep(random.uniform(0.5, 4.0))
        for number in pids:
            _signal(number, signal.SIGCONT)

    def cut_database(self) -> None:
        self.wires["database"].cut()
        self.wires["database"].mood = REFUSES
        time.sleep(random.uniform(0.5, 3.0))
        self.wires["database"].mood = WELL

    def stop_bucket(self) -> None:
        self._bucket(REFUSES)

    def hang_bucket(self) -> None:
        self._bucket(HANGS)

    def _bucket(self, mood: str) -> None:
        self.wires["bucket"].mood = mood
        time.sleep(random.uniform(2.0, 6.0))
        self.wires["bucket"].mood = WELL
        self.wires["bucket"].cut()

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


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(part) for part in text.split()]


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


#: Python's clock, shifted by what a file says, in each process that is started with it.
_SHIFTED = """
import os, time
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
def lab(folder: Path, n: int, hook: str, s3: int = 0) -> Iterator[Lab]:
    """``n`` instances and a worker behind wires; ``s3``: port of an S3 server, 0 for a folder."""
    (folder / "shift").write_text("0")
    (folder / "bucket").mkdir()
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(_SHIFTED)
    (folder / "alerts.yaml").write_text(_ALERTS.replace("URL", hook))
    (folder / "monitor.yaml").write_text(
        f"alerts: {folder / 'alerts.yaml'}\nrequests_per_minute: 100000\nlog_level: warning\n"
    )
    before = dict(os.environ)
    wires: dict[str, Wire] = {}
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
        instances = stack.enter_context(Instances(store, blobs, folder, *options))
        disk = stack.enter_context(_small_disk(folder / "i0"))
        for _ in range(n):
            instances.add()
        instances.add_worker()
        instances.wait_balanced()
        yield Lab(instances, database, wires, folder, disk)


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Path | None]:
    """A tmpfs as the data folder of an instance; None where nobody may make one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    made = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield folder if made else None
    finally:
        if made:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def run(
    folder: Path,
    rounds: int,
    *,
    n: int = 2,
    s3: int = 0,
    seed: int = 0,
    only: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, object]:
    """Make ``rounds`` of each fault; raises AssertionError where something is lost or twice."""
    random.seed(seed)
    hook = Listener()
    try:
        with lab(folder, n, hook.url, s3) as made:
            return _run(made, hook, rounds, only, say)
    finally:
        hook.close()


def _run(
    made: Lab, hook: Listener, rounds: int, only: str, say: Callable[[str], None]
) -> dict[str, object]:
    instances = made.instances
    client = instances.client(300)
    streams = [Steps(instances.client(300), f"job-{i}", 4, 100, 0.05) for i in range(3)]
    for stream in streams:
        client.register(stream.name, gpus=stream.ranks)
    uploads = Uploads(instances.client(300), "traces", made.folder, pause_s=1.0)
    looks = Looks(made)
    for thread in (*streams, uploads, looks):
        thread.start()
    until = time.monotonic() + 120
    while any(len(stream.acknowledged) < 160 for stream in streams):
        assert time.monotonic() < until, [stream.error for stream in streams]
        time.sleep(0.1)
    taken: Counter[str] = Counter()
    names = [name for name in made.faults if only in name]
    for number in range(rounds):
        for name in random.sample(names, len(names)):
            before = sum(len(stream.acknowledged) for stream in streams)
            made.fault = name
            made.faults[name]()
            made.fault = "none"
            taken[name] += sum(len(stream.acknowledged) for stream in streams) - before
            time.sleep(random.uniform(0.2, 1.0))
        say(f"round {number + 1}: {sum(len(s.acknowledged) for s in streams)} batches so far")
    time.sleep(2.0)
    looks.over.set()
    looks.join(60)
    for thread in (*streams, uploads):
        thread.end()
    _check(made, hook, streams, uploads)
    fired = Counter(
        f"{alert['job']} {alert['status']}" for told in hook.wait(1) for alert in told["alerts"]
    )
    return {
        "faults": len(names) * rounds,
        "batches": sum(len(stream.acknowledged) for stream in streams),
        "sessions": len(uploads.sessions),
        "batches_during": dict(taken),
        "pages": dict(looks.page),
        "health": dict(looks.health),
        "messages": dict(sorted(fired.items())),
    }


def _check(made: Lab, hook: Listener, streams: list[Steps], uploads: Uploads) -> None:
    instances, client = made.instances, made.instances.client(120)
    until = time.monotonic() + 180
    while any(client.job(each.name)["last_step"] != len(each.acknowledged) - 1 for each in streams):
        assert time.monotonic() < until, [client.job(each.name) for each in streams]
        time.sleep(0.3)
    time.sleep(2.0)  # rows of the series follow
    for each in streams:
        check_log(instances.store, client.job(each.name)["id"], each)
        series = client.steps(each.name, points=0)
        assert series["step"] == list(range(len(each.acknowledged)))
        onsets = [event for event in client.events(each.name) if event["kind"] == "onset"]
        assert len(onsets) == 1, onsets
        assert abs(onsets[0]["since_step"] - each.slow_from) <= 3, onsets
    for session in uploads.sessions.values():
        found = client.wait(session, 300)
        assert found["status"] == "done", found
        assert client.result(session)["slowdown"] == found["slowdown"]
    listed = [session["sha256"] for session in client.sessions("traces")]
    assert len(set(listed)) == len(listed) >= len(uploads.sessions)
    alerts = client._json("GET", "/api/v1/alerts?limit=1000")["alerts"]
    slow = Counter(alert["job"] for alert in alerts if alert["rule"] == "fail-slow")
    assert slow == {each.name: 1 for each in streams}, slow
    hook.wait(1)
