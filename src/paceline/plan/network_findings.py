"""Limits of a predicted step of a network, each with its seconds or bytes.

Paper: ParaDL, Table 6 and 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.networks.demand import Array
from paceline.networks.split_memory import paging
from paceline.networks.terms import Machine, work_shares
from paceline.networks.traffic import ELEMENT_BYTES
from paceline.plan.network_step import NetworkPrediction
from paceline.units import in_gib

#: Row of Table 6, or an additional row -> its terms.
ROWS = (
    ("gradient exchange", ("gradients", "gradients.inside", "gradients.calls", "gradients.hops")),
    ("layer-wise collectives", ("layers.inside", "layers.between", "layers.hops", "norms")),
    ("P2P communication", ("halo", "halo.messages", "stage")),
    ("network congestion", ("skew",)),
    ("weight update", ("update",)),
    ("split overhead", ("split", "tiles")),
    ("reordering for channels first", ("layout",)),
    ("pipeline's fill and drain", ("bubble",)),
)
_LEAST_SHARE = 0.01  # least share of a step that gets a line


@dataclass(frozen=True, slots=True)
class NetworkFinding:
    """One limitation or bottleneck.

    Attributes:
        what: its name: one of ``ROWS``, or a limit without seconds.
        seconds: seconds of a step; None for bytes and counts.
        size_bytes: bytes of one GPU's memory; None for other findings.
        text: its sentence for users.
    """

    what: str
    seconds: float | None
    size_bytes: float | None
    text: str


def findings(prediction: NetworkPrediction) -> tuple[NetworkFinding, ...]:
    """Findings of one prediction, the most costly first, then memory and limits."""
    step, rows = prediction.step_time_s, []
    for what, names in ROWS:
        seconds = float(sum(prediction.breakdown.get(name, 0.0) for name in names))
        if seconds >= _LEAST_SHARE * step:
            text = f"{what}: {seconds:.3g} s, {seconds / step:.0%} of the step"
            rows.append(NetworkFinding(what, seconds, None, text))
    if not prediction.limits:
        rows += [
            row
            for row in (*_imbalance(prediction), *_repeated(prediction))
            if (row.seconds or 0.0) >= _LEAST_SHARE * step
        ]
    rows.sort(key=lambda row: -(row.seconds or 0.0))
    return (*rows, *_redundant(prediction), *_beyond(prediction), *_limits(prediction))


def _imbalance(prediction: NetworkPrediction) -> list[NetworkFinding]:
    """Excess of the busiest stage, replica or part of a sample over the mean (5.3.3)."""
    strategy, stages = prediction.strategy, prediction.stages
    surplus = {}
    if stages is not None:
        surplus["stage"] = stages.busiest_s - stages.mean_s
    busiest = strategy.busiest_samples
    surplus["replica"] = _computation(prediction) * (1 - strategy.samples / busiest)
    work, share = _work(prediction)
    uneven = np.where(share < 1, share - 1 / strategy.split, 0.0)
    surplus["part"] = _computation(prediction) * float((work * uneven).sum() / (work * share).sum())
    return [
        NetworkFinding(
            "workload balancing",
            seconds,
            None,
            f"workload balancing: the busiest {unit} computes {seconds:.3g} s more than the mean",
        )
        for unit, seconds in surplus.items()
    ]


def _repeated(prediction: NetworkPrediction) -> list[NetworkFinding]:
    """Layers that every GPU of a split computes for whole samples."""
    strategy = prediction.strategy
    if strategy.split == 1 or strategy.is_pipeline:
        return []
    work, share = _work(prediction)
    whole = np.where(share < 1, 0.0, work)
    saved = float(whole.sum() / (work * share).sum()) * (1 - 1 / strategy.split)
    seconds = _computation(prediction) * saved
    name = prediction.network.layers[int(np.argmax(whole))].name
    text = (
        f"repeated computation: {seconds:.3g} s of layers that each of {strategy.split} GPUs "
        f"computes for whole samples, most of it {name}"
    )
    return [NetworkFinding("repeated computation", seconds, None, text)]


def _work(prediction: NetworkPrediction) -> tuple[Array, Array]:
    """([layer] seconds of a whole sample's computation, [layer] share of the busiest GPU)."""
    strategy = prediction.strategy
    machine = Machine(prediction.cluster)
    forward, backward = machine.layer_seconds(prediction.network, 1.0, strategy)
    return forward + backward, work_shares(prediction.network, strategy)


def _computation(prediction: NetworkPrediction) -> float:
    """Seconds of the layers' work in the step."""
    return sum(prediction.breakdown.get(name, 0.0) for name in ("products", "memory", "layout"))


def _beyond(prediction: NetworkPrediction) -> tuple[NetworkFinding, ...]:
    """Missing bytes of one GPU."""
    capacity = prediction.cluster.gpu.memory_bytes
    text = paging(prediction.memory, capacity)
    lacking = prediction.memory_bytes - capacity
    return (NetworkFinding("memory", None, lacking, text),) if text else ()


def _redundant(prediction: NetworkPrediction) -> tuple[NetworkFinding, ...]:
    """Weights, gradients and states that are copies of other GPUs' (5.3.2)."""
    memory, gpus = prediction.memory, prediction.strategy.gpus
    if "weights" not in memory:
        return ()
    held = memory["weights"] + memory["gradients"] + memory["optimizer"]
    whole = (2 + memory["optimizer"] / memory["gradients"]) if memory["gradients"] else 2
    least = prediction.network.parameters * ELEMENT_BYTES * whole / gpus
    copies = held - least
    if gpus == 1 or copies < _LEAST_SHARE * prediction.memory_bytes:
        return ()
    text = f"redundant memory: {in_gib(copies)} a GPU of weights that others have, too"
    return (NetworkFinding("redundant memory", None, copies, text),)


def _limits(prediction: NetworkPrediction) -> tuple[NetworkFinding, ...]:
    return tuple(NetworkFinding("number of PEs", None, None, text) for text in prediction.limits)
