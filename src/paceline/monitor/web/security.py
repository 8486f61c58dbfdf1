"""The caller and the caller's rights: bearer tokens, and cookies for the pages.

A cookie names a token, or is the secret of an OpenID login. A request's principal is in
``request.state.principal``; a handler calls :func:`require` first. The middleware refuses writes
without a token before any handler runs.
"""

from __future__ import annotations

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
from paceline.monitor.sign_on.settings import SignOn
from paceline.monitor.store.audit import Actor
from paceline.monitor.store.logins import Login, find_login
from paceline.monitor.store.tokens import SCOPES, Token, find_token, token_by_id
from paceline.monitor.web.answers import error_response

COOKIE = "paceline_session"
#: Prefix of an OpenID login's cookie; a token's cookie begins with a number.
_OF_LOGIN = "u"
#: Lifetime of a login; its token may end it earlier.
SESSION_S = 7 * 86_400.0
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
#: Paths of the login, which change no data and need no token.
OPEN_PATHS = ("/login", "/logout")
#: Paths without authentication.
PROBES = ("/healthz", "/readyz")
#: Project for pushes of a principal without its own project.
DEFAULT_PROJECT = "default"


@dataclass(frozen=True)
class Principal:
    """The caller.

    Attributes:
        name: user, service account or token; "public" without one.
        project: the project that this request may see and write; "*" = all.
        scope: one of ``store.tokens.SCOPES``.
        kind: user, account, token or public.
        key: constant key of the token or login; "" without one.
        projects: projects that a user of several may request, and "*".
    """

    name: str
    project: str
    scope: str
    kind: str = "public"
    key: str = ""
    projects: tuple[str, ...] = ()

    def may(self, scope: str) -> bool:
        """Whether it has a scope."""
        return scope in SCOPES[self.scope]

    @property
    def has_several(self) -> bool:
        """Whether its requests may have several projects, so that links must name one."""
        return self.project == "*" or len(self.projects) > 1

    def sees(self, project: str) -> bool:
        """Whether it may access a project."""
        return self.project in ("*", project)

    @property
    def writes_to(self) -> str:
        """The project for its pushes."""
        return DEFAULT_PROJECT if self.project == "*" else self.project


PUBLIC = Principal("public", "*", "read")


def actor_of(request: HTTPConnection) -> Actor:
    """The caller, for the log of actions."""
    principal: Principal = request.state.principal
    return Actor(principal.name, principal.kind, client_of(request))


def client_of(request: HTTPConnection) -> str:
    """The client's address."""
    return request.client.host if request.client else ""


def require(request: HTTPConnection, scope: str) -> Principal:
    """The principal of a request; requires ``scope``.

    Raises:
        HTTPException: 401 without a token, 403 without the scope.
    """
    principal: Principal | None = getattr(request.state, "principal", None)
    if principal is None or (principal is PUBLIC and not principal.may(scope)):
        raise HTTPException(
            401,
            "a token is needed; send Authorization: Bearer TOKEN, or log in at /login",
            headers={"WWW-Authenticate": "Bearer"},
        )
    if not principal.may(scope):
        owner = "you have" if principal.kind == "user" else "this token has"
        raise HTTPException(403, f"{owner} the scope {principal.scope}; {scope} is needed")
    return principal


