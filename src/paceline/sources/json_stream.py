"""Large JSON files of events as a stream: ``[{...}, ...]`` or ``{"traceEvents": [{...}, ...]}``.

Only a window of the file is in memory, plus one event; a file of gigabytes needs some MB. Both
forms are those of Chrome's trace event format. gzip is recognised by its first bytes.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from io import BufferedReader
from json.decoder import JSONDecodeError
from pathlib import Path
from typing import Any, cast

from paceline.errors import TraceError
from paceline.sources.event_shape import EventShape

#: First bytes of gzip.
_GZIP = b"\x1f\x8b"
#: Bytes read at a time; an event takes some hundred bytes. The events of one chunk stay in a core's
#: cache: with 1 MB, events are parsed at two thirds of the speed.
CHUNK_BYTES = 1 << 18

#: Largest event, or value beside the events; a file with a larger one is no event list.
MAX_VALUE_CHARS = 64 << 20

#: Longest line of a log; a file with a longer one is no log.
MAX_LINE_BYTES = 16 << 20

#: Text between two events as Kineto writes them. It marks where a batch of events may end.
_BETWEEN = "\n  },\n  {"

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@cache
def list_decoder() -> Callable[[str], Any]:
    """The parser of msgspec where that is installed (with the monitor), else Python's own."""
    try:
        from msgspec.json import decode
    except ImportError:
        return json.loads
    return decode


def open_bytes(path: Path) -> BufferedReader | gzip.GzipFile:
    """The content of a file, unpacked where it is gzip.

    Raises:
        TraceError: it cannot be opened.
    """
    if path.is_dir():
        raise TraceError(f"{path} is a folder; give the files in it")
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
        return gzip.open(path, "rb") if packed else path.open("rb")
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None


def read_chunk(
    file: BufferedReader | gzip.GzipFile, path: Path, n_bytes: int = CHUNK_BYTES
) -> bytes:
    """The next bytes of a file that :func:`open_bytes` opened; empty at the end.

    Raises:
        TraceError: it cannot be read, or the gzip stream is broken or cut off.
    """
    try:
        # Not read(): in a file that is cut off it would fail before it returns the data in front.
        return file.read1(n_bytes)
    except EOFError:
        raise TraceError(
            f"{path} is cut off: its gzip stream has no end; copy the file again"
        ) from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path} is a broken gzip file ({error}); copy it again") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from None


def read_whole(path: Path, max_bytes: int, what: str) -> bytes:
    """The whole content of a file, unpacked where it is gzip.

    Args:
        path: the file.
        max_bytes: its largest size, unpacked.
        what: words for such a file, such as "one status".

    Raises:
        TraceError: it cannot be read, is cut off, or is too large.
    """
    data = bytearray()
    with open_bytes(path) as file:
        while chunk := read_chunk(file, path):
            data += chunk
            if len(data) > max_bytes:
                raise TraceError(f"{path} has more than {max_bytes:,} bytes; is it {what}?")
    return bytes(data)


