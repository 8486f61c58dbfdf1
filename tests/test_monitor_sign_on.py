"""The login through an OpenID provider: what proves who asks, and what does not.

The provider here is one of these tests that does wrong on demand; test_monitor_sign_on_real.py has
two that others wrote.
"""

import base64
import hmac
import json
import time
from types import SimpleNamespace
from urllib.parse import parse_qsl, urlsplit

import pytest

import requires

requires.installed("starlette", "joserfc")

from joserfc import jwk

import monitor_site
from monitor_web import eventually
from openid_site import FILE, Browser, WrongProvider, log_in, signing_monitor, url_of
from paceline.errors import MonitorError
from paceline.monitor.sign_on.settings import load_sign_on
from paceline.monitor.store import audit
from paceline.monitor.store.logins import current_logins
from paceline.monitor.web import app, limits

lines = monitor_site.lines


@pytest.fixture(scope="module")
def wrong():
    provider = WrongProvider()
    yield provider
    provider.close()


@pytest.fixture(autouse=True)
def right_again(wrong):
    wrong.reset()


@pytest.fixture(scope="module")
def site(tmp_path_factory, wrong):
    folder = tmp_path_factory.mktemp("sign-on")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "WRONG_TOKENS_PER_MINUTE", 10_000)
        with signing_monitor(folder, wrong.url, requests_per_minute=10_000) as found:
            yield found


