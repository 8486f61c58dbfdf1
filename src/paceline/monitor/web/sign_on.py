"""The login through an OpenID provider: redirect, callback with a code, cookie."""

from __future__ import annotations

import base64
import json
import logging
import secrets
from collections.abc import Callable
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from paceline.monitor.log import log
from paceline.monitor.sign_on.provider import Provider, ProviderAway, SignOnRefused
from paceline.monitor.sign_on.settings import SignOn, claim
from paceline.monitor.store.audit import Actor, note
from paceline.monitor.store.logins import begin_login
from paceline.monitor.web.answers import local_path
from paceline.monitor.web.cookies import drop_cookie, put_cookie
from paceline.monitor.web.security import COOKIE, Sessions, client_of, refusal
from paceline.monitor.web.templating import render

T = TypeVar("T")

BEGIN, BACK = "/login/oidc", "/login/oidc/callback"
#: The cookie between redirect and callback, and its life; only /login receives it.
PENDING, PENDING_S = "paceline_sign_on", 600
#: Most logins waiting for the provider at once, so that pages need not wait.
_AT_A_TIME = 8
_MAX_CHARACTERS = 200


def routes(service: Any, sessions: Sessions, failures: Callable[[str], float]) -> list[Route]:
    """Routes ``/login/oidc`` and its callback; none without a provider.

    Args:
        service: the service, with config, engine and clock.
        sessions: logins with the sign-on settings.
        failures: function of a client's address: seconds to wait, or 0.

    Raises:
        MonitorError: a package is missing.
    """
    if sessions.sign_on is None:
        return []
    settings, provider = sessions.sign_on, Provider(sessions.sign_on, service.clock)
    limiter = CapacityLimiter(_AT_A_TIME)
    redirect_uri = f"{service.config.url}{BACK}"

    async def of_provider(work: Callable[..., T], *args: Any) -> T:
        try:
            return await to_thread.run_sync(work, *args, limiter=limiter)
        except ProviderAway as error:
            log(logging.ERROR, "sign-on", reason=str(error))
            text = f"{settings.name} cannot be reached; you can log in with a token at /login"
            raise HTTPException(503, text, {"Retry-After": "10"}) from None

    async def begin(request: Request) -> Response:
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        to = local_path(request.query_params.get("next", "/"))
        address = await of_provider(provider.address, redirect_uri, state, nonce, verifier)
        until = int(service.clock()) + PENDING_S
        answer = RedirectResponse(address, 302)
        sealed = sessions.seal(_packed([state, nonce, verifier, to[:1000], until]))
        put_cookie(answer, request, PENDING, sealed, PENDING_S, path="/login")
        return answer

    async def back(request: Request) -> Response:
        try:
            answer = await welcome(request)
        except SignOnRefused as error:
            log(logging.WARNING, "sign-on refused", reason=str(error), client=client_of(request))
            wait = refusal(request, failures, "")
            if wait.status_code != 401:
                raise wait from None
            title = "Not logged in"
            text = f"{settings.name}: {error}. Begin again at /login."
            answer = render(request, "message.html", code=403, title=title, text=text, number="")
        drop_cookie(answer, request, PENDING, path="/login")
        return answer

    async def welcome(request: Request) -> Response:
        query, now = request.query_params, service.clock()
        pending = _unpacked(sessions.unseal(request.cookies.get(PENDING, "")))
        if pending is None or pending[4] <= now:
            raise SignOnRefused("this login began in another browser, or too long ago")
        state, nonce, verifier, to, _ = pending
        if not secrets.compare_digest(query.get("state", "").encode(), state.encode()):
            raise SignOnRefused("the answer belongs to another login (state)")
        await of_provider(provider.check_issuer, query.get("iss"))
        if "error" in query or not query.get("code"):
            raise SignOnRefused(f"it says {_plain(query.get('error', 'nothing'))}")
        claims = await of_provider(provider.claims, query["code"], redirect_uri, verifier, nonce)
        secret = await to_thread.run_sync(enter, claims, client_of(request), now)
        seconds = int(settings.hours * 3600)
        answer = RedirectResponse(to, 303)
        # Lax, because the browser returns from the provider's site and would withhold a Strict
        # cookie.
        put_cookie(answer, request, COOKIE, f"u.{secret}", seconds)
        return answer

    def enter(claims: dict[str, Any], client: str, now: float) -> str:
        """A login's secret."""
        name, groups = _user_of(claims, settings), _groups_of(claims, settings)
        rights = settings.rights(name, groups)
        subject = str(claims["sub"])[:_MAX_CHARACTERS]
        if not rights:
            by = Actor(name, "user", client)
            note(service.engine, by, "login-refused", f"{subject}: no grant", project="*", at=now)
            raise SignOnRefused(f"{name} has no right to any project here")
        return begin_login(
            service.engine,
            name=name,
            issuer=settings.issuer,
            subject=subject,
            groups=settings.counting(groups),
            now=now,
            expires_at=now + settings.hours * 3600,
            client=client,
            project=next(iter(rights)) if len(rights) == 1 else "*",
        )

    return [Route(BEGIN, begin, methods=["GET"]), Route(BACK, back, methods=["GET"])]


def _user_of(claims: dict[str, Any], settings: SignOn) -> str:
    """The user's name.

    Raises:
        SignOnRefused: the name is missing, or is an unverified e-mail address.
    """
    name = claim(claims, settings.user_claim)
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_CHARACTERS or not name.isprintable():
        raise SignOnRefused(f"it sends no {settings.user_claim}")
    if settings.user_claim == "email" and claims.get("email_verified") is not True:
        raise SignOnRefused("it has not verified the e-mail address; user_claim may name another")
    return name


def _groups_of(claims: dict[str, Any], settings: SignOn) -> list[str]:
    groups = claim(claims, settings.groups_claim)
    groups = [groups] if isinstance(groups, str) else groups
    return [group for group in groups if isinstance(group, str)] if isinstance(groups, list) else []


def _plain(text: str) -> str:
    """A query's text, cleaned because it is untrusted."""
    return "".join(c for c in text if c.isascii() and (c.isalnum() or c in "_-"))[:40]


def _packed(values: list[Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


def _unpacked(text: str | None) -> Any:
    return None if text is None else json.loads(base64.urlsafe_b64decode(text))
