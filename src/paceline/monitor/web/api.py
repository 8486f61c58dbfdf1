"""The HTTP API: what is read, as JSON. ``docs/api.md`` describes it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, BinaryIO

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from paceline.monitor.blobs import PERFETTO, REPORT, RESULT, result_key
from paceline.monitor.job_ledger import stored_ledger
from paceline.monitor.levels import LevelChanges, Levels, with_first_step
from paceline.monitor.loss_range import lasting_kind
from paceline.monitor.service import Service
from paceline.monitor.store import events, jobs, sessions
from paceline.monitor.store.jobs import JobKey
from paceline.monitor.web.asked_project import reads
from paceline.monitor.web.bodies import (
    MAX_ID,
    checked_name,
    finite,
    whole_number,
    whole_parameter,
)
from paceline.monitor.web.event_cost import step_loss, with_cost
from paceline.monitor.web.event_who import with_who
from paceline.monitor.web.rank_answers import MAX_ROWS, USUAL_ROWS, ranges_of, ranks_answer
from paceline.monitor.web.refusals import Handler, routes_of
from paceline.monitor.web.security import require

_PAGE, _MAX_ROWS = 100, 1000

_TYPES = {
    RESULT: "application/json",
    REPORT: "text/html; charset=utf-8",
    PERFETTO: "application/gzip",
}


class _Blob(StreamingResponse):
    """A file's bytes; the file is closed even if the client disconnects."""

    def __init__(self, file: BinaryIO, **options: Any) -> None:
        super().__init__(iter(functools.partial(file.read, 1 << 18), b""), **options)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file."""
        with self._file:
            await super().__call__(scope, receive, send)


class Api:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._levels = Levels()

    async def list_jobs(self, request: Request) -> Response:
        """GET /api/v1/jobs."""
        principal = require(request, "read")
        after, limit = _page(request)
        project = reads(request, principal)
        rows = await run_in_threadpool(
            jobs.list_jobs, self.service.engine, project, -1 if after is None else after, limit
        )
        return _rows("jobs", await run_in_threadpool(self._with_step_loss, rows), limit)

    async def show_job(self, request: Request) -> Response:
        """GET /api/v1/jobs/{name}."""
        job = await self._readable(request)
        row = await run_in_threadpool(jobs.by_id, self.service.engine, job.id)
        if row is None:
            raise HTTPException(404, "there is no such job")
        rows = await run_in_threadpool(self._with_step_loss, [row])
        return JSONResponse(finite(rows[0]))

    def _with_who(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        with self.service.engine.connect() as connection:
            return with_who(connection, rows)

    def _with_step_loss(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rows of jobs with ``by_step_times``, the loss of a current fail-slow, or None."""
        slow = [row["id"] for row in rows if row["slow_since_step"] is not None]
        of_job: dict[int, LevelChanges] = {}
        if slow:
            with self.service.engine.connect() as connection:
                of_job = self._levels.of(connection, slow)
        losses = [step_loss(row, of_job.get(row["id"])) for row in rows]
        return [
            _with_lasting_kind(with_first_step(row, of_job.get(row["id"])))
            | {"by_step_times": None if loss is None else asdict(loss)}
            for row, loss in zip(rows, losses, strict=True)
        ]

    async def list_sessions(self, request: Request) -> Response:
        """GET /api/v1/jobs/{name}/sessions."""
        job = await self._readable(request)
        after, limit = _page(request)
        rows = await run_in_threadpool(
            sessions.list_sessions, self.service.engine, job.id, after, limit
        )
        return _rows("sessions", [_with_lasting_kind(row) for row in rows], limit)

    async def show_steps(self, request: Request) -> Response:
        """GET /api/v1/jobs/{name}/steps."""
        job = await self._readable(request)
        first, last = (whole_parameter(request, name, None, MAX_ID) for name in ("first", "last"))
        points = whole_parameter(request, "points", 2000, 100_000) or 2000
        steps = self.service.steps
        series = await run_in_threadpool(
            lambda: steps.series(job.id, first=first, last=last, points=points).to_mapping()
        )
        return JSONResponse(finite(series))

    async def show_ranks(self, request: Request) -> Response:
        """GET /api/v1/jobs/{name}/ranks."""
        job = await self._readable(request)
        first, last = (whole_parameter(request, name, None, MAX_ID) for name in ("first", "last"))
        most = whole_parameter(request, "rows", USUAL_ROWS, MAX_ROWS) or USUAL_ROWS
        ranges = ranges_of(request.query_params.get("ranks"))
        detectors = self.service.detectors
        answer = await run_in_threadpool(
            lambda: ranks_answer(detectors.ratios(job, first, last), ranges, most)
        )
        return JSONResponse(answer)

    async def goodput(self, request: Request) -> Response:
        """GET /api/v1/jobs/{name}/goodput."""
        job = await self._readable(request)
        service = self.service
        ledger = await run_in_threadpool(stored_ledger, service.engine, service.steps, job.id)
        if ledger is None:
            raise HTTPException(404, "the job has told no step times")
        return JSONResponse(finite(ledger.to_mapping()))

    async def show_session(self, request: Request) -> Response:
        """GET /api/v1/sessions/{id}."""
        return JSONResponse(finite(_with_lasting_kind(await self._session(request))))

    async def blob(self, request: Request, name: str) -> Response:
        """GET /api/v1/sessions/{id}/result, /report and /perfetto."""
        row = await self._session(request)
        if row["status"] != "done":
            raise HTTPException(404, f"the session is {row['status']}; there is no result (yet)")
        try:
            file = await run_in_threadpool(self.service.blobs.open, result_key(row["id"], name))
        except FileNotFoundError:
            raise HTTPException(
                404, "the file does not exist: it was too large, or removed to make room"
            ) from None

        file_name = f"{row['job']}-{row['id']}-{name}"
        headers = {"Content-Disposition": f'inline; filename="{file_name}"'}
        return _Blob(file, media_type=_TYPES[name], headers=headers)

    async def list_events(self, request: Request) -> Response:
        """GET /api/v1/events."""
        principal = require(request, "read")
        after, limit = _page(request)
        project, job_id = reads(request, principal), None
        if "job" in request.query_params:
            name = checked_name(request.query_params["job"])
            job_id = (await self._job_of(project, name)).id
        rows = await run_in_threadpool(
            events.list_events, self.service.engine, project, job_id, after, limit
        )
        rows = await run_in_threadpool(self._with_who, rows)
        return _rows("events", [with_cost(row) for row in rows], limit)

    async def _session(self, request: Request) -> dict[str, Any]:
        principal = require(request, "read")
        number, engine = whole_number(request.path_params["id"]), self.service.engine
        row = await run_in_threadpool(sessions.by_id, engine, number, principal.project)
        if row is None:
            raise HTTPException(404, "there is no such session")
        return row

    async def _readable(self, request: Request) -> JobKey:
        return await self._job(request, reads(request, require(request, "read")))

    async def _job(self, request: Request, project: str) -> JobKey:
        return await self._job_of(project, checked_name(request.path_params["name"]))

    async def _job_of(self, project: str, name: str) -> JobKey:
        job = await run_in_threadpool(jobs.find, self.service.engine, project, name)
        if job is None:
            raise HTTPException(404, "there is no such job")
        return job


