"""Arrows between the slices of a Chrome trace, and transfers inside slices that wait.

Perfetto binds each end of an arrow to the slice that is open on its thread at that moment. The
arrow points from the slice that starts earlier (v54, ``json_trace_parser.cc``,
``flow_tracker.cc``). So an operation that waits for its peers gets an inner slice for its transfer.
The slice starts when the last peer is launched, and the arrow ends there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.report.events import Events
from paceline.report.scene import Links

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Slices:
    """The slices of a scene in the order of the file.

    Attributes:
        order: [slice] its event.
        pid, row: [slice] process and thread.
        start_ns, end_ns: [slice] begin and end in the file.
        shift_ns: [slice] from times since its step's start to times in the file.
    """

    order: Ints
    pid: Ints
    row: Ints
    start_ns: Ints
    end_ns: Ints
    shift_ns: Ints


class Ties:
    """Events that follow the slices of a scene in the file."""

    def __init__(self, events: Events, links: Links, slices: Slices, first_id: int) -> None:
        """Number the arrows from ``first_id`` on."""
        self.slices, self.first_id = slices, first_id
        place = np.empty(len(slices.order), dtype=np.int64)
        place[slices.order] = np.arange(len(place))
        begin_s = np.where(np.isfinite(links.begin_s), links.begin_s, events.start_s)
        begin_ns = nanoseconds(begin_s)[slices.order] + slices.shift_ns
        # One nanosecond inside the slice: the next slice may start at its end.
        last_ns = np.maximum(slices.end_ns - 1, slices.start_ns)
        self.begin_ns = np.clip(begin_ns, slices.start_ns, last_ns)
        self.waits = np.flatnonzero(self.begin_ns > slices.start_ns)
        source, target = place[links.source], place[links.target]
        # An arrow must start at least a nanosecond before it ends. At equal times the order in the
        # file counts, and its target may come first there.
        start_ns = np.maximum(self.begin_ns[source] - 1, slices.start_ns[source])
        end_ns = np.clip(start_ns + 1, self.begin_ns[target], last_ns[target])
        real = end_ns > start_ns  # false for transfers of no duration
        self.ends = (
            _End('"s"', source[real], start_ns[real]),
            _End('"f","bp":"e"', target[real], end_ns[real]),
        )

    def within(self, low: int, high: int) -> Iterator[tuple[int, str]]:
        """(slice, text) for slices low..high: the transfers inside them, then the arrows."""
        first, last = np.searchsorted(self.waits, (low, high))
        for place in self.waits[first:last].tolist():
            begin_ns = int(self.begin_ns[place])
            length = (int(self.slices.end_ns[place]) - begin_ns) / 1e3
            fields = '"ph":"X","name":"transfer","cat":"transfer"'
            yield place, f'{{{fields},{self._at(place, begin_ns)},"dur":{length:.3f}}}'
        for end in self.ends:
            for place, arrow, at_ns in end.within(low, high):
                fields = f'"ph":{end.phase},"name":"transfer","cat":"arrow"'
                yield place, f'{{{fields},"id":{self.first_id + arrow},{self._at(place, at_ns)}}}'

    def _at(self, place: int, at_ns: int) -> str:
        slices = self.slices
        return f'"pid":{slices.pid[place]},"tid":{slices.row[place]},"ts":{at_ns / 1e3:.3f}'


class _End:
    """One end of all arrows."""

    def __init__(self, phase: str, place: Ints, at_ns: Ints) -> None:
        """Arrows in any order: the slice and the time of this end."""
        self.phase = phase
        self.arrow = np.argsort(place, kind="stable")
        self.place, self.at_ns = place[self.arrow], at_ns[self.arrow]

    def within(self, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """(slice, arrow, time) of the ends at slices low..high."""
        first, last = np.searchsorted(self.place, (low, high))
        columns = (column[first:last].tolist() for column in (self.place, self.arrow, self.at_ns))
        return zip(*columns, strict=True)


def nanoseconds(seconds: npt.NDArray[np.float64]) -> Ints:
    """Whole nanoseconds, so that equal times stay equal in print."""
    return np.rint(seconds * 1e9).astype(np.int64)
