"""Trace file or files -> step graph and durations; large files take little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from paceline.graph.from_trace import Measured, from_trace
from paceline.sources import is_large, load, load_stored
from paceline.trace import Job, Trace


def measure(
    path: str | Path | Sequence[str | Path],
    job: str | Path | Job | None = None,
    *,
    steps: Iterable[int] | None = None,
    ignore_kinds: Iterable[str] = (),
    keep_clocks: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Measured:
    """The step graph of a trace and the durations it measured, as ``from_trace(load(...))``.

    Large parquet traces are read some steps at a time. Their times go through temporary files
    (16 bytes a row, in the folder that TMPDIR names), which vanish with the process.

    Args:
        path: the trace file, a folder of parquet files or a list of them that are one trace.
        job: the job's YAML file or a :class:`Job`; None: the files describe the job.
        steps: step numbers to keep; None keeps all.
        ignore_kinds: labels of operation kinds to drop.
        keep_clocks: do not correct clock offsets between workers.
        progress: called with (rows read, rows in all) now and then, while a large trace is read.

    Raises:
        TraceError: unreadable, malformed, contradicting the job, or no whole step is left.
        GraphError: the ops do not form a step.
        OutputError: temporary files cannot be written.
    """
    trace = read_for_graph(path, job, steps=steps, ignore_kinds=ignore_kinds, progress=progress)
    return from_trace(trace, keep_clocks=keep_clocks)


def read_for_graph(
    path: str | Path | Sequence[str | Path],
    job: str | Path | Job | None = None,
    *,
    steps: Iterable[int] | None = None,
    ignore_kinds: Iterable[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """The trace for ``from_trace``, with its times on disk where it is large.

    Arguments as for :func:`measure`.

    Raises:
        TraceError: unreadable, malformed, or contradicting the job.
        OutputError: temporary files cannot be written.
    """
    if is_large(path):
        return load_stored(path, job, steps=steps, ignore_kinds=ignore_kinds, progress=progress)
    return load(path, job, steps=steps, ignore_kinds=ignore_kinds)
