"""The HTTP API: jobs, their events and step times in. ``docs/api.md`` describes it."""

from __future__ import annotations

import functools
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paceline.monitor.config import MIB
from paceline.monitor.service import Service
from paceline.monitor.step_files import Batch
from paceline.monitor.store import jobs
from paceline.monitor.store.jobs import JobKey
from paceline.monitor.web.asked_project import writes_to
from paceline.monitor.web.bodies import checked_name, read_body
from paceline.monitor.web.limits import take_samples
from paceline.monitor.web.pushed import Ended, batch_of, batches_of, event_of, job_of
from paceline.monitor.web.pushed_jobs import PushedJobs
from paceline.monitor.web.refusals import as_answer, routes_of
from paceline.monitor.web.security import Principal, actor_of, require


class PushApi:
    """The handlers.

    Args:
        service: the service.
        pushed: the jobs that requests push to.
    """

    def __init__(self, service: Service, pushed: PushedJobs) -> None:
        self.service, self.jobs = service, pushed
        self._body_bytes = service.config.max_body_mib * MIB

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
        job = await self._job(request, principal)
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
        job = await self._job(request, principal)
        await run_in_threadpool(self.service.accept_level, job, actor_of(request))
        return JSONResponse({"status": "accepted"})

    async def tell(self, request: Request) -> Response:
        """POST /api/v1/jobs/{name}/events."""
        principal = require(request, "push")
        event = await read_body(request, self._body_bytes, event_of)
        values = event.kind, event.step, event.at, event.text, event.ranks
        number = await self.jobs.on_path(
            request, principal, lambda job: self.service.tell_event(job, *values)
        )
        return JSONResponse({"id": number})

    async def steps(self, request: Request) -> Response:
        """POST /api/v1/jobs/{name}/steps."""
        principal = require(request, "push")
        service = self.service
        service.detectors.check_room(writes_to(request, principal))
        parse = functools.partial(batch_of, clock=service.clock)
        batch = await read_body(request, self._body_bytes, parse)
        take_samples(request, len(batch.steps))
        new = await self.jobs.on_path(
            request, principal, lambda job: service.take_steps(job, batch)
        )
        return JSONResponse({"accepted": len(batch.steps), "repeated": not new})

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
        keys = self.jobs.all_named(project, {name for _, name, _ in good})
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
                self.jobs.forget(project, name)  # the job may have been removed
        return {"batches": answers}

    async def _job(self, request: Request, principal: Principal) -> JobKey:
        """The job of the path, which exists."""
        name, project = checked_name(request.path_params["name"]), writes_to(request, principal)
        job = await run_in_threadpool(jobs.find, self.service.engine, project, name)
        if job is None:
            raise HTTPException(404, "there is no such job")
        return job


def routes(service: Service, pushed: PushedJobs) -> list[Route]:
    """The routes of pushes."""
    api, v1 = PushApi(service, pushed), "/api/v1"
    return routes_of(
        (
            ("POST", f"{v1}/jobs", api.register),
            ("POST", f"{v1}/jobs/{{name}}/end", api.end),
            ("POST", f"{v1}/jobs/{{name}}/accept", api.accept),
            ("POST", f"{v1}/ended", api.end_labelled),
            ("POST", f"{v1}/jobs/{{name}}/events", api.tell),
            ("POST", f"{v1}/jobs/{{name}}/steps", api.steps),
            ("POST", f"{v1}/steps", api.many_steps),
        )
    )