class Sessions:
    """Logins of the pages: a signed cookie names a token, which is looked up each time.

    An OpenID user has a cookie with the secret of a login, which is also looked up.

    Attributes:
        sign_on: settings of the OpenID provider; None = tokens only.
    """

    def __init__(self, service: Any, sign_on: SignOn | None) -> None:
        self._service, self.sign_on = service, sign_on
        self._key = _key(Path(service.config.data) / "cookie.key")

    def cookie(self, token: Token, now: float) -> tuple[str, int]:
        """The cookie of a token, and its lifetime in seconds."""
        until = min(now + SESSION_S, token.expires_at or float("inf"))
        text = f"{token.id}.{int(until)}"
        return f"{text}.{self._sign(text)}", max(0, int(until - now))

    def token(self, cookie: str, now: float) -> Token | None:
        """The token of a cookie; None if the cookie or the token is invalid."""
        text, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(text).encode()):
            return None
        number, _, until = text.partition(".")
        token = token_by_id(self._service.engine, int(number)) if int(until) > now else None
        return token if token is not None and token.problem(now) is None else None

    def login(self, cookie: str, now: float) -> Login | None:
        """The login of a cookie; None if it is invalid."""
        kind, _, secret = cookie.partition(".")
        if kind != _OF_LOGIN or self.sign_on is None:
            return None
        login = find_login(self._service.engine, secret, now)
        # If the settings file changed, logins of another provider are invalid.
        return login if login is not None and login.issuer == self.sign_on.issuer else None

    def principal(self, cookie: str, now: float, asked: str | None) -> Principal | None:
        """The caller of a cookie; None if it is invalid.

        Args:
            cookie: cookie of a token or login.
            now: seconds since 1970.
            asked: requested project of a user with several.
        """
        if not cookie.startswith(f"{_OF_LOGIN}."):
            token = self.token(cookie, now)
            return None if token is None else _of(token)
        login = self.login(cookie, now)
        if login is None or self.sign_on is None:
            return None
        rights = self.sign_on.rights(login.name, login.groups)
        if not rights:  # the file no longer grants anything
            return None
        projects = tuple(sorted(rights))  # "*" is the first
        project = asked if asked in rights else projects[0]
        return Principal(
            login.name, project, rights[project], "user", f"login {login.id}", projects
        )

    def seal(self, text: str) -> str:
        """Sign a text for a cookie."""
        return f"{text}.{self._sign(f'sign-on {text}')}"

    def unseal(self, sealed: str) -> str | None:
        """The text signed by :meth:`seal`; None if the signature is invalid."""
        text, _, signature = sealed.rpartition(".")
        good = hmac.compare_digest(signature.encode(), self._sign(f"sign-on {text}").encode())
        return text if good else None

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode("utf-8", "surrogateescape"), "sha256").hexdigest()


class Authentication:
    """Middleware that authenticates requests.

    Args:
        app: protected application.
        service: the service, with config, engine and clock.
        sessions: logins of the pages.
        failures: function of the address of a client with a wrong token: seconds to wait, or 0.
    """

    def __init__(self, app: ASGIApp, service: Any, sessions: Sessions, failures: Any) -> None:
        self.app, self._service, self._sessions, self._failures = app, service, sessions, failures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process a request with its principal, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        state: MutableMapping[str, Any] = scope.setdefault("state", {})
        if scope["path"] in PROBES:  # they reveal nothing, and must work without the store
            state["principal"] = None
            await self.app(scope, receive, send)
            return
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
            asked = request.query_params.get("project")
            principal = await run_in_threadpool(self._sessions.principal, cookie, now, asked)
            if principal is not None:
                if request.method not in SAFE_METHODS:
                    check_origin(request, self._service.config.url)
                return principal
        return PUBLIC if self._service.config.public_read else None


def _of(token: Token) -> Principal:
    kind = "token" if token.account_id is None else "account"
    return Principal(token.name, token.project, token.scope, kind, f"token {token.id}")


def _check_write(request: Request, principal: Principal | None) -> None:
    """Refuse writes without a permitted token, for every path."""
    writes = request.method not in SAFE_METHODS and request.scope["path"] not in OPEN_PATHS
    if writes and (principal is None or not principal.may("push")):
        require(request, "push")


def refusal(request: Request, failures: Any, message: str) -> HTTPException:
    """The response to a wrong token: 401, or 429 after too many from one address."""
    seconds = failures(client_of(request))
    if seconds:
        headers = {"Retry-After": str(int(seconds) + 1)}
        return HTTPException(429, "too many wrong tokens", headers=headers)
    return HTTPException(401, message, headers={"WWW-Authenticate": "Bearer"})


def check_origin(request: Request, url: str) -> None:
    """Refuse forms of other sites, which must not act for a user, or log one in or out.

    SameSite also prevents the former; not all browsers send ``Sec-Fetch-Site``.

    Args:
        request: request with a cookie, or for the login.
        url: public URL of the service, as a proxy may change the Host header.

    Raises:
        HTTPException: 403, the request comes from another site.
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
    """The key that signs cookies, created at the first start; only its owner can read the file."""
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
        raise MonitorError(f"{path} is damaged; remove it (all users must log in again)")
    return key
