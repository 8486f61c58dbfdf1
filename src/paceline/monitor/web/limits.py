"""Limits on the size and speed of bodies, and on the rate of requests per token."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Container
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.monitor.config import MIB
from paceline.monitor.log import log
from paceline.monitor.projects import Projects
from paceline.monitor.web.answers import error_response

#: Longest pause of a body, its total seconds, and the bytes that add one second.
BODY_PAUSE_S, BODY_GRACE_S, BODY_BYTES_PER_S = 20.0, 30.0, 16 << 10
#: Most bytes of all bodies in memory; chunks of uploads go to disk.
MAX_HELD_BYTES = 256 * MIB
#: Keys with a stored rate; beyond, the longest idle key is dropped.
_MAX_KEYS = 10_000
#: Most open event streams of a token, or of an address without one.
MAX_STREAMS = 50
#: Log lines per minute about an address with too many connections.
_LOGS_PER_MINUTE = 1
#: Wrong tokens per minute and address before the status 429.
WRONG_TOKENS_PER_MINUTE = 30


class Rates:
    """Token buckets: each key may take ``per_minute``, and a minute's amount at once."""

    def __init__(self, per_minute: float) -> None:
        self._per_minute = per_minute
        self._credit: OrderedDict[Any, tuple[float, float]] = OrderedDict()  # key -> left, time

    def take(self, key: Any, amount: float = 1.0) -> float:
        """Take ``amount`` and return 0, or take nothing and return the seconds to wait.

        A key that has taken nothing may take more than a minute's amount.
        """
        now = time.monotonic()
        credit, since = self._credit.pop(key, (self._per_minute, now))
        credit = min(self._per_minute, credit + (now - since) * self._per_minute / 60)
        price = min(amount, self._per_minute)
        granted = credit >= price
        self._credit[key] = (credit - price if granted else credit, now)
        if len(self._credit) > _MAX_KEYS:
            self._credit.popitem(last=False)
        return 0.0 if granted else (price - credit) * 60 / self._per_minute


class Connections:
    """Counts open connections per address; only the event loop's thread uses it.

    Args:
        most: limit per address.
        proxies: addresses with many clients; they and this machine's own are exempt.
    """

    def __init__(self, most: int, proxies: Container[str]) -> None:
        self._most, self._proxies = most, proxies
        self._open: Counter[str] = Counter()
        self._log_rate = Rates(_LOGS_PER_MINUTE)

    def enter(self, address: str) -> bool:
        """Count a connection; returns False without counting above the limit."""
        if self._open[address] >= self._most and not self._is_free(address):
            if not self._log_rate.take(address):
                log(logging.WARNING, "too many connections", client=address, open=self._most)
            return False
        self._open[address] += 1
        return True

    def leave(self, address: str) -> None:
        """End a counted connection."""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def _is_free(self, address: str) -> bool:
        return address in self._proxies or _is_local(address)


