"""The pages: what is asked for, read from the store and the blobs, put into a template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.monitor.store import queries
from paceline.monitor.web import assets, charts, comparison, fleet, job_page, stream
from paceline.monitor.web.results import Kept, read_result, version_of
from paceline.monitor.web.security import require
from paceline.monitor.web.templating import render

#: Results as the job page shows them (each perhaps a megabyte), and facts for the fleet's figures.
_SECTIONS, _FACTS = 64, 50_000


def routes(service: Any) -> list[Route]:
    """All pages, their files and their news.

    Args:
        service: has config, engine, blobs, steps, bus and clock.
    """
    pages = Pages(service)
    paths = {
        "/": pages.jobs,
        "/jobs/{name}": pages.job,
        "/jobs/{name}/compare": pages.compare,
        "/fleet": pages.fleet,
        "/alerts": pages.alerts,
    }
    shown = [
        Route(path, _in_thread(page), methods=["GET"], name=page.__name__)
        for path, page in paths.items()
    ]
    return [*shown, *assets.routes(), *stream.routes(service)]


def _in_thread(page: Callable[[Request], Response]) -> Any:
    async def answer(request: Request) -> Response:
        require(request, "read")
        return await run_in_threadpool(page, request)

    answer.__name__ = page.__name__
    return answer


class Pages:
    """The pages of a service, and what is kept between two requests."""

    def __init__(self, service: Any) -> None:
        self.service = service
        self._sections: Kept[Any] = Kept(_SECTIONS)
        self._facts: Kept[Any] = Kept(_FACTS)

    def jobs(self, request: Request) -> Response:
        """The list of jobs, the worst first."""
        asked = request.query_params
        order, status = asked.get("sort", "waste"), asked.get("status", "")
        search = asked.get("q", "")[:200]
        order = order if order in queries.ORDERS else "waste"
        status = status if status in queries.STATUSES else ""
        with self.service.engine.connect() as connection:
            page = queries.list_jobs(
                connection,
                _project(request),
                search=search,
                status=status,
                order=order,
                page=_number(asked.get("page", "1")) or 1,
            )
            firing = queries.count_firing(connection, _project(request))

        def link(**changes: Any) -> str:
            usual = {"q": search, "status": status, "sort": order, "page": 1, **changes}
            told = {k: v for k, v in usual.items() if v not in ("", 1) and (k, v) != _BY_WASTE}
            return f"/?{urlencode(told)}" if told else "/"

        return self._render(
            request,
            "jobs.html",
            title="Jobs",
            active="Jobs",
            firing=firing,
            found=page,
            search=search,
            status=status,
            order=order,
            statuses=queries.STATUSES,
            link=link,
            sparkline=charts.sparkline,
            share_bar=charts.share_bar,
        )

    def job(self, request: Request) -> Response:
        """A job: its sessions, step times, and the analysis of one session."""
        with self.service.engine.connect() as connection:
            job = self._job(request, connection)
            sessions = queries.job_sessions(connection, job["id"])
            wanted = request.query_params.get("session")
            chosen = job_page.choose(sessions, wanted)
            if chosen is None and wanted is not None:
                chosen = queries.job_session(connection, job["id"], _number(wanted))
                _found(chosen)
            events = queries.job_events(connection, job["id"])
            alerts = queries.job_alerts(connection, job["id"])
            firing = queries.count_firing(connection, _project(request))
        made = None if chosen is None else self._made(chosen)
        return self._render(
            request,
            "job.html",
            title=job["name"],
            active="Jobs",
            firing=firing,
            job=job,
            sessions=sessions,
            latest=sessions[0] if sessions else None,
            chosen=chosen,
            current=job_page.choose(sessions, None),
            made=made,
            events=events,
            alerts=alerts,
            slowdown_chart=charts.slowdown_chart(sessions[::-1]),
            steps_chart=job_page.step_times(self.service.steps, job, events),
            shape=job_page.shape(job),
            event_kinds=charts.EVENT_KINDS,
        )

    def _made(self, session: Mapping[str, Any]) -> Any:
        if session["status"] != "done":
            return None
        blobs = self.service.blobs

        def make() -> Any:
            return job_page.made(read_result(blobs, session["id"]), session, blobs)

        return self._sections.get(version_of(session), make)

    def compare(self, request: Request) -> Response:
        """Two sessions of a job."""
        with self.service.engine.connect() as connection:
            job = self._job(request, connection)
            firing = queries.count_firing(connection, _project(request))
            done = [s for s in queries.job_sessions(connection, job["id"]) if s["status"] == "done"]
            pair = [
                self._compared(connection, job, done, request.query_params.get(name), place)
                for name, place in (("a", 1), ("b", 0))
            ]
        results = [
            read_result(self.service.blobs, s["id"]) if s is not None else None for s in pair
        ]
        a, b = results
        both = a is not None and b is not None
        return self._render(
            request,
            "compare.html",
            title=f"Compare sessions of {job['name']}",
            active="Jobs",
            firing=firing,
            job=job,
            sessions=done,
            pair=pair,
            both=both,
            numbers=comparison.key_lines(a, b) if both else [],
            falls=comparison.fall_lines(a, b) if both else [],
            kinds=comparison.part_lines(a, b, "by_kind") if both else [],
            stages=comparison.part_lines(a, b, "by_stage") if both else [],
            workers=comparison.worker_figures(
                [(r, s["meta"]) for r, s in zip(results, pair, strict=True)]
            )
            if both
            else [],
        )

    def _compared(
        self, connection: Any, job: Any, done: list[Any], wanted: str | None, place: int
    ) -> Any:
        """The session that is asked for, else the latest (place 0) or the one before it."""
        if wanted is not None:
            session = queries.job_session(connection, job["id"], _number(wanted))
            return _found(session)
        return done[place] if len(done) > place else None

    def fleet(self, request: Request) -> Response:
        """All jobs together."""
        project = _project(request)
        with self.service.engine.connect() as connection:
            rows = queries.fleet_jobs(connection, project)
            weeks = queries.weeks(connection, project, self.service.clock(), fleet.N_WEEKS)
            firing = queries.count_firing(connection, project)
        known = {row["session_id"]: self._fact(row["session_id"]) for row in rows}
        facts = {number: fact for number, fact in known.items() if fact is not None}
        return self._render(
            request,
            "fleet.html",
            title="Fleet",
            active="Fleet",
            firing=firing,
            totals=fleet.totals(rows),
            figures=fleet.figures(rows, facts),
            causes=fleet.causes_table(rows),
            weeks=fleet.weeks_table(weeks),
        )

    def _fact(self, session_id: int) -> Any:
        def make() -> Any:
            result = read_result(self.service.blobs, session_id)
            return None if result is None else fleet.facts(result)

        return self._facts.get(session_id, make)

    def alerts(self, request: Request) -> Response:
        """What fires and what did."""
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
            title="Alerts",
            active="Alerts",
            firing=firing,
            rows=rows,
            silences=silences,
            status=status,
        )

    def _job(self, request: Request, connection: Any) -> Any:
        return _found(queries.find_job(connection, _project(request), request.path_params["name"]))

    def _render(self, request: Request, template: str, **context: Any) -> Response:
        def job_link(name: str, project: str, rest: str = "", **more: Any) -> str:
            """A job's page; ``project`` is named where the principal sees several."""
            several = request.state.principal.project == queries.ALL
            told = {**more, **({"project": project} if several else {})}
            query = f"?{urlencode(told)}" if told else ""
            return f"/jobs/{quote(name, safe='')}{rest}{query}"

        now = self.service.clock()
        usual = {"live": True, "now": now, "base_url": self.service.config.url}
        return render(request, template, job_link=job_link, **usual, **context)


_BY_WASTE = ("sort", "waste")


def _project(request: Request) -> str:
    """The project to read: the principal's; who sees all may ask for one."""
    project: str = request.state.principal.project
    return request.query_params.get("project", project) if project == queries.ALL else project


def _number(text: str | None) -> int:
    """A number of a query; 0 for what is none."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 16 else 0


def _found(row: Any) -> Any:
    if row is None:
        raise HTTPException(404, "there is no such job or session")
    return row
