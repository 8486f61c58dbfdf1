"""Figures of the whole fleet, as in the what-if paper."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

from paceline.fleet.definitions import DEFINITIONS, KINDS, STRAGGLING
from paceline.monitor.loss_range import largest_lasting_loss, loss_range
from paceline.monitor.store.queries import Week
from paceline.monitor.web.charts import share_bar, stacked_bar
from paceline.monitor.web.templating import cause
from paceline.report.page.distributions import Spec, defined_cdf, distribution, scatter_chart
from paceline.results.words.names import CAUSES

Row = Mapping[str, Any]

N_WEEKS = 12
#: Labels for a job's maximum sequence length.
SEQUENCE_LABELS = ("seq_len", "sequence_length", "max_seq_len")


@dataclass(frozen=True)
class Figure:
    """A figure: its text and its chart, or the reason (``empty``) for no chart."""

    name: str
    title: str
    text: str
    chart: Spec | None
    empty: str = "No job has this yet."


def figures(rows: Sequence[Row]) -> list[Figure]:
    """The paper's figures.

    Args:
        rows: rows of :func:`paceline.monitor.store.queries.fleet_jobs`; their ``facts`` come from
            :func:`paceline.results.facts.fleet_facts`, or are None.
    """
    with_facts = [row for row in rows if row["facts"] is not None]
    slow = [row for row in with_facts if _lasting(row) >= STRAGGLING]
    return [
        _waste(rows),
        _by_gpus(rows),
        _by_kind(with_facts),
        _steps(slow),
        _m_w(slow),
        _m_s(slow),
        _correlation(slow),
        _by_sequence(rows),
    ]


def _waste(rows: Sequence[Row]) -> Figure:
    values = [(max(row["waste"] or 0.0, 0.0), row["name"]) for row in rows]
    return _cdf("waste", {"waste": values})


def _by_gpus(rows: Sequence[Row]) -> Figure:
    points = [(row["gpus"], row["slowdown"], row["name"]) for row in rows if row["gpus"]]
    label = "Slowdown of each job against its GPUs"
    chart = scatter_chart(points, label=label, x_label="GPUs", y_label="S")
    return _figure("gpus", chart)


def _by_kind(rows: Sequence[Row]) -> Figure:
    wastes = [(row["facts"]["waste_by_kind"], row["name"]) for row in rows]
    curves = {
        name: [(max(waste[kind], 0.0), job) for waste, job in wastes if kind in waste]
        for kind, name in KINDS.items()
    }
    return _cdf("kinds", curves)


def _steps(slow: Sequence[Row]) -> Figure:
    values = [(step, row["name"]) for row in slow for step in row["facts"]["steps"]]
    return _cdf("steps", {"steps": values}, y_label="share of steps", empty=_NO_SLOW)


def _m_w(slow: Sequence[Row]) -> Figure:
    return _share_figure("m_w", _values(slow, lambda facts: facts["m_w"]))


def _m_s(slow: Sequence[Row]) -> Figure:
    values = _values(slow, lambda facts: facts["m_s"] if facts["n_stages"] > 1 else 0.0)
    return _share_figure("m_s_slow", values)


def _correlation(slow: Sequence[Row]) -> Figure:
    values = _values(slow, lambda facts: facts["correlation"])
    return _cdf("correlation", {"correlation": values}, empty=_NO_SLOW)


def _share_figure(name: str, values: list[tuple[float, str]]) -> Figure:
    clipped = [(min(max(v, 0.0), 1.0), job) for v, job in values]
    curves = {DEFINITIONS[name].x_label: clipped}
    return _cdf(name, curves, x_range=(0, 1.03), empty=_NO_SLOW)


def _cdf(
    name: str,
    curves: Mapping[str, list[tuple[float, str]]],
    *,
    y_label: str = "share of jobs",
    x_range: tuple[float, float] | None = None,
    empty: str = Figure.empty,
) -> Figure:
    drawn = {curve: distribution(values) for curve, values in curves.items()}
    return _figure(name, defined_cdf(DEFINITIONS[name], drawn, y_label, x_range), empty)


def _figure(name: str, chart: Spec | None, empty: str = Figure.empty) -> Figure:
    defined = DEFINITIONS[name]
    return Figure(name, defined.title, defined.text, chart, empty)


_NO_SLOW = "No job is straggling: none has S of 1.1 or more."


def _values(
    rows: Sequence[Row], of: Callable[[Mapping[str, Any]], float | None]
) -> list[tuple[float, str]]:
    pairs = ((of(row["facts"]), row["name"]) for row in rows)
    return [(value, name) for value, name in pairs if value is not None and math.isfinite(value)]


def _by_sequence(rows: Sequence[Row]) -> Figure:
    points = []
    for row in rows:
        values = (row["labels"].get(name) for name in SEQUENCE_LABELS)
        length = next((_length(value) for value in values if value is not None), 0)
        points += [(length, row["slowdown"], row["name"])] if length else []
    chart = scatter_chart(
        points, label="Slowdown against sequence length", x_label="sequence length", y_label="S"
    )
    empty = f"No job has a sequence length: push the label {SEQUENCE_LABELS[0]}, such as 32768."
    return _figure("sequences", chart, empty)


def _length(value: Any) -> int:
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < 10 else 0


@dataclass(frozen=True)
class Totals:
    """Key numbers.

    Attributes:
        n_jobs, n_slow: number of analysed jobs, and of those with S of 1.1 or more.
        n_straggling: number of jobs with 1.1 or more that lasts or has a cause, waits for data
            included.
        gpus: total GPUs of these jobs.
        waste, most_waste: share of all GPU time, weighted by GPUs, and the upper end of its range;
            None if unknown.
        lost, most_lost: GPU-hours lost until now in all sessions, and at most.
    """

    n_jobs: int
    n_slow: int
    n_straggling: int
    gpus: int
    waste: float | None
    most_waste: float | None
    lost: float
    most_lost: float


def totals(rows: Sequence[Row]) -> Totals:
    """The key numbers of these jobs."""
    sized = [(row["gpus"] or 0, loss_range(row)) for row in rows]
    gpus = sum(size for size, _ in sized)
    low, most = (sum(size * ends[k] for size, ends in sized) for k in (0, 1))
    return Totals(
        n_jobs=len(rows),
        n_slow=sum(row["slowdown"] >= STRAGGLING for row in rows),
        n_straggling=sum(_is_straggling(row) for row in rows),
        gpus=gpus,
        waste=low / gpus if gpus else None,
        most_waste=most / gpus if gpus else None,
        lost=sum(row["gpu_hours_lost"] for row in rows),
        most_lost=sum(_most_lost(row) for row in rows),
    )


@dataclass(frozen=True)
class FleetView:
    """The content of a fleet's page."""

    totals: Totals
    figures: list[Figure]
    causes: list[dict[str, Any]]
    weeks: dict[str, Any]


