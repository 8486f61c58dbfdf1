"""The login through two providers that others wrote.

"oidc-provider" 8.8.1 (npm; OpenID-certified, by Filip Skokan) wants PKCE and a client secret, asks
for consent and gives groups in the ID token or in the user info. It runs where node is, and
PACELINE_OIDC_PROVIDER names a folder in which `npm install oidc-provider@8` was run.
"oidc-provider-mock" 0.3.4 (PyPI, by Thomas Scholtes) comes with the extra dev.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

import requires

requires.installed("starlette", "joserfc")

from joserfc import jwk

from openid_site import FILE, Browser, form_of, free_port, signing_monitor, url_of
from paceline.monitor.store import audit

#: The folder in which npm has installed it.
CERTIFIED = "PACELINE_OIDC_PROVIDER"
USERS = {
    "lead": {"email": "lead@example.org", "email_verified": True, "groups": ["payroll"]},
    "guest": {"email": "guest@example.org", "email_verified": True, "groups": ["llm-train"]},
    "boss": {"email": "boss@example.org", "email_verified": True, "groups": ["platform"]},
    "nobody": {"email": "nobody@example.org", "email_verified": True, "groups": ["payroll"]},
}


@contextlib.contextmanager
def running(command, issuer, **options):
    """A program that answers at an issuer's address."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options
    )
    try:
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{issuer}/.well-known/openid-configuration", timeout=5)
                break
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def new_key(name):
    return jwk.RSAKey.generate_key(2048, {"kid": name, "use": "sig"}, private=True)


@contextlib.contextmanager
def certified(port, redirect, keys, *, userinfo=False, ahead_ms=0):
    folder = os.environ.get(CERTIFIED, "")
    if not folder or not shutil.which("node"):
        pytest.skip(f"npm install --prefix FOLDER oidc-provider@8, and set {CERTIFIED} to FOLDER")
    settings = {"port": port, "redirect": redirect, "users": USERS, "userinfo": userinfo}
    settings["ahead_ms"] = ahead_ms
    settings["keys"] = [key.as_dict(private=True) for key in keys]
    script = Path(__file__).with_name("openid_provider.mjs")
    modules = Path(folder).resolve() / "node_modules"
    command = ["node", script, modules, json.dumps(settings)]
    with running(command, f"http://127.0.0.1:{port}"):
        yield


@contextlib.contextmanager
def setting(tmp_path):
    """(port of the provider, issuer, port of the monitor, where the provider leads back)."""
    port, mine = free_port(), free_port()
    yield port, f"http://127.0.0.1:{port}", mine, f"http://127.0.0.1:{mine}/login/oidc/callback"


def enter(site, browser, user, to="/"):
    """Log in at the certified provider's pages and agree; the last page."""
    page = browser.ask(f"{url_of(site)}/login/oidc?{urlencode({'next': to})}")
    return at_the_provider(browser, browser.follow(page), user)


def at_the_provider(browser, page, user):
    """Say who one is, and agree; the last page."""
    for _ in range(3):
        if "/interaction/" not in page.url:
            break
        url, fields = form_of(page)
        known = {"login": user, "password": "any"} if fields.get("prompt") == "login" else {}
        page = browser.follow(browser.ask(url, {**fields, **known}))
    return page


@pytest.mark.parametrize("userinfo", [False, True], ids=["id-token", "userinfo"])
def test_the_certified_provider_logs_users_in(tmp_path, userinfo):
    with setting(tmp_path) as (port, issuer, mine, redirect):
        provider = certified(port, redirect, [new_key("one")], userinfo=userinfo)
        with provider, signing_monitor(tmp_path, issuer, port=mine) as site:
            lead, guest, boss, nobody = (Browser() for _ in range(4))
            page = enter(site, lead, "lead", "/alerts")
            assert (page.status, page.url) == (200, f"{url_of(site)}/alerts")
            assert "project llm · <bdi>lead@example.org" in page.text
            assert 'href="/access' in page.text
            page = enter(site, guest, "guest")
            assert "project llm · <bdi>guest@example.org" in page.text
            assert 'href="/access' not in page.text
            assert "all projects · <bdi>boss@example.org" in enter(site, boss, "boss").text
            page = enter(site, nobody, "nobody")
            assert page.status == 403
            assert "no right to any project" in page.text
            entries = audit.list_entries(site.service.engine, "*")
            told = [(entry["action"], entry["name"].partition("@")[0]) for entry in entries]
            assert told[:2] == [("login-refused", "nobody"), ("login", "boss")]
            assert "payroll" not in str(entries)
            assert guest.ask(f"{url_of(site)}/logout", form={}).status == 303
            assert guest.ask(f"{url_of(site)}/").status == 303


