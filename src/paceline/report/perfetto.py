"""Scenes as a Chrome trace (JSON, optionally gzipped) for Perfetto and chrome://tracing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from paceline.errors import OutputError
from paceline.report.arrows import Slices, Ties, nanoseconds
from paceline.report.events import Events, label
from paceline.report.overview import meta, overview
from paceline.report.scene import Scene
from paceline.trace import Job, OpKind

#: Most events that a browser can open; with more, Perfetto's page runs out of memory.
MAX_EVENTS = 2_000_000

#: An overlap within one stream of up to this many nanoseconds is rounding of the recorder. It is
#: cut off, since a viewer needs disjoint events in a row. Longer overlaps get a second row.
_ROUNDING_NS = 1_000_000

_AT_ONCE = 8192  # events formatted per write
_GZIP_LEVEL = 4  # a third of the time of the default 9, for 15% more bytes

#: Rows reserved per stream: one, and rows for overlapping events.
MOST_LANES = 13

#: Threads of one process. Their ids differ from the process id, which would mark a main thread.
THREADS = 100

Ints = npt.NDArray[np.int64]

_STREAMS = (
    "compute",
    "DP comm",
    "forward-send",
    "forward-recv",
    "backward-send",
    "backward-recv",
    "peer comm",
)
_STREAM_OF = {
    OpKind.PARAMS_ALL_GATHER: 1,
    OpKind.GRADS_REDUCE_SCATTER: 1,
    OpKind.SEPARATE_GRADS_ALL_REDUCE: 1,
    OpKind.FORWARD_SEND: 2,
    OpKind.FORWARD_RECV: 3,
    OpKind.BACKWARD_SEND: 4,
    OpKind.BACKWARD_RECV: 5,
    OpKind.TENSOR_COMM: 6,
    OpKind.EXPERT_COMM: 6,
    OpKind.CONTEXT_COMM: 6,
}

#: Colour names of chrome://tracing. Perfetto colours by the name of the event.
_COLOURS = {
    OpKind.FORWARD_COMPUTE: "thread_state_running",
    OpKind.BACKWARD_COMPUTE: "rail_response",
    OpKind.FORWARD_SEND: "rail_load",
    OpKind.FORWARD_RECV: "rail_load",
    OpKind.BACKWARD_SEND: "rail_animation",
    OpKind.BACKWARD_RECV: "rail_animation",
    OpKind.PARAMS_ALL_GATHER: "thread_state_iowait",
    OpKind.GRADS_REDUCE_SCATTER: "thread_state_iowait",
    OpKind.SEPARATE_GRADS_ALL_REDUCE: "thread_state_iowait",
    OpKind.GC: "terrible",
    OpKind.LAYERNORM_GRADS_ALL_REDUCE: "generic_work",
    OpKind.EMBEDDING_GRADS_ALL_REDUCE: "generic_work",
    OpKind.OPTIMIZER_CLIP_MAIN_GRAD: "grey",
    OpKind.OPTIMIZER: "good",
    OpKind.TENSOR_COMM: "rail_idle",
    OpKind.EXPERT_COMM: "rail_idle",
    OpKind.CONTEXT_COMM: "rail_idle",
    OpKind.WEIGHT_COMPUTE: "cq_build_passed",
}


def check_size(n_events: int, n_steps: int, n_replicas: int) -> None:
    """Raise OutputError if a viewer could not open that many events."""
    if n_events > MAX_EVENTS:
        room = MAX_EVENTS * n_replicas // n_events
        fitting = f"about {room} replicas fit" if n_steps == 1 and room else "take fewer"
        raise OutputError(
            f"{n_events:,} events (of {n_steps} steps, {n_replicas} replicas) are more than a "
            f"viewer can open ({MAX_EVENTS:,}); choose with --steps and --replicas ({fitting})"
        )


def fitting(scenes: Sequence[Scene]) -> tuple[Scene, ...]:
    """The scenes, without arrows if these would make a viewer run out of memory."""
    ties = [scene.links for scene in scenes if scene.links is not None]
    arrows = sum(int(np.isfinite(tie.begin_s).sum()) + 2 * len(tie.source) for tie in ties)
    if sum(len(scene.events) for scene in scenes) + arrows <= MAX_EVENTS:
        return tuple(scenes)
    return tuple(
        replace(scene, links=scene.links and scene.links.without_arrows()) for scene in scenes
    )


def trace_writer(
    scenes: Sequence[Scene],
    job: Job,
    about: Mapping[str, Any],
    *,
    replica_names: Mapping[int, str] = MappingProxyType({}),
    compress: bool,
) -> Callable[[BinaryIO], None]:
    """The writer of the Chrome trace of some scenes.

    Each scene and worker has a process, each stream a thread. Steps follow one another, and a step
    starts at the same time in all scenes. An overview process per scene has the steps, the critical
    path and the counters.

    Args:
        scenes: the scenes to draw.
        job: degrees of parallelism.
        about: the file's description of itself, under ``otherData``.
        replica_names: names of data-parallel ranks other than ``dp 3``.
        compress: gzip it.

    Raises:
        OutputError: too many events.
    """
    steps = np.unique(np.concatenate([scene.events.step for scene in scenes]))
    replicas = np.unique(np.concatenate([scene.events.dp for scene in scenes]))
    check_size(sum(len(scene.events) for scene in scenes), len(steps), len(replicas))
    fitted = fitting(scenes)

    def write(file: BinaryIO) -> None:
        head = {"displayTimeUnit": "ms", "otherData": {**about, "job": job.to_mapping()}}
        _write_to(file, json.dumps(head, ensure_ascii=False)[:-1] + ', "traceEvents": [\n')
        for number, block in enumerate(_blocks(fitted, steps, job, replica_names)):
            _write_to(file, (",\n" if number else "") + block)
        _write_to(file, "\n]}\n")

    if not compress:
        return write

    def write_compressed(file: BinaryIO) -> None:
        # Without name and time in the header, equal timelines give equal files.
        with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
            write(packed)  # type: ignore[arg-type]  # gzip says too little of itself

    return write_compressed


def _write_to(file: BinaryIO, text: str) -> None:
    file.write(text.encode())


def _blocks(
    scenes: Sequence[Scene], steps: Ints, job: Job, replica_names: Mapping[int, str]
) -> Iterator[str]:
    """Pieces of the event list, without the commas between the pieces."""
    times = [_Times.of(scene, steps) for scene in scenes]
    longest = np.max([t.length_ns for t in times], axis=0)
    slot_ns = np.cumsum(longest) - longest  # [step] begin of a step, in every scene
    arrow_id = 1
    for number, (scene, t) in enumerate(zip(scenes, times, strict=True)):
        first_pid = 1 + number * (job.workers + 1)  # for Perfetto, 0 is the kernel's idle process
        shift_ns = slot_ns - t.first_ns
        yield ",\n".join(
            overview(
                scene, steps, shift_ns, slot_ns, t.length_ns, first_pid + job.workers, first_pid
            )
        )
        yield from _scene_blocks(scene, t, shift_ns, first_pid, job, replica_names, arrow_id)
        arrow_id += 0 if scene.links is None else len(scene.links.source)


@dataclass(frozen=True)
class _Times:
    """Times of a scene's events in whole nanoseconds, so that equal times stay equal in print.

    Attributes:
        index: [event] index of its step.
        start_ns, end_ns: [event] since its step's start; no event ends before its start (clock
            errors may make a transfer end before its launch).
        first_ns, length_ns: [step] first start, and time to the last end; 0 if nothing is drawn.
    """

    index: Ints
    start_ns: Ints
    end_ns: Ints
    first_ns: Ints
    length_ns: Ints

    @classmethod
    def of(cls, scene: Scene, steps: Ints) -> _Times:
        events = scene.events
        index = np.searchsorted(steps, events.step)
        start, end = (nanoseconds(seconds) for seconds in (events.start_s, events.end_s))
        end = np.maximum(start, end)
        first, last = np.full(len(steps), 2**62), np.full(len(steps), -(2**62))
        np.minimum.at(first, index, start)
        np.maximum.at(last, index, end)
        if scene.path is not None:  # the path may pass replicas that are not drawn
            path_steps = np.searchsorted(steps, scene.path.steps)
            first[path_steps] = np.minimum(first[path_steps], 0)
            last[path_steps] = np.maximum(last[path_steps], nanoseconds(scene.path.step_s))
        has_events = last >= first
        return cls(
            index, start, end, np.where(has_events, first, 0), np.where(has_events, last - first, 0)
        )


def _scene_blocks(
    scene: Scene,
    times: _Times,
    shift_ns: Ints,
    first_pid: int,
    job: Job,
    replica_names: Mapping[int, str],
    arrow_id: int,
) -> Iterator[str]:
    """The workers of one scene."""
    events = scene.events
    slices = _slices(events, times, shift_ns, first_pid, job)
    yield ",\n".join(_names(slices, first_pid, job, scene.name, replica_names))
    critical = np.zeros(len(events), bool) if scene.links is None else scene.links.critical
    heads, head_of_event = _heads(events, critical, job)
    order, start_ns, end_ns = slices.order, slices.start_ns, slices.end_ns
    columns = (head_of_event[order], events.step[order], events.seq[order], slices.pid, slices.row)
    ties = Ties(scene.events, scene.links, slices, arrow_id) if scene.links is not None else None
    for low in range(0, len(order), _AT_ONCE):
        rows = slice(low, low + _AT_ONCE)
        stamps = start_ns[rows] / 1e3, (end_ns[rows] - start_ns[rows]) / 1e3
        texts = [
            f'{{{heads[h]},"step":{step},"seq":{seq}}},"pid":{p},"tid":{t},"ts":{ts:.3f},"dur":{dur:.3f}}}'
            for h, step, seq, p, t, ts, dur in zip(
                *(column[rows].tolist() for column in columns),
                *(stamp.tolist() for stamp in stamps),
                strict=True,
            )
        ]
        for place, text in ties.within(low, low + len(texts)) if ties is not None else ():
            texts[place - low] += ",\n" + text  # after its slice: equal times keep their order
        yield ",\n".join(texts)


def _slices(events: Events, times: _Times, shift_ns: Ints, first_pid: int, job: Job) -> Slices:
    shift = shift_ns[times.index]
    start_ns, end_ns = times.start_ns + shift, times.end_ns + shift
    pid = first_pid + events.dp * job.pp_size + events.pp
    stream = np.array([_STREAM_OF.get(kind, 0) for kind in OpKind])[events.kind]
    order = np.lexsort((end_ns, start_ns, stream, pid))
    pid, row, start_ns, stream = (a[order] for a in (pid, pid * THREADS + stream, start_ns, stream))
    end_ns, lane = _disjoint(row, start_ns, end_ns[order])
    return Slices(order, pid, row + len(_STREAMS) * lane, start_ns, end_ns, shift[order])


def _disjoint(row: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """[event] ends without small overlaps, and each event's row within its stream.

    Events come sorted by (row, start).
    """
    same_row = np.zeros(len(row), dtype=bool)
    same_row[1:] = row[1:] == row[:-1]
    overlap = np.zeros(len(row), dtype=np.int64)
    overlap[1:] = np.where(same_row[1:], end[:-1] - start[1:], 0)
    small = np.flatnonzero((overlap > 0) & (overlap <= _ROUNDING_NS))
    end = end.copy()
    end[small - 1] = start[small]
    # The latest end so far on the same row. Rows are shifted apart, so one running maximum
    # suffices.
    span = int(end.max(initial=0) - start.min(initial=0)) + 1
    row_offset = np.cumsum(~same_row) * span
    latest = np.maximum.accumulate(end + row_offset) - row_offset
    above = np.zeros(len(row), dtype=bool)
    above[1:] = same_row[1:] & (latest[:-1] > start[1:]) & (end[1:] > start[1:])
    return end, _lanes(row, start, end, above)


def _lanes(row: Ints, start: Ints, end: Ints, above: npt.NDArray[np.bool_]) -> Ints:
    """[event] row: 0 is the first row of its stream; events ``above`` go to the next free row."""
    lane = above.astype(np.int64)
    free: list[int] = []  # [further row] time when it is free again
    last_row = -1
    for event in np.flatnonzero(above).tolist():
        if row[event] != last_row:
            free, last_row = [], int(row[event])
        choice = next((n for n, at in enumerate(free) if at <= start[event]), len(free))
        choice = min(choice, MOST_LANES - 2)
        free[choice : choice + 1] = [int(end[event])]
        lane[event] = choice + 1
    return lane


def _heads(
    events: Events, critical: npt.NDArray[np.bool_], job: Job
) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Texts shared by events of the same kind, microbatch and chunk; [event] index of its text."""
    chunk = events.chunk if job.vpp_size > 1 else np.full(len(events), -1)
    # Names use seq only if the microbatch is unknown.
    seq = np.where(events.microbatch < 0, events.seq, 0)
    part = np.full(len(events), -1) if events.part is None else events.part
    table = np.stack([events.kind, events.microbatch, chunk, seq, critical, part], axis=1)
    packed = np.zeros(len(events), dtype=np.int64)
    for column in table.T:
        packed = packed * (int(column.max(initial=0)) + 2) + column + 1
    _, first, head_of_event = np.unique(packed, return_index=True, return_inverse=True)
    return [_head(*table[event].tolist()) for event in first], head_of_event.reshape(-1)


