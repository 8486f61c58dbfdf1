import contextlib
import gzip
import json
import logging
import re
import resource
import socket
import time
from urllib.parse import urlencode

import pytest

pytest.importorskip("starlette")

from monitor_web import eventually, monitor
from paceline.monitor.blobs import PERFETTO, result_key
from paceline.monitor.config import Config
from paceline.monitor.log import JsonLines, without_secrets
from paceline.monitor.store import jobs, tables
from paceline.monitor.store.database import open_database
from paceline.monitor.store.tokens import list_tokens, revoke_token
from paceline.monitor.web import limits, ops, server
from paceline.monitor.web.envelope import CSP
from paceline.monitor.web.limits import Rates


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with monitor(tmp_path_factory.mktemp("site"), max_body_mib=1, max_upload_mib=8) as found:
        yield found


@pytest.fixture(autouse=True)
def lines():
    """What the service logs, as it would be written."""
    written = []

    class Keep(logging.Handler):
        def emit(self, record):
            written.append(JsonLines().format(record))

    handler = Keep()
    logger = logging.getLogger("paceline.monitor")
    logger.addHandler(handler)
    logger.setLevel("DEBUG")
    yield written
    logger.removeHandler(handler)


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


def test_expired_and_revoked_tokens_are_told_apart_from_wrong_ones(site, lines):
    secret = site.token("read", expires_at=site.service.clock() + 0.3)
    assert site.ask("GET", "/api/v1/jobs", token=secret).status == 200
    time.sleep(0.4)
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
        assert time.monotonic() - began < 5
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


def test_slow_headers_are_not_waited_for(site, monkeypatch, lines):
    monkeypatch.setattr(server, "HEADERS_S", 0.3)
    for begin in (b"", b"GET / HTTP/1.1\r\nHost: x\r\n"):
        with socket.create_connection(("127.0.0.1", site.port), timeout=10) as connection:
            connection.sendall(begin)
            began = time.monotonic()
            trickled = 0
            while time.monotonic() - began < 5:  # a byte now and then does not help
                try:
                    if begin:
                        connection.sendall(b"X")
                    connection.settimeout(0.05)
                    if connection.recv(1) == b"":
                        break
                except TimeoutError:
                    trickled += 1
                except OSError:
                    break
            assert time.monotonic() - began < 2
            assert trickled
    eventually(lambda: sum("slow headers" in line for line in lines) == 2)


def test_a_second_request_on_the_same_connection_is_timed_too(site, monkeypatch):
    monkeypatch.setattr(server, "HEADERS_S", 0.3)
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", site.port), timeout=5) as connection:
        for _ in range(2):
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b'{"status":"ok"}'):
                answer += connection.recv(65536)
            time.sleep(0.5)  # idle between requests is uvicorn's to judge
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
    monkeypatch.setattr(limits, "BODY_PAUSE_S", 5.0)
    monkeypatch.setattr(limits, "BODY_GRACE_S", 0.3)
    with socket.create_connection(("127.0.0.1", site.port), timeout=5) as connection:
        connection.sendall(head.encode())
        connection.settimeout(0.05)
        answer, began = b"", time.monotonic()
        while not answer and time.monotonic() - began < 5:
            connection.sendall(b"x")
            try:
                answer = connection.recv(65536)
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408")
        assert time.monotonic() - began < 3
    eventually(lambda: sum('"status": 408' in line for line in lines) == 2)


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


def login(site, token, **more):
    return site.ask("POST", "/login", form={"token": token, **more})


def cookie_of(answer):
    return answer.headers["set-cookie"].partition(";")[0]


def test_login_gives_a_cookie_that_reads(site):
    html = {"Accept": "text/html"}
    answer = site.ask("GET", "/jobs/x?session=1", headers=html)
    assert answer.status == 303
    assert answer.headers["location"] == "/login?next=%2Fjobs%2Fx%3Fsession%3D1"
    assert b'value="/jobs/x?session=1"' in site.ask("GET", answer.headers["location"]).body
    answer = login(site, site.token("read"), next="/fleet")
    assert (answer.status, answer.headers["location"]) == (303, "/fleet")
    flags = answer.headers["set-cookie"].lower()
    assert all(flag in flags for flag in ("httponly", "samesite=strict", "path=/"))
    headers = {**html, "Cookie": cookie_of(answer)}
    assert site.ask("GET", "/", headers=headers).status == 200
    assert site.ask("POST", "/api/v1/jobs", headers=headers, body={"name": "x"}).status == 403
    out = site.ask("POST", "/logout", headers=headers)
    assert out.status == 303
    assert "max-age=0" in out.headers["set-cookie"].lower()


def test_a_link_from_elsewhere_is_followed_once_more_with_the_cookie(site):
    headers = {"Accept": "text/html", "Sec-Fetch-Site": "cross-site"}
    answer = site.ask("GET", "/jobs/x?a=1&b=2", headers=headers)
    assert answer.status == 200
    assert b'http-equiv="refresh" content="0; url=/jobs/x?a=1&amp;b=2"' in answer.body


