"""The first process of a scene of a Chrome trace: its steps, critical path and counters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.report.arrows import nanoseconds
from paceline.report.events import label
from paceline.report.scene import Counter, Scene
from paceline.trace import OpKind
from paceline.whatif.critical_path import CriticalPath
from paceline.whatif.segments import Sort

Ints = npt.NDArray[np.int64]


def meta(event_name: str, pid: int, tid: int, **args: Any) -> str:
    """A metadata event with the name or position of a process or thread."""
    event = {"ph": "M", "name": event_name, "pid": pid, "tid": tid, "args": args}
    return json.dumps(event, ensure_ascii=False)


def overview(
    scene: Scene, steps: Ints, shift_ns: Ints, slot_ns: Ints, length_ns: Ints, pid: int, place: int
) -> Iterator[str]:
    """The events of a scene's overview.

    Args:
        scene: the drawn scene.
        steps: [step] numbers of all drawn steps, ascending.
        shift_ns: [step] from times since the step's start to times in the file.
        slot_ns: [step] begin of a step in the file.
        length_ns: [step] its length in this scene; 0 = not drawn.
        pid: id of the process.
        place: its position among the processes.
    """
    before = f"{scene.name}: " if scene.name else ""
    first_thread = pid * 100
    yield meta("process_name", pid, 0, name=f"{before}steps")
    yield meta("process_sort_index", pid, 0, sort_index=place)
    yield meta("thread_name", pid, first_thread, name="steps")
    yield meta("thread_sort_index", pid, first_thread, sort_index=0)
    for step, begin, length in zip(
        steps.tolist(), slot_ns.tolist(), length_ns.tolist(), strict=True
    ):
        if length:
            event = {"ph": "X", "name": f"step {step}", "cat": "step", "pid": pid}
            yield json.dumps({**event, "tid": first_thread, "ts": begin / 1e3, "dur": length / 1e3})
    if scene.path is not None:
        yield meta("thread_name", pid, first_thread + 1, name="critical path")
        yield meta("thread_sort_index", pid, first_thread + 1, sort_index=1)
        yield from _path_events(scene.path, steps, shift_ns, pid, first_thread + 1)
    for counter in scene.counters:
        yield from _counter_events(counter, steps, shift_ns, pid)


def _path_events(
    path: CriticalPath, steps: Ints, shift_ns: Ints, pid: int, tid: int
) -> Iterator[str]:
    """One slice per segment. A segment that runs backwards (clock error) gets length 0."""
    begin = shift_ns[np.searchsorted(steps, path.steps)]
    stop = np.maximum.accumulate(
        np.rint(path.end_s * 1e9).astype(np.int64) + begin[path.step_index]
    )
    start = np.append(0, stop[:-1])
    start[path.ptr[:-1]] = begin
    chunks = bool((path.chunk > 0).any())
    for i in np.flatnonzero(stop > start).tolist():
        kind, sort = OpKind(int(path.kind[i])), Sort(int(path.sort[i]))
        where = f"dp {path.dp[i]}, stage {path.pp[i]}"
        name = label(kind, int(path.microbatch[i]), int(path.chunk[i]) if chunks else -1, 0)
        name = f"before {name}" if sort == Sort.DELAY else name
        args = {
            "kind": kind.label,
            "sort": sort.label,
            "dp": int(path.dp[i]),
            "stage": int(path.pp[i]),
        }
        event = {"ph": "X", "name": f"{name} · {where}", "cat": "critical", "pid": pid, "tid": tid}
        times = {"ts": start[i] / 1e3, "dur": (stop[i] - start[i]) / 1e3}
        yield json.dumps({**event, **times, "args": args}, ensure_ascii=False)


def _counter_events(counter: Counter, steps: Ints, shift_ns: Ints, pid: int) -> Iterator[str]:
    place = np.searchsorted(steps, counter.step)
    at_ns = nanoseconds(counter.at_s) + shift_ns[place]
    for at, value in zip(at_ns.tolist(), counter.value.tolist(), strict=True):
        event = {"ph": "C", "name": counter.name, "pid": pid, "ts": at / 1e3}
        yield json.dumps({**event, "args": {counter.unit: round(value, 6)}})
