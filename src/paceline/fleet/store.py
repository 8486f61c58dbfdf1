"""Where traces lie and where a study goes: folders, or what an fsspec address names.

Every name in a store is relative, with slashes. A file or object appears whole or not at all.
"""

from __future__ import annotations

import errno
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from paceline.errors import FleetError, OutputError
from paceline.files import make_folder


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file of a store: its name, its bytes, and a text that changes with its content."""

    name: str
    size: int
    stamp: str


class Store(Protocol):
    """A folder, or a bucket with a prefix."""

    @property
    def address(self) -> str:
        """The address that :func:`open_store` opens again, in another process, too."""

    def read(self, name: str) -> bytes:
        """The content; FileNotFoundError where there is none, OSError where it is unreadable."""

    def write(self, name: str, data: bytes) -> None:
        """Put the content there, whole or not at all; OutputError where that fails."""

    def write_new(self, name: str, data: bytes) -> bool:
        """The same, unless something has the name: False."""

    def delete(self, name: str) -> None:
        """Remove it where it is there."""

    def exists(self, name: str) -> bool:
        """Whether there is one."""

    def info(self, name: str) -> FileInfo:
        """Size and stamp of one file; FileNotFoundError where there is none."""

    def files(self, below: str = "") -> Iterator[FileInfo]:
        """All files in a folder of it and in the folders inside, hidden ones left out."""

    def local(self, name: str) -> Any:
        """A context with a path on this machine: the file itself, or a copy meanwhile."""


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
        """The content."""
        return (self.folder / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        """Write beside the place, then rename."""
        self._put(name, data, replace=True)

    def write_new(self, name: str, data: bytes) -> bool:
        """Write beside the place, then link, which fails where something has the name."""
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
        """Remove it."""
        (self.folder / name).unlink(missing_ok=True)

    def exists(self, name: str) -> bool:
        """Whether there is one."""
        return (self.folder / name).exists()

    def info(self, name: str) -> FileInfo:
        """Size, and the time of the last change."""
        path = self.folder / name
        if path.is_dir():
            return _whole(name, self.files(name))
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


def _whole(name: str, files: Iterable[FileInfo]) -> FileInfo:
    """A folder, as one file."""
    inside = sorted(files, key=lambda file: file.name)
    stamp = "|".join(f"{file.name}:{file.size}:{file.stamp}" for file in inside)
    return FileInfo(name, sum(file.size for file in inside), stamp)


def _leads_up(link: Path) -> bool:
    """Whether a link to a folder leads to one that it lies in."""
    return link.parent.resolve().is_relative_to(link.resolve())


def _link(path: Path, target: Path) -> bool:
    """Give a file its name, unless another has it; False where the file system has no links.

    Raises:
        FileExistsError: another has it.
    """
    try:
        os.link(path, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        return False
    return True


class BucketStore:
    """What an fsspec address names, such as ``s3://bucket/2026-10``."""

    remote = True

    def __init__(self, address: str) -> None:
        try:
            import fsspec

            self._fs, root = fsspec.core.url_to_fs(address)
        except ImportError as error:
            reason = " ".join(str(error).split())
            raise FleetError(
                f"{address} needs more packages ({reason}): pip install 'paceline[fleet]' and "
                "that of the bucket, such as s3fs or gcsfs"
            ) from None
        except ValueError as error:
            raise FleetError(f"{address} is no address: {' '.join(str(error).split())}") from None
        self._root = str(root).rstrip("/")
        self._address = address.rstrip("/")

    @property
    def address(self) -> str:
        """As it was given."""
        return self._address

    def read(self, name: str) -> bytes:
        """The object."""
        return bytes(self._fs.cat_file(self._path(name)))

    def write(self, name: str, data: bytes) -> None:
        """One PUT."""
        try:
            self._fs.pipe_file(self._path(name), data)
        except Exception as error:  # each kind of bucket has its own exceptions
            raise OutputError(f"{self._address}/{name} cannot be written: {_line(error)}") from None

    def write_new(self, name: str, data: bytes) -> bool:
        """One PUT that must create the object, where the bucket knows such."""
        if self.exists(name):
            return False
        try:
            self._fs.pipe_file(self._path(name), data, mode="create")
        except FileExistsError:
            return False
        except (NotImplementedError, TypeError):  # an older bucket or fsspec
            self.write(name, data)
        except Exception as error:  # as above
            raise OutputError(f"{self._address}/{name} cannot be written: {_line(error)}") from None
        return True

    def delete(self, name: str) -> None:
        """Remove it."""
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def exists(self, name: str) -> bool:
        """Whether there is one, now."""
        self._fs.invalidate_cache()
        return bool(self._fs.exists(self._path(name)))

    def info(self, name: str) -> FileInfo:
        """Size, and the entity tag or the time of the last change."""
        info = self._fs.info(self._path(name))
        if info.get("type") != "directory":
            return self._info(name, info)
        return _whole(name, self.files(name))

    def files(self, below: str = "") -> Iterator[FileInfo]:
        """All objects below a prefix."""
        self._fs.invalidate_cache()
        root = self._root + "/"
        try:
            objects = self._fs.find(self._path(below) if below else self._root, detail=True)
        except Exception as error:  # each kind of bucket has its own exceptions
            raise FleetError(f"{self._address} cannot be read: {_line(error)}") from None
        for path, info in sorted(objects.items()):
            name = path.removeprefix(root)
            if not any(folder.startswith(".") for folder in name.split("/")):
                yield self._info(name, info)

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """A copy, for as long as the context lasts; its name is that of the object."""
        with tempfile.TemporaryDirectory(prefix="paceline-fleet-") as folder:
            path = Path(folder) / name.rpartition("/")[2]
            remote = self._path(name)
            try:
                self._fs.get(remote, str(path), recursive=self._fs.isdir(remote))
            except OSError:
                raise
            except Exception as error:  # each kind of bucket has its own exceptions
                raise OSError(_line(error)) from None
            yield path

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @staticmethod
    def _info(name: str, info: dict[str, Any]) -> FileInfo:
        marks = ("ETag", "etag", "md5Hash", "LastModified", "mtime", "last_modified", "created")
        stamp = next((str(info[mark]) for mark in marks if info.get(mark)), "")
        return FileInfo(name, int(info.get("size") or 0), stamp)


def is_remote(address: str) -> bool:
    """Whether an address is fsspec's, not a path."""
    return "://" in address


def open_store(address: str | Path) -> FolderStore | BucketStore:
    """The store of an address.

    Raises:
        FleetError: no such kind of bucket is installed, or the address is none.
    """
    text = str(address)
    if is_remote(text) and not text.startswith("file://"):
        return BucketStore(text)
    return FolderStore(Path(text.removeprefix("file://")))


def split_address(address: str) -> tuple[str, str]:
    """(folder or prefix, name in it) of a file's address."""
    folder, slash, name = address.rpartition("/")
    return (folder or slash or ".", name)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
