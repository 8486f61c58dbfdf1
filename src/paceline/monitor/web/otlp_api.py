"""POST /v1/traces: spans from Megatron-LM's OpenTelemetry exporter."""

from __future__ import annotations

import json
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paceline.errors import TraceError
from paceline.monitor.pusher import job_name
from paceline.monitor.service import Service
from paceline.monitor.store import jobs
from paceline.monitor.web.asked_project import writes_to
from paceline.monitor.web.bodies import bad, check_values, checked_name, in_turn, unpacked
from paceline.monitor.web.refusals import with_refusals
from paceline.monitor.web.security import require
from paceline.sources.fields import mapping
from paceline.sources.json_stream import MAX_LINE_BYTES
from paceline.sources.otlp import protobuf_encoding
from paceline.sources.otlp.json_encoding import attributes_of, check_request, resources_of

#: Header with the job of a request; without it, each resource's ``service.name`` counts.
JOB_HEADER = "x-paceline-job"

_PROTOBUF, _JSON = "application/x-protobuf", "application/json"


def routes(service: Service) -> list[Route]:
    """The route at the path of the OTLP specification."""

    async def traces(request: Request) -> Response:
        """POST /v1/traces."""
        principal = require(request, "push")
        project = writes_to(request, principal)
        service.detectors.check_room(project)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (_PROTOBUF, _JSON):
            raise bad(f"Content-Type should be {_PROTOBUF} or {_JSON}", 415)
        if kind == _PROTOBUF and not protobuf_encoding.available():
            raise bad("protobuf needs pip install 'paceline[otlp]' at the monitor", 415)
        body = await request.body()

        def decode() -> list[tuple[str, dict[str, Any]]]:
            job_header = request.headers.get(JOB_HEADER, "")
            content = unpacked(body, request, MAX_LINE_BYTES)
            return _requests_of_jobs(content, kind, checked_name(job_header) if job_header else "")

        def store(requests: list[tuple[str, dict[str, Any]]]) -> None:
            for name, spans in requests:
                job = jobs.register(service.engine, project, name, service.clock())
                service.take_spans(job, spans)

        await run_in_threadpool(store, await in_turn(request, decode))
        return Response(b"", media_type=_PROTOBUF) if kind == _PROTOBUF else JSONResponse({})

    return [Route("/v1/traces", with_refusals(traces), methods=["POST"])]


def _requests_of_jobs(content: bytes, kind: str, job: str) -> list[tuple[str, dict[str, Any]]]:
    """(job, request) for every job with spans in the request."""
    try:
        if kind == _PROTOBUF:
            request = protobuf_encoding.decode(content, "the body")
        else:
            check_values(content)
            request = json.loads(content.decode("utf-8"))
        if not check_request(request, "the body"):
            return []
        n_bytes = len(json.dumps(request, allow_nan=False))  # JSON has no NaN
        if n_bytes >= MAX_LINE_BYTES:
            raise bad(f"as JSON the request has {n_bytes:,} bytes; send smaller batches", 413)
        if job:
            return [(job, {"resourceSpans": request["resourceSpans"]})]
        resources_of_job: dict[str, list[Any]] = {}
        for place, resource in resources_of(request, "the body"):
            name = attributes_of(mapping(resource, "resource"), place).get("service.name")
            resources_of_job.setdefault(job_name(str(name or "megatron")), []).append(resource)
        return [
            (name, {"resourceSpans": resources}) for name, resources in resources_of_job.items()
        ]
    except (TraceError, ValueError, RecursionError) as error:
        raise bad(str(error)[:500]) from None
