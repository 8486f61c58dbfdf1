"""Readers: a path of some format -> a :class:`paceline.trace.Trace`.

``SOURCES`` lists them in the order in which they are asked whether a path is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import TraceError
from paceline.sources import parquet
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


SOURCES: tuple[Source, ...] = (Source("parquet", parquet.matches, parquet.read),)


def load(
    path: str | Path,
    job: str | Path | Job | None = None,
    *,
    steps: Iterable[int] | None = None,
    ignore_kinds: Iterable[str] = (),
) -> Trace:
    """Read a trace.

    Args:
        path: the trace file.
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
    if path.is_dir():
        raise TraceError(f"{path} is a folder; give the trace file in it")
    if isinstance(ignore_kinds, str):
        raise TraceError(f"ignore_kinds takes a list of kinds, not the text {ignore_kinds!r}")
    known = job if isinstance(job, Job) or job is None else read_job(Path(job))
    for source in SOURCES:
        if source.matches(path):
            wanted = None if steps is None else frozenset(steps)
            return source.read(path, known, frozenset(ignore_kinds), wanted)
    names = ", ".join(source.name for source in SOURCES)
    raise TraceError(f"{path} is not a trace file that can be read here ({names})")


__all__ = ["SOURCES", "Source", "load", "read_job"]
