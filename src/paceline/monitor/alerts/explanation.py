"""Which session names the cause of a fail-slow, and which of its causes that is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from paceline.monitor.loss_range import largest_slowdown

Row = Mapping[str, Any]

#: A session names the cause of a fail-slow if S - 1, or the same by the gain of the cause's remedy,
#: is at least this share of its factor - 1.
EXPLAINS = 0.5
#: A larger gain counts as this one.
_MAX_GAIN = 0.99
#: Least cost of a cause before a fail-slow, as a share of that in it. Then the cause did not
#: change, as in detect/who_trace.py.
_AS_BEFORE = 0.75
#: Healthy sessions before a fail-slow that show what was there before. Their median counts: one
#: of three may be cut short, or hold a passing event.
_BEFORE = 3


@dataclass(frozen=True)
class Explanation:
    """The cause of a fail-slow.

    Attributes:
        session: row of the session that names it.
        cause: the cause, which need not be that of the session's headline.
        place: its place as text; None if unknown.
    """

    session: Row
    cause: str
    place: str | None


def is_named(cause: str | None) -> bool:
    """Whether a session names a cause of a loss."""
    return cause not in (None, "healthy", "unexplained")


def main_at(onset: Row) -> float:
    """Time of the event that made the job slow for the most part."""
    return float(onset.get("main_at", onset["at"]))


def explanation_of(
    sessions: Sequence[Row],
    onset: Row,
    episodes: Sequence[Row] = (),
    healthy_s: float | None = None,
    until: float = math.inf,
    end_step: int | None = None,
) -> Explanation | None:
    """The cause that the latest session of a fail-slow names for it; None without one.

    The headline's cause must explain :data:`EXPLAINS` of the fail-slow. If sessions before the
    fail-slow show the same cause, another cause that is new or has grown may explain it.

    Args:
        sessions: analysed sessions of the job, the latest first.
        onset: the event.
        episodes: the job's fail-slows, whose sessions do not show what was there before.
        healthy_s: the healthy step, in seconds; None: unknown.
        until: time of the relief, seconds since 1970.
        end_step: first step after the relief; a session of earlier steps may come later.
    """
    before = _before(sessions, onset, episodes)
    for session in sessions:
        if session["created_at"] < main_at(onset):
            return None
        last_step = session["last_step"]
        is_of_it = session["created_at"] < until
        if end_step is not None and last_step is not None:
            is_of_it |= last_step < end_step
        if last_step is not None and last_step < _main_step(onset):
            is_of_it = False
        explanation = _in_session(session, onset, before, healthy_s, end_step) if is_of_it else None
        if explanation is not None:
            return explanation
    return None


def _in_session(
    session: Row,
    onset: Row,
    before: Sequence[Row],
    healthy_s: float | None,
    end_step: int | None,
) -> Explanation | None:
    """The cause that a session of a fail-slow names for it."""
    if not is_named(session["cause"]):
        return None
    headline = _headline_cause(session)
    was_s = _usual_s(before, headline)
    if was_s < _AS_BEFORE * _cost_s(session, headline):
        is_it = _explains(session, onset)
        return Explanation(session, session["cause"], session["place"]) if is_it else None
    if onset["factor"] is None or not session["step_s"]:
        return None
    healthy_s = healthy_s or session["step_s"] / onset["factor"]
    excess_s = healthy_s * (onset["factor"] - 1) * _share_of_it(session, onset, end_step)
    grown = [
        (now_s - before_s, cause)
        for cause in session.get("causes") or ()
        if not _is_same(cause, headline)
        for now_s, before_s in [(_cost_s(session, cause), _usual_s(before, cause))]
        if before_s < _AS_BEFORE * now_s and now_s - before_s >= EXPLAINS * excess_s
    ]
    if not grown:
        return None
    _, cause = max(grown, key=lambda pair: pair[0])
    return Explanation(session, cause["cause"], cause["place"])


def _before(sessions: Sequence[Row], onset: Row, episodes: Sequence[Row]) -> list[Row]:
    """The latest sessions before a fail-slow without a step of any fail-slow, the latest first."""
    spans = [onset, *episodes]
    healthy = (
        session
        for session in sessions
        if session["step_s"]
        and _precedes(session, onset)
        and not any(_touches(session, span) for span in spans)
    )
    return list(islice(healthy, _BEFORE))


def _precedes(session: Row, onset: Row) -> bool:
    """Whether all steps of a session are from before a fail-slow."""
    if session["last_step"] is None:
        return bool(session["created_at"] < onset.get("began_at", onset["at"]))
    return bool(session["last_step"] < onset.get("began_step", onset["since_step"]))


def _touches(session: Row, episode: Row) -> bool:
    """Whether a session has a step of a fail-slow; by their times where its steps are unknown."""
    first, last = session.get("first_step"), session["last_step"]
    if last is None:
        began, end = episode.get("began_at", episode["at"]), episode.get("relieved_at", math.inf)
        return bool(began <= session["created_at"] < end)
    end = episode.get("relieved_step", episode.get("left_step"))
    first = last if first is None else first
    began = episode.get("began_step", episode["since_step"])
    return bool(last >= began and (end is None or first < end))


def _headline_cause(session: Row) -> dict[str, Any]:
    """The cause of a session's headline; without a remedy, its gain is that of no stragglers."""
    gain = session["cause_gain"]
    if gain is None:
        gain = 1 - 1 / max(1.0, largest_slowdown(session) or 1.0)
    return {"cause": session["cause"], "place": session["place"], "gain": gain}


