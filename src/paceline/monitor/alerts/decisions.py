"""Which alerts of a job begin and end: one change of the job is told by one alert.

A fail-slow makes sessions slow and steps longer than before, so that three rules may hold. The
first of their alerts tells the change. A later one starts only if it is more important, or goes to
a channel that the first does not reach.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.monitor.alerts.course import began_at
from paceline.monitor.alerts.explanation import EXPLAINS, is_named
from paceline.monitor.alerts.judgement import (
    Alarm,
    Facts,
    final_headline,
    holds,
    judge,
    passed,
    renewed,
)
from paceline.monitor.alerts.rule import IMPORTANCE_LABEL, IMPORTANCES, Rule

Row = Mapping[str, Any]
#: The kinds of rules that one change of a job's speed may satisfy, and those judged by sessions.
_OF_SPEED, _BY_SESSIONS = ("fail-slow", "slowdown", "regression"), ("slowdown", "regression")


@dataclass(frozen=True)
class Decision:
    """The changes of the alerts of a job.

    Attributes:
        begins: rules and alarms of alerts that start or are updated.
        ends: alerts that end, and why; "" if the alarm just ended.
        absorbed: numbers of the alerts that end since another one tells their change.
        final: number of an alert that ends -> its last headline, where it changes.
        over: rules and alarms of what was over before an alert could begin.
    """

    begins: list[tuple[Rule, Alarm]] = field(default_factory=list)
    ends: list[tuple[Row, str]] = field(default_factory=list)
    absorbed: set[int] = field(default_factory=set)
    final: dict[int, str] = field(default_factory=dict)
    over: list[tuple[Rule, Alarm]] = field(default_factory=list)


def decide(
    rules: Sequence[Rule],
    facts: Facts,
    latest: Mapping[str, Row],
    silences: Sequence[Row],
    channels: Callable[[str, str, str], Collection[str]],
) -> Decision:
    """Judge a job by the rules.

    Args:
        rules: all rules.
        facts: the state of the job.
        latest: rule -> the job's latest alert by it, firing or not.
        silences: those that hold.
        channels: the channels of a rule, project and importance.
    """
    decision, job = Decision(), facts.job
    kinds = {rule.name: rule.kind for rule in rules}
    told = Told(job, kinds, dict(latest), silences, channels, facts.onset)
    # A fail-slow knows of a change first, and most of it.
    for rule in sorted(rules, key=lambda rule: rule.kind != "fail-slow"):
        row = latest.get(rule.name)
        alert = row if row is not None and row["status"] == "firing" else None
        covers = rule.covers(job["project"], job["name"], job["labels"])
        has_ended = job["status"] == "ended"  # no fix is possible
        alarm = judge(rule, facts) if covers and not has_ended else None
        goes_on = alarm is not None or (covers and not has_ended and holds(rule, facts))
        if alert is not None and not goes_on:
            decision.ends.append((alert, "The job has ended." if has_ended else ""))
            headline = final_headline(rule, facts, alert)
            if headline is not None:
                decision.final[alert["id"]] = headline
            continue
        if alert is not None:
            alarm = renewed(rule, facts, alert) or alarm
        if alarm is None:
            late = passed(rule, facts, row) if covers and not has_ended else None
            decision.over.extend([] if late is None else [(rule, late)])
            continue
        if alert is not None:
            told.renew(alert, alarm)
        if alert is None and not told.has(rule, alarm):
            decision.begins.append((rule, alarm))
            absorbed = told.absorbed(rule, alarm)
            decision.ends.extend(absorbed)
            decision.absorbed.update(row["id"] for row, _ in absorbed)
            told.add(rule, facts.now)
        elif alert is not None and not _says(alert, alarm):
            decision.begins.append((rule, alarm))
    ended = {row["id"] for row, _ in decision.ends}
    begins = [
        (rule, alarm)
        for rule, alarm in decision.begins
        if rule.name not in latest or latest[rule.name]["id"] not in ended
    ]
    return replace(decision, begins=begins)


def importance_of(rule: Rule, job: Row) -> str:
    """The importance of an alert: by the job's label, else by the rule."""
    label = job["labels"].get(IMPORTANCE_LABEL)
    return label if label in IMPORTANCES else rule.importance


