"""A process that only analyses sessions from the store's queue; there may be many."""

from __future__ import annotations

import logging
import signal
import threading

from sqlalchemy.exc import SQLAlchemyError

from paceline.files import make_folder
from paceline.monitor.analysis_pool import Analyses
from paceline.monitor.bucket import DirectBlobs, Gate
from paceline.monitor.bus import Bus
from paceline.monitor.config import Config
from paceline.monitor.instances.claim import claim
from paceline.monitor.instances.membership import LIFE_S, Membership
from paceline.monitor.log import log
from paceline.monitor.store.database import hold_nothing_up, open_database
from paceline.monitor.store.lock import StoreLock


class Worker:
    """Analyses sessions until a signal.

    Args:
        config: store, blobs, limits of an analysis; ``data`` is scratch.

    Raises:
        MonitorError: store or bucket cannot be used, or a single-process service has the store.
    """

    def __init__(self, config: Config) -> None:
        make_folder(config.data)
        self._blobs = DirectBlobs(config.blobs, Gate())
        self._engine = open_database(config.store_url)
        hold_nothing_up(self._engine, LIFE_S)
        self._lock = StoreLock(self._engine, several=True)
        self.public_store = self._engine.url.set(query={}).render_as_string(hide_password=True)
        self._members = Membership(self._engine, config.instance, "work", lambda *_: None)
        self._members.join()
        self._blobs.claim(claim(self._engine, self._members.clock()))
        self._analyses = Analyses(
            config,
            self._engine,
            self._blobs,
            Bus(),
            self._members.clock,
            lambda *_: None,  # the sender of alerts looks for finished sessions
            self._members.id,
        )

    def run_until_signal(self) -> None:
        """Work until SIGINT or SIGTERM; running sessions return to the queue."""
        self.run_until(until_signal())

    def run_until(self, over: threading.Event) -> None:
        """Work until ``over`` is set; running sessions return to the queue."""
        self._members.start()
        self._analyses.start()
        while not over.wait(5.0):
            try:
                self._lock.keep()
            except SQLAlchemyError as error:  # the database is unreachable
                log(logging.ERROR, "no lock", reason=str(error).partition("\n")[0][:200])
        self._analyses.stop()
        self._members.stop()
        self._members.leave()
        self._engine.dispose()
        self._lock.close()


def until_signal() -> threading.Event:
    """An event that SIGINT and SIGTERM set."""
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    return over
