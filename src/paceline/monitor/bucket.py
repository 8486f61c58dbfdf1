"""Blobs in a bucket without waiting for it: new blobs are kept on disk until moved.

A hanging bucket must not block threads of the web. Calls have a time limit and separate threads.
After a timeout, calls are refused for a while.
"""

from __future__ import annotations

import io
import json
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from paceline.errors import MonitorError
from paceline.monitor.blobs import Blobs, BlobsAway, FileBlobs
from paceline.monitor.log import log, without_secrets

T = TypeVar("T")

#: Key of the name of the store that owns this bucket.
MARK = "paceline-store.json"
#: Time limits in seconds: for a call, and for moving a trace or listing all blobs.
LIMIT_S, LONG_S = 10.0, 3600.0
#: Most concurrent calls, separately for short and long ones.
CALLS = 8
#: Seconds for which calls are refused after a timeout.
PAUSE_S = 10.0
#: Shortest and longest pause between attempts to move waiting blobs, seconds.
_FIRST_TRY_S, _LAST_TRY_S = 1.0, 60.0
#: Timeouts of s3fs, so that abandoned threads end, too.
_S3 = {"connect_timeout": 5, "read_timeout": 60, "retries": {"max_attempts": 1}}


class Gate:
    """Runs calls of a bucket in separate threads, a few at a time, each with a time limit.

    Args:
        limit_s: seconds for a call.
        long_s: seconds for a call that moves a trace or lists all blobs.
    """

    def __init__(self, limit_s: float = LIMIT_S, long_s: float = LONG_S) -> None:
        self._limits_s = limit_s, long_s
        self._slots = threading.Semaphore(CALLS), threading.Semaphore(CALLS)
        self._closed_until = 0.0
        #: Reason why the last call failed; "" if it succeeded.
        self.problem = ""

    def call(self, work: Callable[[], T], *, is_long: bool = False) -> T:
        """Result of ``work``.

        Raises:
            BlobsAway: it failed or took too long, or calls are refused at present.
            FileNotFoundError: raised by ``work``.
        """
        slots, limit_s = self._slots[is_long], self._limits_s[is_long]
        if not is_long and time.monotonic() < self._closed_until:
            raise BlobsAway(self.problem)
        if not slots.acquire(blocking=False):
            raise BlobsAway(self.problem or f"{CALLS} calls of the bucket are in progress")
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            finally:
                slots.release()

        threading.Thread(target=run, name="paceline-bucket", daemon=True).start()
        try:
            result = future.result(limit_s)
        except FileNotFoundError:
            self.problem = ""
            raise
        except TimeoutError:
            self._closed_until = time.monotonic() + PAUSE_S
            self.problem = f"the bucket does not answer within {limit_s:g} s"
            raise BlobsAway(self.problem) from None
        except Exception as error:
            reason = without_secrets(" ".join(str(error).split()))[:200]
            self.problem = f"{type(error).__name__}: {reason}"
            raise BlobsAway(self.problem) from None
        self.problem = ""
        return result


