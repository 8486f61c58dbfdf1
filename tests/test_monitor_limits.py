"""Who is slow, or wants too much at a time, is not waited for."""

import contextlib
import json
import socket
import time
from types import SimpleNamespace

import requires

requires.installed("starlette")

import monitor_site
from monitor_web import eventually, monitor
from paceline.monitor.blobs import PERFETTO, result_key
from paceline.monitor.store import jobs, tables
from paceline.monitor.web import limits, server
from paceline.monitor.web.limits import Rates

site, lines = monitor_site.site, monitor_site.lines


def test_slow_headers_are_not_waited_for(site, monkeypatch, lines):
    monkeypatch.setattr(server, "HEADERS_S", 1.0)
    for begin in (b"", b"GET / HTTP/1.1\r\nHost: x\r\n"):
        with socket.create_connection(("127.0.0.1", site.port), timeout=120) as connection:
            connection.sendall(begin)
            began = time.monotonic()
            trickled, closed = 0, False
            while not closed and time.monotonic() - began < 60:
                try:
                    if begin:
                        connection.sendall(b"X")  # a byte now and then does not help
                    connection.settimeout(0.05)
                    closed = connection.recv(1) == b""
                except TimeoutError:
                    trickled += 1
                except OSError:
                    closed = True
            assert closed
            assert trickled
    eventually(lambda: sum("slow headers" in line for line in lines) == 2)


def test_a_second_request_on_the_same_connection_is_timed_too(site, monkeypatch):
    monkeypatch.setattr(server, "HEADERS_S", 1.0)
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", site.port), timeout=60) as connection:
        for _ in range(2):
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b'{"status":"ok"}'):
                answer += connection.recv(65536)
            time.sleep(1.2)  # idle between requests is uvicorn's to judge
        connection.sendall(b"GET")
        assert connection.recv(65536) == b""


def test_a_slow_body_is_not_waited_for(site, monkeypatch, lines):
    token = site.token("push")
    head = (
        f"POST /api/v1/jobs/x/steps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        "Content-Length: 1000\r\n\r\n"
    )
    monkeypatch.setattr(limits, "BODY_PAUSE_S", 0.3)
    assert site.raw(head.encode() + b"x").startswith(b"HTTP/1.1 408")
    monkeypatch.setattr(limits, "BODY_PAUSE_S", 600.0)
    monkeypatch.setattr(limits, "BODY_GRACE_S", 0.3)
    with socket.create_connection(("127.0.0.1", site.port), timeout=60) as connection:
        connection.sendall(head.encode())
        connection.settimeout(0.05)
        answer, began = b"", time.monotonic()
        while not answer and time.monotonic() - began < 60:
            connection.sendall(b"x")
            try:
                answer = connection.recv(65536)
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408")
    eventually(lambda: sum('"status": 408' in line for line in lines) == 2)


def test_rates_of_tokens(tmp_path, lines, monkeypatch):
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    with monitor(tmp_path, requests_per_minute=5, step_samples_per_minute=10) as site:
        read, push = site.token("read"), site.token("push")
        answers = [site.ask("GET", "/api/v1/jobs", token=read) for _ in range(7)]
        assert [answer.status for answer in answers] == [200] * 5 + [429] * 2
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 13
        assert site.ask("GET", "/api/v1/jobs", token=site.token("admin")).status == 200
        assert all(site.ask("GET", "/healthz").status == 200 for _ in range(9))
        steps = [
            {
                "source": "a",
                "batch": n,
                "samples": [[step, 0, 1.0] for step in range(n * 6, n * 6 + 6)],
            }
            for n in range(3)
        ]
        told = [site.ask("POST", "/api/v1/jobs/x/steps", token=push, body=b) for b in steps]
        assert [answer.status for answer in told] == [200, 429, 429]
        for _ in range(limits.WRONG_TOKENS_PER_MINUTE + 5):
            answer = site.ask("GET", "/api/v1/jobs", token="pcl_wrong")
        assert answer.status == 429  # and who has a good one does not suffer
        assert site.ask("GET", "/api/v1/jobs", token=site.token("admin")).status == 200


def test_streams_are_limited_and_given_back(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_STREAMS", 2)
    with monitor(tmp_path) as site:
        sent = (
            f"GET /events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {site.token('read')}\r\n\r\n"
        )
        opened = []
        for _ in range(2):
            opened.append(socket.create_connection(("127.0.0.1", site.port), timeout=120))
            opened[-1].sendall(sent.encode())
            assert opened[-1].recv(65536).startswith(b"HTTP/1.1 200")
        assert site.ask("GET", "/events", token=site.token("read")).status == 429
        for each in opened:
            each.close()

        def again():
            with socket.create_connection(("127.0.0.1", site.port), timeout=120) as each:
                each.sendall(sent.encode())
                return each.recv(65536).startswith(b"HTTP/1.1 200")

        eventually(again)


def test_a_client_that_does_not_read_is_not_waited_for(tmp_path, monkeypatch, lines):
    monkeypatch.setattr(server, "UNREAD_S", 0.3)
    with monitor(tmp_path / "data") as site:
        engine = site.service.engine
        job = jobs.register(engine, "default", "x", 1.0)
        with engine.begin() as connection:
            connection.execute(
                tables.sessions.insert().values(
                    job_id=job.id,
                    sha256="0",
                    size_bytes=1,
                    file_name="t",
                    created_at=1.0,
                    status="done",
                )
            )
        large = tmp_path / "large"
        large.write_bytes(bytes(50_000_000))
        site.service.blobs.take(large, result_key(1, PERFETTO))
        with socket.create_connection(("127.0.0.1", site.port), timeout=120) as connection:
            head = "GET /api/v1/sessions/1/perfetto HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer"
            connection.sendall(f"{head} {site.token()}\r\n\r\n".encode())
            eventually(lambda: any("slow reader" in line for line in lines))
            received = 0
            with contextlib.suppress(ConnectionResetError):
                while part := connection.recv(1 << 20):
                    received += len(part)
        assert received < 50_000_000
        eventually(lambda: any('"path": "/api/v1/sessions/1/perfetto"' in line for line in lines))


def test_bodies_that_are_here_at_a_time_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_HELD_BYTES", 100_000)
    with monitor(tmp_path) as site:
        push = site.token("push")
        head = (
            f"POST /api/v1/jobs/x/steps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {push}\r\n"
            "Content-Length: 90000\r\nExpect: 100-continue\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", site.port), timeout=120) as slow:
            slow.sendall(head.encode())
            assert b"100 Continue" in slow.recv(65536)
            slow.sendall(bytes(80_000))
            small = {"batch": 1, "samples": [[1, 0, 1.0]]}

            def ask(size):
                body = json.dumps({**small, "source": " " * 150, "more": " " * size}).encode()
                return site.ask("POST", "/api/v1/jobs/x/steps", token=push, body=body)

            eventually(lambda: ask(40_000).status == 429)
            assert ask(40_000).headers["retry-after"] == "5"
            assert ask(10).status == 200
        eventually(lambda: ask(40_000).status == 200)  # who went away holds nothing


def test_rates_remember_so_many_only(monkeypatch):
    monkeypatch.setattr(limits, "_MAX_KEYS", 10)
    rates = Rates(2)
    for key in range(100):
        assert rates.take(key) == 0
    assert len(rates._credit) == 10
    assert rates.take(99) == 0
    assert 0 < rates.take(99) <= 30
    assert Rates(10).take("x", 1000) == 0
