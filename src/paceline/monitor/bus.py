"""News inside the process: what changed goes to the pages that are open (server-sent events)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Messages that wait for one reader; a slower one loses the oldest and is told what comes next.
MAX_WAITING = 256


@dataclass(frozen=True)
class Message:
    """Something changed.

    Attributes:
        project: whose.
        kind: "job", "session", "event", "alert" or "steps".
        data: what, as JSON knows it; ``job`` is the job's name.
    """

    project: str
    kind: str
    data: Mapping[str, Any]


class Subscription:
    """One reader's messages; made by :meth:`Bus.subscribe` in the reader's event loop."""

    def __init__(self, bus: Bus, project: str) -> None:
        self._bus, self._project = bus, project
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Message | None] = asyncio.Queue()

    async def next(self, timeout_s: float) -> Message | None:
        """The next message; None after ``timeout_s`` without one, or when the service stops."""
        try:
            return await asyncio.wait_for(self._queue.get(), timeout_s)
        except TimeoutError:
            return None

    def close(self) -> None:
        """No more messages."""
        self._bus.remove(self)

    def offer(self, message: Message | None) -> None:
        """Take a message, from any thread."""
        if message is None or self._project in ("*", message.project):
            try:
                self._loop.call_soon_threadsafe(self._put, message)
            except RuntimeError:  # the loop has ended, and the reader with it
                self.close()

    def _put(self, message: Message | None) -> None:
        while self._queue.qsize() >= MAX_WAITING:
            self._queue.get_nowait()
        self._queue.put_nowait(message)


class Bus:
    """Passes messages on to all who subscribed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: set[Subscription] = set()
        self.closed = False

    @property
    def has_readers(self) -> bool:
        """Whether anybody listens."""
        return bool(self._readers)

    def subscribe(self, project: str = "*") -> Subscription:
        """Messages of a project ("*" = of all) from now on; call it in an event loop."""
        subscription = Subscription(self, project)
        with self._lock:
            self._readers.add(subscription)
        return subscription

    def remove(self, subscription: Subscription) -> None:
        """Forget a reader."""
        with self._lock:
            self._readers.discard(subscription)

    def publish(self, project: str, kind: str, data: Mapping[str, Any]) -> None:
        """Tell all readers of the project; never waits."""
        message = Message(project, kind, data)
        for reader in self._all():
            reader.offer(message)

    def close(self) -> None:
        """Wake all readers up; :attr:`closed` says why."""
        self.closed = True
        for reader in self._all():
            reader.offer(None)

    def _all(self) -> list[Subscription]:
        with self._lock:
            return list(self._readers)
