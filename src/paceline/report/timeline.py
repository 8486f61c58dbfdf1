"""Timelines of scenarios that a user names: traced, replayed, measured, ideal, or a mixture."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import OutputError, ScenarioError, TraceError
from paceline.graph import Durations, Measured, from_trace
from paceline.report import events, perfetto
from paceline.report.counters import job_counters, waiting_counter
from paceline.report.events import Events
from paceline.report.scene import Counter, Scene, scene_of
from paceline.simulate import Rules, timeline
from paceline.trace import Trace
from paceline.whatif import Scenario, ideal_durations, rules_of
from paceline.whatif.segments import Replay

#: Scenarios beyond what-ifs: the traced rows, and the simulation with launch delays.
TRACED, REPLAYED = "traced", "replayed"

#: Other names for scenarios.
ALIASES = MappingProxyType({"actual": REPLAYED, "simulated": "measured"})

#: Separator in a list of scenarios. It does not match inside ``worker=3,1``.
_BETWEEN = re.compile(r",(?=\s*[a-z])")


@dataclass(frozen=True)
class Drawing:
    """Scenes that are ready to be written.

    Attributes:
        scenes: the scenes to draw, one per scenario.
        about: the file's description of itself.
        notes: notes for the user.
        replica_names: names of replicas that represent others.
    """

    scenes: tuple[Scene, ...]
    about: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    replica_names: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def events(self) -> Events:
        """The events of the first scene."""
        return self.scenes[0].events


def scenarios_of(text: str) -> tuple[str, ...]:
    """The scenarios of a user's list such as ``actual,ideal,only:worker=3,1``.

    Raises:
        ScenarioError: a name is not a drawable scenario, or comes twice.
    """
    names = tuple(name.strip() for name in _BETWEEN.split(text))
    for name in names:
        if ALIASES.get(name, name) in (TRACED, REPLAYED):
            continue
        try:
            Scenario.parse(ALIASES.get(name, name))
        except ScenarioError as error:
            if ":" in name:
                raise
            raise ScenarioError(
                f"{error}; timelines can also be {TRACED} or {REPLAYED} (or actual), or several "
                "names separated by commas"
            ) from None
    canonical = [ALIASES.get(name, name) for name in names]
    twice = next((name for name in canonical if canonical.count(name) > 1), None)
    if twice is not None:
        raise ScenarioError(f"the scenario {twice} comes twice in {text!r}")
    return names


def draw(
    trace: Trace,
    scenario: str,
    *,
    steps: Sequence[int] | None = None,
    replicas: Sequence[int] | None = None,
    keep_clocks: bool = False,
) -> Drawing:
    """The timelines of a trace under one or more scenarios.

    Ideal durations come from all steps of the trace, as in the analysis, not only from the drawn
    steps.

    Args:
        trace: the trace.
        scenario: one name, or several with commas between them. ``traced`` draws the rows
            unchanged. ``replayed`` or ``actual`` simulates with launch delays. ``simulated``, or
            a text for :meth:`Scenario.parse`, simulates without.
        steps: step numbers to draw; None draws the first analysed step.
        replicas: data-parallel ranks to draw; None draws all.
        keep_clocks: do not correct clock offsets between workers.

    Raises:
        ScenarioError: there is no such scenario.
        TraceError: the trace has no such step or replica.
        OutputError: too many events for a viewer.
    """
    names = scenarios_of(scenario)
    _check_replicas(replicas, trace.job.replicas)
    notes: tuple[str, ...] = ()
    measured = None
    if steps is None or names != (TRACED,):
        measured = from_trace(trace, keep_clocks=keep_clocks)
    if steps is None and measured is not None:
        steps = [int(measured.steps[0])]
        if len(measured.steps) > 1:
            notes = (
                f"step {steps[0]} only, the first of {len(measured.steps)}; --steps for others",
            )
    step_numbers = np.unique(np.asarray(steps, dtype=np.int64))
    scenes: list[Scene] = []
    simulation = None
    for name in names:
        title = name if len(names) > 1 else ""
        if name == TRACED or measured is None:
            scene, scene_notes = _traced_scene(trace, step_numbers, replicas, title, len(names))
        else:
            first = simulation is None
            simulation = simulation or _Simulation(measured, step_numbers, len(names))
            scene, scene_notes = simulation.scene(name, title, replicas, first=first)
        scenes.append(scene)
        notes += scene_notes
    about = {
        "tool": "paceline",
        "scenario": scenario,
        "steps": np.unique(np.concatenate([scene.events.step for scene in scenes])).tolist(),
        "replicas": "all" if replicas is None else sorted(set(replicas)),
    }
    return Drawing(tuple(scenes), about, tuple(dict.fromkeys(notes)))


def draw_ideal(measured: Measured) -> Drawing:
    """One step of the ideal job, whose steps and replicas of equal structure are all alike.

    Raises:
        OutputError: too many events for a viewer.
    """
    graph = measured.graph
    perfetto.check_size(graph.n_ops, 1, graph.n_variants)
    first_dps = [int(dps[0]) for dps in graph.variant_dps]
    # One replica represents all of its structure.
    one_each = replace(graph, replica_variant=np.arange(graph.n_variants))
    ideal = Rules.common(graph, ideal_durations(measured.durations))
    ideal_timeline = timeline(Durations.empty(one_each, 1), ideal)
    scene = scene_of(ideal_timeline, measured.steps[:1])
    scene_events = replace(scene.events, dp=np.array(first_dps)[scene.events.dp])
    path = scene.path and replace(scene.path, dp=np.array(first_dps)[scene.path.dp])
    note = (
        "in the ideal job, all steps and all replicas of one structure are equal: one of each is "
        "drawn"
    )
    equal_replicas = {str(dps[0]): dps.tolist() for dps in graph.variant_dps}
    about = {
        "tool": "paceline",
        "scenario": "ideal",
        "note": note,
        "replicas_alike": equal_replicas,
    }
    names = {
        int(dps[0]): f"dp {dps[0]} and {len(dps) - 1} alike"
        for dps in graph.variant_dps
        if len(dps) > 1
    }
    return Drawing((replace(scene, events=scene_events, path=path),), about, replica_names=names)


def _check_replicas(replicas: Sequence[int] | None, n_dp: int) -> None:
    bad = sorted(dp for dp in replicas or () if not 0 <= dp < n_dp)
    if bad:
        raise TraceError(f"the job has no replica {bad[0]}; it has 0 to {n_dp - 1}")


def _traced_scene(
    trace: Trace,
    steps: npt.NDArray[np.int64],
    replicas: Sequence[int] | None,
    title: str,
    n_scenes: int,
) -> tuple[Scene, tuple[str, ...]]:
    absent = steps[~np.isin(steps, trace.steps)]
    selection = trace.select_steps(steps.tolist())
    per_replica = selection.counts.sum(axis=(0, 2, 3))
    dps = np.arange(len(per_replica)) if replicas is None else np.unique(np.asarray(replicas))
    n_events = int(per_replica[dps].sum()) * n_scenes
    perfetto.check_size(n_events, selection.n_steps, len(dps))
    scene_events = events.from_rows(selection, replicas)
    if not len(scene_events):
        raise OutputError("these replicas have no operations in these steps; nothing to draw")
    return Scene(scene_events, title), _absent_note(absent, trace.left_out)


class _Simulation:
    """Some steps of a job, simulated under one scenario or another."""

    def __init__(self, measured: Measured, steps: npt.NDArray[np.int64], n_scenes: int) -> None:
        """Choose the steps; ``n_scenes`` scenes of them share one file.

        Raises:
            TraceError: none of the steps is analysed.
        """
        index = np.flatnonzero(np.isin(measured.steps, steps))
        absent = steps[~np.isin(steps, measured.steps)]
        self.notes = _absent_note(absent, measured.left_out)
        if not len(index):
            raise TraceError(
                f"none of the requested steps is analysed ({self.notes[0]}); the analysed steps "
                f"are {measured.steps[0]} to {measured.steps[-1]}"
            )
        self.graph, self.steps, self.n_scenes = measured.graph, measured.steps[index], n_scenes
        self.durations = measured.durations.of_steps(index)
        self.delays = measured.delays.of_steps(index)
        self.ideal = ideal_durations(measured.durations)

    def scene(
        self, name: str, title: str, replicas: Sequence[int] | None, *, first: bool
    ) -> tuple[Scene, tuple[str, ...]]:
        """The scene of one scenario; the first simulated one has the job's counters.

        Raises:
            OutputError: too many events for a viewer.
        """
        graph, n_steps = self.graph, len(self.steps)
        dps = np.arange(graph.n_dp) if replicas is None else np.unique(np.asarray(replicas))
        ops = np.diff(graph.variant_ptr)[graph.replica_variant[dps]].sum()
        perfetto.check_size(int(ops) * n_steps * self.n_scenes, n_steps, len(dps))
        durations, delays, ideal = self.durations, self.delays, self.ideal
        replay = None
        counters: tuple[Counter, ...] = ()
        if first:
            counters = job_counters(durations, delays, ideal, self.steps)
        if ALIASES.get(name, name) == REPLAYED:
            replay = Replay(durations, delays)
            result = timeline(durations, delays=delays)
            counters += (waiting_counter(result, delays, self.steps),)
        else:
            scenario = Scenario.parse(ALIASES.get(name, name))
            rules, rule_of_dp = rules_of(graph, durations, ideal, scenario)
            result = timeline(durations, rules, rule_of_dp=rule_of_dp)
        scene = scene_of(result, self.steps, replicas, name=title, replay=replay, counters=counters)
        return scene, self.notes


def _absent_note(absent: npt.NDArray[np.int64], left_out: Mapping[int, str]) -> tuple[str, ...]:
    """A note on requested steps that are missing, with the reason for one of them."""
    if not len(absent):
        return ()
    # Prefer a left-out step: its reason is more useful than "not in the trace".
    number = next((int(step) for step in absent if int(step) in left_out), int(absent[0]))
    reason = f"left out: {left_out[number]}" if number in left_out else "not in the trace"
    if len(absent) == 1:
        return (f"step {number} is {reason}",)
    return (f"{len(absent)} of the requested steps are not drawn; step {number} is {reason}",)
