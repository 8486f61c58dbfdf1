"""Uploads with chunks to any instance: each chunk is a part in the bucket."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool

from paceline.monitor.blobs import PARTS, BlobsAway, trace_key
from paceline.monitor.refusal import Refusal
from paceline.monitor.store import sessions, upload_parts
from paceline.monitor.store import uploads as rows
from paceline.monitor.store.upload_parts import Part
from paceline.monitor.uploads import Uploads


class PartUploads(Uploads):
    """Begins, continues and ends uploads without data on this machine."""

    def offset(self, upload_id: str) -> int:
        """Number of stored bytes."""
        return sum(part.size for part in upload_parts.parts_of(self._engine, upload_id))

    async def put(
        self, row: Mapping[str, Any], offset: int, chunks: AsyncIterator[bytes], now: float
    ) -> int:
        """Append a chunk; returns the number of bytes in the bucket."""
        with self._exclusive(row["id"]):
            n_stored = await run_in_threadpool(self.offset, row["id"])
            if offset != n_stored:
                raise Refusal(409, f"the upload has {n_stored} bytes; go on there", offset=n_stored)
            with self._scratch() as path:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    end = await self._receive(descriptor, row, n_stored, chunks)
                except OSError as error:
                    reason = f"the chunk cannot be kept: {error.strerror}"
                    raise Refusal(507, reason, retry_s=30) from None
                finally:
                    os.close(descriptor)
                if end > n_stored:
                    await run_in_threadpool(self._keep, row["id"], path, n_stored, end - n_stored)
            await run_in_threadpool(rows.touch, self._engine, row["id"], now)
        return end

    def _keep(self, upload_id: str, path: Path, offset: int, size: int) -> None:
        # A unique key: two instances may get the same chunk, truncated differently.
        part = Part(offset, size, f"{PARTS}/{upload_id}/{offset:015d}-{secrets.token_hex(6)}")
        self._blobs.take(path, part.key)
        if not upload_parts.add(self._engine, upload_id, part):
            self._remove_blobs([part])
            n_stored = self.offset(upload_id)
            raise Refusal(409, f"the upload has {n_stored} bytes; go on there", offset=n_stored)

    def finish(self, row: Mapping[str, Any], now: float) -> int:
        """Check the content and make a session of it; returns its number."""
        with self._exclusive(row["id"]):
            try:
                return self._finish(row, now)
            except (Refusal, FileNotFoundError) as error:
                # Another instance may have finished it and removed the parts.
                session = sessions.find(self._engine, row["job_id"], row["sha256"])
                if session is not None:
                    return session[0]
                if isinstance(error, Refusal):
                    raise
                upload_parts.remove(self._engine, row["id"])
                raise Refusal(409, "parts were removed; send the content again", offset=0) from None

    def _finish(self, row: Mapping[str, Any], now: float) -> int:
        with self._scratch() as path:
            parts = upload_parts.parts_of(self._engine, row["id"])
            with path.open("wb") as file:
                for part in parts:
                    with self._blobs.open(part.key) as content:
                        shutil.copyfileobj(content, file, 1 << 20)
            try:
                self._check(row, path)
            except Refusal:
                if not path.exists():  # the content differs, so the upload begins again
                    upload_parts.remove(self._engine, row["id"])
                    self._remove_blobs(parts)
                raise
            self._blobs.take(path, trace_key(row["sha256"]))
            number = sessions.enqueue(self._engine, row["job_id"], row, now)
            self._remove_blobs(parts)
            return number

    def abandon(self, upload_id: str) -> None:
        """Remove an upload with its bytes."""
        with self._exclusive(upload_id):
            parts = upload_parts.parts_of(self._engine, upload_id)
            rows.remove(self._engine, upload_id)
            self._remove_blobs(parts)

    def remove_strays(self) -> int:
        """Remove leftovers of the last run on this machine."""
        strays = list(self.folder.iterdir())
        for path in strays:
            path.unlink(missing_ok=True)
        return len(strays)

    def _remove_blobs(self, parts: list[Part]) -> None:
        with suppress(BlobsAway):  # `paceline admin gc` removes unreferenced blobs
            for part in parts:
                self._blobs.delete(part.key)

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        path = self.folder / secrets.token_hex(8)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)
