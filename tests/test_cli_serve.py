"""`paceline serve`: alone on its store, ended in order, with https."""

import http.client
import json
import shutil
import socket
import ssl
import subprocess

import pytest

import requires

requires.installed("starlette")

from sqlalchemy import text

import monitor_site
from monitor_lab import Server
from monitor_site import until
from monitor_stores import STORES, postgresql
from monitor_web import monitor
from paceline.cli.main import run
from paceline.client import Client
from paceline.errors import MonitorError
from paceline.monitor.backup import write_backup
from paceline.monitor.config import Config
from paceline.monitor.service import Service
from paceline.monitor.store.database import open_database
from paceline.monitor.store.lock import StoreLock

_log_as_before = monitor_site.log_as_before


@pytest.mark.parametrize("kind", STORES)
def test_a_second_one_does_not_get_the_store(tmp_path, capsys, kind):
    with STORES[kind](tmp_path) as url:
        service = Service(Config(data=tmp_path / "one", store=url))
        other = ["--data", str(tmp_path / "two"), "--store", url]
        try:
            assert run(["serve", *other, "--bind", "127.0.0.1:0"]) == 2
            said = capsys.readouterr().err
            assert "is in use by another `paceline serve`" in said
            assert said.count("\n") == 1
            assert run(["admin", "gc", *other]) == 2
            with (tmp_path / "backup.tar").open("wb") as file:
                write_backup(service.config, service.engine, file)
        finally:
            service.stop()
        assert run(["admin", "gc", *other]) == 0


def test_the_lock_is_taken_again_when_the_database_is_back(tmp_path):
    with postgresql(tmp_path) as url:
        engine = open_database(url)
        lock = StoreLock(engine)
        end = text(
            "SELECT pg_terminate_backend(pid) FROM pg_locks "
            "WHERE locktype = 'advisory' AND database = "
            "(SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        with engine.begin() as connection:
            assert connection.execute(end).all() == [(True,)]
        lock.keep()
        with pytest.raises(MonitorError, match="in use"):
            StoreLock(engine)
        lock.close()
        StoreLock(engine).close()
        engine.dispose()


def test_a_stop_finishes_what_is_being_sent_and_ends_the_streams(tmp_path):
    with Server(tmp_path / "data") as server:
        token = f"Authorization: Bearer {server.token}\r\nHost: x\r\n"
        body = {"sha256": "0" * 64, "size": 2000}
        upload = server.client()._json("POST", "/api/v1/jobs/x/uploads", body)["upload"]
        stream = socket.create_connection(("127.0.0.1", server.port), timeout=120)
        stream.sendall(f"GET /events HTTP/1.1\r\n{token}\r\n".encode())
        assert b"retry:" in until(stream, b"retry:")
        half = socket.create_connection(("127.0.0.1", server.port), timeout=120)
        head = f"PUT /api/v1/uploads/{upload}?offset=0 HTTP/1.1\r\n{token}"
        half.sendall(f"{head}Content-Length: 2000\r\nExpect: 100-continue\r\n\r\n".encode())
        assert b"100 Continue" in until(half, b"\r\n\r\n")  # the handler reads
        half.sendall(b"x" * 1000)
        server.process.terminate()
        assert until(stream, b"0\r\n\r\n")  # the stream ends in order
        half.sendall(b"x" * 1000)
        assert b'{"offset":2000}' in until(half, b"}")
        assert server.process.wait(60) == 0
        stream.close()
        half.close()
        assert (server.data / "uploads" / upload).stat().st_size == 2000
        lines = [line for line in server.log.read_text().splitlines() if line.startswith("{")]
        assert all(json.loads(line)["at"] for line in lines)
        assert any(upload in line and '"status": 200' in line for line in lines)
        told = [json.loads(line) for line in lines]
        (started,) = [line for line in told if line["event"] == "started"]
        assert started["url"] == f"http://127.0.0.1:{server.port}"
        assert started["store"].startswith("sqlite:///")
        assert [line["event"] for line in told if line["event"].startswith("stop")] == [
            *("stopping", "stopped")
        ]


def test_https_with_a_certificate(tmp_path):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: apt-get install openssl")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.create_default_context(cafile=str(cert))
    with monitor(tmp_path / "data", tls_cert=str(cert), tls_key=str(key)) as site:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", site.port, timeout=120, context=context
        )
        body = f"token={site.token('read')}"
        connection.request("POST", "/login", body)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 303
        assert answer.headers["Strict-Transport-Security"]
        assert "; secure" in answer.headers["Set-Cookie"].lower()
        connection.close()
        client = Client(f"https://127.0.0.1:{site.port}", site.token("read"))
        with pytest.raises(MonitorError, match=r"is not trusted .*SSL_CERT_FILE"):
            client.job("x")  # at once: it is of no use to wait
        plain = site.raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not plain.startswith(b"HTTP/1.1 2")
    key.write_text("no key")
    assert run(["serve", "--data", str(tmp_path / "d"), "--bind", "127.0.0.1:0",
                "--tls-cert", str(cert), "--tls-key", str(key)]) == 2  # fmt: skip
