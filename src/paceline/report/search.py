"""A search for plans: its table on the terminal, as JSON, as parquet and as a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any, BinaryIO

import numpy as np
from rich.text import Text

from paceline.errors import OutputError
from paceline.files import Writer, check_targets, make_folder, text_writer, write_files
from paceline.plan.explain import Explanation, Term
from paceline.plan.launch.files import FRAMEWORKS
from paceline.plan.search import SearchResult, pareto
from paceline.report.layout import wrap
from paceline.report.page.frame import content_policy, paceline_version, static
from paceline.report.page.markup import escape, foreign, table
from paceline.report.page.pack import round_values, safe_json

SCHEMA = 1
PLANS, RESULT, REPORT = "plans.parquet", "result.json", "report.html"

#: Points of the page's plot at most, and how many times as dear as the line they may be.
MAX_POINTS, _MAX_RATIO = 2000, 1.6

_SCRIPTS = ("base.js", "chart.js", "search.js")
_OBJECTIVES = {"time": "shortest step", "cost": "least GPU-time", "gpus": "fewest GPUs"}

#: Term of the breakdown -> what it is, for people, where its name does not say it.
_TERMS = {"memory": "norms, activations, loss", "tail": "optimizer and tail", "gemm": "products"}

Row = tuple[str, ...]


def describe(result: SearchResult) -> str:
    """What was searched, in a line."""
    gpus = result.legal.gpus
    low, high = int(gpus.min()), int(gpus.max())
    batch = result.legal.base.global_batch
    tokens = "" if result.tokens is None else f" · {result.tokens / 1e9:,.6g} billion tokens"
    count = f"{low:,} GPUs" if low == high else f"{low:,} to {high:,} GPUs"
    return f"{result.llm.name} on {count} ({result.cluster.name}) · global batch {batch:,}{tokens}"


def columns(result: SearchResult) -> Row:
    """Heads of :func:`row`."""
    optional = [*(["days"] if result.days is not None else [])]
    optional += ["million $"] if result.dollars is not None else []
    return ("plan", "GPUs", "step s", "MFU", "causal", "GB", *optional)


def row(result: SearchResult, i: int) -> Row:
    """The plan at place ``i``, as texts."""
    cells = [
        result.plan(i).describe(),
        f"{result.gpus[i]:,}",
        f"{result.step_time_s[i]:#.4g}",
        f"{result.mfu[i]:.1%}",
        f"{result.mfu_causal[i]:.1%}",
        f"{result.memory_bytes[i] / 1e9:.1f}",
    ]
    if result.days is not None:
        cells.append(f"{result.days[i]:,.1f}")
    if result.dollars is not None:
        cells.append(f"{result.dollars[i] / 1e6:,.3f}")
    return tuple(cells)


def front(result: SearchResult) -> list[int]:
    """Places of the Pareto front, fastest first."""
    places = np.flatnonzero(result.pareto)
    order: list[int] = places[np.argsort(result.step_time_s[places], kind="stable")].tolist()
    return order


# Terminal.


def lines(result: SearchResult, top: int, width: int) -> list[Text]:
    """The screen: what was searched, the best plans, the rest of the front, what was pruned."""
    width = max(40, min(width, 132))
    legal, fits = len(result.legal), len(result)
    words = f"{fits:,} of {legal:,} legal plans fit, evaluated in {result.seconds:.1f} s; ranked by"
    best = list(range(min(top, fits)))
    other_front = [i for i in front(result) if i not in set(best)][:top]
    text = [
        *wrap(describe(result), width, style="bold"),
        *wrap(f"{words} {_OBJECTIVES[result.objective]}", width),
        Text(""),
        *_table(result, best),
    ]
    if other_front:
        text += [Text(""), Text("Others that no plan beats in both time and cost", style="bold")]
        text += _table(result, other_front)
    text += [Text(""), Text("Ruled out", style="bold")]
    for reason, count in pruned_counts(result):
        text += wrap(f"{count:>14,}  {reason}", width, indent=" " * 16)
    notes = [
        "* no plan is both faster and cheaper.",
        "causal: MFU without the half of the attention that the mask leaves out.",
        f"A plan fits beside a reserve of {result.rules.reserve:.0%} of the memory.",
    ]
    if result.dollars is not None and result.cluster.price_source:
        price = result.cluster.price_per_gpu_hour
        notes.append(f"{price:,.2f} $ per GPU-hour: {result.cluster.price_source}.")
    return [*text, Text(""), *wrap(" ".join(notes), width, style="dim")]


def _table(result: SearchResult, places: Sequence[int]) -> list[Text]:
    rows = [columns(result), *(row(result, i) for i in places)]
    widths = [max(len(cells[k]) for cells in rows) for k in range(len(rows[0]))]
    text = []
    for i, cells in enumerate(rows):
        mark = "*" if i and result.pareto[places[i - 1]] else " "
        aligned = (f"{cell:>{size}}" for cell, size in zip(cells[1:], widths[1:], strict=True))
        line = f"{mark} {cells[0]:<{widths[0]}}  {'  '.join(aligned)}"
        text.append(Text(line, style="" if i else "dim"))
    return text


def explained_lines(explanation: Explanation, width: int) -> list[Text]:
    """Why the first plan beats the second: what differs, seconds and bytes by term."""
    first, second = explanation.first, explanation.second
    text = [Text(""), Text("Why the first beats the second", style="bold")]
    for mark, prediction in (("A", first), ("B", second)):
        words = f"{mark}  {prediction.plan.describe()}: {prediction.step_time_s:#.4g} s"
        text += wrap(words, width, indent="   ")
    changes = (f"{name} {a} -> {b}" for name, (a, b) in explanation.changes.items())
    text += wrap(f"A -> B: {', '.join(changes)}", width, indent="   ")
    for title, terms, scale in (
        ("seconds", explanation.time, 1.0),
        ("GB on the fullest GPU", explanation.memory, 1e9),
    ):
        text.append(Text(f"  {'A':>9} {'B':>9} {'B - A':>9}  {title}", style="dim"))
        total = Term("all", sum(t.first for t in terms), sum(t.second for t in terms))
        least = 1e-4 * total.first
        for term in (*(t for t in terms if max(t.first, t.second) > least), total):
            values = (term.first / scale, term.second / scale, term.difference / scale)
            numbers = f"{values[0]:9.4g} {values[1]:9.4g} {values[2]:+9.3g}"
            text.append(Text(f"  {numbers}  {_TERMS.get(term.name, term.name)}"))
    return text


def pruned_counts(result: SearchResult) -> list[tuple[str, int]]:
    """Reasons and counts, the largest first."""
    return sorted(result.pruned.items(), key=lambda item: -item[1])


# Data.


def to_mapping(result: SearchResult, top: int) -> dict[str, Any]:
    """The result as JSON knows it: the best plans, the front, what was ruled out."""
    data = result.columns()
    gpus = result.legal.gpus
    return {
        "schema": SCHEMA,
        "model": result.llm.name,
        "cluster": result.cluster.name,
        "gpus": [int(gpus.min()), int(gpus.max())],
        "global_batch": result.legal.base.global_batch,
        "precision": result.legal.base.precision,
        "tokens": result.tokens,
        "price_per_gpu_hour": result.cluster.price_per_gpu_hour,
        "objective": result.objective,
        "legal": len(result.legal),
        "fit": len(result),
        "seconds": result.seconds,
        "plans": [_record(result, data, i) for i in range(min(top, len(result)))],
        "pareto": [_record(result, data, i) for i in front(result)],
        "pruned": dict(pruned_counts(result)),
    }


def _record(result: SearchResult, data: dict[str, Any], i: int) -> dict[str, Any]:
    record = {name: values[i].item() for name, values in data.items()}
    layers = result.plan(i).layers_per_stage
    return {"rank": i + 1, "plan": result.plan(i).describe(), **record, "layers_per_stage": layers}


def json_writer(result: SearchResult, top: int) -> Writer:
    """What writes ``result.json``."""
    content = f"{json.dumps(to_mapping(result, top), indent=1)}\n".encode()
    return lambda file: _write(file, content)


def parquet_writer(result: SearchResult) -> Writer:
    """What writes ``plans.parquet``: every plan that fits, best first."""

    def write(file: BinaryIO) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table(result.columns()), file)

    return write


def check_folder(folder: Path, *, force: bool = False, launch: str | None = None) -> None:
    """Make sure that :func:`write_folder` may write.

    Raises:
        OutputError: a file of that name or one of the results exists.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; --out takes a folder")
    names = [PLANS, RESULT, REPORT, *([FRAMEWORKS[launch][0]] if launch else [])]
    check_targets([folder / name for name in names], force=force)


