"""Checks for impossible times: an operation of 30,000 years, a pause of a month inside a step.

Such a row comes from a broken clock, a wrong unit or a damaged file, and a single one spoils every
mean. A time that is only long (a hang, a checkpoint) gives a warning and is not refused.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.trace.kinds import OpKind
from paceline.trace.trace import Trace

#: An operation gives a warning if it takes this many times its kind's typical time and longer than
#: a typical step. No operation in the three real traces of the what-if paper does.
ODD_TIMES = 1000.0

#: If it is also longer than this many seconds, it is refused. Collectives time out after 10 to 30
#: minutes, and a launcher ends a job that hangs for hours.
LONGEST_S = 86_400.0

#: Without another step for comparison, a step may take this many times the work of its busiest
#: worker. The rest may be the pipeline's bubble and slow transfers.
IDLE_TIMES = 10.0

_MOST_ROWS = 1_000_000

Array = npt.NDArray[np.float64]


def check_lengths(
    trace: Trace,
    where: str,
    longest_s: float | None = None,
    place: npt.NDArray[np.int64] | None = None,
) -> list[str]:
    """Warnings about operations that last suspiciously long.

    Args:
        trace: the trace, otherwise validated.
        where: the name of the source, for messages.
        longest_s: duration of the longest operation; None: unknown.
        place: [row of the source] its row in the trace; None: unknown.

    Raises:
        TraceError: an operation, or the time between two operations of a worker, is impossibly
            long.
    """
    step_s = trace.traced_step_s()
    known = np.inf if longest_s is None or trace.n_steps < 2 else longest_s
    # Usually no operation is longer than a step, and no step is impossibly long.
    if known <= _lower_median(step_s) and step_s.max() <= LONGEST_S:
        return []
    kind, duration = trace.kind, trace.end - trace.start
    typical = _typical(trace, kind, duration)
    long = np.flatnonzero(duration > _typical_step_s(trace, typical))
    long = long[duration[long] > ODD_TIMES * typical[kind[long]]]
    _check_pauses(trace, duration, where)
    if not len(long):
        return []
    worst = int(long[np.argmax(duration[long])])
    source = "" if place is None else f"row {int(np.flatnonzero(place == worst)[0])}, "
    text = (
        f"{source}{_describe(trace, worst)} lasts {duration[worst]:.4g} s, typical of its kind is "
        f"{typical[kind[worst]]:.3g} s"
    )
    count = "1 operation lasts" if len(long) == 1 else f"{len(long)} operations last"
    if duration[worst] > LONGEST_S:
        raise TraceError(
            f"{where}: {count} longer than any job has: {text}. Drop such rows, leave their steps "
            "out (--steps), or check the unit: times are seconds"
        )
    return [
        f"{count} over {ODD_TIMES:.0f} times as long as is typical, and longer than a step: {text}"
    ]


def _typical(trace: Trace, kind: npt.NDArray[np.int8], duration: Array) -> npt.NDArray[np.float64]:
    """[kind] seconds of a typical operation: the lower median, robust against a single odd row."""
    if len(trace) > _MOST_ROWS:  # the middle operation of each kind of each worker in each step
        counts = trace.counts.ravel()
        first = np.cumsum(counts, dtype=np.int64) - counts
        rows = (first + counts // 2)[counts > 0]
    else:
        rows = np.arange(len(trace))
    positive = duration[rows][duration[rows] > 0]
    typical = np.full(len(OpKind), _lower_median(positive) if len(positive) else 0.0)
    for number in range(len(OpKind)):
        values = duration[rows[kind[rows] == number]]
        if len(values) > 1:  # a single operation would be its own typical one
            typical[number] = _lower_median(values)
    return typical


def _lower_median(values: Array) -> float:
    middle = (len(values) - 1) // 2
    return float(np.partition(values, middle)[middle])


def _typical_step_s(trace: Trace, typical: npt.NDArray[np.float64]) -> float:
    """Seconds of a typical step."""
    if trace.n_steps > 1:
        return _lower_median(trace.traced_step_s())
    return IDLE_TIMES * float((trace.counts[0] @ typical).max())


def _check_pauses(trace: Trace, duration: Array, where: str) -> None:
    """Refuse an impossible pause inside a worker's step; clocks of workers may differ by years."""
    counts = trace.counts.sum(axis=3, dtype=np.int64)
    present = np.flatnonzero(counts.ravel())
    first = (np.cumsum(counts) - counts.ravel())[present]
    span = np.maximum.reduceat(trace.end, first) - np.minimum.reduceat(trace.start, first)
    if span.max() <= LONGEST_S:
        return
    busy = np.add.reduceat(duration, first)
    paused = np.flatnonzero((span > LONGEST_S) & (span > ODD_TIMES * busy))
    if not len(paused):
        return
    worst = int(paused[np.argmax(span[paused] - busy[paused])])
    step, replica, pp = (int(i) for i in np.unravel_index(present[worst], counts.shape))
    name = trace.job.worker_name(replica, pp)
    raise TraceError(
        f"{where}: {len(paused)} workers pause inside a step for longer than any job does, for "
        f"example {name} in step {trace.steps[step]}: {busy[worst]:.3g} s of "
        f"operations within {span[worst]:.4g} s. Drop the rows that start too early or too late, "
        "leave the step out (--steps), or check the unit: times are seconds"
    )


def _describe(trace: Trace, row: int) -> str:
    """An operation as text."""
    cell = int(np.searchsorted(np.cumsum(trace.counts.ravel()), row, side="right"))
    step, replica, pp, kind = (int(i) for i in np.unravel_index(cell, trace.counts.shape))
    seq = row - int(trace.counts.ravel()[:cell].sum())
    name = trace.job.worker_name(replica, pp)
    return f"step {trace.steps[step]}, {name}, {OpKind(kind).label} {seq},"
