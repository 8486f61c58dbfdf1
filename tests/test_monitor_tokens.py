"""Tokens: what they let one do, and that they are in no log and no table."""

import json
import socket

import pytest

import requires

requires.installed("starlette")

import monitor_site
from monitor_site import until
from monitor_web import Listener, eventually
from paceline.client import Client
from paceline.errors import MonitorError
from paceline.monitor.config import Config
from paceline.monitor.log import without_secrets
from paceline.monitor.store import jobs
from paceline.monitor.store.database import open_database
from paceline.monitor.store.tokens import list_tokens, revoke_token

site, lines = monitor_site.site, monitor_site.lines


READS = ("/api/v1/jobs", "/api/v1/alerts", "/api/v1/silences", "/api/v1/events", "/metrics")


@pytest.mark.parametrize("path", READS)
def test_reads_need_a_token_that_may_read(site, path):
    assert site.ask("GET", path).status == 401
    assert site.ask("GET", path, token="pcl_wrong").status == 401
    assert site.ask("GET", path, token=site.token("push")).status == 403
    assert site.ask("GET", path, token=site.token("read")).status == 200


def test_a_token_reads_also_while_the_store_takes_nothing(tmp_path, monkeypatch):
    """A full disk: that a token was used cannot be noted, and need not."""
    from sqlalchemy.exc import OperationalError

    from paceline.monitor.store import tokens

    engine = open_database(Config(data=tmp_path).store_url)
    _, secret = tokens.create_token(engine, "a", scope="read", now=1.0)

    def full(*_):
        raise OperationalError("update", {}, OSError("disk I/O error"))

    monkeypatch.setattr(tokens, "update", full)
    assert tokens.find_token(engine, secret, 1000.0).name == "a"
    engine.dispose()


def test_writes_need_a_token_that_may_push(site):
    for token, status in ((None, 401), ("pcl_wrong", 401), (site.token("read"), 403)):
        answer = site.ask("POST", "/api/v1/jobs", token=token, body={"name": "x"})
        assert answer.status == status
        assert answer.json["error"]
        assert answer.json["request"] == answer.headers["x-request-id"]
    assert site.ask(
        "POST", "/api/v1/jobs", token=site.token("push"), body={"name": "x"}
    ).status in (
        200,
        201,
    )


def test_nothing_is_written_without_a_token_whatever_the_path(site):
    for method in ("POST", "PUT", "DELETE", "PATCH", "BREW"):
        for path in ("/", "/nope", "/metrics", "/api/v1/silences", "/api/v1/silences/1"):
            assert site.ask(method, path).status == 401
            assert site.ask(method, path, token=site.token("read")).status == 403


def test_expired_and_revoked_tokens_are_told_apart_from_wrong_ones(site, lines, monkeypatch):
    now = site.service.clock()
    monkeypatch.setattr(site.service, "clock", lambda: now)
    secret = site.token("read", expires_at=now + 0.3)
    assert site.ask("GET", "/api/v1/jobs", token=secret).status == 200
    now += 0.4
    answer = site.ask("GET", "/api/v1/jobs", token=secret)
    assert (answer.status, answer.json["error"]) == (401, "the token has expired")
    assert answer.headers["www-authenticate"] == "Bearer"
    secret = site.token("read", expires_at=site.service.clock() + 99)
    revoke_token(site.service.engine, list_tokens(site.service.engine)[-1].id, 1.0)
    answer = site.ask("GET", "/api/v1/jobs", token=secret)
    assert (answer.status, answer.json["error"]) == (401, "the token was revoked")
    eventually(lambda: sum('"status": 401' in line for line in lines) == 2)
    assert all(json.loads(line)["request"] for line in lines)


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer \xe4", "Bearer " + "x" * 5000, "x y z"],
)
def test_headers_that_are_no_token(site, header):
    answer = site.ask("GET", "/api/v1/jobs", headers={"Authorization": header})
    assert answer.status == 401


def test_secrets_are_in_no_log_and_no_table(site, lines):
    secret = site.token("read", expires_at=site.service.clock() + 99)
    site.ask("GET", f"/api/v1/jobs?token={secret}", token=secret)
    site.ask("GET", f"/nope/{secret}", token=secret)
    site.ask("POST", "/login", form={"token": secret})
    site.ask("POST", "/login", form={"token": "pcl_wrong-but-nearly"})
    eventually(lambda: len(lines) >= 4)
    assert secret not in "".join(lines)
    assert "nearly" not in "".join(lines)
    with site.service.engine.connect() as connection:
        dump = "".join(str(row) for row in connection.exec_driver_sql("SELECT * FROM tokens"))
    assert secret not in dump


def test_what_looks_like_a_secret_is_taken_out():
    text = (
        "postgresql://me:hush@db/x Authorization: Bearer abcdefghijk https://hooks.slack.com/T/B/X "
        "password=hush pcl_hush paceline_session=1.2.hush"
    )
    assert "hush" not in without_secrets(text)
    assert "abcdefghijk" not in without_secrets(text)
    assert "T/B/X" not in without_secrets(text)


def test_a_job_of_another_project_does_not_exist(site):
    service = site.service
    key = jobs.register(service.engine, "theirs", "secret-job", service.clock())
    mine = site.token("read", "mine")
    for path in (
        "/api/v1/jobs/{}",
        "/api/v1/jobs/{}/sessions",
        "/api/v1/jobs/{}/steps",
        "/jobs/{}",
    ):
        there, nowhere = (
            site.ask("GET", path.format(name), token=mine) for name in ("secret-job", "no-such-job")
        )
        assert there.status == nowhere.status == 404
        texts = [
            answer.text.replace(answer.headers["x-request-id"], "") for answer in (there, nowhere)
        ]
        assert texts[0].replace("secret-job", "") == texts[1].replace("no-such-job", "")
    assert "secret-job" not in site.ask("GET", "/api/v1/jobs", token=mine).text
    assert "secret-job" not in site.ask("GET", "/metrics", token=mine).text
    assert "secret-job" in site.ask("GET", "/metrics", token=site.token("read")).text
    assert site.ask("GET", "/api/v1/jobs?project=theirs", token=mine).status == 404
    body = {"sha256": "0" * 64, "size": 10, "file_name": "t"}
    push = site.token("push", "mine")
    answer = site.ask("POST", "/api/v1/jobs/secret-job/uploads", token=push, body=body)
    assert answer.status == 200  # a job of that name of their own
    theirs = site.ask(
        "GET", f"/api/v1/uploads/{answer.json['upload']}", token=site.token("push", "theirs")
    )
    assert theirs.status == 404
    assert jobs.find(service.engine, "theirs", "secret-job") == key


def test_a_client_that_is_told_elsewhere_keeps_its_token(tmp_path):
    """A redirect to another host must not take the token along."""
    thief = Listener()
    sender = socket.create_server(("127.0.0.1", 0))
    import threading

    def answer():
        connection, _ = sender.accept()
        with connection:
            until(connection, b"\r\n\r\n")
            head = f"HTTP/1.1 302 X\r\nLocation: {thief.url}\r\nContent-Length: 0\r\n\r\n"
            connection.sendall(head.encode())

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    client = Client(f"http://127.0.0.1:{sender.getsockname()[1]}", "pcl_secret", patience_s=0)
    with pytest.raises(MonitorError):
        client.job("x")
    thread.join(5)
    sender.close()
    assert thief.received == []
    thief.close()
