"""Warnings about an analysis: delays, clocks, merged no-ops, missing peers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, StepGraph
from paceline.trace import KIND_GROUPS, OpKind
from paceline.trace.kinds import DP_KINDS, MEAN_KINDS, P2P_KINDS
from paceline.trace.warning import (
    COARSE_TIMES,
    FEW_STEPS,
    IMPOSSIBLE_TIMES,
    LAUNCH_DELAYS,
    NO_PEERS,
    ONE_PEER,
    REFERENCE_FAILS,
    SLOW_MODES,
    UNLIKE_NOOPS,
    Warning,
)
from paceline.units import seconds
from paceline.whatif.ideal import Reference
from paceline.whatif.lasting import ENOUGH_STEPS
from paceline.whatif.layout import ideal_lane_error_s
from paceline.whatif.result import LaunchDelay, WhatIf

#: Largest replay error of a trace with consistent times.
MAX_REPLAY_ERROR = 0.001

#: Largest possible error by merged no-ops without a warning, as a share of T_ideal.
MAX_MERGED = 0.001

#: Coarsest unit of rounded times without a warning, as a share of a typical compute.
COARSE = 0.05

#: Units to which clocks and files round, seconds. Number of examined values, and largest distance
#: of a rounded value from a multiple of the unit.
GRIDS_S, GRID_SAMPLES, ON_GRID = (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5), 2048, 1e-3


def step_doubts(durations: Durations) -> list[Warning]:
    """A warning about few steps, if medians over the steps show lasting slowness."""
    n_steps = durations.n_steps
    if n_steps >= ENOUGH_STEPS or not durations.graph.programmed:
        return []
    steps = "1 step" if n_steps == 1 else f"{n_steps} steps"
    text = (
        f"only {steps} analysed: they do not show how much steps differ. Passing variation may "
        f"look lasting, and findings are less certain; record {ENOUGH_STEPS} steps or more "
        "(a longer run; or every=2, PACELINE_RECORD_EVERY=2, which profile one step of two)"
    )
    return [Warning(FEW_STEPS, text, {"steps": n_steps})]


def delay_doubts(
    discrepancy: float, delay: LaunchDelay, names: Callable[[str], str] = str
) -> list[Warning]:
    """A warning if the discrepancy is above 5%, where the paper drops a trace (section 6).

    ``names`` gives the name of a kind for people.
    """
    if discrepancy <= WhatIf.DOUBTFUL_ABOVE:
        return []
    worst = sorted(delay.by_kind.items(), key=lambda item: -item[1])[:3]
    causes = [f"{names(label)} +{factor - 1:.1%}" for label, factor in worst if factor > 1.001]
    if delay.step_start > 1.001:
        causes.append(f"at the start of steps +{delay.step_start - 1:.1%}")
    named = f"; delays before {', '.join(causes)}" if causes else ""
    text = f"the simulation differs from the trace by {discrepancy:.1%} of the step"
    if causes:
        text = f"the simulation leaves out time between operations, {discrepancy:.1%} of the step"
    text += f" (from 5% on, the paper calls an analysis doubtful){named}"
    return [Warning(LAUNCH_DELAYS, text, {"discrepancy": discrepancy})]


def clock_doubts(replay_error: float, clamped: int) -> list[Warning]:
    """A warning if a replay of all measured times differs from the trace."""
    if replay_error <= MAX_REPLAY_ERROR:
        return []
    text = (
        f"replaying the trace misses it by {replay_error:.1%}: {clamped} times are impossible (a "
        "transfer ends before its last member starts, or an operation starts before its "
        "dependencies have ended) and became 0. What rests on transfers is doubtful. If the "
        "workers' clocks drift, fewer steps help (--steps)"
    )
    return [Warning(IMPOSSIBLE_TIMES, text, {"replay_error": replay_error, "times": clamped})]


def resolution_doubts(durations: Durations) -> list[Warning]:
    """A warning if times of computes are rounded so coarsely that it looks like variation."""
    graph = durations.graph
    ops = np.flatnonzero(graph.kind == OpKind.FORWARD_COMPUTE)
    few = ops[:: -(-len(ops) // GRID_SAMPLES)]
    values = np.concatenate([durations.row(op)[:, 0] for op in few.tolist()])[:GRID_SAMPLES]
    typical = float(np.median(values))
    grid = next((grid for grid in GRIDS_S if _on_grid(values, grid)), 0.0)
    if typical <= 0 or grid <= COARSE * typical:
        return []
    text = (
        f"times are rounded to {seconds(grid)}, {grid / typical:.0%} of a typical forward-compute: "
        "smaller costs do not show, and rounding counts as variation between operations"
    )
    return [Warning(COARSE_TIMES, text, {"grid_s": grid, "typical_s": typical})]


def _on_grid(values: npt.NDArray[np.float64], grid: float) -> bool:
    """Whether the values are multiples of a unit, of which some are consecutive."""
    places = values / grid
    if (np.abs(places - np.rint(places)) > ON_GRID).any():
        return False
    distinct = np.unique(np.rint(places))
    return len(distinct) > 2 and float(np.diff(distinct).min()) == 1


def noop_doubts(durations: Durations, t_ideal: float) -> list[Warning]:
    """A warning if ideal replicas were merged although their no-ops differ."""
    error = ideal_lane_error_s(durations)
    if error <= MAX_MERGED * t_ideal:
        return []
    text = (
        "no-op sends and recvs differ between replicas; of ideal replicas, only the slowest were "
        f"simulated: slowdowns may be too low by up to {error / t_ideal:.1e}"
    )
    return [Warning(UNLIKE_NOOPS, text, {"error": error / t_ideal})]


def reference_notes(
    judged_by: Reference,
    n_steps: int,
    slowdown: float,
    slowdown_paper: float,
    names: Callable[[str], str] = str,
) -> list[Warning]:
    """Warnings about the reference: kinds with two modes, and an ideal slower than the job.

    ``names`` gives the name of a kind for people.
    """
    notes = []
    if judged_by.modes:
        named = ", ".join(
            f"{names(kind.label)} ({modes.slow.sum()} of {n_steps} steps, {modes.ratio:.3g}x)"
            for kind, modes in judged_by.modes.items()
        )
        text = (
            f"slow everywhere at once in part of the steps: {named}. The reference is the fast "
            f"steps of the kind; by the paper's, its median over all steps, S would be "
            f"{slowdown_paper:.3f}"
        )
        notes.append(Warning(SLOW_MODES, text, {"slowdown_paper": slowdown_paper}))
    if slowdown < WhatIf.REFERENCE_FAILS_BELOW:
        text = (
            f"S is {slowdown:.3f}: the job is faster than its reference, so S says nothing here. "
            "Most of a kind of operation is slow, and there are too few others to compare with"
        )
        notes.append(Warning(REFERENCE_FAILS, text, {"slowdown": slowdown}))
    return notes


def peers_of(graph: StepGraph) -> dict[str, int]:
    """Kind -> number of its links, groups or workers that can be compared with each other."""
    present = {OpKind(int(kind)) for kind in np.unique(graph.kind)}
    peers = {}
    for label, kinds in KIND_GROUPS.items():
        kind = kinds[0]
        if not present & set(kinds):
            continue
        if kind in P2P_KINDS:
            peers[label] = graph.n_dp * (graph.n_pp - 1)
        elif kind == OpKind.OPTIMIZER_CLIP_MAIN_GRAD:
            peers[label] = 1
        elif kind == OpKind.EMBEDDING_GRADS_ALL_REDUCE:
            peers[label] = graph.n_dp
        elif kind in DP_KINDS:
            peers[label] = graph.n_pp
        else:
            peers[label] = graph.n_dp * graph.n_pp
    return peers


def judged(peers: dict[str, int], names: Callable[[str], str] = str) -> list[Warning]:
    """Warnings about kinds with few peers: half of a lasting slowness shows with one, else none.

    ``names`` gives the name of a kind for people.
    """
    alone = [names(label) for label, n in peers.items() if n == 1]
    halved = [
        names(label)
        for label, n in peers.items()
        if n == 2 and KIND_GROUPS[label][0] not in MEAN_KINDS
    ]
    notes = []
    if halved:
        text = (
            "judged against one peer only, so that S shows half of a lasting slowness (the median "
            f"of two is their mean): {', '.join(halved)}"
        )
        notes.append(Warning(ONE_PEER, text, {"kinds": len(halved)}))
    if alone:
        text = (
            "not judged, for want of peers to compare with (slowness in all steps cannot show): "
            + ", ".join(alone)
        )
        notes.append(Warning(NO_PEERS, text, {"kinds": len(alone)}))
    return notes
