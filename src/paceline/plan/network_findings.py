"""What limits a predicted step of a network, each with its seconds or bytes.

Paper: ParaDL, Table 6 and 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.networks.traffic import ELEMENT_BYTES
from paceline.plan.network_step import NetworkPrediction

#: Row of Table 6 -> the terms that it is made of.
ROWS = (
    ("gradient exchange", ("gradients", "gradients.inside", "gradients.calls", "gradients.hops")),
    ("layer-wise collectives", ("layers.inside", "layers.between", "layers.hops", "norms")),
    ("P2P communication", ("halo", "halo.messages", "stage")),
    ("network congestion", ("skew",)),
    ("weight update", ("update",)),
    ("split overhead", ("split", "tiles")),
    ("pipeline's fill and drain", ("bubble",)),
)
_LEAST_SHARE = 0.01  # of a step; less is not worth a line


@dataclass(frozen=True, slots=True)
class NetworkFinding:
    """One limitation or bottleneck.

    Attributes:
        what: the row of Table 6.
        seconds: of a step; None where it is bytes or a count.
        size_bytes: of one GPU's memory; None where not.
        text: for people.
    """

    what: str
    seconds: float | None
    size_bytes: float | None
    text: str


def findings(prediction: NetworkPrediction) -> tuple[NetworkFinding, ...]:
    """Of one prediction, the costliest first, then memory and limits."""
    step, rows = prediction.step_time_s, []
    for what, names in ROWS:
        seconds = sum(prediction.breakdown.get(name, 0.0) for name in names)
        if seconds >= _LEAST_SHARE * step:
            text = f"{what}: {seconds:.3g} s, {seconds / step:.0%} of the step"
            rows.append(NetworkFinding(what, seconds, None, text))
    stages = prediction.stages
    if stages is not None and stages.busiest_s > stages.mean_s * (1 + _LEAST_SHARE):
        seconds = stages.busiest_s - stages.mean_s
        text = f"workload balancing: the busiest stage computes {seconds:.3g} s more than the mean"
        rows.append(NetworkFinding("workload balancing", seconds, None, text))
    rows.sort(key=lambda row: -(row.seconds or 0.0))
    return (*rows, *_redundant(prediction), *_limits(prediction))


def _redundant(prediction: NetworkPrediction) -> tuple[NetworkFinding, ...]:
    """Weights, gradients and states that other GPUs have, too (5.3.2)."""
    memory, gpus = prediction.memory, prediction.strategy.gpus
    if "weights" not in memory:
        return ()
    held = memory["weights"] + memory["gradients"] + memory["optimizer"]
    whole = (2 + memory["optimizer"] / memory["gradients"]) if memory["gradients"] else 2
    least = prediction.network.parameters * ELEMENT_BYTES * whole / gpus
    copies = held - least
    if gpus == 1 or copies < _LEAST_SHARE * prediction.memory_bytes:
        return ()
    text = f"redundant memory: {copies / 1e9:.2f} GB a GPU of weights that others have, too"
    return (NetworkFinding("redundant memory", None, copies, text),)


def _limits(prediction: NetworkPrediction) -> tuple[NetworkFinding, ...]:
    return tuple(NetworkFinding("number of PEs", None, None, text) for text in prediction.limits)
