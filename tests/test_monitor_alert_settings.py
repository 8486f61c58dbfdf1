"""The file of alerts: what it sets, and what is wrong in it."""

import pytest

import requires

requires.installed("starlette")

from paceline.errors import MonitorError
from paceline.monitor.alerts.notice import Notice
from paceline.monitor.alerts.settings import load_settings


def test_settings_from_the_environment(tmp_path, monkeypatch):
    path = tmp_path / "alerts.yaml"
    path.write_text(
        """
rules:
  slow-job: {at_least: 1.2, sessions: 3}
channels:
  chat: {type: slack, url: "${CHAT_URL}"}
  mail: {type: email, host: smtp, from: a@b, to: [c@d], user: u, password: "${MAIL_PW}"}
"""
    )
    monkeypatch.setenv("CHAT_URL", "https://hooks.example/x")
    with pytest.raises(
        MonitorError, match=r"alerts.yaml, line 6: .*password: the environment has no"
    ):
        load_settings(str(path), 900)
    monkeypatch.setenv("MAIL_PW", "hush")
    settings = load_settings(str(path), 600)
    chat, mail = (route.channel for route in settings.routes)
    assert (chat.url, mail.password, mail.port) == ("https://hooks.example/x", "hush", 587)
    rules = {rule.name: rule for rule in settings.rules}
    assert (rules["slow-job"].at_least, rules["slow-job"].sessions) == (1.2, 3)
    assert rules["job-silent"].after_s == 600


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rules: {x: {at_least: 2}}", "line 1: rules.x: is no default rule and needs a kind"),
        ("rules: {slow-job: {kind: fast}}", "kind must be one of"),
        ("rules: {slow-job: {at_least: 1}}", "rules.slow-job.at_least: at_least must be above 1"),
        ("rules: {slow-job: {at_leest: 2}}", "did you mean at_least?"),
        ("rules: {slow-job: {sessions: 0}}", "must be a whole number >= 1"),
        ("rules: {slow-job: {gpu_hours: .nan}}", "must be a number, not nan"),
        ("rules: {slow-job: {sessions: 500}}", "sessions must be 200 at most"),
        ("rules: {slow-job: {importance: huge}}", "importance must be one of"),
        ("rules: {slow-job: 3}", "or false to remove the rule"),
        ("ruels: {}", "did you mean rules?"),
        ("channels: {a: {type: pager}}", "type: must be one of webhook, slack"),
        ("channels: {a: {type: slack}}", "url is missing"),
        ("channels: {a: {type: pagerduty}}", "routing_key is missing"),
        ("channels: {a: {type: opsgenie, key: k, url: x}}", "must begin with http"),
        ("channels: {a: {type: teams}}", "url is missing"),
        (
            "channels: {a: {type: slack, url: 'http://x', rules: [fail-slw]}}",
            "rules: no rule is like fail-slw; known are slow-job, fail-slow",
        ),
        (
            "channels: {a: {type: email, host: x, from: a@b, to: c@d, port: 99999}}",
            "port: must be from 1 to 65535",
        ),
        ("channels: {a: {type: slack, url: 'file:///etc/passwd'}}", "must begin with http"),
        (
            "channels: {a: {type: webhook, url: 'http://x', headers: {A: \"b\\nC: d\"}}}",
            "line break",
        ),
        ("channels: {a: {type: email, host: x, from: a@b}}", "to: must be an address"),
        (
            "channels: {a: {type: email, host: x, from: a, to: b, security: ssl}}",
            "must be starttls",
        ),
        ("channels: {a: {type: slack, url: 'http://x', importance: 1}}", "must be a text"),
        ("group_wait_s: fast", "number of seconds"),
    ],
)
def test_what_is_wrong_in_the_file_is_said_with_its_line(tmp_path, text, words):
    path = tmp_path / "alerts.yaml"
    path.write_text(text + "\n")
    with pytest.raises(MonitorError, match="line 1: ") as error:
        load_settings(str(path), 900)
    assert words in str(error.value)


def test_runbooks_are_links_by_cause(tmp_path):
    path = tmp_path / "alerts.yaml"
    path.write_text("runbooks: {worker: 'https://wiki/gpu', default: 'https://wiki/all'}\n")
    settings = load_settings(str(path), 900.0)
    assert settings.runbook("worker") == "https://wiki/gpu"
    assert settings.runbook("gc") == settings.runbook(None) == "https://wiki/all"
    assert load_settings("", 900.0).runbook("worker") == ""
    for text, problem in (
        ("wrker: https://x", "is an unknown cause"),
        ("gc: wiki", "must be a URL"),
    ):
        path.write_text(f"runbooks: {{{text}}}\n")
        with pytest.raises(MonitorError, match=problem):
            load_settings(str(path), 900.0)


def test_a_notice_has_its_runbook():
    usual = {"id": 1, "rule": "slow-job", "importance": "warning", "project": "p", "job": "j"}
    usual |= {"headline": "slow", "cause": "worker", "place": None, "gain": None, "url": "u"}
    notice = Notice(status="firing", started_at=0.0, runbook="https://wiki/gpu", **usual)
    assert notice.lines() == ["slow", "Cause: worker", "Runbook: https://wiki/gpu", "u"]
    assert notice.to_mapping()["runbook"] == "https://wiki/gpu"


def test_a_channel_says_which_alerts_it_is_told(tmp_path):
    path = tmp_path / "alerts.yaml"
    hook = "type: webhook, url: 'http://127.0.0.1:1/'"
    path.write_text(
        f"""
channels:
  all: {{{hook}}}
  night: {{{hook}, importance: critical}}
  core: {{{hook}, rules: [slow-job, fail-slow], projects: core}}
  labs: {{{hook}, projects: "lab-*", importance: warning}}
"""
    )
    settings = load_settings(str(path), 900)
    assert [route.explain() for route in settings.routes] == [
        "all alerts",
        "all alerts; critical or more",
        "slow-job, fail-slow of the project core",
        "all alerts of the projects lab-*; warning or more",
    ]
