"""Static files of the pages, the monitor's own and the report's, under versioned names."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

#: File -> its folder. The report's code also draws the figures here.
_FILES = MappingProxyType(
    {
        **dict.fromkeys(
            ("page.css", "base.js", "heatmap.js", "chart.js"),
            ("paceline.report", "page", "static"),
        ),
        **dict.fromkeys(
            ("monitor.css", "theme.js", "figures.js", "live.js", "icon.svg"),
            ("paceline.monitor", "web", "static"),
        ),
    }
)
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_FOREVER = "public, max-age=31536000, immutable"


@cache
def _content(name: str) -> bytes:
    package, *folders = _FILES[name]
    return files(package).joinpath(*folders, name).read_bytes()


@cache
def static(name: str) -> str:
    """The path of a file; it changes with its content, so browsers may keep it forever."""
    return f"/static/{hashlib.sha256(_content(name)).hexdigest()[:12]}/{name}"


async def _serve(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _FILES:  # requests never become part of a path
        raise HTTPException(404)
    kind = _TYPES[name.rpartition(".")[2]]
    current = static(name).split("/")[2] == request.path_params.get("version")
    caching = _FOREVER if current else "no-cache"
    return Response(_content(name), media_type=kind, headers={"Cache-Control": caching})


def routes() -> list[Route]:
    """``/static/...``; public files without a token, which the login page needs."""
    paths = ("/static/{version}/{name}", "/static/{name}")
    return [Route(path, _serve, methods=["GET"], name="static") for path in paths]
