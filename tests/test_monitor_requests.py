"""Requests that mean harm, and the headers of every answer."""

import gzip
import json
import re
import resource
import time

import pytest

import requires

requires.installed("starlette")

import monitor_site
from paceline.monitor.web.envelope import CSP
from paceline.monitor.web.limits import BODY_PAUSE_S

site, lines = monitor_site.site, monitor_site.lines


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/jobs/..%2f..%2fetc%2fpasswd",
        "/api/v1/jobs/%2e%2e/sessions",
        "/api/v1/jobs/a%00b/steps",
        "/api/v1/sessions/..%2f1/report",
        "/api/v1/sessions/1%0a/result",
        "/api/v1/sessions/99999999999999999999999/result",
        "/api/v1/uploads/..%2f..%2flock",
        "/static/x/..%2f..%2f..%2fconfig.py",
        "/static/..%2f..%2fapp.py/page.css",
        "/static/x/%2fetc%2fpasswd",
        "/jobs/..%2f..%2fetc",
        "//etc/passwd",
        "/../../etc/passwd",
        "/%c0%ae%c0%ae/etc",
    ],
)
def test_paths_lead_nowhere(site, path, lines):
    answer = site.ask("GET", path, token=site.token())
    assert answer.status in (400, 404)
    assert b"root:" not in answer.body
    assert not any("traceback" in line for line in lines)


def test_ten_gigabytes_declared_and_a_kilobyte_sent(site):
    token = site.token("push")
    for path in ("/api/v1/uploads/x?offset=0", "/api/v1/jobs/x/steps", "/v1/traces", "/login"):
        method = "PUT" if "uploads" in path else "POST"
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            "Content-Length: 10000000000\r\n\r\n"
        )
        began = time.monotonic()
        answer = site.raw(head.encode() + b"x" * 1024)
        assert answer.startswith(b"HTTP/1.1 413")
        assert time.monotonic() - began < BODY_PAUSE_S  # it did not wait for the rest
    body = {"sha256": "0" * 64, "size": 10_000_000_000, "file_name": "t"}
    assert site.ask("POST", "/api/v1/jobs/x/uploads", token=token, body=body).status == 413


def test_a_body_without_a_length_is_counted(site):
    token = site.token("push")
    head = (
        f"POST /api/v1/jobs/x/steps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    assert site.raw(head.encode() + chunk * 17).startswith(b"HTTP/1.1 413")


def test_what_is_no_http_is_an_error(site):
    for sent in (
        b"\x16\x03\x01\x02\x00\x01",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
    ):
        assert site.raw(sent).startswith(b"HTTP/1.1 400")
    huge = b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000
    assert site.raw(huge).startswith((b"HTTP/1.1 400", b""))  # the rest is not read
    length = b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n"
    assert site.raw(length).startswith(b"HTTP/1.1 400")


def test_bombs_are_not_unpacked(site):
    token = site.token("push")
    bomb = gzip.compress(bytes(100_000_000), 6)
    assert len(bomb) < 1 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path in ("/api/v1/jobs/x/steps", "/api/v1/jobs", "/v1/traces"):
        for body in (bomb, bomb[:-9], gzip.compress(bomb)):
            headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
            answer = site.ask("POST", path, token=token, body=body, headers=headers)
            assert answer.status in (400, 413), (path, len(body), answer.text)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 50_000  # kB


def test_deep_json_is_an_error(site):
    token = site.token("push")
    for body in (b"[" * 500_000, b'{"a":' * 100_000, b"\xff\xfe", b"nul", b'{"name": "\\ud800"}'):
        headers = {"Content-Type": "application/json"}
        answer = site.ask("POST", "/api/v1/jobs", token=token, body=body, headers=headers)
        assert answer.status == 400


def test_headers_of_every_answer(site):
    token = site.token()
    for path, accept in (
        ("/", "text/html"),
        ("/login", "text/html"),
        ("/nope", ""),
        ("/healthz", ""),
    ):
        answer = site.ask("GET", path, token=token, headers={"Accept": accept})
        assert answer.headers["content-security-policy"] == CSP
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "server" not in answer.headers
    assert "'unsafe-inline'" not in CSP
    report = site.ask("GET", "/api/v1/sessions/1/report", token=token)
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts")


def test_a_request_id_is_taken_over_if_it_is_one(site, lines):
    given = site.ask("GET", "/healthz", headers={"X-Request-Id": "proxy-4711-abc"})
    assert given.headers["x-request-id"] == "proxy-4711-abc"
    odd = site.ask("GET", "/healthz", headers={"X-Request-Id": 'x", "status": 1'})
    assert odd.headers["x-request-id"] != 'x", "status": 1'
    assert all(json.loads(line) for line in lines)


@pytest.mark.parametrize("host", [b"[", b"a b", b"\xff", b"evil.example", b"x/../y", b""])
def test_the_host_that_a_client_names_is_not_believed(site, host, lines):
    for path in (b"/fleet/", b"/fleet", b"/api/v1/jobs/", b"/login"):
        sent = b"GET " + path + b" HTTP/1.1\r\nHost: " + host + b"\r\nAccept: text/html\r\n"
        answer = site.raw(sent + b"Connection: close\r\n\r\n")
        assert re.match(rb"HTTP/1.1 (200|303|400|401|404) ", answer), answer
        assert b"evil.example" not in answer
    assert not any("traceback" in line for line in lines)


def test_one_message_is_one_message(site):
    """Requests on which a proxy and we might disagree are refused, or end the connection."""
    token = f"Host: x\r\nAuthorization: Bearer {site.token('push')}\r\n".encode()
    start = b"POST /api/v1/jobs HTTP/1.1\r\n" + token
    hidden = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    for more in (
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"Content-Length: 5, 6\r\n\r\n",
        b"Content-Length: +5\r\n\r\n",
        b"Content-Length: 0x5\r\n\r\n",
        b"Transfer-Encoding: chunked, identity\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n",
        b"X: a\r\n\x00Y: b\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffffffff\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
    ):
        answer = site.raw(start + more + hidden)
        assert re.match(rb"HTTP/1.1 (400|413|501) ", answer), (more, answer)
        assert b'{"status":"ok"}' not in answer, more
