"""Large things: traces by their content, results by their session; files here or in a bucket.

A key is made here, of a SHA-256 or a session's number; nothing that a client sends is part of one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from paceline.errors import MonitorError
from paceline.files import sync

RESULT, REPORT, PERFETTO = "result.json", "report.html", "ideal.json.gz"
RESULTS = (RESULT, REPORT, PERFETTO)
#: ``schema`` of the results that pages and rules read: what this Paceline writes (a test compares).
RESULT_SCHEMA = 1


def trace_key(sha256: str) -> str:
    """Where a trace lies."""
    return f"traces/{sha256[:2]}/{sha256}"


def result_key(session_id: int, name: str) -> str:
    """Where one of :data:`RESULTS` lies."""
    return f"results/{session_id % 1000:03d}/{session_id}/{name}"


class Blobs(Protocol):
    """A place for large things."""

    def take(self, path: Path, key: str) -> None:
        """Move a file in; on disk (or in the bucket) when it returns, whole or not at all."""

    def exists(self, key: str) -> bool:
        """Whether there is one."""

    def open(self, key: str) -> BinaryIO:
        """Its bytes; FileNotFoundError where there is none."""

    def size(self, key: str) -> int:
        """Bytes; 0 where there is none."""

    def delete(self, key: str) -> None:
        """Remove it where it is there."""

    def local(self, key: str) -> Any:
        """A context with the path of a file that has its content."""

    def listed(self) -> Iterator[tuple[str, int, float]]:
        """(key, bytes, time of change) of all."""


class FileBlobs:
    """Blobs as files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def take(self, path: Path, key: str) -> None:
        """Move a file in."""
        target = self.folder / key
        self._make_parents(target)
        sync(path)
        try:
            path.replace(target)
        except OSError:  # another file system
            partial = target.with_name(f".{target.name}.partial")
            shutil.copyfile(path, partial)
            sync(partial)
            partial.replace(target)
            path.unlink()
        sync(target.parent)

    def _make_parents(self, target: Path) -> None:
        """Make the folders down to a file; their names are on disk when this returns."""
        for folder in reversed(target.relative_to(self.folder).parents[:-1]):
            if not (self.folder / folder).is_dir():
                (self.folder / folder).mkdir(exist_ok=True)
                sync((self.folder / folder).parent)

    def exists(self, key: str) -> bool:
        """Whether there is one."""
        return (self.folder / key).is_file()

    def open(self, key: str) -> BinaryIO:
        """Its bytes."""
        return (self.folder / key).open("rb")

    def size(self, key: str) -> int:
        """Bytes."""
        try:
            return (self.folder / key).stat().st_size
        except FileNotFoundError:
            return 0

    def delete(self, key: str) -> None:
        """Remove it."""
        path = self.folder / key
        path.unlink(missing_ok=True)
        if key.startswith("results/"):
            with suppress(OSError):  # holds others still, or is not there
                path.parent.rmdir()

    @contextmanager
    def local(self, key: str) -> Iterator[Path]:
        """The file itself."""
        yield self.folder / key

    def listed(self) -> Iterator[tuple[str, int, float]]:
        """(key, bytes, time of change) of all."""
        for path in self.folder.rglob("*"):
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue
            if path.is_file():
                yield path.relative_to(self.folder).as_posix(), stat.st_size, stat.st_mtime


class BucketBlobs:
    """Blobs in what an fsspec URL names, such as s3://bucket/paceline."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec

            self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise MonitorError(f"blobs cannot be kept at {url}: {reason}") from None

    def take(self, path: Path, key: str) -> None:
        """Copy a file in and remove it here; a bucket shows an object only when it is whole."""
        self._fs.makedirs(self._path(key).rpartition("/")[0], exist_ok=True)
        self._fs.put_file(str(path), self._path(key))
        path.unlink()

    def exists(self, key: str) -> bool:
        """Whether there is one."""
        return bool(self._fs.exists(self._path(key)))

    def open(self, key: str) -> BinaryIO:
        """Its bytes."""
        file: BinaryIO = self._fs.open(self._path(key), "rb")
        return file

    def size(self, key: str) -> int:
        """Bytes."""
        try:
            return int(self._fs.size(self._path(key)) or 0)
        except FileNotFoundError:
            return 0

    def delete(self, key: str) -> None:
        """Remove it."""
        if self.exists(key):
            self._fs.rm_file(self._path(key))

    @contextmanager
    def local(self, key: str) -> Iterator[Path]:
        """A copy, for as long as the context lasts."""
        with tempfile.TemporaryDirectory(prefix="paceline-blob-") as folder:
            path = Path(folder) / key.rpartition("/")[2]
            self._fs.get_file(self._path(key), str(path))
            yield path

    def listed(self) -> Iterator[tuple[str, int, float]]:
        """(key, bytes, time of change) of all."""
        root = self._root.rstrip("/") + "/"
        for path, info in self._fs.find(self._root, detail=True).items():
            changed = info.get("LastModified") or info.get("mtime") or info.get("created") or 0.0
            seconds = changed.timestamp() if hasattr(changed, "timestamp") else float(changed)
            yield path.removeprefix(root), int(info.get("size") or 0), seconds

    def _path(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{key}"


def open_blobs(url: str, data: Path) -> Blobs:
    """The blobs that the settings name: "" = files in ``data``.

    Raises:
        MonitorError: the URL is none, or its kind of bucket is not installed.
    """
    return BucketBlobs(url) if url else FileBlobs(data / "blobs")
