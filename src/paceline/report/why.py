"""The diagnosis in the terminal: findings, waterfall, remedies, and two jobs side by side."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from paceline.diagnose import Finding, Waterfall
from paceline.remedies import Advice, Remedy
from paceline.report.layout import wrapped
from paceline.whatif import WhatIf

_BAR = 24

ARCHITECTURE = "changes of the job's architecture"

#: Parts of a change that are for machines: result.json has them.
_TOO_LONG = frozenset({"alternatives", "assignment"})


def why_lines(advice: Advice, width: int, most: int = 4) -> list[Text]:
    """Findings and the best remedies, a few lines for the screen of ``analyze``."""
    findings = [f for f in advice.diagnosis.findings if f.cause != "unexplained"][:most]
    if not findings:
        return []
    lines = [_title("why", "share of the loss that each cause explains, and how sure that is")]
    for finding in findings:
        lines += _entry(_measure(finding), finding.text, width)
    for name, about, remedies in (
        ("what to do", "share of the step time that each remedy would save", advice.remedies),
        (ARCHITECTURE, "they answer none of these causes", advice.architecture),
    ):
        lines += [Text(""), _title(name, about)] if remedies else []
        for remedy in remedies[:most]:
            lines += _entry(f"{remedy.gain:6.1%}      ", remedy.text, width)
    return lines + _hint_lines(advice, width)


def _hint_lines(advice: Advice, width: int) -> list[Text]:
    lines: list[Text] = []
    for hint in advice.hints:
        lines += wrapped(f"hint: {hint}", width, indent="  ", style="dim")
    return lines


def _title(name: str, about: str) -> Text:
    return Text().append(name, style="bold").append(f": {about}", style="dim")


def _entry(measure: str, text: str, width: int) -> list[Text]:
    indent = " " * (len(measure) + 1)
    lines = wrapped(f"{measure} {text}", width, indent=indent)
    lines[0].stylize("bold", 0, len(measure))
    return lines


def _measure(finding: Finding) -> str:
    share = finding.share
    amount = f"{share:6.1%}" if share is not None else f"{finding.share_of_step:6.1%}"
    return f"{amount} {finding.confidence:5.0%}"


def diagnosis_lines(
    result: WhatIf, advice: Advice, width: int, gpu_hour_cost: float | None = None
) -> list[Text]:
    """Everything the diagnosis says."""
    low, high = advice.diagnosis.slowdown_interval
    head = (
        f"S {result.slowdown:.3f} (90% interval {low:.3f} to {high:.3f}), waste {result.waste:.1%}"
    )
    lines = [Text(head, style="bold"), Text("")]
    outside = not result.healthy or any(f.share is None for f in advice.diagnosis.findings)
    if result.healthy and not outside:
        return [*lines, *wrapped(HEALTHY, width)]
    for finding in advice.diagnosis.findings:
        lines += _finding_lines(finding, width)
    lines += [Text(""), *_fall_lines(result, advice.fall, gpu_hour_cost), Text("")]
    return lines + _remedy_lines(advice, width)


HEALTHY = (
    "Healthy, within what these traces can show: stragglers cost under 3%, little time passes "
    "between operations, and the step time does not drift."
)


def _finding_lines(finding: Finding, width: int) -> list[Text]:
    share = "outside S" if finding.share is None else f"{finding.share:.1%} of the loss"
    head = Text().append(finding.cause, style="bold")
    low, high = finding.interval
    head.append(f"  {share}, {finding.share_of_step:.1%} of the step", style="bold")
    head.append(f"  (90% interval {low:.1%} to {high:.1%}; persists in {finding.confidence:.0%})")
    lines = [head, *wrapped(f"  {finding.text}", width, indent="  ")]
    if finding.ambiguous:
        lines += wrapped(f"  ambiguous: {finding.ambiguous}", width, indent="  ")
    evidence = ", ".join(f"{key} {_value(value)}" for key, value in finding.evidence.items())
    if evidence:
        lines += wrapped(f"  {evidence}", width, indent="    ", style="dim")
    return lines


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Mapping):
        return "; ".join(f"{key} {_value(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        shown = ", ".join(_value(inner) for inner in value[:6])
        return f"[{shown}{', ...' if len(value) > 6 else ''}]"
    return str(value)


def _fall_lines(result: WhatIf, fall: Waterfall, gpu_hour_cost: float | None) -> list[Text]:
    """The waterfall: seconds, share of the step, GPU-hours over the steps analysed, money."""
    hours = result.job.world_size * len(result.steps) / 3600
    money = "" if gpu_hour_cost is None else f"{'cost':>12}"
    about = f"per step; GPU-hours over the {len(result.steps)} steps"
    lines = [_title("where the time goes", about)]
    lines.append(Text(f"{'':16}{'seconds':>10}{'share':>8}{'GPU-hours':>12}{money}", style="dim"))
    rows = [("actual step", fall.actual_s)]
    rows += [(drop.name, -drop.seconds) for drop in fall.drops]
    rows.append(("compute", fall.compute_s))
    for name, seconds in rows:
        share = seconds / fall.actual_s
        cost = "" if gpu_hour_cost is None else f"{seconds * hours * gpu_hour_cost:12,.2f}"
        line = Text(f"{name:16}{seconds:10.3f}{share:8.1%}{seconds * hours:12,.2f}{cost} ")
        line.append("█" * round(min(abs(share), 1.0) * _BAR), style="dim")
        lines.append(line)
    return lines


def _remedy_lines(advice: Advice, width: int) -> list[Text]:
    lines = [_title("remedies", "by gain, the share of the step time that is saved")]
    if not advice.remedies:
        lines.append(Text("none applies"))
    for remedy in advice.remedies:
        lines += remedy_lines(remedy, width)
    lines += _hint_lines(advice, width)
    if advice.architecture:
        lines += [Text(""), _title(ARCHITECTURE, "they answer none of the causes above")]
    for remedy in advice.architecture:
        lines += remedy_lines(remedy, width)
    if refused := advice.not_applicable:
        lines += [Text(""), Text("not applicable", style="dim")]
        for name, reason in refused.items():
            lines += wrapped(f"  {name}: {reason}", width, indent="    ", style="dim")
    return lines


def remedy_lines(remedy: Remedy, width: int) -> list[Text]:
    """One remedy: gain, interval, what to change, notes."""
    low, high = remedy.interval
    head = Text().append(f"{remedy.gain:6.1%}  {remedy.remedy}", style="bold")
    head.append(
        f"  (90% interval {low:.1%} to {high:.1%}; new mean step {remedy.step_time_s:.3g} s)"
    )
    lines = [head, *wrapped(f"  {remedy.text}", width, indent="  ")]
    told = {key: value for key, value in remedy.change.items() if key not in _TOO_LONG}
    change = ", ".join(f"{key} {_value(value)}" for key, value in told.items())
    if change:
        lines += wrapped(f"  {change}", width, indent="    ", style="dim")
    for note in remedy.notes:
        lines += wrapped(f"  note: {note}", width, indent="    ", style="dim")
    return lines
