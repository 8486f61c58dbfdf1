"""Warnings on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from paceline.report.layout import wrap
from paceline.results.document import JobReport
from paceline.trace.warning import STEPS_LEFT_OUT, USUAL, Warning
from paceline.whatif import WhatIf


def warning_lines(report: JobReport, width: int, *, usual: bool = True) -> list[Text]:
    """Warnings, left-out steps and clamped times; without ``usual``, no routine warnings."""
    chosen = [w for w in report.warnings if usual or w.code not in USUAL]
    return _lines([*chosen, *_counts(report.warnings, report)], width)


def doubt_lines(result: WhatIf, width: int) -> list[Text]:
    """The warnings of an analysis without routine ones; the first line is empty."""
    chosen = [doubt for doubt in result.doubts if doubt.code not in USUAL]
    lines = _lines([*chosen, *_counts(result.doubts, result)], width)
    return [Text(""), *lines] if lines else []


def _lines(warnings: Sequence[Warning], width: int) -> list[Text]:
    lines: list[Text] = []
    for warning in warnings:
        usual = warning.code in USUAL
        style = "dim" if usual else ""
        code = f" [{warning.code}]" if warning.code else ""  # docs/codes.md has them
        note_lines = wrap(f"! {warning.text}{code}", width, indent="  ", style=style)
        if not usual:
            note_lines[0].stylize("bold yellow", 0, 1)
        lines += note_lines
    return lines


def _counts(warnings: Sequence[Warning], report: JobReport | WhatIf) -> list[Warning]:
    """Left-out steps and clamped times."""
    notes = []
    explained = [w.numbers["step"] for w in warnings if w.code == STEPS_LEFT_OUT]
    numbers = list(report.left_out_steps)
    if numbers and not (explained and len(numbers) == 1):
        first = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
        reason = report.left_out_steps[numbers[0]]
        reason_text = "" if numbers[0] in explained else f" ({numbers[0]}: {reason})"
        notes.append(Warning("", f"left out steps: {first}{reason_text}"))
    clamped = sum(sum(counts.values()) for counts in report.clamped.values())
    if clamped:
        text = f"{clamped} negative times below -10 ms were set to 0 (result.json: clamped)"
        notes.append(Warning("", text))
    return notes
