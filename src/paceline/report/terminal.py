"""One screen about a job: verdict, worst parts, worker heatmap, warnings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from paceline.remedies import beyond_s
from paceline.report.communication import communication_lines
from paceline.report.critical_path import path_lines
from paceline.report.heatmap import heatmap
from paceline.report.layout import wrap
from paceline.report.warnings import warning_lines
from paceline.report.why import why_lines
from paceline.results.document import JobReport
from paceline.results.headline import (
    MIN_PASSING,
    explained,
    largest_cost,
    lasting_word,
    little_text,
    main_reason,
    mostly_passing,
    passing_text,
    step_to_step_s,
    unlike_text,
)
from paceline.results.words.job import size_and_steps
from paceline.results.words.slowdown import (
    bound_note,
    ideal_range,
    parts_text,
    slowdown_range,
    step_overlaps,
    waste_range,
    without_passing,
)
from paceline.results.words.waits import (
    HEAVY,
    beside_waste,
    between_steps,
    first_pause,
    lasted_name,
    traced_only,
    waits_share,
)
from paceline.trace import Job
from paceline.trace.kinds import kind_name
from paceline.trace.warning import FEW_STEPS
from paceline.units import count, seconds
from paceline.whatif import WhatIf

if TYPE_CHECKING:
    from rich.console import Console

MAX_ROWS = 5  # entries of each table of the worst
_MAX_WIDTH = 132  # lines longer than this are hard to read

_SEVERE = 1.10  # start of red; nothing is marked below WhatIf.HEALTHY_BELOW
_MAX_BAR, _MIN_BAR = 10, 3
_GAP = 3


def print_report(report: JobReport, console: Console | None = None) -> None:
    """Print the screen, in colours if ``console`` (default: standard output) shows them."""
    console = console or standard_output()
    # Sixteen colours are too few for a scale, so digits replace them.
    many_colours = console.color_system in ("256", "truecolor") and not console.no_color
    print_lines(screen(report, console.width, colour=many_colours), console)


def print_lines(lines: Iterable[Text], console: Console | None = None) -> None:
    """Print lines of the right width, without control characters.

    Names of jobs, kinds and ranks are foreign input.
    """
    console = console or standard_output()
    for line in lines:
        line.plain = "".join(
            c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line.plain
        )
        console.print(line, soft_wrap=True)


def standard_output() -> Console:
    """A console on standard output that does not change texts."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise  # raised here; rich itself would exit the process

    console = Plain(highlight=False, emoji=False, markup=False)
    if console.width < 1:  # COLUMNS=0, as some runners set it
        console.width = 80
    return console


def screen(report: JobReport, width: int, *, colour: bool) -> list[Text]:
    """The lines of the screen.

    Args:
        report: report of an analysis, with or without a diagnosis.
        width: available characters.
        colour: whether the terminal shows at least 256 colours.
    """
    full_width = max(width, 40)
    width = min(full_width, _MAX_WIDTH)
    blocks = [
        _head(report, width),
        [*why_lines(report, width), *_beyond_lines(report, width)],
        communication_lines(report.communication, width),
        path_lines(report.critical_path, report.job, width, report.all_reduces),
        _worst(report, width),
        _shares(report, width),
        _map(report, full_width, colour=colour),
        warning_lines(report, width),
    ]
    lines: list[Text] = []
    for block in filter(None, blocks):
        lines += [*([Text("")] if lines else []), *block]
    return lines


def _head(report: JobReport, width: int) -> list[Text]:
    gpus = report.job.world_size
    slowdown = slowdown_range(report, 3)
    waste = f"{waste_range(report)}: {_gpus(report)} of {count(gpus, 'GPU')}"
    if without := beside_waste(report):
        waste += f" ({without})"
    parts, note = parts_text(report), bound_note(report)
    return [
        *wrap(_job_line(report), width, style="bold"),
        *_verdict(report, width),
        *wrap(f"S = T / T_ideal = {slowdown}   waste = 1 - 1/S = {waste}", width, style="bold"),
        *(wrap(parts, width) if parts else []),
        *wrap(_step_times(report), width),
        *(wrap(note, width, style="dim") if note else []),
    ]


