"""Micro-batch redistribution: slow replicas get fewer microbatches, the others more (falcon, S2).

The paper minimises the variance of ``m_i * t_i`` by a quadratic programme. With a pipeline, a
replica's time is not proportional to its microbatches, and the smallest variance is not the
smallest maximum. So each replica is simulated for the possible numbers of microbatches, and the
largest time is minimised exactly.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from paceline.errors import NotApplicableError, RemedyError
from paceline.remedies.outcome import outcome
from paceline.remedies.remedy import Case, Remedy, RemedyKind
from paceline.remedies.replace import links_of
from paceline.remedies.resize import Resizer, resizer
from paceline.units import count

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: A smaller gain does not justify a change of the numbers of microbatches.
MIN_GAIN = 0.01

GPIPE_MEMORY = "GPipe keeps the activations of all microbatches: more of them need more memory"
NEW_SEQUENCES = (
    "microbatches differ in cost here; the last ones of slow replicas are assumed to move with "
    "their data, so single steps will differ"
)


def redistribute(times: Array, least: int, total: int, now: Ints) -> Ints:
    """[replica] numbers that sum up to ``total`` and make the largest time as small as possible.

    The solution is exact. It changes few numbers, and adds microbatches where that costs least.

    Args:
        times: [replica, n] seconds for ``least + n`` microbatches; rows ascend.
        least: the smallest number allowed.
        total: sum of the numbers.
        now: [replica] the present numbers.

    Raises:
        RemedyError: the table allows only fewer or only more than ``total``.
    """
    n_replicas, width = times.shape
    if not least * n_replicas <= total <= (least + width - 1) * n_replicas:
        raise RemedyError(f"{total} cannot be distributed over {n_replicas} replicas")

    # Rows ascend, so the count of times within the limit is the number of microbatches.
    nth = total - n_replicas * (least - 1) - 1
    low = max(float(np.partition(times, nth, axis=None)[nth]), float(times[:, 0].max()))
    most = (times <= low).sum(axis=1)
    counts = np.minimum(most, now - (least - 1))
    missing = total - int(counts.sum()) - n_replicas * (least - 1)
    replica, place = _between(counts, most)
    order = np.lexsort((place, times[replica, place]))[:missing]
    shared: Ints = counts + np.bincount(replica[order], minlength=n_replicas) + (least - 1)
    return shared


def _between(first: Ints, end: Ints) -> tuple[Ints, Ints]:
    """(row, column) of the columns from ``first`` to before ``end`` of each row."""
    sizes = np.maximum(end - first, 0)
    stops = np.cumsum(sizes)
    rows = np.repeat(np.arange(len(first)), sizes)
    return rows, np.arange(stops[-1]) + np.repeat(first - (stops - sizes), sizes)


class Sizes(Protocol):
    """Interface of replicas with variable numbers of microbatches (see :class:`Resizer`)."""

    @property
    def counts(self) -> Ints:
        """[dp] present numbers of microbatches."""

    @property
    def unit(self) -> int:
        """Counts must be multiples of this."""

    def replica_s(self, n: int) -> Array:
        """[dp] seconds of each replica alone with ``n`` microbatches."""


def best_counts(resize: Sizes) -> tuple[Ints, Array]:
    """[dp] the best numbers of microbatches, and [dp] present seconds of each replica alone.

    Replicas are simulated for a few numbers of microbatches, and the times between are
    interpolated. For each replica, the largest number that fits into the time and the next larger
    one are simulated, too. Times ascend with the number, so the result is exact.
    """
    now = resize.counts // resize.unit
    total, replicas = int(now.sum()), np.arange(len(now))
    numbers = {1, 2 * int(now.max()), *now.tolist()}
    seconds_of: dict[int, Array] = {}
    while True:
        for units in numbers - seconds_of.keys():
            seconds_of[units] = resize.replica_s(units * resize.unit)
        times = _interpolate(seconds_of)
        counts = redistribute(times, 1, total, now)
        limit = times[replicas, counts - 1].max()
        most = (times <= limit).sum(axis=1)
        numbers = {*np.unique(most).tolist(), *np.unique(most + 1).tolist()}
        if most.max() == times.shape[1]:
            numbers.add(2 * times.shape[1])
        if numbers <= seconds_of.keys():
            return counts * resize.unit, times[replicas, now - 1]


def _interpolate(seconds_of: dict[int, Array]) -> Array:
    """[replica, n] ascending seconds for 1, 2, ..., interpolated from some of the numbers."""
    numbers = np.array(sorted(seconds_of))
    table = np.maximum.accumulate(
        np.stack([seconds_of[n] for n in numbers.tolist()], axis=1), axis=1
    )
    every = np.arange(1, numbers[-1] + 1)
    after = np.clip(np.searchsorted(numbers, every), 1, len(numbers) - 1)
    before = after - 1
    fraction = (every - numbers[before]) / (numbers[after] - numbers[before])
    times: Array = table[:, before] * (1 - fraction) + table[:, after] * fraction
    times[:, numbers - 1] = table
    return np.maximum.accumulate(times, axis=1)


def propose(case: Case) -> Remedy:
    """Give slow replicas fewer microbatches and the others more.

    Raises:
        NotApplicableError: there is one replica, all take about equally long, or the change gains
            nothing.
    """
    measured = case.measured
    if measured.graph.n_dp == 1:
        raise NotApplicableError("there is one replica (dp 1): no other can take its microbatches")
    resize = resizer(measured)
    if resize.counts.max() == resize.unit:
        least = count(resize.unit, "microbatch", "microbatches")
        raise NotApplicableError(f"replicas have {least}, the least possible")
    counts, alone_s = best_counts(resize)
    slowest = float(alone_s.max() / np.median(alone_s)) - 1
    if (counts == resize.counts).all():
        raise NotApplicableError(
            f"the slowest replica takes {slowest:.1%} longer than the median one, too little for "
            f"{'one' if resize.unit == 1 else resize.unit} of its {int(resize.counts.max())} "
            "microbatches to move"
        )
    new = resize.resized(counts, case.delays)
    after = case.predicted(new.durations, new.delays)
    gain = 1 - after.mean_s / case.before.mean_s
    if gain < MIN_GAIN:
        raise NotApplicableError(
            f"other numbers of microbatches gain {max(gain, 0.0):.1%} (under {MIN_GAIN:.0%})"
        )
    return outcome(
        case,
        KIND,
        _action(resize.counts, counts),
        after,
        _change(resize, counts, alone_s),
        causes=_answered_causes(case, np.flatnonzero(counts < resize.counts)),
        notes=(
            "weight each replica's gradients by its number of microbatches, or the loss changes "
            "(falcon paper, 5.3)",
            *([GPIPE_MEMORY] if resize.schedule == "gpipe" else []),
            *([NEW_SEQUENCES] if _varied(case) else []),
        ),
    )


def _answered_causes(case: Case, relieved: Ints) -> list[str]:
    """Causes with a finding in one of the replicas that get fewer microbatches."""
    causes = []
    for finding in case.diagnosis.findings:
        if finding.cause == "worker":
            blamed = {int(dp) for dp, _ in finding.where["workers"]}
        elif finding.cause == "link":
            blamed = {dp for dp, _, _ in links_of(finding)}
        else:
            continue
        if blamed & set(relieved.tolist()):
            causes.append(finding.cause)
    return causes


def _varied(case: Case) -> bool:
    return any(finding.cause == "sequence-length" for finding in case.diagnosis.findings)


def _action(before: Ints, after: Ints) -> str:
    fewer = np.flatnonzero(after < before)
    fewer = fewer[np.argsort(after[fewer] - before[fewer], kind="stable")]
    counts = ", ".join(f"dp {dp}: {before[dp]} to {after[dp]}" for dp in fewer[:3].tolist())
    others = f" and {len(fewer) - 3} more replicas" if len(fewer) > 3 else ""
    n_moved = int((before - after)[fewer].sum())
    moved = "1 microbatch" if n_moved == 1 else f"{n_moved} microbatches"
    return f"move {moved} to faster replicas ({counts}{others})"


def _change(resize: Resizer, counts: Ints, alone_s: Array) -> dict[str, Any]:
    before = resize.counts
    return {
        "microbatches": [
            {"dp": dp, "before": int(before[dp]), "after": int(counts[dp])}
            for dp in np.flatnonzero(counts != before).tolist()
        ],
        "total": int(before.sum()),
        "unit": resize.unit,
        "slowest_replica_over_median": float(alone_s.max() / np.median(alone_s)),
    }


KIND = RemedyKind(
    "micro-batches",
    "give slow replicas fewer microbatches and the others more",
    frozenset({"worker", "link"}),
    propose,
    rebuilds=True,
)
