"""The alerts of a service: rules judge the state of jobs, and notices are sent.

A rule judges the state of a job, not single news, so judging again changes nothing. A restart
judges all recent jobs and misses no change.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from paceline.detect.event import SLOW_KINDS
from paceline.monitor.alerts.delivery import Courier
from paceline.monitor.alerts.rules import (
    DAY_S,
    IMPORTANCE_LABEL,
    IMPORTANCES,
    Alarm,
    Facts,
    Rule,
    holds,
    judge,
)
from paceline.monitor.alerts.settings import load_settings
from paceline.monitor.blobs import BlobsAway
from paceline.monitor.documents import read_report
from paceline.monitor.log import log, logger
from paceline.monitor.rank_groups import hosts_of
from paceline.monitor.store import alerts as store
from paceline.monitor.store.health import problem_in
from paceline.monitor.store.queries import latest_meta
from paceline.results.facts import cause_hosts, cause_place, gain
from paceline.units import several

#: Seconds between judgements of all firing alerts.
AGAIN_S = 300.0
#: Longest delay of a job's row behind its events; after it, the row is current, too.
SETTLED_S = 30.0
#: At a start, an older fail-slow continues only if the job's row has it.
_OLD_S = 3600.0
#: Most onsets in one headline, the latest ones, if several ranks are slow at once.
_TEXTS = 3
#: Longest wait for an unreachable store at the start, seconds.
_RETRY_S = 5.0
#: Age of the last news up to which a job is judged at the start.
_RECENT_S = 14 * DAY_S
#: Largest result of a session that is read for its findings.
_MAX_RESULT_BYTES = 64 << 20

Row = dict[str, Any]


@dataclass(frozen=True)
class Where:
    """The place of an alert and its best remedy; None if unknown.

    Attributes:
        place: as text, with the hosts.
        hosts: only the hosts, as text.
        gain: gain of the best remedy.
    """

    place: str | None = None
    hosts: str | None = None
    gain: str | None = None


class Alerts:
    """Judges jobs by the rules and queues notices.

    Args:
        service: has config, engine, blobs, bus, clock and started_at.

    Raises:
        MonitorError: the file of alerts is wrong.
    """

    def __init__(self, service: Any) -> None:
        self._service = service
        config = service.config
        self.settings = load_settings(config.alerts, config.silent_after_s)
        self._lock = threading.Lock()  # one judgement at a time, so that no alert fires twice
        self._couriers: list[Courier] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._judged_at = 0.0
        self._quiet: dict[str, set[int]] = {}  # silent jobs of each rule at the last tick

    def start(self) -> None:
        """Deliver waiting messages, and judge changes from before the start."""
        self._ended.clear()
        self._couriers = [Courier(self._service, route) for route in self.settings.routes]
        self._thread = threading.Thread(target=self._catch_up, name="alerts", daemon=True)
        for thread in (*self._couriers, self._thread):
            thread.start()

    def stop(self) -> None:
        """Stop; undelivered messages wait in the store for the next start."""
        self._ended.set()
        for courier in self._couriers:
            courier.end()
        for thread in (*self._couriers, self._thread):
            if thread is not None:
                thread.join(timeout=12.0)

    def session_done(self, job_id: int, session_id: int) -> None:
        """A session was analysed."""
        self.judge(job_id, self._service.clock())

    def event(self, job_id: int, event_id: int) -> None:
        """The detector has an event of a job; the job's row follows later."""
        self.judge(job_id, self._service.clock(), settled=False)

    def tick(self, now: float) -> None:
        """Judge jobs that may have changed with time, and from time to time all firing alerts.

        Call it every few seconds.
        """
        firing = store.firing(self._service.engine)
        quiet = {
            rule.name: self._quiet_jobs(rule, firing, now)
            for rule in self.settings.rules
            if rule.kind == "silent"
        }
        jobs: dict[int, bool] = {}
        for name, job_ids in quiet.items():  # only jobs that fell silent or are no longer silent
            jobs.update(dict.fromkeys(job_ids ^ self._quiet.get(name, set()), True))
        if any(rule.kind == "fail-slow" and rule.lost_s for rule in self.settings.rules):
            slow = store.slow_jobs(self._service.engine, now - _OLD_S)
            jobs.update(dict.fromkeys(slow, True))  # their losses have grown
        is_full_round = not 0 <= now - self._judged_at < AGAIN_S  # the clock may have been ahead
        kinds = {rule.name: rule.kind for rule in self.settings.rules}
        for row in firing:
            if is_full_round or kinds.get(row["rule"]) == "fail-slow":
                settled = row["started_at"] < now - SETTLED_S
                jobs[row["job_id"]] = jobs.get(row["job_id"], True) and settled
        if is_full_round:
            self._judged_at = now
            if self._service.config.keep_days:
                before = now - self._service.config.keep_days * DAY_S
                store.remove_older(self._service.engine, before)
        for job_id, settled in sorted(jobs.items()):
            self.judge(job_id, now, settled=settled)
        self._quiet = quiet

    def _quiet_jobs(self, rule: Rule, firing: Sequence[Row], now: float) -> set[int]:
        """Silent jobs; soon after the start only jobs with an earlier alert."""
        first, last = now - rule.until_h * 3600, now - rule.after_s
        job_ids = set(store.quiet_jobs(self._service.engine, first, last))
        if self._service.started_at <= last:
            return job_ids
        return job_ids & {row["job_id"] for row in firing if row["rule"] == rule.name}

    def judge(self, job_id: int, now: float, *, settled: bool | None = None) -> None:
        """Judge a job by all rules; alerts begin, continue or end.

        Args:
            job_id: number of the job.
            now: seconds since 1970.
            settled: whether the job's row has followed its events; None = yes if they are an hour
                old.
        """
        with self._lock:
            row = store.facts_of(self._service.engine, job_id)
            if row is None:
                return
            job, latest, events = row
            if settled is None:
                settled = bool(events) and events[0]["at"] < now - _OLD_S
            onset = going_on(job, events, settled=settled)
            since = self._service.started_at
            facts = Facts(job, latest, onset, now, relieved_at(job, events), since)
            fingerprints = [f"{rule.name}/{job_id}" for rule in self.settings.rules]
            fires = store.firing_of(self._service.engine, fingerprints)
            has_ended = job["status"] == "ended"  # no fix is possible
            for rule in self.settings.rules:
                covers = rule.covers(job["project"], job["name"], job["labels"])
                alarm = judge(rule, facts) if covers and not has_ended else None
                alert = fires.get(rule.name)
                if alarm is not None and not _says(alert, alarm):
                    self._fire(rule, alarm, facts)
                elif alarm is None and alert and has_ended:
                    self._resolve(alert["fingerprint"], job, now, "The job has ended.")
                elif alarm is None and alert and not (covers and holds(rule, facts)):
                    self._resolve(alert["fingerprint"], job, now)

    def _fire(self, rule: Rule, alarm: Alarm, facts: Facts) -> None:
        job, now = facts.job, facts.now
        importance = job["labels"].get(IMPORTANCE_LABEL)
        importance = importance if importance in IMPORTANCES else rule.importance
        where = self._where(alarm, facts)
        channels = [
            route.channel.name
            for route in self.settings.routes
            if route.takes(rule.name, job["project"], importance)
        ]
        alert = {
            "fingerprint": f"{rule.name}/{job['id']}",
            "rule": rule.name,
            "project": job["project"],
            "job_id": job["id"],
            "session_id": alarm.session_id,
            "importance": importance,
            "labels": {**{k: str(v) for k, v in job["labels"].items()}, **rule.labels},
            "headline": alarm.headline,
            "cause": alarm.cause,
            "place": where.place,
            "hosts": where.hosts,
            "gain": alarm.gain or where.gain,
            "status": "firing",
            "started_at": now,
            "updated_at": now,
        }
        wait_s = self.settings.group_wait_s
        done = store.fire(self._service.engine, alert, channels, now + wait_s)
        if done["new"] or done["learned"]:
            status = "firing" if done["new"] else "updated"
            self._tell(job, rule.name, status, done["id"])

    def _resolve(self, fingerprint: str, job: Mapping[str, Any], now: float, why: str = "") -> None:
        wait_s = self.settings.group_wait_s
        ended = store.resolve(self._service.engine, fingerprint, now, now + wait_s, why)
        if ended is not None:
            self._tell(job, ended["rule"], "resolved", ended["id"])

    def _tell(self, job: Mapping[str, Any], rule: str, status: str, number: int) -> None:
        log(logging.INFO, "alert", job=job["name"], rule=rule, status=status, alert=number)
        news = {"job": job["name"], "rule": rule, "status": status, "id": number}
        self._service.bus.publish(job["project"], "alert", news)
        for courier in self._couriers:
            courier.wake()

    def _where(self, alarm: Alarm, facts: Facts) -> Where:
        """The details of an alert, from the session's result or otherwise from the slow ranks.

        A session with the hosts need not be analysed yet, for the person on call needs the host
        now.
        """
        if alarm.session_id is not None:
            return self._in_result(alarm, alarm.session_id)
        if not alarm.ranks:
            return Where(alarm.place)
        with self._service.engine.connect() as connection:
            meta = latest_meta(connection, facts.job["id"])
        hosts = _hosts_of(meta or {}, alarm.ranks)
        return Where(f"{alarm.place}; host {hosts}" if hosts else alarm.place, hosts)

    def _in_result(self, alarm: Alarm, session_id: int) -> Where:
        try:
            report = read_report(self._service.blobs, session_id, _MAX_RESULT_BYTES)
        except (OSError, BlobsAway) as error:
            log(logging.WARNING, "no result", session=session_id, error=str(error))
            return Where()
        if report is None:
            return Where()
        cause = alarm.cause
        return Where(cause_place(report, cause), cause_hosts(report, cause), gain(report))

    def _catch_up(self) -> None:
        while not self._ended.is_set():
            try:
                self._judge_recent(self._service.clock())
                return
            except SQLAlchemyError as error:
                log(logging.ERROR, "store", error=problem_in(error))
            except Exception as error:
                logger.error("alerts", exc_info=error)
            self._ended.wait(_RETRY_S)

    def _judge_recent(self, now: float) -> None:
        channel_names = [route.channel.name for route in self.settings.routes]
        store.drop_channels(self._service.engine, channel_names)
        names = {rule.name for rule in self.settings.rules}
        for alert in store.firing(self._service.engine):
            if alert["rule"] not in names:  # the rule was removed
                store.resolve(self._service.engine, alert["fingerprint"], now, now)
        for job_id in store.recent_jobs(self._service.engine, now - _RECENT_S):
            if self._ended.is_set():
                return
            self.judge(job_id, now)
        self._judged_at = now


