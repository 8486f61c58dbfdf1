"""Resumable uploads of traces: chunks are appended to a file, and acknowledged once on disk."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool

from paceline.monitor.blobs import Blobs, trace_key
from paceline.monitor.config import MIB, Config
from paceline.monitor.refusal import Refusal
from paceline.monitor.store import sessions
from paceline.monitor.store import uploads as rows

#: Most concurrent uploads, and the free disk space that they must leave: bytes, or a share.
MAX_UPLOADS, SPARE_BYTES, SPARE_SHARE = 1000, 256 << 20, 0.05
#: Time without data after which an upload may be removed to make room.
EMPTY_S = 600.0

#: Formats by their first bytes; others are refused at once.
_FORMATS = (b"PAR1", b'{"resourceSpans"')

_BLOCK = 1 << 20


class Uploads:
    """Begins, continues and ends uploads.

    Methods raise :class:`Refusal` for a client's error, or if it has to wait.
    """

    def __init__(self, config: Config, engine: Engine, blobs: Blobs) -> None:
        self._config, self._engine, self._blobs = config, engine, blobs
        self.folder = config.data / "uploads"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._beginning = threading.Lock()

    def begin(
        self, job_id: int, project: str, trace: Mapping[str, Any], now: float
    ) -> dict[str, Any]:
        """{"session"} if the job already has that trace, else {"upload", "offset"}.

        A failed session is analysed again, with its trace if that is still stored.
        """
        session = sessions.find(self._engine, job_id, trace["sha256"])
        if session is not None:
            number, status = session
            has_failed = status == "failed"
            if not has_failed or self._blobs.exists(trace_key(trace["sha256"])):
                if has_failed:
                    sessions.requeue(self._engine, number)
                return {"session": number}
        with self._beginning:
            row = rows.under_way(self._engine, job_id, trace["sha256"])
            if row is None:
                self._check_room(trace["size_bytes"], project, now)
                row = rows.begin(self._engine, secrets.token_hex(16), job_id, trace, now)
        if row["size_bytes"] != trace["size_bytes"]:
            raise Refusal(409, f"an upload of that content with {row['size_bytes']} bytes is open")
        return {"upload": row["id"], "offset": self.offset(row["id"])}

    def offset(self, upload_id: str) -> int:
        """Bytes received."""
        try:
            return self._path(upload_id).stat().st_size
        except FileNotFoundError:
            return 0

    async def put(
        self, row: Mapping[str, Any], offset: int, chunks: AsyncIterator[bytes], now: float
    ) -> int:
        """Append a chunk; returns the bytes now on disk."""
        with self._exclusive(row["id"]):
            n_stored = self.offset(row["id"])
            if offset != n_stored:
                raise Refusal(409, f"the upload has {n_stored} bytes; go on there", offset=n_stored)
            descriptor = os.open(
                self._path(row["id"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
            try:
                n_stored = await self._receive(descriptor, row, n_stored, chunks)
                await run_in_threadpool(os.fsync, descriptor)
            except OSError as error:
                raise Refusal(
                    507, f"the chunk cannot be kept: {error.strerror}", retry_s=30
                ) from None
            finally:
                os.close(descriptor)
            await run_in_threadpool(rows.touch, self._engine, row["id"], now)
        return n_stored

    async def _receive(
        self, descriptor: int, row: Mapping[str, Any], n_stored: int, chunks: AsyncIterator[bytes]
    ) -> int:
        waiting = bytearray()
        async for chunk in chunks:
            waiting += chunk
            if n_stored + len(waiting) > row["size_bytes"]:
                raise Refusal(413, f"more than the {row['size_bytes']} bytes that were declared")
            if len(waiting) >= _BLOCK:
                n_stored += await run_in_threadpool(_write, descriptor, bytes(waiting))
                waiting.clear()
        return n_stored + await run_in_threadpool(_write, descriptor, bytes(waiting))

    def finish(self, row: Mapping[str, Any], now: float) -> int:
        """Check the content and create a session; returns its number."""
        with self._exclusive(row["id"]):
            path = self._path(row["id"])
            # Knowing the SHA-256 does not suffice for the session: the bytes must have been sent.
            self._check(row, path)
            twin = path.with_name(f"{path.name}.twin")
            twin.unlink(missing_ok=True)
            os.link(path, twin)
            self._blobs.take(twin, trace_key(row["sha256"]))
            twin.unlink(missing_ok=True)  # it stays if the blob is the same file
            number = sessions.enqueue(self._engine, row["job_id"], row, now)
            path.unlink()  # last, so that after a crash the upload can be finished again
            return number

    def adopt(self, job_id: int, path: Path, file_name: str, meta: Any, now: float) -> int:
        """Create a session of a local file, which is moved; returns the session's number."""
        size, sha256 = _digest(path)
        self._blobs.take(path, trace_key(sha256))
        trace = {"sha256": sha256, "size_bytes": size, "file_name": file_name, "meta": meta}
        return sessions.enqueue(self._engine, job_id, trace, now)

    def abandon(self, upload_id: str) -> None:
        """Remove an upload and its bytes."""
        with self._exclusive(upload_id):
            rows.remove(self._engine, upload_id)
            self._path(upload_id).unlink(missing_ok=True)

    def remove_strays(self) -> int:
        """Remove files of removed uploads; returns their number."""
        numbers = rows.ids(self._engine)
        strays = [path for path in self.folder.iterdir() if path.name not in numbers]
        for path in strays:
            path.unlink(missing_ok=True)
        return len(strays)

    def _check_room(self, size: int, project: str, now: float) -> None:
        """Refuse an upload without room beside the others; one project may not take all room."""
        if size > self._config.max_upload_mib * MIB:
            raise Refusal(413, f"a trace may have at most {self._config.max_upload_mib} MiB")
        under_way, to_come, own_to_come, n_own = 0, size, size, 0
        for number, owner, declared, touched in rows.declared_sizes(self._engine):
            received = self.offset(number)
            if not received and touched < now - EMPTY_S:
                with suppress(Refusal):  # its first bytes are arriving
                    self.abandon(number)
                continue
            under_way += 1
            to_come += declared - received
            if owner == project:
                n_own += 1
                own_to_come += declared - received
        queued = sessions.waiting(self._engine)
        if (
            under_way >= MAX_UPLOADS
            or n_own >= MAX_UPLOADS // 2
            or queued >= self._config.analysis_queue
        ):
            raise Refusal(
                429,
                f"{under_way} uploads and {queued} traces are waiting; try again later",
                retry_s=15,
            )
        disk = shutil.disk_usage(self.folder)
        room = disk.free - min(SPARE_BYTES, SPARE_SHARE * disk.total)
        if to_come > room or (n_own and own_to_come > room / 2):
            raise Refusal(507, "the disk is too full for this trace; try again later", retry_s=60)

    def _check(self, row: Mapping[str, Any], path: Path) -> None:
        """Raise unless the file matches its declaration; a wrong one restarts."""
        here = self.offset(row["id"])
        if here < row["size_bytes"]:
            raise Refusal(409, f"{here} of {row['size_bytes']} bytes are here", offset=here)
        size, sha256 = _digest(path)
        if (size, sha256) != (row["size_bytes"], row["sha256"]):
            path.unlink(missing_ok=True)
            raise Refusal(409, "the content does not have that SHA-256; send it again", offset=0)
        with path.open("rb") as file:
            start = file.read(64)
        if not start.startswith(_FORMATS):
            path.unlink(missing_ok=True)
            rows.remove(self._engine, row["id"])
            raise Refusal(415, "a trace is a parquet file; convert it with paceline push or import")

    @contextmanager
    def _exclusive(self, upload_id: str) -> Any:
        """Allow one request at a time per upload."""
        with self._lock:
            if upload_id in self._busy:
                raise Refusal(409, "another request works on this upload", retry_s=1)
            self._busy.add(upload_id)
        try:
            yield
        finally:
            with self._lock:
                self._busy.discard(upload_id)

    def _path(self, upload_id: str) -> Path:
        """The file of an upload; the store has confirmed its id."""
        return self.folder / upload_id


def _write(descriptor: int, data: bytes) -> int:
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]
    return len(data)


def _digest(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()
