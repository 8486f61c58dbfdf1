"""Content of a job's page that is not in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.monitor.blobs import PERFETTO, REPORT, Blobs, result_key
from paceline.monitor.documents import read_report
from paceline.monitor.web.charts import MAX_POINTS, steps_chart
from paceline.monitor.web.sections import Sections, sections
from paceline.report.page.distributions import Spec

Row = Mapping[str, Any]


@dataclass(frozen=True)
class SessionView:
    """Results of a session.

    Attributes:
        sections: tables and figures; None if the result was removed.
        has_report, has_perfetto: whether these files exist.
        away: reason why the files cannot be read now; "" if they can.
    """

    sections: Sections | None
    has_report: bool
    has_perfetto: bool
    away: str = ""


def session_view(session_id: int, blobs: Blobs) -> SessionView:
    """The figures and tables of an analysed session."""
    report = read_report(blobs, session_id)
    has_report, has_perfetto = (
        blobs.exists(result_key(session_id, name)) for name in (REPORT, PERFETTO)
    )
    return SessionView(None if report is None else sections(report), has_report, has_perfetto)


#: A session of fewer steps says so at the top of the page. Fewer steps do not show how much steps
#: differ (as in ``remedies/outcome.py``).
_ENOUGH_STEPS = 4

#: Degrees that are always shown, and those shown above 1.
_DEGREES, _MORE_DEGREES = ("dp", "pp"), ("tp", "cp", "dsp", "ep", "vpp")


def shape(job: Row) -> str:
    """``dp 4 × pp 2 on 64 GPUs``; "" if unknown."""
    size_of = {name.removesuffix("_size"): size for name, size in job["degrees"].items()}
    degrees = [f"{name} {size_of[name]}" for name in _DEGREES if isinstance(size_of.get(name), int)]
    other_degrees = ((name, size_of.get(name)) for name in _MORE_DEGREES)
    degrees += [
        f"{name} {size}" for name, size in other_degrees if isinstance(size, int) and size > 1
    ]
    gpus = job["gpus"]
    on = f"{gpus:,} GPU{'' if gpus == 1 else 's'}" if gpus else ""
    return " on ".join(phrase for phrase in (" × ".join(degrees), on) if phrase)


def choose(sessions: Sequence[Row], number: str | None) -> Row | None:
    """The session of that number, else the latest analysed one, else the latest."""
    if number is not None:
        return next((s for s in sessions if str(s["id"]) == number), None)
    done = next((s for s in sessions if s["status"] == "done"), None)
    return done or next(iter(sessions), None)


@dataclass(frozen=True)
class FewSteps:
    """A session of so few steps that they do not show how much steps differ.

    Attributes:
        n_steps: its number of steps.
        longer: the latest analysed session before it over a longer range of steps; None: none.
    """

    n_steps: int
    longer: Row | None


def few_steps(sessions: Sequence[Row], selected: Row, view: SessionView | None) -> FewSteps | None:
    """The notice on a session of few steps; None if it has enough.

    Args:
        sessions: the latest sessions of the job, the latest first.
        selected: the session of the page.
        view: its results.
    """
    if view is None or view.sections is None or view.sections.n_steps >= _ENOUGH_STEPS:
        return None
    length = selected["last_step"] - selected["first_step"]
    earlier = (s for s in sessions if s["status"] == "done" and s["id"] < selected["id"])
    longer = (s for s in earlier if (s["last_step"] or 0) - (s["first_step"] or 0) > length)
    return FewSteps(view.sections.n_steps, next(longer, None))


def step_times(steps: Any, job: Row, events: Sequence[Row]) -> Spec | None:
    """The chart of the job's step times; None without any."""
    return steps_chart(steps.series(job["id"], points=MAX_POINTS), events)
