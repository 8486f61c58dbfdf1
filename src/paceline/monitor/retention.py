"""Removes data that is too old, too much, or nobody's."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine

from paceline.monitor.blobs import PARTS, RESULTS, Blobs, result_key, trace_key
from paceline.monitor.config import DAY_S, Config
from paceline.monitor.otlp_jobs import SpanFiles
from paceline.monitor.rank_file import remove_older_bins
from paceline.monitor.step_files import StepFiles
from paceline.monitor.step_series import remove_older_rows
from paceline.monitor.store import events, retained, uploads
from paceline.monitor.uploads import Uploads

#: Time without news after which an upload is forgotten.
ABANDONED_S = DAY_S
#: A blob that nobody refers to may belong to a session that is being made right now.
_YOUNG_S = 3600.0
#: Sessions removed in one transaction.
_AT_A_TIME = 500


@dataclass
class Removed:
    """The removed data.

    Attributes:
        sessions: too old, with their results.
        emptied: sessions whose trace and results went to make room; their numbers stay.
        events: too old.
        uploads: abandoned.
        strays: blobs that belonged to nothing.
        freed_bytes: of blobs and step times.
    """

    sessions: int = 0
    emptied: int = 0
    events: int = 0
    uploads: int = 0
    strays: int = 0
    freed_bytes: int = 0


class Retention:
    """Applies ``keep_days`` and ``keep_gib``."""

    def __init__(
        self,
        config: Config,
        engine: Engine,
        blobs: Blobs,
        steps: StepFiles,
        pending: Uploads,
        spans: SpanFiles,
    ) -> None:
        self._config, self._engine, self._blobs = config, engine, blobs
        self._steps, self._uploads, self._spans = steps, pending, spans

    def run(self, now: float) -> Removed:
        """Remove data that is too old or too much."""
        removed = Removed()
        for upload_id in uploads.abandoned(self._engine, now - ABANDONED_S):
            self._uploads.abandon(upload_id)
            removed.uploads += 1
        if self._config.keep_days:
            self._remove_older(now - self._config.keep_days * DAY_S, removed)
        if self._config.keep_gib:
            self._make_room(int(self._config.keep_gib * (1 << 30)), removed)
        return removed

    def collect(self, now: float) -> Removed:
        """Remove also what belongs to nothing: blobs, uploads, step times of removed jobs."""
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

    def _remove_older(self, before: float, removed: Removed) -> None:
        while old := retained.sessions_before(self._engine, before, _AT_A_TIME):
            retained.remove(self._engine, [row.id for row in old])
            for row in old:  # their rows first: a blob without a row is found by collect()
                removed.freed_bytes += self._remove_blobs(row)
            removed.sessions += len(old)
        removed.events += events.remove_older(self._engine, before)
        removed.freed_bytes += self._spans.remove_older(before)
        for job_id in self._steps.job_ids():
            removed.freed_bytes += self._steps.remove_older(job_id, before)
            remove_older_rows(self._steps.path(job_id), before)
            remove_older_bins(self._steps.path(job_id), before)

    def _make_room(self, most: int, removed: Removed) -> None:
        size = sum(size for _, size, _ in self._blobs.listed())
        after = (-1.0, -1)
        while size > most:
            rows = retained.oldest(self._engine, after, _AT_A_TIME)
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
