"""The login of the pages: a token in a form, a signed cookie in return."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from paceline.monitor.store.tokens import find_token
from paceline.monitor.web.answers import local_path
from paceline.monitor.web.bodies import form_of
from paceline.monitor.web.security import COOKIE, Sessions, check_origin, refusal
from paceline.monitor.web.templating import render


def routes(service: Any, sessions: Sessions, failures: Any) -> list[Route]:
    """/login and /logout.

    Args:
        service: has config, engine and clock.
        sessions: makes the cookies.
        failures: takes a client's address; seconds to wait, or 0.
    """

    def login(request: Request) -> Response:
        return _form(request, local_path(request.query_params.get("next", "/")))

    async def enter(request: Request) -> Response:
        check_origin(request, service.config.url)
        form = await form_of(request)
        secret, to = form.get("token", "").strip(), local_path(form.get("next", "/"))
        now = service.clock()
        token = await run_in_threadpool(find_token, service.engine, secret, now)
        problem = "is not known" if token is None else token.problem(now)
        if token is None or problem:
            error = refusal(request, failures, f"This token {problem}.")
            if error.status_code != 401:
                raise error
            return _form(request, to, error.detail, 401)
        value, seconds = sessions.cookie(token, now)
        answer = RedirectResponse(to, 303)
        answer.set_cookie(
            COOKIE,
            value,
            max_age=seconds,
            path="/",
            secure=_is_https(request),
            httponly=True,
            samesite="strict",
        )
        return answer

    def leave(request: Request) -> Response:
        check_origin(request, service.config.url)
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(
            COOKIE, path="/", secure=_is_https(request), httponly=True, samesite="strict"
        )
        return answer

    def _is_https(request: Request) -> bool:
        # Behind a proxy that ends TLS only the address that users know says so.
        return "https" in (request.scope["scheme"], urlsplit(service.config.url).scheme)

    return [
        Route("/login", login),
        Route("/login", enter, methods=["POST"]),
        Route("/logout", leave, methods=["POST"]),
    ]


def _form(request: Request, to: str, problem: str = "", status: int = 200) -> Response:
    fields = {"title": "Log in", "problem": problem, "next": to}
    return render(request, "login.html", code=status, **fields)
