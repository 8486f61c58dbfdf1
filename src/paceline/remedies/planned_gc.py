"""Planned garbage collection: all workers at once, every N steps (what-if paper, 5.4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paceline import units
from paceline.diagnose.fit import fit_computes, pauses
from paceline.errors import NotApplicableError, RemedyError
from paceline.remedies.outcome import copy_of, needed_finding, outcome
from paceline.remedies.remedy import Case, Prediction, Remedy, RemedyKind

Array = npt.NDArray[np.float64]

#: Intervals in the table; the paper's job collects every 500 steps.
EVERY_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

#: The job would save most without any collection. The proposed interval is the shortest that saves
#: this share of that: a longer one gains almost nothing and needs more memory.
ENOUGH_SHARE = 0.95

#: All workers wait for the slowest collection, estimated by this quantile of the traced pauses.
SLOW_QUANTILE = 0.95


def propose(case: Case) -> Remedy:
    """Collect on all workers in the same step, every N steps.

    Options: ``every_steps``, the interval; the default is the shortest that saves enough.

    Raises:
        RemedyError: the requested interval is not a positive number of steps.
        NotApplicableError: the trace shows no garbage collection, or planning it would save
            nothing.
    """
    requested = case.options.get("every_steps")
    if requested is not None and int(requested) < 1:
        raise RemedyError(f"collecting every {requested} steps is not possible; give 1 or more")
    needed_finding(case, "gc", "garbage collection")
    calm, seconds, n_chances = _without_pauses(case)
    pause = float(np.quantile(seconds, SLOW_QUANTILE))
    now = case.before.mean_s
    if calm.mean_s >= now:
        raise NotApplicableError("the pauses cost nothing: the job waits longer for other workers")
    table = [_row(every, calm.mean_s + pause / every, now) for every in EVERY_STEPS]
    every = _interval(case, table, 1 - calm.mean_s / now)
    rate = len(seconds) / n_chances  # collections per worker and step
    change: dict[str, Any] = {
        "every_steps": every,
        "pause_s": pause,
        "collections_seen": len(seconds),
        "steps_between_automatic": 1 / rate,
        "table": table,
    }
    return outcome(
        case,
        KIND,
        f"turn automatic garbage collection off and collect on all workers every {every} steps",
        calm.plus(pause / every),
        change,
        notes=(
            f"a planned collection is assumed to last {units.seconds(pause)}, the "
            f"{SLOW_QUANTILE:.0%} quantile of the pauses seen, at any interval",
            f"a worker now collects about every {1 / rate:.3g} steps; memory that only a "
            "collection frees grows in between: lengthen the interval step by step and watch the "
            "memory",
        ),
    )


def _without_pauses(case: Case) -> tuple[Prediction, Array, int]:
    """The job without pauses, [pause] seconds, and number of worker x step."""
    durations = case.measured.durations
    fit = fit_computes(durations)
    changed = copy_of(durations)
    pauses_s = []
    for v, excess in enumerate(pauses(durations, fit, 0)):
        ops = fit.variants[v].ops[0]
        changed.block(v)[ops] = durations.block(v)[ops] - excess
        pauses_s.append(excess[excess > 0])
    graph = durations.graph
    return (
        case.predicted(changed),
        np.concatenate(pauses_s),
        graph.n_dp * graph.n_pp * durations.n_steps,
    )


def _row(every: int, step_s: float, now: float) -> dict[str, Any]:
    return {"every_steps": every, "step_time_s": step_s, "gain": 1 - step_s / now}


def _interval(case: Case, table: list[dict[str, Any]], limit: float) -> int:
    """The requested interval, or the shortest that gains enough of ``limit``."""
    if (requested := case.options.get("every_steps")) is not None:
        return int(requested)
    enough = (row["every_steps"] for row in table if row["gain"] >= ENOUGH_SHARE * limit)
    return int(next(enough, EVERY_STEPS[-1]))


KIND = RemedyKind(
    "planned-gc",
    "collect garbage on all workers at the same time, every N steps",
    frozenset({"gc"}),
    propose,
)