def write_folder(
    result: SearchResult,
    top: int,
    folder: Path,
    *,
    force: bool = False,
    launch: tuple[str, str] | None = None,
) -> str:
    """Write all plans, the result, the page, and a launch file; returns a note for the user.

    ``launch`` is a framework and the text for it.

    Raises:
        OutputError: a file exists and ``force`` is not given, or cannot be written.
    """
    writers = {
        folder / PLANS: parquet_writer(result),
        folder / RESULT: json_writer(result, top),
        folder / REPORT: page_writer(result, top),
    }
    if launch is not None:
        framework, text = launch
        writers[folder / FRAMEWORKS[framework][0]] = text_writer(text)
    make_folder(folder)
    write_files(writers, force=force)
    return f"wrote {', '.join(str(path) for path in writers)}"


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(content)


# The page.


def page_writer(result: SearchResult, top: int) -> Writer:
    """What writes ``report.html``: one file that fetches nothing, like that of ``analyze``."""
    script = "\n".join(static(name) for name in _SCRIPTS)
    head = columns(result)
    best = range(min(top, len(result)))
    page = Template(static("search.html")).substitute(
        title=escape(f"Plans for {result.llm.name} · Paceline"),
        policy=escape(content_policy(script)),
        style=static("page.css"),
        job=foreign(describe(result)),
        headline=_headline(result),
        numbers=_numbers(result),
        plans=table(("rank", *head), _page_rows(result, best), numeric_from=2),
        front=_front_table(result),
        pruned=table(
            ("why", "plans"), [(foreign(reason), f"{n:,}") for reason, n in pruned_counts(result)]
        ),
        against="Time against memory" if _one_count(result) else "Time against cost",
        price=escape(_price(result)),
        version=escape(paceline_version()),
        data=safe_json(_points(result)),
        script=script,
    )
    content = page.encode("utf-8", "replace")
    return lambda file: _write(file, content)


