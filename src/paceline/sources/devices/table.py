"""A device's activity, collected event by event, for readers whose times are nanoseconds."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.kineto.device import Operators, RankFile, Work, outermost
from paceline.sources.kineto.events import Span

#: Times and numbers beyond this are no nanoseconds of a clock: 146 years.
MAX_NS = 1 << 62


@dataclass(frozen=True)
class Devices:
    """Content of one file of a tool.

    Attributes:
        ranks: the activity of each device of each process in the file.
        notes: notes on the limits of the file's numbers.
    """

    ranks: tuple[RankFile, ...]
    notes: tuple[str, ...] = ()


class DeviceTable:
    """Events of one device and the calls that launched them; about 36 bytes for each event."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: dict[str, int] = {}
        self._times = (array("q"), array("q"))
        self._work, self._name = array("b"), array("i")
        self._stream, self._correlation = array("q"), array("q")
        self._launches = (array("q"), array("q"), array("q"))
        self._ranges = (array("q"), array("q"), array("q"), array("i"))

    def __len__(self) -> int:
        return len(self._work)

    def add(
        self, name: str, work: Work, start_ns: int, end_ns: int, stream: int, correlation: int
    ) -> None:
        """Add an event; ``stream`` and ``correlation`` are -1 if the file has none.

        Raises:
            TraceError: it ends before it starts, or has invalid times.
        """
        if not 0 <= start_ns <= end_ns < MAX_NS:
            raise TraceError(
                f"{self._path}: {name[:80]} is from {start_ns} to {end_ns} ns; is the file damaged?"
            )
        self._times[0].append(start_ns)
        self._times[1].append(end_ns)
        self._work.append(work)
        self._name.append(self._names.setdefault(name, len(self._names)))
        self._stream.append(stream if 0 <= stream < MAX_NS else -1)
        self._correlation.append(correlation if 0 <= correlation < MAX_NS else -1)

    def launch(self, correlation: int, start_ns: int, end_ns: int) -> None:
        """Add a call of the host; a call with invalid times is left out."""
        if 0 <= start_ns <= end_ns < MAX_NS and 0 <= correlation < MAX_NS:
            for column, value in zip(self._launches, (start_ns, end_ns, correlation), strict=True):
                column.append(value)

    def operator(self, name: str, start_ns: int, end_ns: int, thread: int) -> None:
        """Add a range on the host, for files without a device; invalid times are left out."""
        if 0 <= start_ns <= end_ns < MAX_NS and abs(thread) < MAX_NS:
            number = self._names.setdefault(name, len(self._names))
            for column, value in zip(self._ranges, (start_ns, end_ns, thread, number), strict=True):
                column.append(value)

    def finish(
        self,
        device: str,
        steps: Iterable[tuple[int, int, int]] = (),
        rank: int | None = None,
        world_size: int = 0,
    ) -> RankFile:
        """The events of the device, for a report.

        Args:
            device: name of the device, with its process if a file has several.
            steps: (start in ns, end in ns, number) on the host; steps with invalid times are left
                out.
            rank: global rank; None if the file does not have it.
            world_size: ranks of the job; 0 = not known.
        """
        steps = sorted({step for step in steps if 0 <= step[0] <= step[1] < MAX_NS})
        start, end = (np.array(times, dtype=np.int64) for times in self._times)
        begin, until, thread, name = (np.array(column) for column in self._ranges)
        outer = outermost(begin, until, thread)
        first = min(
            int(start.min(initial=MAX_NS)),
            int(begin.min(initial=MAX_NS)),
            *(step[0] for step in steps),
        )
        launch_s, launched_s = self._launched(first)
        return RankFile(
            path=self._path,
            rank=rank,
            world_size=world_size,
            device=device,
            names=tuple(self._names),
            # Whole numbers are subtracted first: a clock's nanoseconds are too many for a float.
            start_s=_seconds(start - first),
            end_s=_seconds(end - first),
            work=np.array(self._work, dtype=np.int8),
            name=np.array(self._name, dtype=np.int32),
            stream=np.array(self._stream, dtype=np.int64),
            launch_s=launch_s,
            launched_s=launched_s,
            steps=tuple(
                Span((low - first) * 1e-9, (high - first) * 1e-9, number)
                for low, high, number in steps
            ),
            operators=Operators(
                _seconds(begin[outer] - first),
                _seconds(until[outer] - first),
                np.unique(thread[outer], return_inverse=True)[1].astype(np.int32),
                name[outer].astype(np.int32),
            ),
        )

    def _launched(self, first: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """[event] begin and end of the call that launched it, in s since ``first``; nan = none."""
        begin, end, of = (np.array(column, dtype=np.int64) for column in self._launches)
        wanted = np.array(self._correlation, dtype=np.int64)
        if not len(of):
            return np.full(len(wanted), np.nan), np.full(len(wanted), np.nan)
        numbers, rows = np.unique(of, return_index=True)
        at = np.searchsorted(numbers, wanted).clip(max=len(numbers) - 1)
        absent = numbers[at] != wanted
        calls = [_seconds(column[rows[at]] - first) for column in (begin, end)]
        launch_s, launched_s = (np.where(absent, np.nan, times_s) for times_s in calls)
        return launch_s, launched_s


def _seconds(times_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return times_ns.astype(np.float64) * 1e-9
