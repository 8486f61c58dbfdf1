"""The service without its web: store, blobs, step times, detectors, analyses, alerts, retention."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from paceline.errors import MonitorError
from paceline.files import make_folder
from paceline.monitor.alerts.engine import Alerts
from paceline.monitor.analysis import Analyses
from paceline.monitor.blobs import Blobs, open_blobs
from paceline.monitor.bus import Bus
from paceline.monitor.config import Config
from paceline.monitor.detectors import Detectors
from paceline.monitor.log import log
from paceline.monitor.retention import Retention
from paceline.monitor.step_files import StepFiles
from paceline.monitor.store import jobs, sessions
from paceline.monitor.store.database import open_database
from paceline.monitor.uploads import Uploads

#: How often the service looks at silent jobs and alerts, and how often at what is too old.
TICK_S, RETENTION_S = 5.0, 600.0
#: Results this fresh are shown to the alerts once more after a start: one may have been missed.
_AGAIN_S = 900.0


class Service:
    """Everything behind the pages and the API; one process has the data folder at a time.

    Attributes:
        config: the settings.
        clock: seconds since 1970.
        engine: the database.
        blobs: traces and results.
        steps: step times on disk.
        bus: news for open pages.
        uploads: of traces.
        detectors: of the step times.
        analyses: of the sessions.
        retention: removes what is too old or too much.
        alerts: told of sessions and events.
    """

    def __init__(self, config: Config, clock: Callable[[], float] = time.time) -> None:
        """Open the store and the data folder.

        Raises:
            MonitorError: the store cannot be used, or another service uses the data folder.
            OutputError: the data folder cannot be written.
        """
        self.config, self.clock = config, clock
        make_folder(config.data)
        self._lock = _lock_folder(config)
        try:
            self.engine = open_database(config.store_url)
            self.blobs: Blobs = open_blobs(config.blobs, config.data)
        except BaseException:
            os.close(self._lock)
            raise
        self.steps = StepFiles(config.data / "steps")
        self.bus = Bus()
        self.uploads = Uploads(config, self.engine, self.blobs)
        self.alerts = Alerts(self)
        self.detectors = Detectors(self.engine, self.steps, self.bus, clock, self._event)
        self.analyses = Analyses(config, self.engine, self.blobs, self.bus, clock, self._session)
        self.retention = Retention(config, self.engine, self.blobs, self.steps, self.uploads)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-service", daemon=True)
        self.running = False

    def start(self) -> None:
        """Take up what the last end left, and work."""
        self.uploads.remove_strays()
        self.alerts.start()
        self.detectors.start()
        self.detectors.resume(jobs.running(self.engine))
        self.analyses.start()
        for job_id, session_id in sessions.recently_done(self.engine, self.clock() - _AGAIN_S):
            self._session(job_id, session_id)
        self._thread.start()
        self.running = True

    def stop(self) -> None:
        """Finish what is acknowledged, save, and let go of the data folder."""
        self.running = False
        self._stop.set()
        self.bus.close()
        if self._thread.ident is not None:
            self._thread.join()
            self.analyses.stop()
            self.detectors.stop()
            self.alerts.stop()
        self.steps.close()
        self.engine.dispose()
        os.close(self._lock)

    def _run(self) -> None:
        cleaned = 0.0
        while not self._stop.wait(TICK_S):
            now = self.clock()
            self._safely("silent jobs", self._find_silent, now)
            self._safely("alerts", self.alerts.tick, now)
            if not 0 <= now - cleaned < RETENTION_S:
                cleaned = now
                self._safely("retention", self.retention.run, now)

    def _find_silent(self, now: float) -> None:
        if self.config.silent_after_s:
            for job in jobs.silence_quiet(self.engine, now - self.config.silent_after_s):
                told = {"job": job.name, "job_id": job.id, "status": "silent"}
                self.bus.publish(job.project, "job", told)

    def _event(self, job_id: int, event_id: int) -> None:
        self._safely("alerts", self.alerts.event, job_id, event_id)

    def _session(self, job_id: int, session_id: int) -> None:
        self._safely("alerts", self.alerts.session_done, job_id, session_id)

    def _safely(self, what: str, work: Callable[..., Any], *args: Any) -> None:
        """Do it; what goes wrong is a line in the log, and the next time it is tried again."""
        try:
            work(*args)
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
            log(logging.ERROR, "failed", what=what, reason=reason)


def _lock_folder(config: Config) -> int:
    number = os.open(config.data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(number)
        raise MonitorError(
            f"{config.data} is in use by another `paceline serve`; stop it"
        ) from None
    return number
