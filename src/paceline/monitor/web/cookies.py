"""The service's cookies, unavailable to scripts and plain HTTP."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response


def put_cookie(
    answer: Response,
    request: Request,
    name: str,
    value: str,
    seconds: int,
    *,
    path: str = "/",
    same_site: Literal["lax", "strict"] = "lax",
) -> None:
    """Set a cookie for some seconds."""
    answer.set_cookie(
        name,
        value,
        max_age=seconds,
        path=path,
        secure=_is_https(request),
        httponly=True,
        samesite=same_site,
    )


def drop_cookie(answer: Response, request: Request, name: str, *, path: str = "/") -> None:
    """Delete a cookie."""
    secure = _is_https(request)
    answer.delete_cookie(name, path=path, secure=secure, httponly=True, samesite="strict")


def _is_https(request: Request) -> bool:
    # If a proxy terminates TLS, only the public URL shows this.
    url = request.app.state.service.config.url
    return "https" in (request.scope["scheme"], urlsplit(url).scheme)
