"""The judgement of a job by each kind of rule: whether an alert begins, goes on, and its words."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.detect.validation_command import validation_command
from paceline.detect.who import name_ranks
from paceline.monitor.alerts.course import Course, began_at, course_of, lost_so_far_s
from paceline.monitor.alerts.explanation import Explanation, explanation_of, is_named, main_at
from paceline.monitor.alerts.rule import DAY_S, Rule, time_in_words
from paceline.monitor.loss_range import (
    data_share,
    largest_lasting,
    largest_lasting_loss,
    largest_slowdown,
    lasting_kind,
    may_go_on,
)
from paceline.units import duration, gpu_hours, moment, percent, seconds

#: A relief is news for an hour. So a new rule, or a first start, tells nothing of the days before.
_NEWS_S = 3600.0


@dataclass(frozen=True)
class Facts:
    """The state of a job for the rules.

    Attributes:
        job: its row in the store.
        sessions: rows of its analysed sessions in the last weeks, the latest first.
        onset: the event of the present fail-slow; None without one.
        episodes: the job's fail-slows in order, the present or latest one last.
        relieved_at: time of the latest relief of a running job; -inf without one.
        watched_since: start of the service, before which no news could arrive.
        now: seconds since 1970.
    """

    job: Mapping[str, Any]
    sessions: Sequence[Mapping[str, Any]]
    onset: Mapping[str, Any] | None
    now: float
    relieved_at: float = -math.inf
    watched_since: float = -math.inf
    episodes: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Alarm:
    """The reason for an alert.

    Attributes:
        headline: what happened, in a sentence.
        cause: suspected cause; None if unknown.
        place: its place; None if unknown.
        session_id: the session behind it.
        gain: the action and its gain; None if the session has it.
        ranks: the slow ranks.
        since: since when the job is as it is, as far as events and sessions show.
        began: begin of the fail-slow, which may have become worse later; None of another rule.
        at: time of the session behind it.
        factor: by which the session's steps are too long, S or the ratio to earlier steps.
        last_step: the session's last step; None = unknown.
        level: factor of the present level by all of its steps; None of another rule, or if it is
            known by its first steps only.
    """

    headline: str
    cause: str | None = None
    place: str | None = None
    session_id: int | None = None
    gain: str | None = None
    ranks: tuple[int, ...] = ()
    since: float | None = None
    began: float | None = None
    at: float | None = None
    factor: float | None = None
    last_step: int | None = None
    level: float | None = None


def judge(rule: Rule, facts: Facts) -> Alarm | None:
    """Judge a job by a rule: the reason for an alert, or None."""
    return _JUDGES[rule.kind](rule, facts)


def holds(rule: Rule, facts: Facts) -> bool:
    """Whether a firing alert continues although its rule does not hold now."""
    if rule.kind == "silent":  # no news since the service restarted
        return _silent(rule, replace(facts, watched_since=-math.inf)) is not None
    if rule.kind != "fail-slow":
        return False
    # A firing alert continues from relief to onset, even if each single episode loses little.
    is_slow = _fail_slow(replace(rule, lost_s=0.0), facts) is not None
    return is_slow or facts.now - facts.relieved_at < rule.hold_s


def _slowdown(rule: Rule, facts: Facts, *, is_over: bool = False) -> Alarm | None:
    latest = facts.sessions[: rule.sessions]
    if len(latest) < rule.sessions or not all(_is_slow(s, rule.at_least) for s in latest):
        return None
    last = latest[0]
    often = f" in {rule.sessions} sessions in a row" if rule.sessions > 1 else ""
    slow = list(itertools.takewhile(lambda s: _is_slow(s, rule.at_least), facts.sessions))
    told, session_text = _last_named(slow, is_over=is_over)
    size = f"S {_slowdown_words(last, is_over=is_over)}: {rule.at_least:g} or more{often}."
    # The cause comes before the numbers, unless an earlier session named it.
    texts = [session_text, size] if told is last and not is_over else [size, session_text]
    headline = " ".join(filter(None, texts))
    return Alarm(
        headline,
        told["cause"],
        told["place"],
        session_id=told["id"],
        since=slow[-1]["created_at"],
        at=last["created_at"],
        factor=largest_lasting_loss(last),
        last_step=last["last_step"],
    )


def _slowdown_words(session: Mapping[str, Any], *, is_over: bool = False) -> str:
    """S of a session, the part of it that lasts, and its waits for data."""
    whole = _span_of(session["slowdown"], largest_slowdown(session))
    words = f"{'was' if is_over else '='} {whole}"
    if session["slowdown_lasting"] is not None:
        lasting = _span_of(session["slowdown_lasting"], largest_lasting(session))
        if lasting != whole:
            words += f", of which {lasting} {what_lasts(session, is_over=is_over)}"
    waits = data_share(session)
    if waits:
        with_data, verb = f"{largest_lasting_loss(session):.3f}", "was" if is_over else "is"
        words += f"; with data loading, {percent(waits)} of the step, it {verb} {with_data}"
    return words


def _last_named(
    slow: Sequence[Mapping[str, Any]], *, is_over: bool = False
) -> tuple[Mapping[str, Any], str]:
    """The latest of slow sessions that names a cause, else the latest; and its headline."""
    last = slow[0]
    named = next((s for s in slow if is_named(s["cause"])), last)
    if not named["headline"]:
        return named, ""
    if named is last and not is_over:
        return named, f"{named['headline']}"
    up_to = "" if named["last_step"] is None else f" up to step {named['last_step']:,}"
    if not up_to and not is_over:
        return named, f"{named['headline']}"
    return named, f"A session{up_to} said: {named['headline']}"


def what_lasts(row: Mapping[str, Any], *, is_over: bool = False) -> str:
    """The words after the number ``slowdown_lasting`` of a session or job."""
    if lasting_kind(row) == "beyond-chance":
        return "was beyond chance" if is_over else "is beyond chance"
    return "lasted or had a cause" if is_over else "lasts or has a cause"


def _is_slow(session: Mapping[str, Any], least: float) -> bool:
    """Whether the loss that lasts may be high; a healthy session's is variation that passes."""
    slowdown = largest_lasting_loss(session)
    return slowdown is not None and slowdown >= least and session["cause"] != "healthy"


