"""The tables of kinds and stages: what each accounts for of the change of the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paceline.comparison.attribution import Part, contributions
from paceline.comparison.interval import certain, difference, means_of
from paceline.comparison.losses import change_of
from paceline.comparison.result import Change, PartChange
from paceline.graph import Measured
from paceline.simulate import Progress
from paceline.trace import KIND_GROUPS, OpKind
from paceline.trace.kinds import PASSES
from paceline.whatif import WhatIf

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Launch delays as rows of the table of kinds: those at the start of steps (where data loading
#: shows), and all others.
DELAY_AT_START, DELAY = "launch-delay-start", "launch-delay"

_Pair = tuple[float | None, float | None]


def kind_changes(
    measured: tuple[Measured, Measured],
    results: tuple[WhatIf, WhatIf],
    units: float | None,
    progress: Progress | None = None,
) -> tuple[PartChange, ...]:
    """Kinds and launch delays by the size of their change.

    Args:
        measured: before and after.
        results: before and after.
        units: units in a step of both; None where durations cannot be exchanged.
        progress: of the simulations.
    """
    before, after = results
    names = list(dict.fromkeys([*before.by_kind, *after.by_kind]))
    changes: dict[str, Change] = {}
    if units is not None:
        parts = [*_kinds(measured[0], names), *_delays(measured[0])]
        changes = _changes(measured, parts, units, progress)
        names += [part.name for part in parts[-2:]]
    rows = [
        PartChange(
            name=name,
            change=changes.get(name),
            mean_s=(_mean_op_s(measured[0], name), _mean_op_s(measured[1], name)),
            slowdown=(before.by_kind.get(name), after.by_kind.get(name)),
        )
        for name in names
    ]
    return tuple(sorted(rows, key=lambda row: -abs(row.change.seconds if row.change else 0.0)))


def stage_changes(
    measured: tuple[Measured, Measured],
    results: tuple[WhatIf, WhatIf],
    units: float,
    progress: Progress | None = None,
) -> tuple[PartChange, ...]:
    """Stages in order; arguments as for :func:`kind_changes`."""
    graph = measured[0].graph
    stages = [(str(pp), graph.pp == pp) for pp in range(graph.n_pp)]
    changes = _changes(measured, [Part(name, m, m) for name, m in stages], units, progress)
    computes = [_stage_compute_s(side) for side in measured]
    return tuple(
        PartChange(
            name=str(pp),
            change=changes[str(pp)],
            mean_s=(float(computes[0][pp]), float(computes[1][pp])),
            slowdown=(results[0].by_stage.get(pp), results[1].by_stage.get(pp)),
        )
        for pp in range(graph.n_pp)
    )


def _changes(
    measured: tuple[Measured, Measured],
    parts: Sequence[Part],
    units: float,
    progress: Progress | None,
) -> dict[str, Change]:
    means = means_of(contributions(*measured, parts, progress) / units)
    nothing = certain(np.zeros_like(means.mean))
    change, low, high = difference(nothing, means, len(parts))
    rows = np.stack([change, low, high], axis=1).tolist()
    return {part.name: change_of(*row) for part, row in zip(parts, rows, strict=True)}


def _kinds(measured: Measured, names: Sequence[str]) -> list[Part]:
    graph = measured.graph
    none = np.zeros(graph.n_ops, dtype=bool)
    masks = [np.isin(graph.kind, [int(kind) for kind in KIND_GROUPS[name]]) for name in names]
    return [Part(name, mask, none) for name, mask in zip(names, masks, strict=True)]


def _delays(measured: Measured) -> list[Part]:
    graph = measured.graph
    none = np.zeros(graph.n_ops, dtype=bool)
    start = graph.sources | ((graph.kind == OpKind.FORWARD_COMPUTE) & (graph.seq == 0))
    return [Part(DELAY_AT_START, none, start), Part(DELAY, none, ~start)]


def _mean_op_s(measured: Measured, name: str) -> float | None:
    """Mean seconds of an operation of a kind; None where there is none."""
    if name not in KIND_GROUPS:
        return None
    graph = measured.graph
    mask = np.isin(graph.kind, [int(kind) for kind in KIND_GROUPS[name]]) & ~graph.noop
    total, count = 0.0, 0
    for v, block in enumerate(measured.durations.blocks):
        values = block[mask[graph.variant_ops(v)]]
        total, count = total + float(values.sum()), count + values.size
    return total / count if count else None


def _stage_compute_s(measured: Measured) -> Array:
    """[pp] mean seconds that a worker of the stage computes in a step."""
    graph, total = measured.graph, np.zeros(measured.graph.n_pp)
    for v, block in enumerate(measured.durations.blocks):
        ops = graph.variant_ops(v)
        computes = np.flatnonzero(np.isin(graph.kind[ops], PASSES))
        np.add.at(total, graph.pp[ops][computes], block[computes].sum(axis=(1, 2)))
    return total / (measured.durations.n_steps * graph.n_dp)
