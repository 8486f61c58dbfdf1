"""A monitor on a free port of the loopback, in a thread of the test."""

import contextlib
import http.client
import json
import socket
import threading
import time
from dataclasses import dataclass, field
from urllib.parse import urlencode

from paceline.monitor.config import Config
from paceline.monitor.instances.instance import Instance
from paceline.monitor.service import Service
from paceline.monitor.store.tokens import create_token
from paceline.monitor.web.app import create_app
from paceline.monitor.web.server import listen, server_of


@dataclass
class Answer:
    status: int
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def text(self):
        return self.body.decode()


@dataclass
class Monitor:
    service: Service
    port: int
    tokens: dict = field(default_factory=dict)

    def token(self, scope="admin", project="*", **more):
        key = scope, project
        if key not in self.tokens or more:
            now = self.service.clock()
            name = f"{scope} of {'all' if project == '*' else project}"
            made = create_token(
                self.service.engine, name, scope=scope, project=project, now=now, **more
            )
            if more:
                return made[1]
            self.tokens[key] = made[1]
        return self.tokens[key]

    def ask(self, method, path, *, token=None, body=None, form=None, headers=None, timeout=120):
        headers = dict(headers or {})
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if isinstance(body, dict | list):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        if form is not None:
            body = urlencode(form).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return Answer(
                answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
            )
        finally:
            connection.close()

    def raw(self, sent: bytes, timeout=120) -> bytes:
        """Send bytes, return what comes until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            connection.sendall(sent)
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while part := connection.recv(65536):
                    received += part
            return received


@contextlib.contextmanager
def monitor(data, clock=time.time, **settings):
    config = Config(data=data, **{"bind": "127.0.0.1:0", **settings})
    listening = listen(config)
    service = Instance(config) if config.instance else Service(config, clock)
    ready = threading.Event()
    server = server_of(create_app(service), config, ready.set, service.bus.close)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        assert ready.wait(120)
        yield Monitor(service, listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(120)
        listening.close()


class Listener:
    """A local webhook: keeps what is posted, answers with ``statuses`` in turn, then 200."""

    def __init__(self, statuses=()):
        self.statuses, self.received = list(statuses), []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/hook/very-secret"
        self.came = threading.Condition()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as file:
                line = file.readline()
                headers = http.client.parse_headers(file)
                body = file.read(int(headers["Content-Length"]))
                status = self.statuses.pop(0) if self.statuses else 200
                head = f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                with self.came:
                    self.received.append((line.decode().split()[1], headers, body, status))
                    self.came.notify_all()
                connection.sendall(head.encode())

    def wait(self, n, timeout=120):
        with self.came:
            assert self.came.wait_for(lambda: len(self.received) >= n, timeout), self.received
        return [json.loads(body) for _, _, body, _ in self.received]

    def close(self):
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept up
        self._socket.close()
        self._thread.join(120)


def eventually(condition, timeout=120):
    """Wait until something is so: a line of the log is written after its answer is sent."""
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
