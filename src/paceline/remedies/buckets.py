"""Larger or smaller buckets of gradients (DDP's bucket_cap_mb).

The time of a reduction is a latency plus its bytes over the bandwidth. A trace has no bytes, so
only an upper bound of the latency is known: the fastest collective of the stage. Latencies of 0 and
of this bound are simulated. A change is offered only if it gains in both cases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paceline.diagnose import MIN_OF_STEP
from paceline.errors import NotApplicableError, RemedyError
from paceline.graph import Measured
from paceline.graph.program_steps import REDUCTIONS, Pass, reduced_for
from paceline.remedies.outcome import MAX_OPEN_GAP, need_gain, outcome
from paceline.remedies.programs import (
    Added,
    Replica,
    changed_job,
    without,
)
from paceline.remedies.remedy import Case, Prediction, Remedy, RemedyKind
from paceline.trace import OpKind
from paceline.trace.kinds import DP_KINDS
from paceline.trace.warning import LATE_ENDS
from paceline.units import seconds

#: Bucket sizes to compare, as multiples of the present size.
SIZES = (0.125, 0.25, 0.5, 2.0, 4.0, 8.0)

#: Jobs were run again with the change (benchmarks/programs.py). For 95% of them, the gain lay at
#: most this far outside the interval from the steps alone.
MARGIN = 0.01


def propose(case: Case) -> Remedy:
    """Cut or join buckets.

    Options: ``bucket_size``, a multiple of the present size (a power of 2); ``latency_us``, the
    time of an all-reduce with almost no bytes.

    Raises:
        RemedyError: an option has an impossible value.
        NotApplicableError: there are no buckets, the trace does not bound the latency, no size
            gains for all latencies, or the gains differ too much.
    """
    kinds = case.measured.graph.kind
    if not any((kinds == kind).any() for kind in REDUCTIONS):
        raise NotApplicableError("the trace has no reduction of gradients")
    if (kinds == OpKind.PARAMS_ALL_GATHER).any():
        raise NotApplicableError(
            "gradients are reduced unit by unit, as modules are wrapped, not in buckets"
        )
    trial = _Trial(case, _latencies(case))
    sizes = SIZES if (size := _requested(case)) is None else (size,)
    tried = {size: trial.of(size) for size in sizes}
    best = min(tried, key=lambda size: tried[size].worst.mean_s)
    _refuse_open(case, trial, tried, best)
    readings = tried[best]
    need_gain(case, readings.worst, _name(best))
    now_s = case.before.mean_s
    table = [
        {"size": size, "step_time_s": r.worst.mean_s, "gain": 1 - r.worst.mean_s / now_s}
        for size, r in tried.items()
    ]
    return outcome(
        case,
        KIND,
        f"make buckets of gradients {best:g} times as large",
        readings.worst,
        {"size": best, "latency_s": list(trial.latencies), "compared": table},
        notes=(
            "DDP: multiply bucket_cap_mb by this; the gradients of a bucket are assumed to "
            "become ready evenly over its backward; a bucket holds at least one parameter",
            "computes are assumed to be as fast beside a reduction as alone",
        ),
        otherwise=[readings.best],
        margin=MARGIN,
    )


def _name(size: float) -> str:
    return f"buckets {size:g} times as large"


def _refuse_open(case: Case, trial: _Trial, tried: Mapping[float, _Readings], best: float) -> None:
    """Raise NotApplicableError if the readings of a size differ too much in their gains."""
    size = best
    if not tried[best].gains(case):
        size = min(tried, key=lambda size: tried[size].best.mean_s)
    readings = tried[size]
    open_gap = readings.gap > MAX_OPEN_GAP or not readings.gains(case)
    if open_gap and readings.may_gain(case):
        raise NotApplicableError(
            f"with {_name(size)} a step takes {seconds(readings.best.mean_s)} or "
            f"{seconds(readings.worst.mean_s)}, now {seconds(case.before.mean_s)}, {trial.doubt}"
        )


def _requested(case: Case) -> float | None:
    size = case.options.get("bucket_size")
    if size is None:
        return None
    power = math.log2(float(size)) if float(size) > 0 else 0.0
    if not power or not power.is_integer():
        raise RemedyError(f"--bucket-size {size} is not a power of 2 other than 1 (0.5, 2, 4, ...)")
    return float(size)


def _latencies(case: Case) -> tuple[float, float]:
    """The smallest and largest latency in seconds that the trace allows, or the user's option."""
    given = case.options.get("latency_us")
    if given is not None:
        if float(given) < 0:
            raise RemedyError(f"a latency of {given} us is not possible")
        return float(given) * 1e-6, float(given) * 1e-6
    if any(doubt.code == LATE_ENDS for doubt in case.measured.doubts):
        raise NotApplicableError(
            "ends of reductions are only upper bounds, so the latency of one is not known; give "
            "--latency-us, the time of a very small all-reduce"
        )
    return 0.0, max(0.0, fastest_collective_s(case.measured))


def fastest_collective_s(measured: Measured) -> float:
    """Typical time of the fastest data-parallel collective: an upper bound of the latency."""
    graph, durations = measured.graph, measured.durations
    wide = np.flatnonzero(np.isin(graph.kind, [int(kind) for kind in DP_KINDS]))
    return min(float(np.median(durations.row(op))) for op in wide.tolist())


