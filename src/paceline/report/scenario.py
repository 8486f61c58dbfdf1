"""Timelines that a user names: a job as traced, replayed, measured, ideal, or something between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import OutputError, ScenarioError, TraceError
from paceline.graph import Durations, Measured, from_trace
from paceline.report import events, perfetto
from paceline.report.events import Events
from paceline.simulate import Rules, timeline
from paceline.trace import Trace
from paceline.whatif import Scenario, ideal_durations, rules_of

#: Scenarios that are no what-if: the rows themselves, and the simulation with launch delays.
TRACED, REPLAYED = "traced", "replayed"


@dataclass(frozen=True)
class Drawing:
    """A timeline ready to be written.

    Attributes:
        events: what to draw.
        about: what the file says of itself.
        notes: what the user should know.
        replica_names: what to call replicas that stand for others.
    """

    events: Events
    about: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    replica_names: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))


def check_scenario(name: str) -> None:
    """ScenarioError where ``name`` is no scenario that can be drawn."""
    if name in (TRACED, REPLAYED):
        return
    try:
        Scenario.parse(name)
    except ScenarioError as error:
        if ":" in name:
            raise
        raise ScenarioError(f"{error}; timelines can also be {TRACED} or {REPLAYED}") from None


def draw(
    trace: Trace,
    scenario: str,
    *,
    steps: Sequence[int] | None = None,
    replicas: Sequence[int] | None = None,
    keep_clocks: bool = False,
) -> Drawing:
    """The timeline of a trace under a scenario.

    Ideal durations are taken over all steps of the trace, as the analysis does, whichever are
    drawn.

    Args:
        trace: what happened.
        scenario: ``traced`` (the rows as they are), ``replayed`` (simulated, with launch delays),
            or what :meth:`Scenario.parse` takes (simulated, without).
        steps: step numbers to draw; None draws the first that is analysed.
        replicas: data-parallel ranks to draw; None draws all.
        keep_clocks: do not correct clock offsets between workers.

    Raises:
        ScenarioError: there is no such scenario.
        TraceError: the trace has no such step or replica.
        OutputError: too many events for a viewer.
    """
    check_scenario(scenario)
    _check_replicas(replicas, trace.job.dp_size)
    notes: tuple[str, ...] = ()
    measured = None
    if steps is None or scenario != TRACED:
        measured = from_trace(trace, keep_clocks=keep_clocks)
    if steps is None and measured is not None:
        steps = [int(measured.steps[0])]
        if len(measured.steps) > 1:
            notes = (
                f"step {steps[0]} only, the first of {len(measured.steps)}; --steps for others",
            )
    chosen = np.unique(np.asarray(steps, dtype=np.int64))
    if scenario == TRACED or measured is None:
        drawn, more = _traced(trace, chosen, replicas)
    else:
        drawn, more = _simulated(measured, scenario, chosen, replicas)
    about = {
        "tool": "paceline",
        "scenario": scenario,
        "steps": np.unique(drawn.step).tolist(),
        "replicas": "all" if replicas is None else sorted(set(replicas)),
    }
    return Drawing(drawn, about, notes + more)


def draw_ideal(measured: Measured) -> Drawing:
    """One step of the ideal job: its steps and equally built replicas are all alike.

    Raises:
        OutputError: too many events for a viewer.
    """
    graph = measured.graph
    perfetto.check_size(graph.n_ops, 1, graph.n_variants)
    first = [int(dps[0]) for dps in graph.variant_dps]
    # One replica stands for all of its structure.
    small = replace(graph, replica_variant=np.arange(graph.n_variants))
    ideal = Rules(np.zeros((1, graph.n_ops), dtype=bool), ideal_durations(measured.durations))
    alone = timeline(Durations.empty(small, 1), ideal)
    drawn = events.from_timeline(alone, measured.steps[:1])
    drawn = replace(drawn, dp=np.array(first)[drawn.dp])
    note = (
        "in the ideal, all steps and all replicas of one structure are alike: one of each is drawn"
    )
    alike = {str(dps[0]): dps.tolist() for dps in graph.variant_dps}
    about = {"tool": "paceline", "scenario": "ideal", "note": note, "replicas_alike": alike}
    names = {
        int(dps[0]): f"dp {dps[0]} and {len(dps) - 1} alike"
        for dps in graph.variant_dps
        if len(dps) > 1
    }
    return Drawing(drawn, about, replica_names=names)


def _check_replicas(replicas: Sequence[int] | None, n_dp: int) -> None:
    bad = sorted(dp for dp in replicas or () if not 0 <= dp < n_dp)
    if bad:
        raise TraceError(f"the job has no replica {bad[0]}; it has 0 to {n_dp - 1}")


def _traced(
    trace: Trace, steps: npt.NDArray[np.int64], replicas: Sequence[int] | None
) -> tuple[Events, tuple[str, ...]]:
    absent = steps[~np.isin(steps, trace.steps)]
    part = trace.select_steps(steps.tolist())
    per_replica = part.counts.sum(axis=(0, 2, 3))
    chosen = np.arange(len(per_replica)) if replicas is None else np.unique(np.asarray(replicas))
    perfetto.check_size(int(per_replica[chosen].sum()), part.n_steps, len(chosen))
    drawn = events.from_rows(part, replicas)
    if not len(drawn):
        raise OutputError("these replicas have no operations in these steps; nothing to draw")
    return drawn, _not_drawn(absent, trace.left_out)


def _simulated(
    measured: Measured,
    scenario: str,
    steps: npt.NDArray[np.int64],
    replicas: Sequence[int] | None,
) -> tuple[Events, tuple[str, ...]]:
    index = np.flatnonzero(np.isin(measured.steps, steps))
    absent = steps[~np.isin(steps, measured.steps)]
    notes = _not_drawn(absent, measured.left_out)
    if not len(index):
        raise TraceError(
            f"none of the steps asked for is analysed ({notes[0]}); analysed are "
            f"{measured.steps[0]} to {measured.steps[-1]}"
        )
    graph = measured.graph
    chosen = np.arange(graph.n_dp) if replicas is None else np.unique(np.asarray(replicas))
    ops = np.diff(graph.variant_ptr)[graph.replica_variant[chosen]].sum()
    perfetto.check_size(int(ops) * len(index), len(index), len(chosen))
    durations = measured.durations.of_steps(index)
    if scenario == REPLAYED:
        result = timeline(durations, delays=measured.delays.of_steps(index))
    else:
        ideal = ideal_durations(measured.durations)
        rules, rule_of_dp = rules_of(graph, durations, ideal, Scenario.parse(scenario))
        result = timeline(durations, rules, rule_of_dp=rule_of_dp)
    return events.from_timeline(result, measured.steps[index], replicas), notes


def _not_drawn(absent: npt.NDArray[np.int64], left_out: Mapping[int, str]) -> tuple[str, ...]:
    """A note on the steps asked for that are not there, with the reason of one."""
    if not len(absent):
        return ()
    # A step that was left out says more than one that never was.
    number = next((int(step) for step in absent if int(step) in left_out), int(absent[0]))
    reason = f"left out: {left_out[number]}" if number in left_out else "not in the trace"
    if len(absent) == 1:
        return (f"step {number} is {reason}",)
    return (f"{len(absent)} of the steps asked for are not drawn; step {number} is {reason}",)
