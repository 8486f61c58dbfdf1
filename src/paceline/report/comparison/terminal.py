"""A comparison on the terminal: verdict, changes, key numbers, warnings."""

from __future__ import annotations

from rich.text import Text

from paceline.comparison import Comparison, Side
from paceline.errors import ComparisonError
from paceline.report.comparison import words
from paceline.report.comparison.rows import Row, Table, change_cells, key_numbers, tables
from paceline.report.layout import wrap
from paceline.trace.warning import STEPS_LEFT_OUT
from paceline.units import count

_MAX_ROWS = 5  # rows of workers and hosts
_NUMBER = 12  # width of a column of numbers
_COLOURS = {"shorter": "bold green", "longer": "bold red"}


def refusal_lines(error: ComparisonError) -> list[str]:
    """The reasons why two jobs are not compared, a line each, and advice."""
    if not error.disagreements:
        return [str(error)]
    return [
        "these jobs differ, so their steps cannot be compared:",
        *(
            f"  {aspect}: {before} before, {after} after"
            for aspect, before, after in error.disagreements
        ),
        "pass --anyway to compare them by step (by microbatch where the numbers of those differ, "
        "by token if tokens are given); if only a job file is missing, pass --job or --job-after",
    ]


def comparison_lines(comparison: Comparison, width: int) -> list[Text]:
    """The screen, in lines of ``width`` characters if the tables allow it."""
    width = max(width, 40)
    style = _COLOURS.get(comparison.verdict, "bold")
    lines = [
        *wrap(words.verdict(comparison), width, style=style),
        *wrap(words.worth(comparison), width, style="dim"),
    ]
    for note in words.notes(comparison):
        lines += wrap(f"! {note}", width, indent="  ", style="yellow")
    for table in tables(comparison, _MAX_ROWS):
        lines += [Text(""), *_table_lines(table, width)]
    return [*lines, Text(""), *_key_lines(comparison), *_warnings(comparison, width)]


def _table_lines(table: Table, width: int) -> list[Text]:
    lines = [Text().append(table.title, style="bold").append(f": {table.about}", style="dim")]
    lines = [line for text in lines for line in _wrapped(text, width)]
    rows = (*table.rows, *table.sums)
    if rows:
        space, wide = _name_width([row.name for row in rows]), _number_width(table)
        head = f"{'':{space}}" + "".join(f"{name:>{wide}}" for name in table.heads[1:])
        lines.append(Text(f"{head}  90% interval, for all rows at once", style="dim"))
        lines += [_row_line(row, space, wide) for row in rows]
    return lines + (wrap(table.note, width, style="dim") if table.note else [])


def _wrapped(text: Text, width: int) -> list[Text]:
    """Lines of a styled text."""
    bold = text.spans[0].end if text.spans else 0
    lines = wrap(text.plain, width, style="dim")
    lines[0] = Text(lines[0].plain, style="dim")
    lines[0].stylize("not dim bold", 0, bold)
    return lines


def _number_width(table: Table) -> int:
    return max(_NUMBER, *(len(head) + 2 for head in table.heads[1:]))


def _row_line(row: Row, space: int, wide: int) -> Text:
    change, interval = change_cells(row)
    mark = f" ({row.unclear})" if row.unclear else ""
    numbers = f"{row.before:>{wide}}{row.after:>{wide}}{change:>{wide}}  {interval}{mark}"
    return Text(f"{row.name:{space}}{numbers}".rstrip(), style="dim" if mark else "")


def _name_width(names: list[str]) -> int:
    return max(24, *(len(name) + 1 for name in names))


def _key_lines(comparison: Comparison) -> list[Text]:
    numbers = key_numbers(comparison)
    space = _name_width([name for name, *_ in numbers])
    wide = max(_NUMBER, *(len(cell) + 2 for _, *cells in numbers for cell in cells))
    head = f"{'':{space}}" + "".join(f"{name:>{wide}}" for name in ("before", "after", "change"))
    lines = [Text("Both jobs", style="bold"), Text(head, style="dim")]
    for name, *cells in numbers:
        lines.append(Text(f"{name:{space}}" + "".join(f"{cell:>{wide}}" for cell in cells)))
    return lines


def _warnings(comparison: Comparison, width: int) -> list[Text]:
    sides = [warnings_of(side) for side in (comparison.before, comparison.after)]
    lines: list[Text] = []
    for warning in dict.fromkeys([*sides[0], *sides[1]]):
        side_names = [
            name for name, side in zip(("before", "after"), sides, strict=True) if warning in side
        ]
        lines += wrap(
            f"! {' and '.join(side_names)}: {warning}", width, indent="  ", style="yellow"
        )
    return [Text(""), *lines] if lines else []


def warnings_of(side: Side) -> list[str]:
    """Warnings about the numbers of one side."""
    left_out = side.result.left_out_steps
    notes = []
    if left_out and not any(d.code == STEPS_LEFT_OUT for d in side.result.doubts):
        step, reason = next(iter(left_out.items()))
        notes = [f"{count(len(left_out), 'step')} left out, for example step {step}: {reason}"]
    return [*side.result.warnings, *notes]
