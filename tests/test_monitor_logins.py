"""Logins in a browser: their cookies, where they lead, and what other sites cannot do."""

import re
import time
from urllib.parse import urlencode

import pytest

import requires

requires.installed("starlette")

import monitor_site
from monitor_web import monitor
from paceline.monitor.store import jobs
from paceline.monitor.store.tokens import list_tokens, revoke_token

site, lines = monitor_site.site, monitor_site.lines


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
