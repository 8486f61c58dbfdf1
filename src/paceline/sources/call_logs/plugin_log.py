"""The calls of all ranks that Paceline's NCCL plugin or shim recorded, as a call log."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from paceline.sources.call_logs.nccl_clocks import clock_leads
from paceline.sources.call_logs.nccl_profiler import PluginCall, Process, calls_of
from paceline.sources.call_logs.nccl_ranks import read_ranks
from paceline.trace.calls import CallLog
from paceline.units import seconds

#: Largest offset between equal clocks, with (True) and without (False) times on the device. Devices
#: end a collective together, but a host may queue its calls earlier than another.
MAX_APART_S: Final = {True: 0.05, False: 1.0}

#: Sends and recvs of one group that begin within this time have no order on the device: their
#: channels begin together, and which is the first differs from step to step.
TOGETHER_S: Final = 50e-6


def read(paths: Sequence[Path]) -> tuple[CallLog, tuple[str, ...]]:
    """The calls of all ranks, and notes.

    If a rank has several processes (the job was restarted, or the plugin loaded twice), the latest
    process counts. If some calls have times on the device, calls without are left out.

    Raises:
        TraceError: a file is damaged, there are no calls, or two jobs ran at once.
    """
    of_rank, notes = read_ranks(paths)
    calls = {rank: calls_of(process) for rank, process in of_rank.items()}
    timed = any(row.on_device for rows in calls.values() for row in rows)
    notes += _notes(of_rank.values(), calls, timed)
    wanted = {
        rank: _ordered([row for row in rows if row.on_device or not timed])
        for rank, rows in calls.items()
    }
    aligned, more = _aligned(wanted, timed)
    return _log(aligned, timed), (*notes, *more)


def _notes(
    processes: Collection[Process], calls: Mapping[int, Sequence[PluginCall]], timed: bool
) -> list[str]:
    """Notes on missing or damaged records."""
    notes = []
    n_without = sum(not row.on_device for rows in calls.values() for row in rows)
    if any(process.meta.get("abi") == 0 for process in processes):
        notes.append("recorded by the shim, which sees when the host calls NCCL and nothing more")
    elif not timed:
        notes.append("no call has times on the device: the time when the host queued it counts")
    elif n_without:
        notes.append(f"{n_without:,} calls without times on the device are left out")
    dropped = sum(process.dropped for process in processes)
    if dropped:
        notes.append(f"{dropped:,} records were dropped as a buffer was full; calls may be missing")
    left_out = sum(process.left_out for process in processes)
    if left_out:
        notes.append(f"{left_out:,} records were not made while recording was switched off")
    every = {row.every for rows in calls.values() for row in rows if row.every > 1}
    if every:
        numbers = " or ".join(map(str, sorted(every)))
        notes.append(f"of one step in {numbers} all calls were recorded, of the others the first")
    damaged = sum(process.damaged for process in processes)
    if damaged:
        notes.append(f"{damaged:,} places of the files are damaged or cut; calls may be missing")
    return notes


def _ordered(calls: Sequence[PluginCall]) -> list[PluginCall]:
    """The calls, of which sends and recvs that begin together keep the order of the host."""
    begin_s: dict[tuple[int, str], float] = {}  # (group, communicator) -> the last common begin
    rows = []
    for call in calls:
        if call.peer >= 0 and call.group and call.on_device:
            key = call.group, call.communicator.partition(":")[0]
            first_s = begin_s.get(key, -np.inf)
            if call.start_s - first_s <= TOGETHER_S:
                longer_s = call.duration_s + call.start_s - first_s
                call = replace(call, start_s=first_s, duration_s=longer_s)
            else:
                begin_s[key] = call.start_s
        rows.append(call)
    return sorted(rows, key=lambda call: (call.start_s, call.host_ns))


def _aligned(
    calls: Mapping[int, Sequence[PluginCall]], timed: bool
) -> tuple[Mapping[int, Sequence[PluginCall]], list[str]]:
    """The calls on the median rank's clock if the clocks differ much, and a note."""
    leads = clock_leads(calls, timed=timed)
    apart_s = max(leads.values(), default=0.0) - min(leads.values(), default=0.0)
    if apart_s <= MAX_APART_S[timed]:
        return calls, []
    note = f"clocks of the ranks are {seconds(apart_s)} apart: set by the calls that they share"
    if not timed:
        note += "; this hides a rank that is equally late at every call"
    return {
        rank: [replace(row, start_s=row.start_s - leads[rank]) for row in rows]
        for rank, rows in calls.items()
    }, [note]


def _log(calls: Mapping[int, Sequence[PluginCall]], timed: bool) -> CallLog:
    rows = [(rank, call) for rank in sorted(calls) for call in calls[rank]]
    ops = {op: n for n, op in enumerate(dict.fromkeys(call.op for _, call in rows))}
    groups = {name: n for n, name in enumerate(dict.fromkeys(c.communicator for _, c in rows))}
    sampled = any(call.step >= 0 for _, call in rows)
    return CallLog(
        rank=np.array([rank for rank, _ in rows], dtype=np.int64),
        time_s=np.array([call.start_s for _, call in rows], dtype=float),
        op=np.array([ops[call.op] for _, call in rows], dtype=np.int64),
        size=np.array([call.size for _, call in rows], dtype=np.int64),
        communicator=np.array([groups[call.communicator] for _, call in rows], dtype=np.int64),
        ops=tuple(ops),
        communicators=tuple(groups),
        duration_s=np.array([call.duration_s for _, call in rows]) if timed else None,
        step=np.array([call.step for _, call in rows]) if sampled else None,
        is_whole=np.array([call.is_whole for _, call in rows]) if sampled else None,
    )
