"""Two sessions of a job beside each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.monitor.web.shown import hosts_of, shown
from paceline.monitor.web.templating import cause
from paceline.report.page.figures import figure_data
from paceline.units import percent, seconds

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """A value in both sessions.

    Attributes:
        name: what it is.
        before, after, change: as text.
        mood: "worse" or "better" where the change is worth a colour, else "".
    """

    name: str
    before: str
    after: str
    change: str
    mood: str


@dataclass(frozen=True)
class Comparison:
    """Two sessions beside each other.

    Attributes:
        numbers: S, waste, step times.
        falls: the drops of both waterfalls by name, seconds per step.
        kinds, stages: S of each part that is in either; kinds by their change.
        workers: numbers of the two worker heatmaps, on one scale.
    """

    numbers: list[Line]
    falls: list[Line]
    kinds: list[Line]
    stages: list[Line]
    workers: list[dict[str, Any]]


def compare(a: Result, b: Result) -> Comparison:
    """What changed from ``a`` to ``b``."""
    return Comparison(
        numbers=_key_lines(a, b),
        falls=_fall_lines(a, b),
        kinds=_part_lines(a, b, "by_kind"),
        stages=_part_lines(a, b, "by_stage"),
        workers=_worker_figures((a, b)),
    )


#: Changes of a ratio or share below this are noise to the eye.
_NOTICED = 0.01


def _key_lines(a: Result, b: Result) -> list[Line]:
    times = [
        (name, _mean(a["step_time_s"][key]), _mean(b["step_time_s"][key]))
        for name, key in (
            ("Mean step, actual", "traced"),
            ("… without launch delays", "simulated"),
            ("… ideal", "ideal"),
        )
    ]
    lines = [
        _line("Slowdown S", a["slowdown"], b["slowdown"], _ratio),
        _line("Waste", a["waste"], b["waste"], percent),
        _line("Launch delays, factor", a["launch_slowdown"], b["launch_slowdown"], _ratio),
    ]
    return lines + [_line(name, x, y, seconds, scale=x or 1.0) for name, x, y in times]


def _part_lines(a: Result, b: Result, key: str) -> list[Line]:
    names = list(dict.fromkeys([*a[key], *b[key]]))
    pairs = [(name, a[key].get(name), b[key].get(name)) for name in names]
    if key == "by_kind":
        pairs.sort(key=lambda p: -abs((p[2] or 1.0) - (p[1] or 1.0)))
    head = "stage " if key == "by_stage" else ""
    return [_line(f"{head}{name}", x, y, _ratio) for name, x, y in pairs]


#: Drops that are no finding, as the report calls them.
_DROPS = {
    "launch-delay": "Launch delays",
    "unexplained": "Other stragglers",
    "p2p": "Transfers between stages",
    "collectives": "Collectives, optimizer",
    "bubble": "Pipeline bubble",
}


def _fall_lines(a: Result, b: Result) -> list[Line]:
    falls = [
        {d["name"]: d["seconds"] or 0.0 for d in r.get("waterfall", {}).get("drops", ())}
        for r in (a, b)
    ]
    names = dict.fromkeys([*falls[0], *falls[1]])
    scale = _mean(a["step_time_s"]["traced"]) or 1.0
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


def _line(
    name: str,
    before: float | None,
    after: float | None,
    form: Callable[[float], str],
    *,
    scale: float = 1.0,
) -> Line:
    """A line; larger values are worse. ``scale``: what a change is measured by."""
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


def _mean(values: Mapping[str, float | None]) -> float | None:
    known = [v for v in values.values() if v is not None]
    return sum(known) / len(known) if known else None


def _worker_figures(results: Sequence[Result]) -> list[dict[str, Any]]:
    made = [figure_data(shown(result), hosts_of(result)) for result in results]
    top = max(float(np.nanmax(np.array(r["by_worker"], dtype=np.float64))) for r in results)
    wanted = ("n_pp", "n_dp", "workers", "hosts")
    return [{**{name: data[name] for name in wanted}, "top": top} for data in made]
