"""News inside the process for open pages (server-sent events)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Most waiting messages of one reader; a slower reader loses the oldest ones.
MAX_WAITING = 256


@dataclass(frozen=True)
class Message:
    """A message about a change.

    Attributes:
        project: project of the change.
        kind: "job", "session", "event", "alert" or "steps".
        data: the change in the form of JSON; ``job`` is the job's name.
    """

    project: str
    kind: str
    data: Mapping[str, Any]


class Subscription:
    """The messages of one reader, made by :meth:`Bus.subscribe` in the reader's event loop."""

    def __init__(self, bus: Bus, project: str) -> None:
        self._bus, self._project = bus, project
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Message | None] = asyncio.Queue()

    async def next(self, timeout_s: float) -> Message | None:
        """The next message; None after ``timeout_s`` without one, or if the service stops."""
        try:
            return await asyncio.wait_for(self._queue.get(), timeout_s)
        except TimeoutError:
            return None

    def close(self) -> None:
        """Stop the subscription."""
        self._bus.remove(self)

    def offer(self, message: Message | None) -> None:
        """Add a message, from any thread."""
        if message is None or self._project in ("*", message.project):
            try:
                self._loop.call_soon_threadsafe(self._put, message)
            except RuntimeError:  # the loop and the reader have ended
                self.close()

    def _put(self, message: Message | None) -> None:
        while self._queue.qsize() >= MAX_WAITING:
            self._queue.get_nowait()
        self._queue.put_nowait(message)


class Bus:
    """Distributes messages to all subscribers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: set[Subscription] = set()
        self.closed = False

    @property
    def has_readers(self) -> bool:
        """Whether there are subscribers."""
        return bool(self._readers)

    def subscribe(self, project: str = "*") -> Subscription:
        """Subscribe to messages of a project ("*" = all); call it in an event loop."""
        subscription = Subscription(self, project)
        with self._lock:
            self._readers.add(subscription)
        return subscription

    def remove(self, subscription: Subscription) -> None:
        """Remove a reader."""
        with self._lock:
            self._readers.discard(subscription)

    def publish(self, project: str, kind: str, data: Mapping[str, Any]) -> None:
        """Send a message to all readers of the project; never waits."""
        message = Message(project, kind, data)
        for reader in self._all():
            reader.offer(message)

    def close(self) -> None:
        """Wake all readers, with :attr:`closed` set."""
        self.closed = True
        for reader in self._all():
            reader.offer(None)

    def _all(self) -> list[Subscription]:
        with self._lock:
            return list(self._readers)
