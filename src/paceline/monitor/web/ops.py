"""Endpoints for operators: health, readiness, metrics and the API's description."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paceline.monitor.log import log
from paceline.monitor.store.health import problem_of
from paceline.monitor.web.metrics import Metrics
from paceline.monitor.web.security import require

#: How long a check of the store stays valid.
ASK_S = 1.0


def routes(service: Any) -> list[Route]:
    """/healthz, /readyz, /metrics and /api/v1/openapi.json."""

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    store = _Store(service.engine)

    numbers = Metrics(service, _version())

    async def readyz(request: Request) -> Response:
        if not service.running:
            return _not_ready("starting or stopping")
        if not await run_in_threadpool(store.answers):
            return _not_ready("the store does not answer")
        problems = await run_in_threadpool(lambda: service.problems)
        return JSONResponse({"status": "ready", **({"problems": problems} if problems else {})})

    async def metrics(request: Request) -> Response:
        principal = require(request, "read")
        counts = request.app.state.counts
        accept = ",".join(request.headers.getlist("accept"))
        text, content_type = await run_in_threadpool(numbers.text, counts, principal, accept)
        return Response(text, headers={"Content-Type": content_type, "Vary": "Accept"})

    async def openapi(request: Request) -> Response:
        return Response(openapi_json(), media_type="application/json")

    return [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/metrics", metrics),
        Route("/api/v1/openapi.json", openapi),
    ]


class _Store:
    """Checks the store at most once per interval, for any number of requests."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._lock = engine, threading.Lock()
        self._asked_at, self._is_up = -math.inf, False

    def answers(self) -> bool:
        """Whether the store answers; errors go to the log, not to the client."""
        if not self._lock.acquire(blocking=False):
            return self._is_up  # a check is running; one thread suffices
        try:
            if time.monotonic() - self._asked_at >= ASK_S:
                problem = problem_of(self._engine)
                if problem:
                    log(logging.ERROR, "store", error=problem)
                self._is_up, self._asked_at = problem is None, time.monotonic()
            return self._is_up
        finally:
            self._lock.release()


def _not_ready(reason: str) -> Response:
    return JSONResponse({"status": "not ready", "reason": reason}, 503)


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
