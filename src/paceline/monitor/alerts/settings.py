"""The file of alerts: rules, channels, and routes between them."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import MonitorError
from paceline.marked_yaml import Section, read_marked
from paceline.monitor.alerts.channels import Alertmanager, Channel, Email, Slack, Webhook
from paceline.monitor.alerts.pagers import (
    OPSGENIE_URL,
    PAGERDUTY_URL,
    Discord,
    Opsgenie,
    PagerDuty,
    Teams,
)
from paceline.monitor.alerts.rule import IMPORTANCES, KINDS, Rule, default_rules, rules_of
from paceline.monitor.file_texts import text_of, texts_of
from paceline.results.words.names import CAUSES

#: Alerts of one rule that begin within this time share a message.
GROUP_WAIT_S = 10.0
_ROUTE = ("rules", "projects", "importance")


@dataclass(frozen=True)
class Route:
    """A channel with the alerts that it gets.

    Attributes:
        channel: the channel.
        rules, projects: patterns; an alert must match one pattern of each list.
        importance: least importance of its alerts.
    """

    channel: Channel
    rules: tuple[str, ...] = ("*",)
    projects: tuple[str, ...] = ("*",)
    importance: str = "info"

    def takes(self, rule: str, project: str, importance: str) -> bool:
        """Whether the channel gets such an alert."""
        return (
            any(fnmatch.fnmatchcase(rule, pattern) for pattern in self.rules)
            and any(fnmatch.fnmatchcase(project, pattern) for pattern in self.projects)
            and IMPORTANCES.index(importance) >= IMPORTANCES.index(self.importance)
        )

    def explain(self) -> str:
        """Its alerts as text: ``fail-slow of the projects core, vision; warning or more``."""
        words = "all alerts" if "*" in self.rules else ", ".join(self.rules)
        if "*" not in self.projects:
            plural = "s" * (len(self.projects) > 1 or "*" in self.projects[0])
            words += f" of the project{plural} {', '.join(self.projects)}"
        return words if self.importance == IMPORTANCES[0] else f"{words}; {self.importance} or more"


@dataclass(frozen=True)
class Settings:
    """Contents of the file.

    Attributes:
        rules: in order.
        routes: the channels.
        group_wait_s: seconds that a message waits for others of its rule.
        runbooks: cause -> URL of instructions; "default" for all others.
    """

    rules: tuple[Rule, ...]
    routes: tuple[Route, ...] = ()
    group_wait_s: float = GROUP_WAIT_S
    runbooks: Mapping[str, str] = field(default_factory=dict)

    def runbook(self, cause: str | None) -> str:
        """URL of instructions for a cause; "" if none is set."""
        return self.runbooks.get(cause or "", self.runbooks.get("default", ""))


def load_settings(path: str, silent_after_s: float) -> Settings:
    """The settings of a file; "" = the default rules and no channel.

    Raises:
        MonitorError: the file is wrong; the message names file and line.
    """
    if not path:
        return Settings(default_rules(silent_after_s))
    section = read_marked(Path(path), MonitorError)
    section.allow(("rules", "channels", "group_wait_s", "runbooks"))
    wait_s = GROUP_WAIT_S
    if "group_wait_s" in section:
        wait_s = _seconds(section, "group_wait_s")
    rules = rules_of(section.section("rules"), silent_after_s)
    channels = section.section("channels")
    names = [rule.name for rule in rules]
    routes = tuple(_route(channels, name, names) for name in channels.nodes)
    return Settings(rules, routes, wait_s, _runbooks(section.section("runbooks")))


def _runbooks(section: Section) -> dict[str, str]:
    """Cause -> URL."""
    known = (*CAUSES, *KINDS, "default")
    for cause in section.nodes:
        if cause not in known:
            section.fail(cause, f"is an unknown cause; known are {', '.join(known)}")
        if not section.text(cause).startswith(("http://", "https://")):
            section.fail(cause, "must be a URL with http:// or https://")
    return {cause: section.text(cause) for cause in section.nodes}


def _route(channels: Section, name: str, rule_names: Sequence[str]) -> Route:
    section = channels.section(name)
    if "type" not in section or section.plain("type") not in _TYPES:
        section.fail("type", f"must be one of {', '.join(_TYPES)}")
    make, fields = _TYPES[section.plain("type")]
    section.allow(("type", *fields, *_ROUTE))
    importance = section.text("importance") if "importance" in section else "info"
    if importance not in IMPORTANCES:
        section.fail("importance", f"must be one of {', '.join(IMPORTANCES)}")
    rules = texts_of(section, "rules") or ("*",)
    for pattern in rules:
        if not fnmatch.filter(rule_names, pattern):
            section.fail("rules", f"no rule is like {pattern}; known are {', '.join(rule_names)}")
    return Route(
        make(name, section),
        rules,
        texts_of(section, "projects") or ("*",),
        importance,
    )


def _webhook(name: str, section: Section) -> Channel:
    return Webhook(name, _url(section), _headers(section), text_of(section, "secret", ""))


def _slack(name: str, section: Section) -> Channel:
    return Slack(name, _url(section))


def _alertmanager(name: str, section: Section) -> Channel:
    return Alertmanager(name, _url(section), _headers(section))


def _pagerduty(name: str, section: Section) -> Channel:
    return PagerDuty(name, text_of(section, "routing_key"), _url(section, PAGERDUTY_URL))


def _opsgenie(name: str, section: Section) -> Channel:
    return Opsgenie(name, text_of(section, "key"), _url(section, OPSGENIE_URL))


def _teams(name: str, section: Section) -> Channel:
    return Teams(name, _url(section))


def _discord(name: str, section: Section) -> Channel:
    return Discord(name, _url(section))


def _email(name: str, section: Section) -> Channel:
    security = text_of(section, "security", "starttls")
    if security not in ("starttls", "tls", "none"):
        section.fail("security", "must be starttls, tls or none")
    to = texts_of(section, "to")
    if not to:
        section.fail("to", "must be an address, or a list of them")
    return Email(
        name,
        host=text_of(section, "host"),
        sender=text_of(section, "from"),
        to=to,
        port=_port(section, 465 if security == "tls" else 587),
        user=text_of(section, "user", ""),
        password=text_of(section, "password", ""),
        security=security,
    )


_TYPES: dict[Any, tuple[Callable[[str, Section], Channel], tuple[str, ...]]] = {
    "webhook": (_webhook, ("url", "headers", "secret")),
    "slack": (_slack, ("url",)),
    "alertmanager": (_alertmanager, ("url", "headers")),
    "pagerduty": (_pagerduty, ("routing_key", "url")),
    "opsgenie": (_opsgenie, ("key", "url")),
    "teams": (_teams, ("url",)),
    "discord": (_discord, ("url",)),
    "email": (_email, ("host", "port", "from", "to", "user", "password", "security")),
}


def _seconds(section: Section, field: str) -> float:
    value = section.plain(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 3600:
        section.fail(field, "must be a number of seconds from 0 to 3600")
    return float(value)


def _port(section: Section, usual: int) -> int:
    port = section.whole("port") if "port" in section else usual
    if not 0 < port < 65536:
        section.fail("port", "must be from 1 to 65535")
    return port


def _url(section: Section, usual: str | None = None) -> str:
    url = text_of(section, "url", usual)
    if not url.startswith(("http://", "https://")) or " " in url:
        section.fail("url", "must begin with http:// or https://")
    return url


def _headers(section: Section) -> dict[str, str]:
    headers = section.section("headers")
    return {name: text_of(headers, name) for name in headers.nodes}
