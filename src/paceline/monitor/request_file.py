"""A file of requests, one JSON object per line, that only grows."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import threading
from pathlib import Path

from paceline.errors import OutputError
from paceline.files import make_folder, sync

#: Bytes per read from the end, to find the last line.
_BLOCK_BYTES = 1 << 16


class RequestFile:
    """A file of lines that are on disk when :meth:`append` returns; for one writer at a time.

    An existing file of requests is continued. An incomplete last line was never acknowledged, and
    its sender repeats it, so it is removed.

    Attributes:
        path: the file.
        torn_bytes: removed bytes of an incomplete line.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file and its folder.

        Raises:
            OutputError: the file cannot be written, has other content, or another process writes
                it.
        """
        self.path, self.torn_bytes = path, 0
        self._lock = threading.Lock()
        make_folder(path.parent)
        try:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            self._file = os.open(path, flags, 0o644)
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._continue()
        except BlockingIOError:
            os.close(self._file)
            raise OutputError(f"{path} is in use by another receiver; stop that one") from None
        except OSError as error:
            os.close(self._file)
            raise OutputError(f"{path} cannot be written: {error.strerror}") from None
        except OutputError:
            os.close(self._file)
            raise

    def append(self, line: bytes) -> None:
        """Add a line atomically; it is on disk on return.

        Raises:
            OutputError: the line cannot be written (no space, for example), or the file is closed.
        """
        with self._lock:
            if self._file < 0:
                raise OutputError(f"{self.path} is closed")
            before = os.fstat(self._file).st_size
            try:
                remaining = memoryview(line + b"\n")
                while remaining:
                    remaining = remaining[os.write(self._file, remaining) :]
                os.fsync(self._file)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, before)
                raise OutputError(f"{self.path} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Close the file after the current line."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def _continue(self) -> None:
        """Check the file's content, and make it end with a complete line."""
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode):
            raise OutputError(f"{self.path} is no regular file; choose another folder")
        size = status.st_size
        if not size:
            sync(self.path.parent)  # the file's name
            return
        first = os.pread(self._file, _BLOCK_BYTES, 0).partition(b"\n")[0]
        if not first.startswith(b"{") or b'"resourceSpans"' not in first:
            raise OutputError(
                f"{self.path} exists, but is no file of OTLP spans, one request per line; "
                "choose another folder"
            )
        tail = self._tail(size)
        if not tail:
            return
        if _is_object(tail):  # another program's file, without a last newline
            os.write(self._file, b"\n")
            return
        self.torn_bytes = len(tail)
        os.ftruncate(self._file, size - len(tail))

    def _tail(self, size: int) -> bytes:
        """The text after the last newline."""
        tail = b""
        while b"\n" not in tail and len(tail) < size:
            start = max(0, size - len(tail) - _BLOCK_BYTES)
            tail = os.pread(self._file, size - len(tail) - start, start) + tail
        return tail.rpartition(b"\n")[2]


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
