"""Uses of a device's time: computing, communication, copies, idleness.

The definitions are those of HTA (``hta/analyzers/breakdown_analysis.py``, commit f4d0062).
Computing is the time in which at least one kernel computes. The rest beside it and idle is HTA's
non-compute: here exposed communication, exposed copies and the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.ranks.intervals import Intervals, Times, union
from paceline.sources.kineto.device import RankFile, Work

#: A kernel that begins so soon after another, though launched before its end, is delayed by the
#: launch itself: HTA's ``consecutive_kernel_delay`` (``hta/trace_analysis.py``).
#: Half a nanosecond less, since a gap of 30 us is none, and times as floats are rounded.
LAUNCH_DELAY_S = 30e-6 - 0.5e-9


@dataclass(frozen=True)
class Breakdown:
    """Uses of a device's time in a window, seconds. The first six add up to the window.

    Attributes:
        compute_s: at least one kernel computed.
        communication_exposed_s: communication, and nothing computed.
        memory_exposed_s: copies or sets of memory, neither computing nor communication.
        other_s: only other work of the device (MTIA's control of jobs).
        idle_host_s: nothing ran, and the host had not launched the next event: launch-bound.
        idle_device_s: nothing ran, although the next event was launched, or its launch is unknown.
        communication_s: at least one kernel communicated, computing or not.
        memory_s: at least one copy or set ran.
        idle_delay_s: the part of ``idle_device_s`` in gaps of a launch itself, under 30 us.
    """

    compute_s: float
    communication_exposed_s: float
    memory_exposed_s: float
    other_s: float
    idle_host_s: float
    idle_device_s: float
    communication_s: float
    memory_s: float
    idle_delay_s: float

    @property
    def window_s(self) -> float:
        """Length of the window."""
        return (
            self.compute_s
            + self.communication_exposed_s
            + self.memory_exposed_s
            + self.other_s
            + self.idle_s
        )

    @property
    def idle_s(self) -> float:
        """Idle time."""
        return self.idle_host_s + self.idle_device_s

    @property
    def communication_hidden_s(self) -> float:
        """Communication during which something computed."""
        return self.communication_s - self.communication_exposed_s

    def to_mapping(self) -> dict[str, float]:
        """All uses by name."""
        return {
            "window_s": self.window_s,
            "compute_s": self.compute_s,
            "communication_s": self.communication_s,
            "communication_exposed_s": self.communication_exposed_s,
            "communication_hidden_s": self.communication_hidden_s,
            "memory_s": self.memory_s,
            "memory_exposed_s": self.memory_exposed_s,
            "other_s": self.other_s,
            "idle_s": self.idle_s,
            "idle_host_s": self.idle_host_s,
            "idle_device_s": self.idle_device_s,
            "idle_delay_s": self.idle_delay_s,
        }


class Timeline:
    """A device's events as sets of intervals, from which windows are cut."""

    def __init__(self, file: RankFile, events: npt.NDArray[np.bool_]) -> None:
        """Use the events of a file that a mask selects, at least one."""
        start_s, end_s, work = file.start_s[events], file.end_s[events], file.work[events]
        # From the most useful kind on: the time added by each is its exposed time.
        self._layers = [
            union(start_s[work <= last], end_s[work <= last])
            for last in (Work.COMPUTE, Work.COMMUNICATION, Work.MEMORY, Work.OTHER)
        ]
        self._communication, self._memory = (
            union(start_s[work == one], end_s[work == one])
            for one in (Work.COMMUNICATION, Work.MEMORY)
        )
        order = np.argsort(start_s, kind="stable")
        busy = self._layers[-1]
        self._gaps = Intervals(busy.end_s[:-1], busy.start_s[1:])
        behind = np.searchsorted(start_s[order], busy.start_s[1:])
        self._launch_s = file.launch_s[events][order][behind]
        self.start_s, self.end_s = float(busy.start_s[0]), float(busy.end_s[-1])

    def breakdown(self, low_s: float | None = None, high_s: float | None = None) -> Breakdown:
        """Uses of the time between two moments; None: the first begin, the last end."""
        low_s = self.start_s if low_s is None else low_s
        high_s = self.end_s if high_s is None else high_s
        covered_s = [layer.within(low_s, high_s).length_s for layer in self._layers]
        host_s, delay_s, idle_s = self._idle(low_s, high_s)
        # Before the first and after the last event, the reason of idleness is unknown.
        outside_s = max(0.0, high_s - low_s - covered_s[-1] - idle_s)
        return Breakdown(
            compute_s=covered_s[0],
            communication_exposed_s=covered_s[1] - covered_s[0],
            memory_exposed_s=covered_s[2] - covered_s[1],
            other_s=covered_s[3] - covered_s[2],
            idle_host_s=host_s,
            idle_device_s=idle_s - host_s + outside_s,
            communication_s=self._communication.within(low_s, high_s).length_s,
            memory_s=self._memory.within(low_s, high_s).length_s,
            idle_delay_s=delay_s,
        )

    def _idle(self, low_s: float, high_s: float) -> tuple[float, float, float]:
        """Seconds idle before a launch, idle briefly after one, and idle in all gaps."""
        begin_s = self._gaps.start_s.clip(min=low_s)
        end_s = self._gaps.end_s.clip(max=high_s)
        gap_s = (end_s - begin_s).clip(min=0)
        host_s = np.nan_to_num(np.minimum(self._launch_s, end_s) - begin_s).clip(min=0)
        whole_s = self._gaps.end_s - self._gaps.start_s
        short = (host_s == 0) & (whole_s < LAUNCH_DELAY_S) & ~np.isnan(self._launch_s)
        host_s = np.minimum(host_s, gap_s)
        return float(host_s.sum()), float(gap_s[short].sum()), float(gap_s.sum())


@dataclass(frozen=True)
class StreamIdle:
    """Idle time between the events of one stream, as HTA divides it, seconds.

    Attributes:
        stream: its number.
        n_events: kernels, copies and sets on it.
        host_wait_s: gaps in which the host launched the next event.
        kernel_wait_s: gaps under 30 us although the event was launched before.
        other_s: longer gaps: waits for another stream or an event, or unknown.
    """

    stream: int
    n_events: int
    host_wait_s: float
    kernel_wait_s: float
    other_s: float


def streams_idle(file: RankFile, events: npt.NDArray[np.bool_]) -> tuple[StreamIdle, ...]:
    """The idle time of each stream, by number."""
    return tuple(
        _stream_idle(file, np.flatnonzero(events & (file.stream == stream)), int(stream))
        for stream in np.unique(file.stream[events])
        if stream >= 0
    )


def _stream_idle(file: RankFile, rows: npt.NDArray[np.intp], stream: int) -> StreamIdle:
    rows = rows[np.argsort(file.start_s[rows], kind="stable")]
    before_s, launch_s = file.end_s[rows][:-1], file.launch_s[rows][1:]
    gap_s = file.start_s[rows][1:] - before_s
    host = launch_s > before_s
    delay = ~host & (gap_s < LAUNCH_DELAY_S)
    sums: list[float] = [_sum(gap_s, mask) for mask in (host, delay, ~host & ~delay)]
    return StreamIdle(stream, len(rows), *sums)


def _sum(values: Times, mask: npt.NDArray[np.bool_]) -> float:
    return float(values[mask].sum())
