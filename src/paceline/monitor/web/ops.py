"""For those who run the service: is it alive, is it ready, how does it do, what can be asked."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paceline.monitor.store.health import problem_of
from paceline.monitor.web.metrics import CONTENT_TYPE, metrics_text
from paceline.monitor.web.security import require


def routes(service: Any) -> list[Route]:
    """/healthz, /readyz, /metrics and /api/v1/openapi.json."""

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    def readyz(request: Request) -> Response:
        problem = problem_of(service.engine)
        if problem or not service.running:
            reason = problem or "starting or stopping"
            return JSONResponse({"status": "not ready", "reason": reason}, 503)
        return JSONResponse({"status": "ready"})

    async def metrics(request: Request) -> Response:
        principal = require(request, "read")
        counts = request.app.state.counts
        text = await run_in_threadpool(metrics_text, service, counts, principal, _version())
        return Response(text, media_type=CONTENT_TYPE)

    async def openapi(request: Request) -> Response:
        return Response(openapi_json(), media_type="application/json")

    return [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/metrics", metrics),
        Route("/api/v1/openapi.json", openapi),
    ]


@cache
def openapi_json() -> bytes:
    """The document that describes the API."""
    import yaml

    text = files("paceline.monitor.web").joinpath("openapi.yaml").read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    document["info"]["version"] = _version()
    return json.dumps(document).encode()


def _version() -> str:
    try:
        return version("paceline")
    except PackageNotFoundError:  # run from the source tree
        return "0"
