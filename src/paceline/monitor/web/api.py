"""The HTTP API: jobs, traces and step times in, JSON out. ``docs/api.md`` describes it."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, BinaryIO

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from paceline.errors import OutputError, TraceError
from paceline.monitor.blobs import PERFETTO, REPORT, RESULT, result_key
from paceline.monitor.config import DAY_S, MIB
from paceline.monitor.job_ledger import stored_ledger
from paceline.monitor.refusal import Refusal
from paceline.monitor.service import Service
from paceline.monitor.step_files import Batch
from paceline.monitor.store import events, jobs, retained, sessions, uploads
from paceline.monitor.store.events import events_of_slow
from paceline.monitor.store.jobs import JobKey
from paceline.monitor.web.bodies import (
    bad,
    checked_name,
    finite,
    read_body,
    whole_number,
    whole_parameter,
)
from paceline.monitor.web.event_cost import step_loss, with_cost
from paceline.monitor.web.limits import take_samples
from paceline.monitor.web.pushed import (
    Ended,
    batch_of,
    batches_of,
    event_of,
    job_of,
    trace_of,
)
from paceline.monitor.web.rank_answers import MAX_ROWS, USUAL_ROWS, ranges_of, ranks_answer
from paceline.monitor.web.security import Principal, actor_of, require

Handler = Callable[[Request], Awaitable[Response]]

#: Cached job numbers, so that batches of step times need no query.
_MAX_CACHED_JOBS = 20_000
_PAGE, _MAX_ROWS = 100, 1000
_ID = 2**53
_UPLOAD = re.compile("[0-9a-f]{32}")

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
        self._body_bytes = service.config.max_body_mib * MIB
        self._job_cache: dict[tuple[str, str], JobKey] = {}

    def forget_job(self, project: str, name: str) -> None:
        """Forget the cached number of a removed job."""
        self._job_cache.pop((project, name), None)

    async def register(self, request: Request) -> Response:
        """POST /api/v1/jobs."""
        principal = require(request, "push")
        job = await read_body(request, self._body_bytes, job_of)
        project = writes_to(request, principal)
        service = self.service
        key = await run_in_threadpool(
            lambda: jobs.register(
                service.engine,
                project,
                job.name,
                service.clock(),
                gpus=job.gpus,
                degrees=job.degrees or {},
                labels={key: str(value)[:200] for key, value in (job.labels or {}).items()},
            )
        )
        service.bus.publish(project, "job", {"job": key.name, "job_id": key.id, "status": "new"})
        return JSONResponse({"id": key.id, "project": project, "name": key.name})

    async def end(self, request: Request) -> Response:
        """POST /api/v1/jobs/{name}/end."""
        principal = require(request, "push")
        job = await self._job(request, writes_to(request, principal))
        await run_in_threadpool(self.service.end_job, job)
        message = {"job": job.name, "job_id": job.id, "status": "ended"}
        self.service.bus.publish(job.project, "job", message)
        return JSONResponse({"status": "ended"})

    async def end_labelled(self, request: Request) -> Response:
        """POST /api/v1/ended."""
        principal = require(request, "push")
        ended = await read_body(request, self._body_bytes, lambda body: body.decode(Ended))
        service, project = self.service, writes_to(request, principal)
        keys = await run_in_threadpool(jobs.labelled, service.engine, project, ended.labels)
        for job in keys:
            await run_in_threadpool(service.end_job, job)
            message = {"job": job.name, "job_id": job.id, "status": "ended"}
            service.bus.publish(job.project, "job", message)
        return JSONResponse({"ended": [job.name for job in keys]})

    async def accept(self, request: Request) -> Response:
        """POST /api/v1/jobs/{name}/accept."""
        principal = require(request, "push")
        job = await self._job(request, writes_to(request, principal))
        await run_in_threadpool(self.service.accept_level, job, actor_of(request))
        return JSONResponse({"status": "accepted"})

    async def tell(self, request: Request) -> Response:
        """POST /api/v1/jobs/{name}/events."""
        principal = require(request, "push")
        event = await read_body(request, self._body_bytes, event_of)
        job = await self._own_job(request, principal)
        number = await run_in_threadpool(
            self.service.tell_event, job, event.kind, event.step, event.at, event.text, event.ranks
        )
        return JSONResponse({"id": number})

    async def begin_upload(self, request: Request) -> Response:
        """POST /api/v1/jobs/{name}/uploads."""
        principal = require(request, "push")
        trace = await read_body(request, self._body_bytes, trace_of)
        service = self.service
        await run_in_threadpool(_check_sessions, service, writes_to(request, principal))
        job = await self._own_job(request, principal)
        begun = await run_in_threadpool(
            service.uploads.begin, job.id, job.project, trace, service.clock()
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
        offset = whole_parameter(request, "offset", None, _ID)
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

    async def steps(self, request: Request) -> Response:
        """POST /api/v1/jobs/{name}/steps."""
        principal = require(request, "push")
        service = self.service
        service.detectors.check_room(writes_to(request, principal))
        parse = functools.partial(batch_of, clock=service.clock)
        batch = await read_body(request, self._body_bytes, parse)
        job = await self._own_job(request, principal)
        return JSONResponse(await run_in_threadpool(self._store_steps, request, job, batch))

    def _store_steps(self, request: Request, job: JobKey, batch: Batch) -> dict[str, Any]:
        take_samples(request, len(batch.steps))
        new = self.service.take_steps(job, batch)
        return {"accepted": len(batch.steps), "repeated": not new}

    async def many_steps(self, request: Request) -> Response:
        """POST /api/v1/steps: batches of several jobs, each with its own result."""
        principal = require(request, "push")
        service, project = self.service, writes_to(request, principal)
        service.detectors.check_room(project)
        parse = functools.partial(batches_of, clock=service.clock)
        batches = await read_body(request, self._body_bytes, parse)
        return JSONResponse(await run_in_threadpool(self._store_many, request, project, batches))

    def _store_many(
        self,
        request: Request,
        project: str,
        batches: list[tuple[str, Batch] | HTTPException],
    ) -> dict[str, Any]:
        good = [(n, *batch) for n, batch in enumerate(batches) if isinstance(batch, tuple)]
        take_samples(request, sum(len(batch.steps) for _, _, batch in good))
        keys = self._jobs_named(project, {name for _, name, _ in good})
        pairs = [(keys[name], batch) for _, name, batch in good]
        outcomes: dict[int, bool | Exception] = dict(
            zip((n for n, _, _ in good), self.service.take_many(pairs), strict=True)
        )
        answers = []
        for n, batch in enumerate(batches):
            if isinstance(batch, HTTPException):
                answers.append({"error": batch.detail, "status": batch.status_code})
                continue
            name, samples = batch
            outcome = outcomes[n]
            if isinstance(outcome, bool):
                answers.append({"accepted": len(samples.steps), "repeated": not outcome})
            else:
                error = as_answer(outcome)
                answers.append({"error": error.detail, "status": error.status_code})
                self.forget_job(project, name)  # the job may have been removed
        return {"batches": answers}

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

    def _with_step_loss(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rows of jobs with ``by_step_times``, the loss of a current fail-slow, or None."""
        slow = [row["id"] for row in rows if row["slow_since_step"] is not None]
        of_job: dict[int, list[dict[str, Any]]] = {}
        if slow:
            with self.service.engine.connect() as connection:
                of_job = events_of_slow(connection, slow)
        losses = [step_loss(row, of_job.get(row["id"], ())) for row in rows]
        return [
            {**row, "by_step_times": None if loss is None else asdict(loss)}
            for row, loss in zip(rows, losses, strict=True)
        ]

    async def list_sessions(self, request: Request) -> Response:
        """GET /api/v1/jobs/{name}/sessions."""
        job = await self._readable(request)
        after, limit = _page(request)
        rows = await run_in_threadpool(
            sessions.list_sessions, self.service.engine, job.id, after, limit
        )
        return _rows("sessions", rows, limit)

    async def show_steps(self, request: Request) -> Response:
        """GET /api/v1/jobs/{name}/steps."""
        job = await self._readable(request)
        first, last = (whole_parameter(request, name, None, _ID) for name in ("first", "last"))
        points = whole_parameter(request, "points", 2000, 100_000) or 2000
        steps = self.service.steps
        series = await run_in_threadpool(
            lambda: steps.series(job.id, first=first, last=last, points=points).to_mapping()
        )
        return JSONResponse(finite(series))

    async def show_ranks(self, request: Request) -> Response:
        """GET /api/v1/jobs/{name}/ranks."""
        job = await self._readable(request)
        first, last = (whole_parameter(request, name, None, _ID) for name in ("first", "last"))
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
        return JSONResponse(finite(await self._session(request)))

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
        return _rows("events", [with_cost(row) for row in rows], limit)

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

    async def _session(self, request: Request) -> dict[str, Any]:
        principal = require(request, "read")
        number, engine = whole_number(request.path_params["id"]), self.service.engine
        row = await run_in_threadpool(sessions.by_id, engine, number, principal.project)
        if row is None:
            raise HTTPException(404, "there is no such session")
        return row

    async def _own_job(self, request: Request, principal: Principal) -> JobKey:
        """The job of the path, created if new."""
        name = checked_name(request.path_params["name"])
        project = writes_to(request, principal)
        job = self._job_cache.get((project, name))
        if job is None:
            job = await run_in_threadpool(self._job_named, project, name)
        return job

    def _job_named(self, project: str, name: str) -> JobKey:
        return self._jobs_named(project, {name})[name]

    def _jobs_named(self, project: str, names: set[str]) -> dict[str, JobKey]:
        """The jobs of these names, created if new."""
        known = {name: self._job_cache.get((project, name)) for name in names}
        keys = {name: key for name, key in known.items() if key is not None}
        unknown = names - keys.keys()
        if unknown:
            service = self.service
            made = jobs.register_many(service.engine, project, unknown, service.clock())
            if len(self._job_cache) + len(made) > _MAX_CACHED_JOBS:
                self._job_cache.clear()
            self._job_cache |= {(project, name): key for name, key in made.items()}
            keys |= made
        return keys

    async def _readable(self, request: Request) -> JobKey:
        return await self._job(request, reads(request, require(request, "read")))

    async def _job(self, request: Request, project: str) -> JobKey:
        return await self._job_of(project, checked_name(request.path_params["name"]))

    async def _job_of(self, project: str, name: str) -> JobKey:
        job = await run_in_threadpool(jobs.find, self.service.engine, project, name)
        if job is None:
            raise HTTPException(404, "there is no such job")
        return job


