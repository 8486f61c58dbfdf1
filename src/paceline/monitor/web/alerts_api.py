"""Alerts and silences over HTTP."""

from __future__ import annotations

import fnmatch
import re
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paceline.monitor.config import MIB
from paceline.monitor.store import alerts as store
from paceline.monitor.web.api import reads
from paceline.monitor.web.bodies import bad, checked_name, read_mapping, whole_parameter
from paceline.monitor.web.security import require

_STATUSES = ("", "firing", "resolved")
_MAX_HOURS = 24.0 * 366
_PAGE, _MAX_ROWS = 100, 1000
_MAX_ID = 2**53
#: What a database does not take: nothing, and half a pair.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


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
        principal = require(request, "admin")
        body = await read_mapping(request, MIB)
        now = service.clock()
        rule, job = (_name(body, key) for key in ("rule", "job"))
        rules = [configured.name for configured in service.alerts.settings.rules]
        if rule is not None and not fnmatch.filter(rules, rule):
            raise bad(f"rule: there is no rule {rule}; known are {', '.join(rules)}")
        comment = body.get("comment", "")
        if not isinstance(comment, str) or len(comment) > 1000 or _UNSTORABLE.search(comment):
            raise bad("comment must be a text of up to 1,000 characters")
        hours, project = _hours(body), reads(request, principal)
        number = await run_in_threadpool(
            lambda: store.add_silence(
                service.engine,
                project,
                rule=rule,
                job=job,
                until=now + hours * 3600,
                comment=comment,
                now=now,
            )
        )
        return JSONResponse({"id": number, "until": now + hours * 3600})

    async def end_silence(request: Request) -> Response:
        principal = require(request, "admin")
        text = request.path_params["id"]
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 17 else -1
        ended = number <= _MAX_ID and await run_in_threadpool(
            store.end_silence, service.engine, number, principal.project, service.clock()
        )
        if not ended:
            raise HTTPException(404, "there is no such silence")
        return JSONResponse({"id": number, "status": "ended"})

    v1 = "/api/v1"
    return [
        Route(f"{v1}/alerts", list_alerts, methods=["GET"]),
        Route(f"{v1}/silences", list_silences, methods=["GET"]),
        Route(f"{v1}/silences", add_silence, methods=["POST"]),
        Route(f"{v1}/silences/{{id}}", end_silence, methods=["DELETE"]),
    ]


def _name(body: dict[str, Any], key: str) -> str | None:
    value = body.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise bad(f"{key} must be a name")
    checked_name(value.replace("*", "x").replace("?", "x"))  # a pattern, too
    return value


def _hours(body: dict[str, Any]) -> float:
    hours: Any = body.get("hours")
    number = isinstance(hours, int | float) and not isinstance(hours, bool)
    if not number or not 0 < hours <= _MAX_HOURS:  # nan is not, either
        raise bad(f"hours must be a number above 0, {_MAX_HOURS:,.0f} at most")
    return float(hours)
