"""Traces of planned steps with split backwards, as workers would have recorded them."""

import numpy as np

from paceline.graph.split_replica import split_replica_ops
from paceline.simulate import timeline
from paceline.trace import Columns, OpKind, arrange


def recorded(step, plan, n_steps=5):
    """The step of one replica, several times over."""
    line, graph = timeline(step.durations), step.graph
    overlap = bool((graph.kind == OpKind.SEPARATE_GRADS_ALL_REDUCE).any())
    ops = split_replica_ops(plan.schedule, plan.pp, plan.microbatches, overlap=overlap)
    n = graph.n_ops
    start, end = line.start.array[:, 0, 0], line.end.array[:, 0, 0]
    once = {
        "pp": graph.pp,
        "rank": graph.pp,
        "kind": graph.kind,
        "start": start,
        "duration": end - start,
        "seq": graph.seq,
        "chunk": graph.chunk,
        "microbatch": graph.microbatch,
        "issued": ops.rank,
        "awaited": ops.awaited,
    }
    columns = {name: np.tile(values, n_steps) for name, values in once.items()}
    columns["start"] = columns["start"] + np.repeat(2.0 * end.max() * np.arange(n_steps), n)
    step_number, dp = np.repeat(np.arange(n_steps), n), np.zeros(n * n_steps, dtype=int)
    columns = Columns(step=step_number, dp=dp, **columns)
    return arrange(columns, job=step.job, where="test")
