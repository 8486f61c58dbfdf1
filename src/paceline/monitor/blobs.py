"""Blobs: traces by their content, results by their session, in files or in a bucket.

Keys are made of a SHA-256 or a session's number; no client's text is part of a key.
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
#: Prefix of the keys of upload parts.
PARTS = "uploads"


def trace_key(sha256: str) -> str:
    """Key of a trace."""
    return f"traces/{sha256[:2]}/{sha256}"


def result_key(session_id: int, name: str) -> str:
    """Key of one of :data:`RESULTS`."""
    return f"results/{session_id % 1000:03d}/{session_id}/{name}"


class Blobs(Protocol):
    """Interface of a blob store; methods raise :class:`BlobsAway` if the bucket is unreachable."""

    @property
    def problem(self) -> str:
        """Reason why a bucket cannot be used; "" if it can."""

    @property
    def waiting(self) -> tuple[int, int]:
        """(blobs, bytes) that wait for a bucket."""

    def claim(self, store: str) -> None:
        """Check that a bucket belongs to this store alone; otherwise MonitorError."""

    def start(self) -> None:
        """Start moving waiting blobs."""

    def stop(self) -> None:
        """Stop moving; waiting blobs are moved after the next start."""

    def take(self, path: Path, key: str) -> None:
        """Move a file in, atomically; it is on disk or in the bucket on return."""

    def exists(self, key: str) -> bool:
        """Whether the blob exists."""

    def open(self, key: str) -> BinaryIO:
        """The blob's content; FileNotFoundError if it does not exist."""

    def size(self, key: str) -> int:
        """Size in bytes; 0 if it does not exist."""

    def delete(self, key: str) -> None:
        """Remove the blob if it exists."""

    def local(self, key: str) -> Any:
        """A context with the path of a file with the content."""

    def listed(self) -> Iterator[tuple[str, int, float]]:
        """(key, bytes, time of change) of all blobs."""


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
        """Nothing to check: the data folder has the store's name itself."""

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
        """Make the folders of a file; their names are on disk on return."""
        for folder in reversed(target.relative_to(self.folder).parents[:-1]):
            if not (self.folder / folder).is_dir():
                (self.folder / folder).mkdir(exist_ok=True)
                sync((self.folder / folder).parent)

    def exists(self, key: str) -> bool:
        """Whether the blob exists."""
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
            with suppress(OSError):  # not empty, or missing
                path.parent.rmdir()

    @contextmanager
    def local(self, key: str) -> Iterator[Path]:
        """The file itself."""
        yield self.folder / key

    def listed(self) -> Iterator[tuple[str, int, float]]:
        """(key, bytes, time of change) of all blobs."""
        for path in self.folder.rglob("*"):
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue
            if path.is_file():
                yield path.relative_to(self.folder).as_posix(), stat.st_size, stat.st_mtime


class BlobsAway(Refusal):
    """The bucket does not answer, or belongs to another store."""

    def __init__(self, reason: str) -> None:
        super().__init__(503, f"traces and results are unavailable: {reason}", retry_s=10)
