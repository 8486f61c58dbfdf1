"""The service's cookies: for scripts and plain HTTP out of reach."""

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
    """Have the browser keep a value for some seconds."""
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
    """Have the browser forget a value."""
    secure = _is_https(request)
    answer.delete_cookie(name, path=path, secure=secure, httponly=True, samesite="strict")


def _is_https(request: Request) -> bool:
    # Behind a proxy that ends TLS only the address that users know says so.
    url = request.app.state.service.config.url
    return "https" in (request.scope["scheme"], urlsplit(url).scheme)