def _page(request: Request) -> tuple[int | None, int]:
    after = whole_parameter(request, "after", None, MAX_ID)
    limit = whole_parameter(request, "limit", _PAGE, _MAX_ROWS) or _PAGE
    return after, limit


def _with_lasting_kind(row: Mapping[str, Any]) -> dict[str, Any]:
    """A job or session of the API, which says what its ``slowdown_lasting`` is."""
    return {**row, "slowdown_lasting_kind": lasting_kind(row)}


def _rows(key: str, rows: list[dict[str, Any]], limit: int) -> Response:
    """A page of rows; ``next`` is the ``after`` of the following page."""
    following = rows[-1]["id"] if len(rows) == limit else None
    return JSONResponse({key: finite(rows), "next": following})


def routes(service: Service) -> list[Route]:
    """The routes of reads."""
    api, v1 = Api(service), "/api/v1"

    def blob(name: str) -> Handler:
        return functools.partial(api.blob, name=name)

    return routes_of(
        (
            ("GET", f"{v1}/jobs", api.list_jobs),
            ("GET", f"{v1}/jobs/{{name}}", api.show_job),
            ("GET", f"{v1}/jobs/{{name}}/steps", api.show_steps),
            ("GET", f"{v1}/jobs/{{name}}/ranks", api.show_ranks),
            ("GET", f"{v1}/jobs/{{name}}/goodput", api.goodput),
            ("GET", f"{v1}/jobs/{{name}}/sessions", api.list_sessions),
            ("GET", f"{v1}/sessions/{{id}}", api.show_session),
            ("GET", f"{v1}/sessions/{{id}}/result", blob(RESULT)),
            ("GET", f"{v1}/sessions/{{id}}/report", blob(REPORT)),
            ("GET", f"{v1}/sessions/{{id}}/perfetto", blob(PERFETTO)),
            ("GET", f"{v1}/events", api.list_events),
        )
    )
