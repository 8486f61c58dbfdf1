"""Small pieces of HTML: escaped text, numbers, tables, bars. Arguments are unescaped strings."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.units import quantity

#: Most entries of a list and most levels of nesting in a page; result.json has the rest.
MAX_ENTRIES, MAX_DEPTH = 12, 3

_MAX_TEXT = 400

_VISIBLE = 0.003  # of the width of a track


def escape(text: object) -> str:
    """Text escaped for an element or a quoted attribute."""
    return html.escape(str(text), quote=True)


def foreign(text: object) -> str:
    """A foreign name: escaped, and its writing direction isolated."""
    return f"<bdi>{escape(text)}</bdi>"


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    caption: str = "",
    name: str = "",
    numeric_from: int = 1,
) -> str:
    """A table of HTML cells; the first column heads its row."""
    label = escape(caption or f"Table by {head[0].lower()}")  # it may scroll by keyboard
    lines = [f'<div class="scroll" tabindex="0" role="group" aria-label="{label}">']
    lines.append(f'<table class="{name}">')
    lines += [f"<caption>{escape(caption)}</caption>"] if caption else []
    heads = (_head(h, _number(i, numeric_from)) for i, h in enumerate(head))
    lines.append(f"<thead><tr>{''.join(heads)}</tr></thead><tbody>")
    for row in rows:
        cells = (f"<td{_number(i, numeric_from)}>{c}</td>" for i, c in enumerate(row) if i)
        lines.append(f'<tr><th scope="row">{row[0]}</th>{"".join(cells)}</tr>')
    return "\n".join([*lines, "</tbody></table></div>"])


def _head(name: str, attributes: str) -> str:
    """A column's heading. A column without a name has none for screen readers, either."""
    return f'<th scope="col"{attributes}>{escape(name)}</th>' if name else "<td></td>"


def _number(place: int, numeric_from: int) -> str:
    return ' class="num"' if place >= numeric_from else ""


def bar(
    low: float,
    high: float,
    *,
    name: str = "",
    base: float | None = None,
    interval: tuple[float, float] | None = None,
) -> str:
    """A bar from ``low`` to ``high`` (0..1) of its track. The numbers stand beside it as text.

    Args:
        low: start of the bar.
        high: its end.
        name: its CSS class: share, drop, gain, level or negative.
        base: position of a line that marks the track.
        interval: ends of a thin line over the bar, 0..1.
    """
    low, high = max(0.0, min(low, high)), min(1.0, max(low, high))
    mark = _piece("base", base) if base is not None else ""
    # A bar of less than a pixel is not drawn: a line would look like a value.
    inner = _piece(name, low, high - low) if high - low >= _VISIBLE else ""
    line = ""
    if interval is not None:  # visible even if narrow
        line = _piece("whisker", interval[0], max(interval[1] - interval[0], _VISIBLE))
    return f'<span class="track" aria-hidden="true">{mark}{inner}{line}</span>'


def _piece(name: str, start: float, width: float | None = None) -> str:
    """A rectangle; one pixel wide if no width is given.

    It is SVG, for the monitor's Content-Security-Policy refuses style attributes.
    """
    size = "1" if width is None else f"{width:.2%}"
    return (
        f'<svg class="part {name}"><rect class="{name}" x="{start:.2%}" width="{size}" '
        'height="100%"/></svg>'
    )


def value(data: Any, depth: int = 0) -> str:
    """Evidence or a change of any shape as short HTML."""
    if isinstance(data, bool) or data is None:
        return {True: "yes", False: "no", None: "–"}[data]
    if isinstance(data, int):
        return f"{data:,}"
    if isinstance(data, float):
        return quantity(data)
    if isinstance(data, str):
        return foreign(data if len(data) <= _MAX_TEXT else f"{data[:_MAX_TEXT]}…")
    if depth >= MAX_DEPTH:
        return "…"
    if isinstance(data, Mapping):
        entries = [
            f"{escape(words(k))}&nbsp;{value(v, depth + 1)}"
            for k, v in _first_entries(data.items())
        ]
        return ", ".join(entries) + _overflow(len(data))
    if isinstance(data, list | tuple):
        entries = [value(entry, depth + 1) for entry in _first_entries(data)]
        nested = any(isinstance(entry, list | tuple | Mapping) for entry in data)
        text = ("; " if nested else ", ").join(entries) + _overflow(len(data))
        return f"({text})" if depth else text
    return foreign(data)


def _first_entries(entries: Iterable[Any]) -> list[Any]:
    return [entry for _, entry in zip(range(MAX_ENTRIES), entries, strict=False)]


def _overflow(length: int) -> str:
    return f" … {length - MAX_ENTRIES:,} more" if length > MAX_ENTRIES else ""


def words(key: object) -> str:
    """``forward_ratio`` -> ``forward ratio``, ``load_s`` -> ``load (s)``; not escaped."""
    text = str(key)
    for end, unit in (("_s_per_step", " (s per step)"), ("_s", " (s)"), ("_bytes", " (bytes)")):
        if text.endswith(end):
            text = text.removesuffix(end) + unit
            break
    return text.replace("_", " ")[:_MAX_TEXT]


def pairs(entries: Mapping[str, Any], *, name: str) -> str:
    """A list of names and values."""
    items = (_pair(k, v) for k, v in entries.items() if v is not None)
    return f'<dl class="{name}">{"".join(items)}</dl>'


def _pair(key: object, data: Any) -> str:
    if not _is_table(data):
        return f"<div><dt>{escape(words(key))}</dt><dd>{value(data)}</dd></div>"
    head = [words(k) for k in data[0]]
    rows = [[value(entry[k], 1) for k in entry] for entry in _first_entries(data)]
    inner = table(head, rows, name="small", numeric_from=len(head))
    content = f"{inner}{_overflow(len(data))}"
    return f'<div class="wide"><dt>{escape(words(key))}</dt><dd>{content}</dd></div>'


def _is_table(data: Any) -> bool:
    """Whether the value is a list of records with the same few fields."""
    if not isinstance(data, list | tuple) or not data:
        return False
    if not all(isinstance(entry, Mapping) for entry in data):
        return False
    fields = list(data[0])
    return 1 < len(fields) <= MAX_ENTRIES and all(list(entry) == fields for entry in data)