def _span_of(low: float, high: float | None) -> str:
    """``1.214``, or ``1.214 to 1.507`` for a range."""
    texts = dict.fromkeys(f"{value:.3f}" for value in (low, high or low))
    return " to ".join(texts)


def _fail_slow(rule: Rule, facts: Facts) -> Alarm | None:
    onset = facts.onset
    if onset is None or onset["factor"] is None or not may_go_on(facts.job):
        return None
    if not _is_costly(rule, facts.job, onset["factor"], lost_so_far_s(onset, facts.job)):
        return None
    return _alarm_of(rule, facts, Course(facts.job, [dict(onset)], goes_on=True))


def _is_costly(rule: Rule, job: Mapping[str, Any], factor: float, lost_s: float) -> bool:
    """Whether a fail-slow of this factor puts enough at stake, and has lost enough."""
    at_stake = gpu_hours_at_stake(job["gpus"], factor, rule.horizon_h)
    return (at_stake is None or at_stake > rule.gpu_hours) and lost_s >= rule.lost_s


def passed(rule: Rule, facts: Facts, alert: Mapping[str, Any] | None) -> Alarm | None:
    """The alarm of fail-slows that were over before an alert of them could begin; None without any.

    The step times of a job that sends late come when its fail-slow is over.

    Args:
        rule: its rule.
        facts: the state of its job.
        alert: row of the job's latest alert by the rule; None without one.
    """
    if rule.kind != "fail-slow" or not may_go_on(facts.job):
        return None
    if alert is not None and alert["status"] == "firing":
        return None
    told_until = -math.inf if alert is None else float(alert["ended_at"])
    rows = [
        dict(row)
        for row in facts.episodes
        if row.get("relieved")
        and began_at(row) > told_until
        and row["relieved_at"] >= facts.now - _NEWS_S
        and row["factor"] is not None
        and _is_costly(rule, facts.job, row.get("peak", row["factor"]), row["lost_s"] or 0.0)
    ]
    if not rows:
        return None
    alarm = _alarm_of(rule, facts, Course(facts.job, rows, goes_on=False))
    words = f"{alarm.headline} It was over before this alert could begin."
    return replace(alarm, headline=words, began=began_at(rows[0]))


