"""Call logs of any format, recognised by their content, as one log of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from paceline.errors import TraceError
from paceline.sources import nccl_metrics, nccl_ras, nccl_ras_text
from paceline.sources.call_logs import (
    flight_recorder,
    nccl_inspector,
    nccl_profiler,
    plugin_log,
    torchcomms,
    xpu_timer,
)
from paceline.sources.call_logs.table import read_calls
from paceline.sources.devices.xpu_timer import is_names, refuse_merged
from paceline.sources.devices.xpu_timer import matches as is_timeline
from paceline.sources.json_stream import end_notes
from paceline.trace.calls import CallLog

#: Most seconds from a rank's last call to another rank's first call. Ranks that wait for each other
#: make their last calls together; else they are of two jobs, or their clocks differ.
MAX_APART_S = 60.0


def load_call_log(paths: Iterable[str | Path]) -> tuple[CallLog, tuple[str, ...]]:
    """Read call logs: Paceline's plugin, NCCL Inspector, flight recorder, and others.

    Args:
        paths: files of one format, or folders of them; a file has one rank or several.

    Returns:
        The calls of all ranks, and notes on what was inferred or is missing.

    Raises:
        TraceError: a file is unreadable or damaged, or files are of several formats or runs.
    """
    files = [file for path in paths for file in _files(Path(path))]
    if not files:
        raise TraceError("no call log was given")
    formats = {path: _format(path) for path in files}
    for path in files:
        if formats[path] != formats[files[0]]:
            raise TraceError(
                f"{path} is a {formats[path]} file, {files[0]} a {formats[files[0]]} file; give "
                "logs of one format"
            )
    return _READERS[formats[files[0]]](files)


def _files(path: Path) -> list[Path]:
    """A file, or the files of a folder, without hidden ones and the names of timelines.

    If a folder has files of the NCCL profiler plugin, only these are taken: hooks may record into
    the same folder. The same goes for timelines, which xpu_timer merges into other files there.
    """
    if not path.is_dir():
        return [path]
    files = sorted(
        file
        for file in path.iterdir()
        if file.is_file() and not file.name.startswith(".") and not is_names(file)
    )
    if not files:
        raise TraceError(f"{path} has no files")
    records = [file for file in files if file.suffix == nccl_profiler.SUFFIX]
    return records or [file for file in files if is_timeline(file)] or files


def _format(path: Path) -> str:
    if not path.exists():
        raise TraceError(f"{path} does not exist")
    if nccl_profiler.matches(path):
        return "nccl-profiler"
    if flight_recorder.matches(path):
        return "flight-recorder"
    if is_timeline(path):
        return "xpu-timer"
    if torchcomms.matches(path):
        return "torchcomms"
    refuse_merged(path)
    if nccl_metrics.matches(path):
        raise TraceError(
            f"{path} is NCCL Inspector's output for Prometheus: means of 30 s and more, without "
            "single calls; give such files alone to paceline detect --collectives, or let it "
            "write its log: NCCL_INSPECTOR_PROM_DUMP=0 and NCCL_INSPECTOR_DUMP_VERBOSE=1"
        )
    nccl_metrics.refuse_otlp(path)
    if nccl_ras.matches(path) or nccl_ras_text.matches(path):
        raise TraceError(
            f"{path} is a status of NCCL RAS: it counts the ranks' calls and has no times; give it "
            "alone to paceline detect --collectives"
        )
    return "nccl-inspector" if nccl_inspector.matches(path) else "table"


def _read_recorded(paths: Sequence[Path]) -> tuple[CallLog, tuple[str, ...]]:
    return _joined([flight_recorder.read(path) for path in paths], paths)


def _read_timelines(paths: Sequence[Path]) -> tuple[CallLog, tuple[str, ...]]:
    return _joined([xpu_timer.read(path) for path in paths], paths)


def _read_clogs(paths: Sequence[Path]) -> tuple[CallLog, tuple[str, ...]]:
    return _joined([torchcomms.read(path) for path in paths], paths)


def _joined(
    of_ranks: Sequence[tuple[CallLog, Sequence[str]]], paths: Sequence[Path]
) -> tuple[CallLog, tuple[str, ...]]:
    logs, notes = zip(*of_ranks, strict=True)
    return join_logs(logs, paths), tuple(note for of_log in notes for note in of_log)


def _tables(paths: Sequence[Path]) -> tuple[CallLog, tuple[str, ...]]:
    notes = (note for path in paths if path.suffix.lower() == ".csv" for note in end_notes(path))
    return join_logs([read_calls(path) for path in paths], paths), tuple(notes)


def _read_inspected(paths: Sequence[Path]) -> tuple[CallLog, tuple[str, ...]]:
    log, notes = nccl_inspector.read(paths)
    _check_clocks(log)
    return log, notes


def _read_profiled(paths: Sequence[Path]) -> tuple[CallLog, tuple[str, ...]]:
    log, notes = plugin_log.read(paths)
    _check_clocks(log)
    return log, notes


_READERS: dict[str, Callable[[Sequence[Path]], tuple[CallLog, tuple[str, ...]]]] = {
    "flight-recorder": _read_recorded,
    "nccl-inspector": _read_inspected,
    "nccl-profiler": _read_profiled,
    "table": _tables,
    "torchcomms": _read_clogs,
    "xpu-timer": _read_timelines,
}


def join_logs(logs: Sequence[CallLog], paths: Sequence[Path]) -> CallLog:
    """Logs of different ranks as one; equal names of operations and communicators are joined.

    Raises:
        TraceError: a rank is in two of them, or their times have nothing in common.
    """
    if len(logs) == 1:
        return logs[0]
    owner: dict[int, Path] = {}
    for log, path in zip(logs, paths, strict=True):
        for rank in np.unique(log.rank).tolist():
            if rank in owner:
                raise TraceError(f"rank {rank} is in {owner[rank]} and in {path}; give one of them")
            owner[rank] = path
    ops = {name: n for n, name in enumerate(dict.fromkeys(op for log in logs for op in log.ops))}
    groups = dict.fromkeys(name for log in logs for name in log.communicators)
    group_of = {name: n for n, name in enumerate(groups)}
    durations = [log.duration_s for log in logs if log.duration_s is not None]
    log_of_all = CallLog(
        rank=np.concatenate([log.rank for log in logs]),
        time_s=np.concatenate([log.time_s for log in logs]),
        op=np.concatenate([np.array([ops[name] for name in log.ops])[log.op] for log in logs]),
        size=np.concatenate([log.size for log in logs]),
        communicator=np.concatenate(
            [
                np.array([group_of[name] for name in log.communicators])[log.communicator]
                for log in logs
            ]
        ),
        ops=tuple(ops),
        communicators=tuple(group_of),
        duration_s=np.concatenate(durations) if len(durations) == len(logs) else None,
    )
    _check_clocks(log_of_all)
    return log_of_all


def _check_clocks(log: CallLog) -> None:
    """Refuse ranks whose calls are far apart in time."""
    ranks = [(rank, log.time_s[rows]) for rank, rows in log.of_ranks()]
    late, begin = max(ranks, key=lambda entry: float(entry[1][0]))
    early, end = min(ranks, key=lambda entry: float(entry[1][-1]))
    apart_s = float(begin[0] - end[-1])
    if apart_s > MAX_APART_S:
        raise TraceError(
            f"the calls of rank {late} begin {apart_s:,.0f} s after those of rank {early} have "
            "ended: give logs of one run, from clocks that are synchronised"
        )
