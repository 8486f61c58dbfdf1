"""The ledger of a job's wall time, whose rows add up to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from paceline.detect.event import counted
from paceline.errors import DetectError, TraceError
from paceline.ledger import episodes
from paceline.ledger.categories import CATEGORIES, IN_STEPS, label
from paceline.ledger.counted_elsewhere import waits_note
from paceline.ledger.cover import Cover, cover
from paceline.ledger.samples import Samples
from paceline.ledger.straggling import Straggling, straggling
from paceline.ledger.words import OF_LOGS, TOLD_BY, Reasons
from paceline.sources.run_logs.files import load_timeline
from paceline.sources.run_logs.timeline import Start, Timeline
from paceline.units import duration

SCHEMA, VERSION = "paceline-goodput", 1

#: Kind of a pause after the first step -> its row.
_ROW_OF_PAUSE = {
    "checkpoint": "checkpoints",
    "evaluation": "evaluation",
    "data": "data_waits",
    "other": "other",
    "setup": "restarts",
    "restore": "restarts",
    "": "unknown",
}
#: Fields that a log of this kind may have.
_RECORDED_BY = {
    "checkpoints": "checkpoint",
    "evaluation": "evaluation",
    "data_waits": "data",
    "other": "other",
}
#: Starts whose logs overlap by more belong to different jobs, or to ranks of one start.
_MAX_OVERLAP_S = 5.0
#: Share of the whole time that differences of clock readings leave as rounding.
ROUNDING = 1e-9
#: Shares below this one, and their times below this one, are not told by their digits.
MIN_SHARE, MIN_ROW_S = 1e-4, 0.1
_FEW_STEPS = "more steps are needed"
_FOUND = (
    "fail-slow is of step times alone: a planned change of batch or length looks alike; "
    "--events of paceline detect --like or with a workload column tells them apart"
)


@dataclass(frozen=True)
class Ledger:
    """Wall time by category.

    Attributes:
        tool: tool of the log.
        total_s: wall time from the job's first record to its last, seconds; without dates in the
            log, that of the steps.
        seconds: category -> seconds; None if the log does not show it.
        reasons: category -> reason for None.
        steps: number of counted steps; lost_steps: steps that a restart repeated.
        starts: number of the job's starts.
        gpus: number of the job's GPUs; None = unknown.
        notes: doubts about the log.
        slowdown: S behind the stragglers; None = unknown.
    """

    tool: str
    total_s: float
    seconds: Mapping[str, float | None]
    reasons: Mapping[str, str] = field(default_factory=dict)
    steps: int = 0
    lost_steps: int = 0
    starts: int = 1
    gpus: int | None = None
    notes: tuple[str, ...] = ()
    slowdown: float | None = None

    @property
    def goodput(self) -> float:
        """The productive share of the wall time, an upper bound if a category is unknown."""
        return (self.seconds["productive"] or 0.0) / self.total_s if self.total_s else math.nan

    def to_mapping(self) -> dict[str, Any]:
        """The ledger as JSON values."""
        rows = {
            name: {
                "seconds": seconds,
                "share": None if seconds is None or not self.total_s else seconds / self.total_s,
                "gpu_hours": self._gpu_hours(seconds),
                "reason": self.reasons.get(name),
            }
            for name, seconds in self.seconds.items()
        }
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "tool": self.tool,
            "total_s": self.total_s,
            "goodput": None if math.isnan(self.goodput) else self.goodput,
            "rows": rows,
            "steps": self.steps,
            "lost_steps": self.lost_steps,
            "starts": self.starts,
            "gpus": self.gpus,
            "slowdown": self.slowdown,
            "notes": list(self.notes),
        }

    def _gpu_hours(self, seconds: float | None) -> float | None:
        return None if seconds is None or self.gpus is None else seconds * self.gpus / 3600

    @property
    def _unexplained(self) -> str:
        """Rows that unexplained time may belong to."""
        missing = [label(name) for name in TOLD_BY if name in self.reasons]
        return f"no line explains it; it may be {', '.join(missing)}" if missing else ""

    @property
    def untold(self) -> tuple[str, ...]:
        """Unknown categories that the productive time may contain."""
        return tuple(name for name in IN_STEPS if self.seconds.get(name, 0.0) is None)

    def lines(self) -> list[str]:
        """The ledger as text, a line per row."""
        bound = "at most " if self.untold else ""
        head = f"{duration(self.total_s)} in all; goodput {bound}{self.goodput:.1%}"
        head += f"; {counted(self.steps, 'step')}, {counted(self.starts, 'start')}"
        rows = []
        for name, seconds in self.seconds.items():
            if seconds is None:
                rows.append(f"  {label(name):12s}       ?         {self.reasons.get(name, '')}")
            else:
                hours = self._gpu_hours(seconds)
                spent = "" if hours is None else f"  {_hours(hours)} GPU-hours"
                share = seconds / self.total_s if self.total_s else 0.0
                about = f"  {self._unexplained}" if name == "unknown" and seconds else ""
                if name == "productive" and self.untold:
                    about = f"  with {', '.join(map(label, self.untold))}, as far as there are any"
                rows.append(f"  {label(name):12s} {_amount(share, seconds)}{spent}{about}")
        return [head, *rows, *(f"  note: {note}" for note in self.notes)]


def _amount(share: float, seconds: float) -> str:
    """Share and time of a row in columns; digits that nobody needs are left out."""
    if not 0 < abs(share) < MIN_SHARE:
        return f"{share:7.2%}  {duration(seconds):>13s}"
    spent = f"under {MIN_ROW_S:g} s" if abs(seconds) < MIN_ROW_S else duration(seconds)
    return f"{f'<{MIN_SHARE:.2%}':>7s}  {spent:>13s}"


def _hours(hours: float) -> str:
    """Hours with two digits or more."""
    return f"{hours:,.1f}" if hours == 0 or abs(hours) >= 1 else f"{hours:.2g}"


def goodput(
    logs: Sequence[str | Path] | str | Path,
    *,
    events: Iterable[Mapping[str, Any]] | None = None,
    slowdown: float | None = None,
    pattern: str | None = None,
    checkpoint: str | None = None,
    evaluation: str | None = None,
    gpus: int | None = None,
) -> Ledger:
    """Where a job's wall time went.

    Args:
        logs: one or several logs of a job.
        events: the detector's events (``to_mapping()``); None runs it on the steps of the logs.
        slowdown: S of an analysis of typical steps. None: a recorded run tells it by its profiled
            steps; other logs leave stragglers unknown.
        pattern: pattern of a step's line, for logs of unknown format.
        checkpoint: pattern of the dated lines of checkpoints, for logs of unknown format.
        evaluation: the same of evaluations.
        gpus: number of the job's GPUs, for GPU-hours.

    Raises:
        TraceError: a log cannot be read, or logs overlap.
        DetectError: an event lacks a number, or S is below 1.
    """
    paths = [logs] if isinstance(logs, str | Path) else list(logs)
    timeline = load_timeline(
        [Path(path) for path in paths], pattern, checkpoint=checkpoint, evaluation=evaluation
    )
    return ledger_of(timeline, events=events, slowdown=slowdown, gpus=gpus)


def ledger_of(
    timeline: Timeline,
    *,
    events: Iterable[Mapping[str, Any]] | None = None,
    slowdown: float | None = None,
    gpus: int | None = None,
    words: Reasons = OF_LOGS,
) -> Ledger:
    """The ledger of a timeline; arguments and errors as in :func:`goodput`.

    ``words`` has the reasons for unknown rows.
    """
    if slowdown is not None and not (math.isfinite(slowdown) and slowdown >= 1):
        raise DetectError(f"the slowdown S must be 1 or more, not {slowdown}")
    if gpus is not None and gpus < 1:
        raise DetectError(f"the number of GPUs must be 1 or more, not {gpus}")
    starts = [start for start in timeline.starts if len(start.steps)]
    if not starts:
        raise TraceError("the logs have no step")
    _check_times(timeline.starts)
    _check_order(timeline.starts)
    covers = [cover(start) for start in timeline.starts]
    seconds = dict.fromkeys(CATEGORIES, 0.0)
    _add_pauses(seconds, timeline, covers)
    samples = Samples(timeline.starts, covers)
    changes = (
        episodes.detected(
            samples.last, samples.told_s, samples.breaks, samples.net_s, samples.spacing
        )
        if events is None
        else episodes.given(events, samples.last, "the events", samples.ends)
    )
    stragglers = Straggling(slowdown, words.no_analysis)
    if slowdown is None and timeline.recordings:
        stragglers = straggling(timeline.recordings, samples, samples.typical(changes or []))
    samples.share_out(seconds, changes or [], stragglers.slowdown or 1.0)
    total = sum(seconds.values())
    reasons = _reasons(timeline, starts[0], words)
    if stragglers.slowdown is None:
        reasons["stragglers"] = stragglers.reason
    if changes is None:
        reasons["fail_slow"] = _FEW_STEPS
    for name in reasons:  # unassignable time is still a part of the whole
        seconds["productive" if name == "compile" else "unknown"] += seconds[name]
    notes = timeline.notes
    if events is None and any(change.factor > 1 for change in changes or ()):
        notes += (_FOUND,)
    if events is None:
        waits = waits_note(timeline.starts, samples, changes or [])
        notes += (waits,) if waits else ()
    notes += (stragglers.note,) if stragglers.note else ()
    least = ROUNDING * total
    rows = {
        name: None if name in reasons else value if abs(value) > least else 0.0
        for name, value in seconds.items()
    }
    return Ledger(
        timeline.tool,
        total,
        rows,
        reasons,
        steps=int(samples.count.sum()) - samples.lost_steps,
        lost_steps=samples.lost_steps,
        starts=len(timeline.starts),
        gpus=gpus,
        notes=notes,
        slowdown=stragglers.slowdown,
    )


def _check_times(starts: Sequence[Start]) -> None:
    for start in starts:
        edges = [edge for pause in start.pauses for edge in (pause.begin_s, pause.end_s)]
        steps_s = (start.steps.begin_s, start.steps.end_s)
        times = np.concatenate([[start.begin_s, start.end_s, *edges], *steps_s])
        if not np.isfinite(times).all():
            raise TraceError("the logs have a time that is no number")
    if not sum(start.end_s - start.begin_s for start in starts) > 0:
        raise TraceError("no time passes in these logs")


def _check_order(starts: Sequence[Start]) -> None:
    for before, after in pairwise(starts):
        if before.end_s - after.begin_s > _MAX_OVERLAP_S:
            raise TraceError(
                f"logs overlap by {duration(before.end_s - after.begin_s)}; give one rank's log of "
                "each start of one job"
            )


def _add_pauses(seconds: dict[str, float], timeline: Timeline, covers: Sequence[Cover]) -> None:
    """Add all time outside steps, within starts and between them."""
    for number, (start, covered) in enumerate(zip(timeline.starts, covers, strict=True)):
        begins = "restarts" if number else "startup"
        for kind, spent_s in covered.before_s.items():
            is_begin = kind in ("", "setup", "restore")
            seconds[begins if is_begin else _ROW_OF_PAUSE[kind]] += spent_s
        for kind, spent_s in covered.behind_s.items():
            seconds[_ROW_OF_PAUSE[kind]] += spent_s
        if number:
            before = timeline.starts[number - 1]
            gap_s = max(start.begin_s - before.end_s, 0.0)
            seconds["idle" if before.has_ended else "restarts"] += gap_s


def _reasons(timeline: Timeline, first: Start, words: Reasons) -> dict[str, str]:
    """Category -> reason why the log does not show it."""
    reasons = {
        name: words.not_recorded[name]
        for name, kind in _RECORDED_BY.items()
        if kind not in timeline.recorded
    }
    has_setup = any(pause.kind == "setup" for pause in first.pauses)
    if not (first.has_begin or has_setup):
        reasons["startup"] = words.not_recorded["startup"]
    late, is_only = words.late.format(first.steps.first_step), len(timeline.starts) == 1
    if is_only and first.steps.first_step == 2:  # of dated lines, that of step 1 is no time
        reasons["compile"] = words.first_line
    elif is_only and first.steps.first_step > 2:
        reasons |= dict.fromkeys(("restarts", "lost_steps", "idle", "compile"), late)
        if "startup" in reasons:
            reasons["startup"] = late
    if not timeline.has_clock:
        for name in ("restarts", "idle", "startup"):
            reasons[name] = words.no_clock
    elif len(timeline.starts) > 1 and not any(start.has_ended for start in timeline.starts[:-1]):
        reasons.setdefault("idle", words.no_end)
    return reasons