def _causes(session: Row) -> Sequence[Row]:
    """All causes of a session that are known; an older version stored that of the headline only."""
    named = [_headline_cause(session)] if is_named(session["cause"]) else []
    return [*named, *(session.get("causes") or ())]


def _cost_s(session: Row, cause: Row) -> float:
    """Seconds of a step that a cause of a session costs; inf if the step time is unknown."""
    step_s = session["step_s"]
    return float(cause["gain"] * step_s) if step_s else math.inf


def _usual_s(before: Sequence[Row], cause: Row) -> float:
    """Seconds of a step that the same cause cost before, in the median; -inf without a session."""
    costs_s = [
        max((_cost_s(s, other) for other in _causes(s) if _is_same(other, cause)), default=0.0)
        for s in before
    ]
    return statistics.median(costs_s) if costs_s else -math.inf


def _is_same(one: Row, other: Row) -> bool:
    """Whether two causes are the same at the same place; an unknown place is any."""
    places = {_without_hosts(cause["place"]) for cause in (one, other) if cause["place"]}
    return one["cause"] == other["cause"] and len(places) <= 1


def _without_hosts(place: str) -> str:
    return place.partition(";")[0]  # hosts come behind it, and need not be known at first


def _share_of_it(session: Row, onset: Row, end_step: int | None) -> float:
    """The share of a session's steps that lie in the fail-slow; 1 if it is unknown."""
    first, last = session.get("first_step"), session["last_step"]
    if first is None or last is None:
        return 1.0
    begin = max(first, _main_step(onset))
    end = last if end_step is None else min(last, end_step - 1)
    return float(max(0, end - begin + 1) / (last - first + 1))


def _main_step(onset: Row) -> int:
    return int(onset.get("main_step", onset["since_step"]))


def _explains(session: Row, onset: Row) -> bool:
    """Whether steps are so much longer by the cause of a session's headline.

    S compares with the mean of all workers, the slow one among them. With few workers S is too low.
    The upper end of its range, or the gain of the cause's remedy, then says more.
    """
    gain = min(session["cause_gain"] or 0.0, _MAX_GAIN)
    factor = max(largest_slowdown(session) or 1.0, 1 / (1 - gain))
    return bool(factor - 1 >= EXPLAINS * ((onset["factor"] or math.inf) - 1))
