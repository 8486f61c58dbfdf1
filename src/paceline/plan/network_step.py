"""Prediction of a network's training step: seconds by their use, memory, limits.

``predict_network`` is Paceline's own model; ``networks.paradl`` has the formulas of the ParaDL
paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from typing import Any

from paceline.errors import PlanError
from paceline.model.cluster import Cluster
from paceline.networks.compute import ComputeConstants
from paceline.networks.factors import Factors
from paceline.networks.layer import LayerNetwork
from paceline.networks.layer_profile import LayerProfile
from paceline.networks.limits import violations
from paceline.networks.split_memory import OF_SAMPLES, step_memory
from paceline.networks.strategy import Strategy
from paceline.networks.terms import COMPUTE, Machine, step_terms
from paceline.networks.traffic import traffic
from paceline.plan.network_pipeline import Stages, pipeline
from paceline.units import in_gib


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPrediction:
    """A predicted step of ``network`` by ``strategy`` on ``cluster``.

    Attributes:
        network, strategy, cluster: input of the prediction.
        step_time_s: seconds of one step.
        breakdown: term -> seconds; they add up to the step.
        memory: memory of one GPU: weights, gradients, optimizer, activations, reserved -> bytes.
        limits: reasons why it cannot run; () if it can.
        stages: cut of a pipeline.
        notes: caveats of the numbers.
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
        """Bytes on the fullest GPU."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether the memory fits the GPU."""
        return self.memory_bytes <= self.cluster.gpu.memory_bytes

    @property
    def samples_per_s(self) -> float:
        """Samples per second of all GPUs."""
        return self.strategy.global_batch / self.step_time_s


def strategy_of(fields: Strategy | Mapping[str, Any]) -> Strategy:
    """A strategy from its fields; its name may have the key ``strategy``.

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
    software: ComputeConstants | None = None,
    profile: LayerProfile | None = None,
) -> NetworkPrediction:
    """Predict one step.

    Args:
        network: its layers.
        strategy: the split of the training.
        cluster: the machines.
        factors: factors of a calibration; None = datasheets and published microbenchmarks.
        software: constants of its kernels; None = the GPU's constants, which are fitted if there
            were runs.
        profile: measured seconds of its operators.

    Raises:
        ModelError: the GPU lacks the precision.
    """
    machine = Machine(cluster, software, profile)
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
    memory = step_memory(network, strategy, () if stages is None else stages.ends)
    return NetworkPrediction(
        network=network,
        strategy=strategy,
        cluster=cluster,
        step_time_s=sum(breakdown.values()),
        breakdown=breakdown,
        memory=memory,
        limits=reasons,
        stages=stages,
        notes=tuple(note for note in (_modelled(network, profile),) if note),
    )


def _modelled(network: LayerNetwork, profile: LayerProfile | None) -> str:
    """A note on operators that the profile lacks; "" if it has all, or without a profile."""
    if profile is None:
        return ""
    known = profile.times(network)[1]
    names = [
        layer.name
        for layer, measured in zip(network.layers, known, strict=True)
        if not measured and layer.kind != "view"
    ]
    if not names:
        return f"operators timed on {profile.device}"
    listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return (
        f"operators timed on {profile.device}, but for {len(names)} of {len(network.layers)} "
        f"layers, which are modelled ({listed})"
    )


def _piped(terms: dict[str, float], stages: Stages, strategy: Strategy) -> dict[str, float]:
    """Computation of the busiest stage, and the pipeline's additions: fill, drain, waits."""
    layers = ("products", "memory", "layout", "host")
    compute = sum(terms[name] for name in layers)
    scale = stages.busiest_s / compute if compute else 0.0
    terms = {
        name: seconds * scale if name in layers else seconds for name, seconds in terms.items()
    }
    terms["update"] /= strategy.split
    waits = stages.step_s - stages.busiest_s
    terms["stage"] = min(stages.hand_over_s, waits)
    terms["bubble"] = waits - terms["stage"]
    return terms


def _overlapped(
    terms: dict[str, float], network: LayerNetwork, strategy: Strategy, machine: Machine
) -> dict[str, float]:
    """Seconds of DDP's exchange that remain after the backward pass.

    A bucket starts when the gradients of its layers are ready and the previous bucket has ended.
    """
    names = [name for name in terms if name.startswith("gradients")]
    exchange = sum(terms[name] for name in names)
    if not exchange:
        return terms
    buckets = [t for t in traffic(network, strategy) if t.what == "gradients"]
    elements = sum(bucket.elements for bucket in buckets)
    forward, backward = machine.layer_seconds(network, strategy.busiest_samples, strategy)
    share = backward.sum() / (forward.sum() + backward.sum())
    compute = sum(terms[name] for name in COMPUTE if name != "update") * share
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


def largest_batch(network: LayerNetwork, strategy: Strategy, cluster: Cluster) -> int:
    """The largest number of samples per replica that fits.

    Raises:
        PlanError: a single sample does not fit.
    """
    stages = pipeline(network, strategy, Machine(cluster)) if strategy.is_pipeline else None
    memory = step_memory(network, strategy, () if stages is None else stages.ends)
    fixed = sum(size for name, size in memory.items() if name not in OF_SAMPLES)
    one = (sum(memory.values()) - fixed) / strategy.busiest_samples
    room = cluster.gpu.memory_bytes - fixed
    if room < one:
        largest = max(network.layers, key=lambda layer: layer.out_elements)
        raise PlanError(
            f"no sample fits by {strategy.describe()}: weights and the like take "
            f"{in_gib(fixed)}, a sample's activations {in_gib(one)} (most of them {largest.name}), "
            f"the GPU has {in_gib(cluster.gpu.memory_bytes)}"
        )
    return int(room // one)
