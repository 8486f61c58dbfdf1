"""Work of many owners on one thread, in turns: who has much to do holds up nobody for long."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator

#: A generator that yields when its turn is over.
Work = Generator[None, None, None]

#: A turn ends at the first pause after this time.
TURN_S = 0.1


class Turns:
    """A line of work for each owner, worked off in order; the owners take turns.

    A piece of work asks :meth:`is_over` often, and yields once that is so. Its begun work is
    whole then, for whoever looks at it between two turns.
    """

    def __init__(self) -> None:
        self._lines: dict[int, deque[Work]] = {}  # in the order of their next turns
        self._ends = 0.0

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __contains__(self, owner: int) -> bool:
        return owner in self._lines

    def add(self, owner: int, work: Work) -> None:
        """Let it wait behind what the owner has to do already."""
        self._lines.setdefault(owner, deque()).append(work)

    def is_over(self) -> bool:
        """Whether the turn that goes on is over."""
        return time.monotonic() >= self._ends

    def take(self) -> None:
        """The next owner's turn; whose work is not done then is the last of the order."""
        owner = next(iter(self._lines))
        line = self._lines.pop(owner)
        self._ends = time.monotonic() + TURN_S
        try:
            while next(line[0], self) is self:  # it has come to its end
                line.popleft()
                if not line or self.is_over():
                    break
        finally:
            if line:
                self._lines[owner] = line

    def drop(self) -> list[int]:
        """Forget all that is not done; returns whose it was."""
        owners = list(self._lines)
        for line in self._lines.values():
            for work in line:
                work.close()
        self._lines.clear()
        return owners
