"""rocprofv3's JSON as a stream of records: only one of them is in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.sources.json_stream import JsonStream, list_decoder

TOP = "rocprofiler-sdk-tool"
_RECORDS = (f"{TOP}.buffer_records", f"{TOP}.callback_records")
#: Objects whose members come one by one; lists in records come item by item.
_OPENED = (TOP, *_RECORDS)
#: Between two records as the tool writes them: each is a C++ struct, its size first.
_BETWEEN = '},{"size":'


class Records(JsonStream):
    """The values of a file, each as an object of one key: its place, with dots between keys.

    ``rocprofiler-sdk-tool.buffer_records.kernel_dispatch`` comes once for each dispatch.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, TOP)

    def _object(self) -> Iterator[list[Any]]:
        for value in self._members(""):
            yield [value]

    def _members(self, place: str) -> Iterator[dict[str, Any]]:
        self._at += 1
        while self._peek() != "}":
            key = self._value()
            if not isinstance(key, str):
                raise self._error("a key should be here")
            self._expect(":")
            yield from self._inside(f"{place}.{key}" if place else key)
            if self._peek() != "}":
                self._expect(",")
        self._at += 1

    def _inside(self, place: str) -> Iterator[dict[str, Any]]:
        sign = self._peek()
        if sign == "{" and place in _OPENED:
            yield from self._members(place)
        elif sign == "[" and (place == TOP or place.rpartition(".")[0] in _RECORDS):
            yield from self._items(place)
        else:
            yield {place: self._value()}

    def _items(self, place: str) -> Iterator[dict[str, Any]]:
        self._at += 1
        while self._peek() != "]":
            if self._peek() == "[":
                raise self._error("an object, {...}, should be here")
            if place != TOP:
                for value in self._records():
                    yield {place: value}
            yield from self._inside(place)
            if self._peek() != "]":
                self._expect(",")
        self._at += 1

    def _records(self) -> list[dict[str, Any]]:
        """The records that are in memory but the last, in one go; none where that cannot be."""
        end = self._text.rfind(_BETWEEN, self._at)
        if end < 0 or self._n_dropped + self._at < self._one_by_one_until:
            return []
        try:
            values: list[dict[str, Any]] = list_decoder()(f"[{self._text[self._at : end]}}}]")
        except (ValueError, RecursionError):
            # The list ends in between: to try again at each of its records would be slow.
            self._one_by_one_until = self._n_dropped + end
            return []
        self._forget(end + 2)  # behind the comma, in front of the last record
        return values