def test_wrong_logins_and_cookies(site):
    assert login(site, "pcl_wrong").status == 401
    assert b"This token is not known" in login(site, "pcl_wrong").body
    expired = site.token("read", expires_at=site.service.clock() + 0.05)
    time.sleep(0.1)
    assert b"has expired" in login(site, expired).body
    good = cookie_of(login(site, site.token("read")))
    name, _, value = good.partition("=")
    number, until, signature = value.split(".")
    for bad in (
        f"{name}={number}.{int(until) + 9}.{signature}",
        f"{name}=1.{until}.{signature[::-1]}",
        f"{name}=",
        f"{name}=..",
        f"{name}=x.y.z",
        f"{name}=\xe4.\xe4.\xe4",
    ):
        assert site.ask("GET", "/api/v1/jobs", headers={"Cookie": bad}).status == 401
    assert site.ask("GET", "/api/v1/jobs", headers={"Cookie": good}).status == 200
    assert site.ask("POST", "/login", body=b"x" * 10_000).status == 413


def test_a_revoked_token_ends_its_logins(site):
    secret = site.token("read", expires_at=site.service.clock() + 99)
    headers = {"Cookie": cookie_of(login(site, secret))}
    assert site.ask("GET", "/api/v1/jobs", headers=headers).status == 200
    revoke_token(site.service.engine, list_tokens(site.service.engine)[-1].id, 1.0)
    assert site.ask("GET", "/api/v1/jobs", headers=headers).status == 401


@pytest.mark.parametrize(
    "to",
    [
        "https://evil",
        "//evil",
        "/\\evil",
        "///evil",
        "javascript:alert(1)",
        '"><b>',
        "//[",
        "",
        "x",
    ],
)
def test_a_login_leads_nowhere_else(site, to):
    assert login(site, site.token("read"), next=to).headers["location"] == "/"
    form = site.ask("GET", f"/login?{urlencode({'next': to})}")
    assert form.status == 200
    assert b'name="next" value="/"' in form.body


@pytest.mark.parametrize("to", ["/\t/evil", "/\r\nSet-Cookie: a=b", "/x\x00", "/\u2028/evil"])
def test_what_browsers_leave_out_is_encoded(site, to):
    answer = login(site, site.token("read"), next=to)
    assert re.fullmatch(r"/[!-~]+", answer.headers["location"])
    assert not answer.headers["location"].startswith("//")
    assert "a=b" not in answer.headers["set-cookie"]


def test_a_link_from_elsewhere_leads_nowhere_else(site):
    sent = b"GET //evil.example/jobs/x HTTP/1.1\r\nHost: x\r\nAccept: text/html\r\n"
    answer = site.raw(sent + b"Sec-Fetch-Site: cross-site\r\nConnection: close\r\n\r\n")
    assert b"url=//" not in answer
    assert answer.startswith(b"HTTP/1.1 404")


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