@pytest.fixture(scope="module")
def strict_site(tmp_path_factory, wrong):
    """With the usual limit of wrong answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "WRONG_TOKENS_PER_MINUTE", limits.WRONG_TOKENS_PER_MINUTE)
        with signing_monitor(tmp_path_factory.mktemp("strict"), wrong.url) as found:
            yield found


def acts(site):
    return [(row["action"], row["name"]) for row in audit.list_entries(site.service.engine, "*")]


def n_logins(site):
    return len(current_logins(site.service.engine, site.service.clock()))


def refused(site, browser=None, to="/"):
    """The text of a login that is refused; it leaves no cookie and no login."""
    before, browser = n_logins(site), browser or Browser()
    page = log_in(site, browser, to)
    assert page.status in (403, 503), page.text
    assert "paceline_session" not in browser.jar[urlsplit(url_of(site)).netloc]
    assert n_logins(site) == before
    return page.text


def test_a_code_becomes_a_login(site, wrong):
    browser = Browser()
    page = log_in(site, browser, "/alerts?status=firing")
    assert (page.status, page.url) == (200, f"{url_of(site)}/alerts?status=firing")
    assert "lead@example.org" in page.text
    assert acts(site)[0] == ("login", "lead@example.org")
    form = next(form for method, path, form, _ in wrong.asked if path == "/token")
    asked = wrong.by_code["abc"]
    assert asked["code_challenge_method"] == "S256"
    assert form["code_verifier"] != asked["code_challenge"]
    assert len(form["code_verifier"]) >= 43
    assert form["redirect_uri"] == asked["redirect_uri"] == f"{url_of(site)}/login/oidc/callback"
    assert "hush" not in json.dumps(asked)


def test_its_cookies(site):
    browser = Browser()
    begun = browser.ask(f"{url_of(site)}/login/oidc")
    (pending,) = begun.cookies()
    flags = ("httponly", "samesite=lax", "path=/login", "max-age=600")
    assert all(flag in pending.lower() for flag in flags)
    back = browser.follow(begun, until=lambda url: "/callback" in url)
    answer = browser.ask(back)
    session, forgotten = answer.cookies()
    assert all(flag in session.lower() for flag in ("httponly", "samesite=lax", "path=/;"))
    assert session.startswith("paceline_session=u.")
    assert forgotten.startswith("paceline_sign_on=")
    assert "max-age=0" in forgotten.lower()


def test_behind_https_its_cookies_are_secure(tmp_path, wrong):
    with signing_monitor(tmp_path, wrong.url) as found:
        object.__setattr__(found.service.config, "base_url", "https://paceline.example.org")
        answer = Browser().ask(f"http://127.0.0.1:{found.port}/login/oidc")
        assert "secure" in answer.cookies()[0].lower()


def test_another_state_another_browser_or_none_is_refused(site):
    browser = Browser()
    begun = browser.ask(f"{url_of(site)}/login/oidc")
    back = browser.follow(begun, until=lambda url: "/callback" in url)
    state = dict(parse_qsl(urlsplit(back).query))["state"]
    before = n_logins(site)
    for bad in (back.replace(state, state[::-1]), back.partition("&state")[0]):
        stranger = Browser({host: dict(jar) for host, jar in browser.jar.items()})
        assert "another login (state)" in stranger.ask(bad).text
    assert "began in another browser" in Browser().ask(back).text
    spoilt = Browser({host: dict(jar) for host, jar in browser.jar.items()})
    jar = spoilt.jar[urlsplit(url_of(site)).netloc]
    value, path = jar["paceline_sign_on"]
    jar["paceline_sign_on"] = (value[:-3] + "abc", path)
    assert "began in another browser" in spoilt.ask(back).text
    assert n_logins(site) == before
    assert browser.ask(back).status == 303  # which was good all the time
    assert "began in another browser" in browser.ask(back).text  # and is used up


def test_a_login_that_takes_too_long_is_refused(site, monkeypatch):
    browser = Browser()
    begun = browser.ask(f"{url_of(site)}/login/oidc")
    back = browser.follow(begun, until=lambda url: "/callback" in url)
    now = time.time() + 601
    monkeypatch.setattr(site.service, "clock", lambda: now)
    assert "too long ago" in browser.ask(back).text


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"nonce": "of-another-login"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"aud": "grafana"}, "another client"),
        ({"aud": ["grafana"]}, "another client"),
        ({"aud": ["paceline", "grafana"]}, "another client"),
        ({"aud": ["paceline", "grafana"], "azp": "grafana"}, "another client"),
        ({"azp": "grafana"}, "another client"),
        ({"aud": None}, "another client"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"exp": int(time.time()) - 3600}, "has expired"),
        ({"exp": None}, "has no end"),
        ({"exp": "never"}, "has no end"),
        ({"iat": int(time.time()) + 3600}, "of the future"),
        ({"nbf": int(time.time()) + 3600}, "of the future"),
        ({"iat": None}, "has no time"),
        ({"sub": None}, "names nobody"),
        ({"sub": ""}, "names nobody"),
        ({"email_verified": False}, "not verified"),
        ({"email_verified": None}, "not verified"),
        ({"email_verified": "true"}, "not verified"),
        ({"email": None}, "sends no email"),
        ({"email": "a\nb"}, "sends no email"),
        ({"email": ["lead@example.org"]}, "sends no email"),
        ({"email": "stranger@example.org"}, "no right to any project"),
    ],
)
def test_an_id_token_that_proves_nothing_is_refused(site, wrong, claims, reason):
    wrong.claims = claims
    wrong.userinfo = {"sub": "42"}
    assert reason in refused(site)


def test_two_audiences_are_good_where_we_are_the_party(site, wrong):
    wrong.claims = {"aud": ["paceline", "grafana"], "azp": "paceline"}
    assert log_in(site, Browser()).status == 200


def part(content):
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def forged(wrong, header, secret=None):
    """A token of the login that goes on: signed by nobody, or with a secret (HS256)."""
    now = int(time.time())
    claims = {"iss": wrong.url, "aud": "paceline", "sub": "42", "iat": now, "exp": now + 300}
    claims |= {"email": "lead@example.org", "email_verified": True}
    claims["nonce"] = wrong.by_code["abc"]["nonce"]
    text = f"{part(json.dumps(header).encode())}.{part(json.dumps(claims).encode())}"
    signature = hmac.digest(secret, text.encode(), "sha256") if secret else b""
    return f"{text}.{part(signature)}"


@pytest.mark.parametrize("header", [{"alg": "none"}, {"alg": "None"}, {"typ": "JWT"}, {}])
def test_a_token_that_nobody_signed_is_refused(site, wrong, header, monkeypatch):
    monkeypatch.setattr(wrong, "_token", lambda: forged(wrong, header))
    assert "is invalid" in refused(site)


def test_a_token_signed_with_what_everybody_knows_is_refused(site, wrong, monkeypatch):
    """HS256 with the public key, or the client's secret, even if the provider publishes it."""
    header = {"alg": "HS256", "kid": "one"}
    for secret in (wrong.key.as_pem(private=False), b"hush & rush"):
        monkeypatch.setattr(wrong, "_token", lambda secret=secret: forged(wrong, header, secret))
        assert "is invalid" in refused(site)
    shared = {"kty": "oct", "kid": "two", "k": part(b"hush & rush")}
    wrong.published = [wrong.key, SimpleNamespace(as_dict=lambda private: shared)]
    header["kid"] = "two"
    assert "is invalid" in refused(site)