class BucketBlobs:
    """Blobs at an fsspec URL such as s3://bucket/paceline.

    Args:
        url: URL of the bucket.
        gate: runs its calls.
    """

    def __init__(self, url: str, gate: Gate) -> None:
        self._gate = gate
        try:
            import fsspec

            options: dict[str, Any] = {"use_listings_cache": False}  # others write, too
            if url.startswith(("s3://", "s3a://")):
                options["config_kwargs"] = _S3
            self._fs, self._root = fsspec.core.url_to_fs(url, **options)
        except (ImportError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise MonitorError(f"blobs cannot be kept at {url}: {reason}") from None

    def take(self, path: Path, key: str) -> None:
        """Copy a file into the bucket and remove it here; buckets show only complete objects."""

        def put() -> None:
            self._fs.makedirs(self._path(key).rpartition("/")[0], exist_ok=True)
            self._fs.put_file(str(path), self._path(key))

        self._gate.call(put, is_long=True)
        path.unlink(missing_ok=True)

    def exists(self, key: str) -> bool:
        """Whether there is one."""
        return bool(self._gate.call(lambda: self._fs.exists(self._path(key))))

    def open(self, key: str) -> BinaryIO:
        """The blob's content."""
        raw: BinaryIO = self._gate.call(lambda: self._fs.open(self._path(key), "rb"))
        return io.BufferedReader(_GatedFile(raw, self._gate), buffer_size=1 << 20)

    def size(self, key: str) -> int:
        """Bytes."""
        try:
            return int(self._gate.call(lambda: self._fs.size(self._path(key))) or 0)
        except FileNotFoundError:
            return 0

    def delete(self, key: str) -> None:
        """Remove it."""
        if self.exists(key):
            self._gate.call(lambda: self._fs.rm_file(self._path(key)))

    @contextmanager
    def local(self, key: str) -> Iterator[Path]:
        """A temporary copy for the duration of the context."""
        with tempfile.TemporaryDirectory(prefix="paceline-blob-") as folder:
            path = Path(folder) / key.rpartition("/")[2]
            self._gate.call(lambda: self._fs.get_file(self._path(key), str(path)), is_long=True)
            yield path

    def listed(self) -> Iterator[tuple[str, int, float]]:
        """(key, bytes, time of change) of all."""
        root = self._root.rstrip("/") + "/"
        listing = self._gate.call(lambda: self._fs.find(self._root, detail=True), is_long=True)
        for path, info in listing.items():
            changed = info.get("LastModified") or info.get("mtime") or info.get("created") or 0.0
            seconds = changed.timestamp() if hasattr(changed, "timestamp") else float(changed)
            key = path.removeprefix(root)
            if key != MARK:
                yield key, int(info.get("size") or 0), seconds

    def claim(self, store: str) -> None:
        """Write the store's name into an unowned bucket.

        Raises:
            MonitorError: the bucket belongs to another store.
            BlobsAway: the bucket does not answer.
        """
        path = self._path(MARK)
        try:
            text = self._gate.call(lambda: self._fs.cat_file(path))
        except FileNotFoundError:
            about = json.dumps({"schema": "paceline-store", "version": 1, "store": store})
            self._gate.call(lambda: self._fs.pipe_file(path, about.encode()))
            return
        try:
            owner = str(json.loads(text)["store"])
        except (ValueError, KeyError, TypeError):
            raise MonitorError(
                f"{path} cannot be read; if the bucket belongs to this store, remove the file"
            ) from None
        if owner != store:
            raise MonitorError(
                f"{self._root} belongs to another store ({owner[:8]}): their sessions would "
                "have the same names; give each store its own bucket or prefix"
            )

    def _path(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{key}"


class _GatedFile(io.RawIOBase):
    """An open object with a time limit for each read."""

    def __init__(self, raw: BinaryIO, gate: Gate) -> None:
        self._raw, self._gate = raw, gate

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes."""
        data = self._gate.call(lambda: self._raw.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the object."""
        if not self.closed:
            self._raw.close()
        super().close()


class SpooledBlobs:
    """Blobs that are stored on this disk at once and later moved to the bucket.

    Args:
        bucket: target of the blobs.
        folder: folder of waiting blobs.
        gate: gate of the bucket.
    """

    def __init__(self, bucket: BucketBlobs, folder: Path, gate: Gate) -> None:
        self._bucket, self._spool, self._gate = bucket, FileBlobs(folder), gate
        self._store = ""
        self._refused = ""
        self._stop, self._news = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._move_all, name="paceline-spool", daemon=True)

    @property
    def problem(self) -> str:
        """Why the bucket cannot be used; "" where it can."""
        return self._refused or self._gate.problem

    @property
    def waiting(self) -> tuple[int, int]:
        """(blobs, bytes) that wait to be moved."""
        sizes = [size for _, size, _ in self._spooled()]
        return len(sizes), sum(sizes)

    def claim(self, store: str) -> None:
        """Check that the bucket belongs to this store, as soon as it answers.

        Raises:
            MonitorError: it belongs to another store.
        """
        self._store = store
        try:
            self._bucket.claim(store)
            self._store = ""
        except BlobsAway as away:
            log(logging.ERROR, "bucket", error=str(away))

    def start(self) -> None:
        """Move waiting and new blobs."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; blobs that are not moved wait for the next start."""
        self._stop.set()
        self._news.set()

    def take(self, path: Path, key: str) -> None:
        """Move a file in; it is on this disk on return."""
        self._spool.take(path, key)
        self._news.set()

    def exists(self, key: str) -> bool:
        """Whether there is one."""
        return self._spool.exists(key) or self._usable().exists(key)

    def open(self, key: str) -> BinaryIO:
        """The blob's content."""
        try:
            return self._spool.open(key)
        except FileNotFoundError:
            return self._usable().open(key)

    def size(self, key: str) -> int:
        """Bytes."""
        return self._spool.size(key) or self._usable().size(key)

    def delete(self, key: str) -> None:
        """Remove it."""
        self._spool.delete(key)
        self._usable().delete(key)

    @contextmanager
    def local(self, key: str) -> Iterator[Path]:
        """A file with the content, for the duration of the context."""
        with tempfile.TemporaryDirectory(dir=self._spool.folder, prefix=".") as folder:
            path = Path(folder) / key.rpartition("/")[2]
            try:
                path.hardlink_to(self._spool.folder / key)  # it may be moved meanwhile
            except FileNotFoundError:
                with self._usable().local(key) as copy:
                    yield copy
            else:
                yield path

    def listed(self) -> Iterator[tuple[str, int, float]]:
        """(key, bytes, time of change) of all."""
        spooled = list(self._spooled())
        yield from spooled
        keys = {key for key, _, _ in spooled}
        yield from (row for row in self._usable().listed() if row[0] not in keys)

    def _usable(self) -> BucketBlobs:
        if self._refused:
            raise BlobsAway(self._refused)
        return self._bucket

    def _spooled(self) -> Iterator[tuple[str, int, float]]:
        """Waiting files, without incomplete or lent ones."""
        rows = self._spool.listed()
        return (row for row in rows if not any(part[0] == "." for part in row[0].split("/")))

    def _move_all(self) -> None:
        pause_s = _FIRST_TRY_S
        while not self._stop.is_set():
            self._news.clear()
            try:
                self._claim_late()
                for key, _, _ in sorted(self._spooled(), key=lambda row: row[2]):
                    if self._stop.is_set():
                        return
                    self._usable().take(self._spool.folder / key, key)
                    pause_s = _FIRST_TRY_S
                self._news.wait()
            except FileNotFoundError:  # deleted meanwhile
                continue
            except Exception as error:
                log(logging.ERROR, "bucket", error=str(error), waiting=self.waiting[0])
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, _LAST_TRY_S)

    def _claim_late(self) -> None:
        if self._store:
            try:
                self._bucket.claim(self._store)
            except MonitorError as error:
                self._refused = str(error)
                raise BlobsAway(self._refused) from None
            self._store = ""


