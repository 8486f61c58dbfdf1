"""Batches being processed: a concurrent repetition of a batch waits for the first."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class UnderWay:
    """Keys of work in progress in all threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._keys: set[Hashable] = set()

    @contextmanager
    def alone(self, key: Hashable) -> Iterator[None]:
        """Hold exclusive access to a key during the context."""
        with self._changed:
            while key in self._keys:
                self._changed.wait()
            self._keys.add(key)
        try:
            yield
        finally:
            with self._changed:
                self._keys.discard(key)
                self._changed.notify_all()
