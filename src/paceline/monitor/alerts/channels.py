"""Channels for alerts: Alertmanager, Slack, webhooks, e-mail; ``pagers`` has more services.

Only the standard library is needed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import smtplib
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import formatdate
from http.client import HTTPException
from typing import Any, Protocol

from paceline.client import NoRedirect
from paceline.errors import MonitorError
from paceline.monitor.alerts.notice import Notice, title_of
from paceline.monitor.log import without_secrets

#: Longest time for a channel's answer, seconds.
TIMEOUT_S = 10.0
#: Alertmanager drops alerts that are not repeated, so they are repeated, with an expiry time.
REPEAT_S, FORGET_S = 60.0, 900.0
#: Most notices in one message for people; the rest is only counted.
MAX_NOTICES = 10


class Channel(Protocol):
    """Interface of a channel.

    Attributes:
        name: its name in the file and the log.
        repeat_s: seconds after which a firing alert is sent again; 0 = once.
    """

    @property
    def name(self) -> str:
        """Its name in the file and the log."""

    @property
    def repeat_s(self) -> float:
        """Seconds after which a firing alert is sent again; 0 = never."""

    def send(self, notices: Sequence[Notice], now: float) -> None:
        """Send notices of some alerts with the same rule and status.

        Raises:
            MonitorError: it did not arrive.
        """


@dataclass(frozen=True)
class Webhook:
    """A webhook: any program that accepts JSON by POST.

    Attributes:
        name: of the channel.
        url: http or https.
        headers: more headers, such as Authorization.
        secret: signs the body: X-Paceline-Signature: sha256=HMAC; "" = no signature.
    """

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    secret: str = ""
    repeat_s: float = 0.0

    def send(self, notices: Sequence[Notice], now: float) -> None:
        """Send notices; the same message always has the same Idempotency-Key."""
        body = json.dumps(
            {
                "version": 1,
                "status": notices[0].status,
                "title": title_of(notices),
                "alerts": [notice.to_mapping() for notice in notices],
            }
        ).encode()
        key = hashlib.sha256(",".join(notice.key for notice in notices).encode()).hexdigest()[:32]
        headers = {"Idempotency-Key": key, **self.headers}
        if self.secret:
            signature = hmac.new(self.secret.encode(), body, hashlib.sha256).hexdigest()
            headers["X-Paceline-Signature"] = f"sha256={signature}"
        post(self.url, body, headers)


@dataclass(frozen=True)
class Slack:
    """An incoming webhook of Slack (or Mattermost)."""

    name: str
    url: str
    repeat_s: float = 0.0

    def send(self, notices: Sequence[Notice], now: float) -> None:
        """Send notices in one message."""
        paragraphs = [f"*{_slack(title_of(notices))}*"]
        for notice in notices[:MAX_NOTICES]:
            *lines, url = notice.lines()
            quote = "\n".join(f"> {_slack(line)}" for line in lines)
            paragraphs.append(f"<{url}|{_slack(notice.job)}>\n{quote}")
        if len(notices) > MAX_NOTICES:
            paragraphs.append(f"and {len(notices) - MAX_NOTICES} more")
        text = "\n".join(paragraphs)
        post(self.url, json.dumps({"text": text}).encode(), {})


@dataclass(frozen=True)
class Alertmanager:
    """Prometheus' Alertmanager (API v2), which groups and routes alerts itself.

    Attributes:
        name: of the channel.
        url: its root, without /api.
        headers: more headers.
    """

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    repeat_s: float = REPEAT_S

    def send(self, notices: Sequence[Notice], now: float) -> None:
        """Send notices."""
        body = json.dumps([_as_alertmanager(notice, now) for notice in notices]).encode()
        post(f"{self.url.rstrip('/')}/api/v2/alerts", body, self.headers)


def _as_alertmanager(notice: Notice, now: float) -> dict[str, Any]:
    labels = {_label(name): str(value) for name, value in notice.labels.items()}
    labels |= {
        "alertname": notice.rule,
        "job": notice.job,
        "project": notice.project,
        "severity": notice.importance,
    }
    details = {"cause": notice.cause, "where": notice.place, "gain": notice.gain}
    end = now + FORGET_S if notice.ended_at is None else notice.ended_at
    return {
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {
            "summary": notice.headline,
            **{name: text for name, text in details.items() if text},
        },
        "startsAt": rfc3339(notice.started_at),
        "endsAt": rfc3339(end),
        "generatorURL": notice.url,
    }


@dataclass(frozen=True)
class Email:
    """A mail server.

    Attributes:
        name: of the channel.
        host, port: of the server.
        sender, to: addresses.
        user, password: to log in; "" = without.
        security: "starttls", "tls" (from the first byte) or "none".
    """

    name: str
    host: str
    sender: str
    to: tuple[str, ...]
    port: int = 587
    user: str = ""
    password: str = ""
    security: str = "starttls"
    repeat_s: float = 0.0

    def send(self, notices: Sequence[Notice], now: float) -> None:
        """Send notices in one mail."""
        message = self._message(notices, now)
        try:
            with self._connected() as server:
                if self.user:
                    server.login(self.user, self.password)
                server.send_message(message)
        except (smtplib.SMTPException, OSError) as error:
            raise MonitorError(f"{self.host}:{self.port}: {_reason(error)}") from None

    def _message(self, notices: Sequence[Notice], now: float) -> EmailMessage:
        message = EmailMessage()
        message["Subject"] = " ".join(title_of(notices).split())
        message["From"], message["To"] = self.sender, ", ".join(self.to)
        message["Date"] = formatdate(now)
        domain = self.sender.rpartition("@")[2].strip("> ") or "localhost"
        message["Message-ID"] = f"<paceline-{notices[0].key}-{len(notices)}@{domain}>"
        # Mail programs show the messages of an alert together.
        roots = dict.fromkeys(f"<paceline-alert-{n.id}@{domain}>" for n in notices[:MAX_NOTICES])
        message["References"] = " ".join(roots)
        paragraphs = ["\n".join([n.title, *n.lines()]) for n in notices[:MAX_NOTICES]]
        if len(notices) > MAX_NOTICES:
            paragraphs.append(f"and {len(notices) - MAX_NOTICES} more")
        message.set_content("\n\n".join(paragraphs) + "\n")
        return message

    def _connected(self) -> smtplib.SMTP:
        if self.security == "tls":
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(self.host, self.port, timeout=TIMEOUT_S, context=context)
        server = smtplib.SMTP(self.host, self.port, timeout=TIMEOUT_S)
        if self.security == "starttls":
            try:
                server.starttls(context=ssl.create_default_context())
            except (smtplib.SMTPException, OSError):
                server.close()
                raise
        return server


def post(url: str, body: bytes, headers: Mapping[str, str], method: str = "POST") -> None:
    """Send JSON.

    Raises:
        MonitorError: there is no answer, or its status is not 2xx. The message never contains the
            URL's path, which is the secret of a hook.
    """
    request = urllib.request.Request(
        url,
        data=body,
        method=method,
        headers={"Content-Type": "application/json", "User-Agent": "paceline", **headers},
    )
    try:
        with urllib.request.build_opener(NoRedirect).open(request, timeout=TIMEOUT_S) as answer:
            answer.read(1 << 16)
    except urllib.error.HTTPError as error:
        with error:
            answer_text = " ".join(error.read(300).decode("utf-8", "replace").split())
        raise MonitorError(
            f"{request.host} answers {error.code}: {without_secrets(answer_text)}"
        ) from None
    except (OSError, HTTPException, ValueError) as error:
        raise MonitorError(f"{request.host}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError | socket.timeout):
        return f"no answer within {TIMEOUT_S:g} s"
    text = " ".join(str(getattr(reason, "strerror", None) or reason).split())
    return without_secrets(text or type(error).__name__)[:300]


def _slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _label(name: str) -> str:
    clean = "".join(c if c.isascii() and c.isalnum() else "_" for c in name) or "_"
    return f"_{clean}" if clean[0].isdigit() else clean


def rfc3339(at: float) -> str:
    """Seconds since 1970 in the form of RFC 3339."""
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
