"""Timelines of single steps as traced, above the ideal step, with their critical paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, Measured
from paceline.graph.served import served
from paceline.report.page.pack import MISSING, base64_of
from paceline.report.timeline import draw_ideal
from paceline.simulate import Timeline, timeline
from paceline.trace import OpKind
from paceline.trace.kinds import DP_KINDS
from paceline.whatif import WhatIf
from paceline.whatif.critical_path import CriticalPath

#: Most rows and events of one step in a page; they limit the number of drawn replicas.
MAX_ROWS, MAX_REPLICAS, MAX_EVENTS = 48, 4, 40_000

#: Most events of all steps together (11 bytes each in the page, about 1 MB), and most steps.
MAX_ALL_EVENTS, MAX_STEPS = 100_000, 100

_VALUES_AT_ONCE = 1 << 19

Ints = npt.NDArray[np.int64]


def timeline_data(measured: Measured, result: WhatIf) -> dict[str, Any]:
    """Some steps as traced, each with its most important replicas, and the ideal step.

    The slowest step is always included. If there is room, the typical and the fastest step follow,
    then others at even distances.
    """
    graph = measured.graph
    n_replicas = _n_replicas(measured)
    room = max(1, MAX_ALL_EVENTS // (n_replicas * _largest(measured)))
    index = chosen_steps(result.traced_s, min(room, MAX_STEPS))
    slowest = int(np.argmax(result.traced_s))
    steps = [
        _step_data(result, actual, place, step, n_replicas)
        for few, actual in _simulate(measured, index)
        for place, step in enumerate(few.tolist())
    ]
    first = int(np.flatnonzero(index == slowest)[0])
    variant = int(graph.replica_variant[steps[first]["replicas"][0]])
    return {
        "kinds": [kind.label for kind in OpKind],
        "names": [graph.kind_name(kind.label) for kind in OpKind],
        "n_dp": graph.n_dp,
        "n_pp": graph.n_pp,
        "variants": [_ops_data(measured, v) for v in range(graph.n_variants)],
        "replica_variant": base64_of(graph.replica_variant.astype("<i4")),
        "steps": steps,
        "n_steps": len(result.steps),
        "first": first,
        "ideal": _ideal_data(measured, variant),
    }


def _simulate(measured: Measured, index: Ints) -> Iterator[tuple[Ints, Timeline]]:
    """Steps as traced, in batches that need little memory."""
    per_step = len(measured.durations.values) // len(measured.steps)
    at_once = max(1, _VALUES_AT_ONCE // per_step)
    for low in range(0, len(index), at_once):
        few = index[low : low + at_once]
        durations, delays = measured.durations.of_steps(few), measured.delays.of_steps(few)
        yield few, timeline(durations, delays=delays)


def chosen_steps(step_s: npt.NDArray[np.float64], room: int) -> Ints:
    """Indices of at most ``room`` steps: the slowest, the typical, the fastest, others evenly."""
    if len(step_s) <= room:
        return np.arange(len(step_s))
    order = np.argsort(-step_s, kind="stable")
    extremes = [order[0], order[len(order) // 2], order[-1]][:room]
    others = np.setdiff1d(np.arange(len(step_s)), extremes)
    spread = np.linspace(0, len(others) - 1, room - len(extremes)).round().astype(np.int64)
    return np.sort(np.concatenate([np.array(extremes), others[spread]]))


def _largest(measured: Measured) -> int:
    """Ops of the largest replica."""
    return int(np.diff(measured.graph.variant_ptr).max())


def _n_replicas(measured: Measured) -> int:
    """Number of replicas drawn in each step."""
    graph = measured.graph
    room = min(MAX_ROWS // graph.n_pp - 1, MAX_EVENTS // _largest(measured) - 1, MAX_REPLICAS)
    return min(graph.n_dp, max(room, 1))


def _ops_data(measured: Measured, variant: int) -> dict[str, Any]:
    """Names and kinds of a replica's ops, equal in every step."""
    graph = measured.graph
    ops = graph.variant_ops(variant)
    _, microbatch = served(graph)
    wide = np.isin(graph.kind[ops], [int(kind) for kind in DP_KINDS])
    part = np.where(wide, np.minimum(graph.part[ops], MISSING), MISSING)
    return {
        **({"part": base64_of(part.astype("<u2"))} if graph.programmed else {}),
        "kind": base64_of(graph.kind[ops].astype("<u1")),
        "pp": base64_of(graph.pp[ops].astype("<u2")),
        "microbatch": base64_of(np.where(microbatch < 0, MISSING, microbatch)[ops].astype("<u2")),
    }


