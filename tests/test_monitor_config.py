"""The settings of a monitor, and what is said of wrong ones."""

import pytest

import requires

requires.installed("starlette")

import monitor_site
from paceline.cli.main import run
from paceline.errors import MonitorError
from paceline.monitor.config import Config, load_config

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
    assert load_config(path) == Config()


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