def _says(alert: Mapping[str, Any] | None, alarm: Alarm) -> bool:
    """Whether a firing alert already has this content."""
    names = ("headline", "cause", "session_id")
    return alert is not None and all(alert[name] == getattr(alarm, name) for name in names)


def going_on(
    job: Mapping[str, Any], events: Sequence[Mapping[str, Any]], *, settled: bool
) -> Row | None:
    """The present fail-slow of a job: all slow ranks, with the texts of the latest onsets.

    Args:
        job: its row.
        events: its onsets and reliefs, the latest first.
        settled: whether ``slow_since_step`` of the row has followed these events.
    """
    onset = next((event for event in events if event["kind"] in SLOW_KINDS), None)
    if onset is None or job["status"] == "ended":
        return None
    if settled and job["slow_since_step"] is None:
        return None
    slow: dict[int, Mapping[str, Any]] = {}
    for event in reversed(events):  # a new start of the job is a relief of all ranks
        for rank in event["ranks"]:
            if event["kind"] in SLOW_KINDS:
                slow[rank] = event
            else:
                slow.pop(rank, None)
    if not slow:  # the row has ranks that no event names (any more)
        return dict(onset) if settled else None
    event_of_text = {event["text"]: event for event in slow.values()}
    factors = [event["factor"] for event in event_of_text.values() if event["factor"] is not None]
    texts = list(event_of_text)[-_TEXTS:]
    return {
        **list(event_of_text.values())[-1],
        "ranks": sorted(slow),
        "factor": max(factors, default=None),
        "text": "; ".join(texts),
    }


def relieved_at(job: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> float:
    """Time of the latest relief; -inf without one, or if the job has ended."""
    reliefs = [event["at"] for event in events if event["kind"] in ("relief", "faster")]
    return max(reliefs, default=-math.inf) if job["status"] != "ended" else -math.inf


def _hosts_of(meta: Mapping[str, Any], ranks: Sequence[int]) -> str | None:
    """The hosts of ranks from a pushed trace; None if unknown."""
    hosts = hosts_of(meta)
    names = dict.fromkeys(hosts[rank][0] for rank in ranks if rank in hosts)
    return several(list(names), 4) or None
