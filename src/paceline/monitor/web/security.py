"""The caller and the caller's rights: bearer tokens, and a cookie for the pages.

A request's principal is in ``request.state.principal``; a handler calls :func:`require` first.
Without a token nothing can be written: the middleware refuses that before any handler runs.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from paceline.errors import MonitorError
from paceline.monitor.store.tokens import Token, find_token, token_by_id
from paceline.monitor.web.answers import error_response

COOKIE = "paceline_session"
#: How long a login is good; its token may end it earlier.
SESSION_S = 7 * 86_400.0
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
#: Paths that change no data and need no token: the login itself.
OPEN_PATHS = ("/login", "/logout")
#: Project for the pushes of a principal without a project of its own.
DEFAULT_PROJECT = "default"


@dataclass(frozen=True)
class Principal:
    """The caller.

    Attributes:
        name: of the token; "public" without one.
        project: the only one it may see and write; "*" = all.
        scope: push, read, or admin, which includes both.
        token_id: number of the token, 0 without one.
    """

    name: str
    project: str
    scope: str
    token_id: int = 0

    def may(self, scope: str) -> bool:
        """Whether it has a scope."""
        return self.scope in (scope, "admin")

    def sees(self, project: str) -> bool:
        """Whether a project is within its reach."""
        return self.project in ("*", project)

    @property
    def writes_to(self) -> str:
        """The project of its pushes."""
        return DEFAULT_PROJECT if self.project == "*" else self.project


PUBLIC = Principal("public", "*", "read")


def require(request: HTTPConnection, scope: str) -> Principal:
    """The principal of a request, which has ``scope``.

    Raises:
        HTTPException: 401 without a token, 403 with one that may not.
    """
    principal: Principal | None = getattr(request.state, "principal", None)
    if principal is None or (principal is PUBLIC and not principal.may(scope)):
        raise HTTPException(
            401,
            "a token is needed; send Authorization: Bearer TOKEN, or log in at /login",
            headers={"WWW-Authenticate": "Bearer"},
        )
    if not principal.may(scope):
        raise HTTPException(403, f"this token has the scope {principal.scope}; {scope} is needed")
    return principal


class Sessions:
    """Logins of the pages: a signed cookie that names a token, which is looked up each time."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self._key = _key(Path(service.config.data) / "cookie.key")

    def cookie(self, token: Token, now: float) -> tuple[str, int]:
        """The cookie of a token, and for how many seconds it is good."""
        until = min(now + SESSION_S, token.expires_at or float("inf"))
        text = f"{token.id}.{int(until)}"
        return f"{text}.{self._sign(text)}", max(0, int(until - now))

    def token(self, cookie: str, now: float) -> Token | None:
        """The token of a cookie; None if the cookie or the token is no longer good."""
        text, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(text).encode()):
            return None
        number, _, until = text.partition(".")
        token = token_by_id(self._service.engine, int(number)) if int(until) > now else None
        return token if token is not None and token.problem(now) is None else None

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


class Authentication:
    """Middleware that finds out who asks.

    Args:
        app: the protected app.
        service: has config, engine and clock.
        sessions: the logins.
        failures: takes the address of a client that sent a wrong token; seconds to wait, or 0.
    """

    def __init__(self, app: ASGIApp, service: Any, sessions: Sessions, failures: Any) -> None:
        self.app, self._service, self._sessions, self._failures = app, service, sessions, failures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its principal, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        state: MutableMapping[str, Any] = scope.setdefault("state", {})
        try:
            state["principal"] = await self._principal(request)
            _check_write(request, state["principal"])
        except HTTPException as error:
            await error_response(scope, error)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    async def _principal(self, request: Request) -> Principal | None:
        now = self._service.clock()
        header = request.headers.get("authorization")
        if header is not None:
            kind, _, secret = header.strip().partition(" ")
            secret = secret.strip()
            good = kind.lower() == "bearer" and 0 < len(secret) <= 200
            token = None
            if good:
                token = await run_in_threadpool(find_token, self._service.engine, secret, now)
            problem = "is not known" if token is None else token.problem(now)
            if token is None or problem:
                raise refusal(request, self._failures, f"the token {problem}")
            return _of(token)
        cookie = request.cookies.get(COOKIE)
        if cookie:
            token = await run_in_threadpool(self._sessions.token, cookie, now)
            if token is not None:
                if request.method not in SAFE_METHODS:
                    check_origin(request, self._service.config.url)
                return _of(token)
        return PUBLIC if self._service.config.public_read else None


def _of(token: Token) -> Principal:
    return Principal(token.name, token.project, token.scope, token.id)


def _check_write(request: Request, principal: Principal | None) -> None:
    """Nobody writes without a token that may, whatever the path and whoever handles it."""
    writes = request.method not in SAFE_METHODS and request.scope["path"] not in OPEN_PATHS
    if writes and (principal is None or not principal.may("push")):
        require(request, "push")


def refusal(request: Request, failures: Any, message: str) -> HTTPException:
    """The answer to a wrong token: 401, or 429 where an address sends too many."""
    seconds = failures(request.client.host if request.client else "")
    if seconds:
        headers = {"Retry-After": str(int(seconds) + 1)}
        return HTTPException(429, "too many wrong tokens", headers=headers)
    return HTTPException(401, message, headers={"WWW-Authenticate": "Bearer"})


def check_origin(request: Request, url: str) -> None:
    """A form of another site must not act for who is logged in, nor log anybody in or out.

    SameSite=Strict says so for the first, too; not all browsers send ``Sec-Fetch-Site``.

    Args:
        request: with a cookie, or for the login.
        url: how users reach the service; a proxy may have changed the Host.

    Raises:
        HTTPException: 403, it comes from another site.
    """
    origin = request.headers.get("origin")
    own = (urlsplit(url).netloc, request.headers.get("host"))
    here = origin is None or origin.partition("://")[2] in own
    if not here or request.headers.get("sec-fetch-site", "same-origin") not in (
        "same-origin",
        "none",
    ):
        raise HTTPException(403, "the request comes from another site")


def _key(path: Path) -> bytes:
    """The key that signs cookies, made at the first start; its file is its owner's only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        key = path.read_bytes()
    else:
        key = secrets.token_bytes(32)
        with os.fdopen(number, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
    if len(key) != 32:
        raise MonitorError(f"{path} is damaged; remove it (everybody has to log in again)")
    return key
