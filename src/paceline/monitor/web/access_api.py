"""Tokens, service accounts, logins and the log of actions over HTTP."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paceline.errors import MonitorError
from paceline.monitor.config import DAY_S, MIB
from paceline.monitor.store import accounts, audit, logins, tokens
from paceline.monitor.web.asked_project import reads
from paceline.monitor.web.bodies import MAX_ID, Body, bad, read_body, whole_number, whole_parameter
from paceline.monitor.web.refusals import Handler, with_refusals
from paceline.monitor.web.security import Principal, actor_of, require

#: Longest life of a token made over HTTP.
MAX_DAYS = 3660
_PAGE, _MAX_ROWS = 100, 1000

_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._ @-]{1,100}\Z")]
_Project = Annotated[str, Meta(pattern=r"^(\*|[A-Za-z0-9._-]{1,100})\Z")]
_Days = Annotated[float, Meta(gt=0, le=MAX_DAYS)]


class NewToken(msgspec.Struct, frozen=True):
    """The body of ``POST /api/v1/tokens``; ``project`` None = the request's."""

    name: _Name
    scope: str
    days: _Days
    project: _Project | None = None


class NewAccount(msgspec.Struct, frozen=True):
    """The body of ``POST /api/v1/accounts``; ``project`` None = the request's."""

    name: _Name
    scope: str
    project: _Project | None = None


class NewAccountToken(msgspec.Struct, frozen=True):
    """The body of ``POST /api/v1/accounts/{id}/tokens``; ``days`` None = without end."""

    days: _Days | None = None


def granted_project(request: Request, principal: Principal, project: str | None) -> str:
    """The project of new tokens, if the caller may use it; None = the request's.

    Raises:
        HTTPException: 404, the caller may not use the project.
    """
    project = reads(request, principal) if project is None else project
    if not principal.sees(project):
        raise HTTPException(404, "there is no such project")
    return project


def number_of(request: Request) -> int:
    """The number in the path; 0 for any other text."""
    return whole_number(request.path_params["id"])


def routes(service: Any) -> list[Route]:
    """/api/v1/tokens, /api/v1/accounts, /api/v1/logins and /api/v1/audit."""
    engine, clock = service.engine, service.clock

    async def list_tokens(request: Request) -> Response:
        project = reads(request, require(request, "admin"))
        rows = await run_in_threadpool(tokens.list_tokens, engine, project)
        return JSONResponse({"tokens": [asdict(row) for row in rows]})

    async def add_token(request: Request) -> Response:
        principal = require(request, "admin")
        new = await read_body(request, MIB, _decoder(NewToken))
        project = granted_project(request, principal, new.project)
        _check_scope(new.scope)
        by, now = actor_of(request), clock()
        token, secret = await run_in_threadpool(
            lambda: tokens.create_token(
                engine,
                new.name,
                scope=new.scope,
                project=project,
                now=now,
                expires_at=now + new.days * DAY_S,
                by=by,
            )
        )
        return JSONResponse({**asdict(token), "token": secret})

    async def end_token(request: Request) -> Response:
        project = reads(request, require(request, "admin"))
        number, now, by = number_of(request), clock(), actor_of(request)
        work = lambda: tokens.revoke_token(engine, number, now, project=project, by=by)  # noqa: E731
        await _or_404(work, "there is no such token")
        return JSONResponse({"id": number, "status": "revoked"})

    async def list_accounts(request: Request) -> Response:
        project = reads(request, require(request, "admin"))
        rows = await run_in_threadpool(accounts.list_accounts, engine, project)
        return JSONResponse({"accounts": [asdict(row) for row in rows]})

    async def add_account(request: Request) -> Response:
        principal = require(request, "admin")
        new = await read_body(request, MIB, _decoder(NewAccount))
        project = granted_project(request, principal, new.project)
        _check_scope(new.scope)
        by, now = actor_of(request), clock()
        try:
            account = await run_in_threadpool(
                lambda: accounts.create_account(
                    engine, new.name, project=project, scope=new.scope, now=now, by=by
                )
            )
        except MonitorError as error:
            raise HTTPException(409, str(error)) from None
        return JSONResponse(asdict(account))

    async def add_account_token(request: Request) -> Response:
        project = reads(request, require(request, "admin"))
        new = await read_body(request, MIB, _decoder(NewAccountToken))
        number, now, by = number_of(request), clock(), actor_of(request)
        expires_at = None if new.days is None else now + new.days * DAY_S
        token, secret = await _or_404(
            lambda: accounts.account_token(
                engine, number, project, now=now, expires_at=expires_at, by=by
            ),
            "there is no such service account",
        )
        return JSONResponse({**asdict(token), "token": secret})

    async def end_account(request: Request) -> Response:
        project = reads(request, require(request, "admin"))
        number, now, by = number_of(request), clock(), actor_of(request)
        await _or_404(
            lambda: accounts.disable_account(engine, number, project, now, by),
            "there is no such service account",
        )
        return JSONResponse({"id": number, "status": "disabled"})

    async def list_logins(request: Request) -> Response:
        _require_all(request)
        rows = await run_in_threadpool(logins.current_logins, engine, clock())
        return JSONResponse({"logins": [asdict(row) for row in rows]})

    async def end_login(request: Request) -> Response:
        _require_all(request)
        number, by = number_of(request), actor_of(request)
        if not await run_in_threadpool(logins.end_login, engine, number, clock(), by):
            raise HTTPException(404, "there is no such login")
        return JSONResponse({"id": number, "status": "ended"})

    async def list_audit(request: Request) -> Response:
        project = reads(request, require(request, "admin"))
        before = whole_parameter(request, "after", None, MAX_ID)
        limit = whole_parameter(request, "limit", _PAGE, _MAX_ROWS) or _PAGE
        rows = await run_in_threadpool(audit.list_entries, engine, project, before, limit)
        following = rows[-1]["id"] if len(rows) == limit else None
        return JSONResponse({"entries": rows, "next": following})

    v1 = "/api/v1"
    table: tuple[tuple[str, str, Handler], ...] = (
        ("GET", f"{v1}/tokens", list_tokens),
        ("POST", f"{v1}/tokens", add_token),
        ("DELETE", f"{v1}/tokens/{{id}}", end_token),
        ("GET", f"{v1}/accounts", list_accounts),
        ("POST", f"{v1}/accounts", add_account),
        ("DELETE", f"{v1}/accounts/{{id}}", end_account),
        ("POST", f"{v1}/accounts/{{id}}/tokens", add_account_token),
        ("GET", f"{v1}/logins", list_logins),
        ("DELETE", f"{v1}/logins/{{id}}", end_login),
        ("GET", f"{v1}/audit", list_audit),
    )
    return [
        Route(path, with_refusals(handler), methods=[method]) for method, path, handler in table
    ]


def _require_all(request: Request) -> None:
    """A login may cover several projects, so only an administrator of all projects sees it."""
    if reads(request, require(request, "admin")) != "*":
        raise HTTPException(403, "logins are for an administrator of all projects")


def _check_scope(scope: str) -> None:
    if scope not in tokens.SCOPES:
        raise bad(f"scope must be one of {', '.join(tokens.SCOPES)}")


def _decoder(kind: Any) -> Any:
    def decode(body: Body) -> Any:
        return body.decode(kind)

    return decode


async def _or_404(work: Any, message: str) -> Any:
    """The result; ``message`` if the caller may not see the object."""
    try:
        return await run_in_threadpool(work)
    except MonitorError:
        raise HTTPException(404, message) from None
