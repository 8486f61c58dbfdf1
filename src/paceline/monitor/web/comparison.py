"""A comparison of two sessions of a job."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.monitor.web.templating import cause
from paceline.report.page.figures import figure_data
from paceline.results.document import JobReport
from paceline.results.words.names import OTHERS
from paceline.units import percent, seconds

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """A quantity in both sessions.

    Attributes:
        name: its name.
        before, after, change: as text.
        mood: "worse" or "better" for a coloured change, else "".
    """

    name: str
    before: str
    after: str
    change: str
    mood: str


@dataclass(frozen=True)
class Comparison:
    """The comparison of two sessions.

    Attributes:
        numbers: S, waste, step times.
        falls: the drops of both waterfalls by name, seconds per step.
        kinds, stages: S of each part in either session; kinds sorted by change.
        workers: numbers of the two worker heatmaps, on one scale.
    """

    numbers: list[Line]
    falls: list[Line]
    kinds: list[Line]
    stages: list[Line]
    workers: list[dict[str, Any]]


def compare(a: JobReport, b: JobReport) -> Comparison:
    """The change from ``a`` to ``b``."""
    return Comparison(
        numbers=_key_lines(a, b),
        falls=_fall_lines(a, b),
        kinds=_kind_lines(a, b),
        stages=_stage_lines(a, b),
        workers=_worker_figures((a, b)),
    )


#: Smaller changes of a ratio or share get no colour.
_NOTICED = 0.01


def _key_lines(a: JobReport, b: JobReport) -> list[Line]:
    times = [
        (name, _mean(x), _mean(y))
        for name, x, y in (
            ("Mean step, actual", a.traced_s, b.traced_s),
            ("… without launch delays", a.simulated_s, b.simulated_s),
            ("… ideal", a.ideal_s, b.ideal_s),
        )
    ]
    lines = [
        _line("Slowdown S", a.slowdown, b.slowdown, _ratio),
        *_upper_end("Slowdown S, upper end", a, b, lambda report: report.largest_slowdown, _ratio),
        _line("Waste", a.waste, b.waste, percent),
        *_upper_end(
            "Waste, upper end", a, b, lambda report: 1 - 1 / report.largest_slowdown, percent
        ),
        _line("Launch delays, factor", a.launch_slowdown, b.launch_slowdown, _ratio),
    ]
    return lines + [_line(name, x, y, seconds, scale=x or 1.0) for name, x, y in times]


def _upper_end(
    name: str,
    a: JobReport,
    b: JobReport,
    end: Callable[[JobReport], float],
    form: Callable[[float], str],
) -> list[Line]:
    """A line on the upper end of a range, if either session has one."""
    return [_line(name, end(a), end(b), form)] if a.bounded or b.bounded else []


def _kind_lines(a: JobReport, b: JobReport) -> list[Line]:
    """The kinds, the largest changes first."""
    names = dict.fromkeys([*a.by_kind, *b.by_kind])
    pairs = [(name, a.by_kind.get(name), b.by_kind.get(name)) for name in names]
    pairs.sort(key=lambda p: -abs((p[2] or 1.0) - (p[1] or 1.0)))
    return [_line(name, x, y, _ratio) for name, x, y in pairs]


def _stage_lines(a: JobReport, b: JobReport) -> list[Line]:
    stages = dict.fromkeys([*a.by_stage, *b.by_stage])
    return [
        _line(f"stage {stage}", a.by_stage.get(stage), b.by_stage.get(stage), _ratio)
        for stage in stages
    ]


#: Names of drops that are no finding, as in the report.
_DROPS = {name: label for name, (label, _) in OTHERS.items()}


def _fall_lines(a: JobReport, b: JobReport) -> list[Line]:
    falls = [_drops(report) for report in (a, b)]
    names = dict.fromkeys([*falls[0], *falls[1]])
    scale = _mean(a.traced_s) or 1.0
    return [
        _line(
            _DROPS.get(name) or cause(name),
            falls[0].get(name, 0.0),
            falls[1].get(name, 0.0),
            seconds,
            scale=scale,
        )
        for name in names
    ]


def _drops(report: JobReport) -> dict[str, float]:
    """Drop of the waterfall -> seconds; empty if the document has no waterfall."""
    drops = () if report.waterfall is None else report.waterfall.drops
    return {drop.name: drop.seconds if math.isfinite(drop.seconds) else 0.0 for drop in drops}


def _line(
    name: str,
    before: float | None,
    after: float | None,
    form: Callable[[float], str],
    *,
    scale: float = 1.0,
) -> Line:
    """A line of a quantity whose larger values are worse; ``scale``: unit of the change."""
    before, after = (v if v is not None and math.isfinite(v) else None for v in (before, after))
    if before is None or after is None:
        texts = ["–" if v is None else form(v) for v in (before, after)]
        return Line(name, texts[0], texts[1], "–", "")
    change = after - before
    noticed = abs(change) / scale >= _NOTICED
    mood = ("worse" if change > 0 else "better") if noticed else ""
    text = form(change)
    sign = "+" if change > 0 and any(digit in text for digit in "123456789") else ""
    return Line(name, form(before), form(after), f"{sign}{text}", mood)


def _ratio(value: float) -> str:
    text = f"{abs(value):.3f}"
    return f"−{text}" if value < 0 and text != "0.000" else text


def _mean(values: Array) -> float | None:
    numbers = values[np.isfinite(values)]
    return float(numbers.mean()) if len(numbers) else None


def _worker_figures(reports: Sequence[JobReport]) -> list[dict[str, Any]]:
    figures = [figure_data(report) for report in reports]
    top = max(float(np.nanmax(report.by_worker)) for report in reports)
    names = ("n_pp", "n_dp", "workers", "hosts", "replicas")
    return [{**{name: data[name] for name in names}, "top": top} for data in figures]
