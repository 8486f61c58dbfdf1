"""Small SVG pictures, and options in JSON for the report's chart code."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from paceline.monitor.step_series import Series
from paceline.report.page.distributions import Spec
from paceline.units import moment, seconds

_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_MARGIN = 96, 26, 3
#: Least upper end of a sparkline, S: noise must not look like a slowdown.
_SPARK_TOP = 1.1
#: Most points of a curve on a page.
MAX_POINTS = 600
#: Rows of the table below the step times.
MAX_PARTS = 20


def sparkline(values: Sequence[float | None]) -> Markup:
    """S of the last sessions as a small line, or as a point for one session."""
    finite = [v for v in values if v is not None and math.isfinite(v)]
    if not finite:
        return Markup("")
    top, last = max(_SPARK_TOP, *finite), max(len(finite) - 1, 1)
    inner_w, inner_h = _SPARK_WIDTH - 2 * _SPARK_MARGIN, _SPARK_HEIGHT - 2 * _SPARK_MARGIN

    def place(i: int, value: float) -> tuple[float, float]:
        height = min(max((value - 1) / (top - 1), 0.0), 1.0)
        x = _SPARK_MARGIN + inner_w * (i + 1 - len(finite) + last) / last
        return round(x, 1), round(_SPARK_MARGIN + inner_h * (1 - height), 1)

    points = [place(i, v) for i, v in enumerate(finite)]
    path = "M" + "L".join(f"{x} {y}" for x, y in points)
    label = f"S of the last {len(finite)} sessions: from {finite[0]:.2f} to {finite[-1]:.2f}"
    label = label if len(finite) > 1 else f"S of the only session: {finite[0]:.2f}"
    x, y = points[-1]
    return Markup(  # numbers only
        f'<svg class="spark" width="{_SPARK_WIDTH}" height="{_SPARK_HEIGHT}" role="img" '
        f'viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" aria-label="{label}">'
        f'<path d="{path}"/><circle cx="{x}" cy="{y}" r="2.6"/></svg>'
    )


def share_bar(share: float | None, name: str = "share") -> Markup:
    """A bar from 0 to ``share`` (0..1) of its track, with the number beside it."""
    if share is None or not math.isfinite(share):
        return Markup("")
    width = 100 * min(max(share, 0.0), 1.0)
    return Markup(  # a number and our own text
        f'<span class="track" aria-hidden="true"><svg class="part"><rect class="{name}" '
        f'width="{width:.2f}%" height="100%"/></svg></span>'
    )


def stacked_bar(sizes: Iterable[tuple[str, float]], top: float) -> Markup:
    """Consecutive parts (class, size) on a track that ends at ``top``."""
    rects, start = [], 0.0
    for name, size in sizes:
        width = 100 * size / top if top > 0 else 0.0
        rects.append(f'<rect class="{name}" x="{start:.2f}%" width="{width:.2f}%" height="100%"/>')
        start += width
    return Markup(  # numbers and our own texts
        f'<span class="track" aria-hidden="true"><svg class="part">{"".join(rects)}</svg></span>'
    )


def slowdown_chart(sessions: Sequence[Mapping[str, Any]]) -> Spec | None:
    """S over the sessions, the oldest first; None if fewer than two were analysed."""
    done = [s for s in sessions if s["slowdown"] is not None]
    if len(done) < 2:
        return None
    lines = [
        [f"{moment(s['created_at'])}: S {s['slowdown']:.3f}", s["headline"] or ""] for s in done
    ]
    highest = max(1.1, *(s["slowdown"] for s in done))
    return {
        "label": "Slowdown S of each session; arrow keys go from session to session",
        "xLabel": "session",
        "yLabel": "S",
        "yRange": [min(0.99, *(s["slowdown"] for s in done)), 1 + (highest - 1) * 1.08],
        "xRange": [-0.5, len(done) - 0.5],
        "x_names": _days([s["created_at"] for s in done]),
        "series": [
            {
                "label": "S",
                "name": "c-actual",
                "points": [[i, s["slowdown"]] for i, s in enumerate(done)],
            }
        ],
        "dots": [{"x": i, "y": s["slowdown"], "name": "dot big"} for i, s in enumerate(done)],
        "stops": [{"x": i, "y": s["slowdown"], "lines": lines[i]} for i, s in enumerate(done)],
    }


def steps_chart(series: Series, events: Sequence[Mapping[str, Any]]) -> Spec | None:
    """Step times of the slowest rank with marked detector events; None without step times.

    Args:
        series: step times of the job, thinned to at most :data:`MAX_POINTS`.
        events: rows of the table in any order; events outside the series are left out.
    """
    steps, times_s = series.step.tolist(), series.max_s.tolist()
    if not steps:
        return None
    healthy = [
        [step, _digits(value)]
        for step, value in zip(steps, series.healthy_s.tolist(), strict=True)
        if math.isfinite(value)
    ]
    low, high = _range([*times_s, *(value for _, value in healthy)])
    curves = [_curve(series, "slowest rank", "c-actual thin", ~series.lost)]
    if series.lost.any():
        curves.append(_curve(series, "run again after a restart", "c-lost thin", series.lost))
    if healthy:
        curves.append({"label": "healthy", "name": "c-ideal", "points": healthy})
    stops = [
        {
            "x": s,
            "y": _digits(t),
            "lines": [f"step {s:,}: {seconds(t)} (rank {rank}){'; repeated later' * lost}"],
        }
        for s, t, rank, lost in zip(
            steps, times_s, series.slowest.tolist(), series.lost.tolist(), strict=True
        )
    ]
    begin, first, last = float(series.at[0]), min(steps), max(steps)
    visible = [e for e in events if first <= e["since_step"] <= last and e["at"] >= begin]
    restarts = np.flatnonzero(np.diff(series.start)) + 1
    if len(restarts):
        begins = [steps[row] for row in restarts]
        curves.append(_marks("restarts", "c-start", begins, low, high))
        stops += [
            {"x": step, "y": high, "lines": [f"restart {n}, from step {step:,} on"]}
            for n, step in enumerate(begins, start=1)
        ]
    for kind, label in EVENT_KINDS.items():
        marks = [e for e in visible if e["kind"] == kind]
        if not marks:
            continue
        places = [e["since_step"] for e in marks]
        curves.append(_marks(label, f"c-{kind}", places, low, high))
        stops += [{"x": e["since_step"], "y": high, "lines": [label, e["text"]]} for e in marks]
    return {
        "label": "Step times of the slowest rank, with the detector's events; arrow keys move",
        "xLabel": "step",
        "yLabel": "seconds",
        "yRange": [low, high],
        "xRange": [first, max(last, first + 1)],
        "series": curves,
        "stops": sorted(stops, key=lambda stop: stop["x"]),
        "table": _parts_table(series),
    }


def _curve(series: Series, label: str, name: str, rows: npt.NDArray[np.bool_]) -> Spec:
    """The times of some rows, with gaps for other rows between them."""
    places = np.flatnonzero(rows)
    points = [[int(series.step[i]), _digits(float(series.max_s[i]))] for i in places]
    breaks = (np.flatnonzero(np.diff(places) > 1) + 1).tolist()
    return {
        "label": label,
        "name": name,
        "points": points,
        **({"breaks": breaks} if breaks else {}),
    }


def _marks(label: str, name: str, places: Sequence[int], low: float, high: float) -> Spec:
    """A line from bottom to top at each place."""
    points = [[x, y] for x in places for y in (low, high)]
    return {
        "label": label,
        "name": f"{name} mark",
        "points": points,
        "breaks": list(range(2, len(points), 2)),
    }


def _parts_table(series: Series) -> Spec:
    """A table of the slowest rank's step times, one row per range of steps."""
    n = len(series.step)
    edges = [round(k * n / min(n, MAX_PARTS)) for k in range(min(n, MAX_PARTS) + 1)]
    rows = []
    for begin, end in pairwise(edges):
        times_s = series.max_s[begin:end].tolist()
        worst = max(range(len(times_s)), key=times_s.__getitem__)
        healthy_s = [
            value for value in series.healthy_s[begin:end].tolist() if math.isfinite(value)
        ]
        at = begin + worst
        rows.append(
            [
                f"{series.step[begin]:,}",
                seconds(median(times_s)),
                seconds(times_s[worst]),
                f"step {series.step[at]:,}, rank {series.slowest[at]}",
                seconds(healthy_s[-1]) if healthy_s else "–",
            ]
        )
    head = ["from step", "median", "longest", "which", "healthy"]
    return {"title": "Table: step times as drawn", "head": head, "rows": rows}


def _digits(value: float) -> float:
    return float(f"{value:.5g}")


#: Kinds of detector events and their names on the pages.
EVENT_KINDS: Mapping[str, str] = {
    "onset": "fail-slow begins",
    "worsening": "slower still",
    "partial-relief": "partly relieved",
    "relief": "healthy again",
    "faster": "faster than before",
    "slow-start": "slow from the first step",
    "hang": "a step does not end",
    "silent": "a rank falls silent",
    "clock-jump": "a clock jumps",
    "paused": "paused",
    "not-paused": "could not be paused",
    "validated": "validated",
    "not-validated": "not validated",
}


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    return max(0.0, low - room), high + room


def _days(times: Sequence[float]) -> list[str]:
    """Labels with days, and the time of day if a day has several; seconds if a minute has."""
    days = [time.strftime("%d %b", time.gmtime(at)) for at in times]
    if len(set(days)) == len(days):
        return days
    minutes = [time.strftime("%d %b %H:%M", time.gmtime(at)) for at in times]
    if len(set(minutes)) == len(minutes):
        return minutes
    form = "%H:%M:%S" if len(set(days)) == 1 else "%d %b %H:%M:%S"
    return [time.strftime(form, time.gmtime(at)) for at in times]
