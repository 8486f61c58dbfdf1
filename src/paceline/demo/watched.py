"""The demo's monitor, its own or a given one, and its view of the job."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from paceline.blockfile import TIME, TIMES, read_file
from paceline.client import Client
from paceline.errors import DemoError, DemoLateError, MonitorError

#: Profiled steps of a session: some ten sessions in the demo, few enough to leave it its cores.
SESSION_STEPS = 40
#: Interval of requests to the monitor, and the longest wait for its last data.
_LOOK_S, _PATIENCE_S = 0.2, 120.0

#: A relief ends the alert only if the job stays healthy; partly mitigated, the fail-slow comes and
#: goes.
_ALERTS = """\
group_wait_s: 0
rules:
  fail-slow: {{hold_s: 10, lost_s: 0}}
channels:
  demo: {{type: webhook, url: "{url}", rules: [fail-slow]}}
"""


@dataclass(frozen=True)
class Shown:
    """A session of the job, on the monitor.

    Attributes:
        id: its number.
        last_step: its last step.
        seen_after_s: seconds from that step's end until the session was listed.
        analysed_after_s: seconds until its outcome was listed.
        slowdown: S.
    """

    id: int
    last_step: int
    seen_after_s: float
    analysed_after_s: float
    slowdown: float


@dataclass
class MonitorResult:
    """The monitor's view of the demo's job.

    Attributes:
        url: URL of the job's page.
        sessions: in order.
        alerts: (status, headline) of the webhook's messages; empty with a given monitor.
        earlier: number of alerts before the fail-slow, from single slowed steps.
    """

    url: str = ""
    sessions: list[Shown] = field(default_factory=list)
    alerts: list[tuple[str, str]] = field(default_factory=list)
    earlier: int = 0


class Watched:
    """A monitor of the demo's job during the context.

    Args:
        url: URL of a running service, with PACELINE_TOKEN; "" = a new service in ``folder``.
        folder: folder for its data.
        name: of the job.

    Raises:
        DemoError: the service does not start.
        MonitorError: the service cannot be reached.
    """

    def __init__(self, url: str, folder: Path, name: str = "") -> None:
        self.name = name or f"demo-{secrets.token_hex(3)}"
        self._url, self._folder = url, folder
        self._server: subprocess.Popen[bytes] | None = None
        self._hook: _Hook | None = None
        self._over = threading.Event()
        self._listed: dict[int, float] = {}
        self._analysed: dict[int, float] = {}
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watched:
        try:
            token = ""
            if not self._url:
                self._hook = _Hook()
                self._url, token = self._serve(self._hook.url)
            self.client = Client(self._url, token, patience_s=20.0)
            self._token = self.client.token
            self.client.register(self.name)
            list(self.client.sessions(self.name))  # checks whether the token may also read
            self._watcher.start()
        except BaseException:
            self._end()
            raise
        return self

    @property
    def url(self) -> str:
        """The job's page."""
        return f"{self.client.url}/jobs/{self.name}"

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment with which the job's recorder pushes to the monitor."""
        return {
            "PACELINE_MONITOR": self._url,
            "PACELINE_TOKEN": self._token,
            "PACELINE_JOB": self.name,
            "PACELINE_SESSION_STEPS": str(SESSION_STEPS),
        }

    def calm(self) -> int:
        """Wait until no alert fires; returns the number of the webhook's messages.

        Raises:
            DemoLateError: an alert still fires.
        """
        messages = self._hook.messages if self._hook else []
        until = time.monotonic() + _PATIENCE_S
        while sum(1 if status == "firing" else -1 for status, _ in messages):
            if time.monotonic() > until:
                raise DemoLateError(f"the monitor's alert does not end: {messages[-1][1]}")
            time.sleep(_LOOK_S)
        return len(messages)

    def result(self, recording: Path) -> MonitorResult:
        """The monitor's final view of the job, after the arrival of all data.

        Raises:
            DemoError: data are missing.
        """
        until = time.monotonic() + _PATIENCE_S
        while not self._is_done():
            if time.monotonic() > until:
                raise DemoLateError(f"the monitor did not finish; see {recording / 'push.log'}")
            time.sleep(_LOOK_S)
        ended = _step_ends(recording)
        rows = sorted(self.client.sessions(self.name), key=lambda row: int(row["id"]))
        sessions = [
            Shown(
                row["id"],
                row["last_step"],
                self._listed[row["id"]] - ended[row["last_step"]],
                self._analysed[row["id"]] - ended[row["last_step"]],
                row["slowdown"],
            )
            for row in rows
            if row["status"] == "done"
        ]
        return MonitorResult(self.url, sessions, self._hook.messages if self._hook else [])

    def _is_done(self) -> bool:
        try:
            rows = list(self.client.sessions(self.name))
            return (
                self.client.job(self.name)["status"] == "ended"
                and all(row["status"] in ("done", "failed") for row in rows)
                and len(self._analysed) == len(rows)
            )
        except MonitorError as error:
            raise DemoError(str(error)) from None

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            try:
                for row in self.client.sessions(self.name):
                    self._listed.setdefault(row["id"], time.time())
                    if row["status"] in ("done", "failed"):
                        self._analysed.setdefault(row["id"], time.time())
            except MonitorError:  # asked again
                pass

    def _serve(self, hook: str) -> tuple[str, str]:
        """Start a service; returns its URL and token."""
        self._folder.mkdir(parents=True, exist_ok=True)
        alerts = self._folder / "alerts.yaml"
        alerts.write_text(_ALERTS.format(url=hook), encoding="utf-8")
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from paceline.detect.launch import die_with; die_with({os.getpid()}); "
            "from paceline.cli.main import run; sys.exit(run())"
        )
        config = self._folder / "monitor.yaml"
        config.write_text(f"alerts: {json.dumps(str(alerts))}\n", encoding="utf-8")
        options = ["serve", "--data", str(self._folder / "data"), "--config", str(config)]
        options += ["--bind", "127.0.0.1:0", "--public-read"]
        log = self._folder / "serve.log"
        with log.open("wb") as file:
            self._server = subprocess.Popen(
                [sys.executable, "-c", code, *options],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        until = time.monotonic() + _PATIENCE_S
        while self._server.poll() is None and time.monotonic() < until:
            output = log.read_text(encoding="utf-8", errors="replace")
            url, token = re.search(r"listening on (\S+),", output), re.search(r"pcl_[\w-]+", output)
            if url and token:
                return url[1], token[0]
            time.sleep(0.05)
        output = log.read_text(encoding="utf-8", errors="replace")
        raise DemoError(f"the monitor did not start: {' '.join(output.split())[-300:]}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._over.set()
        if self._watcher.ident is not None:
            self._watcher.join()
        if self._server is not None:
            self._server.terminate()
            try:
                self._server.wait(20)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
        if self._hook is not None:
            self._hook.close()


def _step_ends(recording: Path) -> dict[int, float]:
    """Step -> its end on rank 0, seconds since 1970."""
    ends = {}
    for path in recording.glob("rank-00000-*.blocks"):
        for kind, payload in read_file(path).blocks:
            if kind == TIMES:
                for step, start_ns, duration_ns in TIME.iter_unpack(payload):
                    ends[step] = (start_ns + duration_ns) / 1e9
    return ends


class _Hook:
    """A webhook on the loopback interface that keeps its messages."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str]] = []
        messages = self.messages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                messages.extend((alert["status"], alert["headline"]) for alert in body["alerts"])
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Do not log requests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
