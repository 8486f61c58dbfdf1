"""The project of a request: its principal's, or the one that it asks for."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request

from paceline.monitor.web.bodies import checked_name
from paceline.monitor.web.security import Principal


def writes_to(request: Request, principal: Principal) -> str:
    """The project that a request writes to; a token for all projects may name one."""
    return _project(request, principal, principal.writes_to)


def reads(request: Request, principal: Principal) -> str:
    """The project that a request reads; "*" = all."""
    return _project(request, principal, principal.project)


def _project(request: Request, principal: Principal, usual: str) -> str:
    project = request.query_params.get("project")
    if project is None:
        return usual
    if not principal.sees(checked_name(project)):
        raise HTTPException(404, "there is no such project")
    return project
