"""The HTTP API: uploads of traces in chunks. ``docs/api.md`` describes it."""

from __future__ import annotations

import re
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paceline.monitor.config import DAY_S, MIB
from paceline.monitor.refusal import Refusal
from paceline.monitor.service import Service
from paceline.monitor.store import retained, uploads
from paceline.monitor.store.jobs import JobKey
from paceline.monitor.web.asked_project import writes_to
from paceline.monitor.web.bodies import MAX_ID, bad, read_body, whole_parameter
from paceline.monitor.web.pushed import trace_of
from paceline.monitor.web.pushed_jobs import PushedJobs
from paceline.monitor.web.refusals import routes_of
from paceline.monitor.web.security import require

_UPLOAD = re.compile("[0-9a-f]{32}")


class UploadsApi:
    """The handlers.

    Args:
        service: the service.
        pushed: the jobs that requests push to.
    """

    def __init__(self, service: Service, pushed: PushedJobs) -> None:
        self.service, self.jobs = service, pushed
        self._body_bytes = service.config.max_body_mib * MIB

    async def begin_upload(self, request: Request) -> Response:
        """POST /api/v1/jobs/{name}/uploads."""
        principal = require(request, "push")
        trace = await read_body(request, self._body_bytes, trace_of)
        service = self.service
        await run_in_threadpool(_check_sessions, service, writes_to(request, principal))
        now = service.clock()
        begun = await self.jobs.on_path(
            request,
            principal,
            lambda job: service.uploads.begin(job.id, job.project, trace, now),
        )
        return JSONResponse(begun)

    async def show_upload(self, request: Request) -> Response:
        """GET /api/v1/uploads/{id}."""
        row = await self._upload(request)
        offset = await run_in_threadpool(self.service.uploads.offset, row["id"])
        return JSONResponse({"upload": row["id"], "offset": offset, "size": row["size_bytes"]})

    async def put_upload(self, request: Request) -> Response:
        """PUT /api/v1/uploads/{id}?offset=N."""
        row = await self._upload(request)
        offset = whole_parameter(request, "offset", None, MAX_ID)
        if offset is None:
            raise bad("offset is missing")
        if request.headers.get("content-encoding", "identity") != "identity":
            raise bad("send chunks without Content-Encoding", 415)
        service = self.service
        here = await service.uploads.put(row, offset, request.stream(), service.clock())
        return JSONResponse({"offset": here})

    async def finish_upload(self, request: Request) -> Response:
        """POST /api/v1/uploads/{id}/finish."""
        row = await self._upload(request)
        service = self.service
        number = await run_in_threadpool(service.uploads.finish, row, service.clock())
        service.tell_session(JobKey(row["job_id"], row["project"], row["job"]), number)
        return JSONResponse({"session": number})

    async def _upload(self, request: Request) -> dict[str, Any]:
        principal = require(request, "push")
        upload_id = request.path_params["id"]
        row = None
        if _UPLOAD.fullmatch(upload_id):
            row = await run_in_threadpool(
                uploads.find, self.service.engine, upload_id, principal.project
            )
        if row is None:
            raise HTTPException(404, "there is no such upload; begin it again")
        return row


def _check_sessions(service: Service, project: str) -> None:
    """Refuse a trace of a project that has reached its daily limit.

    Raises:
        Refusal: 429.
    """
    most = service.projects.of(project).sessions_per_day
    if most and retained.n_since(service.engine, project, service.clock() - DAY_S) >= most:
        message = f"the project {project} has pushed its {most:,} sessions of a day"
        raise Refusal(429, message, retry_s=600.0)


def routes(service: Service, pushed: PushedJobs) -> list[Route]:
    """The routes of uploads."""
    api, v1 = UploadsApi(service, pushed), "/api/v1"
    return routes_of(
        (
            ("POST", f"{v1}/jobs/{{name}}/uploads", api.begin_upload),
            ("GET", f"{v1}/uploads/{{id}}", api.show_upload),
            ("PUT", f"{v1}/uploads/{{id}}", api.put_upload),
            ("POST", f"{v1}/uploads/{{id}}/finish", api.finish_upload),
        )
    )