@pytest.mark.parametrize("token", ["x", "a.b.c", "a.b.c.d.e", "", 7, {"a": 1}])
def test_what_is_no_token_is_refused(site, wrong, token, monkeypatch):
    monkeypatch.setattr(wrong, "_token", lambda: token)
    assert "ID token" in refused(site)


def test_a_key_of_somebody_else_is_refused(site, wrong):
    wrong.signing = jwk.RSAKey.generate_key(2048, {"kid": "one"}, private=True)
    assert "is invalid" in refused(site)


def test_new_keys_are_looked_up_at_once(site, wrong):
    """Rotated under another name, under the same one, and to another kind of key."""
    assert log_in(site, Browser()).status == 200
    for kind, size, name, algorithm in (
        ("RSA", 2048, "two", "RS256"),
        ("RSA", 2048, "two", "PS256"),
        ("EC", "P-256", "three", "ES256"),
        ("OKP", "Ed25519", "four", "Ed25519"),
    ):
        key = jwk.generate_key(kind, size, {"kid": name}, private=True)
        wrong.signing, wrong.published, wrong.algorithm = key, [key], algorithm
        asked = len(wrong.asked)
        assert log_in(site, Browser()).status == 200, name
        looked = [path for _, path, _, _ in wrong.asked[asked:]]
        assert looked.count("/keys") == 1
    wrong.signing, wrong.algorithm = wrong.key, "RS256"  # no longer published
    assert "is invalid" in refused(site)


def test_groups_may_come_from_the_user_info_of_the_same_user_only(site, wrong):
    wrong.claims = {"groups": None, "email": None}
    told = {"email": "guest@example.org", "email_verified": True, "groups": ["llm-train"]}
    wrong.userinfo = {"sub": "42", **told}
    page = log_in(site, Browser())
    assert page.status == 200
    assert "guest@example.org" in page.text
    wrong.userinfo = {"sub": "43", **told}
    assert "belongs to another user" in refused(site)


def test_the_id_token_goes_before_the_user_info(site, wrong):
    wrong.claims = {"groups": None, "email": "guest@example.org"}
    wrong.userinfo = {"sub": "42", "email": "lead@example.org", "groups": []}
    assert "guest@example.org has no right" in refused(site)
    assert acts(site)[0] == ("login-refused", "guest@example.org")


def test_an_answer_of_another_provider_is_refused(site, wrong):
    wrong.extra = {"iss": "https://evil.example"}
    assert "another provider" in refused(site)
    wrong.extra = {"iss": wrong.url}
    assert log_in(site, Browser()).status == 200


def test_what_the_provider_refuses_is_said_in_its_words_only(site, wrong):
    wrong.extra = {"code": None, "error": "access_denied<script>", "error_description": "Call me"}
    text = refused(site)
    assert "access_deniedscript" in text
    assert "Call me" not in text


