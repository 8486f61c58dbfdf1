"""Work of many owners on one thread, in turns, so that none blocks the others for long."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator

#: A generator that yields at the end of its turn.
Work = Generator[None, None, None]

#: A turn ends at its first pause after this time.
TURN_S = 0.1


class Turns:
    """A queue of work for each owner, processed in order; the owners take turns.

    Work calls :meth:`is_over` often and yields once it is true. It yields only in a consistent
    state, as other code may run between two turns.
    """

    def __init__(self) -> None:
        self._lines: dict[int, deque[Work]] = {}  # in order of their next turns
        self._ends = 0.0

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __contains__(self, owner: int) -> bool:
        return owner in self._lines

    def add(self, owner: int, work: Work) -> None:
        """Append work to the owner's queue."""
        self._lines.setdefault(owner, deque()).append(work)

    def is_over(self) -> bool:
        """Whether the current turn is over."""
        return time.monotonic() >= self._ends

    def take(self) -> None:
        """Run the next owner's turn; an owner with work left moves to the end of the order."""
        owner = next(iter(self._lines))
        line = self._lines.pop(owner)
        self._ends = time.monotonic() + TURN_S
        try:
            while next(line[0], self) is self:  # the generator is finished
                line.popleft()
                if not line or self.is_over():
                    break
        finally:
            if line:
                self._lines[owner] = line

    def drop(self) -> list[int]:
        """Drop all remaining work; returns its owners."""
        owners = list(self._lines)
        for line in self._lines.values():
            for work in line:
                work.close()
        self._lines.clear()
        return owners