def test_another_site_cannot_act_for_who_is_logged_in(site):
    headers = {"Cookie": cookie_of(login(site, site.token("admin")))}
    body = {"hours": 1}
    ours = {**headers, "Origin": f"http://127.0.0.1:{site.port}"}
    assert site.ask("POST", "/api/v1/silences", headers=ours, body=body).status == 200
    for more in ({"Origin": "http://evil"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = site.ask("POST", "/api/v1/silences", headers={**headers, **more}, body=body)
        assert answer.status == 403
    for theirs in ({"Origin": "http://["}, {"Origin": "null"}, {"Origin": "http://127.0.0.1"}):
        assert site.ask("POST", "/logout", headers={**headers, **theirs}).status == 403
    theirs = {"Origin": "http://evil"}
    assert site.ask("POST", "/logout", headers={**headers, **theirs}).status == 403
    answer = site.ask("POST", "/login", form={"token": site.token("read")}, headers=theirs)
    assert answer.status == 403


def test_behind_a_proxy_the_address_of_the_users_counts(tmp_path):
    with monitor(tmp_path, base_url="https://paceline.example") as site:
        answer = login(site, site.token("admin"))
        assert "; secure" in answer.headers["set-cookie"].lower()
        headers = {"Cookie": cookie_of(answer), "Origin": "https://paceline.example"}
        assert (
            site.ask("POST", "/api/v1/silences", headers=headers, body={"hours": 1}).status == 200
        )
        out = site.ask("POST", "/logout", headers=headers)
        assert out.status == 303
        assert "; secure" in out.headers["set-cookie"].lower()


def test_public_read_with_a_login_or_a_bad_one(tmp_path):
    with monitor(tmp_path, public_read=True) as site:
        good = {"Cookie": cookie_of(login(site, site.token("admin")))}
        evil = {**good, "Origin": "http://evil"}
        body = {"hours": 1}
        assert site.ask("POST", "/api/v1/silences", headers=good, body=body).status == 200
        assert site.ask("POST", "/api/v1/silences", headers=evil, body=body).status == 403
        bad = {"Cookie": good["Cookie"][:-1] + "x"}
        assert site.ask("GET", "/api/v1/jobs", headers=bad).status == 200  # as anybody
        assert site.ask("POST", "/api/v1/silences", headers=bad, body=body).status == 401
        mine = {"Cookie": cookie_of(login(site, site.token("read", "mine")))}
        jobs.register(site.service.engine, "theirs", "secret-job", 1.0)
        assert "secret-job" not in site.ask("GET", "/api/v1/jobs", headers=mine).text


def test_public_read_reads_and_writes_nothing(tmp_path):
    with monitor(tmp_path, public_read=True) as site:
        assert site.ask("GET", "/api/v1/jobs").status == 200
        assert site.ask("GET", "/", headers={"Accept": "text/html"}).status == 200
        assert site.ask("GET", "/api/v1/jobs", token="pcl_wrong").status == 401
        for path in ("/api/v1/jobs", "/api/v1/silences", "/api/v1/jobs/x/steps"):
            assert site.ask("POST", path, body={"name": "x", "hours": 1}).status == 401


def test_rates_of_tokens(tmp_path, lines):
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
    monkeypatch.setattr(limits, "MOST_STREAMS", 2)
    with monitor(tmp_path) as site:
        sent = (
            f"GET /events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {site.token('read')}\r\n\r\n"
        )
        opened = []
        for _ in range(2):
            opened.append(socket.create_connection(("127.0.0.1", site.port), timeout=20))
            opened[-1].sendall(sent.encode())
            assert opened[-1].recv(65536).startswith(b"HTTP/1.1 200")
        assert site.ask("GET", "/events", token=site.token("read")).status == 429
        for each in opened:
            each.close()

        def again():
            with socket.create_connection(("127.0.0.1", site.port), timeout=20) as each:
                each.sendall(sent.encode())
                return each.recv(65536).startswith(b"HTTP/1.1 200")

        eventually(again, 20)


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
        with socket.create_connection(("127.0.0.1", site.port), timeout=20) as connection:
            head = "GET /api/v1/sessions/1/perfetto HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer"
            connection.sendall(f"{head} {site.token()}\r\n\r\n".encode())
            eventually(lambda: any("slow reader" in line for line in lines), 20)
            received = 0
            with contextlib.suppress(ConnectionResetError):
                while part := connection.recv(1 << 20):
                    received += len(part)
        assert received < 50_000_000
        eventually(lambda: any('"path": "/api/v1/sessions/1/perfetto"' in line for line in lines))


def test_bodies_that_are_here_at_a_time_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MOST_HELD_BYTES", 100_000)
    with monitor(tmp_path) as site:
        push = site.token("push")
        head = (
            f"POST /api/v1/jobs/x/steps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {push}\r\n"
            "Content-Length: 90000\r\nExpect: 100-continue\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", site.port), timeout=20) as slow:
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
    monkeypatch.setattr(limits, "_MOST_KEYS", 10)
    rates = Rates(2)
    for key in range(100):
        assert rates.take(key) == 0
    assert len(rates._left) == 10
    assert rates.take(99) == 0
    assert 0 < rates.take(99) <= 30
    assert Rates(10).take("x", 1000) == 0


def test_a_store_that_fails_is_503_and_an_error_says_nothing_of_itself(tmp_path, lines):
    with monitor(tmp_path) as site:
        token = site.token()
        engine, site.service.engine = site.service.engine, None
        answer = site.ask("GET", "/api/v1/alerts", token=token)
        assert answer.status == 500
        assert "NoneType" not in answer.text
        eventually(lambda: any("traceback" in line for line in lines))
        site.service.engine = engine
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE tokens RENAME TO hidden")
        answer = site.ask("GET", "/api/v1/alerts", token=token)
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE hidden RENAME TO tokens")
        assert site.ask("GET", "/api/v1/alerts", token=token).status == 200


def test_health(site):
    assert site.ask("GET", "/healthz").json == {"status": "ok"}
    assert site.ask("GET", "/readyz").json == {"status": "ready"}


def test_not_ready_says_no_more_than_that(tmp_path, monkeypatch, lines):
    asked = []

    def problem(engine):
        asked.append(engine)
        return "connection to server at 10.0.0.3 failed"

    monkeypatch.setattr(ops, "problem_of", problem)
    with monitor(tmp_path) as site:
        for _ in range(5):
            answer = site.ask("GET", "/readyz")
            assert answer.status == 503
            assert answer.json == {"status": "not ready", "reason": "the store does not answer"}
    assert 1 <= len(asked) <= 4  # not for each request
    assert any("10.0.0.3" in line for line in lines)
