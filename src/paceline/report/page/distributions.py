"""Charts of many jobs for the page's script: distributions, and points by size.

Data of charts is thinned here, so that a page of a million jobs is no larger than one of a
thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from paceline.fleet.definitions import Definition

Spec = dict[str, Any]

#: Most points of a distribution in a page: the curve is smooth, and each point has a text.
MAX_CDF_POINTS = 200
#: Up to this number of points, each is drawn large.
_FEW_DOTS = 60
#: CSS classes of curves, in order.
CURVES = tuple(f"curve{i}" for i in range(6))


class Distribution(NamedTuple):
    """Values in ascending order and their owners. Owners are looked up only for drawn points."""

    values: Sequence[float]
    name_of: Callable[[int], str]


def distribution(pairs: Sequence[tuple[float, str]]) -> Distribution:
    """From pairs (value, owner) in any order."""
    ordered = sorted(pairs)
    return Distribution([value for value, _ in ordered], lambda i: ordered[i][1])


def cdf_chart(
    curves: Mapping[str, Distribution],
    *,
    label: str,
    x_label: str,
    y_label: str = "share of jobs",
    x_range: tuple[float, float] | None = None,
    percent: bool = False,
    ref: tuple[float, str] | None = None,
) -> Spec | None:
    """A chart of cumulative distributions, one curve each; None without values.

    Args:
        curves: name -> its values.
        label: description for screen readers.
        x_label: label of the x axis.
        y_label: label of the y axis.
        x_range: ends of the x axis; None: from the values and the mark.
        percent: values are shares, shown as percentages.
        ref: a value to mark, and its name.
    """
    drawn = {name: curve for name, curve in curves.items() if len(curve.values)}
    if not drawn:
        return None
    series: list[Spec] = []
    stops: list[Spec] = []
    rows: list[list[str]] = []
    for (name, (values, name_of)), look in zip(drawn.items(), CURVES, strict=False):
        n = len(values)
        picked = [(float(values[i]), (i + 1) / n, name_of(i)) for i in _thin(n)]
        points = [[float(values[0]), 0.0], *([value, share] for value, share, _ in picked)]
        series.append({"label": name, "name": f"c {look}", "points": points, "stairs": True})
        for value, share, job in picked:
            value_text = f"{value:.1%}" if percent else f"{value:.3f}"
            head = f"{name}: {value_text}" if len(drawn) > 1 else value_text
            below = f"{share:.0%} of {n:,} are at most that"
            stops.append({"x": value, "y": share, "lines": [f"{head} ({job})", below]})
        rows += [_quantiles(name, values, percent)]
    columns = ["curve", "values", "10%", "median", "90%", "largest"]
    spec: Spec = {
        "label": f"{label}; arrow keys move along",
        "xLabel": x_label,
        "yLabel": y_label,
        "yRange": [0, 1.03],
        "series": series,
        "stops": sorted(stops, key=lambda stop: stop["x"]),
        "table": {"title": "Table: quantiles", "head": columns, "rows": rows},
    }
    if ref:
        spec["ref"] = {"x": ref[0], "label": ref[1]}
        outer = [float(values[i]) for values, _ in drawn.values() for i in (0, -1)]
        ends = [ref[0], *outer]
        room = (max(ends) - min(ends)) * 0.05 or 0.05
        spec["xRange"] = [min(ends) - room, max(ends) + room]
    if x_range:
        spec["xRange"] = list(x_range)
    return spec


def defined_cdf(
    defined: Definition,
    curves: Mapping[str, Distribution],
    y_label: str = "share of jobs",
    x_range: tuple[float, float] | None = None,
) -> Spec | None:
    """The chart of a figure, with axis, unit and mark from its definition."""
    return cdf_chart(
        curves,
        label=f"{y_label.capitalize()} against {defined.x_label}",
        x_label=defined.x_label,
        y_label=y_label,
        x_range=x_range,
        percent=defined.percent,
        ref=defined.mark,
    )


def _thin(n: int, most: int = MAX_CDF_POINTS) -> list[int]:
    """At most ``most`` evenly spread indices below ``n``, including the last."""
    every = -(-n // most)
    return sorted({*range(0, n, every), n - 1})


def _quantiles(name: str, values: Sequence[float], percent: bool) -> list[str]:
    picked = [values[min(int(q * len(values)), len(values) - 1)] for q in (0.1, 0.5, 0.9, 1.0)]
    return [name, f"{len(values):,}", *(f"{v:.1%}" if percent else f"{v:.3f}" for v in picked)]


def scatter_chart(
    points: Sequence[tuple[float, float, str]],
    *,
    label: str,
    x_label: str,
    y_label: str,
    table: Spec | None = None,
) -> Spec | None:
    """A chart of points (x, y, name), with x by powers of two; None without points.

    ``table`` has the points as text; None: it is made from the points.
    """
    placed = sorted((math.log2(x), y, x, name) for x, y, name in points if x > 0)
    if not placed:
        return None
    first, last = math.floor(placed[0][0]), math.ceil(placed[-1][0])
    names = {power: f"{2**power:,}" for power in range(first, last + 1)}
    dot = "dot big" if len(placed) <= _FEW_DOTS else "dot"
    return {
        "label": f"{label}; arrow keys go from job to job",
        "xLabel": x_label,
        "yLabel": y_label,
        "xRange": [first - 0.3, last + 0.3],
        "x_names": names,
        "dots": [{"x": x, "y": y, "name": dot} for x, y, _, _ in placed],
        "stops": [
            {"x": x, "y": y, "lines": [name, f"S {y:.3f}", f"{x_label}: {true:,.0f}"]}
            for x, y, true, name in placed
        ],
        "table": table or _table_of(placed, x_label),
    }


def _table_of(placed: Sequence[tuple[float, float, float, str]], x_label: str) -> Spec:
    x, y = [true for _, _, true, _ in placed], [y for _, y, _, _ in placed]
    return sizes_table(x, y, lambda i: placed[i][3], x_label)


def sizes_table(x: Any, y: Any, name_of: Callable[[int], str], x_label: str) -> Spec:
    """Points as a table: a row for each power of two of x.

    Args:
        x: [point] above 0.
        y: [point] S.
        name_of: a point's name.
        x_label: label of x.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    power = np.floor(np.log2(x)).astype(np.int64)
    rows = []
    for one in np.unique(power).tolist():
        here = np.flatnonzero(power == one)
        least, most = float(x[here].min()), float(x[here].max())
        worst = int(here[np.argmax(y[here])])
        rows.append(
            [
                f"{least:,.0f}" if least == most else f"{least:,.0f}–{most:,.0f}",
                f"{len(here):,}",
                f"{np.median(y[here]):.3f}",
                f"{y[worst]:.3f}",
                name_of(worst),
            ]
        )
    head = [x_label, "jobs", "median S", "largest S", "slowest job"]
    return {"title": f"Table: S by {x_label}", "head": head, "rows": rows}
