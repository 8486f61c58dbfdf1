"""Readers of trace files: a path -> a :class:`paceline.trace.Trace`; and :func:`write`.

``SOURCES`` lists Paceline's own formats, in the order in which a path is tested. Formats of other
tools are in :mod:`paceline.sources.importers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.errors import OutputError, TraceError
from paceline.sources import dataset, dataset_steps, parquet, recording
from paceline.sources.dataset_steps import Options
from paceline.sources.job_file import read_job
from paceline.trace import Job, Trace

#: Rows above which :func:`is_large` may recommend :func:`load_stored`.
STORE_ABOVE = 4_000_000


@dataclass(frozen=True)
class Source:
    """One format: its name, whether a path looks like it, and its reader.

    ``read`` takes (path, job or None, ignored kind labels, step numbers or None for all).
    """

    name: str
    matches: Callable[[Path], bool]
    read: Callable[[Path, Job | None, frozenset[str], frozenset[int] | None], Trace]


def _read_dataset(
    path: Path, job: Job | None, ignore_kinds: frozenset[str], steps: frozenset[int] | None
) -> Trace:
    return dataset_steps.load([path], Options(job, ignore_kinds, steps))


SOURCES: tuple[Source, ...] = (
    Source("recording", recording.matches, recording.read),
    Source("dataset", dataset.matches, _read_dataset),
    Source("parquet", parquet.matches, parquet.read),
)


def load(
    path: str | Path | Sequence[str | Path],
    job: str | Path | Job | None = None,
    *,
    steps: Iterable[int] | None = None,
    ignore_kinds: Iterable[str] = (),
) -> Trace:
    """Read a trace.

    Args:
        path: the trace file, the folder of a recorded run, or a file or folder of another tool
            (``IMPORTERS``). Or the parquet files of one trace, as a folder or a list.
        job: the job's YAML file or a :class:`Job`; None takes the job stored in the file, or else
            the degrees that the data shows.
        steps: step numbers to keep; None keeps all.
        ignore_kinds: labels of operation kinds to drop.

    Raises:
        TraceError: the trace is unreadable or malformed, or contradicts the job.
    """
    paths = paths_of(path)
    options = options_of(job, steps, ignore_kinds)
    if len(paths) > 1:
        return dataset_steps.load(paths, options)
    for source in SOURCES:
        if source.matches(paths[0]):
            return source.read(paths[0], options.job, options.ignore_kinds, options.steps)
    return _import_trace(paths[0], options.job, options.ignore_kinds, options.steps)


def paths_of(path: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files and folders that are one trace.

    Raises:
        TraceError: there are no files, or a path does not exist.
    """
    paths = [Path(path)] if isinstance(path, str | Path) else [Path(one) for one in path]
    if not paths:
        raise TraceError("no trace file is given")
    for one in paths:
        if not one.exists():
            raise TraceError(f"{one} does not exist")
    return paths


def options_of(
    job: str | Path | Job | None, steps: Iterable[int] | None, ignore_kinds: Iterable[str]
) -> Options:
    """The options of a read, checked; arguments as for :func:`load`."""
    if isinstance(ignore_kinds, str):
        raise TraceError(f"ignore_kinds takes a list of kinds, not the text {ignore_kinds!r}")
    known_job = job if isinstance(job, Job) or job is None else read_job(Path(job))
    wanted_steps = None if steps is None else frozenset(steps)
    return Options(known_job, frozenset(ignore_kinds), wanted_steps)


def is_large(path: str | Path | Sequence[str | Path]) -> bool:
    """Whether :func:`load_stored` should read a trace.

    It should for parquet of many rows, with programs or in several files. A single file without
    programs is read faster by :func:`load`, which takes half as much memory for it.
    """
    paths = paths_of(path)
    if not all(parquet.matches(one) or dataset.matches(one) for one in paths):
        return False
    if any(recording.matches(one) for one in paths):
        return False
    n_rows, programmed = dataset.size_of(paths)
    alone = len(paths) == 1 and paths[0].is_file()
    return n_rows > STORE_ABOVE and (programmed or not alone)


def load_stored(
    path: str | Path | Sequence[str | Path],
    job: str | Path | Job | None = None,
    *,
    steps: Iterable[int] | None = None,
    ignore_kinds: Iterable[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Read parquet files for :func:`paceline.graph.from_trace`, with the times on disk.

    Arguments as for :func:`load`; ``progress`` is called with (rows done, rows in all).

    Raises:
        TraceError: as :func:`load` does.
        OutputError: temporary files (16 bytes a row) cannot be written.
    """
    return dataset_steps.load_stored(paths_of(path), options_of(job, steps, ignore_kinds), progress)


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

    Reading the file gives the same rows, job, truth, warnings and steps left out. An end may differ
    in the last bit, since files hold durations. The file is written under another name and then
    renamed, so it is never incomplete.

    Args:
        trace: the trace.
        path: the file, usually ``*.parquet``.
        force: replace a file that exists.

    Raises:
        OutputError: the file exists and ``force`` is not given, or it cannot be written.
        TraceError: the trace has no rows; a file cannot express that.
    """
    path = Path(path)
    if len(trace) == 0:
        raise TraceError("the trace has no rows; there is nothing to write")
    if path.is_file() and not force:
        raise OutputError(f"{path} exists already; choose another name or pass force=True")
    parquet.write(trace, path, force=force)


__all__ = ["SOURCES", "Source", "is_large", "load", "load_stored", "read_job", "write"]
