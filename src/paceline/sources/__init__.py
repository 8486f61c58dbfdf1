"""Readers: a path of some format -> a :class:`paceline.trace.Trace`; and :func:`write`.

``SOURCES`` lists Paceline's own formats in the order in which they are asked whether a path is
theirs; other tools' are in :mod:`paceline.sources.importers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.errors import OutputError, TraceError
from paceline.sources import parquet, recording
from paceline.sources.job_file import read_job
from paceline.trace import Job, Trace


@dataclass(frozen=True)
class Source:
    """One format: its name, whether a path looks like it, and its reader.

    ``read`` takes (path, job or None, ignored kind labels, step numbers or None for all).
    """

    name: str
    matches: Callable[[Path], bool]
    read: Callable[[Path, Job | None, frozenset[str], frozenset[int] | None], Trace]


SOURCES: tuple[Source, ...] = (
    Source("recording", recording.matches, recording.read),
    Source("parquet", parquet.matches, parquet.read),
)


def load(
    path: str | Path,
    job: str | Path | Job | None = None,
    *,
    steps: Iterable[int] | None = None,
    ignore_kinds: Iterable[str] = (),
) -> Trace:
    """Read a trace.

    Args:
        path: the trace file, the folder of a recorded run, or files of other tools (``IMPORTERS``).
        job: the job's YAML file or a :class:`Job`; None takes the job stored in the file, else what
            the data shows.
        steps: step numbers to keep; None keeps all.
        ignore_kinds: labels of operation kinds to drop.

    Raises:
        TraceError: unreadable, malformed, or contradicting the job.
    """
    path = Path(path)
    if not path.exists():
        raise TraceError(f"{path} does not exist")
    if isinstance(ignore_kinds, str):
        raise TraceError(f"ignore_kinds takes a list of kinds, not the text {ignore_kinds!r}")
    known_job = job if isinstance(job, Job) or job is None else read_job(Path(job))
    wanted_steps = None if steps is None else frozenset(steps)
    for source in SOURCES:
        if source.matches(path):
            return source.read(path, known_job, frozenset(ignore_kinds), wanted_steps)
    return _import_trace(path, known_job, frozenset(ignore_kinds), wanted_steps)


def _import_trace(
    path: Path, job: Job | None, ignore_kinds: frozenset[str], steps: frozenset[int] | None
) -> Trace:
    """The trace of another tool's file or folder of files, as ``paceline import`` would make it."""
    from paceline.sources.importers import find_files

    if ignore_kinds:
        raise TraceError(f"{path} is no trace file: import it first, then drop kinds")
    importer, files, _ = find_files([path])
    imported = importer.read(files, job, steps)
    origin = f"imported from {importer.name} files, confidence {imported.confidence:.2f}"
    warnings = (*imported.trace.warnings, origin, *imported.notes)
    return replace(imported.trace, warnings=warnings)


def write(trace: Trace, path: str | Path, *, force: bool = False) -> None:
    """Write a trace as the parquet file that :func:`load` reads (``docs/trace-format.md``).

    Reading gives the same rows, job, truth, warnings and steps left out; an end may differ in the
    last bit, since files hold durations. The file is written beside its place and then renamed, so
    it is never half there.

    Args:
        trace: what happened.
        path: the file, by custom ``*.parquet``.
        force: replace a file that exists.

    Raises:
        OutputError: the file exists and ``force`` is not given, or it cannot be written.
        TraceError: the trace has no rows, which no file can say.
    """
    path = Path(path)
    if len(trace) == 0:
        raise TraceError("the trace has no rows; there is nothing to write")
    if path.is_file() and not force:
        raise OutputError(f"{path} exists already; choose another name or pass force=True")
    parquet.write(trace, path, force=force)


__all__ = ["SOURCES", "Source", "load", "read_job", "write"]