@dataclass(frozen=True)
class _Readings:
    """Steps with other buckets, for each of the two readings of the latency."""

    best: Prediction
    worst: Prediction

    @property
    def gap(self) -> float:
        return self.worst.mean_s / self.best.mean_s - 1

    def gains(self, case: Case) -> bool:
        return self.worst.mean_s <= case.before.mean_s * (1 - MIN_OF_STEP)

    def may_gain(self, case: Case) -> bool:
        return self.best.mean_s <= case.before.mean_s * (1 - MIN_OF_STEP)


class _Trial:
    """Steps with buckets of other sizes."""

    def __init__(self, case: Case, latencies: tuple[float, float]) -> None:
        self.case, self.latencies = case, latencies

    @property
    def doubt(self) -> str:
        """The reason why the readings of a size differ."""
        low, high = self.latencies
        if low == high:
            return "depending on whether the pieces of a bucket vary alike or independently"
        return (
            f"for a latency between {seconds(low)} and {seconds(high)}: the trace has no bytes to "
            "narrow it down; give --latency-us, the time of a very small all-reduce"
        )

    def of(self, size: float) -> _Readings:
        steps = [
            self._predicted(size, latency, own=own)
            for latency in dict.fromkeys(self.latencies)
            for own in ((False, True) if size < 1 else (False,))
        ]
        steps.sort(key=lambda prediction: prediction.mean_s)
        return _Readings(steps[0], steps[-1])

    def _predicted(self, size: float, latency_s: float, *, own: bool) -> Prediction:
        def edit(replica: Replica) -> None:
            for stage in range(len(replica.steps)):
                if size > 1:
                    join_buckets(replica, stage, round(size), latency_s)
                else:
                    cut_buckets(replica, stage, round(1 / size), latency_s, own=own)

        new = changed_job(self.case.measured, edit, self.case.delays)
        return self.case.predicted(new.durations, new.delays)


def _buckets(replica: Replica, stage: int) -> dict[tuple[int, Pass], list[int]]:
    """(kind, pass) -> its buckets in the order of their launches."""
    buckets: dict[tuple[int, Pass], list[int]] = {}
    for op, of_pass in reduced_for(replica.ops, replica.steps[stage]).items():
        buckets.setdefault((replica.kind(op), of_pass), []).append(op)
    return buckets


def join_buckets(replica: Replica, stage: int, n: int, latency_s: float) -> None:
    """Reduce every ``n`` successive buckets as one, when the last of them is ready."""
    steps = replica.steps[stage]
    for buckets in _buckets(replica, stage).values():
        for number, low in enumerate(range(0, len(buckets), n)):
            joined = buckets[low : low + n]
            terms = tuple((op, 1.0) for op in joined)
            saved_s = (len(joined) - 1) * latency_s
            new = replica.add(Added(joined[-1], number, terms, -saved_s))
            waits = [steps.index(~op) for op in joined if ~op in steps]
            if waits:
                behind = max(min(waits), steps.index(joined[-1]) + 1)
                steps.insert(behind, ~new)
            steps.insert(steps.index(joined[-1]), new)
            without(replica, stage, joined)


def cut_buckets(
    replica: Replica, stage: int, n: int, latency_s: float, *, own: bool = False
) -> None:
    """Reduce each bucket in ``n`` equal pieces; cut the backward in front of it, too.

    Args:
        replica: the replica to change, in place.
        stage: the stage whose buckets are cut.
        n: pieces of a bucket.
        latency_s: latency of each reduction.
        own: whether each piece varies independently; otherwise all vary alike.
    """
    steps = replica.steps[stage]
    for (_, of_pass), buckets in _buckets(replica, stage).items():
        part = 0
        for bucket in buckets:
            compute = _backward_of(replica, steps, bucket, of_pass)
            pieces = [
                replica.add(_piece(bucket, part + i, n, own, i, latency_s * (1 - 1 / n)))
                for i in range(n)
            ]
            part += n
            if ~bucket in steps:
                at = steps.index(~bucket)
                steps[at : at + 1] = [~piece for piece in pieces]
            if compute is not None:
                at = steps.index(compute)
                steps[at : at + 1] = _cut(replica, compute, pieces, own)
            at = steps.index(bucket)
            steps[at : at + 1] = pieces[-1:] if compute is not None else pieces


def _piece(op: int, part: int, n: int, own: bool, nth: int, plus_s: float = 0.0) -> Added:
    """One of ``n`` equal pieces of an op."""
    return Added(op, part, ((op, 1 / n),), plus_s, n if own else 0, nth)


def _cut(replica: Replica, compute: int, pieces: list[int], own: bool) -> list[int]:
    """Cut a compute into one part per piece of its bucket; each piece follows its part."""
    steps: list[int] = []
    for nth, piece in enumerate(pieces):
        steps.append(replica.add(_piece(compute, 0, len(pieces), own, nth)))
        steps.append(piece)
    return steps[:-1]


def _backward_of(replica: Replica, steps: list[int], bucket: int, of_pass: Pass) -> int | None:
    """The longest compute of the pass between the launches of the previous bucket and this one."""
    computes = []
    for step in reversed(steps[: steps.index(bucket)]):
        if step >= 0 and replica.kind(step) in REDUCTIONS:
            break
        if step >= 0 and replica.is_local(step) and replica.pass_of(step) == of_pass:
            computes.append(step)
    recorded = [op for op in computes if op < replica.n_recorded]
    return max(recorded, key=lambda op: replica.typical_s[op], default=None)


KIND = RemedyKind(
    "bucket-size",
    "reduce gradients in larger or smaller buckets",
    frozenset(),
    propose,
    architecture=True,
    whole_passes=False,
    of_programs=True,
)