def _gpus(report: JobReport) -> str:
    gpus = report.job.world_size
    highest = 1 - 1 / report.largest_slowdown
    texts = [
        f"{waste * gpus:,.{1 if waste * gpus < 100 else 0}f}" for waste in (report.waste, highest)
    ]
    return " to ".join(texts if report.bounded and texts[0] != texts[1] else texts[:1])


def _beyond_lines(report: JobReport, width: int) -> list[Text]:
    """A note on a remedy that gains more than S."""
    note = beyond_s(report.largest_slowdown, report.diagnosis, report.remedies)
    return wrap(note, width, style="dim") if note else []


def _job_line(report: JobReport) -> str:
    name = f"{report.job.name}: " if report.job.name else ""
    return f"{name}{size_and_steps(report.job, report.steps)}"


def _none_shows(report: JobReport) -> bool:
    """Whether a few steps vary without any lasting pattern."""
    few = any(warning.code == FEW_STEPS for warning in report.warnings)
    inside = [finding for finding in report.diagnosis.findings if finding.share is not None]
    return few and report.straggling and [f.cause for f in inside] == ["unexplained"]


def _verdict(report: JobReport, width: int) -> list[Text]:
    excess = report.lasting_slowdown - 1
    times, which = slowdown_range(report), lasting_word(report)
    if first := largest_cost(report):
        text = ". ".join(first)
        style = "bold red" if waits_share(report) >= HEAVY else "bold yellow"
    elif report.healthy and "forward-compute" in report.not_judged:
        text = "Not judged: one worker has no peers to compare with"
        style = "bold yellow"
    elif report.slowdown < WhatIf.REFERENCE_FAILS_BELOW:
        text = f"S is not meaningful: it is {report.slowdown:.2f}, faster than its reference"
        style = "bold yellow"
    elif not report.healthy and not report.straggling:
        text = f"{little_text(report)}, but steps come in two lengths"
        style = "bold yellow"
    elif _none_shows(report):
        text = (
            f"Steps are {times} times as long as they could be, but no "
            f"straggler shows in {count(len(report.steps), 'step')}"
        )
        style = "bold yellow"
    elif report.healthy and any(f.id == "pauses" for f in report.diagnosis.findings):
        text = f"No slowness lasts ({max(excess, 0):.1%} of steps), but one worker pauses"
        style = "bold yellow"
    elif report.healthy and report.passing_share >= MIN_PASSING:
        text = passing_text(report)
        style = "bold yellow"
    elif report.healthy:
        text = f"Healthy: {which}stragglers make steps {max(excess, 0):.1%} longer (under 3%)"
        style = "bold green"
        if report.doubtful or not report.even or between_steps(report):
            longer = f"{max(excess, 0):.1%} longer"
            text = f"No {which}stragglers in the operations: they make steps {longer}"
            style = "bold yellow"
    else:
        if report.by_worker.size == 1:
            text = f"No stragglers: one worker. Steps take {times} times as long as its fast ones"
            text += without_passing(report)
        elif report.passing_share > report.waste / 2 and (reason := main_reason(report)):
            text = f"Steps are {times} times as long as they could be: {reason}"
        elif mostly_passing(report):
            text = (
                f"Steps are {times} times as long as they could be, mostly by variation that "
                f"passes; without it, S is {report.lasting_slowdown:.2f}"
            )
        else:
            text = f"Stragglers make steps {times} times as long as they could be"
            text += without_passing(report)
        style = "bold red" if report.largest_slowdown >= _SEVERE else "bold yellow"
    lines = wrap(text, width, style=style)
    if unlike := unlike_text(report):
        lines += wrap(unlike, width, style="bold yellow")
    if report.doubtful and not explained(report):
        text = "Doubtful: the simulation is more than 5% off the trace; see the warnings"
        if report.launch_slowdown > 1:
            between = 1 - float(report.simulated_s.mean()) / report.lasted_s
            text = (
                f"Doubtful: {between:.0%} of the step passes between operations; see the warnings"
            )
        lines += wrap(text, width, style="bold yellow")
    if (between := between_steps(report)) and not first_pause(report):
        where = "of the time lies between the steps"
        if traced_only(report):
            where = "of the time of traced steps lies before them"
        text = f"{between:.0%} {where}, which S does not show; see below"
        lines += wrap(text, width, style="bold yellow")
    if not report.even:
        text = "Replicas have unequal numbers of microbatches, which S does not show; see below"
        lines += wrap(text, width, style="bold yellow")
    return lines


