"""Step times from a log of collective calls: when each rank began each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.detect.period import MAX_CALLS, Period, find_period
from paceline.detect.step_starts import nearest, starts_of_steps
from paceline.errors import DetectError
from paceline.sources import step_times as table
from paceline.trace.calls import CallLog

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Steps seen in a call log, one row per rank and step, by rank and then by step.

    A step runs from a rank's first call in it to the first call of the next. The last step of each
    rank has no end and is left out, as are calls outside whole steps. The log has no begins of
    steps. A step of the first rank begins after its loop's longest pause, on other ranks at the
    nearest call.

    Attributes:
        rank: [row] the rank.
        step: [row] number from 0, the first step with a visible start on some rank; the same on all
            ranks.
        start_s: [row] start on the log's clock.
        duration_s: [row] seconds until the rank's next step.
        periods: rank -> its period; a rank without one has no rows.
        is_whole: [row] whether the log has all calls of the step; None: all steps are whole.
    """

    rank: Ints
    step: Ints
    start_s: Floats
    duration_s: Floats
    periods: dict[int, Period]
    is_whole: npt.NDArray[np.bool_] | None = None

    @property
    def whole_steps(self) -> Ints:
        """Steps of which the log has all calls of all ranks, ascending."""
        steps = np.unique(self.step)
        if self.is_whole is None:
            return steps
        whole: Ints = np.setdiff1d(steps, self.step[~self.is_whole])
        return whole

    @property
    def iteration_s(self) -> float:
        """The typical step time: the median over steps and ranks."""
        return float(np.median(self.duration_s))

    def explain(self) -> str:
        """Periods and step time in words."""
        calls = sorted({period.calls for period in self.periods.values()})
        counts = ", ".join(map(str, calls[:8])) + (", ..." if len(calls) > 8 else "")
        sure = min(period.confidence for period in self.periods.values())
        alike = "; all calls are equal, so a step with several calls takes a multiple of this"
        return (
            f"every {counts} call{'s' * (calls != [1])} a step ({sure:.1%} of the calls in place, "
            f"{len(self.periods):,} ranks); iteration time {self.iteration_s:.4g} s"
            + alike
            * (calls == [1] and self.is_whole is None)
        )

    def to_mapping(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "kind": "period",
            "calls": {str(rank): period.calls for rank, period in self.periods.items()},
            "steps": len(np.unique(self.step)),
            "iteration_s": self.iteration_s,
            "text": self.explain(),
        }

    def table(self) -> table.StepTimes:
        """The same as a table [step, rank], like a file of step times."""
        steps, row = np.unique(self.step, return_inverse=True)
        ranks, column = np.unique(self.rank, return_inverse=True)
        seconds = np.full((len(steps), len(ranks)), np.nan)
        seconds[row, column] = self.duration_s
        return table.StepTimes(steps, ranks, seconds, ())


def step_times(log: CallLog, *, longest: int = MAX_CALLS) -> StepTimes:
    """The begin of each step on each rank, only from the order and times of its calls.

    Args:
        log: calls of one or more ranks.
        longest: longest period, in calls of a rank.

    Raises:
        DetectError: no rank's calls repeat.
    """
    if log.step is not None:
        return _told_steps(log)
    codes = log.codes()
    sequences = []
    periods_of_names: dict[bytes, Period | None] = {}
    for rank, rows in log.of_ranks():
        rows, names, period = _periodic(rows, codes, log.communicator, longest, periods_of_names)
        if period is not None:
            sequences.append((rank, names, log.time_s[rows], period))
    if not sequences:
        raise DetectError(
            f"no rank's calls repeat within {longest} calls; the log has {len(log)} calls of "
            f"{len(np.unique(log.rank))} ranks: give at least three steps, better five"
        )
    sequences = _agree(sequences)
    reference: Floats | None = None
    columns: list[tuple[Ints, Ints, Floats, Floats]] = []
    periods = {}
    for rank, names, time_s, period in sequences:
        start_s = starts_of_steps(names, time_s, period.calls, reference)
        if len(start_s) < 2:
            continue
        if reference is None:
            reference = start_s
        number = np.arange(len(start_s)) + _offset(start_s, reference)
        columns.append(
            (np.full(len(start_s) - 1, rank), number[:-1], start_s[:-1], np.diff(start_s))
        )
        periods[rank] = period
    if not columns:
        raise DetectError("no rank's calls show two whole steps; give a longer log")
    rank_, step, start_s, duration_s = (
        np.concatenate(arrays) for arrays in zip(*columns, strict=True)
    )
    return StepTimes(rank_, step - step.min(), start_s, duration_s, periods)