def _check_sessions(service: Service, project: str) -> None:
    """Refuse a trace of a project that has reached its daily limit.

    Raises:
        Refusal: 429.
    """
    most = service.projects.of(project).sessions_per_day
    if most and retained.n_since(service.engine, project, service.clock() - DAY_S) >= most:
        message = f"the project {project} has pushed its {most:,} sessions of a day"
        raise Refusal(429, message, retry_s=600.0)


def writes_to(request: Request, principal: Principal) -> str:
    """The project that a request writes to; a token for all projects may name one."""
    return _project(request, principal, principal.writes_to)


def reads(request: Request, principal: Principal) -> str:
    """The project that a request reads; "*" = all."""
    return _project(request, principal, principal.project)


def _project(request: Request, principal: Principal, usual: str) -> str:
    project = request.query_params.get("project")
    if project is None:
        return usual
    if not principal.sees(checked_name(project)):
        raise HTTPException(404, "there is no such project")
    return project


def with_refusals(handler: Handler) -> Handler:
    """The handler, with refusals and errors of the store or disk as responses."""

    @functools.wraps(handler)
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except Refusal as refusal:
            headers = {}
            if refusal.retry_s is not None:
                headers["Retry-After"] = str(math.ceil(refusal.retry_s))
            if refusal.status == 413:
                headers["Connection"] = "close"
            if refusal.extra:
                return JSONResponse(
                    {"error": str(refusal), **refusal.extra}, refusal.status, headers
                )
            raise HTTPException(refusal.status, str(refusal), headers) from None
        except (OutputError, TraceError, SQLAlchemyError, TimeoutError) as error:
            raise as_answer(error) from error

    return answer