def test_the_certified_providers_codes_are_good_once_and_for_us(tmp_path):
    with setting(tmp_path) as (port, issuer, mine, redirect):
        provider = certified(port, redirect, [new_key("one")])
        with provider, signing_monitor(tmp_path, issuer, port=mine) as site:
            browser, other = Browser(), Browser()
            enter(site, browser, "lead")  # who is known there from now on, and has agreed
            browser.jar.pop(urlsplit(url_of(site)).netloc)
            # Without its name the provider's answer could be another one's (RFC 9207).
            begun = browser.ask(f"{url_of(site)}/login/oidc")
            back = browser.follow(begun, until=lambda url: url.startswith(redirect))
            parts = dict(parse_qsl(urlsplit(back).query))
            assert parts.pop("iss") == issuer
            answer = browser.ask(f"{redirect}?{urlencode(parts)}")
            assert "another provider" in answer.text
            begun = browser.ask(f"{url_of(site)}/login/oidc")
            stolen = browser.follow(begun, until=lambda url: url.startswith(redirect))
            # Another browser has begun, too, and is given the first one's code: PKCE says no.
            begun = other.ask(f"{url_of(site)}/login/oidc")
            state = dict(parse_qsl(urlsplit(begun.header("location")).query))["state"]
            code = dict(parse_qsl(urlsplit(stolen).query))["code"]
            query = urlencode({"code": code, "state": state, "iss": issuer})
            answer = other.ask(f"{redirect}?{query}")
            assert answer.status == 403
            assert "invalid_grant" in answer.text
            twin = Browser({host: dict(jar) for host, jar in browser.jar.items()})
            assert browser.ask(stolen).status == 303  # whose it is
            answer = twin.ask(stolen)  # the code is spent
            assert answer.status == 403
            assert "invalid_grant" in answer.text
            # The user says no.
            begun = other.ask(f"{url_of(site)}/login/oidc")
            page = other.follow(begun)
            answer = other.follow(other.ask(f"{page.url}/abort"))
            assert "access_denied" in answer.text


def test_the_certified_provider_changes_its_keys(tmp_path):
    with setting(tmp_path) as (port, issuer, mine, redirect):
        old, new = new_key("old"), new_key("new")
        with contextlib.ExitStack() as stack:
            with certified(port, redirect, [old]):
                site = stack.enter_context(signing_monitor(tmp_path, issuer, port=mine))
                assert enter(site, Browser(), "lead").status == 200
            for keys in ([new, old], [new]):
                with certified(port, redirect, keys):
                    assert enter(site, Browser(), "lead").status == 200


def test_the_certified_provider_does_not_take_a_wrong_secret(tmp_path):
    with setting(tmp_path) as (port, issuer, mine, redirect):
        text = FILE.replace("hush & rush", "wrong")
        provider = certified(port, redirect, [new_key("one")])
        with provider, signing_monitor(tmp_path, issuer, text, port=mine) as site:
            page = enter(site, Browser(), "lead")
            assert page.status == 403
            assert "invalid_client" in page.text


@pytest.mark.parametrize("ahead_s", [-3600, 3600], ids=["expired", "of the future"])
def test_the_certified_providers_tokens_have_to_be_of_now(tmp_path, ahead_s):
    with setting(tmp_path) as (port, issuer, mine, redirect):
        provider = certified(port, redirect, [new_key("one")], ahead_ms=1000 * ahead_s)
        with provider, signing_monitor(tmp_path, issuer, port=mine) as site:
            browser = Browser()
            page = enter(site, browser, "lead")
            assert (page.status, urlsplit(page.url).path) == (403, "/login/oidc/callback")
            assert browser.ask(f"{url_of(site)}/").status == 303


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"nonce": "another"}, "nonce"),
        ({"client_id": "other"}, "invalid_grant"),
        ({"state": "another"}, ""),
    ],
    ids=["nonce", "client", "state"],
)
def test_a_login_that_somebody_changed_on_its_way_is_refused(tmp_path, changed, said):
    """The provider does what it is asked for, and the monitor sees that it asked otherwise."""
    with setting(tmp_path) as (port, issuer, mine, redirect):
        provider = certified(port, redirect, [new_key("one")])
        with provider, signing_monitor(tmp_path, issuer, port=mine) as site:
            browser = Browser()
            begun = browser.ask(f"{url_of(site)}/login/oidc")
            parts = urlsplit(begun.header("location"))
            query = urlencode(dict(parse_qsl(parts.query)) | changed)
            page = browser.follow(browser.ask(parts._replace(query=query).geturl()))
            page = at_the_provider(browser, page, "lead")
            assert (page.status, urlsplit(page.url).path) == (403, "/login/oidc/callback")
            assert said in page.text
            assert browser.ask(f"{url_of(site)}/").status == 303


@pytest.mark.parametrize("to", ["//evil.example/x", "https://evil.example", "/\\evil.example"])
def test_a_login_ends_at_home(tmp_path, to):
    with setting(tmp_path) as (port, issuer, mine, redirect):
        provider = certified(port, redirect, [new_key("one")])
        with provider, signing_monitor(tmp_path, issuer, port=mine) as site:
            page = enter(site, Browser(), "lead", to)
            assert page.status == 200
            assert urlsplit(page.url).netloc == f"127.0.0.1:{mine}"


def test_the_mock_provider_logs_users_in(tmp_path):
    requires.installed("oidc_provider_mock")
    with setting(tmp_path) as (port, issuer, mine, _):
        module = ["-W", "ignore", "-m", "oidc_provider_mock"]
        command = [sys.executable, *module, "-p", str(port), "-n", "true"]
        for name, claims in USERS.items():
            command += ["--user-claims", json.dumps({"sub": name, **claims})]
        text = FILE.replace("[openid, email, groups]", "[openid, email, profile]")
        with running(command, issuer), signing_monitor(tmp_path, issuer, text, port=mine) as site:
            for user, said in (
                ("lead", "project llm · <bdi>lead@"),
                ("boss", "all projects · <bdi>boss@"),
                ("nobody", "no right to any project"),
            ):
                browser = Browser()
                page = browser.follow(browser.ask(f"{url_of(site)}/login/oidc?next=/fleet"))
                page = browser.follow(browser.ask(page.url, {"sub": user}))
                assert said in page.text
            begun = Browser().ask(f"{url_of(site)}/login/oidc?next=//evil.example")
            assert urlsplit(begun.header("location")).netloc == f"127.0.0.1:{port}"