def renewed(rule: Rule, facts: Facts, alert: Mapping[str, Any]) -> Alarm | None:
    """The present reason of a firing alert that goes on; None if it stays as it is.

    Args:
        rule: its rule.
        facts: the state of its job.
        alert: its row.
    """
    course = _course_of(rule, facts, alert)
    return None if course is None else _alarm_of(rule, facts, course)


def _course_of(rule: Rule, facts: Facts, alert: Mapping[str, Any]) -> Course | None:
    if rule.kind != "fail-slow":
        return None
    onset = dict(facts.onset) if facts.onset is not None and may_go_on(facts.job) else None
    return course_of(facts.job, [dict(row) for row in facts.episodes], onset, alert)


def _alarm_of(rule: Rule, facts: Facts, course: Course) -> Alarm:
    """The alarm of fail-slows: the level of the last one, the cause of the told one."""
    last, (row, told) = course.last, _told(facts, course)
    cost = _cost(rule, facts, course) if course.goes_on else ""
    place = _place(facts, row, told)
    alarm = Alarm(
        course.headline(cost) + course.history(row, place),
        place=place,
        since=main_at(last),
        began=began_at(last),
        level=last["factor"] if last.get("of_level") else None,
    )
    if told is not None:
        return replace(alarm, cause=told.cause, session_id=told.session["id"])
    ranks, n_ranks = tuple(row["ranks"]), _n_ranks(facts.job)
    share = 1 - 1 / row["factor"] if (row["factor"] or 0.0) > 1 else 0.0
    return replace(
        alarm,
        cause="fail-slow",
        gain=f"{share:.1%} of each step; {_next_act(len(ranks), n_ranks)}",
        ranks=() if len(ranks) == n_ranks else ranks,
    )


def _place(facts: Facts, row: Mapping[str, Any], told: Explanation | None) -> str | None:
    """The place of a fail-slow: that of its cause, else its ranks; None if unknown."""
    if told is not None:
        return told.place
    ranks = tuple(row["ranks"])
    if len(ranks) == _n_ranks(facts.job):
        return f"all {len(ranks):,} ranks" if ranks else None
    return name_ranks(ranks) if ranks else None


def _told(facts: Facts, course: Course) -> tuple[dict[str, Any], Explanation | None]:
    """The fail-slow whose cause is told, and the cause; None without one.

    It is the costliest one of those whose cause a session names, else the costliest one.
    """
    by_cost = course.by_cost()
    for row in by_cost:
        told = _explanation_of(facts, row)
        if told is not None:
            return row, told
    return by_cost[0], None


def _explanation_of(facts: Facts, row: Mapping[str, Any]) -> Explanation | None:
    """The cause of a fail-slow, which may be over."""
    return explanation_of(
        facts.sessions,
        row,
        facts.episodes,
        facts.job["healthy_s"],
        row.get("relieved_at", math.inf),
        row.get("relieved_step"),
    )


def _cost(rule: Rule, facts: Facts, course: Course) -> str:
    """The loss of the present fail-slow, and what is at stake."""
    onset = course.last
    at_stake = gpu_hours_at_stake(facts.job["gpus"], onset["factor"], rule.horizon_h)
    if at_stake is None:
        cost = "the GPU-hours at stake are unknown (push the job's gpus)"
    else:
        hours = gpu_hours(at_stake)
        cost = f"{hours} GPU-hours are at stake in {rule.horizon_h:g} hours at this level"
    # The loss at the time of the event, so that the alert's headline stays true.
    if onset["lost_s"] and onset["lost_s"] >= rule.lost_s:
        return f"{duration(onset['lost_s'])} lost by {moment(onset['at'])} UTC; {cost}"
    return cost


def final_headline(rule: Rule, facts: Facts, alert: Mapping[str, Any]) -> str | None:
    """The headline of an alert that ends, in the past tense.

    That of a fail-slow has the loss of all fail-slows that it covered, that of sessions what the
    latest one shows. None where the headline that fires stays true.
    """
    if rule.kind in ("slowdown", "regression"):
        return _final_of_sessions(rule, facts)
    course = _course_of(rule, facts, alert)
    if course is None:
        return None
    row, told = _told(facts, course)
    return course.headline() + course.history(row, _place(facts, row, told))


def _final_of_sessions(rule: Rule, facts: Facts) -> str | None:
    """The latest sessions by which the rule held, in the past tense, and the latest of all."""
    judge_past = _slowdown if rule.kind == "slowdown" else _regression
    for n in range(len(facts.sessions)):
        alarm = judge_past(rule, replace(facts, sessions=facts.sessions[n:]), is_over=True)
        if alarm is not None:
            return alarm.headline + (_latest_words(rule, facts.sessions[0]) if n else "")
    return None


