"""Files of other tools, of any format -> a trace.

``IMPORTERS`` lists the formats in the order in which a path is tested.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from paceline.errors import TraceError
from paceline.sources import kineto, ndtimeline, otlp, recording
from paceline.sources.call_logs import flight_recorder, nccl_inspector, torchcomms
from paceline.sources.devices import TOOLS, nsight
from paceline.sources.imported import Imported
from paceline.sources.step_logs.log_text import is_log
from paceline.trace import Job


class Format(Protocol):
    """A format that a file may have."""

    @property
    def name(self) -> str:
        """The format's name."""

    @property
    def matches(self) -> Callable[[Path], bool]:
        """The function that tests whether a file or folder is of the format."""


F = TypeVar("F", bound=Format)


@dataclass(frozen=True)
class Importer:
    """One format: its name, a test whether a file or folder has it, and its reader.

    ``read`` takes (paths, job or None, step numbers or None for all).
    """

    name: str
    matches: Callable[[Path], bool]
    read: Callable[[Sequence[Path], Job | None, frozenset[int] | None], Imported]


def _read_recording(
    paths: Sequence[Path], job: Job | None, steps: frozenset[int] | None
) -> Imported:
    if len(paths) > 1:
        raise TraceError(f"{paths[0]} and {paths[1]} are two recorded runs; import one at a time")
    trace = recording.read(paths[0], job, steps=steps)
    return Imported(trace, len(trace), {}, 1.0, ())


IMPORTERS: tuple[Importer, ...] = (
    Importer("recording", recording.matches, _read_recording),
    Importer("otlp", otlp.matches, otlp.read),
    Importer("ndtimeline", ndtimeline.matches, ndtimeline.read),
    Importer("kineto", kineto.matches, kineto.read),
)


_NO_COMPUTES = "which has no computes, so no trace can be made of it; pass {path} to paceline"
_NO_GROUPS = (
    "which does not say microbatches and process groups, so no trace can be made of it; for where "
    "each device's time went: paceline ranks {path}"
)
#: Formats without a trace: name, test of the content, and the command for such files.
_NO_TRACE = (
    ("a log of NCCL Inspector", nccl_inspector.matches, f"{_NO_COMPUTES} detect --collectives"),
    ("a log of torchcomms", torchcomms.matches, f"{_NO_COMPUTES} detect --collectives"),
    (
        "a dump of the flight recorder",
        flight_recorder.matches,
        f"{_NO_COMPUTES} detect --collectives",
    ),
    *((tool.label, tool.matches, _NO_GROUPS) for tool in TOOLS),
    (
        "a report of Nsight Systems",
        nsight.is_report,
        "which only nsys can read: nsys export --type sqlite {path}",
    ),
)


def _refuse_no_trace(path: Path, files: Sequence[Path]) -> None:
    """Refuse ``files`` of a format without a trace, with a command for their file or folder."""
    for file in files:
        for label, matches, advice in _NO_TRACE:
            if matches(file):
                raise TraceError(f"{file} is {label}, {advice.format(path=path)}")


def find_files(paths: Sequence[Path], name: str | None = None) -> tuple[Importer, list[Path], int]:
    """The format of files that can make a trace; see :func:`files_of`."""
    return files_of(paths, name, IMPORTERS)


def files_of(
    paths: Sequence[Path], name: str | None, formats: Sequence[F]
) -> tuple[F, list[Path], int]:
    """The format of some files, its files, and the number of other files in the folders.

    Args:
        paths: files, or folders; in folders, files of no known format are left out.
        name: the format, if the content should not decide it.
        formats: the known formats.

    Raises:
        TraceError: a path does not exist or is of no known format, or formats are mixed.
    """
    candidates = [item for item in formats if name in (None, item.name)]
    matches: list[tuple[F, Path]] = []
    n_left_out = 0
    for path in paths:
        if not path.exists():
            raise TraceError(f"{path} does not exist")
        item = _format_of(path, candidates)
        if item is None and path.is_dir():
            inside = [(_format_of(file, candidates), file) for file in _files_in(path)]
            in_folder = [(item, file) for item, file in inside if item is not None]
            n_left_out += len(inside) - len(in_folder)
            if not in_folder:
                if name is None:
                    _refuse_no_trace(path, [file for _, file in inside])
                raise TraceError(
                    f"{path} is a folder without a trace: no file in it is {_names(candidates)}"
                )
            matches += in_folder
        elif item is None and name is None:
            _refuse_no_trace(path, [path])
            if is_log(path):
                raise TraceError(
                    f"{path} is a log, which holds no operations of a trace; for its step times: "
                    f"paceline detect {shlex.quote(str(path))}"
                )
            raise TraceError(
                f"{path} is not a trace file: its content is not {_names(candidates)}; if it is "
                "one of these, name the format with --format"
            )
        else:
            matches.append((item or candidates[0], path))
    names = {item.name: path for item, path in matches}
    if len(names) > 1:
        listed = ", ".join(f"{path} is {name}" for name, path in names.items())
        raise TraceError(f"the files are of several formats ({listed}); import one at a time")
    return matches[0][0], [path for _, path in matches], n_left_out


def _format_of(path: Path, formats: Sequence[F]) -> F | None:
    return next((item for item in formats if item.matches(path)), None)


def _files_in(folder: Path) -> list[Path]:
    try:
        names = sorted(folder.iterdir())
    except OSError as error:
        raise TraceError(f"the folder {folder} cannot be read: {error.strerror}") from None
    return [path for path in names if path.is_file() and not path.name.startswith(".")]


def _names(formats: Sequence[Format]) -> str:
    return " or ".join(item.name for item in formats)
