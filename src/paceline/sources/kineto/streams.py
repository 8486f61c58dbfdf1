"""Launches and waits of a GPU's main stream, by the stream waits that a profile records.

``torch.profiler`` records them if its ``experimental_config`` is
``_ExperimentalConfig(enable_cuda_sync_events=True)``. They are events ``Stream Wait Event`` of
category ``cuda_sync``, with ``stream``, ``wait_on_stream`` and
``wait_on_cuda_event_record_corr_id``. The last one is the correlation of the ``cudaEventRecord``
call. The next event of a stream then waits for the last event that the other stream launched before
that call. HTA reads them in the same way (``hta/analyzers/critical_path_analysis.py``, commit
f4d0062).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]

WAIT_EVENT: Final = "Stream Wait Event"


class DeviceEvent(NamedTuple):
    """A kernel or copy; ``collective`` is its correlation where it communicates, else -1."""

    launch_s: float
    stream: int
    start_s: float
    end_s: float
    collective: int = -1


class StreamWait(NamedTuple):
    """A stream's wait for an event of another one. Times are those of the host's calls, seconds."""

    wait_s: float
    stream: int
    record_s: float
    recorded_on: int


class Bound(NamedTuple):
    """Place of a collective in the main stream.

    Attributes:
        behind: the last event of the main stream that it waits for, -1 = none.
        before: the first event of the main stream that waits for it, -1 = none.
    """

    behind: int
    before: int


@dataclass(frozen=True, eq=False)
class MainStream:
    """The stream that computes most; its events by launch, seconds.

    Attributes:
        launch_s: [event] its launch by the host.
        start_s: [event] its begin.
        end_s: [event] its end.
        bounds: correlation of a collective -> its place.
        by_rule: whether FSDP2's rules give the places, not stream waits of the profile.
    """

    launch_s: Times
    start_s: Times
    end_s: Times
    bounds: Mapping[int, Bound]
    by_rule: bool = False

    def ran_later(self, by_s: float) -> MainStream:
        """The same with the GPU's times moved by some seconds; the host's calls stay."""
        return replace(self, start_s=self.start_s + by_s, end_s=self.end_s + by_s)


def main_stream(events: Sequence[DeviceEvent], waits: Sequence[StreamWait]) -> MainStream | None:
    """The main stream, and the places of collectives in it; None if nothing computes."""
    busy_s: dict[int, float] = {}
    for event in events:
        if event.collective < 0:
            busy_s[event.stream] = busy_s.get(event.stream, 0.0) + event.end_s - event.start_s
    if not busy_s:
        return None
    main = max(busy_s, key=lambda stream: busy_s[stream])
    ordered = sorted(events)
    own = [event for event in ordered if event.stream == main and event.collective < 0]
    return MainStream(
        np.array([event.launch_s for event in own]),
        np.array([event.start_s for event in own]),
        np.array([event.end_s for event in own]),
        _bounds(ordered, waits, main),
    )


def _bounds(
    events: Sequence[DeviceEvent], waits: Sequence[StreamWait], main: int
) -> dict[int, Bound]:
    """Follow the host's calls, and note how far each stream waits for each other stream."""
    calls: list[tuple[float, int, int]] = []  # time, what (record, wait, launch), index
    calls += [(wait.record_s, 0, n) for n, wait in enumerate(waits)]
    calls += [(wait.wait_s, 1, n) for n, wait in enumerate(waits)]
    calls += [(event.launch_s, 2, n) for n, event in enumerate(events)]
    reached: dict[int, dict[int, int]] = {}  # stream -> other stream -> its event
    recorded: dict[int, dict[int, int]] = {}  # wait -> work covered by its record
    behind: dict[int, int] = {}
    before: dict[int, int] = {}
    open_on: dict[int, list[tuple[int, int]]] = {}  # stream -> (place, collective) not awaited
    n_main = 0
    for _, what, n in sorted(calls):
        if what == 0:
            recorded[n] = dict(reached.get(waits[n].recorded_on, {}))
        elif what == 1:
            own = reached.setdefault(waits[n].stream, {})
            for stream, place in recorded.get(n, {}).items():
                own[stream] = max(own.get(stream, -1), place)
        else:
            event = events[n]
            own = reached.setdefault(event.stream, {})
            if event.collective >= 0:
                behind[event.collective] = own.get(main, -1)
                open_on.setdefault(event.stream, []).append((n, event.collective))
            if event.stream == main and event.collective < 0:
                for stream, items in open_on.items():
                    until = own.get(stream, -1)
                    while items and items[0][0] <= until:
                        before[items.pop(0)[1]] = n_main
                own[main] = n_main
                n_main += 1
            else:
                own[event.stream] = n
    return {number: Bound(place, before.get(number, -1)) for number, place in behind.items()}
