"""A bucket as a store, through fsspec."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from paceline.errors import FleetError, OutputError
from paceline.extras import pip_install
from paceline.fleet.store_types import FileInfo, whole_folder


class BucketStore:
    """Address of a bucket for fsspec, such as ``s3://bucket/2026-10``."""

    remote = True

    def __init__(self, address: str) -> None:
        try:
            import fsspec

            self._fs, root = fsspec.core.url_to_fs(address)
        except ImportError as error:
            reason = " ".join(str(error).split())
            raise FleetError(
                f"{address} needs more packages ({reason}): {pip_install('fleet')} and "
                "that of the bucket, such as s3fs or gcsfs"
            ) from None
        except ValueError as error:
            raise FleetError(f"{address} is no address: {' '.join(str(error).split())}") from None
        self._root = str(root).rstrip("/")
        self._address = address.rstrip("/")

    @property
    def address(self) -> str:
        """The given address."""
        return self._address

    def read(self, name: str) -> bytes:
        """The object's content."""
        with _errors_of_buckets():
            return bytes(self._fs.cat_file(self._path(name)))

    def write(self, name: str, data: bytes) -> None:
        """One PUT."""
        try:
            self._fs.pipe_file(self._path(name), data)
        except Exception as error:  # each kind of bucket has its own exceptions
            raise OutputError(f"{self._address}/{name} cannot be written: {_line(error)}") from None

    def write_new(self, name: str, data: bytes) -> bool:
        """One PUT that must create the object, if the bucket supports that."""
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
        """Remove the object."""
        with suppress(FileNotFoundError), _errors_of_buckets():
            self._fs.rm_file(self._path(name))

    def exists(self, name: str) -> bool:
        """Whether the object exists now."""
        self._fs.invalidate_cache()
        with _errors_of_buckets():
            return bool(self._fs.exists(self._path(name)))

    def info(self, name: str) -> FileInfo:
        """Size, and the entity tag or the time of the last change."""
        with _errors_of_buckets():
            info = self._fs.info(self._path(name))
        if info.get("type") != "directory":
            return self._info(name, info)
        return whole_folder(name, self.files(name))

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
        """A temporary copy for the duration of the context, with the object's name."""
        with tempfile.TemporaryDirectory(prefix="paceline-fleet-") as folder:
            path = Path(folder) / name.rpartition("/")[2]
            remote = self._path(name)
            with _errors_of_buckets():
                self._fs.get(remote, str(path), recursive=self._fs.isdir(remote))
            yield path

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @staticmethod
    def _info(name: str, info: dict[str, Any]) -> FileInfo:
        marks = ("ETag", "etag", "md5Hash", "LastModified", "mtime", "last_modified", "created")
        stamp = next((str(info[mark]) for mark in marks if info.get(mark)), "")
        return FileInfo(name, int(info.get("size") or 0), stamp)


@contextmanager
def _errors_of_buckets() -> Iterator[None]:
    """Convert the exceptions of all kinds of buckets to OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(_line(error)) from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
