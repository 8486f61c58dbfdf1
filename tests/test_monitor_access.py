"""Tokens, service accounts and the log of acts: page, API and command, and whom they are for."""

import json
import re

import pytest

import requires

requires.installed("starlette")

import monitor_site
from monitor_stores import STORES
from monitor_web import monitor
from paceline.cli.main import run
from paceline.errors import MonitorError
from paceline.monitor.store import accounts, audit, jobs, tokens
from paceline.monitor.store.alerts import add_silence
from paceline.monitor.store.audit import Actor
from paceline.monitor.store.database import open_database

lines = monitor_site.lines
ME = Actor("me", "user", "10.0.0.1")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with monitor(tmp_path_factory.mktemp("access"), requests_per_minute=10**6) as found:
        yield found


@pytest.fixture(params=STORES)
def engine(request, tmp_path):
    with STORES[request.param](tmp_path) as url:
        engine = open_database(url)
        yield engine
        engine.dispose()


def acts(engine, project="*"):
    rows = audit.list_entries(engine, project)
    return [(row["action"], row["name"], row["project"]) for row in rows]


def test_a_disabled_account_ends_its_tokens_and_no_others(engine):
    account = accounts.create_account(engine, "ci", project="llm", scope="push", now=1.0, by=ME)
    made = [
        accounts.account_token(engine, account.id, "llm", now=2.0, expires_at=None, by=ME)
        for _ in range(2)
    ]
    other = tokens.create_token(engine, "ci", scope="push", project="llm", now=2.0, by=ME)
    for _, secret in made:
        token = tokens.find_token(engine, secret, 3.0)
        assert (token.scope, token.project, token.account_id) == ("push", "llm", account.id)
        assert token.problem(3.0) is None
    accounts.disable_account(engine, account.id, "llm", 4.0, ME)
    accounts.disable_account(engine, account.id, "llm", 5.0, ME)  # once is enough
    assert [tokens.find_token(engine, s, 6.0).problem(6.0) for _, s in made] == ["was revoked"] * 2
    assert tokens.find_token(engine, other[1], 6.0).problem(6.0) is None
    with pytest.raises(MonitorError, match="no service account"):
        accounts.account_token(engine, account.id, "llm", now=6.0, expires_at=None, by=ME)
    with pytest.raises(MonitorError, match="already"):
        accounts.create_account(engine, "ci", project="llm", scope="read", now=6.0, by=ME)
    told = [action for action, _, _ in acts(engine)]
    assert told == ["account-disabled", *["token-made"] * 3, "account-made"]
    assert acts(engine, "vision") == []
    assert accounts.list_accounts(engine, "vision") == []


def test_each_act_is_written_once_with_its_actor(engine):
    token, _ = tokens.create_token(engine, "a", scope="operate", project="llm", now=1.0, by=ME)
    for _ in range(2):
        tokens.revoke_token(engine, token.id, 2.0, by=ME)
    number = add_silence(engine, "llm", rule=None, job="x", until=99.0, comment="", now=3.0, by=ME)
    from paceline.monitor.store.alerts import end_silence

    assert end_silence(engine, number, "llm", 4.0, ME)
    assert not end_silence(engine, number, "llm", 5.0, ME)
    told = ["silence-ended", "silence-begun", "token-revoked", "token-made"]
    assert acts(engine) == [(action, "me", "llm") for action in told]
    (first, *_, last) = audit.list_entries(engine, "*")
    assert (first["client"], first["kind"], first["subject"]) == ("10.0.0.1", "user", str(number))
    assert [row["id"] for row in audit.list_entries(engine, "*", first["id"], 1)] == [
        first["id"] - 1
    ]
    audit.remove_older(engine, 3.0)
    assert last["id"] not in [row["id"] for row in audit.list_entries(engine, "*")]
    assert len(acts(engine)) == 2


def test_an_act_that_fails_leaves_no_line(engine):
    with pytest.raises(MonitorError):
        tokens.create_token(engine, "a", scope="nothing", now=1.0, by=ME)
    with pytest.raises(MonitorError):
        tokens.create_token(engine, "a", scope="read", now=1.0, expires_at=0.5, by=ME)
    assert acts(engine) == []


def secret_of(page):
    return re.search(r"pcl_[A-Za-z0-9_-]+", page.text)[0]


