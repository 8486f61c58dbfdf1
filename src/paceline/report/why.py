"""The diagnosis in the terminal: findings, remedies and the waterfall."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from paceline.diagnose import Finding
from paceline.remedies import Remedy
from paceline.report.communication import communication_lines
from paceline.report.layout import wrap
from paceline.report.warnings import warning_lines
from paceline.results.document import JobReport
from paceline.results.headline import (
    HEALTHY,
    MIN_PASSING,
    is_healthy,
    is_negative_rest,
    is_small,
)
from paceline.results.words.changes import change_phrases
from paceline.results.words.evidence import evidence_phrases
from paceline.results.words.more_steps import more_steps_text
from paceline.results.words.names import cause_name, confidence_text, drop_name
from paceline.results.words.readings import other_reading
from paceline.results.words.shares import (
    UNKNOWN,
    WHY_UNKNOWN,
    interval_text,
    is_known,
    lost_s,
    masked_note,
    part_of,
    share_of_loss,
    share_text,
    shares,
    size_of_loss,
)
from paceline.results.words.slowdown import bound_note, parts_text, slowdown_range, waste_range
from paceline.results.words.waits import beside_waste
from paceline.units import NONE, count, percent, seconds

_BAR = 24

#: Width in characters of the two shares before a text.
_SHARES = 17

ARCHITECTURE = "changes of the job's architecture"
PASSING = (
    "variation that passes from worker to worker (noise, or other work on the machines): no repair "
    "of one worker ends it"
)
NO_FAULT = "they repair no cause above, but make the step shorter"


def why_lines(report: JobReport, width: int, most: int = 4) -> list[Text]:
    """Findings and the best remedies in a few lines, for the screen of ``analyze``."""
    all_findings = report.diagnosis.findings
    findings = [f for f in all_findings if f.cause != "unexplained"][:most]
    rests = [
        (f.share_of_step, NONE if f.share is None else percent(f.share), f"unexplained: {f.text}")
        for f in all_findings
        if f.cause == "unexplained" and f.share_of_step >= MIN_PASSING
    ]
    passing_s = report.other_passing_s or 0.0
    passing = passing_s / report.lasted_s
    if report.straggling and passing >= MIN_PASSING:
        rests.append((passing, percent(passing_s / lost_s(report)), PASSING))
    lines: list[Text] = []
    if findings or rests:
        about = "the cost of each cause, as shares of the step and of the loss; its probability"
        lines = [_title("why", about), _heads(report)]
    for finding in findings:
        text = f"{_prefix(finding, report)}{finding.text}; {confidence_text(finding.confidence)}"
        cost = None if finding.part_of else finding.share_of_step
        loss = NONE if finding.share is None else percent(finding.share)
        if finding.share is not None and not is_known(finding):
            loss = UNKNOWN
            text += f"; {WHY_UNKNOWN}"
        lines += _entry(cost, loss, text, width)
        if reading := other_reading(finding, report.remedies):
            indent = " " * _SHARES
            lines += wrap(f"{indent}{reading}", width, indent=indent, style="dim")
    for rest in rests:
        lines += _entry(*rest, width)
    for name, about, remedies in (
        ("what to do", "the predicted saving of each remedy, as the same shares", report.remedies),
        (ARCHITECTURE, NO_FAULT, report.architecture),
    ):
        lines += [Text("")] if remedies and lines else []
        lines += [_title(name, about), _heads(None if lines else report)] if remedies else []
        for remedy in remedies[:most]:
            share = share_of_loss(report, remedy)
            loss = NONE if share is None else percent(share)
            lines += _entry(remedy.gain, loss, _outcome(remedy), width)
    return lines + _masked_lines(report, width) + _hint_lines(report, width)


def _prefix(finding: Finding, report: JobReport) -> str:
    if finding.part_of:
        return f"{part_of(finding, report)}: "
    return "small: " if is_small(finding) else ""


def _outcome(remedy: Remedy) -> str:
    """Advice and new step time, without the gain but with its interval if that is wide."""
    if not remedy.action:
        return remedy.text
    least = "at least " if remedy.is_bound else ""
    text = f"{remedy.action}: a step then takes {least}{seconds(remedy.step_time_s)}"
    low, high = remedy.interval
    if remedy.is_bound or high - low <= remedy.gain:
        return text
    return f"{text} (90%: saves {percent(low)} to {percent(high)})"


def _masked_lines(report: JobReport, width: int) -> list[Text]:
    note = masked_note(report)
    return wrap(note, width, style="dim") if note else []


def _hint_lines(report: JobReport, width: int) -> list[Text]:
    lines: list[Text] = []
    for hint in filter(None, (*report.hints, _lower(more_steps_text(report)))):
        lines += wrap(f"hint: {hint}", width, indent="  ", style="dim")
    return lines


def _lower(sentence: str) -> str:
    """The sentence as a hint, without the full stop."""
    return f"{sentence[:1].lower()}{sentence[1:]}".rstrip(".")


def _title(name: str, about: str) -> Text:
    return Text().append(name, style="bold").append(f": {about}", style="dim")


def _heads(report: JobReport | None) -> Text:
    """Heads of the two shares; with a report they include the loss, unless it is negligible."""
    heads = f"{'step':>7} {'loss':>7}"
    if report is not None and report.straggling:
        heads += f"  the loss of time is {size_of_loss(report)}"
    return Text(heads, style="dim")


def _entry(of_step: float | None, loss: str, text: str, width: int) -> list[Text]:
    """The two shares at the beginning of a line."""
    step = NONE if of_step is None else percent(of_step)
    measures = f"{step:>7} {loss:>7}"
    lines = wrap(f"{measures}  {text}", width, indent=" " * _SHARES)
    lines[0].stylize("bold", 0, len(measures))
    return lines


def diagnosis_lines(
    report: JobReport, width: int, gpu_hour_cost: float | None = None, *, every: bool = True
) -> list[Text]:
    """The whole diagnosis. Without ``every``, inapplicable remedies are named without reasons."""
    s_interval = report.diagnosis.slowdown_interval
    interval = interval_text(s_interval, len(report.steps), form="{:.3f}".format)
    parts, note = parts_text(report), bound_note(report)
    head = f"S {slowdown_range(report, 3)} ({interval}), waste {waste_range(report)}"
    if without := beside_waste(report):
        head += f" ({without})"
    lines = wrap(head, width, style="bold")
    lines += wrap(parts, width) if parts else []
    lines += [*(wrap(note, width, style="dim") if note else []), Text("")]
    if is_healthy(report):
        lines += [*wrap(HEALTHY_TEXT, width), Text("")]
    # A rest that costs nothing says least.
    for finding in sorted(report.diagnosis.findings, key=is_negative_rest):
        lines += _finding_lines(finding, report, width)
    lines += [Text("")] if report.diagnosis.findings else []
    lines += [*_remedy_lines(report, width, every=every), Text("")]
    if communication := communication_lines(report.communication, width):
        lines += [*communication, Text("")]
    lines += _fall_lines(report, gpu_hour_cost)
    warnings = warning_lines(report, width, usual=False)
    return [*lines, *([Text("")] if warnings else []), *warnings]


HEALTHY_TEXT = (
    f"{HEALTHY}: stragglers cost under 3%, little time passes between operations, and the step "
    "time does not drift."
)


def _finding_lines(finding: Finding, report: JobReport, width: int) -> list[Text]:
    cost = f"{percent(finding.share_of_step)} of the step"
    if finding.share is None:
        cost += f" ({interval_text(finding.interval, len(report.steps))}); outside S"
    else:
        cost += f", {share_text(finding, len(report.steps))}"
    if finding.part_of:
        cost = part_of(finding, report)
    sure = "" if finding.cause == "unexplained" else f"; {confidence_text(finding.confidence)}"
    lines = wrap(f"{cause_name(finding.cause)}  {cost}{sure}", width, style="bold")
    small = "small: " if is_small(finding) else ""
    lines += wrap(f"  {small}{finding.text}", width, indent="  ")
    if reading := other_reading(finding, report.remedies):
        lines += wrap(f"  {reading}", width, indent="  ")
    return lines + _phrase_lines(evidence_phrases(finding, report.all_reduces), width)


def _phrase_lines(phrases: Sequence[str], width: int) -> list[Text]:
    return wrap(f"  {'; '.join(phrases)}", width, indent="    ", style="dim") if phrases else []


def _fall_lines(report: JobReport, gpu_hour_cost: float | None) -> list[Text]:
    """The waterfall: seconds, share of the step, GPU time over the analysed steps, cost."""
    fall = report.waterfall
    if fall is None:  # an older document
        return []
    hours = report.job.world_size * len(report.steps) / 3600
    unit, units = "GPU-hours", hours
    if fall.actual_s * hours < 1:
        unit, units = "GPU-seconds", hours * 3600
    money = "" if gpu_hour_cost is None else f"{'cost':>12}"
    about = f"per step; {unit} over the {count(len(report.steps), 'step')}"
    lines = [_title("where the time goes", about)]
    rows = [("Actual step", fall.actual_s)]
    rows += [(drop_name(drop.name), -drop.seconds) for drop in fall.drops]
    rows.append(("Compute of a worker", fall.compute_s))
    wide = max(len(name) for name, _ in rows)
    lines.append(Text(f"{'':{wide}}{'time':>10}{'share':>8}{unit:>12}{money}", style="dim"))
    for name, left_s in rows:
        share = left_s / fall.actual_s
        cost = "" if gpu_hour_cost is None else f"{_cents(left_s * hours * gpu_hour_cost):>12}"
        times = f"{seconds(left_s):>10}{percent(share):>8}{_cents(left_s * units):>12}{cost} "
        line = Text(f"{name:{wide}}{times}")
        line.append("█" * round(min(abs(share), 1.0) * _BAR), style="dim")
        lines.append(line)
    return lines


def _cents(value: float) -> str:
    """Two decimals, without a minus before 0."""
    return f"{round(value, 2) + 0.0:,.2f}".replace("-", "−")


def _remedy_lines(report: JobReport, width: int, *, every: bool) -> list[Text]:
    lines = [_title("remedies", "by the share of the step that each saves")]
    if not report.remedies:
        lines.append(Text("none applies"))
    for remedy in report.remedies:
        of_loss = share_of_loss(report, remedy)
        lines += remedy_lines(remedy, width, len(report.steps), of_loss, report.all_reduces)
    lines += _masked_lines(report, width)
    lines += _hint_lines(report, width)
    if report.architecture:
        lines += [Text(""), _title(ARCHITECTURE, NO_FAULT)]
    for remedy in report.architecture:
        lines += remedy_lines(remedy, width, len(report.steps), all_reduces=report.all_reduces)
    refused = report.not_applicable
    if refused and not every:
        names = f"{count(len(refused), 'remedy', 'remedies')} ({', '.join(refused)})"
        text = f"not applicable: {names}; --all gives the reasons"
        lines += [Text(""), *wrap(text, width, indent="  ", style="dim")]
    elif refused:
        lines += [Text(""), Text("not applicable", style="dim")]
        for reason in dict.fromkeys(refused.values()):
            names = ", ".join(name for name, refusal in refused.items() if refusal == reason)
            lines += wrap(f"  {names}: {reason}", width, indent="    ", style="dim")
    return lines


def remedy_lines(
    remedy: Remedy,
    width: int,
    n_steps: int,
    of_loss: float | None = None,
    all_reduces: bool = False,
) -> list[Text]:
    """One remedy: its saved shares, interval, action and notes."""
    interval = interval_text(remedy.interval, n_steps, " of the step")
    saved = f"{shares(remedy.gain, of_loss)} ({interval})"
    if remedy.is_bound:
        saved = f"at most {shares(remedy.gain, of_loss)}"
    text = f"{remedy.remedy}  saves {saved}; new mean step {seconds(remedy.step_time_s)}"
    lines = wrap(text, width, style="bold")
    lines += wrap(f"  {remedy.action or remedy.text}", width, indent="  ")
    lines += _phrase_lines(change_phrases(remedy, all_reduces), width)
    for note in remedy.notes:
        lines += wrap(f"  note: {note}", width, indent="    ", style="dim")
    return lines
