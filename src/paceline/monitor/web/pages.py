"""The pages: templates filled from the store and the blobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from paceline.detect.validation_command import validation_command
from paceline.ledger.categories import label
from paceline.ledger.ledger import Ledger
from paceline.monitor import upkeep
from paceline.monitor.blobs import BlobsAway
from paceline.monitor.documents import read_report
from paceline.monitor.job_ledger import MEANINGS, stored_ledger, unknown_rows
from paceline.monitor.levels import LevelChanges, Levels, with_first_step
from paceline.monitor.loss_range import slow_factor
from paceline.monitor.rank_groups import hosts_of
from paceline.monitor.refusal import Refusal
from paceline.monitor.store import queries
from paceline.monitor.store.jobs import JobKey
from paceline.monitor.web import (
    alert_buttons,
    assets,
    charts,
    comparison,
    fleet,
    job_page,
    server_events,
)
from paceline.monitor.web.alert_groups import grouped
from paceline.monitor.web.asked_project import reads
from paceline.monitor.web.bodies import checked_name, whole_number
from paceline.monitor.web.event_cost import event_cost, lost_by_now, slow_stake, step_loss
from paceline.monitor.web.event_who import with_who
from paceline.monitor.web.night import alert_views, cordon_commands, with_silences
from paceline.monitor.web.rank_page import RankView, rank_view
from paceline.monitor.web.results import ResultCache
from paceline.monitor.web.security import actor_of, require
from paceline.monitor.web.templating import nav_query, render

#: Cached results of the job page; each takes up to two megabytes.
_MAX_VIEWS = 64
#: Cached pages of a project's fleet; each has some values of each job.
_MAX_FLEETS = 8
#: Longest age of a job's cached ledger and rank view, and of a fleet's page.
_MINUTE_S = 60.0


def routes(service: Any) -> list[Route]:
    """Routes of all pages, their files and their events.

    Args:
        service: the service, with config, engine, blobs, steps, detectors, bus and clock.
    """
    pages = Pages(service)
    paths = {
        "/": pages.jobs,
        "/jobs/{name}": pages.job,
        "/jobs/{name}/compare": pages.compare,
        "/fleet": pages.fleet,
        "/alerts": pages.alerts,
    }
    page_routes = [
        Route(path, _in_thread(page), methods=["GET"], name=page.__name__)
        for path, page in paths.items()
    ]
    buttons = (
        ("/jobs/{name}/accept", pages.accept, "push"),
        ("/jobs/{name}/sessions/{id}/analyse", pages.analyse_again, "push"),
        ("/jobs/{name}/sessions/{id}/remove", pages.remove_session, "admin"),
        ("/jobs/{name}/remove", pages.remove_job, "admin"),
    )
    button_routes = [
        Route(path, _in_thread(act, scope), methods=["POST"]) for path, act, scope in buttons
    ]
    of_alerts = alert_buttons.routes(service)
    files_and_news = (*assets.routes(), *server_events.routes(service))
    return [*page_routes, *button_routes, *of_alerts, *files_and_news]


def _in_thread(page: Callable[[Request], Response], scope: str = "read") -> Any:
    async def answer(request: Request) -> Response:
        require(request, scope)
        return await run_in_threadpool(page, request)

    answer.__name__ = page.__name__
    return answer


class Pages:
    """The pages of a service, and their caches."""

    def __init__(self, service: Any) -> None:
        self.service = service
        self._views: ResultCache[job_page.SessionView] = ResultCache(_MAX_VIEWS)
        self._ledgers: ResultCache[Ledger | None] = ResultCache(_MAX_VIEWS)
        self._ranks: ResultCache[RankView | None] = ResultCache(_MAX_VIEWS)
        self._levels = Levels()
        self._fleets: ResultCache[fleet.FleetView] = ResultCache(_MAX_FLEETS)

    def jobs(self, request: Request) -> Response:
        """The list of jobs, the worst first."""
        query = request.query_params
        order, status = query.get("sort", "stake"), query.get("status", "")
        search = query.get("q", "").replace("\0", "")[:200]
        order = order if order in queries.ORDERS else "stake"
        status = status if status in (*queries.STATUSES, queries.ANY) else ""
        with self.service.engine.connect() as connection:
            page = queries.list_jobs(
                connection,
                _project(request),
                search=search,
                status=status,
                order=order,
                page=whole_number(query.get("page", "1")) or 1,
            )
            firing = queries.count_firing(connection, _project(request))
            slow = [row["id"] for row in page.rows if row["slow_since_step"] is not None]
            changes = self._levels.of(connection, slow)
        rows = [with_first_step(row, changes.get(row["id"])) for row in page.rows]
        page = replace(page, rows=rows)

        def link(**changes: Any) -> str:
            query = {"project": _asked_project(request), "q": search, "status": status}
            usual = {**query, "sort": order, "page": 1, **changes}
            return _address("/", {k: v for k, v in usual.items() if (k, v) not in _USUAL})

        return self._render(
            request,
            "jobs.html",
            news=_ALL,
            title="Jobs",
            active="Jobs",
            firing=firing,
            listing=page,
            step_losses={row["id"]: step_loss(row, changes.get(row["id"])) for row in page.rows},
            search=search,
            status=status,
            order=order,
            statuses=queries.STATUSES,
            link=link,
            asked_project=_asked_project(request),
            sparkline=charts.sparkline,
            share_bar=charts.share_bar,
        )

    def job(self, request: Request) -> Response:
        """The page of a job: its sessions, step times, and the analysis of one session."""
        with self.service.engine.connect() as connection:
            job = self._job(request, connection)
            sessions = queries.job_sessions(connection, job["id"])
            number = request.query_params.get("session")
            selected = job_page.choose(sessions, number)
            if selected is None and number is not None:
                selected = queries.job_session(connection, job["id"], whole_number(number))
                _or_404(selected)
            events = queries.job_events(connection, job["id"])
            changes = LevelChanges.of(events)
            job = with_first_step(job, changes)
            events = with_who(connection, events)
            alerts = queries.job_alerts(connection, job["id"])
            silences = queries.active_silences(connection, job["project"], self.service.clock())
            meta = queries.latest_meta(connection, job["id"]) if alerts else None
            firing = queries.count_firing(connection, _project(request))
        view = None if selected is None else self._view_of(selected)
        ledger = self._ledger_of(job)
        return self._render(
            request,
            "job.html",
            news=_ALL,
            title=job["name"],
            active="Jobs",
            firing=firing,
            job=job,
            sessions=sessions,
            latest=sessions[0] if sessions else None,
            selected=selected,
            current=job_page.choose(sessions, None),
            view=view,
            few=None if selected is None else job_page.few_steps(sessions, selected, view),
            events=events,
            alerts=alert_views(alerts, silences, job, self.service.alerts.settings.runbook),
            cordons=cordon_commands(job, changes, meta),
            slowdown_chart=charts.slowdown_chart(sessions[::-1]),
            steps_chart=job_page.step_times(self.service.steps, job, events),
            shape=job_page.shape(job),
            event_kinds=charts.EVENT_KINDS,
            event_cost=lambda event: event_cost(event, job, changes).text,
            lost_by_now=lost_by_now(job, changes),
            slow_factor=slow_factor(job),
            stake=slow_stake(job),
            validation=validation_command(job["gpus"]),
            step_loss=step_loss(job, changes) if job["slowdown"] is None else None,
            keep_days=self.service.projects.days(job["project"]),
            damaged_bytes=self.service.steps.damaged_bytes.get(job["id"], 0),
            ledger=ledger,
            unknown_rows=unknown_rows(ledger),
            ranks=self._ranks_of(job, request.query_params.get("rank")),
            meanings=MEANINGS,
            label=label,
        )

    def accept(self, request: Request) -> Response:
        """The job page's button that accepts the current step times as healthy."""
        with self.service.engine.connect() as connection:
            job = self._job(request, connection)
        _refused(self.service.accept_level, _key(job), actor_of(request))
        return _to_job(job)

    def analyse_again(self, request: Request) -> Response:
        """The button that analyses a session again."""
        job, session = self._job_and_session(request)
        key, number, sha256 = _key(job), session["id"], session["sha256"]
        _refused(upkeep.analyse_again, self.service, key, number, sha256, actor_of(request))
        return _to_job(job, session=session["id"])

    def remove_session(self, request: Request) -> Response:
        """The button that removes a session."""
        job, session = self._job_and_session(request)
        upkeep.remove_session(self.service, _key(job), session["id"], actor_of(request))
        return _to_job(job)

    def remove_job(self, request: Request) -> Response:
        """The button that removes a job."""
        with self.service.engine.connect() as connection:
            job = self._job(request, connection)
        upkeep.remove_job(self.service, _key(job), actor_of(request))
        request.app.state.forget_job(job["project"], job["name"])
        return RedirectResponse(f"/{nav_query(request.state.principal)}", 303)

    def _job_and_session(self, request: Request) -> tuple[Any, Any]:
        with self.service.engine.connect() as connection:
            job = self._job(request, connection)
            number = whole_number(request.path_params["id"])
            return job, _or_404(queries.job_session(connection, job["id"], number))

    def _view_of(self, session: Mapping[str, Any]) -> job_page.SessionView | None:
        if session["status"] != "done":
            return None
        try:
            return self._views.get(
                (session["id"], session["finished_at"]),  # which changes with a new analysis
                lambda: job_page.session_view(session["id"], self.service.blobs),
            )
        except BlobsAway as away:
            return job_page.SessionView(None, has_report=False, has_perfetto=False, away=str(away))

    def _ledger_of(self, job: Mapping[str, Any]) -> Ledger | None:
        minute = int(self.service.clock() / _MINUTE_S)
        return self._ledgers.get(
            (job["id"], job["status"], minute),
            lambda: stored_ledger(self.service.engine, self.service.steps, job["id"]),
        )

    def _ranks_of(self, job: Mapping[str, Any], asked: str | None) -> RankView | None:
        rank = whole_number(asked) if asked and asked.isascii() and asked.isdecimal() else None
        minute = int(self.service.clock() / _MINUTE_S)

        def view() -> RankView | None:
            with self.service.engine.connect() as connection:
                meta = queries.latest_meta(connection, job["id"])
            ratios, hosts = self.service.detectors.ratios(_key(job)), hosts_of(meta)
            return rank_view(ratios, hosts, rank, since, slow_factor(job))

        since = job["slow_since_step"]
        return self._ranks.get((job["id"], rank, job["last_step"] is None, since, minute), view)

    def compare(self, request: Request) -> Response:
        """The comparison of two sessions of a job."""
        with self.service.engine.connect() as connection:
            job = self._job(request, connection)
            firing = queries.count_firing(connection, _project(request))
            done = [s for s in queries.job_sessions(connection, job["id"]) if s["status"] == "done"]
            pair = [
                self._session_at(connection, job, done, request.query_params.get(name), place)
                for name, place in (("a", 1), ("b", 0))
            ]
        results = [
            read_report(self.service.blobs, s["id"]) if s is not None else None for s in pair
        ]
        both = [result for result in results if result is not None]
        return self._render(
            request,
            "compare.html",
            news="alert",
            title=f"Compare sessions of {job['name']}",
            active="Jobs",
            firing=firing,
            job=job,
            sessions=done,
            pair=pair,
            compared=comparison.compare(*both) if len(both) == 2 else None,
        )

    def _session_at(
        self, connection: Any, job: Any, done: list[Any], number: str | None, place: int
    ) -> Any:
        """The requested session, else the latest (place 0) or the one before it."""
        if number is not None:
            session = queries.job_session(connection, job["id"], whole_number(number))
            return _or_404(session)
        return done[place] if len(done) > place else None

    def fleet(self, request: Request) -> Response:
        """The page of the whole fleet."""
        project, now = _project(request), self.service.clock()
        with self.service.engine.connect() as connection:
            state = queries.fleet_state(connection, project)
            firing = queries.count_firing(connection, project)

        def view() -> fleet.FleetView:
            with self.service.engine.connect() as connection:
                rows = queries.fleet_jobs(connection, project)
                return fleet.view(rows, queries.weeks(connection, project, now, fleet.N_WEEKS))

        shown = self._fleets.get((project, int(now / _MINUTE_S), state), view)
        return self._render(
            request,
            "fleet.html",
            news="session alert",
            title="Fleet",
            active="Fleet",
            firing=firing,
            totals=shown.totals,
            figures=shown.figures,
            causes=shown.causes,
            weeks=shown.weeks,
        )

    def alerts(self, request: Request) -> Response:
        """The page of firing and resolved alerts."""
        status = request.query_params.get("status", "")
        status = status if status in ("firing", "resolved") else ""
        project = _project(request)
        with self.service.engine.connect() as connection:
            rows = queries.list_alerts(connection, project, status)
            silences = queries.active_silences(connection, project, self.service.clock())
            firing = queries.count_firing(connection, project)
        return self._render(
            request,
            "alerts.html",
            news="alert",
            title="Alerts",
            active="Alerts",
            firing=firing,
            groups=grouped(with_silences(rows, silences)),
            runbook=self.service.alerts.settings.runbook,
            silences=silences,
            status=status,
            link=lambda status: _address(
                "/alerts", {"status": status, "project": _asked_project(request)}
            ),
        )

    def _job(self, request: Request, connection: Any) -> Any:
        name = checked_name(request.path_params["name"])
        return _or_404(queries.find_job(connection, _project(request), name))

    def _render(self, request: Request, template: str, **context: Any) -> Response:
        def job_link(name: str, project: str, suffix: str = "", **query: Any) -> str:
            """URL of a job's page, with the project if the principal sees several."""
            several = request.state.principal.has_several
            query_of_job = {**query, "project": project if several else ""}
            return _address(f"/jobs/{quote(name, safe='')}{suffix}", query_of_job)

        base_url = self.service.config.base_url or str(request.base_url)
        usual = {"now": self.service.clock(), "base_url": base_url.rstrip("/")}
        return render(request, template, job_link=job_link, **usual, **context)


