"""The jobs that requests push to, created if new; their numbers are cached."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import IntegrityError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from paceline.monitor.refusal import JobGone
from paceline.monitor.service import Service
from paceline.monitor.store import jobs
from paceline.monitor.store.jobs import JobKey
from paceline.monitor.web.asked_project import writes_to
from paceline.monitor.web.bodies import checked_name
from paceline.monitor.web.security import Principal

T = TypeVar("T")

#: Cached job numbers, so that batches of step times need no query.
_MAX_CACHED_JOBS = 20_000


class PushedJobs:
    """The jobs by their names.

    Args:
        service: the service, with engine and clock.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._keys: dict[tuple[str, str], JobKey] = {}

    def forget(self, project: str, name: str) -> None:
        """Forget the number of a removed job."""
        self._keys.pop((project, name), None)

    async def on_path(
        self, request: Request, principal: Principal, work: Callable[[JobKey], T]
    ) -> T:
        """Result of ``work`` on the job of a request's path, in a thread.

        If another instance has removed the job whose number is cached, ``work`` gets a new one.
        """
        name, project = checked_name(request.path_params["name"]), writes_to(request, principal)

        def on_job() -> T:
            return work(self.all_named(project, {name})[name])

        def on_any() -> T:
            try:
                return on_job()
            except (JobGone, IntegrityError):
                self.forget(project, name)
                return on_job()

        return await run_in_threadpool(on_any)

    def all_named(self, project: str, names: set[str]) -> dict[str, JobKey]:
        """The jobs of these names."""
        known = {name: self._keys.get((project, name)) for name in names}
        keys = {name: key for name, key in known.items() if key is not None}
        unknown = names - keys.keys()
        if unknown:
            service = self._service
            made = jobs.register_many(service.engine, project, unknown, service.clock())
            if len(self._keys) + len(made) > _MAX_CACHED_JOBS:
                self._keys.clear()
            self._keys |= {(project, name): key for name, key in made.items()}
            keys |= made
        return keys
