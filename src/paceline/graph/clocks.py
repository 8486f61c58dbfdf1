"""Clock offsets between workers, from transfers whose members end together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.graph.graph import Durations, StepGraph

#: Ends of this many ops per link tell its offset well enough; more would only cost time.
MAX_SAMPLES = 64

#: Rounds of reweighting, and the misfit (seconds) below which an observation keeps its full weight.
ROUNDS, TOLERANCE_S = 5, 1e-4


@dataclass(frozen=True)
class ClockOffsets:
    """How far each worker's clock is ahead of the mean of all.

    Attributes:
        offset_s: [dp, pp] seconds.
        std_s: their standard deviation.
        corrected: whether they were taken off the times.
    """

    offset_s: npt.NDArray[np.float64]
    std_s: float
    corrected: bool = False


def estimate_offsets(graph: StepGraph, end: Durations) -> ClockOffsets:
    """Each worker's constant clock offset, by least squares over all transfers.

    The members of one transfer end together, so recorded ends that differ show how the clocks
    differ. Each group of workers that transfer to each other yields one observation, the median
    over steps and ops of each member's end against the group's mean, which the offsets should
    reproduce.

    Args:
        graph: the ops.
        end: recorded ends in the layout of the durations.
    """
    n_dp, n_pp = graph.n_dp, graph.n_pp
    groups = [*_pair_groups(graph, end), *_collective_groups(graph, end)]
    offset = _fit(n_dp * n_pp, groups).reshape(n_dp, n_pp)
    return ClockOffsets(offset, float(offset.std()))


# A group: workers (dp * n_pp + pp) [group, member] and how far each member's clock shows the common
# end after the members' mean [group, member], seconds.
_Group = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]


def _pair_groups(graph: StepGraph, end: Durations) -> list[_Group]:
    """One group per pair of stages that send to each other, per data-parallel rank."""
    groups: list[_Group] = []
    for v, dps in enumerate(graph.variant_dps):
        pp = graph.pp[graph.variant_ops(v)]
        pairs = graph.variant_pairs(v)
        stages = np.sort(pp[pairs], axis=1)
        block = end.block(v)
        for low, high in np.unique(stages, axis=0):
            if low == high:
                continue
            link = pairs[(stages == (low, high)).all(axis=1)]
            link = link[np.linspace(0, len(link) - 1, min(len(link), MAX_SAMPLES)).astype(int)]
            sign = np.where(pp[link[:, 0]] == low, 1.0, -1.0)
            apart = (block[link[:, 0]] - block[link[:, 1]]) * sign[:, None, None]
            half = np.median(apart, axis=(0, 1)) / 2  # [dp]
            workers = np.stack([dps * graph.n_pp + low, dps * graph.n_pp + high], axis=1)
            groups.append((workers, np.stack([half, -half], axis=1)))
    return groups


def _collective_groups(graph: StepGraph, end: Durations) -> list[_Group]:
    """One group per collective that spans the data-parallel ranks."""
    groups: list[_Group] = []
    for members in graph.dp_groups:
        workers, ends = [], []
        for op in members.tolist():
            v = int(graph.variant[op])
            dps = graph.variant_dps[v]
            workers.append(dps * graph.n_pp + graph.pp[op])
            ends.append(end.block(v)[op - graph.variant_ptr[v]])  # [step, dp]
        table = np.concatenate(ends, axis=1)
        if table.shape[1] < 2:
            continue
        ahead = np.median(table - table.mean(axis=1, keepdims=True), axis=0)
        groups.append((np.concatenate(workers)[None], ahead[None]))
    return groups


def _fit(n_workers: int, groups: list[_Group]) -> npt.NDArray[np.float64]:
    """Offsets x, mean 0, that fit best: least squares, then again with outliers weighing less.

    A rank whose slow NIC ends some collective late on every step is no rank whose clock is ahead:
    its other transfers disagree with that one.
    """
    weights = [np.ones_like(ahead) for _, ahead in groups]
    x = _least_squares(n_workers, groups, weights)
    for _ in range(ROUNDS):
        weights = [
            1 / np.maximum(np.abs(_centred(ahead - x[workers], weight)), TOLERANCE_S)
            for (workers, ahead), weight in zip(groups, weights, strict=True)
        ]
        x = _least_squares(n_workers, groups, weights)
    return x


def _centred(
    values: npt.NDArray[np.float64], weight: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """[group, member] deviations from each group's weighted mean."""
    mean = (values * weight).sum(axis=1, keepdims=True) / weight.sum(axis=1, keepdims=True)
    deviations: npt.NDArray[np.float64] = values - mean
    return deviations


def _least_squares(
    n_workers: int, groups: list[_Group], weights: list[npt.NDArray[np.float64]]
) -> npt.NDArray[np.float64]:
    """Offsets x, mean 0, whose deviations from each group's mean fit the observed ones best.

    The normal equations are those of a graph Laplacian; conjugate gradients need only its product
    with a vector, which costs as much as the groups have members.
    """

    def scatter(parts: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        total = np.zeros(n_workers)
        for (workers, _), part, weight in zip(groups, parts, weights, strict=True):
            np.add.at(total, workers, _centred(part, weight) * weight)
        return total

    x = np.zeros(n_workers)
    residual = scatter([ahead for _, ahead in groups])
    direction = residual.copy()
    norm = start_norm = float(residual @ residual)
    for _ in range(4 * n_workers):
        if norm <= 1e-24 * start_norm or norm < 1e-30:
            break
        image = scatter([direction[workers] for workers, _ in groups])
        step = norm / float(direction @ image)
        x += step * direction
        residual -= step * image
        previous, norm = norm, float(residual @ residual)
        direction = residual + (norm / previous) * direction
    x -= x.mean()
    return x
