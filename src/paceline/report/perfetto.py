"""Events as a Chrome trace (JSON, gzipped or not), which Perfetto and chrome://tracing open."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from paceline.errors import OutputError
from paceline.report.events import Events, label
from paceline.trace import Job, OpKind

#: What a browser still opens; beyond it Perfetto's page runs out of memory.
MAX_EVENTS = 2_000_000

#: Overlaps within one stream up to this are rounding of the recorder; they are cut off, since a
#: viewer wants the events of a row to be disjoint. Longer ones get a second row.
_ROUNDING_NS = 1_000_000

_AT_ONCE = 8192  # events formatted per write
_GZIP_LEVEL = 4  # a third of the time of the default 9, for 15% more bytes

_STREAMS = ("compute", "DP comm", "forward-send", "forward-recv", "backward-send", "backward-recv")
_STREAM_OF = {
    OpKind.PARAMS_ALL_GATHER: 1,
    OpKind.GRADS_REDUCE_SCATTER: 1,
    OpKind.SEPARATE_GRADS_ALL_REDUCE: 1,
    OpKind.FORWARD_SEND: 2,
    OpKind.FORWARD_RECV: 3,
    OpKind.BACKWARD_SEND: 4,
    OpKind.BACKWARD_RECV: 5,
}

#: Names of colours that chrome://tracing knows; Perfetto colours by the name of the event.
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
}


def check_size(n_events: int, n_steps: int, n_replicas: int) -> None:
    """OutputError where a viewer could not open that many events."""
    if n_events > MAX_EVENTS:
        room = MAX_EVENTS * n_replicas // n_events
        fitting = f"about {room} replicas fit" if n_steps == 1 and room else "take fewer"
        raise OutputError(
            f"{n_events:,} events (of {n_steps} steps, {n_replicas} replicas) are more than a "
            f"viewer can open ({MAX_EVENTS:,}); choose with --steps and --replicas ({fitting})"
        )


def trace_writer(
    events: Events,
    job: Job,
    about: Mapping[str, Any],
    *,
    replica_names: Mapping[int, str] = MappingProxyType({}),
    compress: bool,
) -> Callable[[BinaryIO], None]:
    """What writes the Chrome trace of some events.

    One process per worker and one thread per stream; several steps lie one after another, named in
    a process of their own.

    Args:
        events: what to draw.
        job: degrees of parallelism.
        about: what the file says of itself, under ``otherData``.
        replica_names: what to call data-parallel ranks other than ``dp 3``.
        compress: gzip it.

    Raises:
        OutputError: too many events.
    """
    steps, replicas = np.unique(events.step), np.unique(events.dp)
    check_size(len(events), len(steps), len(replicas))

    def write(file: BinaryIO) -> None:
        head = {"displayTimeUnit": "ms", "otherData": {**about, "job": job.to_mapping()}}
        _write_to(file, json.dumps(head, ensure_ascii=False)[:-1] + ', "traceEvents": [\n')
        for number, block in enumerate(_blocks(events, job, replica_names)):
            _write_to(file, (",\n" if number else "") + block)
        _write_to(file, "\n]}\n")

    if not compress:
        return write

    def write_compressed(file: BinaryIO) -> None:
        # Without a name and time in the header, equal timelines are equal files.
        with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
            write(packed)  # type: ignore[arg-type]  # gzip says too little of itself

    return write_compressed


def _write_to(file: BinaryIO, text: str) -> None:
    file.write(text.encode())


def _blocks(events: Events, job: Job, replica_names: Mapping[int, str]) -> Iterator[str]:
    """Pieces of the event list, without the commas between the pieces."""
    steps, index = np.unique(events.step, return_inverse=True)
    start_ns, end_ns, length_ns = _laid_out(events, index, len(steps))
    pid = events.dp * job.pp_size + events.pp + 1  # 0 is the kernel's idle process to Perfetto
    stream = np.array([_STREAM_OF.get(kind, 0) for kind in OpKind])[events.kind]
    order = np.lexsort((end_ns, start_ns, stream, pid))
    # Thread ids that differ from their process's, which would make them its main thread.
    row = pid * 100 + stream
    end_ns, second = _disjoint(row[order], start_ns[order], end_ns[order])
    row = row[order] + len(_STREAMS) * second
    yield ",\n".join(_names(pid, row, job, replica_names))
    yield ",\n".join(_step_events(steps.tolist(), length_ns, job))
    head, which = _heads(events, job)
    columns = (which[order], events.step[order], events.seq[order], pid[order], row)
    start_ns = start_ns[order]
    for low in range(0, len(order), _AT_ONCE):
        part = slice(low, low + _AT_ONCE)
        times = start_ns[part] / 1e3, (end_ns[part] - start_ns[part]) / 1e3
        yield ",\n".join(
            f'{{{head[h]},"step":{step},"seq":{seq}}},"pid":{p},"tid":{t},"ts":{ts:.3f},"dur":{dur:.3f}}}'
            for h, step, seq, p, t, ts, dur in zip(
                *(column[part].tolist() for column in columns),
                *(time.tolist() for time in times),
                strict=True,
            )
        )


def _laid_out(
    events: Events, index: npt.NDArray[np.int64], n_steps: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """[event] starts and ends with the steps one after another, and [step] lengths; nanoseconds.

    Whole nanoseconds, so that what meets still meets when it has been printed.
    """
    start, end = (np.rint(t * 1e9).astype(np.int64) for t in (events.start_s, events.end_s))
    end = np.maximum(start, end)  # clock errors may make a transfer end before its launch
    first, last = np.full(n_steps, 2**62), np.full(n_steps, -(2**62))
    np.minimum.at(first, index, start)
    np.maximum.at(last, index, end)
    shift = (np.cumsum(last - first) - last)[index]
    return start + shift, end + shift, last - first


def _disjoint(
    row: npt.NDArray[np.int64], start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """[event] ends without small overlaps, and which events belong on a second row.

    Events come sorted by (row, start).
    """
    same = np.zeros(len(row), dtype=bool)
    same[1:] = row[1:] == row[:-1]
    overlap = np.zeros(len(row), dtype=np.int64)
    overlap[1:] = np.where(same[1:], end[:-1] - start[1:], 0)
    small = np.flatnonzero((overlap > 0) & (overlap <= _ROUNDING_NS))
    end = end.copy()
    end[small - 1] = start[small]
    # The latest end so far on the same row: rows are moved apart so that one running maximum does.
    span = int(end.max(initial=0) - start.min(initial=0)) + 1
    apart = np.cumsum(~same) * span
    latest = np.maximum.accumulate(end + apart) - apart
    second = np.zeros(len(row), dtype=bool)
    second[1:] = same[1:] & (latest[:-1] > start[1:]) & (end[1:] > start[1:])
    return end, second


def _heads(events: Events, job: Job) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The text that events of one kind, microbatch and chunk share; [event] which text."""
    chunk = events.chunk if job.vpp_size > 1 else np.full(len(events), -1)
    # Names count by seq only where the microbatch is unknown.
    seq = np.where(events.microbatch < 0, events.seq, 0)
    table = np.stack([events.kind, events.microbatch, chunk, seq], axis=1)
    packed = np.zeros(len(events), dtype=np.int64)
    for column in table.T:
        packed = packed * (int(column.max(initial=0)) + 2) + column + 1
    _, first, which = np.unique(packed, return_index=True, return_inverse=True)
    return [_head(*table[event].tolist()) for event in first], which.reshape(-1)


