"""One of several services on one PostgreSQL and bucket; its data folder is scratch."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait

from paceline.monitor.analysis_pool import Analyses
from paceline.monitor.blobs import Blobs
from paceline.monitor.bucket import DirectBlobs, Gate
from paceline.monitor.config import DAY_S, Config
from paceline.monitor.detectors import Detectors
from paceline.monitor.instances.claim import claim, share_cookie_key
from paceline.monitor.instances.ingest import LogWriter
from paceline.monitor.instances.log_reader import LogReader
from paceline.monitor.instances.membership import (
    ALERTS,
    LIFE_S,
    UPKEEP,
    Membership,
    Names,
    shards_in,
)
from paceline.monitor.instances.part_uploads import PartUploads
from paceline.monitor.instances.shared_spans import SharedSpans
from paceline.monitor.instances.shared_steps import SharedKeeper, SharedSteps
from paceline.monitor.service import Service
from paceline.monitor.step_files import Batch
from paceline.monitor.store import news, step_log
from paceline.monitor.store.database import hold_nothing_up
from paceline.monitor.store.jobs import JobKey

#: The instance that sends alerts judges sessions finished since then, for workers do not judge.
_DONE_S = 30.0
#: Open pages get changes since then, every few seconds, some of them twice.
_NEWS_S = 8.0
#: Time limit for writing step times to the database.
_WRITE_S = 60.0


class Instance(Service):
    """An instance that serves requests and owns some of the jobs.

    Attributes:
        members: the leases of this instance.
    """

    _several = True
    members: Membership
    spans: SharedSpans

    def __init__(self, config: Config) -> None:
        """Open store and bucket.

        Raises:
            MonitorError: they cannot be used, or a single-process service uses the store.
        """
        super().__init__(config, self._clock)

    def _clock(self) -> float:
        return self.members.clock()

    def _open_blobs(self) -> Blobs:
        return DirectBlobs(self.config.blobs, Gate())

    def _open(self) -> None:
        config, engine = self.config, self.engine
        self._sends = False
        hold_nothing_up(engine, LIFE_S)
        self.members = Membership(engine, config.instance, "serve", self._changed)
        self.members.join()
        self.blobs.claim(claim(engine, self.clock()))
        share_cookie_key(engine, config.data)
        step_log.begin_anew_behind(engine)
        steps = SharedSteps(config.data / "scratch", engine)
        self.steps = steps
        self.uploads = PartUploads(config, engine, self.blobs)
        self.detectors = Detectors(
            engine,
            steps,
            self.bus,
            self.clock,
            self._event,
            self.projects.longest_days * DAY_S,
            SharedKeeper(engine, self.members, steps),
            self._watch_clock(),
        )
        self.analyses = Analyses(
            config, engine, self.blobs, self.bus, self.clock, self._session, self.members.id
        )
        self._writer = LogWriter(engine)
        self._reader = LogReader(engine, self.detectors)

    def _open_spans(self) -> SharedSpans:
        # Beside the chunks of uploads, which are also removed at a start.
        return SharedSpans(
            self.engine, self.members, self.blobs, self.uploads.folder, self.tell_session
        )

    def _begin(self) -> None:
        self._writer.start()
        self._reader.start()
        self.members.start()

    def _end(self) -> None:
        self._writer.stop()
        self._reader.stop()
        super()._end()
        self.members.stop()  # now, for saving needs the leases until then
        self._safely("leases", self.members.leave)

    def _changed(self, gained: Names, lost: Names) -> None:
        for job in self._reader.change(shards_in(gained), shards_in(lost)):
            self.detectors.forget(job)

    def may_send(self) -> None:
        """Check that no other instance sends the alerts.

        Raises:
            LeaseLost: another one does.
        """
        self.members.check(ALERTS)

    def take_steps(self, job: JobKey, batch: Batch) -> bool:
        """Store step times for the job's owner; False if they are already stored.

        Raises:
            Refusal: the job was removed.
            SQLAlchemyError: they cannot be written; send them again.
        """
        return self._writer.append(job.id, batch).result(_WRITE_S)

    def take_many(self, batches: Sequence[tuple[JobKey, Batch]]) -> list[bool | Exception]:
        """Store the step times of several jobs, in one transaction."""
        futures = [self._writer.append(job.id, batch) for job, batch in batches]
        wait(futures, _WRITE_S)
        return [_outcome_of(future) for future in futures]

    def _send_or_not(self) -> None:
        """Start or stop sending alerts, without delaying the beat."""
        sends = self.members.owns(ALERTS)
        if sends != self._sends:
            self._sends = sends
            (self.alerts.start if sends else self.alerts.stop)()

    def _tell_pages(self, now: float) -> None:
        """Send changes by other instances to pages that are open here."""
        if self.bus.has_readers:
            for project, kind, data in news.changes(self.engine, now - _NEWS_S):
                self.bus.publish(project, kind, data)

    def _tick(self, now: float) -> None:
        self._safely("news", self._tell_pages, now)
        self._safely("spans", self.spans.tick, now)
        self._safely("alerts", self._send_or_not)
        if self.members.owns(ALERTS):
            self._safely("silent jobs", self._find_silent, now)
            self._safely("alerts", self.alerts.tick, now)
            self._safely("alerts", self._judge_done, now - _DONE_S)

    def _keep_tidy(self, now: float) -> None:
        if self.members.owns(UPKEEP):
            super()._keep_tidy(now)
            keep_s = self.projects.longest_days * DAY_S
            rows_before = now - keep_s if keep_s else None
            step_log.trim(self.engine, now - self.config.log_hours * 3600, rows_before)
            self.spans.forget_spent(now)


def _outcome_of(future: Future[bool]) -> bool | Exception:
    try:
        return future.result(0)
    except Exception as error:
        return error
