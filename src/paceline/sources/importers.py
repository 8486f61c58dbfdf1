"""Files of other tools, of whatever format -> a trace.

``IMPORTERS`` lists the formats in the order in which they are asked whether a path is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import TraceError
from paceline.sources import kineto, ndtimeline, otlp, recording
from paceline.sources.call_logs import flight_recorder, nccl_inspector
from paceline.sources.imported import Imported
from paceline.trace import Job


@dataclass(frozen=True)
class Importer:
    """One format: its name, whether a file or folder is of it, and its reader.

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


#: Logs of collectives say nothing of computes, so no trace can be made of them.
_CALL_LOGS = (
    ("a log of NCCL Inspector", nccl_inspector.matches),
    ("a dump of the flight recorder", flight_recorder.matches),
)


def _refuse_call_logs(path: Path, files: Sequence[Path]) -> None:
    """Say where logs of collectives belong, if a file of ``path``, a file or folder, is one."""
    for file in files:
        for label, matches in _CALL_LOGS:
            if matches(file):
                raise TraceError(
                    f"{file} is {label}, which has no computes, so no trace can be made of it; "
                    f"pass {path} to paceline detect --collectives"
                )


def find_files(
    paths: Sequence[Path], name: str | None = None, importers: Sequence[Importer] = IMPORTERS
) -> tuple[Importer, list[Path], int]:
    """The format of some files, the files of it, and how many in folders are of none.

    Args:
        paths: files, or folders whose files are taken; those of no known format are left out there.
        name: the format, where it should not be told from the content.
        importers: the formats that are known.

    Raises:
        TraceError: a path does not exist or is of no known format, or formats are mixed.
    """
    candidates = [importer for importer in importers if name in (None, importer.name)]
    matches: list[tuple[Importer, Path]] = []
    n_left_out = 0
    for path in paths:
        if not path.exists():
            raise TraceError(f"{path} does not exist")
        importer = _importer_of(path, candidates)
        if importer is None and path.is_dir():
            inside = [(_importer_of(file, candidates), file) for file in _files_in(path)]
            in_folder = [(importer, file) for importer, file in inside if importer is not None]
            n_left_out += len(inside) - len(in_folder)
            if not in_folder:
                if name is None:
                    _refuse_call_logs(path, [file for _, file in inside])
                raise TraceError(
                    f"{path} is a folder without a trace: no file in it is {_names(candidates)}"
                )
            matches += in_folder
        elif importer is None and name is None:
            _refuse_call_logs(path, [path])
            raise TraceError(
                f"{path} is not a trace file: its content is not {_names(candidates)}; if it is "
                "all the same, import it with --format"
            )
        else:
            matches.append((importer or candidates[0], path))
    names = {importer.name: path for importer, path in matches}
    if len(names) > 1:
        formats = ", ".join(f"{path} is {name}" for name, path in names.items())
        raise TraceError(f"the files are of several formats ({formats}); import one at a time")
    return matches[0][0], [path for _, path in matches], n_left_out


def _importer_of(path: Path, importers: Sequence[Importer]) -> Importer | None:
    return next((importer for importer in importers if importer.matches(path)), None)


def _files_in(folder: Path) -> list[Path]:
    try:
        names = sorted(folder.iterdir())
    except OSError as error:
        raise TraceError(f"the folder {folder} cannot be read: {error.strerror}") from None
    return [path for path in names if path.is_file() and not path.name.startswith(".")]


def _names(importers: Sequence[Importer]) -> str:
    return " or ".join(importer.name for importer in importers)