def test_a_token_is_made_used_and_revoked_on_the_page(site):
    mine = site.token("admin", "llm")
    form = {"name": "alice", "scope": "operate", "days": "30"}
    page = site.ask("POST", "/access/tokens", token=mine, form=form)
    assert page.status == 200
    assert page.headers["cache-control"] == "no-store"
    secret = secret_of(page)
    assert secret not in site.ask("GET", "/access", token=mine).text
    assert site.ask("GET", "/api/v1/jobs", token=secret).status == 200
    assert site.ask("GET", "/api/v1/tokens", token=secret).status == 403
    body = {"hours": 1}
    assert site.ask("POST", "/api/v1/silences", token=secret, body=body).status == 200
    number = tokens.list_tokens(site.service.engine)[-1].id
    answer = site.ask("POST", f"/access/tokens/{number}/revoke", token=mine)
    assert (answer.status, answer.headers["location"]) == (303, "/access")
    assert site.ask("GET", "/api/v1/jobs", token=secret).status == 401
    told = site.ask("GET", "/access", token=mine).text
    for words in ("made the token", "revoked the token", "silenced", "alice (operate)"):
        assert words in told


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"name": "a", "scope": "read"}, "days must be"),
        ({"name": "a", "scope": "read", "days": "0"}, "days must be"),
        ({"name": "a", "scope": "read", "days": "1e9"}, "days must be"),
        ({"name": "a", "scope": "root", "days": "1"}, "is no scope"),
        ({"name": "<b>", "scope": "read", "days": "1"}, "is an invalid name"),
        ({"scope": "read", "days": "1"}, "is an invalid name"),
        ({"name": "a", "scope": "read", "days": "1", "project": "*"}, "no such project"),
        ({"name": "a", "scope": "read", "days": "1", "project": "vision"}, "no such project"),
    ],
)
def test_forms_that_will_not_do_make_nothing(site, form, reason):
    before = len(tokens.list_tokens(site.service.engine))
    mine = site.token("admin", "llm")
    before = len(tokens.list_tokens(site.service.engine))
    page = site.ask("POST", "/access/tokens", token=mine, form=form)
    assert page.status in (400, 404)
    assert reason in page.text
    assert "pcl_" not in page.text
    assert len(tokens.list_tokens(site.service.engine)) == before


def things_of(site, project):
    """One of everything that an administrator of a project can touch."""
    engine, now = site.service.engine, site.service.clock()
    account = accounts.create_account(
        engine, f"ci-{now}", project=project, scope="push", now=now, by=ME
    )
    token, _ = tokens.create_token(engine, "t", scope="read", project=project, now=now, by=ME)
    silence = add_silence(
        engine, project, rule=None, job="secret-job", until=now + 999, comment="", now=now, by=ME
    )
    return {"account": account.id, "token": token.id, "silence": silence}


CALLS = (
    ("DELETE", "/api/v1/tokens/{token}"),
    ("DELETE", "/api/v1/accounts/{account}"),
    ("POST", "/api/v1/accounts/{account}/tokens"),
    ("DELETE", "/api/v1/silences/{silence}"),
    ("POST", "/access/tokens/{token}/revoke"),
    ("POST", "/access/accounts/{account}/tokens"),
    ("POST", "/access/accounts/{account}/disable"),
)


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_nobody_touches_what_is_another_projects(site, method, path):
    """Neither by its number nor by naming the other project; their own is theirs."""
    mine, theirs = site.token("admin", "mine"), things_of(site, "theirs")
    own = things_of(site, "mine")
    before = told(site.service.engine)
    form = {"days": "1"} if path.startswith("/access") else None
    body = {} if path.startswith("/api") and method == "POST" else None
    for query in ("", "?project=theirs", "?project=*", "?project=mine&project=theirs"):
        answer = site.ask(method, path.format(**theirs) + query, token=mine, form=form, body=body)
        assert answer.status in (400, 404), query
        assert "pcl_" not in answer.text
    assert told(site.service.engine) == before
    answer = site.ask(method, path.format(**own), token=mine, form=form, body=body)
    assert answer.status in (200, 303)
    assert told(site.service.engine) != before


def told(engine):
    """All that a change would change."""
    with engine.connect() as connection:
        return [
            connection.exec_driver_sql(f"SELECT {columns} FROM {table} ORDER BY id").all()
            for table, columns in (
                ("tokens", "id, revoked_at"),  # when it was used is no change
                ("accounts", "*"),
                ("silences", "*"),
                ("audit", "*"),
            )
        ]