def _head(kind: int, microbatch: int, chunk: int, seq: int) -> str:
    op = OpKind(kind)
    args: dict[str, Any] = {"kind": op.label}
    args |= {"microbatch": microbatch} if microbatch >= 0 else {}
    args |= {"chunk": chunk} if chunk >= 0 else {}
    name = label(op, microbatch, chunk, seq)
    event = {"ph": "X", "name": name, "cat": op.label, "cname": _COLOURS[op], "args": args}
    return json.dumps(event, separators=(",", ":"))[1:-2]


def _names(
    pid: npt.NDArray[np.int64],
    row: npt.NDArray[np.int64],
    job: Job,
    replica_names: Mapping[int, str],
) -> Iterator[str]:
    """Names and places of processes and threads."""
    for process in np.unique(pid).tolist():
        dp, pp = divmod(process - 1, job.pp_size)
        replica = replica_names.get(dp, f"dp {dp}")
        yield _meta("process_name", process, 0, name=f"{replica} · stage {pp}")
        yield _meta("process_sort_index", process, 0, sort_index=process)
    for thread in np.unique(row).tolist():
        process, stream = divmod(thread, 100)
        again, stream = divmod(stream, len(_STREAMS))
        name = _STREAMS[stream] + (" (overlapping)" if again else "")
        yield _meta("thread_name", process, thread, name=name)
        yield _meta("thread_sort_index", process, thread, sort_index=2 * stream + again)


def _meta(what: str, pid: int, tid: int, **args: Any) -> str:
    event = {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}
    return json.dumps(event, ensure_ascii=False)


def _step_events(steps: list[int], length_ns: npt.NDArray[np.int64], job: Job) -> Iterator[str]:
    """A ruler above the workers: one event per step."""
    pid = job.workers + 1
    yield _meta("process_name", pid, 0, name="steps")
    yield _meta("process_sort_index", pid, 0, sort_index=0)
    yield _meta("thread_name", pid, pid * 100, name="steps")
    ends = np.cumsum(length_ns)
    for step, end, length in zip(steps, ends.tolist(), length_ns.tolist(), strict=True):
        event = {"ph": "X", "name": f"step {step}", "cat": "step", "pid": pid, "tid": pid * 100}
        yield json.dumps({**event, "ts": (end - length) / 1e3, "dur": length / 1e3})
