"""Segments of a critical path, and a worker's other operations during launch delays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, StepGraph
from paceline.trace.kinds import LOCAL_KINDS

T = TypeVar("T", bound=np.generic)
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Least length of a delay that is cut where its worker is occupied, as a share of the step.
LONG = 1e-5


class Sort(IntEnum):
    """Kind of a path's segment.

    COMPUTE: the operation runs.
    TRANSFER: the operation moves its data, after all its peers are launched.
    DELAY: the operation could be launched but is not; its worker idles.
    OCCUPIED: the operation could be launched but is not, as its worker runs another one.

    An OCCUPIED segment belongs to the other operation. The graph has no dependency between the two:
    many frameworks post a recv only after the previous compute.
    """

    COMPUTE = 0
    TRANSFER = 1
    DELAY = 2
    OCCUPIED = 3

    @property
    def label(self) -> str:
        """The name in results: ``compute``, ``transfer``, ``delay``, ``occupied``."""
        return self.name.lower()


@dataclass(frozen=True)
class Segments:
    """The segments of one step, from its start to its end.

    Attributes:
        op: [segment] op that runs; in a delay, the op that is launched late.
        dp: [segment] the op's data-parallel rank.
        sort: [segment] :class:`Sort`.
        start_s: [segment] seconds since the step's start; the previous segment's end.
        end_s: [segment] seconds since the step's start.
    """

    op: Ints
    dp: Ints
    sort: Ints
    start_s: Floats
    end_s: Floats


@dataclass(frozen=True)
class Replay:
    """The input of a simulation with launch delays."""

    durations: Durations
    delays: Durations


#: Computes of a worker in order of their starts: ops, starts and ends in seconds.
Busy = tuple[Ints, Floats, Floats]


class Workers:
    """Computes of a job's workers in a step."""

    def __init__(self, graph: StepGraph) -> None:
        self.graph = graph
        self.local = np.isin(graph.kind, [int(kind) for kind in LOCAL_KINDS])
        self.ops_of: dict[tuple[int, int], Ints] = {}

    def busy(
        self, op: int, dp: int, end: npt.NDArray[np.float64], durations: npt.NDArray[np.float64]
    ) -> Busy:
        """The computes of an op's worker in one step.

        Args:
            op: the op.
            dp: its data-parallel rank.
            end: [op, dp] ends of the op's variant in one step.
            durations: [op, dp] durations in the same layout.
        """
        graph = self.graph
        v, pp = int(graph.variant[op]), int(graph.pp[op])
        if (v, pp) not in self.ops_of:
            here = (graph.variant == v) & (graph.pp == pp) & self.local
            self.ops_of[v, pp] = np.flatnonzero(here)
        ops = self.ops_of[v, pp]
        rows, rank = ops - graph.variant_ptr[v], graph.dp_index[dp]
        stop = end[rows, rank]
        start = stop - durations[rows, rank]
        order = np.argsort(start, kind="stable")
        return ops[order], start[order], stop[order]


def cut_occupied(path: Segments, busy: Callable[[int, int], Busy]) -> Segments:
    """The same segments, with long delays cut where their worker runs another operation.

    Args:
        path: a step's segments.
        busy: (op, dp) -> the computes of the op's worker in the step.
    """
    late = (path.sort == Sort.DELAY) & (path.end_s - path.start_s > LONG * path.end_s[-1])
    pieces: list[tuple[int, int, int, float, float]] = []
    places: list[int] = []
    for place in np.flatnonzero(late).tolist():
        op, dp = int(path.op[place]), int(path.dp[place])
        delay = float(path.start_s[place]), float(path.end_s[place])
        pieces += _pieces(op, dp, *delay, busy(op, dp))
        places += [place] * (len(pieces) - len(places))
    if not pieces:
        return path
    order = np.argsort(np.concatenate([np.flatnonzero(~late), places]), kind="stable")
    ops, dps, sorts, starts, ends = zip(*pieces, strict=True)

    def joined(old: npt.NDArray[T], new: Sequence[float]) -> npt.NDArray[T]:
        return np.concatenate([old[~late], np.array(new, dtype=old.dtype)])[order]

    return Segments(
        joined(path.op, ops),
        joined(path.dp, dps),
        joined(path.sort, sorts),
        joined(path.start_s, starts),
        joined(path.end_s, ends),
    )


def _pieces(
    op: int, dp: int, start: float, stop: float, busy: Busy
) -> list[tuple[int, int, int, float, float]]:
    """Pieces (op, dp, sort, start, end) of a delay, in which its worker either idles or runs."""
    ops, starts, stops = busy
    low, high = np.searchsorted(stops, start, side="right"), np.searchsorted(starts, stop)
    pieces = []
    at = start
    for other, begin, end in zip(
        ops[low:high].tolist(), starts[low:high].tolist(), stops[low:high].tolist(), strict=True
    ):
        begin, end = max(begin, at), min(end, stop)
        if begin > at:
            pieces.append((op, dp, int(Sort.DELAY), at, begin))
        if end > begin:
            pieces.append((other, dp, int(Sort.OCCUPIED), begin, end))
        at = max(begin, end)
    if stop > at:
        pieces.append((op, dp, int(Sort.DELAY), at, stop))
    return pieces
