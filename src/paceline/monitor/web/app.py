"""The application: API, pages, health and login behind common middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from anyio import CapacityLimiter
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.monitor.blobs import BlobsAway
from paceline.monitor.sign_on.settings import load_sign_on
from paceline.monitor.web import (
    access_api,
    access_page,
    alerts_api,
    api,
    login,
    ops,
    otlp_api,
    pages,
    push_api,
    sign_on,
    upkeep_api,
    uploads_api,
)
from paceline.monitor.web.answers import error_response
from paceline.monitor.web.bodies import AT_A_TIME
from paceline.monitor.web.envelope import Envelope, HttpCounts
from paceline.monitor.web.limits import WRONG_TOKENS_PER_MINUTE, Limits, ProjectRates, Rates
from paceline.monitor.web.pushed_jobs import PushedJobs
from paceline.monitor.web.security import Authentication, Sessions


def create_app(service: Any) -> Starlette:
    """The service's ASGI application; its lifespan starts and stops the service."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await run_in_threadpool(service.start)
        try:
            yield
        finally:
            await run_in_threadpool(service.stop)

    config = service.config
    sessions = Sessions(service, load_sign_on(config.sign_on, config.url))
    failures = Rates(WRONG_TOKENS_PER_MINUTE).take
    counts = HttpCounts()
    pushed = PushedJobs(service)
    app = Starlette(
        routes=[
            *ops.routes(service),
            *login.routes(service, sessions, failures),
            *sign_on.routes(service, sessions, failures),
            *access_api.routes(service),
            *access_page.routes(service),
            *push_api.routes(service, pushed),
            *uploads_api.routes(service, pushed),
            *api.routes(service),
            *otlp_api.routes(service),
            *alerts_api.routes(service),
            *upkeep_api.routes(service),
            *pages.routes(service),
        ],
        middleware=[
            Middleware(Envelope, counts=counts),
            Middleware(Authentication, service=service, sessions=sessions, failures=failures),
            Middleware(Limits, service=service),
        ],
        exception_handlers={HTTPException: _answer, BlobsAway: _away},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # it would trust the client's Host header
    app.state.service, app.state.counts = service, counts
    app.state.forget_job = pushed.forget
    app.state.sample_rates = Rates(service.config.step_samples_per_minute)
    app.state.project_rates = ProjectRates(service.projects)
    app.state.unpacking = CapacityLimiter(AT_A_TIME)
    return app


async def _answer(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:  # a path may have several routes, each with other methods
        error.headers = {"Allow": ", ".join(sorted(_methods(request)))}
    return error_response(request.scope, error)


async def _away(request: Request, error: Exception) -> Response:
    assert isinstance(error, BlobsAway)
    headers = {"Retry-After": str(int(error.retry_s or 0))}
    return error_response(request.scope, HTTPException(error.status, str(error), headers))


def _methods(request: Request) -> set[str]:
    path = request.scope["path"]
    routes = [r for r in request.app.routes if isinstance(r, Route) and r.path_regex.match(path)]
    return set().union(*(route.methods or set() for route in routes))
