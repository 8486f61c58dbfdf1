"""Pauses and the begin of a job in the dated lines of any log.

Read are lines that name a checkpoint or an evaluation in common words: its begin and its end, or
its end with its time (``checkpoint saved in 9.0s``, ``evaluation took 1m 20s``). Words are those of
torchtitan (commit c594d8a, ``components/checkpoint.py``) and of loops of one's own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.run_logs.timeline import Pause, PauseKind
from paceline.sources.step_logs.clocks import UNIT_NAMES, seconds_of_text
from paceline.sources.step_logs.lines import date_of

Array = npt.NDArray[np.float64]

#: Groups of a user's pattern: the time of a pause in the line of its end, or lines of both edges.
GROUPS = ("duration", "duration_s", "duration_ms", "begin", "end")
_CHECKPOINT = r"(?:check-?points?|ckpts?)"
_SAVED = r"(?:saved|wrote|written|finished|done|completed?)"
_EVALUATION = r"(?:evaluations?|evaluating|eval|validations?|validating)"
_TIME = rf"(?P<duration>(?:\d+(?:\.\d+)?\s?(?:{UNIT_NAMES})(?![a-z])\s?)+)"
_IN_TIME = rf".*?\b(?:in|took|after)\b[\s:=]*\(?{_TIME}"
#: Kind of pause -> patterns of its lines, of which the first that matches counts.
_WORDS: dict[PauseKind, tuple[re.Pattern[str], ...]] = {
    "checkpoint": (
        re.compile(rf"\b(?:{_SAVED}|saving|save)\b.*\b{_CHECKPOINT}\b{_IN_TIME}"),
        re.compile(rf"\b{_CHECKPOINT}\b.*\b(?:{_SAVED}|saving|save)\b{_IN_TIME}"),
        re.compile(rf"(?P<end>\b{_SAVED}\b.*\b{_CHECKPOINT}\b|\b{_CHECKPOINT}\b.*\b{_SAVED}\b)"),
        re.compile(rf"(?P<begin>\b(?:saving|writing)\b.*\b{_CHECKPOINT}\b)"),
    ),
    "evaluation": (
        re.compile(rf"\b{_EVALUATION}\b{_IN_TIME}"),
        re.compile(rf"(?P<end>\b{_EVALUATION}\s+(?:is\s+)?(?:finished|done|completed?|ended)\b)"),
        re.compile(rf"(?P<end>\b(?:finished|completed|ended)\s+(?:the\s+)?{_EVALUATION}\b)"),
        re.compile(
            rf"(?P<begin>\b(?:running|starting|start|begin|beginning)\s+(?:the\s+)?{_EVALUATION}\b)"
        ),
    ),
}
#: Cheap tests before the patterns.
_CUE = re.compile(r"c(?:heck-?)?p(?:oin)?t|ckpt|eval|valid", re.I)
_LOADED = re.compile(r"\b(?:load|restor|resum)(?:ed|ing|e)?\b", re.I)
#: Seconds that rounded dates may be off.
_ROUNDING_S = 1.0


@dataclass(frozen=True)
class DatedLines:
    """Content of the dated lines.

    Attributes:
        begin_s, end_s: the first and last date; nan without any.
        pauses: checkpoints and evaluations for which training stood still.
        recorded: kinds of pauses that the lines name with begin and end.
    """

    begin_s: float
    end_s: float
    pauses: tuple[Pause, ...]
    recorded: frozenset[PauseKind]


def pause_pattern(text: str, option: str) -> re.Pattern[str]:
    """The pattern of a user's lines of pauses.

    Raises:
        TraceError: it is invalid, or its groups do not give the time of a pause.
    """
    usage = f"such as {option} 'saved in (?P<duration_s>[\\d.]+)'"
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise TraceError(f"{option} is no regular expression ({error}); {usage}") from None
    groups = set(pattern.groupindex)
    if not groups <= set(GROUPS) or not (groups & set(GROUPS[:3]) or {"begin", "end"} <= groups):
        names = ", ".join(GROUPS[:3])
        raise TraceError(
            f"{option} needs one of the groups {names}, or both begin and end; {usage}"
        )
    return pattern


def read_dated_lines(
    lines: Iterable[str],
    step_times: Array,
    where: str,
    given: Mapping[PauseKind, re.Pattern[str]],
) -> DatedLines:
    """The pauses of a log, and its first and last date.

    A line counts if its date stands where most dates stand. A pause during which a line of a step
    was written is none: training went on.

    Args:
        lines: the log.
        step_times: [sample] dates of the lines of steps, in seconds.
        where: the file, for errors.
        given: kind -> a user's pattern, in place of the known words.
    """
    dated: list[tuple[str, float, str]] = []
    for line in lines:
        prefix, seconds, rest = date_of(line, where)
        if rest is not None:
            dated.append((re.sub(r"\d", "", prefix), seconds, rest))
    if not dated:
        return DatedLines(np.nan, np.nan, (), frozenset())
    usual = Counter(prefix for prefix, _, _ in dated).most_common(1)[0][0]
    edges = np.sort(step_times)
    begins: dict[PauseKind, float] = {}
    pauses: list[Pause] = []
    recorded: set[PauseKind] = set()
    times = []
    for prefix, at, rest in dated:
        if prefix != usual:
            continue
        times.append(at)
        for kind, match in _matches(rest, given):
            groups = match.groupdict()
            spent_s = _seconds(groups, where)
            if spent_s is None and groups.get("begin") is not None:
                begins[kind] = at
                continue
            begin = begins.pop(kind, None)
            if spent_s is not None:
                begin = at - spent_s
            if begin is None:
                continue
            recorded.add(kind)
            within = np.searchsorted(edges, (begin + _ROUNDING_S, at), side="left")
            if within[0] >= within[1] and at > begin:
                pauses.append(Pause(kind, begin, at))
    return DatedLines(min(times), max(times), tuple(pauses), frozenset(recorded))


def _matches(
    text: str, given: Mapping[PauseKind, re.Pattern[str]]
) -> Iterable[tuple[PauseKind, re.Match[str]]]:
    for kind, pattern in given.items():
        if match := pattern.search(text):
            yield kind, match
    if not _CUE.search(text) or _LOADED.search(text):
        return
    lower = text.lower()
    for kind, patterns in _WORDS.items():
        match = next((m for p in patterns if (m := p.search(lower))), None)
        if kind not in given and match is not None:
            yield kind, match
            return


def _seconds(groups: Mapping[str, str | None], where: str) -> float | None:
    """The time of a pause that a line gives; None if it gives none."""
    try:
        if groups.get("duration"):
            return seconds_of_text(groups["duration"], where)
        for name, unit_s in (("duration_s", 1.0), ("duration_ms", 1e-3)):
            if text := groups.get(name):
                return float(text) * unit_s
    except ValueError:
        raise TraceError(f"{where}: the time of a pause is no number in some line") from None
    return None
