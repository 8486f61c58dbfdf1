"""The application: API, pages, health and login behind one set of guards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from paceline.monitor.web import alerts_api, api, login, ops, pages
from paceline.monitor.web.answers import error_response
from paceline.monitor.web.envelope import Envelope, HttpCounts
from paceline.monitor.web.limits import WRONG_TOKENS_PER_MINUTE, Limits, Rates
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

    sessions = Sessions(service)
    failures = Rates(WRONG_TOKENS_PER_MINUTE).take
    counts = HttpCounts()
    app = Starlette(
        routes=[
            *ops.routes(service),
            *login.routes(service, sessions, failures),
            *api.routes(service),
            *alerts_api.routes(service),
            *pages.routes(service),
        ],
        middleware=[
            Middleware(Envelope, counts=counts),
            Middleware(Authentication, service=service, sessions=sessions, failures=failures),
            Middleware(Limits, service=service),
        ],
        exception_handlers={HTTPException: _answer},
        lifespan=lifespan,
    )
    app.state.service, app.state.counts = service, counts
    app.state.sample_rates = Rates(service.config.step_samples_per_minute)
    return app


async def _answer(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(request.scope, error)
