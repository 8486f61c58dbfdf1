"""The settings of a monitor, and what is said of wrong ones."""

import pytest

import requires

requires.installed("starlette")

import monitor_site
from paceline.cli.main import run
from paceline.errors import MonitorError
from paceline.monitor.config import Config, load_config
from paceline.monitor.service import Service

_log_as_before = monitor_site.log_as_before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bind: 8765", "bind: must be like"),
        ("bind: nowhere", "bind must be host:port"),
        ("bindd: x:1", "did you mean bind?"),
        ("keep_days: -1", "keep_days must be 0 or more"),
        ("public_read: 1", "must be like False"),
        ("tls_cert: a.pem", "line 2: tls_cert: set both"),
        ("log_level: loud", "line 2: log_level: log_level must be one of"),
        ("analysis_processes: 0", "line 2: analysis_processes"),
        ("analysis_memory_mib: 1", "line 2: analysis_memory_mib"),
        ("keep_days: .nan", "line 2: keep_days"),
        ("keep_gib: .inf", "line 2: keep_gib"),
        ("base_url: ftp//x y", "line 2: base_url"),
        ("base_url: http://[::1", "line 2: base_url"),
        ("[]", ""),
    ],
)
def test_a_wrong_setting_is_said(tmp_path, capsys, text, words):
    path = tmp_path / "monitor.yaml"
    path.write_text(f"# ours\n{text}\n")
    assert run(["serve", "--config", str(path)]) == 2
    assert words in capsys.readouterr().err


def test_a_wrong_option_is_not_blamed_on_the_file(tmp_path):
    path = tmp_path / "monitor.yaml"
    path.write_text("log_level: debug\n")
    with pytest.raises(MonitorError, match=r"^log_level must be"):
        load_config(path, log_level="loud")


def test_a_value_that_is_a_setting_s_name_is_not_blamed_on_that_setting(tmp_path):
    path = tmp_path / "monitor.yaml"
    path.write_text("data: here\n")
    with pytest.raises(MonitorError, match=r"^bind must be host:port, not 'data'"):
        load_config(path, bind="data")


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_a_file_without_settings_is_one(tmp_path, text):
    path = tmp_path / "monitor.yaml"
    path.write_text(text)
    assert load_config(path) == Config(data=tmp_path / "paceline-data")


def test_relative_paths_count_from_the_folder_of_the_file(tmp_path, monkeypatch):
    path = tmp_path / "etc" / "monitor.yaml"
    path.parent.mkdir()
    path.write_text(
        "data: data\nstore: sqlite:///jobs.db\nalerts: alerts.yaml\nprojects: /p.yaml\n"
        "tls_cert: a.pem\ntls_key: a.key\n"
    )
    monkeypatch.chdir(tmp_path)
    config = load_config(path)
    assert config.data == path.parent / "data"
    assert config.store == f"sqlite:///{path.parent}/jobs.db"
    assert config.alerts == str(path.parent / "alerts.yaml")
    assert (config.projects, config.sign_on) == ("/p.yaml", "")
    assert (config.tls_cert, config.tls_key) == tuple(
        str(path.parent / name) for name in ("a.pem", "a.key")
    )
    path.write_text(f"data: {tmp_path}/x\nstore: sqlite:///{tmp_path}/jobs.db\n")
    config = load_config(path)
    assert (config.data, config.store) == (tmp_path / "x", f"sqlite:///{tmp_path}/jobs.db")
    assert load_config(path, data=tmp_path / "option").data == tmp_path / "option"


def test_commands_find_the_monitor_from_any_folder(tmp_path, monkeypatch, capsys):
    path = tmp_path / "etc" / "monitor.yaml"
    path.parent.mkdir()
    path.write_text("data: data\nalerts: alerts.yaml\n")
    (path.parent / "alerts.yaml").write_text("rules: {regression: false}\n")
    Service(load_config(path)).engine.dispose()
    monkeypatch.chdir(tmp_path)
    assert run(["alerts", "list", "--config", "etc/monitor.yaml"]) == 0
    assert capsys.readouterr().out == "no alerts\n"
    assert run(["alerts", "rules", "--config", "etc/monitor.yaml"]) == 0
    assert "regression" not in capsys.readouterr().out


def test_data_that_counted_from_the_command_s_folder_are_not_left_behind(tmp_path, monkeypatch):
    path = tmp_path / "etc" / "monitor.yaml"
    path.parent.mkdir()
    path.write_text("data: data\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "store.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MonitorError, match=r"data: .*/data holds a monitor, but a relative path"):
        load_config(path)
    assert load_config(path, data=tmp_path / "data").data == tmp_path / "data"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql//u:secretpw@h/db",
        "postgresql://u:secretpw/x@h/db",
        "postgresql://u@127.0.0.1:1/db?password=secretpw",
    ],
)
def test_a_password_is_not_printed(tmp_path, capsys, url):
    options = ["--bind", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    assert run(["serve", "--store", url, *options]) == 2
    said = capsys.readouterr().err
    assert "secretpw" not in said
    assert "store" in said