def _headline(result: SearchResult) -> str:
    plan = f"<b>{escape(result.plan(0).describe())}</b> on {result.gpus[0]:,} GPUs"
    text = f"{plan}: {result.step_time_s[0]:#.4g} s a step, MFU {result.mfu[0]:.1%}"
    if result.days is not None:
        text += f", {result.days[0]:,.1f} days"
    if result.dollars is not None:
        text += f", {result.dollars[0] / 1e6:,.2f} million $"
    return text


def _numbers(result: SearchResult) -> str:
    memory = result.memory_bytes[0] / result.cluster.gpu.memory_bytes
    items = [
        ("Ranked by", result.objective, _OBJECTIVES[result.objective]),
        ("Step", f"{result.step_time_s[0]:#.4g} s", f"on {result.gpus[0]:,} GPUs"),
        ("MFU", f"{result.mfu[0]:.1%}", "of the GPUs' dense peak"),
        ("Memory", f"{result.memory_bytes[0] / 1e9:.1f} GB", f"{memory:.0%} of a GPU's"),
        ("Legal plans", f"{len(result.legal):,}", f"of which {len(result):,} fit"),
        ("On the front", f"{int(result.pareto.sum()):,}", "none is both faster and cheaper"),
    ]
    cells = (
        f"<div><dt>{name}</dt><dd>{escape(number)}</dd><dd>{escape(detail)}</dd></div>"
        for name, number, detail in items
    )
    return f'<dl class="numbers">{"".join(cells)}</dl>'


def _front_table(result: SearchResult) -> str:
    if _one_count(result):
        return ""
    return table(("rank", *columns(result)), _page_rows(result, front(result)), numeric_from=2)


def _page_rows(result: SearchResult, places: Sequence[int]) -> list[Row]:
    rows = []
    for i in places:
        name, *cells = (escape(cell) for cell in row(result, i))
        mark = " *" if result.pareto[i] else ""
        rows.append((f"{i + 1}{mark}", name, *cells))
    return rows


def _price(result: SearchResult) -> str:
    price = result.cluster.price_per_gpu_hour
    if price is None:
        return "No price per GPU-hour is known, so the cost is that of GPU-time."
    return f"{price:,.2f} $ per GPU-hour ({result.cluster.price_source or 'given'})."


def _points(result: SearchResult) -> dict[str, Any]:
    """What the plot draws: time against cost, in the largest units that are known.

    With one number of GPUs cost is time; then memory is what is traded for it. Plans far from the
    line would make it a point in a corner, and are left out.
    """
    x, x_label = result.step_time_s, "seconds per step"
    y, y_label = result.gpu_seconds, "GPU-seconds per step"
    if result.days is not None:
        x, x_label = result.days, "days"
        y, y_label = result.days * result.gpus, "GPU-days"
    if result.dollars is not None:
        y, y_label = result.dollars / 1e6, "million $"
    line = result.pareto
    if _one_count(result):
        y, y_label = result.memory_bytes / 1e9, "GB on the fullest GPU"
        line = pareto(x, y)
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
        "all": len(result),
    }


def _one_count(result: SearchResult) -> bool:
    return int(result.gpus.min()) == int(result.gpus.max())
