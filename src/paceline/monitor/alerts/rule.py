"""Rules for alerts: the defaults, and those of a YAML file."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from paceline.errors import MonitorError
from paceline.marked_yaml import Section

KINDS = ("slowdown", "fail-slow", "silent", "regression")
IMPORTANCES = ("info", "warning", "critical")
#: The label of a job that sets the importance of its alerts, overriding rules.
IMPORTANCE_LABEL = "importance"
DAY_S = 86_400.0


def _require(condition: bool, field: str, expected: str) -> None:
    if not condition:
        raise MonitorError(f"{field} must be {expected}", fields=(field,))


@dataclass(frozen=True)
class Rule:
    """A rule for alerts.

    Attributes:
        name: its name in messages, silences and the file.
        kind: one of :data:`KINDS`.
        importance: one of :data:`IMPORTANCES`; a job's label ``importance`` overrides it.
        labels: additional labels of its alerts.
        project, job: patterns (``*``, ``?``) for project and job.
        match: required labels of the job; values are patterns.
        at_least: slowdown: least S of each of the last ``sessions``; regression: least step time of
            the latest session over the median of earlier ones.
        sessions: slowdown: number of successive sessions; regression: least number of earlier
            sessions.
        gpu_hours: fail-slow: more GPU-hours than this are at stake over the next ``horizon_h``
            hours.
        lost_s: fail-slow: least seconds lost so far; cheaper ones give no alert.
        hold_s: fail-slow: the alert ends this time after the relief. Near the threshold, reliefs
            and onsets alternate and belong to one alert.
        after_s: silent: seconds without a step; until_h: hours until the job is forgotten.
        days: regression: days before the latest session with sessions to compare.
        span_h: regression: least hours from the oldest of them to the latest session.
    """

    name: str
    kind: str
    importance: str = "warning"
    labels: Mapping[str, str] = field(default_factory=dict)
    project: str = "*"
    job: str = "*"
    match: Mapping[str, str] = field(default_factory=dict)
    at_least: float = 1.1
    sessions: int = 2
    gpu_hours: float = 10.0
    horizon_h: float = 24.0
    lost_s: float = 60.0
    hold_s: float = 60.0
    after_s: float = 900.0
    until_h: float = 24.0
    days: float = 7.0
    span_h: float = 1.0

    def __post_init__(self) -> None:
        _require(self.kind in KINDS, "kind", f"one of {', '.join(KINDS)}")
        valid = self.importance in IMPORTANCES
        _require(valid, "importance", f"one of {', '.join(IMPORTANCES)}")
        _require(self.at_least > 1, "at_least", "above 1")
        for name in ("sessions", "horizon_h", "after_s", "until_h", "days"):
            _require(getattr(self, name) > 0, name, "above 0")
        _require(self.sessions <= 200, "sessions", "200 at most")
        for name in ("gpu_hours", "lost_s", "hold_s", "span_h"):
            _require(getattr(self, name) >= 0, name, "0 or more")

    def explain(self) -> str:
        """The rule's condition as text."""
        if self.kind == "slowdown":
            row = f"{self.sessions} sessions in a row" if self.sessions > 1 else "one session"
            return f"S of {self.at_least:g} or more in {row}"
        if self.kind == "fail-slow":
            stake = f"{self.gpu_hours:g} GPU-hours at stake in {self.horizon_h:g} hours"
            lost = f", once it has lost {time_in_words(self.lost_s)}" if self.lost_s else ""
            return f"a fail-slow with more than {stake}{lost}"
        if self.kind == "silent":
            return f"no step for {self.after_s:g} s"
        return (
            f"a step takes {self.at_least:g} times the median of the last {self.days:g} days "
            f"({self.sessions} sessions or more, over {time_in_words(self.span_h * 3600)} or more)"
        )

    def covers(self, project: str, job: str, labels: Mapping[str, Any]) -> bool:
        """Whether the rule applies to a job."""
        fits = fnmatch.fnmatchcase
        return (
            fits(project, self.project)
            and fits(job, self.job)
            and all(fits(str(labels.get(key, "")), value) for key, value in self.match.items())
        )


#: The default rules.
DEFAULTS = (
    Rule("slow-job", "slowdown"),
    Rule("fail-slow", "fail-slow", "critical"),
    Rule("job-silent", "silent"),
    Rule("regression", "regression", sessions=3),
)


def rules_of(section: Section, silent_after_s: float) -> tuple[Rule, ...]:
    """The rules of a file's section ``rules``, added to the defaults; ``name: false`` removes one.

    Raises:
        MonitorError: a rule is wrong; the message names file and line.
    """
    rules = {rule.name: rule for rule in default_rules(silent_after_s)}
    for name in section.nodes:
        if section.is_section(name):
            rules[name] = _rule(section, name, rules.get(name))
        elif section.plain(name) is False:
            rules.pop(name, None)
        else:
            section.fail(name, "must be a mapping of settings, or false to remove the rule")
    return tuple(rules.values())


def default_rules(silent_after_s: float) -> tuple[Rule, ...]:
    """The default rules; a job is silent after the time in the settings."""
    return tuple(
        replace(rule, after_s=silent_after_s or rule.after_s) if rule.kind == "silent" else rule
        for rule in DEFAULTS
        if rule.kind != "silent" or silent_after_s
    )


def _rule(section: Section, name: str, usual: Rule | None) -> Rule:
    rule_section = section.section(name)
    rule_fields = {f.name: f for f in fields(Rule) if f.name != "name"}
    rule_section.allow(rule_fields)
    values = {key: _value(rule_section, key) for key in rule_section.nodes}
    if usual is None and "kind" not in values:
        section.fail(name, f"is no default rule and needs a kind: {', '.join(KINDS)}")
    try:
        return replace(usual, **values) if usual else Rule(name, **values)
    except MonitorError as error:
        rule_section.blame(error)


def _value(section: Section, key: str) -> Any:
    if key in ("labels", "match"):
        return {name: str(section.section(key).plain(name)) for name in section.section(key).nodes}
    if key in ("name", "kind", "importance", "project", "job"):
        return section.text(key)
    if key == "sessions":
        return section.whole(key)
    value = section.plain(key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        section.fail(key, f"must be a number, not {value!r}")
    return float(value)


def time_in_words(size_s: float) -> str:
    """``45 seconds``; from a minute on ``1.5 minutes``."""
    amount, unit = (size_s / 60, "minute") if size_s >= 60 else (size_s, "second")
    number = f"{amount:.4g}"
    return f"{number} {unit}" + ("s" if number != "1" else "")
