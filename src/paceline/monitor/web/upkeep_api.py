"""Sessions and jobs over HTTP: analysed again, removed."""

from __future__ import annotations

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paceline.monitor import upkeep
from paceline.monitor.store import jobs, sessions
from paceline.monitor.store.jobs import JobKey
from paceline.monitor.web.asked_project import writes_to
from paceline.monitor.web.bodies import checked_name, whole_number
from paceline.monitor.web.refusals import with_refusals
from paceline.monitor.web.security import actor_of, require


def routes(service: Any) -> list[Route]:
    """POST and DELETE of /api/v1/sessions/{id}, DELETE of /api/v1/jobs/{name}."""

    async def session_of(request: Request, scope: str) -> tuple[JobKey, dict[str, Any]]:
        principal = require(request, scope)
        number = whole_number(request.path_params["id"])
        row = await run_in_threadpool(sessions.by_id, service.engine, number, principal.project)
        if row is None:
            raise HTTPException(404, "there is no such session")
        return JobKey(row["job_id"], row["project"], row["job"]), row

    async def analyse(request: Request) -> Response:
        job, row = await session_of(request, "push")
        number, sha256, by = row["id"], row["sha256"], actor_of(request)
        await run_in_threadpool(upkeep.analyse_again, service, job, number, sha256, by)
        return JSONResponse({"id": row["id"], "status": "queued"})

    async def remove_session(request: Request) -> Response:
        job, row = await session_of(request, "admin")
        by = actor_of(request)
        await run_in_threadpool(upkeep.remove_session, service, job, row["id"], by)
        return JSONResponse({"id": row["id"], "status": "removed"})

    async def remove_job(request: Request) -> Response:
        principal = require(request, "admin")
        project, name = writes_to(request, principal), checked_name(request.path_params["name"])
        job = await run_in_threadpool(jobs.find, service.engine, project, name)
        if job is None:
            raise HTTPException(404, "there is no such job")
        await run_in_threadpool(upkeep.remove_job, service, job, actor_of(request))
        request.app.state.forget_job(project, name)
        return JSONResponse({"name": name, "project": project, "status": "removed"})

    v1 = "/api/v1"
    return [
        Route(f"{v1}/sessions/{{id}}/analyse", with_refusals(analyse), methods=["POST"]),
        Route(f"{v1}/sessions/{{id}}", with_refusals(remove_session), methods=["DELETE"]),
        Route(f"{v1}/jobs/{{name}}", with_refusals(remove_job), methods=["DELETE"]),
    ]
