"""Login and logout of the pages: a form takes a token, and a signed cookie is set."""

from __future__ import annotations

import contextlib
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from paceline.monitor.store.audit import Actor, note
from paceline.monitor.store.logins import end_login
from paceline.monitor.store.tokens import Token, find_token
from paceline.monitor.web.answers import local_path
from paceline.monitor.web.bodies import form_of
from paceline.monitor.web.cookies import drop_cookie, put_cookie
from paceline.monitor.web.security import COOKIE, Sessions, check_origin, client_of, refusal
from paceline.monitor.web.templating import render


def routes(service: Any, sessions: Sessions, failures: Any) -> list[Route]:
    """/login and /logout.

    Args:
        service: the service, with config, engine and clock.
        sessions: creator of the cookies.
        failures: function of a client's address: seconds to wait, or 0.
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
        await run_in_threadpool(note_login, token, client_of(request), now)
        answer = RedirectResponse(to, 303)
        put_cookie(answer, request, COOKIE, value, seconds, same_site="strict")
        return answer

    def note_login(token: Token, client: str, now: float) -> None:
        by = Actor(token.name, "token", client)
        # Reading works even if the disk is full.
        with contextlib.suppress(SQLAlchemyError):
            subject = f"token {token.id}"
            note(service.engine, by, "login", subject, project=token.project, at=now)

    def leave(request: Request) -> Response:
        check_origin(request, service.config.url)
        now = service.clock()
        login = sessions.login(request.cookies.get(COOKIE, ""), now)
        if login is not None:
            end_login(service.engine, login.id, now, Actor(login.name, "user", client_of(request)))
        answer = RedirectResponse("/login", 303)
        drop_cookie(answer, request, COOKIE)
        return answer

    def _form(request: Request, to: str, problem: str = "", status: int = 200) -> Response:
        fields = {"title": "Log in", "problem": problem, "next": to}
        return render(request, "login.html", code=status, sign_on=sessions.sign_on, **fields)

    return [
        Route("/login", login),
        Route("/login", enter, methods=["POST"]),
        Route("/logout", leave, methods=["POST"]),
    ]