def _step_data(
    result: WhatIf, actual: Timeline, place: int, step: int, n_replicas: int
) -> dict[str, Any]:
    """One step: ``place`` is its index among simulated steps, ``step`` among analysed steps."""
    slowest_first, typical = _order(result, step)
    replicas = _choose(slowest_first, typical, n_replicas)
    path = result.critical_path
    return {
        "step": int(result.steps[step]),
        "actual_s": float(result.traced_s[step]),
        "ideal_s": float(result.ideal_s[step]),
        "replicas": replicas,
        "slowest": slowest_first[0] if len(slowest_first) > 1 else -1,
        "typical": typical if len(slowest_first) > 1 else -1,
        **_times(actual.start, actual.end, place, replicas),
        "path": _path_data(path, step, actual.graph.variant_ptr[actual.graph.replica_variant]),
    }


def _times(start: Durations, end: Durations, place: int, replicas: Sequence[int]) -> dict[str, str]:
    """Starts and lengths of the ops of some replicas, one replica after another."""
    graph = start.graph
    columns = []
    for table in (start, end):
        lanes = [
            table.block(int(graph.replica_variant[dp]))[:, place, graph.dp_index[dp]]
            for dp in replicas
        ]
        columns.append(np.concatenate(lanes))
    starts, ends = columns
    return {
        "start": base64_of(starts.astype("<f4")),
        "length": base64_of((ends - starts).astype("<f4")),
    }


def _path_data(path: CriticalPath, step: int, first_op: Ints) -> dict[str, Any]:
    """The segments of a step's path; ``first_op`` [dp] is the first op of a replica's variant."""
    segments = slice(int(path.ptr[step]), int(path.ptr[step + 1]))
    op, dp = path.op[segments], path.dp[segments]
    return {
        "op": base64_of((op - first_op[dp]).astype("<i4")),
        "dp": base64_of(dp.astype("<i4")),
        "sort": base64_of(path.sort[segments].astype("<u1")),
        "start": base64_of(path.start_s[segments].astype("<f4")),
        "end_s": float(path.step_s[step]),
    }


def _ideal_data(measured: Measured, variant: int) -> dict[str, Any]:
    """The ideal step of one replica structure, whose replicas and steps are equal."""
    drawing = draw_ideal(measured)
    scene, events = drawing.scenes[0], drawing.events
    own = events.dp == int(measured.graph.variant_dps[variant][0])
    start, end = events.start_s[own], events.end_s[own]
    first_op = measured.graph.variant_ptr[measured.graph.replica_variant]
    return {
        "variant": variant,
        "dp": int(measured.graph.variant_dps[variant][0]),
        "start": base64_of(start.astype("<f4")),
        "length": base64_of((end - start).astype("<f4")),
        "path": None if scene.path is None else _path_data(scene.path, 0, first_op),
    }


def _order(result: WhatIf, index: int) -> tuple[list[int], int]:
    """Replicas, the most costly for the step first, and the typical one."""
    cost = result.by_replica_by_step[index]
    order = np.argsort(-cost, kind="stable")
    return order.tolist(), int(order[len(order) // 2])


def _choose(slowest_first: Sequence[int], typical: int, room: int) -> list[int]:
    if len(slowest_first) <= room:
        return list(slowest_first)
    slow = [dp for dp in slowest_first if dp != typical][: max(room - 1, 1)]
    return [*slow, typical] if room > 1 else slow
