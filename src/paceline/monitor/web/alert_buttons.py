"""The buttons of alerts on the pages: acknowledge, silence, and the ends of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from paceline.monitor.store import acknowledgements, queries
from paceline.monitor.store import alerts as store
from paceline.monitor.web.alert_groups import group_of
from paceline.monitor.web.alerts_api import acknowledge_alert
from paceline.monitor.web.answers import local_path
from paceline.monitor.web.asked_project import reads
from paceline.monitor.web.bodies import form_of, whole_number
from paceline.monitor.web.security import actor_of, require
from paceline.monitor.web.templating import nav_query

#: Longest silence or acknowledgement by a click.
_MAX_HOURS = 168
_MAX_WHY = 1000


def routes(service: Any) -> list[Route]:
    """Routes of all buttons; each redirects to the page of alerts, or to the form's ``to``."""
    buttons = AlertButtons(service)
    acts = {
        "/alerts/{id}/silence": buttons.silence,
        "/silences/{id}/end": buttons.end_silence,
        "/alerts/{id}/acknowledge": buttons.acknowledge,
        "/alerts/{id}/acknowledge/end": buttons.end_acknowledgement,
    }
    return [Route(path, _button(act), methods=["POST"]) for path, act in acts.items()]


def _button(act: Callable[[Request, int, Mapping[str, str]], None]) -> Any:
    async def answer(request: Request) -> Response:
        require(request, "operate")
        form = await form_of(request)
        number = whole_number(request.path_params["id"])
        await run_in_threadpool(act, request, number, form)
        usual = f"/alerts{nav_query(request.state.principal)}"
        return RedirectResponse(local_path(form.get("to", usual)), 303)

    return answer


class AlertButtons:
    """The handlers of the buttons."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def silence(self, request: Request, number: int, form: Mapping[str, str]) -> None:
        """Silence an alert, or its whole card, for some hours."""
        hours, why = _hours(form), _why(form)
        engine, now, project = self._service.engine, self._service.clock(), _project(request)
        with engine.connect() as connection:
            alert = queries.find_alert(connection, project, number)
            if alert is None:
                raise _no_alert()
            rows: list[dict[str, Any]] = [alert]
            if form.get("group") == "1":
                firing = queries.list_alerts(connection, project, "firing")
                rows = [dict(row) for row in group_of(alert, firing)] or rows
        for row in rows:
            store.add_silence(
                engine,
                row["project"],
                rule=row["rule"],
                job=row["job"],
                until=now + 3600.0 * hours,
                comment=why,
                now=now,
                by=actor_of(request),
            )

    def end_silence(self, request: Request, number: int, form: Mapping[str, str]) -> None:
        """End a silence."""
        now, by = self._service.clock(), actor_of(request)
        if not store.end_silence(self._service.engine, number, _project(request), now, by):
            raise HTTPException(404, "there is no such silence")

    def acknowledge(self, request: Request, number: int, form: Mapping[str, str]) -> None:
        """Acknowledge an alert, or its whole card, for some hours."""
        now = self._service.clock()
        numbers = acknowledge_alert(
            self._service.engine,
            number,
            _project(request),
            together=form.get("group") == "1",
            until=now + 3600.0 * _hours(form),
            comment=_why(form),
            now=now,
            by=actor_of(request),
        )
        if not numbers:
            raise _no_alert()

    def end_acknowledgement(self, request: Request, number: int, form: Mapping[str, str]) -> None:
        """End an acknowledgement."""
        engine, now = self._service.engine, self._service.clock()
        project, by = _project(request), actor_of(request)
        if not acknowledgements.end_acknowledgement(engine, number, project, now, by):
            raise _no_alert()


def _no_alert() -> HTTPException:
    return HTTPException(404, "there is no such firing alert")


def _project(request: Request) -> str:
    return reads(request, request.state.principal)


def _hours(form: Mapping[str, str]) -> int:
    hours = whole_number(form.get("hours"))
    if not 1 <= hours <= _MAX_HOURS:
        raise HTTPException(400, f"hours must be from 1 to {_MAX_HOURS}")
    return hours


def _why(form: Mapping[str, str]) -> str:
    why = form.get("why", "").strip()[:_MAX_WHY]
    if "\0" in why:
        raise HTTPException(400, "the reason must have no NUL")
    return why
