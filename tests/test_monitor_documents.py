"""What the documents of the monitor say is so."""

import dataclasses
import shlex

import yaml

import requires

requires.installed("starlette")

from monitor_documents import blocks, told
from paceline.monitor.alerts.rule import DEFAULTS, Rule
from paceline.monitor.alerts.settings import load_settings
from paceline.monitor.config import Config, load_config


def test_every_setting_is_read_from_the_file_and_documented(tmp_path):
    text = told("monitor.md")
    values = {}
    for setting in dataclasses.fields(Config):
        assert f"| `{setting.name}` |" in text, setting.name
        values[setting.name] = str(setting.default) if setting.name == "data" else setting.default
    path = tmp_path / "monitor.yaml"
    path.write_text(yaml.safe_dump(values))
    assert load_config(path) == Config(data=tmp_path / "paceline-data")
    assert load_config(path, bind="0.0.0.0:1").bind == "0.0.0.0:1"


def test_the_defaults_in_the_document_are_those_of_the_code():
    text = told("monitor.md")
    for setting in dataclasses.fields(Config):
        row = next(line for line in text.splitlines() if line.startswith(f"| `{setting.name}` |"))
        shown = yaml.safe_load(row.split("|")[2].strip().strip("`"))
        assert shown == (str(setting.default) if setting.name == "data" else setting.default)


def test_the_files_in_the_documents_are_right(tmp_path, monkeypatch):
    path = tmp_path / "file.yaml"
    path.write_text(blocks("monitor.md")["monitor.yaml"])
    assert load_config(path).base_url.startswith("https://")
    compose = yaml.safe_load(blocks("monitor.md")["compose.yaml"])
    assert set(compose["services"]) == {"paceline", "db"}
    for name in ("HOOK_SECRET", "SLACK_URL", "SMTP_PASSWORD"):
        monkeypatch.setenv(name, "https://x")
    path.write_text(blocks("alerts.md")["alerts.yaml"])
    settings = load_settings(str(path), 900.0)
    assert [type(route.channel).__name__ for route in settings.routes] == [
        "Webhook", "Alertmanager", "Slack", "Email"
    ]  # fmt: skip


def test_every_field_of_a_rule_is_documented():
    text = told("alerts.md")
    names = [f.name for f in dataclasses.fields(Rule) if f.name != "name"]
    assert [name for name in names if f"`{name}`" not in text and f"{name}:" not in text] == []
    for rule in DEFAULTS:
        assert f"| `{rule.name}` | `{rule.kind}` | {rule.importance} |" in text


def test_commands_in_the_documents_are_commands():
    """Every `paceline ...` line that the documents show is understood by the parser."""
    from paceline.cli.main import build_parser

    lines = [line for name in ("monitor.md", "alerts.md") for line in told(name).splitlines()]
    found = [line.strip() for line in lines if line.startswith("    paceline ")]
    for command in found:
        build_parser().parse_args(shlex.split(command, comments=True)[1:])
    assert len(found) >= 12