class DirectBlobs(BucketBlobs):
    """Blobs in a bucket shared by several instances: accepted blobs exist only there.

    Args:
        url: URL of the bucket.
        gate: runs its calls.
    """

    def __init__(self, url: str, gate: Gate) -> None:
        super().__init__(url, gate)
        self._store = ""

    @property
    def problem(self) -> str:
        """Why the bucket cannot be used; "" where it can."""
        return self._gate.problem

    @property
    def waiting(self) -> tuple[int, int]:
        """Nothing waits here."""
        return 0, 0

    def claim(self, store: str) -> None:
        """Check that the bucket belongs to this store: now, or before a blob is accepted."""
        self._store = store
        try:
            super().claim(store)
            self._store = ""
        except BlobsAway as away:
            log(logging.ERROR, "bucket", error=str(away))

    def start(self) -> None:
        """Nothing waits here."""

    def stop(self) -> None:
        """Nothing waits here."""

    def take(self, path: Path, key: str) -> None:
        """Move a file in; it is in the bucket on return."""
        if self._store:
            self.claim(self._store)
            if self._store:
                raise BlobsAway(self.problem)
        super().take(path, key)


def open_blobs(url: str, data: Path) -> Blobs:
    """The blob store of the settings: "" = files in ``data``.

    Raises:
        MonitorError: the URL is invalid, or its kind of bucket is not installed.
    """
    if not url:
        return FileBlobs(data / "blobs")
    gate = Gate()
    return SpooledBlobs(BucketBlobs(url, gate), data / "outbox", gate)
