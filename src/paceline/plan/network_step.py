"""A training step of a network before the run: seconds by what they are spent on, memory, limits.

``predict_network`` is our own model; ``networks.paradl`` has the formulas of the ParaDL paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from functools import lru_cache
from typing import Any

import numpy as np

from paceline.errors import PlanError
from paceline.model.cluster import Cluster
from paceline.networks.factors import Factors
from paceline.networks.layer import LayerNetwork
from paceline.networks.limits import violations
from paceline.networks.memory import MemoryConstants, NetworkMemory, network_memory
from paceline.networks.saved import saved_bytes
from paceline.networks.strategy import OPTIMIZERS, Strategy
from paceline.networks.terms import COMPUTE, Machine, step_terms
from paceline.networks.traffic import ELEMENT_BYTES, last_spatial, split_products, traffic
from paceline.networks.work import Array, Shared, work_of
from paceline.plan.network_pipeline import Stages, layer_seconds, pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPrediction:
    """A step of ``network`` by ``strategy`` on ``cluster``.

    Attributes:
        network, strategy, cluster: what was predicted.
        step_time_s: of one step.
        breakdown: term -> seconds; they add up to the step.
        memory: of one GPU: weights, gradients, optimizer, activations, reserved -> bytes.
        limits: why it cannot run; () where it can.
        stages: of a pipeline.
        notes: what the numbers do not say.
    """

    network: LayerNetwork
    strategy: Strategy
    cluster: Cluster
    step_time_s: float
    breakdown: Mapping[str, float]
    memory: Mapping[str, float]
    limits: tuple[str, ...]
    stages: Stages | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def memory_bytes(self) -> float:
        """Of the fullest GPU."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether the memory is the GPU's or less."""
        return self.memory_bytes <= self.cluster.gpu.memory_bytes

    @property
    def samples_per_s(self) -> float:
        """Of all GPUs."""
        return self.strategy.global_batch / self.step_time_s


def strategy_of(fields: Strategy | Mapping[str, Any]) -> Strategy:
    """A strategy from its fields; its name may stand as ``strategy``.

    Raises:
        PlanError: a field is unknown or missing.
    """
    if isinstance(fields, Strategy):
        return fields
    named = {"name" if key == "strategy" else key: value for key, value in fields.items()}
    known = [item.name for item in dataclass_fields(Strategy)]
    unknown = [key for key in named if key not in known]
    absent = [key for key in ("name", "gpus", "global_batch") if key not in named]
    if unknown or absent:
        problem = f"has no {', '.join(unknown)}" if unknown else f"lacks {', '.join(absent)}"
        raise PlanError(f"a strategy {problem}; its fields are {', '.join(known)}")
    return Strategy(**named)


def predict_network(
    network: LayerNetwork,
    strategy: Strategy,
    cluster: Cluster,
    *,
    factors: Factors | None = None,
    precision: str = "fp32",
) -> NetworkPrediction:
    """Predict one step.

    Args:
        network: its layers.
        strategy: how it is shared out.
        cluster: the machines.
        factors: of a calibration; None = datasheets and published microbenchmarks.
        precision: of the products; all else is fp32.

    Raises:
        ModelError: the GPU lacks the precision.
    """
    machine = Machine(cluster, precision)
    terms = step_terms(network, strategy, machine)
    stages = None
    reasons = violations(network, strategy)
    if strategy.is_pipeline and not reasons:
        stages = pipeline(network, strategy, machine)
        terms = _piped(terms, stages, strategy)
    terms = (factors or Factors()).apply(terms, strategy.name)
    if strategy.gradients == "buckets":
        terms = _overlapped(terms, network, strategy, machine)
    breakdown = {name: seconds for name, seconds in terms.items() if seconds > 0}
    return NetworkPrediction(
        network=network,
        strategy=strategy,
        cluster=cluster,
        step_time_s=sum(breakdown.values()),
        breakdown=breakdown,
        memory=step_memory(network, strategy, stages),
        limits=reasons,
        stages=stages,
    )


def _piped(terms: dict[str, float], stages: Stages, strategy: Strategy) -> dict[str, float]:
    """Computation of the busiest stage, and what the pipeline adds to it: fill, drain, waits."""
    compute = sum(terms[name] for name in ("products", "memory", "host"))
    scale = stages.busiest_s / compute if compute else 0.0
    terms = {
        name: seconds * scale if name in ("products", "memory", "host") else seconds
        for name, seconds in terms.items()
    }
    terms["update"] /= strategy.split
    waits = stages.step_s - stages.busiest_s
    terms["stage"] = min(stages.hand_over_s, waits)
    terms["bubble"] = waits - terms["stage"]
    return terms