#: Kinds of messages that change a page about jobs.
_ALL = "job session event alert steps"
#: Defaults that the list's URL leaves out.
_USUAL = (("sort", "stake"), ("page", 1))


def _address(path: str, query: Mapping[str, Any]) -> str:
    filled = {name: value for name, value in query.items() if value != ""}
    return f"{path}?{urlencode(filled)}" if filled else path


def _project(request: Request) -> str:
    """The project to read: the principal's, or the requested one if it sees all."""
    return reads(request, request.state.principal)


def _asked_project(request: Request) -> str:
    """The project requested by a principal that sees all; "" = none."""
    several = request.state.principal.has_several
    return request.query_params.get("project", "") if several else ""


def _key(job: Mapping[str, Any]) -> JobKey:
    return JobKey(job["id"], job["project"], job["name"])


def _to_job(job: Mapping[str, Any], **query: Any) -> Response:
    """Redirect to a job's page."""
    asked = urlencode({"project": job["project"], **query})
    return RedirectResponse(f"/jobs/{quote(job['name'], safe='')}?{asked}", 303)


def _refused(act: Callable[..., None], *args: Any) -> None:
    """Run an action, with a refusal as response."""
    try:
        act(*args)
    except BlobsAway:
        raise
    except Refusal as refusal:
        raise HTTPException(refusal.status, str(refusal)) from None


def _or_404(row: Any) -> Any:
    if row is None:
        raise HTTPException(404, "there is no such job or session")
    return row