def _told_steps(log: CallLog) -> StepTimes:
    """Steps from the log's own numbers: :attr:`CallLog.step`."""
    assert log.step is not None
    assert log.is_whole is not None
    reference: tuple[int, Ints, Floats] | None = None
    columns: list[tuple[Ints, Ints, Floats, Floats, npt.NDArray[np.bool_]]] = []
    periods = {}
    for rank, rows in log.of_ranks():
        begins = rows[log.step[rows] >= 0]
        if len(begins) < 2:
            continue
        group, number = int(log.communicator[begins[0]]), log.step[begins]
        start_s = log.time_s[begins]
        if reference is None:
            reference = group, number, start_s
        elif group != reference[0]:
            # Each communicator has its own count.
            near = nearest(reference[2], start_s)
            number = number + int(np.median(reference[1][near] - number))
        follows = np.flatnonzero(np.diff(number) == 1)
        whole = log.is_whole[begins]
        columns.append(
            (
                np.full(len(follows), rank),
                number[follows],
                start_s[follows],
                np.diff(start_s)[follows],
                whole[follows],
            )
        )
        own = rows[log.communicator[rows] == group]
        calls = np.diff(np.searchsorted(own, begins))[follows][whole[follows]]
        if len(calls):
            periods[rank] = Period(int(np.median(calls)), 1.0, float(len(follows)))
    if not periods:
        raise DetectError("no rank has two steps of which all was recorded; give a longer log")
    rank_, step, start, duration, is_whole = (
        np.concatenate(arrays) for arrays in zip(*columns, strict=True)
    )
    return StepTimes(rank_, step - step.min(), start, duration, periods, is_whole)


def _periodic(
    rows: Ints,
    codes: Ints,
    communicator: Ints,
    longest: int,
    periods_of_names: dict[bytes, Period | None],
) -> tuple[Ints, Ints, Period | None]:
    """A rank's repeating rows, their names, and the period.

    All calls if they repeat, else those of the communicator with the longest period in time. Calls
    of several threads have no fixed order, but those of a communicator have.
    """
    best: tuple[Ints, Ints, Period | None] = rows, codes[rows], None
    longest_s = 0.0
    for group in (None, *np.unique(communicator[rows])):
        candidate = rows if group is None else rows[communicator[rows] == group]
        names = _by_appearance(codes[candidate])
        key = names.tobytes()
        if key not in periods_of_names:
            periods_of_names[key] = find_period(names, longest=longest)
        period = periods_of_names[key]
        if period is None:
            continue
        if group is None:
            return candidate, names, period
        seconds = period.calls / len(candidate)
        if seconds > longest_s:
            best, longest_s = (candidate, names, period), seconds
    return best


def _by_appearance(codes: Ints) -> Ints:
    """Numbers of names by first appearance, which are equal for ranks with the same calls."""
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    renamed: Ints = place[inverse]
    return renamed


def _agree(
    sequences: list[tuple[int, Ints, Floats, Period]],
) -> list[tuple[int, Ints, Floats, Period]]:
    """Correct the periods of ranks with parts or multiples of a step to those of most ranks.

    A rank whose microbatches are all alike repeats several times in a step of the others.
    """
    seconds = np.array(
        [
            float(time_s[-1] - time_s[0]) / (len(time_s) - 1) * period.calls
            for _, _, time_s, period in sequences
        ]
    )
    typical_s = float(np.median(seconds))
    agreed = []
    for (rank, names, time_s, period), own_s in zip(sequences, seconds, strict=True):
        ones_in_step = round(typical_s / own_s) if own_s > 0 else 1
        # At least three steps must remain, as for any period.
        if ones_in_step > 1 and period.repetitions / ones_in_step >= 2:
            period = Period(
                period.calls * ones_in_step, period.confidence, period.repetitions / ones_in_step
            )
        steps_in_one = round(own_s / typical_s) if typical_s > 0 else 1
        # Unlucky damage can merge several steps, but not on most ranks.
        if steps_in_one > 1 and period.calls % steps_in_one == 0:
            period = Period(
                period.calls // steps_in_one, period.confidence, period.repetitions * steps_in_one
            )
        agreed.append((rank, names, time_s, period))
    return agreed


def _offset(start_s: Floats, reference: Floats) -> int:
    """Number of a rank's first step among the reference's steps."""
    return int(np.median(nearest(reference, start_s) - np.arange(len(start_s))))