def _overlapped(
    terms: dict[str, float], network: LayerNetwork, strategy: Strategy, machine: Machine
) -> dict[str, float]:
    """What of the exchange DDP's buckets leave behind the backward pass.

    A bucket starts when the gradients of its layers are there and the one before has ended.
    """
    names = [name for name in terms if name.startswith("gradients")]
    exchange = sum(terms[name] for name in names)
    if not exchange:
        return terms
    buckets = [t for t in traffic(network, strategy) if t.what == "gradients"]
    elements = sum(bucket.elements for bucket in buckets)
    _, backward = layer_seconds(network, strategy.busiest_samples, machine)
    compute = sum(terms[name] for name in COMPUTE if name != "update") * 2 / 3
    remaining = backward[::-1].cumsum()[::-1] / backward.sum() * compute
    end = 0.0
    for bucket in buckets:
        ready = float(remaining[bucket.layer])
        end = max(end, ready) + exchange * bucket.elements / elements
    exposed = min(exchange, max(0.0, end - compute))
    return {
        name: seconds * (exposed / exchange if name in names else 1.0)
        for name, seconds in terms.items()
    }


def step_memory(
    network: LayerNetwork, strategy: Strategy, stages: Stages | None = None
) -> dict[str, float]:
    """Bytes of the fullest GPU: ``networks.memory`` of the whole network, shared out.

    What filters and channels split are weights: each GPU gathers whole activations.
    """
    work, samples = work_of(network), strategy.busiest_samples
    whole, saved = memory_of(network)
    weights, kept = work.parameters.copy(), np.ones(len(saved))
    passing = 1.0
    if strategy.splits_weights and strategy.split > 1:
        weights[split_products(network, strategy)] /= strategy.split
    if strategy.is_spatial and strategy.split > 1:
        kept[: last_spatial(network, strategy) + 1] /= strategy.split
        passing = 1 / strategy.split
    if stages is not None:
        starts = [0, *(end + 1 for end in stages.ends[:-1])]
        weights = np.add.reduceat(weights, starts).max(keepdims=True)
        share = np.add.reduceat(saved, starts).max() / saved.sum()
        # Recomputed, one microbatch's activations are alive at a time.
        kept *= share / (strategy.microbatches if strategy.recompute else 1)
        passing = 1 / strategy.microbatches
    activations = whole.saved * samples * float((saved * kept).sum() / saved.sum())
    transient = whole.transient * samples * passing
    constants = MemoryConstants()
    parameters = float(weights.sum()) * ELEMENT_BYTES
    shards = strategy.replicas if strategy.zero else 1
    return {
        "weights": parameters / (shards if strategy.zero == 3 else 1),
        "gradients": parameters / (shards if strategy.zero >= 2 else 1),
        "optimizer": parameters * OPTIMIZERS[strategy.optimizer] / shards,
        "activations": activations,
        "transient": transient,
        "reserved": constants.reserved_bytes + (constants.overhead - 1) * (activations + transient),
    }


def memory_of(network: LayerNetwork) -> tuple[NetworkMemory, Array]:
    """One sample's memory, and what each layer saves of it [layer], bytes; computed once."""
    return _memory_of(Shared(network))


@lru_cache(maxsize=64)
def _memory_of(shared: Shared) -> tuple[NetworkMemory, Array]:
    saved = np.asarray(saved_bytes(shared.network, "fp32"), dtype=float)
    return network_memory(shared.network, 1), saved


def largest_batch(network: LayerNetwork, strategy: Strategy, cluster: Cluster) -> int:
    """Most samples of a replica that fit.

    Raises:
        PlanError: one does not.
    """
    stages = pipeline(network, strategy, Machine(cluster)) if strategy.is_pipeline else None
    memory = step_memory(network, strategy, stages)
    constants = MemoryConstants()
    states = memory["weights"] + memory["gradients"] + memory["optimizer"]
    fixed = states + constants.reserved_bytes
    one = (sum(memory.values()) - fixed) / strategy.busiest_samples
    room = cluster.gpu.memory_bytes - fixed
    if room < one:
        largest = max(network.layers, key=lambda layer: layer.out_elements)
        raise PlanError(
            f"no sample fits by {strategy.describe()}: weights and the like take {fixed / 1e9:.1f} "
            f"GB, a sample's activations {one / 1e9:.1f} GB (most of them {largest.name}), the GPU "
            f"has {cluster.gpu.memory_bytes / 1e9:.1f} GB"
        )
    return int(room // one)
