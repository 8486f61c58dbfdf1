"""Services that page and chat: PagerDuty, Opsgenie, Microsoft Teams, Discord.

Their fields and limits follow Alertmanager (68fb2d5: ``notify/pagerduty``, ``opsgenie``,
``msteamsv2``, ``discord``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from paceline.monitor.alerts.channels import MAX_NOTICES, post, rfc3339
from paceline.monitor.alerts.notice import Notice, title_of

PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
OPSGENIE_URL = "https://api.opsgenie.com"

_PRIORITY = {"critical": "P1", "warning": "P3", "info": "P5"}
#: Colours of messages: Discord's embeds and Teams' text blocks.
_COLORS = {
    "critical": (0xC0392B, "Attention"),
    "warning": (0xD68910, "Warning"),
    "info": (0x5D6D7E, "Default"),
}
_RESOLVED = (0x1E8449, "Good")
#: Characters of PagerDuty's summary, Opsgenie's message and description, Discord's title and text.
_SUMMARY, _MESSAGE, _DESCRIPTION, _TITLE, _TEXT = 1024, 130, 15_000, 256, 4096
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#|~])")


@dataclass(frozen=True)
class PagerDuty:
    """A service of PagerDuty (Events API v2); the end of an alert resolves its incident.

    Attributes:
        name: of the channel.
        routing_key: key of the service's integration.
        url: URL of another region.
    """

    name: str
    routing_key: str
    url: str = PAGERDUTY_URL
    repeat_s: float = 0.0

    def send(self, notices: Sequence[Notice], now: float) -> None:
        """Send each notice; repetitions belong to the same incident."""
        for notice in notices:
            post(self.url, json.dumps(self._event(notice)).encode(), {})

    def _event(self, notice: Notice) -> dict[str, Any]:
        event = {"routing_key": self.routing_key, "dedup_key": _alias(notice)}
        if not notice.is_firing:
            return {**event, "event_action": "resolve"}
        links = [{"href": notice.url, "text": "the job"}]
        links += [{"href": notice.runbook, "text": "runbook"}] if notice.runbook else []
        return {
            **event,
            "event_action": "trigger",
            "client": "Paceline",
            "client_url": notice.url,
            "links": links,
            "payload": {
                "summary": _short(f"{notice.job}: {notice.headline}", _SUMMARY),
                "source": f"{notice.project}/{notice.job}",
                "severity": notice.importance,
                "timestamp": rfc3339(notice.started_at),
                "component": notice.place or notice.job,
                "group": notice.project,
                "class": notice.cause or notice.rule,
                "custom_details": _details(notice),
            },
        }


@dataclass(frozen=True)
class Opsgenie:
    """An integration of Opsgenie or Jira Service Management (Alert API); the end closes an alert.

    Attributes:
        name: of the channel.
        key: key of the integration.
        url: URL of another region.
    """

    name: str
    key: str
    url: str = OPSGENIE_URL
    repeat_s: float = 0.0

    def send(self, notices: Sequence[Notice], now: float) -> None:
        """Send each notice; repetitions belong to the same alert."""
        headers = {"Authorization": f"GenieKey {self.key}"}
        for notice in notices:
            path, body = self._request(notice)
            url = f"{self.url.rstrip('/')}/v2/alerts{path}"
            method = "PUT" if notice.is_update else "POST"
            post(url, json.dumps(body).encode(), headers, method)

    def _request(self, notice: Notice) -> tuple[str, dict[str, Any]]:
        alias = _alias(notice)
        if not notice.is_firing:
            return f"/{alias}/close?identifierType=alias", {"source": "Paceline"}
        description = _short("\n".join(notice.lines()), _DESCRIPTION)
        if notice.is_update:
            return f"/{alias}/description?identifierType=alias", {"description": description}
        return "", {
            "alias": alias,
            "message": _short(f"{notice.job}: {notice.headline}", _MESSAGE),
            "description": description,
            "details": _details(notice),
            "source": "Paceline",
            "entity": f"{notice.project}/{notice.job}",
            "tags": [notice.rule, notice.importance],
            "priority": _PRIORITY[notice.importance],
        }


@dataclass(frozen=True)
class Teams:
    """A workflow of Microsoft Teams with a webhook ("Send webhook alerts to a channel")."""

    name: str
    url: str
    repeat_s: float = 0.0

    def send(self, notices: Sequence[Notice], now: float) -> None:
        """Send notices in one card."""
        heading = {"weight": "Bolder", "size": "Medium", "color": _color(notices[0])[1]}
        blocks = [_block(_markdown(title_of(notices)), **heading)]
        blocks += [_block(text) for text in _paragraphs(notices)]
        card = {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.4",
            "body": blocks,
            "msteams": {"width": "Full"},
        }
        kind = "application/vnd.microsoft.card.adaptive"
        attachment = {"contentType": kind, "contentUrl": None, "content": card}
        body = {"type": "message", "attachments": [attachment]}
        post(self.url, json.dumps(body).encode(), {})


@dataclass(frozen=True)
class Discord:
    """A webhook of a Discord channel."""

    name: str
    url: str
    repeat_s: float = 0.0

    def send(self, notices: Sequence[Notice], now: float) -> None:
        """Send notices in one message, without mentions for any name of a job."""
        embed = {
            "title": _short(_markdown(title_of(notices)), _TITLE),
            "description": _short("\n\n".join(_paragraphs(notices)), _TEXT),
            "color": _color(notices[0])[0],
        }
        body = {"embeds": [embed], "allowed_mentions": {"parse": []}}
        post(self.url, json.dumps(body).encode(), {})


def _alias(notice: Notice) -> str:
    """Key of an alert, equal at its begin and end and unique among monitors."""
    host = urlsplit(notice.url).netloc
    return hashlib.sha256(f"{host} {notice.id}".encode()).hexdigest()[:32]


def _details(notice: Notice) -> dict[str, str]:
    named = {
        "rule": notice.rule,
        "project": notice.project,
        "job": notice.job,
        "cause": notice.cause,
        "where": notice.place,
        "best fix": notice.gain,
        "runbook": notice.runbook,
        "page": notice.url,
    }
    labels = {str(name): str(value) for name, value in notice.labels.items()}
    return {**labels, **{name: text for name, text in named.items() if text}}


def _paragraphs(notices: Sequence[Notice]) -> list[str]:
    """A Markdown text for each notice."""
    paragraphs = []
    for notice in notices[:MAX_NOTICES]:
        *lines, url = notice.lines()
        link = f"[{_markdown(notice.job)}]({url})"
        paragraphs.append("\n\n".join([link, *map(_markdown, lines)]))
    if len(notices) > MAX_NOTICES:
        paragraphs.append(f"and {len(notices) - MAX_NOTICES} more")
    return paragraphs


def _block(text: str, **look: str) -> dict[str, Any]:
    return {"type": "TextBlock", "text": text, "wrap": True, **look}


def _color(notice: Notice) -> tuple[int, str]:
    return _COLORS[notice.importance] if notice.is_firing else _RESOLVED


def _markdown(text: str) -> str:
    """The text with Markdown escaped."""
    return _MARKDOWN.sub(r"\\\1", text)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