def view(rows: Sequence[Row], weeks: Sequence[Week]) -> FleetView:
    """The page of these jobs; with 5,000 of them it takes half a second."""
    return FleetView(totals(rows), figures(rows), causes_table(rows), weeks_table(weeks))


def causes_table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Causes of straggling jobs with their number and GPU-hours, the costliest first."""
    hours_lost: dict[str, float] = {}
    most_lost: dict[str, float] = {}
    n_jobs: dict[str, int] = {}
    for row in rows:
        if not _is_straggling(row):
            continue
        name = row["cause"] or "unexplained"
        hours_lost[name] = hours_lost.get(name, 0.0) + row["gpu_hours_lost"]
        most_lost[name] = most_lost.get(name, 0.0) + _most_lost(row)
        n_jobs[name] = n_jobs.get(name, 0) + 1
    total = sum(hours_lost.values())
    order = sorted(hours_lost, key=lambda name: (-hours_lost[name], name))
    return [
        {
            "name": cause(name),
            "n_jobs": n_jobs[name],
            "lost": hours_lost[name],
            "most_lost": most_lost[name],
            "share": hours_lost[name] / total if total > 0 else None,
            "bar": share_bar(hours_lost[name] / total if total > 0 else None, _class(name)),
        }
        for name in order
    ]


def _is_straggling(row: Row) -> bool:
    """Whether what lasts or has a cause makes a job slow; variation that passes does not count."""
    return (largest_lasting_loss(row) or 0.0) >= STRAGGLING


def _lasting(row: Row) -> float:
    """S without variation that passes; S in rows of older versions."""
    lasting = row["slowdown_lasting"]
    return float(row["slowdown"] if lasting is None else lasting)


def _most_lost(row: Row) -> float:
    """The upper end of a job's loss; rows of older versions have none."""
    most = row["gpu_hours_lost_most"]
    return float(row["gpu_hours_lost"] if most is None else most)


def weeks_table(weeks: Sequence[Week]) -> dict[str, Any]:
    """A row per week from the first session on, with a bar of its causes' costs."""
    weeks = list(dropwhile(lambda week: not week.n_sessions, weeks))
    top = max((sum(week.lost.values()) for week in weeks), default=0.0)
    names = sorted({name for week in weeks for name, lost in week.lost.items() if lost > 0})
    rows = [
        {
            "day": time.strftime("%d %b", time.gmtime(week.start)),
            "year": time.strftime("%Y", time.gmtime(week.start)),
            "bar": stacked_bar([(_class(n), max(week.lost.get(n, 0.0), 0.0)) for n in names], top),
            "lost": sum(week.lost.values()),
            "n_sessions": week.n_sessions,
            "mean_waste": week.mean_waste,
        }
        for week in weeks
    ]
    key = [{"name": cause(n) if n else "No cause found", "class": _class(n)} for n in names]
    return {"rows": rows, "key": key}


def _class(name: str) -> str:
    """The CSS class of a cause's colour; unknown causes get that of the unexplained loss."""
    return f"cause-{name if name in CAUSES else 'unexplained'}"
