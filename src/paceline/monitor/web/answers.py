"""Error responses: JSON for programs, a page or the login for browsers."""

from __future__ import annotations

from html import escape
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import Scope

from paceline.monitor.log import request_id
from paceline.monitor.web.templating import render

API_PREFIXES = ("/api/", "/v1/", "/metrics", "/healthz", "/readyz")

_HOP = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Paceline</title>
<meta name="color-scheme" content="light dark">
<meta http-equiv="refresh" content="0; url={to}"></head>
<body><main><h1>Paceline</h1><p><a href="{to}">Go on</a></p></main></body></html>
"""


def error_response(scope: Scope, error: HTTPException) -> Response:
    """The response to an error."""
    headers = dict(error.headers or {})
    request_headers = Headers(scope=scope)
    if scope["path"].startswith(API_PREFIXES) or "text/html" not in request_headers.get(
        "accept", ""
    ):
        body = {"error": error.detail, "request": request_id.get()}
        return JSONResponse(body, error.status_code, headers)
    if error.status_code == 401 and scope["method"] == "GET":
        return _to_login(scope, request_headers)
    page = render(
        Request(scope),
        "message.html",
        code=error.status_code,
        title=str(error.status_code),
        text=error.detail,
        number=request_id.get(),
    )
    page.headers.update(headers)
    return page


def _to_login(scope: Scope, request_headers: Headers) -> Response:
    """Redirect to the login; after a link from another site, retry the request first.

    Browsers send a SameSite=Strict cookie only if the referring page is ours. An intermediate page
    of ours therefore repeats the request; if that has no cookie either, the user is not logged in.
    """
    query = scope["query_string"].decode("latin-1")
    path = scope["raw_path"].decode("latin-1").partition("?")[0]
    here = local_path(path + (f"?{query}" if query else ""))
    if request_headers.get("sec-fetch-site") == "cross-site":
        return HTMLResponse(_HOP.format(to=escape(here)))
    return RedirectResponse(f"/login?next={quote(here, '')}", 303)


def local_path(to: str) -> str:
    """An encoded path of this service with its query; ``/`` if it leads to another site."""
    # Browsers treat \\ as / and drop tabs and line breaks: encode these.
    if not to.startswith("/") or to[1:2] in ("/", "\\"):
        return "/"
    return quote(to, "/?=&%+-._~")
