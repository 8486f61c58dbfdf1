"""rocprofv3's JSON as a stream of records: only a part of the file is in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.sources.json_stream import JsonStream, list_decoder

TOP = "rocprofiler-sdk-tool"
_RECORDS = (f"{TOP}.buffer_records", f"{TOP}.callback_records")
#: Objects whose members are yielded one by one. Lists in ``_RECORDS`` are yielded item by item.
_OPENED = (TOP, *_RECORDS)
#: Text between two records as the tool writes them: each is a C++ struct with its size first.
_BETWEEN = '},{"size":'


class Records(JsonStream):
    """The values of a file, each as an object with one key: its place, with dots between keys.

    Each dispatch has the key ``rocprofiler-sdk-tool.buffer_records.kernel_dispatch``.
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
        """All records in memory but the last, parsed together; none if that is not possible."""
        end = self._text.rfind(_BETWEEN, self._at)
        if end < 0 or self._n_dropped + self._at < self._one_by_one_until:
            return []
        try:
            values: list[dict[str, Any]] = list_decoder()(f"[{self._text[self._at : end]}}}]")
        except (ValueError, RecursionError):
            # The list ends in between. To try again at each record takes quadratic time.
            self._one_by_one_until = self._n_dropped + end
            return []
        self._forget(end + 2)  # to the start of the last record
        return values