def test_lists_are_of_the_own_project(site):
    things_of(site, "theirs")
    things_of(site, "mine")
    mine = site.token("admin", "mine")
    for path in ("/api/v1/tokens", "/api/v1/accounts", "/api/v1/audit", "/access"):
        answer = site.ask("GET", path, token=mine)
        assert answer.status == 200
        assert "theirs" not in answer.text
        assert "mine" in answer.text
        assert site.ask("GET", f"{path}?project=theirs", token=mine).status == 404
        assert "theirs" in site.ask("GET", f"{path}?project=theirs", token=site.token()).text
    assert site.ask("GET", "/api/v1/logins", token=mine).status == 403
    assert site.ask("DELETE", "/api/v1/logins/1", token=mine).status == 403
    assert site.ask("POST", "/access/logins/1/end", token=mine, form={}).status == 403
    assert site.ask("GET", "/api/v1/logins?project=mine", token=site.token()).status == 403


def test_who_looks_at_one_project_makes_a_token_of_that_one(site):
    """An administrator of all projects must not make a token of all by leaving something out."""
    form = {"name": "a", "scope": "read", "days": "1"}
    page = site.ask("GET", "/access?project=llm", token=site.token())
    assert 'action="/access/tokens?project=llm"' in page.text
    site.ask("POST", "/access/tokens?project=llm", token=site.token(), form=form)
    assert tokens.list_tokens(site.service.engine)[-1].project == "llm"
    body = {"name": "a", "scope": "read", "days": 1}
    answer = site.ask("POST", "/api/v1/tokens?project=llm", token=site.token(), body=body)
    assert answer.json["project"] == "llm"
    answer = site.ask("POST", "/api/v1/tokens", token=site.token("admin", "mine"), body=body)
    assert answer.json["project"] == "mine"


def test_a_form_of_another_site_makes_no_token(site):
    answer = site.ask("POST", "/login", form={"token": site.token()})
    cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
    form = {"name": "evil", "scope": "admin", "days": "9"}
    paths = ["/access/tokens", "/access/accounts", "/access/tokens/1/revoke"]
    paths += ["/access/accounts/1/disable", "/access/accounts/1/tokens", "/access/logins/1/end"]
    before = told(site.service.engine)
    for path in paths:
        for where in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            answer = site.ask("POST", path, form=form, headers={**cookie, **where})
            assert answer.status == 403
        assert site.ask("GET", path, headers=cookie).status in (404, 405)  # no link does it
    assert told(site.service.engine) == before


def test_names_of_others_are_text_on_the_page(site):
    by = Actor("<script>alert(1)</script>", "user", "<b>")
    engine, now = site.service.engine, site.service.clock()
    audit.note(engine, by, "job-removed", "<img src=x>", project="mine", at=now)
    page = site.ask("GET", "/access", token=site.token("admin", "mine")).text
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_what_is_done_to_jobs_is_written_down(site):
    job = jobs.register(site.service.engine, "mine", "gone", site.service.clock())
    answer = site.ask("DELETE", "/api/v1/jobs/gone", token=site.token("admin", "mine"))
    assert answer.status == 200
    entry = audit.list_entries(site.service.engine, "mine")[0]
    assert (entry["action"], entry["subject"]) == ("job-removed", "gone")
    assert (entry["name"], entry["kind"], entry["client"]) == (
        "admin of mine",
        "token",
        "127.0.0.1",
    )
    assert job.id


def test_a_login_with_a_token_is_written_down_a_wrong_one_is_not(site):
    site.ask("POST", "/login", form={"token": site.token("read", "mine")})
    site.ask("POST", "/login", form={"token": "pcl_wrong"})
    entry = audit.list_entries(site.service.engine, "*")[0]
    assert (entry["action"], entry["name"]) == ("login", "read of mine")


def test_the_commands_do_the_same(tmp_path, capsys):
    with monitor(tmp_path / "data"):
        pass
    where = ["--data", str(tmp_path / "data")]

    def told(*words):
        assert run(["admin", *words, *where]) == 0
        return capsys.readouterr().out.strip()

    assert "service account 1" in told("account", "create", "ci", "--scope", "push")
    assert told("account", "token", "1", "--days", "9").startswith("pcl_")
    assert told("token", "create", "me", "--scope", "operate").startswith("pcl_")
    assert "ci" in told("account", "list")
    assert "is disabled" in told("account", "disable", "1")
    assert "disabled" in told("account", "list")
    rows = [json.loads(line) for line in told("audit", "--json").splitlines()]
    told_actions = [row["action"] for row in rows]
    assert told_actions == ["account-made", "token-made", "token-made", "account-disabled"]
    assert {row["kind"] for row in rows} == {"command"}
    assert "disabled the service account: ci" in told("audit", "--limit", "1")
    assert run(["admin", "account", "token", "1", *where]) == 2
    assert "no service account 1" in capsys.readouterr().err
