"""Lasting slowdowns, without passing variation.

If passes are recorded in parts, every part waits for the slowest of its peers. Variation of
changing workers then adds up to a slowdown without one slow worker. Lasting slowness shows in the
typical step, with each operation of each worker at its median over the steps. This step is compared
with its own ideal. A mean over the steps would include the passing variation. A fault may begin
within the trace: where a worker's computes jump beside those of its peers, each part of the trace
has a typical step of its own. Levels that all workers share need no parts, whose medians are noisy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations
from paceline.graph.computes import compute_s
from paceline.jumps import jump_score, spans
from paceline.whatif.ideal import Reference, reference
from paceline.whatif.layout import simulate_scenarios
from paceline.whatif.scenario import Part, Scenario

Array = npt.NDArray[np.float64]
#: From [op, step, replica] values to one value of each operation, in axes of the same number.
Middle = Callable[[Array], Array]

#: Least number of steps that show how much steps differ; a median of fewer may be a passing value.
ENOUGH_STEPS = 10

_TINY_S = 1e-9
_MEDIAN_VALUES = 1 << 22

#: Random orders of the workers, and how many of them may be as slow as the job: chance is 2%.
_SHUFFLES, _MOST_AS_SLOW = 99, 1
#: Most durations whose workers are shuffled; more take too long.
_MOST_VALUES = 5_000_000


@dataclass(frozen=True, eq=False)
class Lasting:
    """Slowdowns of the typical step, or of the typical steps between the jumps of a worker.

    Attributes:
        slowdown: S with every operation of every worker at its median over the steps.
        by_worker: [pp, dp] S with only this worker at its medians, and all others ideal.
        by_worker_by_step: [step, pp, dp] the same in the part that the step is in.
    """

    slowdown: float
    by_worker: Array
    by_worker_by_step: Array


def lasting(durations: Durations, judged_by: Reference) -> Lasting | None:
    """The lasting slowdowns; None if passes are whole, as in the paper.

    Args:
        durations: measured durations.
        judged_by: the reference of these durations. Kinds that it judges against their fast mode
            keep this ideal, as their median over the steps may be slow.
    """
    graph = durations.graph
    if not graph.programmed:
        return None
    workers = [(dp, pp) for pp in range(graph.n_pp) for dp in range(graph.n_dp)]
    only = [Scenario.only(Part.of_workers([worker])) for worker in workers]
    parts = _parts(durations)
    lengths = [end - first for first, end in parts]
    times = np.array(
        [
            _step_s(_typical(_part(durations, part), _over_steps(np.median)), judged_by, only)
            for part in parts
        ]
    )  # [part, scenario]
    total = lengths @ times
    by_worker = (times[:, 2:] / times[:, 1:2]).reshape(-1, graph.n_pp, graph.n_dp)
    return Lasting(
        float(total[0] / total[1]),
        (total[2:] / total[1]).reshape(graph.n_pp, graph.n_dp),
        np.repeat(by_worker, lengths, axis=0),
    )


def beyond_chance(durations: Durations, judged_by: Reference) -> float:
    """The lasting slowdown, as far as the same workers cause it in many steps.

    With few steps, the medians of noisy workers differ by chance. So workers change places at
    random in each step. If the typical step is then often as slow, nothing shows that slowness
    lasts. In this case every operation counts with its median over steps and workers: slow stages
    and kinds remain.

    Args:
        durations: measured durations, of a job with programs.
        judged_by: the reference of these durations.
    """

    def slowdown(durations: Durations, middle: Middle) -> float:
        measured_s, ideal_s = _step_s(_typical(durations, middle), judged_by)
        return float(measured_s / ideal_s)

    # A mean shows a slow worker among two; a median is not moved by single pauses.
    middles = (_over_steps(np.median), _over_steps(np.mean))
    measured = [slowdown(durations, middle) for middle in middles]
    if len(durations.values) > _MOST_VALUES:
        return measured[0]
    rng = np.random.default_rng(0)
    as_slow = [0, 0]
    for _ in range(_SHUFFLES):
        shuffled = _shuffled(durations, rng)
        for k, middle in enumerate(middles):
            if as_slow[k] <= _MOST_AS_SLOW:
                as_slow[k] += slowdown(shuffled, middle) >= measured[k] * (1 - 1e-9)
        if min(as_slow) > _MOST_AS_SLOW:
            return min(measured[0], slowdown(durations, _over_workers))
    return measured[0]


def _over_steps(of: Callable[..., Array]) -> Middle:
    """A middle of each operation of each worker over the steps."""
    return lambda values: of(values, axis=1, keepdims=True)


def _over_workers(values: Array) -> Array:
    return np.asarray(np.median(values, axis=(1, 2), keepdims=True))


def _typical(durations: Durations, middle: Middle) -> Durations:
    """One step with the middle of each operation."""
    typical = Durations.empty(durations.graph, 1)
    for v in range(durations.graph.n_variants):
        block, out = durations.block(v), typical.block(v)
        few = max(1, _MEDIAN_VALUES // max(1, block[0].size))  # a median copies its input
        for low in range(0, len(block), few):
            out[low : low + few] = middle(block[low : low + few])
    return typical


def _parts(durations: Durations) -> list[tuple[int, int]]:
    """(first, end) steps of the parts between jumps of the worker whose computes jump most."""
    n_steps, n_dp = durations.n_steps, durations.graph.n_dp
    if n_dp == 1 or n_steps < 2 * ENOUGH_STEPS:
        return [(0, n_steps)]
    series = []
    for seconds in compute_s(durations):  # [dp, step] of a stage
        if n_dp == 2:
            series.append(seconds[0] / np.maximum(seconds[1], _TINY_S))
        else:
            series += list(seconds / np.maximum(np.median(seconds, axis=0), _TINY_S))
    likeliest = max(series, key=jump_score)
    return spans(likeliest, ENOUGH_STEPS, len(series))


def _part(durations: Durations, part: tuple[int, int]) -> Durations:
    """The durations of steps from a first index to an end."""
    whole = part == (0, durations.n_steps)
    return durations if whole else durations.of_steps(np.arange(*part))


def _step_s(typical: Durations, judged_by: Reference, only: Sequence[Scenario] = ()) -> Array:
    """Seconds of a typical step, of its ideal, and of each further scenario."""
    by_mode = np.isin(typical.graph.kind, [int(kind) for kind in judged_by.modes])
    ideal = np.where(by_mode, judged_by.seconds, reference(typical).seconds)
    scenarios = [Scenario.measured(), Scenario.ideal(), *only]
    return np.asarray(simulate_scenarios(typical, ideal, scenarios)[:, 0])


def _shuffled(durations: Durations, rng: np.random.Generator) -> Durations:
    """The durations with replicas of equal programs in random order in each step."""
    shuffled = Durations.empty(durations.graph, durations.n_steps)
    for v in range(durations.graph.n_variants):
        block = durations.block(v)  # [op, step, replica]
        order = rng.permuted(np.tile(np.arange(block.shape[2]), (block.shape[1], 1)), axis=1)
        shuffled.block(v)[:] = np.take_along_axis(block, order[None], axis=2)
    return shuffled
