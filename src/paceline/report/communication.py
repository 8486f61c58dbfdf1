"""Exposed and hidden communication on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from paceline.diagnose import Communication
from paceline.report.layout import wrap
from paceline.results.words.communication import ABOUT, HEAD, part_rows, rows, summary
from paceline.results.words.names import confidence_text
from paceline.units import percent


def communication_lines(communication: Communication | None, width: int) -> list[Text]:
    """Cost of collectives by kind, and their arrangement in the job."""
    if communication is None:
        return []
    title = Text().append("communication", style="bold").append(f": {ABOUT}", style="dim")
    title.truncate(width)
    table = [HEAD, *rows(communication), *part_rows(communication)]
    lines = [title, *wrap(summary(communication), width), *_aligned(table, width)]
    for finding in communication.findings:
        share = f"{percent(finding.share_of_step):>6} of the step:"
        text = f"{share} {finding.text}; {confidence_text(finding.confidence)}"
        found = wrap(text, width, indent=" " * (len(share) + 1))
        found[0].stylize("bold", 0, len(share))
        lines += found
    return lines


def _aligned(table: Sequence[Sequence[str]], width: int) -> list[Text]:
    """Columns as wide as their longest cell. The last columns are dropped if there is no room."""
    wide = [max(map(len, column)) for column in zip(*table, strict=True)]
    columns = len(wide)
    while columns > 2 and sum(wide[:columns]) + 2 * (columns - 1) > width:
        columns -= 1
    lines = []
    for number, row in enumerate(table):
        cells = [f"{row[0]:<{wide[0]}}"]
        cells += [f"{cell:>{w}}" for cell, w in zip(row[1:columns], wide[1:columns], strict=True)]
        lines.append(Text("  ".join(cells)[:width].rstrip(), style="" if number else "dim"))
    return lines