def _step_times(report: JobReport) -> str:
    traced, simulated = (
        seconds(float(times.mean())) for times in (report.traced_s, report.simulated_s)
    )
    judged = "over 5%" if report.doubtful else "fine"
    off = f"({report.discrepancy:.1%} off: {judged})"
    lasted = seconds(report.lasted_s)
    text = (
        f"mean step: T_ideal {ideal_range(report)}, simulated T {simulated}, "
        f"{lasted_name(report)} {lasted} {off}"
    )
    if step_overlaps(report):
        overlap = seconds(report.overlap_s)
        text += f"; traced {traced}, of which {overlap} overlap with the step before"
    if between_steps(report):
        which = "to a traced step" if traced_only(report) else "from step to step"
        text += f"; {seconds(step_to_step_s(report))} {which}, with the pause between them"
    return text


@dataclass(frozen=True)
class _Table:
    """The worst parts of one sort: (name, S), the worst first."""

    header: str
    rows: Sequence[tuple[str, float]]

    @property
    def name_width(self) -> int:
        return max(len(self.header), *(len(name) for name, _ in self.rows))

    @property
    def width(self) -> int:
        return self.name_width + len(" 1.234")

    def lines(self, bar: int, top: float) -> list[Text]:
        """Lines of equal width, with bars of up to ``bar`` characters; ``top`` fills a bar."""
        blank = " " * (bar + 1 if bar else 0)
        lines = [Text(f"{self.header:<{self.name_width}} {'S':>5}{blank}", style="dim")]
        for name, slowdown in self.rows:
            line = Text(f"{name:<{self.name_width}} ")
            line.append(f"{_three_digits(slowdown):>5}", style=_style(slowdown))
            if bar:
                line.append(f" {_bar((slowdown - 1) / (top - 1), bar)}", style=_style(slowdown))
            lines.append(line)
        return lines


def _map(report: JobReport, width: int, *, colour: bool) -> list[Text]:
    if report.by_worker.size == 1:
        return []
    return heatmap(report.by_worker, width, colour=colour, peers=report.job.peers)


def _replica(job: Job, name: str) -> str:
    """``3``, or ``3,1`` of dp 3 and peer 1."""
    dp, _, *peers = job.place(int(name), 0)
    return ",".join(map(str, (dp, *peers)))


