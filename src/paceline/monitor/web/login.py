"""The login of the pages: a token in a form, a signed cookie in return."""

from __future__ import annotations

from html import escape
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from paceline.monitor.store.tokens import find_token
from paceline.monitor.web.answers import plain_page
from paceline.monitor.web.security import COOKIE, Sessions

_MAX_FORM_BYTES = 4096

_FORM = """<h1>Paceline</h1>
<form method="post" action="/login">{problem}
<input type="hidden" name="next" value="{next}">
<p><label for="token">Access token</label><br>
<input id="token" name="token" type="password" autocomplete="current-password" required
 autofocus size="50" maxlength="200"></p>
<p><button type="submit">Log in</button></p>
<p>Whoever runs this service makes one:
<code>paceline admin token create NAME --scope read</code></p>
</form>"""


def routes(service: Any, sessions: Sessions, failures: Any) -> list[Route]:
    """/login and /logout.

    Args:
        service: has engine and clock.
        sessions: makes the cookies.
        failures: takes a client's address; seconds to wait, or 0.
    """

    def login(request: Request) -> Response:
        return _form(request.query_params.get("next", "/"))

    async def enter(request: Request) -> Response:
        _from_here(request)
        form = await _form_of(request)
        secret, to = form.get("token", "").strip(), _local(form.get("next", "/"))
        now = service.clock()
        token = await run_in_threadpool(find_token, service.engine, secret, now)
        problem = "is not known" if token is None else token.problem(now)
        if token is None or problem:
            seconds = failures(request.client.host if request.client else "")
            if seconds:
                headers = {"Retry-After": str(int(seconds) + 1)}
                raise HTTPException(429, "too many wrong tokens", headers=headers)
            return _form(to, f"This token {problem}.", 401)
        value, seconds = sessions.cookie(token, now)
        answer = RedirectResponse(to, 303)
        answer.set_cookie(
            COOKIE,
            value,
            max_age=seconds,
            path="/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    def leave(request: Request) -> Response:
        _from_here(request)
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return answer

    return [
        Route("/login", login),
        Route("/login", enter, methods=["POST"]),
        Route("/logout", leave, methods=["POST"]),
    ]


def _form(to: str, problem: str = "", status: int = 200) -> Response:
    said = f'<p role="alert">{escape(problem)}</p>' if problem else ""
    head = '<link rel="stylesheet" href="/static/page.css">'
    body = _FORM.format(problem=said, next=escape(_local(to)))
    return plain_page("Log in · Paceline", body, status=status, head=head)


def _local(to: str) -> str:
    """Where to go after the login: a path of this service, never another site."""
    parts = urlsplit(to)
    good = to.startswith("/") and not to.startswith(("//", "/\\")) and not parts.netloc
    return quote(to, "/?=&%-._~") if good else "/"


async def _form_of(request: Request) -> dict[str, str]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_FORM_BYTES:
            raise HTTPException(413, "this form is short")
    try:
        return dict(parse_qsl(body.decode("ascii"), max_num_fields=8))
    except ValueError:
        raise HTTPException(400, "this is no form of ours") from None


def _from_here(request: Request) -> None:
    """Nobody is to be logged in (as somebody else) or out by another site."""
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "same-origin")
    same = origin in (None, "null") or urlsplit(origin).netloc == request.headers.get("host")
    if not same or site not in ("same-origin", "none"):
        raise HTTPException(403, "the request comes from another site")
