"""Alerts, acknowledgements and silences over HTTP."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paceline.monitor.config import MIB
from paceline.monitor.store import acknowledgements, queries
from paceline.monitor.store import alerts as store
from paceline.monitor.web.alert_groups import group_of
from paceline.monitor.web.asked_project import reads
from paceline.monitor.web.bodies import (
    Body,
    bad,
    checked_name,
    read_body,
    whole_number,
    whole_parameter,
)
from paceline.monitor.web.refusals import Handler
from paceline.monitor.web.security import actor_of, require

_STATUSES = ("", "firing", "resolved")
_MAX_HOURS = 24.0 * 366
_PAGE, _MAX_ROWS = 100, 1000


class NewSilence(msgspec.Struct, frozen=True):
    """Body of ``POST /api/v1/silences``; PostgreSQL stores no NUL in a text."""

    hours: Annotated[float, Meta(gt=0, le=_MAX_HOURS)]
    rule: str | None = None
    job: str | None = None
    comment: Annotated[str, Meta(max_length=1000, pattern=r"^[^\x00]*\Z")] = ""


class NewAcknowledgement(msgspec.Struct, frozen=True):
    """Body of ``POST /api/v1/alerts/{id}/acknowledgement``."""

    hours: Annotated[float, Meta(gt=0, le=_MAX_HOURS)]
    comment: Annotated[str, Meta(max_length=1000, pattern=r"^[^\x00]*\Z")] = ""
    together: bool = False


def routes(service: Any) -> list[Route]:
    """/api/v1/alerts and /api/v1/silences."""

    async def list_alerts(request: Request) -> Response:
        principal = require(request, "read")
        status = request.query_params.get("status", "")
        if status not in _STATUSES:
            raise bad("status must be firing or resolved")
        limit = whole_parameter(request, "limit", _PAGE, _MAX_ROWS) or _PAGE
        project = reads(request, principal)
        rows = await run_in_threadpool(
            lambda: store.list_alerts(service.engine, project, status=status, limit=limit)
        )
        return JSONResponse({"alerts": rows})

    async def list_silences(request: Request) -> Response:
        principal = require(request, "read")
        rows = await run_in_threadpool(
            store.list_silences, service.engine, reads(request, principal), service.clock()
        )
        return JSONResponse({"silences": rows})

    async def add_silence(request: Request) -> Response:
        principal = require(request, "operate")
        silence = await read_body(request, MIB, _silence_of)
        rule, job, comment = silence.rule, silence.job, silence.comment
        now = service.clock()
        rules = [configured.name for configured in service.alerts.settings.rules]
        if rule is not None and not fnmatch.filter(rules, rule):
            raise bad(f"rule: unknown rule {rule}; known are {', '.join(rules)}")
        project = reads(request, principal)
        number = await run_in_threadpool(
            lambda: store.add_silence(
                service.engine,
                project,
                rule=rule,
                job=job,
                until=now + silence.hours * 3600,
                comment=comment,
                now=now,
                by=actor_of(request),
            )
        )
        return JSONResponse({"id": number, "until": now + silence.hours * 3600})

    async def acknowledge(request: Request) -> Response:
        principal = require(request, "operate")
        body = await read_body(request, MIB, _acknowledgement_of)
        now = service.clock()
        until = now + body.hours * 3600
        numbers = await run_in_threadpool(
            acknowledge_alert,
            service.engine,
            whole_number(request.path_params["id"]),
            principal.project,
            together=body.together,
            until=until,
            comment=body.comment,
            now=now,
            by=actor_of(request),
        )
        if not numbers:
            raise HTTPException(404, "there is no such firing alert")
        return JSONResponse({"alerts": numbers, "until": until})

    def ending(end: Callable[..., bool], missing: str) -> Handler:
        async def answer(request: Request) -> Response:
            principal = require(request, "operate")
            number = whole_number(request.path_params["id"])
            now, by = service.clock(), actor_of(request)
            if not await run_in_threadpool(end, service.engine, number, principal.project, now, by):
                raise HTTPException(404, missing)
            return JSONResponse({"id": number, "status": "ended"})

        return answer

    end_silence = ending(store.end_silence, "there is no such silence")
    end_acknowledgement = ending(
        acknowledgements.end_acknowledgement, "there is no such acknowledged alert"
    )
    v1 = "/api/v1"
    of_alert = f"{v1}/alerts/{{id}}/acknowledgement"
    return [
        Route(f"{v1}/alerts", list_alerts, methods=["GET"]),
        Route(of_alert, acknowledge, methods=["POST"]),
        Route(of_alert, end_acknowledgement, methods=["DELETE"]),
        Route(f"{v1}/silences", list_silences, methods=["GET"]),
        Route(f"{v1}/silences", add_silence, methods=["POST"]),
        Route(f"{v1}/silences/{{id}}", end_silence, methods=["DELETE"]),
    ]


def acknowledge_alert(
    engine: Engine, number: int, project: str, *, together: bool, **values: Any
) -> list[int]:
    """Acknowledge an alert, or all alerts on its card; returns their numbers."""
    with engine.connect() as connection:
        alert = queries.find_alert(connection, project, number)
        if alert is None:
            return []
        rows = group_of(alert, queries.list_alerts(connection, project, "firing"))
    numbers = [row["id"] for row in rows] if together else [number]
    return acknowledgements.acknowledge(engine, numbers, project, **values)


def _acknowledgement_of(body: Body) -> NewAcknowledgement:
    acknowledgement: NewAcknowledgement = body.decode(NewAcknowledgement)
    return acknowledgement


def _silence_of(body: Body) -> NewSilence:
    """Body of ``POST /api/v1/silences``, its names checked."""
    silence: NewSilence = body.decode(NewSilence)
    for pattern in (silence.rule, silence.job):
        if pattern is not None:
            checked_name(pattern.replace("*", "x").replace("?", "x"))
    return silence