@dataclass(frozen=True)
class Told:
    """The alerts of a job, and whether one of them tells a change already.

    Attributes:
        job: row of the job.
        kinds: rule -> its kind.
        latest: rule -> the latest alert by it.
        silences: those that hold.
        channels: the channels of a rule, project and importance.
        onset: the present fail-slow; None without one.
    """

    job: Row
    kinds: Mapping[str, str]
    latest: dict[str, Row]
    silences: Sequence[Row]
    channels: Callable[[str, str, str], Collection[str]]
    onset: Row | None = None

    def add(self, rule: Rule, now: float) -> None:
        """An alert of the rule starts now."""
        self.latest[rule.name] = {
            "rule": rule.name,
            "importance": importance_of(rule, self.job),
            "status": "firing",
            "started_at": now,
            "ended_at": None,
        }

    def renew(self, alert: Row, alarm: Alarm) -> None:
        """The cause of a firing alert becomes known now, by the alarm of its rule."""
        if not is_named(alert["cause"]) or alert["cause"] == "fail-slow":
            named = {"cause": alarm.cause, "place": alarm.place}
            self.latest[alert["rule"]] = {**alert, **named}

    def has(self, rule: Rule, alarm: Alarm) -> bool:
        """Whether another alert, to the same channels at least, tells the change of an alarm."""
        if rule.kind not in _BY_SESSIONS or alarm.since is None:
            return False
        importance = importance_of(rule, self.job)
        return any(
            self._tells(row, alarm, alarm.since) and self._reaches(row, rule.name, importance)
            for name, row in self.latest.items()
            if name != rule.name
        )

    def absorbed(self, rule: Rule, alarm: Alarm) -> list[tuple[Row, str]]:
        """Firing alerts that the new alert of a fail-slow replaces."""
        if rule.kind != "fail-slow" or alarm.began is None:
            return []
        new = {"rule": rule.name, "importance": importance_of(rule, self.job)}
        why = f"The alert {rule.name} tells the same change."
        return [
            (row, why)
            for name, row in self.latest.items()
            if self.kinds.get(name) in _BY_SESSIONS
            and row["status"] == "firing"
            and row["started_at"] >= alarm.began
            and self._reaches(new, name, row["importance"])
        ]

    def _tells(self, row: Row, alarm: Alarm, since: float) -> bool:
        """Whether an alert tells the change that began at ``since`` and is seen in a session.

        A session that is much slower than a present fail-slow shows another change, unless it
        names the same worker.
        """
        kind, fires = self.kinds.get(row["rule"]), row["status"] == "firing"
        at = alarm.at or since
        if kind not in _OF_SPEED:
            return False
        is_same = _is_same_place(row, alarm) or self._explains(row, alarm, at)
        if kind == "fail-slow" and fires and not is_same:
            return False
        if fires and row["started_at"] >= since:
            return True
        lasted = row["started_at"] <= at and (fires or row["ended_at"] > at)
        return kind == "fail-slow" and lasted

    def _explains(self, row: Row, alarm: Alarm, at: float) -> bool:
        """Whether the fail-slow of a firing alert is large enough for a session's factor.

        A session of before the latest change of its level may be of the highest level. An alert may
        go on from one fail-slow to the next. A session of before the present one is then of an
        earlier one, whose level was compared when the session came.
        """
        level = None if self.onset is None else self.onset["factor"]
        if self.onset is None or level is None or alarm.factor is None:
            return True
        began = began_at(self.onset)
        began_step = self.onset.get("began_step", self.onset["since_step"])
        if row["started_at"] < began and _is_before(alarm, at, began, began_step):
            return True
        if _is_before(alarm, at, self.onset["at"], self.onset["since_step"]):
            level = max(level, self.onset.get("peak", level))
        return bool(level - 1 >= EXPLAINS * (alarm.factor - 1))

    def _reaches(self, row: Row, rule: str, importance: str) -> bool:
        """Whether an alert is as important as another, goes to its channels and is not silent."""
        if IMPORTANCES.index(row["importance"]) < IMPORTANCES.index(importance):
            return False
        project = self.job["project"]
        reached = set(self.channels(row["rule"], project, row["importance"]))
        wanted = set(self.channels(rule, project, importance))
        return wanted <= reached and not self._is_silent(row["rule"])

    def _is_silent(self, rule: str) -> bool:
        fits = fnmatch.fnmatchcase
        return any(
            silence["project"] in ("*", self.job["project"])
            and (silence["rule"] is None or fits(rule, silence["rule"]))
            and (silence["job"] is None or fits(self.job["name"], silence["job"]))
            for silence in self.silences
        )


def _is_same_place(row: Row, alarm: Alarm) -> bool:
    """Whether an alert and a session name the same cause at the same place."""
    if alarm.place is None or not is_named(alarm.cause):
        return False
    return (row.get("cause"), row.get("place")) == (alarm.cause, alarm.place)


def _is_before(alarm: Alarm, at: float, event_at: float, step: int) -> bool:
    """Whether a session came before an event, or has only steps before it."""
    return at < event_at or (alarm.last_step is not None and alarm.last_step < step)


def _says(alert: Row, alarm: Alarm) -> bool:
    """Whether a firing alert already has this content."""
    return all(alert[name] == getattr(alarm, name) for name in ("headline", "cause", "session_id"))
