"""The service's settings. Each has a default and a line in the file, and most have an option."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from paceline.errors import MonitorError
from paceline.marked_yaml import Section, read_marked

MIB = 1 << 20
DAY_S = 86_400.0
#: Least memory: with less address space, libraries of an analysis may not load.
LEAST_ANALYSIS_MIB = 512
#: Pattern of Prometheus' label names.
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,60}")
#: Settings that name files.
_FILES = ("tls_cert", "tls_key", "alerts", "projects", "sign_on")
_SQLITE = "sqlite:///"
#: File that every data folder of a service has (``identity.py``).
_STORE = "store.json"
#: Pattern of names of instances.
_INSTANCE = re.compile(r"[A-Za-z0-9._-]{1,40}")


@dataclass(frozen=True)
class Config:
    """Settings.

    Attributes:
        data: folder of all data except the database: blobs, uploads, step times, secrets.
        store: URL of the database; "" = SQLite in ``data``.
        blobs: place of traces and results: "" = in ``data``, or an fsspec URL (s3://bucket/x).
        instance: name of this instance if several share store and blobs; "" = the only one.
        log_hours: least hours for which instances keep pushed step times.
        bind: host:port to listen on.
        base_url: URL for users, for links in alerts; "" = http://bind.
        public_read: pages and reads need no token.
        tls_cert, tls_key: files, PEM; "" = plain HTTP.
        analysis_processes: number of traces analysed at once.
        analysis_memory_mib, analysis_seconds: limits of one analysis.
        analysis_queue: most waiting sessions; with more, uploads get 429.
        max_upload_mib: largest trace.
        max_body_mib: largest other request.
        requests_per_minute: most requests per token (uploads of chunks and steps do not count).
        step_samples_per_minute: most step samples per token.
        connections_per_address: most open connections; this machine and proxies do not count.
        keep_days: sessions, events and step times older than this are removed; 0 = never.
        keep_gib: blobs beyond this are removed, oldest first; 0 = no limit.
        silent_after_s: seconds without a step after which a running job is silent.
        metric_labels: comma-separated labels of jobs for ``paceline_job_info``.
        alerts: YAML file of rules and channels; "" = the default rules, no channel.
        projects: YAML file with limits of projects; "" = equal limits.
        sign_on: YAML file with the OpenID provider and its users' rights; "" = only tokens.
        keep_audit_days: days for which the audit log is kept; 0 = always.
        log_level: debug, info, warning or error.
    """

    data: Path = Path("paceline-data")
    store: str = ""
    blobs: str = ""
    instance: str = ""
    log_hours: float = 6.0
    bind: str = "127.0.0.1:8765"
    base_url: str = ""
    public_read: bool = False
    tls_cert: str = ""
    tls_key: str = ""
    analysis_processes: int = 2
    analysis_memory_mib: int = 1024
    analysis_seconds: float = 300.0
    analysis_queue: int = 1000
    max_upload_mib: int = 4096
    max_body_mib: int = 64
    requests_per_minute: int = 600
    step_samples_per_minute: int = 12_000_000
    connections_per_address: int = 256
    keep_days: float = 90.0
    keep_gib: float = 0.0
    silent_after_s: float = 900.0
    metric_labels: str = ""
    alerts: str = ""
    projects: str = ""
    sign_on: str = ""
    keep_audit_days: float = 365.0
    log_level: str = "info"

    def __post_init__(self) -> None:
        self.address()
        for name in (
            "analysis_processes",
            "max_upload_mib",
            "max_body_mib",
            "connections_per_address",
        ):
            _require(getattr(self, name) >= 1, f"{name} must be 1 or more", name)
        for name in ("analysis_seconds", "requests_per_minute", "step_samples_per_minute"):
            good = 0 < getattr(self, name) < math.inf
            _require(good, f"{name} must be above 0, and finite", name)
        for name in (
            "keep_days",
            "keep_gib",
            "keep_audit_days",
            "silent_after_s",
            "analysis_queue",
            "log_hours",
        ):
            good = 0 <= getattr(self, name) < math.inf
            _require(good, f"{name} must be 0 or more, and finite", name)
        if self.instance:
            good = bool(_INSTANCE.fullmatch(self.instance))
            _require(good, "instance has 1 to 40 of A-Z a-z 0-9 . _ -", "instance")
            good = self.store.startswith("postgresql") and bool(self.blobs)
            message = "several instances need a PostgreSQL (store) and a bucket (blobs)"
            _require(good, message, "instance")
        least = LEAST_ANALYSIS_MIB
        good = self.analysis_memory_mib >= least
        _require(good, f"analysis_memory_mib must be {least} or more", "analysis_memory_mib")
        good = not self.base_url or _is_url(self.base_url)
        _require(good, f"base_url must be like https://host, not {self.base_url!r}", "base_url")
        good = bool(self.tls_cert) == bool(self.tls_key)
        _require(good, "set both tls_cert and tls_key", "tls_cert", "tls_key")
        good = all(_LABEL.fullmatch(name) for name in self.labels_of_metrics)
        message = "metric_labels are names such as team, queue, with letters, digits and _"
        _require(good, f"{message}, not {self.metric_labels!r}", "metric_labels")
        levels = ("debug", "info", "warning", "error")
        _require(
            self.log_level in levels, f"log_level must be one of {', '.join(levels)}", "log_level"
        )

    def address(self) -> tuple[str, int]:
        """Host and port of ``bind``.

        Raises:
            MonitorError: the value is not host:port.
        """
        host, colon, port = self.bind.rpartition(":")
        good = bool(colon and host) and port.isdecimal() and int(port) < 65536
        _require(good, f"bind must be host:port, not {self.bind!r}", "bind")
        return host.strip("[]"), int(port)

    @property
    def labels_of_metrics(self) -> tuple[str, ...]:
        """Names of ``metric_labels``."""
        return tuple(name.strip() for name in self.metric_labels.split(",") if name.strip())

    @property
    def store_url(self) -> str:
        """The database's URL."""
        return self.store or f"sqlite:///{self.data / 'paceline.db'}"

    @property
    def url(self) -> str:
        """The URL for users, without a slash at the end."""
        scheme = "https" if self.tls_cert else "http"
        return (self.base_url or f"{scheme}://{self.bind}").rstrip("/")


def load_config(path: Path, **options: Any) -> Config:
    """The settings of a YAML file; ``options`` override them.

    Relative paths in the file, and the default data folder, count from the file's folder. So
    commands find the same monitor from any folder.

    Raises:
        MonitorError: a setting is unknown or wrong; the message names file and line.
    """
    section = read_marked(path, MonitorError, may_be_empty=True)
    section.allow(field.name for field in fields(Config))
    values = {name: _value(section, name) for name in section.nodes}
    values = {"data": Config.data, **values}
    values |= {name: _beside(path, name, value) for name, value in values.items()}
    options = {name: value for name, value in options.items() if value is not None}
    try:
        config = Config(**{**values, **options})
    except MonitorError as error:
        # Only fields of the file have a line number.
        lines = [name for name in error.fields if name in section.nodes and name not in options]
        if not lines:
            raise
        section.fail(lines[0], str(error))
    if "data" not in options:
        _check_not_elsewhere(section, config.data)
    return config


def _check_not_elsewhere(section: Section, data: Path) -> None:
    """Refuse an empty data folder if the command's folder has the data: it counted before."""
    here = Path(section.text("data")) if "data" in section else Config.data
    if not (data / _STORE).exists() and (here / _STORE).exists():
        section.fail(
            "data",
            f"{here.absolute()} holds a monitor, but a relative path counts from the folder of "
            "this file; give the absolute path",
        )


def _beside(path: Path, name: str, value: Any) -> Any:
    """The setting, with a relative path counted from the file's folder."""
    if name == "data":
        return path.parent / value
    if name in _FILES and value:
        return str(path.parent / value)
    if name == "store" and value.startswith(_SQLITE):
        return f"{_SQLITE}{path.parent / value.removeprefix(_SQLITE)}"
    return value


def _value(section: Section, name: str) -> Any:
    value = section.plain(name)
    usual = next(f.default for f in fields(Config) if f.name == name)
    if isinstance(usual, Path):
        return Path(section.text(name))
    if isinstance(usual, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(usual):
        section.fail(name, f"must be like {usual!r}, not {value!r}")
    return value


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return good and not re.search(r"\s", text)


def _require(condition: bool, message: str, *fields: str) -> None:
    if not condition:
        raise MonitorError(message, fields=fields)
