"""The plugin's calls of all ranks, each with the best known begin and end.

Without other files the times on the device count, each on its rank's clock. Profiles of PyTorch's
profiler, or a recording of the hooks, have begins and ends on one clock for all ranks. They are
matched with the plugin's calls. This separates the wait (until the last member begins) from the
transfer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.call_logs.nccl_profiler import (
    SUFFIX,
    PluginCall,
    Process,
    calls_of,
)
from paceline.sources.call_logs.nccl_ranks import read_ranks
from paceline.sources.call_logs.nccl_steps import StepMarks, step_marks

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Source of the calls' times. Exact: begins and ends on one clock. Device: begins and ends on each
#: rank's own device. Host: only the times when the hosts queued the calls.
Basis = Literal["exact", "device", "host"]

#: Number in the header of a process's first file (``put_header`` of ``native/writer.c``).
_FIRST_FILE: Final = 1
#: More than the number of sends from a rank to another in a step.
_SENDS_OF_STEP: Final = 1 << 32
#: A send's or recv's number in ``PluginCall.seq``.
_NO_SEQ: Final = -1


@dataclass(frozen=True, eq=False)
class TimedCalls:
    """Calls of all ranks, by rank and begin.

    Attributes:
        rank: [call] global number.
        group: [call] index into ``groups``; a send and its recv have a group of two members.
        op: [call] index into ``ops``.
        flow: [call] 1 for a send, -1 for a recv, 0 for a collective.
        number: [call] number among the calls of its group and op, equal on all members.
        size: [call] bytes by NCCL's count; those of one rank's part if ranks have parts.
        host_s: [call] time when the host queued it, seconds since 1970 on the rank's clock.
        start_s, end_s: [call] times according to ``basis``; NaN if unknown.
        ops, groups: names; recvs have the op of their sends.
        members: [group] number of ranks.
        basis: source of the times.
        notes: notes on inferred and missing facts.
    """

    rank: Ints
    group: Ints
    op: Ints
    flow: Ints
    number: Ints
    size: Ints
    host_s: Floats
    start_s: Floats
    end_s: Floats
    ops: tuple[str, ...]
    groups: tuple[str, ...]
    members: Ints
    basis: Basis
    notes: tuple[str, ...]

    def with_times(
        self, start_s: Floats, end_s: Floats, *notes: str, basis: Basis = "exact"
    ) -> TimedCalls:
        """The calls with other times."""
        return replace(self, start_s=start_s, end_s=end_s, basis=basis, notes=(*self.notes, *notes))


def read_folder(folder: Path) -> tuple[Mapping[int, Process], list[str]]:
    """The plugin's processes in a folder, by rank, and notes.

    Raises:
        TraceError: there are no files, or :func:`read_ranks` raises it.
    """
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    if not paths:
        raise TraceError(
            f"{folder} has no files of Paceline's NCCL plugin (*{SUFFIX}); give the folder that "
            "PACELINE_RECORD names"
        )
    return read_ranks(paths)


def timed_calls(processes: Mapping[int, Process], notes: Sequence[str]) -> TimedCalls:
    """The calls with the plugin's own times.

    Sends and recvs are numbered from the first. If a rank's first file is gone, they are left out:
    nothing else shows which of them belong together.

    Raises:
        TraceError: there are no calls.
    """
    more = list(notes)
    marks = {rank: step_marks(process.records) for rank, process in processes.items()}
    whole = _is_countable(processes, marks)
    rows = [(rank, call) for rank in sorted(processes) for call in calls_of(processes[rank])]
    if any(marks.values()):
        rows = [(rank, call) for rank, call in rows if _step(call, marks[rank]) >= 0]
        more.append("only of one step in n all calls were recorded: seconds are of these steps")
    if not whole and any(call.seq == _NO_SEQ for _, call in rows):
        rows = [(rank, call) for rank, call in rows if call.seq != _NO_SEQ]
        more.append("sends and recvs are left out: the files do not go back to the first")
    if not rows:
        raise TraceError("the plugin's files have no calls")
    ops = {op: n for n, op in enumerate(dict.fromkeys(_op(call) for _, call in rows))}
    groups = {name: n for n, name in enumerate(dict.fromkeys(_group(call) for _, call in rows))}
    sizes = {_group(call): call.members for _, call in rows}
    on_device = any(call.on_device for _, call in rows)
    start_s = np.array([call.start_s if call.on_device else np.nan for _, call in rows])
    return TimedCalls(
        rank=np.array([rank for rank, _ in rows]),
        group=np.array([groups[_group(call)] for _, call in rows]),
        op=np.array([ops[_op(call)] for _, call in rows]),
        flow=np.array([_flow(call) for _, call in rows]),
        number=_numbers(rows, marks),
        size=np.array([call.size for _, call in rows]),
        host_s=np.array([call.host_s for _, call in rows]),
        start_s=start_s if on_device else np.array([call.host_s for _, call in rows]),
        end_s=start_s + np.array([call.duration_s for _, call in rows]),
        ops=tuple(ops),
        groups=tuple(groups),
        members=np.array([sizes[name] for name in groups]),
        basis="device" if on_device else "host",
        notes=tuple(more),
    )


def _is_countable(processes: Mapping[int, Process], marks: Mapping[int, StepMarks | None]) -> bool:
    """Whether sends and recvs can be numbered: from the first, or from the begin of each step."""
    if any(one.dropped or one.left_out for one in processes.values()):
        return False
    counted = set()
    for rank, process in processes.items():
        mark = marks[rank]
        counted.add(None if mark is None else process.communicators.get(mark.communicator, (0,))[0])
    if counted == {None}:
        return all(one.meta.get("file") == _FIRST_FILE for one in processes.values())
    return len(counted) == 1


def _step(call: PluginCall, marks: StepMarks | None) -> int:
    return 0 if marks is None else marks.step_of(call.host_ns)


def _flow(call: PluginCall) -> int:
    if call.seq != _NO_SEQ:
        return 0
    return 1 if call.op.lower().startswith("send") else -1


def _op(call: PluginCall) -> str:
    return "Send" if call.seq == _NO_SEQ else call.op


def _group(call: PluginCall) -> str:
    """Name of a communicator; for sends, the two ends in order of direction."""
    if call.seq != _NO_SEQ:
        return call.communicator
    ends = (call.place, call.peer) if _flow(call) > 0 else (call.peer, call.place)
    return f"{call.communicator.partition(':')[0]}:{ends[0]}>{ends[1]}"


def _numbers(rows: Sequence[tuple[int, PluginCall]], marks: Mapping[int, StepMarks | None]) -> Ints:
    counted: dict[tuple[int, str, int], int] = {}
    numbers = []
    for rank, call in rows:
        if call.seq != _NO_SEQ:
            numbers.append(call.seq)
            continue
        step = _step(call, marks[rank])
        place = rank, _group(call), step
        nth = counted.get(place, 0)
        numbers.append(step * _SENDS_OF_STEP + nth)
        counted[place] = nth + 1
    return np.array(numbers)
