"""The service's log: a JSON object a line on standard error, with request ids, without secrets."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from contextvars import ContextVar
from typing import Any

#: The id of the present request; "" outside of requests.
request_id: ContextVar[str] = ContextVar("request_id", default="")

logger = logging.getLogger("paceline.monitor")

#: Patterns of secrets: tokens, passwords in URLs, text after Bearer, Basic and GenieKey, hooks of
#: Slack.
_SECRETS = (
    (re.compile(r"pcl_[A-Za-z0-9_-]+"), "pcl_***"),
    (re.compile(r"(://[^/\s:@]*):[^/\s@]+@"), r"\1:***@"),
    (re.compile(r"(?i)\b(bearer|basic|geniekey)\s+[A-Za-z0-9._~+/=-]{8,}"), r"\1 ***"),
    (re.compile(r"(hooks\.slack\.com/)\S+"), r"\1***"),
    (
        re.compile(
            r"(?i)(password|secret|token|session|routing_key)(['\"]?\s*[=:]\s*)[^\s,;&'\"}]+"
        ),
        r"\1\2***",
    ),
)
#: Longest text of a field, for clients choose their requests.
_MAX_CHARACTERS = 2000


def without_secrets(text: str) -> str:
    """The text without possible secrets."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        entry: dict[str, Any] = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if request_id.get():
            entry["request"] = request_id.get()
        entry.update(getattr(record, "fields", {}))
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps({key: _safe(value) for key, value in entry.items()})


def log(level: int, event: str, **fields: Any) -> None:
    """Write a line with some fields."""
    logger.log(level, event, extra={"fields": fields})


def configure(level: str) -> None:
    """Send this log and uvicorn's to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("paceline.monitor", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name != "uvicorn.error" else []
        logger.setLevel(level.upper() if name == "paceline.monitor" else "WARNING")
        logger.propagate = name == "uvicorn.error"


def _safe(value: Any) -> Any:
    if isinstance(value, str):
        return without_secrets(value)[: 10 * _MAX_CHARACTERS if "\n" in value else _MAX_CHARACTERS]
    return value if isinstance(value, int | float | bool | None) else _safe(str(value))
