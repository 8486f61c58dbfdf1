"""Cautions about an analysis: delays, clocks, merged no-ops, missing peers."""

from __future__ import annotations

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
from paceline.whatif.layout import ideal_lane_error_s
from paceline.whatif.result import LaunchDelay, WhatIf

#: Fewer steps do not show how much steps differ: their median still holds what passes.
ENOUGH_STEPS = 10

#: Above this the replay of a trace says that its times contradict each other.
MAX_REPLAY_ERROR = 0.001

#: Merged no-ops that could change slowdowns by less than this are not worth a warning.
MAX_MERGED = 0.001

#: Times on a grid coarser than this share of a typical compute are worth a warning.
COARSE = 0.05

#: Grids that clocks and files have, seconds; values looked at, and how near to the grid they lie.
GRIDS_S, GRID_SAMPLES, ON_GRID = (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5), 2048, 1e-3


def step_doubts(durations: Durations) -> list[Warning]:
    """How sure findings of few steps can be, where medians over steps tell what lasts."""
    n_steps = durations.n_steps
    if n_steps >= ENOUGH_STEPS or not durations.graph.programmed:
        return []
    steps = "1 step" if n_steps == 1 else f"{n_steps} steps"
    text = (
        f"only {steps} analysed: they do not show how much steps differ. Variation that passes "
        f"may look as if it lasts, and findings are less sure; record {ENOUGH_STEPS} steps or more "
        "(a longer run; or every=2, PACELINE_RECORD_EVERY=2, which profile every second step)"
    )
    return [Warning(FEW_STEPS, text, {"steps": n_steps})]


def delay_doubts(discrepancy: float, delay: LaunchDelay) -> list[Warning]:
    """Above a discrepancy of 5% the paper drops a trace (section 6)."""
    if discrepancy <= WhatIf.DOUBTFUL_ABOVE:
        return []
    worst = sorted(delay.by_kind.items(), key=lambda item: -item[1])[:3]
    causes = [f"{label} +{factor - 1:.1%}" for label, factor in worst if factor > 1.001]
    if delay.step_start > 1.001:
        causes.append(f"at the start of steps +{delay.step_start - 1:.1%}")
    named = f"; delays before {', '.join(causes)}" if causes else ""
    text = (
        f"the simulation differs from the trace by {discrepancy:.1%} (over 5%): the analysis is "
        f"doubtful, time is lost between operations{named}"
    )
    return [Warning(LAUNCH_DELAYS, text, {"discrepancy": discrepancy})]


def clock_doubts(replay_error: float, clamped: int) -> list[Warning]:
    """Replaying everything that was measured must give what was traced."""
    if replay_error <= MAX_REPLAY_ERROR:
        return []
    text = (
        f"replaying the trace misses it by {replay_error:.1%}: {clamped} times are impossible (a "
        "transfer ends before its last member starts, or an operation starts before what it waits "
        "for has ended) and became 0. What rests on transfers is doubtful. If the workers' clocks "
        "drift, fewer steps help (--steps)"
    )
    return [Warning(IMPOSSIBLE_TIMES, text, {"replay_error": replay_error, "times": clamped})]


def resolution_doubts(durations: Durations) -> list[Warning]:
    """Computes whose times were rounded so coarsely that rounding looks like variation."""
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
        "what costs less cannot show, and rounding counts as variation between operations"
    )
    return [Warning(COARSE_TIMES, text, {"grid_s": grid, "typical_s": typical})]


def _on_grid(values: npt.NDArray[np.float64], grid: float) -> bool:
    """Whether values are multiples of a grid and take several of its places next to each other."""
    places = values / grid
    if (np.abs(places - np.rint(places)) > ON_GRID).any():
        return False
    distinct = np.unique(np.rint(places))
    return len(distinct) > 2 and float(np.diff(distinct).min()) == 1


def noop_doubts(durations: Durations, t_ideal: float) -> list[Warning]:
    """Ideal replicas that had to be merged although their no-ops differ."""
    error = ideal_lane_error_s(durations)
    if error <= MAX_MERGED * t_ideal:
        return []
    text = (
        "no-op sends and recvs differ between replicas; where others are ideal only the slowest "
        f"were simulated: slowdowns may be too low by up to {error / t_ideal:.1e}"
    )
    return [Warning(UNLIKE_NOOPS, text, {"error": error / t_ideal})]


def reference_notes(
    judged_by: Reference, n_steps: int, slowdown: float, slowdown_paper: float
) -> list[Warning]:
    """Cautions about the reference: kinds judged over time, and an ideal slower than the job."""
    notes = []
    if judged_by.modes:
        named = ", ".join(
            f"{kind.label} ({modes.slow.sum()} of {n_steps} steps, {modes.ratio:.3g}x)"
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
    """Kind -> how many links, groups or workers of it there are to compare with each other."""
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


def judged(peers: dict[str, int]) -> list[Warning]:
    """Warnings about kinds whose lasting slowness cannot show for want of peers, or only half."""
    alone = [label for label, n in peers.items() if n == 1]
    halved = [
        label for label, n in peers.items() if n == 2 and KIND_GROUPS[label][0] not in MEAN_KINDS
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
