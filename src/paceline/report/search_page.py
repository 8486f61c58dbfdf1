"""The page of a search for plans: a file, or served with sliders."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from paceline.files import Writer
from paceline.model.memory_rules import EXPANDABLE_SEGMENTS
from paceline.plan.launch.files import FRAMEWORKS
from paceline.plan.model_warnings import model_warnings
from paceline.plan.search import SearchResult, pareto
from paceline.report.page.frame import content_policy, paceline_version, static
from paceline.report.page.markup import escape, foreign, table
from paceline.report.page.pack import round_values, safe_json
from paceline.report.plan_table import CommonParts, Row, columns, row
from paceline.report.prices import price_text
from paceline.report.search import (
    OBJECTIVES,
    describe,
    front,
    kernels,
    pruned_counts,
    segments,
)
from paceline.units import GIB, day_count, dollars, in_gib, significant

#: Most points of the plot, and their largest cost as a multiple of the front's.
MAX_POINTS, _MAX_RATIO = 2000, 1.6

_SCRIPTS = ("base.js", "chart.js", "search.js")
_SLIDERS = "sliders.js"


def page_writer(result: SearchResult, top: int, launch: tuple[str, str] | None = None) -> Writer:
    """The writer of ``report.html``: one self-contained file, like the page of ``analyze``.

    ``launch`` has the name of a framework and the text of its launch file.
    """
    content = page(result, top, launch=launch)

    def write(file: BinaryIO) -> None:
        file.write(content)

    return write


def page(
    result: SearchResult, top: int, controls: str = "", launch: tuple[str, str] | None = None
) -> bytes:
    """The page, with controls at its top if it is served."""
    names = (*_SCRIPTS, *([_SLIDERS] if controls else []))
    script = "\n".join(static(name) for name in names)
    has_price = bool(controls) or result.dollars is not None or not result.has_one_count
    head = columns(result)
    best = range(min(top, len(result)))
    shown = [*best, *(() if result.has_one_count else front(result))]
    common = CommonParts(result, shown)
    note = segments(result, shown)
    if result.has_one_count:  # there is no table above the best plans
        note.insert(0, common.text)
    text = Template(static("search.html")).substitute(
        title=escape(f"Plans for {result.llm.name} · Paceline"),
        policy=escape(_policy(script, controls)),
        style=static("page.css"),
        job=foreign(describe(result)),
        controls=controls,
        headline=_headline(result),
        numbers=_numbers(result),
        plans=table(
            ("rank", *head), _page_rows(result, best, common), name="plans", numeric_from=2
        ),
        basis=escape(result.interval(0).about),
        front=_front_table(result, common),
        pruned=table(
            ("why", "plans"), [(foreign(reason), f"{n:,}") for reason, n in pruned_counts(result)]
        ),
        against="Time against memory" if result.has_one_count else "Time against cost",
        front_words=_front_words(result),
        price=escape(_price(result)) if has_price else "",
        segments=escape(" ".join(filter(None, [*note, kernels(result)]))),
        launch="" if launch is None else _launch(*launch),
        warnings="".join(
            f'<p class="note">{foreign(text)}</p>' for text in model_warnings(result.llm)
        ),
        version=escape(paceline_version()),
        data=safe_json(_points(result)),
        script=script,
    )
    return text.encode("utf-8", "replace")


def _launch(framework: str, text: str) -> str:
    """The section with a framework's launch file."""
    head = f'<h2 id="h-launch">Launch file, {escape(FRAMEWORKS[framework][0])}</h2>'
    body = f"<pre>{escape(text)}</pre>"
    if EXPANDABLE_SEGMENTS in text:
        body += f"<p>It sets {EXPANDABLE_SEGMENTS}. Without it the memory may not suffice.</p>"
    return f'<section id="launch" aria-labelledby="h-launch">\n{head}\n{body}\n</section>\n'


def problem_page(problem: str, controls: str) -> bytes:
    """The page if no plan fits: the reason, and controls to change it."""
    text = Template(static("search_problem.html")).substitute(
        policy=escape(_policy(static(_SLIDERS), controls)),
        style=static("page.css"),
        controls=controls,
        problem=foreign(problem),
        script=static(_SLIDERS),
    )
    return text.encode("utf-8", "replace")


def _policy(script: str, controls: str) -> str:
    """The content policy; served controls may also send a form to this server."""
    policy = content_policy(script)
    return policy.replace("form-action 'none'", "form-action 'self'") if controls else policy


def controls(
    start: Mapping[str, int],
    values: Mapping[str, int],
    words: Mapping[str, str],
    span: int,
    price: float,
    max_price: float,
    moved: str = "",
) -> str:
    """A form with a slider for the price and for each number, which it doubles or halves.

    The slider ``moved`` last has the focus again.
    """
    rows = []
    for name, first in start.items():
        power = round(math.log2(values[name] / first))
        now = f"{values[name]:,} {words[name]}"
        about = {"data-start": first, "data-unit": words[name]}
        rows.append(_slider(name, now, (-span, span, 1), power, about, moved))
    unit = "per GPU and hour"
    bounds = (0, max_price, 0.01)
    rows.append(
        _slider("price", f"${price:,.2f} {unit}", bounds, price, {"data-unit": unit}, moved)
    )
    text = "".join(rows) + '<input type="hidden" name="moved" value="">'
    return f'<form class="search" method="get" action="/">{text}<button>Search</button></form>'


