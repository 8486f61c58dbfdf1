"""A network cut into pipeline stages, and its step from the pipeline simulator.

Paper: ParaDL, 3.4 and 5.3.3 (balance); GPipe (Huang et al., 2019) for recomputation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.errors import PlanError
from paceline.networks.demand import Array
from paceline.networks.layer import LayerNetwork
from paceline.networks.strategy import Strategy
from paceline.networks.terms import MESSAGE_S, STAGED, Machine
from paceline.networks.traffic import stage_transfers
from paceline.plan.pipeline import pipeline_times


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """A pipeline's cut and its times.

    Attributes:
        ends: last layer (index) of each stage.
        busiest_s: computation of the busiest stage in a step.
        mean_s: the mean over stages: the value for a perfect balance.
        hand_over_s: seconds of sends on the busiest link in a step.
        step_s: from the first forward to the last backward.
    """

    ends: tuple[int, ...]
    busiest_s: float
    mean_s: float
    hand_over_s: float
    step_s: float


def best_cut(seconds: Array, stages: int) -> tuple[int, ...]:
    """Last layer of each stage, for the cut that minimises the busiest stage.

    Raises:
        PlanError: there are fewer layers than stages.
    """
    if len(seconds) < stages:
        raise PlanError(f"{len(seconds)} layers cannot be cut into {stages} stages")
    total = np.concatenate([[0.0], np.cumsum(seconds)])
    low, high = float(seconds.max()), float(total[-1])
    for _ in range(50):
        bound = (low + high) / 2
        low, high = (low, bound) if len(_greedy(total, bound)) <= stages else (bound, high)
    ends = _greedy(total, high)
    # Stages that the greedy walk did not need get single layers from the ends of longer ones.
    spare = [index for index in range(len(seconds) - 1) if index not in ends]
    return tuple(sorted([*ends, *spare[: stages - len(ends)]]))


def _greedy(total: Array, bound: float) -> list[int]:
    ends, start = [], 0
    while start < len(total) - 1:
        reach = int(np.searchsorted(total, total[start] + bound * (1 + 1e-12), side="right")) - 1
        start = max(reach, start + 1)
        ends.append(start - 1)
    return ends


def pipeline(network: LayerNetwork, strategy: Strategy, machine: Machine) -> Stages:
    """The best cut and its simulated step."""
    count, micro = strategy.split, strategy.microbatches
    samples = strategy.busiest_samples / micro
    forward, backward = machine.layer_seconds(network, samples, strategy)
    if strategy.recompute:
        backward = backward + forward
    ends = best_cut(forward + backward, count)
    starts = [0, *(end + 1 for end in ends[:-1])]
    stage_forward = np.add.reduceat(forward, starts)
    stage_backward = np.add.reduceat(backward, starts)
    hand_over = np.zeros(count)
    for place, end in enumerate(ends[:-1]):
        transfer = stage_transfers(network, strategy, end)[0]
        hand_over[place] = _send(
            transfer.elements * transfer.width, place, strategy.library, machine
        )
    (step,) = pipeline_times(
        strategy.schedule,
        count,
        1,
        np.array([micro]),
        stage_forward[None],
        stage_backward[None],
        hand_over[None],
    )
    busy = (stage_forward + stage_backward) * micro
    return Stages(
        ends=ends,
        busiest_s=float(busy.max()),
        mean_s=float(busy.mean()),
        hand_over_s=float(hand_over.max()) * 2 * micro,
        step_s=float(step),
    )


def _send(size: float, place: int, library: str, machine: Machine) -> float:
    from paceline.model.network import Fabric

    node = machine.cluster.node.gpus
    stride = node if (place + 1) % node == 0 else 1
    seconds = Fabric(machine.cluster).p2p(size, stride, senders_per_node=1)
    return max(seconds, size / STAGED + MESSAGE_S) if library == "mpi" else seconds
