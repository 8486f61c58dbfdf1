"""Key numbers, the waterfall and S by part, as HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.diagnose import Waterfall
from paceline.report.page.markup import bar, escape, foreign, table
from paceline.results.document import JobReport
from paceline.results.headline import step_to_step_s
from paceline.results.words.names import OTHERS, cause_name
from paceline.results.words.shares import interval_text
from paceline.results.words.slowdown import (
    beside_s,
    bound_note,
    ideal_range,
    slowdown_range,
    step_overlaps,
    waste_parts,
    waste_range,
)
from paceline.results.words.waits import beside_waste, between_steps, lasted_name, traced_only
from paceline.trace.warning import STEPS_OVERLAP
from paceline.units import count, percent, seconds


def key_numbers(report: JobReport, gpu_hour_cost: float | None) -> str:
    """The key figures."""
    gpus = report.job.world_size
    lost_gpus = report.waste * gpus
    most_gpus = (1 - 1 / report.largest_slowdown) * gpus
    costs = [
        0.0 if gpu_hour_cost is None else n * 24 * gpu_hour_cost for n in (lost_gpus, most_gpus)
    ]
    per_day = f"; costs {_range(report, *map(_hours, costs))} a day" if costs[0] >= 1 else ""
    traced, simulated = (float(times.mean()) for times in (report.traced_s, report.simulated_s))
    of_gpus = f"{_range(report, _gpus(lost_gpus), _gpus(most_gpus))} of {gpus:,} GPUs"
    parts = (of_gpus + per_day, waste_parts(report), beside_waste(report))
    lasted, as_traced = seconds(report.lasted_s), "as traced"
    if step_overlaps(report):
        overlap = seconds(report.overlap_s)
        as_traced = f"{lasted_name(report)}; traced {seconds(traced)}, as {overlap} overlap"
    if between_steps(report):
        which = "to a traced step" if traced_only(report) else "from step to step"
        as_traced += f"; {seconds(step_to_step_s(report))} {which}"
    judged = "doubtful: over 5%" if report.doubtful else "fine: under 5%"
    items = (
        ("Slowdown S", slowdown_range(report, 3), _beside_s(report)),
        ("Waste", waste_range(report), "; ".join(filter(None, parts))),
        ("Mean step, actual", lasted, as_traced),
        (
            "… without launch delays",
            seconds(simulated),
            f"they take {percent((report.lasted_s - simulated) / report.lasted_s)}",
        ),
        ("… ideal", ideal_range(report), "without stragglers"),
        ("Simulation against trace", percent(report.discrepancy), judged),
    )
    cells = (
        f"<div{' class=bad' if 'doubtful' in detail else ''}><dt>{name}</dt><dd>{number}</dd>"
        f"<dd>{detail}</dd></div>"
        for name, number, detail in items
    )
    note = bound_note(report)
    text = f'<p class="note">{foreign(note[:1].upper() + note[1:])}.</p>' if note else ""
    return f'<dl class="numbers">{"".join(cells)}</dl>{text}'


def _range(report: JobReport, low: str, high: str) -> str:
    return f"{low} to {high}" if report.bounded and low != high else low


def _beside_s(report: JobReport) -> str:
    """The interval of S, and the facts beside S."""
    s_interval = report.diagnosis.slowdown_interval
    interval = interval_text(s_interval, len(report.steps), form="{:.3f}".format)
    return "; ".join(filter(None, (interval, beside_s(report))))


def _gpus(lost_gpus: float) -> str:
    return f"{max(lost_gpus, 0.0):,.{1 if lost_gpus < 100 else 0}f}"


@dataclass(frozen=True)
class _Row:
    """One line of the waterfall: a remaining level, or a drop between two levels."""

    name: str
    text: str
    seconds: float
    top_s: float
    bottom_s: float
    is_level: bool


def _waterfall_rows(fall: Waterfall) -> list[_Row]:
    overlap_s = sum(drop.seconds for drop in fall.drops if drop.name == STEPS_OVERLAP)
    level_s = fall.actual_s - overlap_s
    text = "as traced"
    if overlap_s:  # no GPU stands still for it
        text = (
            f"traced: {seconds(fall.actual_s)}; in {seconds(overlap_s)} the step before still runs"
        )
    rows = [_level("Actual step", text, level_s)]
    after = {"launch-delay": "Without launch delays", "unexplained": "Ideal: without stragglers"}
    for drop in fall.drops:
        if drop.name == STEPS_OVERLAP:
            continue
        name, text = OTHERS.get(drop.name, (cause_name(drop.name), drop.text))
        rows.append(_Row(name, text, drop.seconds, level_s, level_s - drop.seconds, False))
        level_s -= drop.seconds
        if drop.name in after:
            rows.append(_level(after[drop.name], "", level_s))
    return [*rows, _level("Compute of a worker", "forward and backward", fall.compute_s)]


def _level(name: str, text: str, level_s: float) -> _Row:
    return _Row(name, text, level_s, level_s, 0.0, True)


def waterfall_html(report: JobReport, gpu_hour_cost: float | None) -> str:
    """The waterfall as HTML. Negative drops are shown as they are.

    Empty if the document has no waterfall.
    """
    fall = report.waterfall
    if fall is None:
        return ""
    rows = _waterfall_rows(fall)
    scale = max(max(row.top_s, row.bottom_s) for row in rows) or 1.0
    gpus, n_steps = report.job.world_size, len(report.steps)
    hours_of = f"GPU-hours, {count(n_steps, 'step')}"
    head = ["", "", "per step", "share", hours_of, "GPU-hours a day"]
    head += [] if gpu_hour_cost is None else ["cost a day"]
    lines = []
    for row in rows:
        kind = "level" if row.is_level else "drop" if row.seconds >= 0 else "negative"
        sign = 1 if row.is_level else -1
        share = row.seconds / rows[0].seconds
        text = f"<small>{foreign(row.text)}</small>" if row.text else ""
        name = f"<strong>{escape(row.name)}</strong>" if row.is_level else escape(row.name)
        cells = [
            f"{name}{text}",
            bar(row.bottom_s / scale, row.top_s / scale, name=kind),
            seconds(sign * row.seconds),
            percent(sign * share),
            _hours(sign * row.seconds * gpus * n_steps / 3600),
            _hours(sign * share * gpus * 24),
        ]
        cells += [] if gpu_hour_cost is None else [_hours(sign * share * gpus * 24 * gpu_hour_cost)]
        lines.append(cells)
    return table(head, lines, name="waterfall", numeric_from=2)


def _hours(value: float) -> str:
    size = abs(value)
    if 0 < size < 1e-4:
        return "under 0.0001"
    text = f"{size:,.0f}" if size >= 100 else f"{size:.3g}"
    return f"−{text}" if value < 0 else text


def parts_html(values: Mapping[str, float], head: str) -> str:
    """S of each part, as bars that start at 1."""
    low, high = min(1.0, *values.values()), max(1.03, *values.values())
    span = high - low
    rows = [
        [
            escape(name),
            bar(
                (min(s, 1.0) - low) / span,
                (max(s, 1.0) - low) / span,
                name="share" if s >= 1 else "negative",
                base=(1 - low) / span,
            ),
            f"{s:.3f}",
        ]
        for name, s in values.items()
    ]
    return table([head, "", "S"], rows, name="parts", numeric_from=2)