@pytest.mark.parametrize(
    "to",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/\t/evil.example",
        "javascript:alert(1)",
        "/%0d%0aSet-Cookie:x=1",
        "/x\r\nSet-Cookie: x=1",
        "http:evil.example",
        "",
    ],
)
def test_nobody_is_led_to_another_site(site, to):
    page = log_in(site, Browser(), to)
    assert urlsplit(page.url).netloc == urlsplit(url_of(site)).netloc
    assert "set-cookie: x=1" not in str(page.headers).lower()


def test_a_provider_that_is_away_leaves_the_tokens(tmp_path, wrong, lines):
    with signing_monitor(tmp_path, "http://127.0.0.1:1") as found:
        page = Browser().ask(f"{url_of(found)}/login/oidc")
        assert page.status == 503
        assert "you can log in with a token" in page.text
        answer = found.ask("POST", "/login", form={"token": found.token("read")})
        assert answer.status == 303
        assert found.ask("GET", "/readyz").status == 200
    assert any("does not answer" in line for line in lines)


@pytest.mark.parametrize(
    ("document", "answers"),
    [
        ({"issuer": "https://evil.example"}, 503),
        ({"token_endpoint": "file:///etc/passwd"}, 503),
        ({"jwks_uri": None}, 503),
        ({"authorization_endpoint": "javascript:alert(1)"}, 503),
    ],
)
def test_a_document_of_somebody_else_is_not_taken(tmp_path, wrong, document, answers):
    wrong.document = document
    with signing_monitor(tmp_path, wrong.url) as found:
        assert Browser().ask(f"{url_of(found)}/login/oidc").status == answers


def test_wrong_answers_are_counted_like_wrong_tokens(strict_site):
    url = f"{url_of(strict_site)}/login/oidc/callback?code=x&state=y"
    statuses = [Browser().ask(url).status for _ in range(40)]
    assert statuses[0] == 403
    assert statuses[-1] == 429


def test_a_logout_ends_the_login_for_whoever_has_the_cookie(site):
    browser = Browser()
    log_in(site, browser)
    stolen = Browser({host: dict(jar) for host, jar in browser.jar.items()})
    assert stolen.ask(f"{url_of(site)}/").status == 200
    assert browser.ask(f"{url_of(site)}/logout", form={}).status == 303
    assert acts(site)[0] == ("logout", "lead@example.org")
    page = stolen.ask(f"{url_of(site)}/")
    assert page.header("location").startswith("/login")


def test_a_login_ends_with_its_time(site, monkeypatch):
    browser = Browser()
    log_in(site, browser)
    now = time.time() + 12 * 3600 + 1
    monkeypatch.setattr(site.service, "clock", lambda: now)
    assert browser.ask(f"{url_of(site)}/").status == 303


def test_the_code_and_the_secrets_are_in_no_log_and_no_table(site, lines):
    browser = Browser()
    log_in(site, browser)
    value, _ = browser.jar[urlsplit(url_of(site)).netloc]["paceline_session"]
    secret = value.partition(".")[2]
    eventually(lambda: any("callback" in line for line in lines))
    told = "".join(lines)
    assert "hush & rush" not in told
    assert "code=abc" not in told
    with site.service.engine.connect() as connection:
        for table in ("logins", "audit"):
            rows = connection.exec_driver_sql(f"SELECT * FROM {table}")
            told += "".join(str(row) for row in rows)
    assert secret not in told


def cookie(browser, site):
    value, _ = browser.jar[urlsplit(url_of(site)).netloc]["paceline_session"]
    return {"Cookie": f"paceline_session={value}"}


