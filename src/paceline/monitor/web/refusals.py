"""Refusals and errors of the store or disk, as responses of the API."""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paceline.errors import OutputError, TraceError
from paceline.monitor.refusal import Refusal
from paceline.monitor.web.bodies import bad

Handler = Callable[[Request], Awaitable[Response]]


def routes_of(table: tuple[tuple[str, str, Handler], ...]) -> list[Route]:
    """Routes of (method, path, handler)."""
    return [
        Route(path, with_refusals(handler), methods=[method]) for method, path, handler in table
    ]


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
