"""Removes data that is too old, too large, or unreferenced."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine

from paceline.monitor.blobs import PARTS, RESULTS, Blobs, result_key, trace_key
from paceline.monitor.config import DAY_S, Config
from paceline.monitor.otlp_jobs import Spans
from paceline.monitor.projects import Projects
from paceline.monitor.rank_file import remove_older_bins
from paceline.monitor.step_files import StepFiles
from paceline.monitor.step_series import remove_older_rows
from paceline.monitor.store import audit, events, logins, retained, uploads
from paceline.monitor.uploads import Uploads

#: Seconds without a chunk after which an upload is removed.
ABANDONED_S = DAY_S
#: Least age of an unreferenced blob, which may belong to a session in creation.
_YOUNG_S = 3600.0
#: Most sessions removed in one transaction.
_AT_A_TIME = 500


@dataclass
class Removed:
    """Counts of removed data.

    Attributes:
        sessions: old sessions, with their results.
        emptied: sessions without their traces and results, which were removed for space; their rows
            stay.
        events: old events.
        uploads: abandoned uploads.
        strays: unreferenced blobs.
        freed_bytes: bytes of blobs and step times.
    """

    sessions: int = 0
    emptied: int = 0
    events: int = 0
    uploads: int = 0
    strays: int = 0
    freed_bytes: int = 0


class Retention:
    """Applies ``keep_days`` and ``keep_gib`` of the service and of projects."""

    def __init__(
        self,
        config: Config,
        engine: Engine,
        blobs: Blobs,
        steps: StepFiles,
        pending: Uploads,
        spans: Spans,
        projects: Projects | None = None,
    ) -> None:
        self._projects = projects or Projects(config.keep_days)
        self._config, self._engine, self._blobs = config, engine, blobs
        self._steps, self._uploads, self._spans = steps, pending, spans

    def run(self, now: float) -> Removed:
        """Remove data that is too old or too large."""
        removed = Removed()
        for upload_id in uploads.abandoned(self._engine, now - ABANDONED_S):
            self._uploads.abandon(upload_id)
            removed.uploads += 1
        self._remove_older(now, removed)
        for project, limits in self._projects.named.items():
            if limits.keep_gib:
                self._make_room(int(limits.keep_gib * (1 << 30)), removed, project)
        if self._config.keep_gib:
            self._make_room(int(self._config.keep_gib * (1 << 30)), removed)
        logins.remove_older(self._engine, now)
        if self._config.keep_audit_days:
            audit.remove_older(self._engine, now - self._config.keep_audit_days * DAY_S)
        return removed

    def collect(self, now: float) -> Removed:
        """Also remove unreferenced blobs, uploads, and step times of removed jobs."""
        removed = self.run(now)
        traces, job_folders = retained.references(self._engine)
        under_way = uploads.ids(self._engine)
        for key, size, changed in list(self._blobs.listed()):
            kind, name = key.split("/", 1)
            if kind == PARTS:
                is_used = name.split("/")[0] in under_way
            else:
                owner = name.split("/")[1]
                is_used = owner in traces if kind == "traces" else owner in job_folders
            if not is_used and changed < now - _YOUNG_S:
                self._blobs.delete(key)
                removed.strays += 1
                removed.freed_bytes += size
        removed.uploads += self._uploads.remove_strays()
        return removed

    def _remove_older(self, now: float, removed: Removed) -> None:
        projects = retained.projects(self._engine)
        for project, before in self._projects.before(projects, now, DAY_S).items():
            while old := retained.sessions_before(self._engine, before, _AT_A_TIME, project):
                retained.remove(self._engine, [row.id for row in old])
                for row in old:  # rows first, for collect() finds blobs without rows
                    removed.freed_bytes += self._remove_blobs(row)
                removed.sessions += len(old)
            removed.events += events.remove_older(self._engine, before, project)
            for job_id in retained.job_ids(self._engine, project) & set(self._steps.job_ids()):
                self._remove_steps(job_id, before, removed)
        if self._projects.longest_days:
            before = now - self._projects.longest_days * DAY_S
            removed.freed_bytes += self._spans.remove_older(before)
            for job_id in set(self._steps.job_ids()) - retained.job_ids(self._engine, "*"):
                self._remove_steps(job_id, before, removed)  # nobody's

    def _remove_steps(self, job_id: int, before: float, removed: Removed) -> None:
        removed.freed_bytes += self._steps.remove_older(job_id, before)
        remove_older_rows(self._steps.path(job_id), before)
        remove_older_bins(self._steps.path(job_id), before)

    def _size(self, project: str) -> int:
        """Bytes of a project's blobs ("*" = of all); a shared trace counts for both projects."""
        if project == "*":
            return sum(size for _, size, _ in self._blobs.listed())
        traces, job_folders = retained.references(self._engine, project)
        owned = {"traces": traces, "results": job_folders}
        return sum(
            size
            for key, size, _ in self._blobs.listed()
            if key.split("/")[2] in owned.get(key.split("/")[0], ())
        )

    def _make_room(self, most: int, removed: Removed, project: str = "*") -> None:
        size = self._size(project)
        after = (-1.0, -1)
        while size > most:
            rows = retained.oldest(self._engine, after, _AT_A_TIME, project)
            if not rows:
                return
            for row in rows:
                if size <= most:
                    return
                after = (row.created_at, row.id)
                freed = self._remove_blobs(row)
                size -= freed
                removed.freed_bytes += freed
                removed.emptied += bool(freed)

    def _remove_blobs(self, row: retained.Held) -> int:
        keys = [result_key(row.id, name) for name in RESULTS]
        if not retained.shares_trace(self._engine, row):
            keys.append(trace_key(row.sha256))
        freed = sum(self._blobs.size(key) for key in keys)
        for key in keys:
            self._blobs.delete(key)
        return freed
