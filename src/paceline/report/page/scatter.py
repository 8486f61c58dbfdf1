"""Data of the scatter: forward against backward of single microbatches."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.graph import Measured
from paceline.graph.computes import whole_passes
from paceline.report.page.pack import base64_of
from paceline.trace import OpKind

MAX_POINTS = 3000

Ints = npt.NDArray[np.int64]


def scatter_data(measured: Measured) -> dict[str, Any]:
    """A sample of forward and backward times of the same microbatch, on the paper's stage (5.3).

    The stage is the second (or the only one). Of several chunks the first is left out.
    """
    graph = measured.graph
    stage = 1 if graph.n_pp > 1 else 0
    passes = whole_passes(measured.durations)
    blocks = []
    for v, dps in enumerate(graph.variant_dps):
        forward, backward, microbatch = _pairs(measured, v, stage)
        shape = (len(forward), measured.durations.n_steps, len(dps))
        axes = (microbatch[:, None, None], measured.steps[:, None], dps)
        labels = (np.broadcast_to(axis, shape).ravel() for axis in axes)
        blocks.append([passes.of(v, forward).ravel(), passes.of(v, backward).ravel(), *labels])
    x, y, microbatch, step, dp = (np.concatenate(column) for column in zip(*blocks, strict=True))
    sample = np.arange(len(x))
    if len(x) > MAX_POINTS:
        sample = np.sort(np.random.default_rng(0).choice(len(x), MAX_POINTS, replace=False))
    columns = {"x": (x, "<f4"), "y": (y, "<f4"), "microbatch": (microbatch, "<i4")}
    columns |= {"step": (step, "<i4"), "dp": (dp, "<i4")}
    packed = {name: base64_of(c[sample].astype(kind)) for name, (c, kind) in columns.items()}
    return {"stage": stage, "n_all": len(x), **packed}


def _pairs(measured: Measured, variant: int, stage: int) -> tuple[Ints, Ints, Ints]:
    """First parts (within the variant) of forwards and backwards, and their microbatch."""
    graph = measured.graph
    ops = graph.variant_ops(variant)
    in_stage = (graph.pp[ops] == stage) & (graph.pass_of[ops] == np.arange(ops.start, ops.stop))
    if measured.job.vpp_size > 1:
        in_stage &= graph.chunk[ops] > 0
    sides = []
    for kind in (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE):
        matches = np.flatnonzero(in_stage & (graph.kind[ops] == kind))
        by_microbatch = np.lexsort((graph.microbatch[ops][matches], graph.chunk[ops][matches]))
        sides.append(matches[by_microbatch])
    forward, backward = sides
    return forward, backward, graph.microbatch[ops][forward].astype(np.int64)
