"""Results of sessions out of the blobs; what pages make of them is kept for a while."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from paceline.monitor.blobs import RESULT, RESULT_SCHEMA, Blobs, result_key

T = TypeVar("T")


def read_result(blobs: Blobs, session_id: int) -> dict[str, Any] | None:
    """A session's ``result.json``; None where there is none that this version reads.

    It was removed by age, was not written, or comes from a later version.
    """
    try:
        with blobs.open(result_key(session_id, RESULT)) as file:
            result = json.load(file)
    except (FileNotFoundError, ValueError):  # ValueError: not JSON, so nobody can read it
        return None
    usable = isinstance(result, dict) and result.get("schema") == RESULT_SCHEMA
    return result if usable else None


class Kept(Generic[T]):
    """The latest results of a function that is dear; safe for threads.

    Args:
        most: how many are kept; the one not asked for longest goes first.
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._values: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is kept under ``key``, made now if need be (perhaps twice, by two threads)."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value
