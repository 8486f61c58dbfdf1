"""The alerts of a service: rules judge the state of jobs, and notices are sent.

A rule judges the state of a job, not single news, so judging again changes nothing. A restart
judges all recent jobs and misses no change.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from paceline.monitor.alerts.decisions import decide, importance_of
from paceline.monitor.alerts.delivery import Courier
from paceline.monitor.alerts.judgement import Alarm, Facts
from paceline.monitor.alerts.news import News
from paceline.monitor.alerts.places import Where, in_ranks, in_result
from paceline.monitor.alerts.rule import DAY_S, Rule
from paceline.monitor.alerts.settings import load_settings
from paceline.monitor.levels import LevelChanges, Levels
from paceline.monitor.log import log, logger
from paceline.monitor.store import alerts as store
from paceline.monitor.store.health import problem_in
from paceline.monitor.store.jobs import JobKey, keys_of
from paceline.monitor.store.queries import latest_metas

#: Seconds between judgements of all firing alerts.
AGAIN_S = 300.0
#: Seconds between judgements of firing alerts of a fail-slow, whose factor becomes known better.
LEVEL_AGAIN_S = 30.0
#: Longest delay of a job's row behind its events; after it, the row is current, too.
SETTLED_S = 30.0
#: At a start, an older fail-slow continues only if the job's row has it.
_OLD_S = 3600.0
#: Longest wait for an unreachable store at the start, seconds.
_RETRY_S = 5.0
#: Age of the last news up to which a job is judged at the start.
_RECENT_S = 14 * DAY_S
#: Jobs judged together.
_AT_ONCE = 200

Row = dict[str, Any]
_NO_CHANGES = LevelChanges()


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
        self._levels = Levels()
        self._couriers: list[Courier] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._news = News(self._judge_news)
        self._judged_at = self._levels_judged_at = self._reliefs_judged_at = 0.0
        self._quiet: dict[str, set[int]] = {}  # silent jobs of each rule at the last tick

    def begin(self) -> None:
        """Judge news in a thread of its own from now on."""
        self._news.begin()

    def end(self) -> None:
        """Judge the news so far; later news are judged where they happen."""
        self._news.end()

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
        self._news.add(job_id, None)

    def event(self, job_id: int, event_id: int) -> None:
        """The detector has an event of a job; the job's row follows later."""
        self._news.add(job_id, False)

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
        jobs: dict[int, bool | None] = {}
        for name, job_ids in quiet.items():  # only jobs that fell silent or are no longer silent
            jobs.update(dict.fromkeys(job_ids ^ self._quiet.get(name, set()), True))
        is_full_round = not 0 <= now - self._judged_at < AGAIN_S  # the clock may have been ahead
        is_level_round = not 0 <= now - self._levels_judged_at < LEVEL_AGAIN_S
        if is_level_round:
            self._levels_judged_at = now
        of_slow = {rule.name for rule in self.settings.rules if rule.kind == "fail-slow"}
        slow = set(store.slow_jobs(self._service.engine, now - _OLD_S)) if of_slow else set()
        told: dict[int, set[str]] = {}
        for row in firing:
            if row["rule"] in of_slow:
                told.setdefault(row["job_id"], set()).add(row["rule"])
        if of_slow and not 0 <= now - self._reliefs_judged_at < SETTLED_S:
            # Judged at the event, a job's row may not have said yet that the job runs.
            since = max(self._reliefs_judged_at, now - _OLD_S) - SETTLED_S
            jobs.update(dict.fromkeys(store.relieved_jobs(self._service.engine, since), True))
            self._reliefs_judged_at = now
        # The losses of the others have grown. Alerts of slow jobs change only with news.
        jobs.update(dict.fromkeys({i for i in slow if told.get(i) != of_slow}, True))
        for row in firing:
            job_id = row["job_id"]
            is_level = row["rule"] in of_slow and (is_level_round or job_id not in slow)
            if is_full_round or is_level:
                settled = row["started_at"] < now - SETTLED_S
                jobs[job_id] = bool(jobs.get(job_id, True)) and settled
        if is_full_round:
            self._judged_at = now
            if self._service.config.keep_days:
                before = now - self._service.config.keep_days * DAY_S
                store.remove_older(self._service.engine, before)
        self.judge_many(jobs, now)
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
        self.judge_many({job_id: settled}, now)

    def judge_many(self, jobs: Mapping[int, bool | None], now: float) -> None:
        """Judge jobs by all rules, many in a few queries.

        A query gives up the interpreter, which a busy service gets back late.

        Args:
            jobs: number of a job -> ``settled`` of :meth:`judge`.
            now: seconds since 1970.
        """
        numbers = sorted(jobs)
        for first in range(0, len(numbers), _AT_ONCE):
            some = {job_id: jobs[job_id] for job_id in numbers[first : first + _AT_ONCE]}
            with self._lock:
                self._judge(some, now)

    def _judge_news(self, jobs: Mapping[int, bool | None]) -> None:
        self.judge_many(jobs, self._service.clock())

    def _judge(self, jobs: Mapping[int, bool | None], now: float) -> None:
        rules, job_ids = self.settings.rules, list(jobs)
        fingerprints = [f"{rule.name}/{job_id}" for rule in rules for job_id in job_ids]
        with self._service.engine.connect() as connection:
            rows = store.facts_of(connection, job_ids)
            levels = self._levels.of(connection, job_ids)
            latest = store.latest_of(connection, fingerprints)
        silences = store.list_silences(self._service.engine, "*", now)
        begins: list[tuple[Rule, Alarm, Facts]] = []
        over: list[tuple[Rule, Alarm, Facts]] = []
        endings: list[store.Ending] = []
        for job_id, (job, sessions) in rows.items():
            level, settled = levels.get(job_id, _NO_CHANGES), jobs[job_id]
            if settled is None:
                settled = level.latest_at < now - _OLD_S and level.latest_at > -math.inf
            onset = level.going_on(job, settled=settled)
            relieved_at = level.relieved_at if job["status"] != "ended" else -math.inf
            started_at = self._service.started_at
            facts = Facts(job, sessions, onset, now, relieved_at, started_at, level.episodes)
            names = {rule.name: f"{rule.name}/{job_id}" for rule in rules}
            of_job = {name: latest[place] for name, place in names.items() if place in latest}
            decision = decide(rules, facts, of_job, silences, self._channels)
            begins += [(rule, alarm, facts) for rule, alarm in decision.begins]
            over += [(rule, alarm, facts) for rule, alarm in decision.over]
            endings += [
                store.Ending(
                    row["fingerprint"],
                    why,
                    decision.final.get(row["id"]),
                    row["id"] in decision.absorbed,
                )
                for row, why in decision.ends
            ]
        self._apply(begins, over, endings, now)

    def _apply(
        self,
        begins: Sequence[tuple[Rule, Alarm, Facts]],
        over: Sequence[tuple[Rule, Alarm, Facts]],
        endings: Sequence[store.Ending],
        now: float,
    ) -> None:
        wait_s = self.settings.group_wait_s
        told = store.change(
            self._service.engine,
            [store.Firing(*content) for content in self._contents(begins)],
            endings,
            now,
            now + wait_s,
            [
                store.Passed(*content, float(alarm.began or now))
                for content, (_, alarm, _) in zip(self._contents(over), over, strict=True)
            ],
        )
        job_ids = sorted({int(change.fingerprint.rpartition("/")[2]) for change in told})
        keys = keys_of(self._service.engine, job_ids) if told else {}
        for change in told:
            rule_name, _, number = change.fingerprint.rpartition("/")
            if int(number) in keys:
                self._tell(keys[int(number)], rule_name, change.status, change.id)

    def _contents(self, alarms: Sequence[tuple[Rule, Alarm, Facts]]) -> list[tuple[Row, list[str]]]:
        """Rows of alerts that start now, and the channels that are told."""
        contents = []
        for (rule, alarm, facts), where in zip(alarms, self._places(alarms), strict=True):
            importance = importance_of(rule, facts.job)
            channels = self._channels(rule.name, facts.job["project"], importance)
            contents.append((_row(rule, alarm, facts, importance, where), channels))
        return contents

    def _channels(self, rule: str, project: str, importance: str) -> list[str]:
        routes = self.settings.routes
        return [r.channel.name for r in routes if r.takes(rule, project, importance)]

    def _tell(self, job: JobKey, rule: str, status: str, number: int) -> None:
        log(logging.INFO, "alert", job=job.name, rule=rule, status=status, alert=number)
        news = {"job": job.name, "rule": rule, "status": status, "id": number}
        self._service.bus.publish(job.project, "alert", news)
        for courier in self._couriers:
            courier.wake()

    def _places(self, begins: Sequence[tuple[Rule, Alarm, Facts]]) -> list[Where]:
        """The places of alerts, from the session's result or otherwise from the slow ranks."""
        by_ranks = [f.job["id"] for _, a, f in begins if a.session_id is None and a.ranks]
        metas: dict[int, Any] = {}
        if by_ranks:
            with self._service.engine.connect() as connection:
                metas = latest_metas(connection, by_ranks)
        places = []
        for _, alarm, facts in begins:
            if alarm.session_id is not None:
                places.append(in_result(self._service.blobs, alarm, alarm.session_id))
            elif alarm.ranks:
                places.append(in_ranks(alarm, metas.get(facts.job["id"])))
            else:
                places.append(Where(alarm.place))
        return places

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
        removed = [row for row in store.firing(self._service.engine) if row["rule"] not in names]
        why = "The rule was removed."
        endings = [store.Ending(row["fingerprint"], why) for row in removed]
        store.change(self._service.engine, [], endings, now, now)
        job_ids = store.recent_jobs(self._service.engine, now - _RECENT_S)
        for first in range(0, len(job_ids), _AT_ONCE):
            if self._ended.is_set():
                return
            self.judge_many(dict.fromkeys(job_ids[first : first + _AT_ONCE]), now)
        self._judged_at = now


def _row(rule: Rule, alarm: Alarm, facts: Facts, importance: str, where: Where) -> Row:
    """The row of an alert that starts now."""
    job = facts.job
    return {
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
        "factor_least": alarm.level,
        "factor_most": alarm.level,
        "status": "firing",
        "started_at": facts.now,
        "updated_at": facts.now,
    }