class JsonStream:
    """The events of a file, one at a time.

    It can be iterated once.

    Attributes:
        header: key -> value beside the events; empty for a bare list. At the first event it has the
            keys in front of the events; after the last event it has all.
        bare: whether the file is a bare list; known once the first event is asked for.
    """

    def __init__(
        self, path: Path, key: str = "traceEvents", shape: EventShape | None = None
    ) -> None:
        """Open nothing yet: iteration opens the file.

        Args:
            path: the file.
            key: key of the list, if the file is an object.
            shape: shape of the resulting events; None makes dicts of all their values.
        """
        self.path, self.key = path, key
        self._shape = shape
        self.header: dict[str, Any] = {}
        self.bare = False
        self._text, self._at = "", 0
        self._n_dropped, self._ended = 0, False
        self._one_by_one_until = 0  # position in the file, in characters

    def __iter__(self) -> Iterator[Any]:
        """The events.

        Raises:
            TraceError: as :meth:`batches`.
        """
        for batch in self.batches():
            yield from batch

    def batches(self) -> Iterator[list[Any]]:
        """The events, in batches that were parsed together.

        Raises:
            TraceError: the file is unreadable, cut off, no JSON, or has no list of objects.
        """
        with open_bytes(self.path) as file:
            self._file = file
            self._decode = _decoder()
            first = self._peek()
            if first == "[":
                self.bare = True
                yield from self._list()
            elif first == "{":
                yield from self._object()
            else:
                raise self._error("a list of events, or an object that has one, should be here")
            if self._peek():
                raise self._error("something follows the end")

    def _object(self) -> Iterator[list[Any]]:
        """The events in an object; all its other values go into the header."""
        self._at += 1
        has_list = False
        while self._peek() != "}":
            key = self._value()
            if not isinstance(key, str):
                raise self._error("a key should be here")
            self._expect(":")
            if key == self.key and self._peek() == "[":
                if has_list:
                    raise self._error(f"a second list {self.key} is here")
                has_list = True
                yield from self._list()
            else:
                self.header[key] = self._value()
            if self._peek() != "}":
                self._expect(",")
        self._at += 1
        if not has_list:
            raise TraceError(f"{self.path} has no list {self.key}; is it a trace?")

    def _list(self) -> Iterator[list[Any]]:
        self._at += 1
        while self._peek() != "]":
            if batch := self._batch():
                yield batch
            value = self._value()
            if not isinstance(value, dict):
                raise self._error("an event, {...}, should be here")
            yield [value if self._shape is None else self._shape.of(value)]
            if self._peek() != "]":
                self._expect(",")
        self._at += 1

    def _batch(self) -> list[Any]:
        """All events in memory but the last, parsed together; none if that is not possible.

        Events of another layout, or damaged ones, are then parsed one by one.
        """
        if self._n_dropped + self._at < self._one_by_one_until:
            return []
        end = self._text.rfind(_BETWEEN, self._at)
        # If parsing fails, do not try again at each of these events: that takes quadratic time.
        self._one_by_one_until = self._n_dropped + (len(self._text) if end < 0 else end)
        if end < 0:
            return []
        values = self._decoded(f"[{self._text[self._at : end]}}}]")
        if values:
            self._forget(end + len(_BETWEEN) - 1)  # to the start of the last event
        return values

    def _decoded(self, text: str) -> list[Any]:
        """The events of a list, parsed together; none if that is not possible."""
        shape = self._shape
        if shape is not None and shape.decode is not None:
            with suppress(ValueError, RecursionError):
                return shape.decode(text)
        with suppress(ValueError, RecursionError):
            values: list[Any] = list_decoder()(text)
            if set(map(type, values)) == {dict}:
                return values if shape is None else [shape.of(value) for value in values]
        return []

    def _expect(self, sign: str) -> None:
        if self._peek() != sign:
            raise self._error(f"{sign!r} should be here")
        self._at += 1

    def _peek(self) -> str:
        """The next character that is no white space; empty at the end."""
        while True:
            self._at = cast("re.Match[str]", _SPACE.match(self._text, self._at)).end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read_more():
                return ""

    def _value(self) -> Any:
        """The JSON value that comes next."""
        self._peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                # The number 12 may be the head of 123 or 12e+3.
                if len(self._text) - end > 2 or not self._read_more():
                    self._at = end
                    return value
            except JSONDecodeError as error:
                if not self._read_more():
                    raise self._error(error.msg, error.pos) from None
            except (ValueError, RecursionError) as error:
                raise self._error(str(error)) from None

    def _forget(self, n: int) -> None:
        """Drop the first ``n`` characters, and go on behind them."""
        self._n_dropped += n
        self._text, self._at = self._text[n:], 0

    def _read_more(self) -> bool:
        """Read on, and forget used text; False at the end of the file."""
        if self._ended:
            return False
        self._forget(self._at)
        if len(self._text) > MAX_VALUE_CHARS:
            raise self._error("a value is not closed, or is too large for an event")
        # Doubling the text: a long value is parsed again only a few times. A read of a gzip stream
        # may give less than was asked for.
        data = read_chunk(self._file, self.path, max(CHUNK_BYTES, len(self._text)))
        self._ended = not data
        parts, n_bytes = [data], len(data)
        while n_bytes < len(self._text) and parts[-1]:
            parts.append(read_chunk(self._file, self.path, len(self._text) - n_bytes))
            n_bytes += len(parts[-1])
        data = b"".join(parts)
        self._text += self._decode(data, not data)
        return True

    def _error(self, reason: str, at: int | None = None) -> TraceError:
        at = self._at if at is None else at
        place = self._n_dropped + at
        if self._ended and (at >= len(self._text) or "Unterminated" in reason):
            reason = f"it is cut off ({reason})"
        return TraceError(
            f"{self.path}, line {_line_of(self.path, place)} (character {place:,}): {reason}; "
            "the file is damaged or no JSON trace: copy or record it again"
        )


