"""The page of tokens, service accounts, logins and the log of actions, for administrators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from paceline.errors import MonitorError
from paceline.monitor.config import DAY_S
from paceline.monitor.store import accounts, audit, logins, queries, tokens
from paceline.monitor.web.access_api import MAX_DAYS, granted_project, number_of
from paceline.monitor.web.asked_project import reads
from paceline.monitor.web.bodies import form_of
from paceline.monitor.web.security import Principal, actor_of, require
from paceline.monitor.web.templating import render

PATH = "/access"
#: Actions on the page; the API has all.
_N_ACTS = 100


def routes(service: Any) -> list[Route]:
    """``/access`` and its buttons."""

    async def show(request: Request) -> Response:
        principal = require(request, "admin")
        return await run_in_threadpool(page, request, principal)

    def page(request: Request, principal: Principal, *, code: int = 200, **told: str) -> Response:
        """The page; ``told``: ``secret`` of the new token, or ``problem``."""
        engine, now = service.engine, service.clock()
        project = reads(request, principal)
        with engine.connect() as connection:
            firing = queries.count_firing(connection, project)
        return render(
            request,
            "access.html",
            code=code,
            title="Access",
            active="Access",
            firing=firing,
            now=now,
            project=project,
            here=f"?project={project}" if principal.has_several and project != "*" else "",
            scopes=tuple(tokens.SCOPES),
            tokens=tokens.list_tokens(engine, project)[::-1],
            accounts=accounts.list_accounts(engine, project)[::-1],
            logins=logins.current_logins(engine, now) if project == "*" else [],
            entries=audit.list_entries(engine, project, None, _N_ACTS),
            actions=audit.ACTIONS,
            base_url=service.config.url,
            **{"secret": "", "problem": "", **told},
        )

    def add_token(request: Request, principal: Principal, form: dict[str, str]) -> Response:
        project = granted_project(request, principal, form.get("project") or None)
        now = service.clock()
        _, secret = tokens.create_token(
            service.engine,
            form.get("name", "").strip(),
            scope=form.get("scope", ""),
            project=project,
            now=now,
            expires_at=_end(form, now, may_be_empty=False),
            by=actor_of(request),
        )
        return page(request, principal, secret=secret)

    def add_account(request: Request, principal: Principal, form: dict[str, str]) -> Response:
        accounts.create_account(
            service.engine,
            form.get("name", "").strip(),
            project=granted_project(request, principal, form.get("project") or None),
            scope=form.get("scope", ""),
            now=service.clock(),
            by=actor_of(request),
        )
        return _back(request)

    def add_account_token(request: Request, principal: Principal, form: dict[str, str]) -> Response:
        now = service.clock()
        _, secret = accounts.account_token(
            service.engine,
            number_of(request),
            reads(request, principal),
            now=now,
            expires_at=_end(form, now, may_be_empty=True),
            by=actor_of(request),
        )
        return page(request, principal, secret=secret)

    def end_token(request: Request, principal: Principal, _: dict[str, str]) -> Response:
        number, project = number_of(request), reads(request, principal)
        by = actor_of(request)
        tokens.revoke_token(service.engine, number, service.clock(), project=project, by=by)
        return _back(request)

    def end_account(request: Request, principal: Principal, _: dict[str, str]) -> Response:
        number, project = number_of(request), reads(request, principal)
        by = actor_of(request)
        accounts.disable_account(service.engine, number, project, service.clock(), by)
        return _back(request)

    def end_login(request: Request, principal: Principal, _: dict[str, str]) -> Response:
        if reads(request, principal) != "*":
            raise HTTPException(403, "logins are for an administrator of all projects")
        logins.end_login(service.engine, number_of(request), service.clock(), actor_of(request))
        return _back(request)

    def button(act: Callable[..., Response]) -> Any:
        async def answer(request: Request) -> Response:
            principal = require(request, "admin")
            form = await form_of(request)
            try:
                return await run_in_threadpool(act, request, principal, form)
            except MonitorError as error:
                problem = str(error).partition(";")[0]
                return await run_in_threadpool(
                    lambda: page(request, principal, code=400, problem=problem)
                )

        return answer

    buttons = (
        (f"{PATH}/tokens", add_token),
        (f"{PATH}/tokens/{{id}}/revoke", end_token),
        (f"{PATH}/accounts", add_account),
        (f"{PATH}/accounts/{{id}}/tokens", add_account_token),
        (f"{PATH}/accounts/{{id}}/disable", end_account),
        (f"{PATH}/logins/{{id}}/end", end_login),
    )
    posts = [Route(path, button(act), methods=["POST"]) for path, act in buttons]
    return [Route(PATH, show, methods=["GET"]), *posts]


def _end(form: dict[str, str], now: float, *, may_be_empty: bool) -> float | None:
    """The expiry of a token, by the form's ``days``.

    Raises:
        MonitorError: ``days`` is no valid number.
    """
    text = form.get("days", "").strip()
    if not text and may_be_empty:
        return None
    days = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
    if not 1 <= days <= MAX_DAYS:
        raise MonitorError(f"days must be a whole number from 1 to {MAX_DAYS}")
    return now + days * DAY_S


def _back(request: Request) -> Response:
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"{PATH}{query}", 303)
