"""Middleware around every request: its id, log line, security headers and counts."""

from __future__ import annotations

import errno
import logging
import re
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.exc import DBAPIError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.errors import PacelineError
from paceline.monitor.log import log, logger, request_id
from paceline.monitor.web.answers import error_response

#: Allow only our own files, without inline scripts or styles.
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
#: A report is one file with inline scripts; its sandbox has no rights of the origin.
REPORT_CSP = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; font-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_REPORT = re.compile(r"/(api/v1/)?sessions/\d+/report")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_REQUEST_ID = re.compile(r"[A-Za-z0-9-]{8,64}")
#: Upper bounds of the buckets of response times, seconds.
BUCKETS_S = (0.005, 0.02, 0.05, 0.1, 0.3, 0.5, 1.0, 3.0, 10.0)


@dataclass
class HttpCounts:
    """Counts of requests since the start; only the event loop's thread writes them.

    Attributes:
        requests: (method, handler, status) -> count.
        buckets: handler -> [bucket] count of responses; the last bucket is unbounded.
        seconds: handler -> total response time.
        running: requests in progress.
    """

    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    buckets: dict[str, list[int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    running: int = 0

    def add(self, method: str, handler: str, status: int, seconds: float) -> None:
        """Count a response."""
        self.requests[method, handler, status] += 1
        self.seconds[handler] = self.seconds.get(handler, 0.0) + seconds
        counts = self.buckets.setdefault(handler, [0] * (len(BUCKETS_S) + 1))
        counts[sum(seconds > end for end in BUCKETS_S)] += 1


class Envelope:
    """The outermost middleware: every request gets a response and a log line."""

    def __init__(self, app: ASGIApp, counts: HttpCounts) -> None:
        self.app, self._counts = app, counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        client_id = Headers(scope=scope).get("x-request-id", "")
        number = client_id if _REQUEST_ID.fullmatch(client_id) else secrets.token_hex(8)
        mark = request_id.set(number)
        answer = _Answer(scope, send, number)
        self._counts.running += 1
        began = time.perf_counter()
        try:
            await self._pass_on(scope, receive, answer)
        finally:
            self._counts.running -= 1
            seconds = time.perf_counter() - began
            handler = getattr(scope.get("endpoint"), "__name__", "none")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._counts.add(method, handler, answer.status, seconds)
            _line(scope, answer, seconds)
            request_id.reset(mark)

    async def _pass_on(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            await self.app(scope, receive, answer)
        except ClientDisconnect:
            answer.status = 499
        except Exception as error:
            if answer.started:
                raise
            await error_response(scope, _as_http(error))(scope, receive, answer)


_METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH")


class _Answer:
    """Sends a response with added headers, and records its status and size."""

    def __init__(self, scope: Scope, send: Send, number: str) -> None:
        self._scope, self._send, self._number = scope, send, number
        self.started, self.status, self.n_bytes = False, 0, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
            self._add_headers(MutableHeaders(raw=message["headers"]))
        elif message["type"] == "http.response.body":
            self.n_bytes += len(message.get("body", b""))
        await self._send(message)

    def _add_headers(self, headers: MutableHeaders) -> None:
        for name, value in _HEADERS.items():
            headers.setdefault(name, value)
        report = _REPORT.fullmatch(self._scope["path"])
        headers.setdefault("Content-Security-Policy", REPORT_CSP if report else CSP)
        headers.setdefault("Cache-Control", "no-store")
        if self._scope.get("scheme") == "https":
            headers.setdefault("Strict-Transport-Security", "max-age=31536000")
        headers["X-Request-Id"] = self._number


def _as_http(error: Exception) -> HTTPException:
    """The response to an uncaught exception."""
    if isinstance(error, PacelineError):
        return HTTPException(400, str(error))
    if isinstance(error, DBAPIError):
        log(logging.ERROR, "store", error=str(error.orig or error))
        return HTTPException(503, "the store cannot be used now", headers={"Retry-After": "5"})
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        log(logging.ERROR, "disk full", error=str(error))
        return HTTPException(503, "the disk is full", headers={"Retry-After": "60"})
    logger.error("unexpected error", exc_info=error)
    return HTTPException(500, "unexpected error; see the log for this request")


def _line(scope: Scope, answer: _Answer, seconds: float) -> None:
    """Never log the query or headers, which may hold secrets."""
    principal: Any = scope.get("state", {}).get("principal")
    client = scope.get("client")
    level = logging.WARNING if answer.status >= 400 else logging.INFO
    if scope["path"] in ("/healthz", "/readyz", "/metrics") or scope["path"].startswith("/static/"):
        level = logging.DEBUG if answer.status < 400 else level
    log(
        level,
        "request",
        method=scope["method"],
        path=scope["path"],
        status=answer.status,
        ms=round(seconds * 1000, 1),
        bytes=answer.n_bytes,
        who=principal.name if principal is not None else None,
        client=client[0] if client else None,
    )
