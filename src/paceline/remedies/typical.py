"""Try many changes of a job at once, without noise: one lane per change and variant.

A walk over the ops costs about the same for one lane as for hundreds. So a search first tries its
candidates on typical durations. Only the best of them are simulated on all steps and replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, Measured, StepGraph
from paceline.remedies.remedy import predicted_step_s

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Steps and replicas that are sampled for an op's typical duration. More samples change it by less
#: than 1/8 of one microbatch's noise.
SAMPLES = 64

#: Values laid out at once: 64 MB.
MAX_VALUES = 1 << 23


def typical_durations(durations: Durations) -> Array:
    """[op] median seconds over a sample of steps and replicas."""
    medians = []
    for block in durations.blocks:
        columns = block.reshape(len(block), -1)
        stride = max(1, columns.shape[1] // SAMPLES)
        medians.append(np.median(columns[:, ::stride], axis=1))
    return np.concatenate(medians)


def some_replicas(graph: StepGraph, dps: npt.NDArray[np.int64]) -> StepGraph:
    """The graph of the job with only these replicas."""
    return replace(graph, replica_variant=graph.replica_variant[dps])


def one_of_each(graph: StepGraph) -> StepGraph:
    """The graph of a job with one replica of each structure."""
    return some_replicas(graph, np.array([dps[0] for dps in graph.variant_dps]))


def spread_steps(n_steps: int, most: int) -> Ints:
    """At most ``most`` steps, spread over the trace."""
    return np.unique(np.linspace(0, n_steps - 1, min(most, n_steps)).astype(np.int64))


def times_of_steps(times: Durations, index: Ints) -> Durations:
    """Durations of some steps."""
    values = [block[:, index].ravel() for block in times.blocks]
    return Durations(times.graph, len(index), np.concatenate(values))


def of_steps(measured: Measured, index: Ints) -> Measured:
    """Some steps of a trace."""
    return replace(
        measured,
        steps=measured.steps[index],
        durations=times_of_steps(measured.durations, index),
        delays=times_of_steps(measured.delays, index),
        traced_step_s=measured.traced_step_s[index],
    )


def try_out(
    graph: StepGraph,
    typical: Array,
    n: int,
    change: Callable[[Durations, slice], None],
) -> Array:
    """[candidate] step times of ``n`` candidates, seconds.

    Args:
        graph: the job, as small as the candidates allow.
        typical: [op] seconds of all candidates before the change.
        n: number of candidates.
        change: changes the durations of candidates ``slice``, which lie on the step axis.
    """
    at_once = max(1, MAX_VALUES // (graph.n_ops * graph.n_dp))
    times = []
    for low in range(0, n, at_once):
        rows = slice(low, min(n, low + at_once))
        durations = Durations.empty(graph, rows.stop - rows.start)
        for v, block in enumerate(durations.blocks):
            block[:] = typical[graph.variant_ops(v)][:, None, None]
        change(durations, rows)
        times.append(predicted_step_s(durations))
    return np.concatenate(times)
