"""Delivery of messages, at least once: they wait in the store until their channel accepts them."""

from __future__ import annotations

import fnmatch
import logging
import random
import threading
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from paceline.errors import MonitorError
from paceline.monitor.alerts.notice import FIRING, RESOLVED, UPDATED, Notice, job_url
from paceline.monitor.alerts.settings import Route
from paceline.monitor.log import log, logger
from paceline.monitor.store import alerts as store
from paceline.monitor.store.due import is_due
from paceline.monitor.store.health import problem_in
from paceline.monitor.store.leases import LeaseLost

#: Seconds to wait after the first failure, doubled each time, and the longest wait.
FIRST_WAIT_S, MAX_WAIT_S = 5.0, 900.0
#: Age at which a message is given up, seconds.
GIVE_UP_S = 7 * 86_400.0
#: Seconds between checks of a silenced message, and longest time between checks of the queue.
_SILENCED_S, _LOOK_S = 30.0, 5.0
#: From this number of failures on, messages are sent together, for all of them wait equally long.
_MANY_ATTEMPTS = 8

Row = dict[str, Any]


class Courier(threading.Thread):
    """Delivers the messages of one channel; a hanging channel does not delay others.

    Args:
        service: has config, engine, clock and may_send.
        route: the channel.
    """

    def __init__(self, service: Any, route: Route) -> None:
        super().__init__(name=f"alerts-{route.channel.name}", daemon=True)
        self._service, self._channel = service, route.channel
        self._woken, self._ended = threading.Event(), False

    def wake(self) -> None:
        """Check the queue again."""
        self._woken.set()

    def end(self) -> None:
        """Stop after the present message."""
        self._ended = True
        self._woken.set()

    def run(self) -> None:
        """Deliver until stopped."""
        while not self._ended:
            wait_s = _LOOK_S
            try:
                wait_s = self.round()
            except SQLAlchemyError as error:
                log(logging.ERROR, "store", error=problem_in(error))
            except LeaseLost as lost:
                log(logging.WARNING, "not sent", channel=self._channel.name, reason=str(lost))
            except Exception as error:
                logger.error("delivery", exc_info=error)
            self._woken.wait(wait_s)
            self._woken.clear()

    def round(self) -> float:
        """Send due messages; returns the seconds until the next one."""
        now: float = self._service.clock()
        rows = self._due(store.waiting(self._service.engine, self._channel.name), now)
        for group in _groups(rows):
            due = [row for row in group if is_due(row["next_at"], now)]
            if due and not self._ended:
                self._send(due if group[0]["attempts"] else group, now)
        if self._channel.repeat_s and not self._ended:
            self._repeat(now)
        later: list[float] = [row["next_at"] for row in rows if row["next_at"] > now]
        next_at = min(later, default=now + _LOOK_S)
        return min(_LOOK_S, max(0.05, next_at - now))

    def _due(self, rows: Sequence[Row], now: float) -> list[Row]:
        """Messages to send now: not silenced, and no end of an unannounced alert."""
        quiet = store.list_silences(self._service.engine, "*", now) if rows else []
        silenced = [row for row in rows if any(_silences(silence, row) for silence in quiet)]
        over = {r["alert_id"] for r in silenced if r["alert_status"] == RESOLVED}
        begins = {row["alert_id"] for row in rows if row["status"] == FIRING}
        # A receiver that got no begin of an alert needs no end, nor news of what was over at once.
        untold = begins | {r["alert_id"] for r in silenced if r["ended_at"] == r["started_at"]}
        forgotten = [r["id"] for r in silenced if r["alert_id"] in over & untold]
        # The cause of an ended alert is not needed, nor one that a worsening has made unknown.
        late = [
            row["id"]
            for row in rows
            if row["status"] == UPDATED
            and (row["alert_status"] == RESOLVED or store.is_unknown(row))
        ]
        forgotten += late
        if forgotten:
            store.forget(self._service.engine, forgotten)
        later = [r["id"] for r in silenced if r["id"] not in forgotten and r["next_at"] <= now]
        if later:
            store.mark(self._service.engine, later, next_at=now + _SILENCED_S)
        dark = {row["id"] for row in silenced} | set(late)
        return [
            row
            for row in rows
            if row["id"] not in dark and (row["status"] == FIRING or row["alert_id"] not in begins)
        ]

    def _send(self, rows: Sequence[Row], now: float) -> None:
        notices = [self._notice(row) for row in rows]
        fields = {"channel": self._channel.name, "alerts": [row["alert_id"] for row in rows]}
        self._service.may_send()
        try:
            self._channel.send(notices, now)
        except MonitorError as error:
            self._failed(rows, str(error), now)
            return
        except Exception as error:  # one failing message must not delay others
            logger.error("delivery", exc_info=error)
            self._failed(rows, f"{type(error).__name__} in the service; see its log", now)
            return
        next_at = now + self._channel.repeat_s
        store.delivered(self._service.engine, rows, next_at)
        log(logging.INFO, "alert delivered", status=rows[0]["status"], **fields)
        if rows[0]["status"] == FIRING:  # its end may wait behind it
            self.wake()

    def _failed(self, rows: Sequence[Row], error: str, now: float) -> None:
        attempts = max(row["attempts"] for row in rows) + 1
        wait_s = min(MAX_WAIT_S, FIRST_WAIT_S * 2 ** min(attempts - 1, 20))
        wait_s *= random.uniform(0.8, 1.2)  # spread, if many wait for one server
        old = [row["id"] for row in rows if row["started_at"] < now - GIVE_UP_S]
        late = [row["id"] for row in rows if row["id"] not in old]
        values = {"attempts": attempts, "error": error, "next_at": now + wait_s}
        for ids, state in ((old, "given-up"), (late, "waiting")):
            if ids:
                store.mark(self._service.engine, ids, state=state, **values)
        log(
            logging.WARNING,
            "alert not delivered",
            channel=self._channel.name,
            error=error,
            attempts=attempts,
            given_up=len(old),
        )

    def _repeat(self, now: float) -> None:
        rows = store.repeatable(self._service.engine, self._channel.name, now)
        rows = self._due_again(rows, now)
        if not rows:
            return
        self._service.may_send()
        try:
            self._channel.send([self._notice(row) for row in rows], now)
        except MonitorError as error:
            log(logging.WARNING, "alert not repeated", channel=self._channel.name, error=str(error))
        next_at = now + self._channel.repeat_s
        store.mark(self._service.engine, [row["id"] for row in rows], next_at=next_at)

    def _due_again(self, rows: list[Row], now: float) -> list[Row]:
        quiet = store.list_silences(self._service.engine, "*", now) if rows else []
        return [row for row in rows if not any(_silences(silence, row) for silence in quiet)]

    def _notice(self, row: Row) -> Notice:
        names = ("rule", "importance", "project", "job", "headline", "cause", "place", "gain")
        labels = {_sayable(key): _sayable(text) for key, text in row["labels"].items()}
        return Notice(
            id=row["alert_id"],
            status=FIRING if row["status"] == UPDATED else row["status"],
            is_update=row["status"] == UPDATED,
            url=job_url(self._service.config.url, row["project"], row["job"], row["session_id"]),
            started_at=row["started_at"],
            ended_at=row["ended_at"] if row["status"] == RESOLVED else None,
            labels=labels,
            runbook=self._service.alerts.settings.runbook(row["cause"]),
            **{name: _sayable(row[name]) for name in names},
        )


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Notices for one message: the same project, rule, importance and status.

    A failed message is grouped with messages of equally many failures, so that it does not delay
    new ones.
    """
    order = (FIRING, UPDATED, RESOLVED)

    def key(row: Row) -> tuple[int, str, str, str, int]:
        often = min(row["attempts"], _MANY_ATTEMPTS)
        place = order.index(row["status"])
        return place, row["project"], row["rule"], row["importance"], often

    return [list(group) for _, group in groupby(sorted(rows, key=key), key)]


def _sayable(text: Any) -> Any:
    """The text without half surrogate pairs, which clients may send but messages cannot contain."""
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else text


def _silences(silence: Row, row: Row) -> bool:
    return silence["project"] in ("*", row["project"]) and all(
        silence[name] is None or fnmatch.fnmatchcase(row[name], silence[name])
        for name in ("rule", "job")
    )
