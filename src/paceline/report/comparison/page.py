"""The page of a comparison: one HTML file that opens from disk, fetches nothing and prints."""

from __future__ import annotations

from string import Template
from typing import BinaryIO

from paceline.comparison import Change, Comparison, Side
from paceline.files import Writer
from paceline.report.comparison import words
from paceline.report.comparison.rows import Row, Table, change_cells, key_numbers, tables
from paceline.report.comparison.terminal import warnings_of
from paceline.report.page.frame import content_policy, job_line, paceline_version, static
from paceline.report.page.markup import bar, escape, foreign, table

_MAX_ROWS = 20  # rows of workers and hosts
_SCRIPTS = ("base.js", "comparison.js")
_MOODS = {"shorter": "healthy", "longer": "slow"}


def page_writer(comparison: Comparison) -> Writer:
    """The page's writer."""
    # Names are foreign input and may contain half a surrogate pair, which UTF-8 cannot encode.
    content = _page(comparison).encode("utf-8", "replace")

    def write(file: BinaryIO) -> None:
        file.write(content)

    return write


def _page(comparison: Comparison) -> str:
    script = "\n".join(static(name) for name in _SCRIPTS)
    sections = tables(comparison, _MAX_ROWS)
    scale = _scale([row for section in sections for row in section.rows])
    return Template(static("comparison.html")).substitute(
        title=escape(f"{_name(comparison)} · Paceline"),
        policy=escape(content_policy(script)),
        style=static("page.css"),
        name=foreign(_name(comparison)),
        headline=escape(words.verdict(comparison)),
        mood=_MOODS.get(comparison.verdict, "same"),
        worth=escape(words.worth(comparison)),
        notes=_notes(comparison),
        nav=" ".join(f'<a href="#{t.name}">{escape(t.title)}</a>' for t in sections),
        tables="\n".join(_section(comparison, t, scale) for t in sections),
        unit=comparison.unit,
        numbers=_numbers(comparison),
        before=_job(comparison.before, "Before"),
        after=_job(comparison.after, "After"),
        warnings="".join(
            _warnings(side, side_name)
            for side, side_name in ((comparison.before, "Before"), (comparison.after, "After"))
        ),
        version=escape(paceline_version()),
        script=script,
    )


def _name(comparison: Comparison) -> str:
    """The job's name, or the names of the two files."""
    jobs = {side.result.job.name for side in (comparison.before, comparison.after)}
    if len(jobs) == 1 and jobs != {""}:
        return f"{jobs.pop()}: before and after"
    names = [side.name for side in (comparison.before, comparison.after)]
    return f"{names[0]} → {names[1]}" if all(names) else "Before and after"


def _notes(comparison: Comparison) -> str:
    notes = words.notes(comparison)
    if not notes:
        return ""
    return f'<ul class="note">{"".join(f"<li>{foreign(note)}</li>" for note in notes)}</ul>'


def _section(comparison: Comparison, content: Table, scale: float) -> str:
    """A table with its heading and an explanation of its numbers."""
    html = [
        f'<section id="{content.name}" aria-labelledby="h-{content.name}">',
        f'<h2 id="h-{content.name}">{escape(content.title)}</h2>',
        f"<p>{foreign(_sentence(content.about))}</p>",
    ]
    if content.rows or content.sums:
        head = (
            content.heads[0],
            "",
            *content.heads[1:],
            "90%, all rows at once",
        )
        cells = (_cells(row, scale) for row in (*content.rows, *content.sums))
        html.append(table(head, cells, name="parts changes", numeric_from=2, caption=""))
    if content.note:
        html.append(f'<p class="note">{foreign(_sentence(content.note))}</p>')
    return "\n".join([*html, "</section>"])


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _cells(row: Row, scale: float) -> list[str]:
    change, interval = change_cells(row)
    clear = row.change is not None and row.change.clear
    text = f"<strong>{escape(change)}</strong>" if clear else escape(change)
    remark = f"<small>{row.unclear}</small>" if row.unclear else ""
    drawing = "" if row.change is None else _bar(row.change, scale)
    return [
        foreign(row.name),
        drawing,
        escape(row.before),
        escape(row.after),
        text,
        escape(interval) + remark,
    ]


def _scale(rows: list[Row]) -> float:
    """Seconds at both ends of the bars' tracks: the largest change and part of its interval."""
    largest = max((abs(row.change.seconds) for row in rows if row.change), default=0.0)
    return 1.3 * largest or 1.0


def _bar(change: Change, scale: float) -> str:
    """A bar from the middle: to the left for a shorter step, to the right for a longer one."""
    end = 0.5 + 0.5 * max(-1.0, min(1.0, change.seconds / scale))
    name = "level" if not change.clear else "gain" if change.seconds < 0 else "share"
    interval = None
    if change.interval is not None:
        low, high = (0.5 + 0.5 * max(-1.0, min(1.0, x / scale)) for x in change.interval)
        interval = (low, high)
    return bar(min(0.5, end), max(0.5, end), name=name, base=0.5, interval=interval)


def _numbers(comparison: Comparison) -> str:
    rows = [[escape(cell) for cell in cells] for cells in key_numbers(comparison)]
    return table(("", "before", "after", "change"), rows, numeric_from=1)


def _job(side: Side, side_name: str) -> str:
    name = f": {foreign(side.name)}" if side.name else ""
    line = job_line(side.result.job, side.result.steps.tolist())
    return f"<div><dt>{side_name}{name}</dt><dd>{line}</dd></div>"


def _warnings(side: Side, side_name: str) -> str:
    notes = warnings_of(side)
    items = "".join(f"<li>{foreign(note)}</li>" for note in notes)
    return f"<h3>{side_name}</h3>" + (f"<ul>{items}</ul>" if notes else "<p>None.</p>")