def _decoder() -> Callable[[bytes, bool], str]:
    return codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode


def _line_of(path: Path, n_chars: int) -> int:
    """The line of a character, for errors; a count while reading would take a third of the time.

    Raises:
        TraceError: as :func:`read_chunk`.
    """
    decode, line = _decoder(), 1
    with open_bytes(path) as file:
        while n_chars > 0 and (data := read_chunk(file, path)):
            text = decode(data, False)
            line += text.count("\n", 0, n_chars)
            n_chars -= len(text)
    return line


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file, unpacked where it is gzip, without a byte order mark.

    Raises:
        TraceError: it is unreadable or cut off, or a line is too long for a log.
    """
    for n, (line, _) in enumerate(_byte_lines(path)):
        yield line.decode("utf-8" if n else "utf-8-sig", errors="replace")


def whole_lines(path: Path, notes: list[str]) -> Iterator[str]:
    """The lines of a log, as :func:`lines`, without a last one that has no end.

    The states of a progress bar end with a carriage return; only the last state is left out.

    Args:
        path: the log.
        notes: gets a note, at the end of the log, if a line was left out.
    """
    for n, (line, has_end) in enumerate(_byte_lines(path)):
        kept = line if has_end else line[: line.rfind(b"\r") + 1]
        if kept or has_end:
            yield kept.decode("utf-8" if n else "utf-8-sig", errors="replace")
        if len(kept) < len(line):
            notes.append(ends_within_line(path, "that line is left out"))


def ends_within_line(path: Path, consequence: str) -> str:
    """The message about a text whose last line has no end.

    A copy that was cut off may end so, perhaps within a number ("9" of "901.0") or a name, and
    still look whole.

    Args:
        path: the text.
        consequence: what the reader or the user does about it.
    """
    return f"{path} ends within a line, so it may be cut off: {consequence}"


def end_notes(path: Path) -> tuple[str, ...]:
    """A note if a table of text ends within a line; none if it is packed."""
    with path.open("rb") as file:
        if file.read(2) == _GZIP:
            return ()
        if not file.seek(0, 2):
            return ()
        file.seek(-1, 2)
        has_end = file.read(1) in b"\r\n"
    return () if has_end else (ends_within_line(path, "its last number may be wrong"),)


def _byte_lines(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Each line, and whether it has an end."""
    partial = b""
    with open_bytes(path) as file:
        while data := read_chunk(file, path):
            *complete, partial = (partial + data).split(b"\n")
            if len(partial) > MAX_LINE_BYTES:
                raise TraceError(f"{path} has a line of more than {MAX_LINE_BYTES:,} bytes")
            for line in complete:
                yield line, True
    if partial:
        yield partial, False


def head(path: Path, n_bytes: int = 1 << 16) -> str:
    """The beginning of a file as text, unpacked; empty where it cannot be read."""
    try:
        with open_bytes(path) as file:
            return read_chunk(file, path, n_bytes).decode("utf-8-sig", errors="replace")
    except TraceError:
        return ""


def first_events(path: Path, n: int) -> tuple[list[dict[str, Any]], dict[str, Any]] | None:
    """The first ``n`` events and the header in front of them; None if it is no event list."""
    stream = JsonStream(path)
    events: list[dict[str, Any]] = []
    try:
        for event in stream:
            events.append(event)
            if len(events) == n:
                break
    except TraceError:
        # The text in front of the damage says which format the file has; the reader will say where
        # it is damaged.
        return (events, stream.header) if events else None
    return events, stream.header
