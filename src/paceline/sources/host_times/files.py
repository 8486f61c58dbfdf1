"""Host times from files of any format, recognised by their content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from paceline.errors import TraceError
from paceline.sources import kineto, otlp
from paceline.sources.host_times import timer_logs
from paceline.sources.host_times.table import HostTimes
from paceline.sources.otlp.times import read_times

#: Name of a format, test whether a file or folder has it, and its reader.
READERS: tuple[tuple[str, Callable[[Path], bool], Callable[[Sequence[Path]], HostTimes]], ...] = (
    ("otlp", otlp.matches, read_times),
    ("timer log", timer_logs.matches, timer_logs.read_times),
)


def load_host_times(paths: Iterable[str | Path]) -> HostTimes:
    """Read host times.

    Args:
        paths: files of one format, or folders of them.

    Raises:
        TraceError: a file is unreadable, damaged or of no known format, or formats are mixed.
    """
    by_format: dict[str, list[Path]] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise TraceError(f"{path} does not exist")
        name = _format(path)
        inside = [path]
        if name is None and path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and p.name[0] != ".")
        for file in inside:
            name = _format(file)
            if name is not None:
                by_format.setdefault(name, []).append(file)
            elif file == path:
                raise TraceError(
                    f"{path} has no times of steps: it is no {_names()}{_instead(path)}"
                )
    if not by_format:
        raise TraceError(f"no file is {_names()}")
    if len(by_format) > 1:
        formats = ", ".join(f"{files[0]} is {name}" for name, files in by_format.items())
        raise TraceError(f"the files are of several formats ({formats}); give those of one")
    ((name, files),) = by_format.items()
    return next(read for reader, _, read in READERS if reader == name)(files)


def _format(path: Path) -> str | None:
    return next((name for name, matches, _ in READERS if matches(path)), None)


def _instead(path: Path) -> str:
    if path.is_file() and kineto.matches(path):
        return "; it is a PyTorch profile: see paceline import and paceline ranks"
    return ""


def _names() -> str:
    return " or ".join(name for name, _, _ in READERS)
