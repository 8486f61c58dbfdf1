"""The timeline of the worst step, and forward against backward of single microbatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.graph import Measured
from paceline.report import events
from paceline.report.events import Events
from paceline.report.page.pack import MISSING, base64_of
from paceline.report.scenario import draw_ideal
from paceline.simulate import timeline
from paceline.trace import OpKind
from paceline.whatif import WhatIf

#: Rows and events that a page still shows at ease; they decide how many replicas are drawn.
MAX_ROWS, MAX_REPLICAS, MAX_EVENTS = 48, 4, 40_000

MAX_POINTS = 3000

Ints = npt.NDArray[np.int64]


def timeline_data(measured: Measured, result: WhatIf) -> dict[str, Any]:
    """The longest step as it was, and the ideal one, of the replicas that matter."""
    index = int(np.argmax(result.traced_s))
    slowest_first, typical = _order(result, index)
    replicas = _choose(measured, slowest_first, typical)
    one = np.array([index])
    actual = timeline(measured.durations.of_steps(one), delays=measured.delays.of_steps(one))
    real = events.from_timeline(actual, measured.steps[one], replicas)
    variant = int(measured.graph.replica_variant[replicas[0]])
    ideal = draw_ideal(measured).events
    stands_for_it = ideal.dp == int(measured.graph.variant_dps[variant][0])
    packed, kinds = _pack(measured, replicas, real, ideal, stands_for_it)
    return {
        "step": int(result.steps[index]),
        "actual_s": float(result.traced_s[index]),
        "ideal_s": float(result.ideal_s[index]),
        "kinds": kinds,
        "rows": _rows(measured.graph.n_pp, replicas, slowest_first, typical),
        "n_dp": measured.graph.n_dp,
        "replicas": list(replicas),
        **packed,
    }


def _order(result: WhatIf, index: int) -> tuple[list[int], int]:
    """Replicas, the one that costs the step most first; and the typical one."""
    cost = result.by_replica_by_step[index]
    order = np.argsort(-cost, kind="stable")
    return order.tolist(), int(order[len(order) // 2])


def _choose(measured: Measured, slowest_first: Sequence[int], typical: int) -> list[int]:
    graph = measured.graph
    ops = int(np.diff(graph.variant_ptr).max())
    room = min(MAX_ROWS // graph.n_pp - 1, MAX_EVENTS // ops - 1, MAX_REPLICAS)
    if graph.n_dp <= room:
        return list(slowest_first)
    slow = [dp for dp in slowest_first if dp != typical][: max(room - 1, 1)]
    return [*slow, typical] if room > 1 else slow


def _rows(
    n_pp: int, replicas: Sequence[int], slowest_first: Sequence[int], typical: int
) -> list[dict[str, Any]]:
    rows = []
    for dp in replicas:
        what = "slowest" if dp == slowest_first[0] else "typical" if dp == typical else ""
        what = what if len(slowest_first) > 1 else ""
        rows += [{"dp": dp, "pp": pp, "what": what, "ideal": False} for pp in range(n_pp)]
    return [*rows, *({"dp": -1, "pp": pp, "what": "", "ideal": True} for pp in range(n_pp))]


def _pack(
    measured: Measured,
    replicas: Sequence[int],
    real: Events,
    ideal: Events,
    kept: npt.NDArray[np.bool_],
) -> tuple[dict[str, str], list[str]]:
    """Events as columns, by row and start."""
    n_pp = measured.graph.n_pp
    place = np.zeros(measured.graph.n_dp, dtype=np.int64)
    place[list(replicas)] = np.arange(len(replicas))
    row = np.concatenate([place[real.dp] * n_pp + real.pp, len(replicas) * n_pp + ideal.pp[kept]])
    kind, microbatch, start, end = (
        np.concatenate([getattr(real, name), getattr(ideal, name)[kept]])
        for name in ("kind", "microbatch", "start_s", "end_s")
    )
    order = np.lexsort((start, row))
    order = order[(end > start)[order]]
    packed = {
        "row": base64_of(row[order].astype("<u2")),
        "kind": base64_of(kind[order].astype("<u1")),
        "microbatch": base64_of(np.where(microbatch < 0, MISSING, microbatch)[order].astype("<u2")),
        "start": base64_of(start[order].astype("<f4")),
        "length": base64_of((end - start)[order].astype("<f4")),
    }
    return packed, [kind.label for kind in OpKind]


def scatter_data(measured: Measured) -> dict[str, Any]:
    """Forward and backward of the same microbatch, where the paper looks (5.3), sampled.

    That is on the second stage (the first where there is one only), without the first chunk if
    there are several.
    """
    graph = measured.graph
    stage = 1 if graph.n_pp > 1 else 0
    parts = []
    for v, dps in enumerate(graph.variant_dps):
        forward, backward, microbatch = _pairs(measured, v, stage)
        block = measured.durations.block(v)
        shape = (len(forward), measured.durations.n_steps, len(dps))
        axes = (microbatch[:, None, None], measured.steps[:, None], dps)
        labels = (np.broadcast_to(axis, shape).ravel() for axis in axes)
        parts.append([block[forward].ravel(), block[backward].ravel(), *labels])
    x, y, microbatch, step, dp = (np.concatenate(column) for column in zip(*parts, strict=True))
    chosen = np.arange(len(x))
    if len(x) > MAX_POINTS:
        chosen = np.sort(np.random.default_rng(0).choice(len(x), MAX_POINTS, replace=False))
    columns = {"x": (x, "<f4"), "y": (y, "<f4"), "microbatch": (microbatch, "<i4")}
    columns |= {"step": (step, "<i4"), "dp": (dp, "<i4")}
    packed = {name: base64_of(c[chosen].astype(kind)) for name, (c, kind) in columns.items()}
    return {"stage": stage, "n_all": len(x), **packed}


def _pairs(measured: Measured, variant: int, stage: int) -> tuple[Ints, Ints, Ints]:
    """Ops (within the variant) of forward and backward, and their microbatch."""
    graph = measured.graph
    ops = graph.variant_ops(variant)
    here = graph.pp[ops] == stage
    if measured.job.vpp_size > 1:
        here &= graph.chunk[ops] > 0
    sides = []
    for kind in (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE):
        found = np.flatnonzero(here & (graph.kind[ops] == kind))
        by_microbatch = np.lexsort((graph.microbatch[ops][found], graph.chunk[ops][found]))
        sides.append(found[by_microbatch])
    forward, backward = sides
    return forward, backward, graph.microbatch[ops][forward].astype(np.int64)
