"""Hide what passes between operations: data loading at the start of steps, or launch delays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.errors import RemedyError
from paceline.graph import Durations, StepGraph
from paceline.remedies.outcome import copy_of, needed_finding, outcome
from paceline.remedies.remedy import Case, Remedy, RemedyKind, predicted_step_s
from paceline.trace import OpKind

Array = npt.NDArray[np.float64]


def propose(case: Case) -> Remedy:
    """Hide the delays that cost most: those at the start of steps, or those before one kind of op.

    The gain is a share of the traced step: launch delays lie outside the simulated one.

    Raises:
        RemedyError: launch delays cost next to nothing.
    """
    needed_finding(case, "launch-delay", "time lost between operations")
    measured = case.measured
    graph, delay = measured.graph, case.result.launch_delay
    label = max(delay.by_kind, key=lambda kind: delay.by_kind[kind])
    masks = {
        "step-start": _at_start(graph),
        label: graph.kind == OpKind.from_label(label),
    }
    replayed = predicted_step_s(measured.durations, measured.delays)
    saved = {
        where: replayed - predicted_step_s(measured.durations, _without(measured.delays, hidden))
        for where, hidden in masks.items()
    }
    where = max(saved, key=lambda name: float(saved[name].mean()))
    if saved[where].mean() <= 0:
        raise RemedyError("hiding the delays of any one kind saves nothing: they lie side by side")
    action, notes = _words(where)
    return outcome(
        case,
        KIND.name,
        action,
        measured.traced_step_s - saved[where],
        {"hide": where, "saved_s": {name: float(s.mean()) for name, s in saved.items()}},
        causes=KIND.causes,
        notes=notes,
        before_s=measured.traced_step_s,
    )


def _words(where: str) -> tuple[str, tuple[str, ...]]:
    """What to do, and its limits."""
    most = "compared with the traced step, delays included; the most that hiding them can gain"
    if where != "step-start":
        return f"remove the delays before {where}", (most,)
    return "load the data of a step during the one before (prefetch)", (
        most,
        "the start of a step shows data loading, but also all else that Python does there",
    )


def _at_start(graph: StepGraph) -> npt.NDArray[np.bool_]:
    """[op] that wait for nothing, or are the first compute of their stage."""
    first = (graph.kind == OpKind.FORWARD_COMPUTE) & (graph.seq == 0)
    start: npt.NDArray[np.bool_] = graph.sources | first
    return start


def _without(delays: Durations, hidden: npt.NDArray[np.bool_]) -> Durations:
    changed = copy_of(delays)
    for v, block in enumerate(changed.blocks):
        block[hidden[delays.graph.variant_ops(v)]] = 0.0
    return changed


KIND = RemedyKind(
    "hide-delays",
    "hide data loading and other delays between operations",
    frozenset({"launch-delay"}),
    propose,
)
