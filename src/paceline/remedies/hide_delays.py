"""Hide the gaps between operations: data loading at the start of steps, and launch delays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from paceline.diagnose.data_waits import late_workers
from paceline.diagnose.finding import Finding
from paceline.diagnose.late_starts import (
    LateStarts,
    begun_earlier,
    begun_late_s,
    step_s_with,
)
from paceline.errors import NotApplicableError, RemedyError
from paceline.graph import Measured, StepGraph
from paceline.remedies.outcome import needed_finding, outcome
from paceline.remedies.remedy import Case, Prediction, Remedy, RemedyKind
from paceline.simulate import Rules, all_lanes, step_times
from paceline.trace import OpKind

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Values of the option ``hide`` besides labels of ops: the delay at the start of steps, or all.
#: LATE is the lateness of workers that begin steps later than their peers.
START, ALL, LATE = "step-start", "all", "late-workers"

#: One sort of delay is proposed alone if it saves this share of what all sorts save.
NEARLY_ALL_SHARE = 0.95

#: Late workers are proposed alone from this share on: their fault is a narrower one.
LATE_SHARE = 0.5

#: Most late workers in the advice.
MAX_NAMED = 4

#: The practice of hiding delays whose cause the trace does not show.
HOW = "log, copy to the host and synchronise less often {place}, or in a thread"

#: Places of sorts of delay that are no kind of operation.
PLACES = {START: "at the start of steps", LATE: "at the start of late workers' steps"}

#: Sorts of delay that save less than this share of the step are left out of the sentence.
MIN_NAMED = 0.005


def propose(case: Case) -> Remedy:
    """Hide launch delays: all, or one sort of them if the others cost almost nothing.

    Options: ``hide``, the sort to hide: "late-workers", "step-start", the label of a kind of op,
    or "all".

    Raises:
        RemedyError: there is no such sort of delay.
        NotApplicableError: launch delays cost almost nothing, or hiding them saves nothing.
    """
    requested = case.options.get("hide")
    sorts = (LATE, START, ALL, *(kind.label for kind in OpKind))
    if requested is not None and requested not in sorts:
        raise RemedyError(f"there are no delays {requested!r}; --hide takes {', '.join(sorts)}")
    finding = needed_finding(case, "launch-delay", "time lost between operations")
    if finding.part_of and requested is None:
        raise NotApplicableError(
            "waits for data explain most of the delays between operations: load-ahead is the "
            "remedy; --hide hides them all the same"
        )
    measured = case.measured
    # The time in which the step before still runs is not a step's own.
    overlap_s = case.result.overlap_s
    before = _of(step_s_with(measured) - overlap_s)
    masks = _masks(measured.graph)
    steps = {name: _hidden(measured, masks, mask, overlap_s) for name, mask in masks.items()}
    waits = next((f for f in case.diagnosis.findings if f.cause == "data-loading"), None)
    late = late_workers(measured, case.result, waits)
    if late is not None:
        steps = {LATE: step_s_with(measured, late.late_s) - overlap_s, **steps}
    saved = {name: float((before.step_s - step_s).mean()) for name, step_s in steps.items()}
    hide = _delays_to_hide(case, saved, finding)
    if saved[hide] <= 0:
        raise NotApplicableError(
            f"hiding these delays ({hide}) saves nothing: they coincide with other delays"
        )
    is_open = bool(finding.ambiguous) and (hide == LATE or bool((masks[hide] & masks[START]).any()))
    names = sorted(saved, key=lambda name: -saved[name])
    table = [
        {"hide": name, "saved_s": saved[name], "gain": saved[name] / before.mean_s}
        for name in names
        if saved[name] > 0 or name == hide
    ]
    repeated = _kinds_at_start(measured, before.step_s, masks, saved, overlap_s)
    gains = {name: saved[name] / before.mean_s for name in names if name not in repeated}
    return outcome(
        case,
        KIND,
        _action(hide, gains, measured.graph, late),
        _of(steps[hide]),
        {
            "hide": [name for name in masks if name != ALL] if hide == ALL else [hide],
            "alone": table,
            **({} if late is None else {"workers": [list(worker) for worker in late.workers]}),
        },
        notes=_notes(hide)
        + _covered(hide, finding)
        + ((f"the gain may be 0: {finding.ambiguous}",) if is_open else ()),
        before=before,
        otherwise=(before,) if is_open else (),
    )


def _masks(graph: StepGraph) -> dict[str, Mask]:
    """[op] whether its delay is hidden, for each sort; the narrowest sort first."""
    start = graph.sources | ((graph.kind == OpKind.FORWARD_COMPUTE) & (graph.seq == 0))
    masks: dict[str, Mask] = {START: start}
    for kind in OpKind:
        if (mask := graph.kind == kind).any():
            masks[kind.label] = mask
    masks[ALL] = np.ones(graph.n_ops, dtype=bool)
    return masks


def _hidden(measured: Measured, masks: Mapping[str, Mask], hidden: Mask, overlap_s: Array) -> Array:
    """[step] step times without some delays, less the overlap with the step before.

    A worker that ends its step late for such a delay begins the next one late. It then begins the
    next one earlier, too, and that overlap is gone.
    """
    graph = measured.graph
    rules = Rules.own(graph, ~hidden[None])
    lanes = all_lanes(graph, measured.durations.n_steps)
    if (hidden & masks[START]).any():
        return step_times(measured.durations, rules, lanes, measured.delays)
    earlier_s = np.minimum(_hidden_of_worker(measured, hidden), begun_late_s(measured))
    delays = begun_earlier(measured, earlier_s)
    remaining_s = np.maximum(overlap_s - earlier_s.max(axis=(1, 2)), 0.0)
    step_s: Array = step_times(measured.durations, rules, lanes, delays) - remaining_s
    return step_s


def _hidden_of_worker(measured: Measured, hidden: Mask) -> Array:
    """[step, dp, pp] sum of the delays that would be hidden, of each worker."""
    graph = measured.graph
    hidden_s = np.zeros(measured.idle_before_s.shape)
    for v in range(graph.n_variants):
        span, block = graph.variant_ops(v), measured.delays.block(v)
        for stage in range(graph.n_pp):
            ops = np.flatnonzero(hidden[span] & (graph.pp[span] == stage))
            if len(ops):
                hidden_s[:, graph.variant_dps[v], stage] = block[ops].clip(0).sum(axis=0)
    return hidden_s


def _of(step_s: Array) -> Prediction:
    """A prediction of delays only: without delays the change has no effect."""
    return Prediction(step_s, step_s)


def _delays_to_hide(case: Case, saved: Mapping[str, float], finding: Finding) -> str:
    """The sort of delay: the requested one, or the narrowest that answers the finding."""
    if (requested := case.options.get("hide")) is not None:
        if requested == LATE not in saved:
            raise NotApplicableError("no worker begins its steps later than its peers")
        if requested not in saved:
            raise NotApplicableError(f"the trace has no {requested} operations")
        return str(requested)
    # Waits for data that are a finding of their own have a remedy of their own.
    beside = "beside" in finding.evidence
    if LATE in saved and (beside or saved[LATE] >= LATE_SHARE * saved[ALL]):
        return LATE
    return next(name for name in saved if saved[name] >= NEARLY_ALL_SHARE * saved[ALL])


def _kinds_at_start(
    measured: Measured,
    before_s: Array,
    masks: Mapping[str, Mask],
    saved: Mapping[str, float],
    overlap_s: Array,
) -> set[str]:
    """Kinds whose delays are those at the start of steps: hiding both saves no more than one."""
    kinds = set()
    for name in set(saved) - {LATE, START, ALL}:
        least, most = sorted((saved[START], saved[name]))
        if least >= NEARLY_ALL_SHARE * most > 0:
            both_s = _hidden(measured, masks, masks[START] | masks[name], overlap_s)
            if least >= NEARLY_ALL_SHARE * float((before_s - both_s).mean()):
                kinds.add(name)
    return kinds


def _action(
    hide: str, gains: Mapping[str, float], graph: StepGraph, late: LateStarts | None
) -> str:
    """The advice, with the gain of each of its parts alone."""
    if hide == LATE and late is not None:
        names = "; ".join(graph.worker_name(*worker) for worker in late.workers[:MAX_NAMED])
        n_others = len(late.workers) - MAX_NAMED
        others = f" and {n_others} more" if n_others > 0 else ""
        of = "workers" if len(late.workers) > 1 else "worker"
        return (
            f"begin the steps of {of} {names}{others} with those of the peers: look for work of "
            "the host before the first operation, such as data loading, garbage collection or "
            "logging"
        )
    if hide == START:
        return "load the data of a step during the step before (prefetch)"
    sorts = [name for name in gains if name not in (ALL, hide) and gains[name] >= MIN_NAMED]
    if hide != ALL:  # only the step's start may be a part of a kind's delays
        sorts = [START] if START in sorts and hide == OpKind.FORWARD_COMPUTE.label else []
    gain_text = ", ".join(
        f"{PLACES.get(name, f'before {graph.kind_name(name)}')} {gains[name]:.1%}" for name in sorts
    )
    place = "between operations" if hide == ALL else f"before {graph.kind_name(hide)}"
    parts = f" (those {gain_text})" if gain_text else ""
    return f"{HOW.format(place=place)}{parts}"


def _notes(hide: str) -> tuple[str, ...]:
    most = "the most that hiding them can gain; --hide chooses which delays"
    if hide not in (LATE, START, ALL):
        return (most,)
    return (
        most,
        "the delay at the start of a step is data loading and everything else that Python does "
        "there",
    )


def _covered(hide: str, finding: Finding) -> tuple[str, ...]:
    """The other findings whose time a wider sort of delay holds, as a note."""
    if hide == LATE or "late_share" not in finding.evidence:
        return ()
    beside = "beside" in finding.evidence
    others = "waits for data, a finding of their own" if beside else "those of all workers"
    return (f"the gain covers more than late starts: {others}",)


KIND = RemedyKind(
    "hide-delays",
    "hide data loading and other delays between operations",
    frozenset({"launch-delay"}),
    propose,
    whole_passes=False,
)
