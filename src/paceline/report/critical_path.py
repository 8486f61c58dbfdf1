"""The critical path on the terminal."""

from __future__ import annotations

from rich.text import Text

from paceline.report.layout import wrap
from paceline.results.path import PathSummary
from paceline.results.words.path import kinds_text, leader_text, near_text
from paceline.trace import Job


def path_lines(
    path: PathSummary | None, job: Job, width: int, all_reduces: bool = False
) -> list[Text]:
    """Parts of the step, and the worker that it mostly waits for."""
    if path is None:  # an older document
        return []
    title = Text().append("critical path", style="bold")
    title.append(": what makes up the step", style="dim")
    lines = [title, *wrap(kinds_text(path, all_reduces), width)]
    if job.workers > 1:
        text = leader_text(path, job)
        if path.slack is not None:
            text += f"; {near_text(path.slack, job.workers)}"
        lines += wrap(text, width)
    return lines