def _worst(report: JobReport, width: int) -> list[Text]:
    """Tables of the worst kinds, stages, replicas, workers and, if they fit, steps."""
    n_pp, n_dp = report.by_worker.shape
    flat = report.by_worker.ravel()
    worst = (-flat).argsort(kind="stable")[:MAX_ROWS].tolist()
    job = report.job
    workers = [(",".join(map(str, job.place(i % n_dp, i // n_dp))), float(flat[i])) for i in worst]
    peer = ",peer" if job.peers > 1 else ""
    replicas = [(_replica(job, name), s) for name, s in _top(report.by_replica)]
    kinds = [(kind_name(kind, report.all_reduces), s) for kind, s in _top(report.by_kind)]
    tables = [_Table("kind", kinds)]
    tables += [_Table("stage", _top(report.by_stage))] if n_pp > 1 else []
    tables += [_Table(f"dp{peer}", replicas)] if n_dp > 1 else []
    tables += [_Table(f"dp,stage{peer}", workers)] if n_pp > 1 and n_dp > 1 else []
    steps = _Table("step", _top(report.by_step))
    below: list[Text] = []
    if len(steps.rows) > 1:
        if _total(tables) + _GAP + steps.width <= width:
            tables.append(steps)
        else:
            below = _steps_line(steps, width)
    title = Text().append("worst", style="bold")
    title.append(": S with only this part as measured, all else ideal (steps: their own S)", "dim")
    lines = [title]
    while tables:
        fitting = max(1, sum(_total(tables[: n + 1]) <= width for n in range(len(tables))))
        lines += _side_by_side(tables[:fitting], width)
        tables = tables[fitting:]
    return lines + below


def _top(values: Mapping[int, float] | Mapping[str, float]) -> list[tuple[str, float]]:
    ranked = sorted(values.items(), key=lambda item: -item[1])
    return [(str(key), value) for key, value in ranked[:MAX_ROWS]]


def _total(tables: Sequence[_Table]) -> int:
    return sum(table.width for table in tables) + _GAP * (len(tables) - 1)


def _side_by_side(tables: Sequence[_Table], width: int) -> list[Text]:
    top = max(1.001, *(slowdown for table in tables for _, slowdown in table.rows))
    bar = min(_MAX_BAR, (width - _total(tables)) // len(tables) - 1)
    bar = bar if bar >= _MIN_BAR else 0
    blocks = [table.lines(bar, top) for table in tables]
    lines = []
    for number in range(max(map(len, blocks))):
        cells = [
            block[number] if number < len(block) else Text(" " * len(block[0])) for block in blocks
        ]
        line = Text(" " * _GAP).join(cells)
        line.rstrip()
        lines.append(line)
    return lines


def _steps_line(steps: _Table, width: int) -> list[Text]:
    steps_text = [f"{name} ({_three_digits(slowdown)})" for name, slowdown in steps.rows]
    return wrap(f"worst steps: {', '.join(steps_text)}", width)


def _shares(report: JobReport, width: int) -> list[Text]:
    """M_W and M_S, each with its meaning."""
    n, of = len(report.slowest_workers), report.by_worker.size
    rows = [("M_W", f"slowest 3% of workers ({n} of {of})", report.m_w, report.m_w_only)]
    if report.by_worker.shape[0] > 1:
        rows.append(("M_S", "last stage", report.m_s, report.m_s_only))
    wide = max(len(group) for _, group, _, _ in rows)
    title = Text().append("share of T - T_ideal", style="bold")
    if any(value is not None and round(value, 2) > 1 for row in rows for value in row[2:]):
        title.append(" (may be over 1)", style="dim")
    title.append(" " * (wide + len("M_W    ") - len(title)))
    title.append("saved if ideal      caused alone", style="dim")
    lines = [title]
    for name, group, value, only in rows:
        line = Text().append(name, style="bold").append(f"  {group:<{wide}}  ")
        line.append(f"{_share(value):>17}", style="bold").append(f"{_share(only):>15}")
        lines.append(line)
    if report.m_w is None:
        lines += wrap("T - T_ideal is under 0.1% of T, so it has no shares.", width, style="dim")
    return lines


def _share(value: float | None) -> str:
    return "-" if value is None else f"{round(value, 2) + 0.0:.2f}"  # + 0.0: no "-0.00"


def _three_digits(slowdown: float) -> str:
    return f"{slowdown:.3f}" if slowdown < 10 else f"{slowdown:.4g}"


def _style(slowdown: float) -> str:
    if slowdown < WhatIf.HEALTHY_BELOW:
        return "dim"
    return "bold red" if slowdown >= _SEVERE else "yellow"


def _bar(share: float, width: int) -> str:
    """A bar drawn in eighths of a character, padded to ``width``."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, eighth = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[eighth] if eighth else "")).ljust(width)