def as_answer(error: Exception) -> HTTPException:
    """The response to an error of the store or disk; other errors are raised again."""
    if isinstance(error, Refusal):
        return HTTPException(error.status, str(error))
    if isinstance(error, OutputError):
        return HTTPException(507, str(error), {"Retry-After": "10"})
    if isinstance(error, TraceError):
        return bad(str(error))
    if isinstance(error, DBAPIError) and isinstance(error.orig, ValueError | OverflowError):
        return bad("a value cannot be stored")
    if isinstance(error, SQLAlchemyError | TimeoutError):
        return HTTPException(
            503, "the store does not answer; try again later", {"Retry-After": "5"}
        )
    raise error


def _page(request: Request) -> tuple[int | None, int]:
    after = whole_parameter(request, "after", None, _ID)
    limit = whole_parameter(request, "limit", _PAGE, _MAX_ROWS) or _PAGE
    return after, limit


def _rows(key: str, rows: list[dict[str, Any]], limit: int) -> Response:
    """A page of rows; ``next`` is the ``after`` of the following page."""
    following = rows[-1]["id"] if len(rows) == limit else None
    return JSONResponse({key: finite(rows), "next": following})


def routes(service: Service, api: Api) -> list[Route]:
    """The API's routes."""

    def blob(name: str) -> Handler:
        return functools.partial(api.blob, name=name)

    v1 = "/api/v1"
    table: tuple[tuple[str, str, Handler], ...] = (
        ("POST", f"{v1}/jobs", api.register),
        ("GET", f"{v1}/jobs", api.list_jobs),
        ("GET", f"{v1}/jobs/{{name}}", api.show_job),
        ("POST", f"{v1}/jobs/{{name}}/end", api.end),
        ("POST", f"{v1}/jobs/{{name}}/accept", api.accept),
        ("POST", f"{v1}/ended", api.end_labelled),
        ("POST", f"{v1}/jobs/{{name}}/events", api.tell),
        ("POST", f"{v1}/jobs/{{name}}/uploads", api.begin_upload),
        ("POST", f"{v1}/jobs/{{name}}/steps", api.steps),
        ("POST", f"{v1}/steps", api.many_steps),
        ("GET", f"{v1}/jobs/{{name}}/steps", api.show_steps),
        ("GET", f"{v1}/jobs/{{name}}/ranks", api.show_ranks),
        ("GET", f"{v1}/jobs/{{name}}/goodput", api.goodput),
        ("GET", f"{v1}/jobs/{{name}}/sessions", api.list_sessions),
        ("GET", f"{v1}/uploads/{{id}}", api.show_upload),
        ("PUT", f"{v1}/uploads/{{id}}", api.put_upload),
        ("POST", f"{v1}/uploads/{{id}}/finish", api.finish_upload),
        ("GET", f"{v1}/sessions/{{id}}", api.show_session),
        ("GET", f"{v1}/sessions/{{id}}/result", blob(RESULT)),
        ("GET", f"{v1}/sessions/{{id}}/report", blob(REPORT)),
        ("GET", f"{v1}/sessions/{{id}}/perfetto", blob(PERFETTO)),
        ("GET", f"{v1}/events", api.list_events),
    )
    return [
        Route(path, with_refusals(handler), methods=[method]) for method, path, handler in table
    ]
