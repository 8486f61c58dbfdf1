"""Output files: written beside their place, then moved there, so none is ever half a file."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from paceline.errors import OutputError

Writer = Callable[[BinaryIO], None]


def text_writer(text: str) -> Writer:
    """A writer of a text, as UTF-8."""

    def write(file: BinaryIO) -> None:
        file.write(text.encode())

    return write


def check_targets(paths: Sequence[Path], *, force: bool = False) -> None:
    """Make sure that all of ``paths`` may be written; call it before the work, too.

    Raises:
        OutputError: one of them exists and ``force`` is not given, or is no regular file.
    """
    for path in paths:
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            continue
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror}") from None
        if stat.S_ISDIR(mode):
            raise OutputError(f"{path} is a folder; give the name of a file")
        if not stat.S_ISREG(mode):
            raise OutputError(f"{path} is no regular file; choose another name")
    existing = [path for path in paths if path.exists()]
    if existing and not force:
        others = f" (and {len(existing) - 1} more)" if len(existing) > 1 else ""
        raise OutputError(
            f"{existing[0]} exists already{others}; choose another name or pass --force"
        )


def check_not_input(outputs: Sequence[Path], inputs: Sequence[Path | None]) -> None:
    """Make sure that no output is one of the inputs, which ``force`` would destroy.

    Raises:
        OutputError: one is.
    """
    for output in outputs:
        for source in inputs:
            if (
                source is not None
                and output.exists()
                and source.exists()
                and output.samefile(source)
            ):
                raise OutputError(f"{output} is an input of this command; choose another name")


def check_folder_of(path: Path) -> None:
    """Make sure that a file can be made beside where it shall be; call it before the work.

    Raises:
        OutputError: its folder does not exist, or may not be written to.
    """
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise OutputError(f"{path} cannot be written: the folder {folder} does not exist")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{path} cannot be written: the folder {folder} may not be written to")


def make_folder(folder: Path) -> None:
    """Create a folder and its parents where they are missing.

    Raises:
        OutputError: it cannot be created, or a file has its name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise OutputError(f"{folder} cannot be a folder: a file is in the way") from None
    except OSError as error:
        raise OutputError(f"the folder {folder} cannot be created: {error.strerror}") from None


def sync(path: Path) -> None:
    """Put a file, or the names in a folder, on disk.

    Raises:
        OSError: the disk does not take it.
    """
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_files(writers: Mapping[Path, Writer], *, force: bool = False) -> None:
    """Write some files, all or (but for a failing rename) none.

    Args:
        writers: path -> what writes its content to an open file.
        force: replace files that exist.

    Raises:
        OutputError: a file exists already, or cannot be written.
    """
    check_targets(list(writers), force=force)
    partials: dict[Path, Path] = {}
    path = Path()
    try:
        for path, write in writers.items():
            # Through a link to its target: replacing the link itself would surprise.
            final = Path(os.path.realpath(path))
            partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
            with partial.open("xb") as file:
                partials[partial] = final
                write(file)
        check_targets(list(writers), force=force)  # the work may have taken a while
        for partial, final in partials.items():
            path = final
            partial.replace(final)
    except FileNotFoundError:
        folder = Path(os.path.realpath(path)).parent
        raise OutputError(f"{path} cannot be written: the folder {folder} does not exist") from None
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        for partial in partials:
            partial.unlink(missing_ok=True)
