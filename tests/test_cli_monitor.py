"""The commands around a monitor that runs: serve, admin, alerts."""

import http.client
import re

import pytest

import requires

requires.installed("starlette")

import monitor_site
from monitor_lab import Server
from monitor_web import Listener
from paceline.cli import monitor_config
from paceline.cli.main import run
from paceline.errors import MonitorError

_log_as_before = monitor_site.log_as_before


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("serve") / "data") as found:
        yield found


def get(server, path, token=""):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_serve_says_where_it_is_and_gives_one_token(server):
    said = server.log.read_text()
    assert f"listening on {server.url}, data in {server.data}" in said
    assert len(re.findall(r"pcl_[A-Za-z0-9_-]{40,}", said)) == 1
    assert get(server, "/healthz") == (200, b'{"status":"ok"}')
    assert get(server, "/api/v1/jobs", server.token)[0] == 200
    assert (server.data / "cookie.key").stat().st_mode & 0o077 == 0
    assert (server.data / "paceline.db").stat().st_mode & 0o077 == 0


def test_a_second_one_does_not_get_the_folder_or_the_port(server, tmp_path, capsys):
    assert run(["serve", "--data", str(server.data), "--bind", "127.0.0.1:0"]) == 2
    assert "is in use by another `paceline serve`" in capsys.readouterr().err
    assert run(["serve", "--data", str(tmp_path / "x"), "--bind", server.url[7:]]) == 2
    assert "cannot listen on" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
    assert run(["admin", "gc", "--data", str(server.data)]) == 2


def test_tokens_by_command_work_at_once(server, capsys):
    place = ["--data", str(server.data)]
    create = ["admin", "token", "create", "job-17", "--scope", "read", "--project", "llm"]
    assert run([*create, "--days", "1", *place]) == 0
    secret = capsys.readouterr().out.strip()
    assert get(server, "/api/v1/jobs", secret)[0] == 200
    assert run(["admin", "token", "list", *place]) == 0
    listed = capsys.readouterr().out
    assert secret not in listed
    line = next(line for line in listed.splitlines() if "job-17" in line)
    number = line.split()[0]
    assert "good until" in line
    assert run(["admin", "token", "revoke", number, *place]) == 0
    assert get(server, "/api/v1/jobs", secret)[0] == 401
    run(["admin", "token", "list", *place])
    assert "was revoked" in capsys.readouterr().out
    for wrong in (["--days", "-1"], ["--days", "nan"], ["--days", "inf"], ["--project", "a b"]):
        assert run([*create[:4], "--scope", "push", *wrong, *place]) == 2
    assert run(["admin", "token", "revoke", "99", *place]) == 2
    assert "there is no token 99" in capsys.readouterr().err


def test_commands_want_a_monitor_that_exists(tmp_path, capsys):
    for command in (["admin", "token", "list"], ["admin", "gc"], ["alerts", "list"]):
        assert run([*command, "--data", str(tmp_path / "none")]) == 2
        assert "holds no monitor" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


ALERTS = """
channels:
  hook: {{type: webhook, url: '{url}'}}
  chat: {{type: slack, url: '{url}', rules: fail-slow}}
"""


def test_alerts_by_command(server, tmp_path, capsys):
    hook = Listener([200, 200, 500])
    (tmp_path / "alerts.yaml").write_text(ALERTS.format(url=hook.url))
    config = tmp_path / "monitor.yaml"
    config.write_text(f"alerts: {tmp_path / 'alerts.yaml'}\ndata: {server.data}\n")
    place = ["--config", str(config)]
    assert run(["alerts", "rules", *place]) == 0
    said = capsys.readouterr().out
    assert "slow-job         warning  S of 1.1 or more in 2 sessions in a row" in said
    assert "channel chat: Slack; fail-slow\n" in said
    assert run(["alerts", "test", "--rule", "slow-job", "--dry-run", *place]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    assert hook.received == []
    assert run(["alerts", "test", "--rule", "slow-job", *place]) == 0
    assert capsys.readouterr().out == "hook: delivered\n"
    message = hook.wait(1)[0]["alerts"][0]
    keys = ("headline", "cause", "place", "gain", "url")
    assert all(message[key] for key in keys)
    assert run(["alerts", "test", "--rule", "slow-job", "--channel", "chat", *place]) == 0
    assert run(["alerts", "test", *place]) == 1
    said = capsys.readouterr().out
    assert "hook: failed: 127.0.0.1" in said
    assert "very-secret" not in said
    for wrong in (["--rule", "nope"], ["--channel", "nope"]):
        assert run(["alerts", "test", *wrong, *place]) == 2
    assert run(["alerts", "silence", "--job", "x", "--hours", "2", "--comment", "why", *place]) == 0
    number = capsys.readouterr().out.split()[1]
    assert run(["alerts", "list", *place]) == 0
    said = capsys.readouterr().out
    assert f"silence {number} until" in said
    assert "rule any, job x, project *: why" in said
    assert run(["alerts", "silence", "--end", number, *place]) == 0
    assert run(["alerts", "silence", "--end", number, *place]) == 2
    for hours in ("0", "nan", "inf"):
        assert run(["alerts", "silence", "--hours", hours, *place]) == 2
    hook.close()


def test_without_the_extra_it_says_what_to_install(monkeypatch, capsys):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name)
    )
    with pytest.raises(MonitorError, match=r"uvicorn is not installed.*pip install .*\[monitor\]"):
        monitor_config.check_installed()
    assert run(["serve"]) == 2
    assert "pip install" in capsys.readouterr().err