def test_rights_are_those_of_the_project_that_is_asked_for(site):
    """The lead administers llm, and reads vision."""
    browser = Browser()
    log_in(site, browser)
    mine = cookie(browser, site)
    ask = site.ask
    assert ask("GET", "/api/v1/jobs?project=llm", headers=mine).status == 200
    assert ask("GET", "/api/v1/jobs?project=vision", headers=mine).status == 200
    assert ask("GET", "/api/v1/jobs?project=default", headers=mine).status == 404
    assert ask("GET", "/api/v1/audit?project=llm", headers=mine).status == 200
    assert ask("GET", "/api/v1/audit?project=vision", headers=mine).status == 403
    silence = {"hours": 1}
    for project, status in (("llm", 200), ("vision", 403), ("default", 404), ("*", 400)):
        path = f"/api/v1/silences?project={project}"
        assert ask("POST", path, headers=mine, body=silence).status == status, project
    page = browser.ask(f"{url_of(site)}/?project=vision")
    assert 'href="/fleet?project=vision"' in page.text
    assert 'href="/access' not in page.text
    assert 'data-events="/events?project=vision"' in page.text
    assert 'href="/?project=llm"' in page.text


def test_a_form_of_another_site_does_nothing(site):
    browser = Browser()
    log_in(site, browser)
    url = f"{url_of(site)}/access/tokens?project=llm"
    form = {"name": "x", "scope": "admin", "days": "9"}
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert browser.ask(url, form, **headers).status == 403
    page = browser.ask(url, form, Origin=url_of(site))
    assert page.status == 200
    assert "pcl_" in page.text


def test_a_changed_file_counts_at_the_next_request_of_an_old_login(tmp_path, wrong):
    with signing_monitor(tmp_path, wrong.url) as found:
        browser, port = Browser(), found.port
        log_in(found, browser)
    less = FILE.replace(", users: [lead@example.org]", "").replace("lead@", "other@")
    with signing_monitor(tmp_path, wrong.url, less, port=port) as found:
        assert browser.ask(f"{url_of(found)}/").status == 303
    with signing_monitor(tmp_path, wrong.url, port=port) as found:
        assert browser.ask(f"{url_of(found)}/").status == 200
    with signing_monitor(tmp_path, "http://127.0.0.1:1", port=port) as found:
        assert browser.ask(f"{url_of(found)}/").status == 303


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("issuer: {issuer}", "issuer: http://login.example.org"), "line 1: issuer: must be like"),
        (("client_id: paceline", ""), "client_id is missing"),
        (("name: Example", "nme: Example"), "unknown field; did you mean name"),
        (("[openid, email, groups]", "[email]"), "scopes: must have openid"),
        (("admin: {{users", "owner: {{users"), "unknown field"),
        (("users: [lead@example.org]}}", "users: []}}"), "names no users"),
        (("hush & rush", "${{NO_SUCH_SECRET}}"), "the environment has no NO_SUCH_SECRET"),
        (("name: Example", "hours: 1000"), "hours: must be a number from 0 to 168"),
    ],
)
def test_mistakes_in_the_file_name_their_line(tmp_path, change, reason):
    path = tmp_path / "sign-on.yaml"
    path.write_text(FILE.replace(*change).format(issuer="https://login.example.org"))
    with pytest.raises(MonitorError, match=reason):
        load_sign_on(str(path), "https://paceline.example.org")


def test_sign_on_wants_https_for_its_cookie(tmp_path):
    path = tmp_path / "sign-on.yaml"
    path.write_text(FILE.format(issuer="https://login.example.org"))
    with pytest.raises(MonitorError, match="set base_url to https://"):
        load_sign_on(str(path), "http://10.0.0.1:8765")
    assert load_sign_on(str(path), "http://127.0.0.1:8765").name == "Example"


def test_rights_are_the_most_that_the_grants_say(tmp_path):
    path = tmp_path / "sign-on.yaml"
    path.write_text(FILE.format(issuer="https://login.example.org"))
    settings = load_sign_on(str(path), "https://paceline.example.org")
    assert settings.rights("lead@example.org", ["llm-a"]) == {"llm": "admin", "vision": "read"}
    assert settings.rights("x@example.org", ["llm-a", "y"]) == {"llm": "operate"}
    assert settings.rights("x@example.org", ["platform", "llm-a"]) == {
        "*": "admin",
        "llm": "operate",
    }
    assert settings.rights("LEAD@example.org", ["LLM-a"]) == {}
    assert settings.counting(["llm-a", "payroll", "platform"]) == ("llm-a", "platform")
