"""The screen of ``paceline ranks``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from rich.text import Text

from paceline.ranks import RankReport, RanksReport
from paceline.ranks.breakdown import Breakdown
from paceline.ranks.kernels import Kernel
from paceline.ranks.passes import Passes
from paceline.ranks.report import NO_DEVICE
from paceline.report.layout import wrap
from paceline.units import count, percent, seconds

#: Most kernels of a rank, and most ranks with steps and kernels, on the screen. ``--json`` has all.
MAX_KERNELS, MAX_RANKS = 10, 4

#: Begin of the names of autograd's operators; the node of the backward follows.
_BACKWARD = "autograd::engine::evaluate_function: "

_HEAD = ("time", "compute", "comm exposed", "hidden", "copies", "idle: host", "idle: device")


def ranks_lines(report: RanksReport, width: int) -> list[Text]:
    """The lines of the screen. Names are cut so that lines have at most ``width`` characters."""
    lines: list[Text] = []
    no_device = NO_DEVICE in report.notes
    if no_device:
        lines += [*wrap(f"times of the host only: {NO_DEVICE}", width, indent="  "), Text("")]
    elif len(report.ranks) > 1:
        lines += [*_ranks_table(report.ranks), Text("")]
    for rank in report.ranks[:MAX_RANKS]:
        lines += [*_rank(rank, width), Text("")]
    if len(report.ranks) > MAX_RANKS:
        rest = count(len(report.ranks) - MAX_RANKS, "more rank")
        lines += wrap(f"steps and kernels of {rest}: give fewer files, or --json", width)
    for note in report.notes:
        if note != NO_DEVICE:
            lines += wrap(f"note: {note}", width, indent="  ", style="dim")
    return lines


def _ranks_table(ranks: Sequence[RankReport]) -> list[Text]:
    rows = [("", *_HEAD), *((rank.label, *_cells(rank.device)) for rank in ranks)]
    return _table(rows)


def _rank(rank: RankReport, width: int) -> Iterable[Text]:
    of = f" of {rank.world_size:,}" if rank.world_size else ""
    device = f", {rank.device_name}" if rank.device_name not in ("", rank.label) else ""
    yield Text(f"{rank.label}{of}{device}: {rank.path.name}", style="bold")
    head = () if rank.device is None else _HEAD
    rows: list[tuple[str, ...]] = [("step", "on the host", *head)]
    rows += [
        (str(step.number), seconds(step.step_s), *(_cells(step.device) if head else ()))
        for step in rank.steps
    ]
    if rank.device is not None:
        rows.append(("all", "", *_cells(rank.device)))
    if len(rows) > 1:
        yield from _table(rows)
    if rank.device is not None:
        yield from wrap(_launch_words(rank, rank.device), width, indent="  ")
    if rank.passes is not None:
        yield from _passes(rank.passes, width)
    yield from _kernels(rank.kernels or rank.operators, width, on_device=rank.device is not None)


def _cells(device: Breakdown | None) -> tuple[str, ...]:
    if device is None:
        return ("",) * len(_HEAD)
    whole_s = device.window_s or 1.0
    shares = (
        device.compute_s,
        device.communication_exposed_s,
        device.communication_hidden_s,
        device.memory_exposed_s,
        device.idle_host_s,
        device.idle_device_s + device.other_s,
    )
    return (seconds(device.window_s), *(percent(share / whole_s) for share in shares))


def _launch_words(rank: RankReport, device: Breakdown) -> str:
    launches = rank.launches
    if not launches.count:
        return "  the file has no launches, so the reason for idle time is unknown"
    bound = percent(device.idle_host_s / (device.window_s or 1.0))
    words = f"  launch-bound {bound}: idle until the host launched the next work; "
    delays = (launches.delay_median_s, launches.delay_p95_s, launches.shorter_than_launch)
    if delays[0] is None or delays[1] is None or delays[2] is None:
        return (
            f"{words}calls last as long as their work, so the time from launch to begin is unknown"
        )
    return (
        f"{words}from launch to begin {seconds(delays[0])} (median), {seconds(delays[1])} (95%); "
        f"{percent(delays[2])} of the kernels are shorter than their launch"
    )


def _passes(passes: Passes, width: int) -> Iterable[Text]:
    rows: list[tuple[str, ...]] = [
        ("pass", "ranges", "compute", "comm", "exposed", "hidden", "beside others")
    ]
    rows += [
        (
            work.name,
            str(work.ranges),
            *map(
                seconds,
                (
                    work.compute_s,
                    work.communication_s,
                    work.communication_exposed_s,
                    work.communication_hidden_s,
                    work.communication_beside_s,
                ),
            ),
        )
        for work in (*passes.ways, *passes.ranges)
    ]
    yield from _table(rows)
    yield from wrap(
        f"  {percent(passes.at_once_share)} of the time with any of these passes, work of two "
        f"directions ran at once ({seconds(passes.at_once_s)}); 'beside others' is communication "
        "while another direction computes",
        width,
        indent="  ",
    )


def _kernels(kernels: Sequence[Kernel], width: int, *, on_device: bool) -> Iterable[Text]:
    if not kernels:
        return
    rows = [("kernel" if on_device else "operator", "kind", "count", "total", "share")]
    shown = kernels[:MAX_KERNELS]
    names = _short_names([kernel.name for kernel in shown], max(20, width - 50))
    rows += [
        (
            name,
            kernel.work,
            f"{kernel.count:,}",
            seconds(kernel.total_s),
            percent(kernel.share),
        )
        for name, kernel in zip(names, shown, strict=True)
    ]
    yield from _table(rows)
    if len(kernels) > MAX_KERNELS:
        rest = kernels[MAX_KERNELS:]
        yield Text(
            f"  {len(rest):,} more, {percent(sum(kernel.share for kernel in rest))}", style="dim"
        )


def _short_names(names: Sequence[str], width: int) -> list[str]:
    """Names of at most ``width`` characters; those of equal begin show the part that differs."""
    bare = [name.removeprefix("void ").removeprefix(_BACKWARD) for name in names]
    groups: dict[str, list[str]] = defaultdict(list)
    for name in bare:
        groups[name[:width]].append(name)
    return [_from_difference(name, groups[name[:width]], width) for name in bare]


def _from_difference(name: str, alike: Sequence[str], width: int) -> str:
    """A name without the middle of the begin that it shares with all names ``alike``."""
    if len(name) <= width or len(set(alike)) == 1:
        return name[:width]
    columns = enumerate(zip(*alike, strict=False))
    first = next((at for at, letters in columns if len(set(letters)) > 1), len(name))
    rest = name[first:][: width // 2]
    return f"{name[: width - 1 - len(rest)]}…{rest}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[Text]:
    """Columns under their heads, the first one left-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for place, row in enumerate(rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append(Text("  " + "  ".join(cells), style="dim" if place == 0 else ""))
    return lines