def _slider(
    name: str,
    now: str,
    bounds: tuple[float, float, float],
    value: float,
    about: Mapping[str, object],
    moved: str,
) -> str:
    low, high, step = bounds
    words = "".join(f' {key}="{escape(str(text))}"' for key, text in about.items())
    words += " autofocus" * (name == moved)
    return (
        f'<p class="slider"><label for="{name}">{escape(now)}</label> <input type="range" '
        f'id="{name}" name="{name}" min="{low:g}" max="{high:g}" step="{step:g}" '
        f'value="{value:g}"{words}></p>'
    )


def _headline(result: SearchResult) -> str:
    plan = f"<b>{escape(result.plan(0).describe())}</b> on {result.gpus[0]:,} GPUs"
    text = f"{plan}: {significant(result.step_time_s[0], 4)} s a step, MFU {result.mfu[0]:.1%}"
    if result.days is not None:
        text += f", {day_count(float(result.days[0]))} days"
    if result.dollars is not None:
        text += f", {dollars(result.dollars[0])}"
    return text


def _numbers(result: SearchResult) -> str:
    memory = result.memory_bytes[0] / result.cluster.gpu.memory_bytes
    items = [
        ("Ranked by", result.objective, OBJECTIVES[result.objective]),
        ("Step", f"{significant(result.step_time_s[0], 4)} s", f"on {result.gpus[0]:,} GPUs"),
        ("MFU", f"{result.mfu[0]:.1%}", "of the GPUs' dense peak"),
        ("Memory", in_gib(result.memory_bytes[0]), f"{memory:.0%} of a GPU's"),
        ("Legal plans", f"{len(result.legal):,}", f"of which {len(result):,} fit"),
        ("On the front", f"{int(_front_plans(result).sum()):,}", _front_words(result)),
    ]
    cells = (
        f"<div><dt>{name}</dt><dd>{escape(number)}</dd><dd>{escape(detail)}</dd></div>"
        for name, number, detail in items
    )
    return f'<dl class="numbers">{"".join(cells)}</dl>'


def _front_table(result: SearchResult, common: CommonParts) -> str:
    if result.has_one_count:
        return ""
    rows = _page_rows(result, front(result), common)
    text = f"<p>{escape(common.text)}</p>" if common.text else ""
    return text + table(("rank", *columns(result)), rows, name="plans", numeric_from=2)


def _page_rows(result: SearchResult, places: Sequence[int], common: CommonParts) -> list[Row]:
    rows, on_front = [], _front_plans(result)
    for i in places:
        cells = (escape(cell) for cell in row(result, i)[1:])
        mark = "*" if on_front[i] else ""
        rows.append((f"{i + 1}{mark}", escape(common.short_name(result.plan(i))), *cells))
    return rows


def _price(result: SearchResult) -> str:
    text = price_text(result.cluster)
    if result.cluster.price_per_gpu_hour is not None:
        return f"{text}."
    return f"{text[:1].upper()}{text[1:]}. So the cost is GPU-time."


def _points(result: SearchResult) -> dict[str, Any]:
    """Points of the plot: time against cost, in the largest known units.

    With a single number of GPUs, cost is proportional to time, so memory takes its place. Plans far
    from the line are left out, for they would shrink it into a corner.
    """
    x, x_label = result.step_time_s, "seconds per step"
    y, y_label = result.gpu_seconds, "GPU-seconds per step"
    if result.days is not None:
        x, x_label = result.days, "days"
        y, y_label = result.days * result.gpus, "GPU-days"
    if result.dollars is not None:
        y, y_label = result.dollars / 1e6, "million $"
    line = _front_plans(result)
    if result.has_one_count:
        y, y_label = result.memory_bytes / GIB, "GiB on the fullest GPU"
    order = np.argsort(x, kind="stable")
    lowest_y = np.empty_like(y)
    lowest_y[order] = np.minimum.accumulate(y[order])
    off = np.maximum(y / lowest_y, x / x[line].max())
    near = np.argsort(off, kind="stable")[:MAX_POINTS]
    points = np.union1d(near[off[near] <= _MAX_RATIO], np.flatnonzero(line))
    return {
        "x": round_values(x[points]),
        "y": round_values(y[points]),
        "pareto": line[points].tolist(),
        "name": [result.plan(i).describe() for i in points.tolist()],
        "gpus": result.gpus[points].tolist(),
        "step_s": round_values(result.step_time_s[points]),
        "x_label": x_label,
        "y_label": y_label,
        "front_label": _front_words(result),
        "all": len(result),
    }


def _front_plans(result: SearchResult) -> npt.NDArray[np.bool_]:
    """[plan] whether it is on the front that the page draws: by memory if the costs are equal."""
    if result.has_one_count:
        return pareto(result.step_time_s, result.memory_bytes)
    return result.pareto


def _front_words(result: SearchResult) -> str:
    """The meaning of that front."""
    better = "needs less memory" if result.has_one_count else "is cheaper"
    return f"no other plan is faster and {better}"
