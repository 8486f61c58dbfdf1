"""Answers that say what went wrong: JSON for programs, a page or the login for browsers."""

from __future__ import annotations

from html import escape
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import Scope

from paceline.monitor.log import request_id

API_PREFIXES = ("/api/", "/v1/", "/metrics", "/healthz", "/readyz")

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">{head}</head>
<body><main>{body}</main></body></html>
"""


def plain_page(title: str, body: str, *, status: int = 200, head: str = "") -> HTMLResponse:
    """A page without style; ``body`` and ``head`` are HTML, ``title`` is text."""
    return HTMLResponse(_PAGE.format(title=escape(title), body=body, head=head), status)


def error_response(scope: Scope, error: HTTPException) -> Response:
    """What an error is answered with."""
    request = Request(scope)
    headers = dict(error.headers or {})
    if request.url.path.startswith(API_PREFIXES) or not _is_browser(request):
        body = {"error": error.detail, "request": request_id.get()}
        return JSONResponse(body, error.status_code, headers)
    if error.status_code == 401 and request.method == "GET":
        return _to_login(request)
    text = f"<h1>{error.status_code}</h1><p>{escape(error.detail)}</p>"
    end = f"<p><a href='/'>All jobs</a> · request {escape(request_id.get())}</p>"
    page = plain_page(f"{error.status_code} · Paceline", text + end, status=error.status_code)
    page.headers.update(headers)
    return page


def _to_login(request: Request) -> Response:
    """To the login; who follows a link of another site (an alert) is asked once more first.

    Browsers send a SameSite=Strict cookie only where the page that leads here is ours. So such a
    page is put in between; if its request brings no cookie either, the user is not logged in.
    """
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.headers.get("sec-fetch-site") == "cross-site":
        refresh = f'<meta http-equiv="refresh" content="0; url={escape(quote(here, "/?=&%-._~"))}">'
        return plain_page("Paceline", f"<a href='{escape(here)}'>Go on</a>", head=refresh)
    return RedirectResponse(f"/login?next={quote(here, '')}", 303)


def _is_browser(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")