def _head(kind: int, microbatch: int, chunk: int, seq: int, critical: int, part: int) -> str:
    op = OpKind(kind)
    args: dict[str, Any] = {"kind": op.label}
    args |= {"microbatch": microbatch} if microbatch >= 0 else {}
    args |= {"chunk": chunk} if chunk >= 0 else {}
    args |= {"part": part} if part >= 0 else {}
    args |= {"critical": True} if critical else {}
    name = label(op, microbatch, chunk, seq, part)
    event = {"ph": "X", "name": name, "cat": op.label, "cname": _COLOURS[op], "args": args}
    return json.dumps(event, separators=(",", ":"))[1:-2]


def _names(
    slices: Slices,
    first_pid: int,
    job: Job,
    scene: str,
    replica_names: Mapping[int, str],
) -> Iterator[str]:
    """Names and positions of processes and threads."""
    before = f"{scene}: " if scene else ""
    for process in np.unique(slices.pid).tolist():
        dp, pp = divmod(process - first_pid, job.pp_size)
        replica = replica_names.get(dp, job.replica_name(dp))
        yield meta("process_name", process, 0, name=f"{before}{replica} · stage {pp}")
        yield meta("process_sort_index", process, 0, sort_index=process + 1)
    for thread in np.unique(slices.row).tolist():
        process, stream = divmod(thread, THREADS)
        lane, stream = divmod(stream, len(_STREAMS))
        further = "" if not lane else " (overlapping)" if lane == 1 else f" (overlapping {lane})"
        name = _STREAMS[stream] + further
        yield meta("thread_name", process, thread, name=name)
        yield meta("thread_sort_index", process, thread, sort_index=MOST_LANES * stream + lane)