def _is_local(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # a socket without an address
        return True


class ProjectRates:
    """Step samples of projects with their own limit."""

    def __init__(self, projects: Projects) -> None:
        self._rates = {
            name: Rates(limits.step_samples_per_minute)
            for name, limits in projects.named.items()
            if limits.step_samples_per_minute
        }

    def take(self, project: str, amount: float) -> float:
        """Take ``amount``; returns 0, or the seconds to wait."""
        rates = self._rates.get(project)
        return 0.0 if rates is None else rates.take(project, amount)


def take_samples(request: HTTPConnection, n_samples: int) -> None:
    """Count step samples against the project and the token of a request.

    Raises:
        HTTPException: 429, too many samples in this minute.
    """
    project = request.query_params.get("project", request.state.principal.writes_to)
    seconds = request.app.state.project_rates.take(project, n_samples)
    _refuse(seconds, f"step samples of {project}")
    rates: Rates = request.app.state.sample_rates
    _refuse(rates.take(request.state.principal.key, n_samples), "step samples")


def _refuse(seconds: float, noun: str) -> None:
    if seconds:
        headers = {"Retry-After": str(int(seconds) + 1)}
        raise HTTPException(429, f"too many {noun} in a minute", headers=headers)


class Limits:
    """Middleware that refuses bodies that are too large or slow, and too frequent requests."""

    def __init__(self, app: ASGIApp, service: Any) -> None:
        self.app = app
        self._upload_bytes = service.config.max_upload_mib * MIB
        self._body_bytes = service.config.max_body_mib * MIB
        self._requests = Rates(service.config.requests_per_minute)
        self._streams: Counter[Any] = Counter()
        self._memory = _BodyMemory()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process a request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        most = self._upload_bytes if is_upload(scope) else self._body_bytes
        try:
            self._count(scope)
            _check_length(scope, most)
        except HTTPException as error:
            await error_response(scope, error)(scope, receive, send)
            return
        if scope["path"] == "/events":
            await self._stream(scope, receive, send)
        else:
            body = _Body(receive, most, self._memory, MIB if is_upload(scope) else most)
            try:
                await self.app(scope, body, send)
            finally:
                body.release()

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Limit streams, which hold their connections for a long time."""
        key = _asker(scope)
        if self._streams[key] >= MAX_STREAMS:
            error = HTTPException(429, "too many open streams", headers={"Retry-After": "60"})
            await error_response(scope, error)(scope, receive, send)
            return
        self._streams[key] += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self._streams[key] -= 1
            if not self._streams[key]:
                del self._streams[key]

    def _count(self, scope: Scope) -> None:
        if is_upload(scope) or _is_stream(scope) or scope["path"].startswith("/static/"):
            return
        _refuse(self._requests.take(_asker(scope)), "requests")


def _asker(scope: Scope) -> Any:
    """The number of the token or login, else the client's address."""
    principal = scope["state"].get("principal")
    if principal is not None and principal.key:
        return principal.key
    return (scope.get("client") or ("", 0))[0]


def is_upload(scope: Scope) -> bool:
    """Whether a request has a part of a trace."""
    return bool(scope["method"] == "PUT" and scope["path"].startswith("/api/v1/uploads/"))


def _is_stream(scope: Scope) -> bool:
    path: str = scope["path"]
    steps = path == "/api/v1/steps" or (
        path.startswith("/api/v1/jobs/") and path.endswith("/steps")
    )
    health = path in ("/healthz", "/readyz")
    return (scope["method"] == "POST" and (steps or path == "/v1/traces")) or health


def _check_length(scope: Scope, most: int) -> None:
    length = Headers(scope=scope).get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise HTTPException(400, "Content-Length must be a number")
    if len(length) > 15 or int(length) > most:
        raise _too_large(most)


def _too_large(most: int) -> HTTPException:
    # The rest of the body is unread, so close the connection.
    headers = {"Connection": "close"}
    return HTTPException(413, f"a body may have at most {most:,} bytes", headers=headers)


class _BodyMemory:
    """Bytes of received, unprocessed bodies; only the event loop's thread writes it."""

    n_bytes = 0


class _Body:
    """Receives a body within the limits of size, speed and total memory."""

    def __init__(self, receive: Receive, most: int, memory: _BodyMemory, keeps: int) -> None:
        self._receive, self._most, self._memory, self._keeps = receive, most, memory, keeps
        self._n_bytes, self._waited_s, self._is_complete = 0, 0.0, False

    async def __call__(self) -> Message:
        if self._is_complete:  # further messages only end the connection
            return await self._receive()
        allowed_s = BODY_GRACE_S + self._n_bytes / BODY_BYTES_PER_S - self._waited_s
        began = time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), min(BODY_PAUSE_S, allowed_s))
        except TimeoutError:
            headers = {"Connection": "close"}
            raise HTTPException(408, "the body did not arrive in time", headers=headers) from None
        self._waited_s += time.monotonic() - began
        self._count(len(message.get("body", b"")))
        self._is_complete = not message.get("more_body", False)
        return message

    def _count(self, n_bytes: int) -> None:
        before = min(self._n_bytes, self._keeps)
        self._n_bytes += n_bytes
        self._memory.n_bytes += min(self._n_bytes, self._keeps) - before
        if self._n_bytes > self._most:
            raise _too_large(self._most)
        if self._memory.n_bytes > MAX_HELD_BYTES:
            headers = {"Connection": "close", "Retry-After": "5"}
            raise HTTPException(429, "too much data is being sent at once", headers=headers)

    def release(self) -> None:
        """End the request."""
        self._memory.n_bytes -= min(self._n_bytes, self._keeps)
