"""Times on a GPU: CUDA events on the streams of the work, resolved later against the host clock.

No call in here waits for the GPU. The writer's thread ties the two clocks: it records an event on
its own stream and polls until the event has passed. The time from the start to the last poll is the
tie's possible error.
"""

from __future__ import annotations

import time
from typing import Any

from paceline.record.clocks import HostClock

#: Loss of precision of a tie per second: host and GPU clocks drift by some parts in a million.
DRIFT = 2e-5

#: An event on the idle stream that takes longer was queued behind the job's work.
GIVE_UP_NS = 2_000_000


class CudaClock(HostClock):
    """A host clock whose marks are CUDA events on the current stream.

    ``cudaEventElapsedTime`` returns float32 milliseconds, so ties are renewed. Over one minute it
    resolves 4 us, over an hour only 0.25 ms.

    Args:
        torch: the module (a parameter, so that a test can replace it).
    """

    def __init__(self, torch: Any) -> None:
        super().__init__()
        self._torch = torch
        self._device = torch.cuda.current_device()
        self._free: list[Any] = []
        self._streams: dict[int, Any] = {}
        self._tie_stream = torch.cuda.Stream()
        self._tied: tuple[Any, int, int] | None = None  # event, host ns, error ns
        torch.cuda.synchronize()  # once, before training, for an exact first tie
        self.tie()

    def mark(self) -> Any:
        """An event recorded on the current stream."""
        event = self._event()
        event.record()
        return event

    def _event(self) -> Any:
        try:
            return self._free.pop()
        except IndexError:
            return self._torch.cuda.Event(enable_timing=True)

    def after(self, work: Any, code: int) -> Any:
        """An event that passes when ``work`` is done; a separate stream per kind waits for it."""
        cuda = self._torch.cuda
        stream = self._streams.get(code)
        if stream is None:
            stream = self._streams[code] = cuda.Stream()
        event = self._event()
        with cuda.stream(stream):
            work.wait()
            event.record(stream)
        return event

    def resolve(self, mark: Any) -> int | None:
        """Nanoseconds of the host clock; None while the GPU has not reached the mark."""
        if self._tied is None or not mark.query():
            return None
        event, host_ns, _ = self._tied
        return host_ns + int(event.elapsed_time(mark) * 1e6)

    def tie(self) -> None:
        """Tie the GPU's clock to the host's, if that is more precise than the last tie."""
        with self._torch.cuda.device(self._device):
            event = self._torch.cuda.Event(enable_timing=True)
            before = self.now()
            event.record(self._tie_stream)
            while not event.query():
                if self.now() - before > GIVE_UP_NS:
                    return
                time.sleep(0)  # yield the interpreter to the training thread
            after = self.now()
        error = (after - before) // 2
        if self._tied is None or error <= self._tied[2] + DRIFT * (after - self._tied[1]):
            self._tied = event, before + error, error

    def recycle(self, marks: list[Any]) -> None:
        """Reuse free events; one event may end an operation and begin the next."""
        self._free.extend({id(mark): mark for mark in marks}.values())