def _latest_words(rule: Rule, session: Mapping[str, Any]) -> str:
    """A sentence about a session by which a rule does not hold any more."""
    up_to = "" if session["last_step"] is None else f", up to step {session['last_step']:,},"
    if rule.kind == "regression":
        if not session["step_s"]:
            return ""
        return f" A step of the latest session{up_to} takes {seconds(session['step_s'])}."
    if session["slowdown"] is None:
        return ""
    healthy = " and is healthy" if session["cause"] == "healthy" else ""
    return f" The latest session{up_to} has S {_slowdown_words(session)}{healthy}."


def _next_act(n_slow: int, n_ranks: int) -> str:
    """The advice for a fail-slow: ranks that wait for a slow rank are equally slow.

    Args:
        n_slow: number of slow ranks.
        n_ranks: number of ranks of the job; 0 if unknown.
    """
    command = validation_command(n_ranks)
    if n_slow == 1 != n_ranks:
        return f"take its host out of service, or run {command} to confirm it"
    which = "which of them" if n_slow and n_slow != n_ranks else "which rank"
    return f"a trace says {which} is slow, or run {command}"


def _n_ranks(job: Mapping[str, Any]) -> int:
    """Number of ranks of a job, one per GPU; 0 if unknown."""
    return int(job["gpus"] or 0)


def gpu_hours_at_stake(gpus: int | None, factor: float, hours: float) -> float | None:
    """GPU-hours that a fail-slow wastes without action: all GPUs wait for the slowest.

    None if the number of GPUs is unknown.
    """
    if gpus is None:
        return None
    return gpus * hours * max(0.0, 1 - 1 / factor) if factor > 0 else 0.0


def _silent(rule: Rule, facts: Facts) -> Alarm | None:
    job = facts.job
    quiet_s = facts.now - max(job["seen_at"], facts.watched_since)
    if not may_go_on(job) or job["last_step"] is None:
        return None
    if not rule.after_s <= quiet_s < rule.until_h * 3600:
        return None
    # The step instead of the elapsed time, so that the headline does not change.
    return Alarm(
        f"No step for {time_in_words(rule.after_s)}; the last one was {job['last_step']:,}.",
        "silent",
    )


def _regression(rule: Rule, facts: Facts, *, is_over: bool = False) -> Alarm | None:
    timed = [s for s in facts.sessions if s["step_s"]]
    if not timed:
        return None
    last, oldest = timed[0], timed[0]["created_at"] - rule.days * DAY_S
    before = [s for s in timed[1:] if s["created_at"] >= oldest]
    if len(before) < rule.sessions:
        return None
    span_s = last["created_at"] - before[-1]["created_at"]
    if span_s < rule.span_h * 3600:  # the first sessions of a job say little about the usual step
        return None
    usual = statistics.median(s["step_s"] for s in before)
    least = rule.at_least * usual
    if last["step_s"] < least:
        return None
    headline = (
        f"A step {'took' if is_over else 'takes'} {seconds(last['step_s'])}, "
        f"{last['step_s'] / usual:.2f} times the median of the last {_span(span_s)} "
        f"({seconds(usual)})."
    )
    longer = list(itertools.takewhile(lambda s: s["step_s"] >= least, timed))
    told, session_text = _last_named(longer, is_over=is_over)
    cause = None if told["cause"] == "healthy" else told["cause"]
    return Alarm(
        headline + session_text,
        cause,
        session_id=told["id"],
        since=longer[-1]["created_at"],
        at=last["created_at"],
        factor=last["step_s"] / usual,
        last_step=last["last_step"],
    )


def _span(size_s: float) -> str:
    """A time in its largest fitting unit: "7 days", "3 hours", "12 minutes"."""
    for unit, unit_s in (("day", DAY_S), ("hour", 3600.0), ("minute", 60.0)):
        number = round(size_s / unit_s)
        if number >= 2:
            return f"{number} {unit}s"
    return f"{max(1, round(size_s / 60.0))} minute"


_JUDGES = {
    "slowdown": _slowdown,
    "fail-slow": _fail_slow,
    "silent": _silent,
    "regression": _regression,
}
