"""Intervals of MLPerf logs (``:::MLLOG``, mlperf-logging 4.1.68): init, run, blocks, evaluations.

If a submission writes ``tracked_stats``, each such line gives the mean time of the steps before it.
Otherwise a block of training (``block_start`` to ``block_stop``, or an epoch) is one sample.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from paceline.errors import TraceError
from paceline.sources.run_logs.timeline import Pause, PauseKind, Start, Timeline, steps_of
from paceline.sources.step_logs.mlperf import count_of_a_step, entry_of, train_step_time

_INTERVALS: dict[str, PauseKind] = {"init": "setup", "eval": "evaluation"}
_RECORDED: frozenset[PauseKind] = frozenset({"setup", "evaluation"})
_BLOCKS = ("block", "epoch")
Row = tuple[int, int, float, float]


def read_mlperf_events(lines: Iterable[str], where: str) -> Timeline:
    """The timeline of one run.

    Raises:
        TraceError: no line has a step or a block.
    """
    entries = [entry for line in lines if (entry := entry_of(line)) and "time_ms" in entry]
    try:
        start = _start(entries)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise TraceError(f"{where} is damaged ({type(error).__name__}: {error})") from None
    if start is None:
        raise TraceError(f"{where} is a log of MLPerf without blocks and without train_step_time")
    return Timeline("MLPerf", (start,), _RECORDED)


def _start(entries: list[dict[str, Any]]) -> Start | None:
    if not entries:
        return None
    times = [float(entry["time_ms"]) / 1e3 for entry in entries]
    pauses = [
        Pause(kind, begin, end)
        for name, kind in _INTERVALS.items()
        for begin, end in _intervals(entries, name)
    ]
    steps = _samples(entries) or _blocks(entries)
    if not steps:
        return None
    has_ended = any(entry.get("key") == "run_stop" for entry in entries)
    table = steps_of(sorted(steps, key=lambda row: row[3]))
    begin, end = min(times), max(times)
    return Start(begin, end, table, tuple(pauses), has_begin=True, has_ended=has_ended)


def _intervals(entries: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    intervals, begin = [], None
    for entry in entries:
        at = float(entry["time_ms"]) / 1e3
        if entry.get("key") == f"{name}_start" and begin is None:
            begin = at
        elif entry.get("key") == f"{name}_stop" and begin is not None:
            intervals.append((begin, at))
            begin = None
    return intervals


def _samples(entries: list[dict[str, Any]]) -> list[Row]:
    """A row per ``train_step_time``, the mean of the steps since the row before."""
    stats = [(float(e["time_ms"]) / 1e3, *pair) for e in entries if (pair := train_step_time(e))]
    if not stats:
        return []
    numbers = [entry for entry in entries if isinstance(entry.get("value"), int | float)]
    sizes = {entry["key"]: float(entry["value"]) for entry in numbers}
    per_step = count_of_a_step(
        np.array([count for _, count, _ in stats]),
        sizes.get("global_batch_size", np.nan),
        sizes.get("max_sequence_length", np.nan),
    )
    steps = [round(count / per_step) for _, count, _ in stats]
    usual = max(int(np.median(np.diff(steps))), 1) if len(steps) > 1 else 1
    rows: list[Row] = []
    before = max(steps[0] - usual, 0)
    for step, (at, _, seconds) in zip(steps, stats, strict=True):
        n = min(max(step - before, 1), usual)
        rows.append((step, n, at - n * seconds, at))
        before = step
    return rows


def _blocks(entries: list[dict[str, Any]]) -> list[Row]:
    """Blocks as samples of one step each, since their number of steps is not known."""
    for name in _BLOCKS:
        intervals = _intervals(entries, name)
        if intervals:
            return [(number, 1, b, e) for number, (b, e) in enumerate(intervals, start=1)]
    return []
