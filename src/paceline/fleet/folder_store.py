"""A folder as a store."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.errors import FleetError, OutputError
from paceline.files import make_folder
from paceline.fleet.store_types import FileInfo, whole_folder


class FolderStore:
    """A folder of this machine, or of a file system that all machines share."""

    remote = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def address(self) -> str:
        """The folder's absolute path."""
        return str(self.folder.absolute())

    def read(self, name: str) -> bytes:
        """The file's content."""
        return (self.folder / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        """Write a temporary file beside the target, then rename it."""
        self._put(name, data, replace=True)

    def write_new(self, name: str, data: bytes) -> bool:
        """Write a temporary file, then link it; the link fails if the name exists."""
        return self._put(name, data, replace=False)

    def _put(self, name: str, data: bytes, *, replace: bool) -> bool:
        target = self.folder / name
        make_folder(target.parent)
        partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
        try:
            partial.write_bytes(data)
            if replace or not _link(partial, target):
                partial.replace(target)
        except FileExistsError:
            return False
        except OSError as error:
            raise OutputError(f"{target} cannot be written: {error.strerror or error}") from None
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
        return True

    def delete(self, name: str) -> None:
        """Remove the file."""
        (self.folder / name).unlink(missing_ok=True)

    def exists(self, name: str) -> bool:
        """Whether the file exists."""
        return (self.folder / name).exists()

    def info(self, name: str) -> FileInfo:
        """Size, and the time of the last change."""
        path = self.folder / name
        if path.is_dir():
            return whole_folder(name, self.files(name))
        stat = path.stat()
        return FileInfo(name, stat.st_size, str(stat.st_mtime_ns))

    def files(self, below: str = "") -> Iterator[FileInfo]:
        """All files below a folder."""
        base = f"{below}/" if below else ""
        try:
            entries = sorted(os.scandir(self.folder / below), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            where = self.folder / below
            raise FleetError(f"the folder {where} cannot be read: {error.strerror}") from None
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                if entry.is_symlink() and _leads_up(Path(entry.path)):
                    continue
                yield from self.files(f"{base}{entry.name}")
            else:
                with suppress(FileNotFoundError):  # a link to nothing
                    stat = entry.stat()
                    yield FileInfo(f"{base}{entry.name}", stat.st_size, str(stat.st_mtime_ns))

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """The file itself."""
        yield self.folder / name


def _leads_up(link: Path) -> bool:
    """Whether a link to a folder points to one of its own parents."""
    return link.parent.resolve().is_relative_to(link.resolve())


def _link(path: Path, target: Path) -> bool:
    """Give a file its name, unless the name exists; False if the file system has no links.

    Raises:
        FileExistsError: the name exists.
    """
    try:
        os.link(path, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        return False
    return True
