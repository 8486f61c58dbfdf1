"""Large things: traces by their content, results by their session; files here or in a bucket.

A key is made here, of a SHA-256 or a session's number; nothing that a client sends is part of one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from paceline.files import sync
from paceline.monitor.refusal import Refusal

RESULT, REPORT, PERFETTO = "result.json", "report.html", "ideal.json.gz"
RESULTS = (RESULT, REPORT, PERFETTO)
#: Keys of parts of uploads begin with it.
PARTS = "uploads"


def trace_key(sha256: str) -> str:
    """Where a trace lies."""
    return f"traces/{sha256[:2]}/{sha256}"


def result_key(session_id: int, name: str) -> str:
    """Where one of :data:`RESULTS` lies."""
    return f"results/{session_id % 1000:03d}/{session_id}/{name}"


class Blobs(Protocol):
    """A place for large things; its methods raise :class:`BlobsAway` where a bucket is away."""

    @property
    def problem(self) -> str:
        """Why a bucket cannot be used; "" where it can."""

    @property
    def waiting(self) -> tuple[int, int]:
        """(blobs, bytes) that wait here for a bucket."""

    def claim(self, store: str) -> None:
        """See that a bucket is this store's alone; MonitorError where it is not."""

    def start(self) -> None:
        """Begin to move what waits."""

    def stop(self) -> None:
        """End that; what waits is moved after the next start."""

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

    @property
    def problem(self) -> str:
        """None: there is no bucket."""
        return ""

    @property
    def waiting(self) -> tuple[int, int]:
        """None: there is no bucket."""
        return 0, 0

    def claim(self, store: str) -> None:
        """They lie in the data folder, which has the store's name itself."""

    def start(self) -> None:
        """Nothing waits."""

    def stop(self) -> None:
        """Nothing waits."""

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


class BlobsAway(Refusal):
    """The bucket does not answer, or is another store's."""

    def __init__(self, reason: str) -> None:
        super().__init__(503, f"traces and results are away: {reason}", retry_s=10)
