"""Samples per second with data parallelism on more GPUs, from a measured run on fewer.

A step on n GPUs is the measured step on one, plus the exchange of gradients, plus the time in which
ranks join. Joining costs time from two ranks on: launches of NCCL's kernels, hooks, the wait for
the slowest host. The exposed share of the exchange depends on the software. The constants are
fitted to published runs on DGX-1, DGX-2, DGX A100 and a cluster of V100 nodes (``benchmarks/cnn.py
scaling``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.errors import ModelError
from paceline.model.cluster import Cluster
from paceline.model.network import Fabric, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingConstants:
    """Three constants that depend on software, and the spread of runs around their result.

    Attributes:
        join_s: seconds per step that two or more ranks need to join.
        inner: exposed share of the exchange inside a node; above 1 if NCCL's kernels slow
            computation down.
        outer: the same of an exchange between nodes.
        spread: standard deviation of the logarithm of measured over predicted rates.
    """

    join_s: float = 7e-3
    inner: float = 0.5
    outer: float = 3.0
    spread: float = 0.07


@dataclass(frozen=True, slots=True)
class Scaled:
    """A predicted rate.

    Attributes:
        samples_per_s: rate of all GPUs.
        efficiency: rate over linear scaling from the measured run.
        low, high: 80% of runs lie between these rates.
    """

    samples_per_s: float
    efficiency: float
    low: float
    high: float

    def is_odd(self, measured: float, z: float = 3.0) -> bool:
        """Whether a measured rate deviates more than in one of 370 runs (3 standard deviations)."""
        sigma = math.log(self.high / self.low) / (2 * _Z80)
        return abs(math.log(measured / self.samples_per_s)) > z * sigma


#: 80% of a normal distribution lie within this many standard deviations.
_Z80 = 1.2816


def scaled_rate(
    rate: float,
    gpus: int,
    to_gpus: int,
    *,
    batch_per_gpu: float,
    gradient_bytes: float,
    cluster: Cluster,
    constants: ScalingConstants | None = None,
) -> Scaled:
    """The rate on ``to_gpus`` GPUs with the same batch per GPU.

    Args:
        rate: measured samples/s of ``gpus`` GPUs.
        gpus: GPUs of the measured run.
        to_gpus: GPUs to predict.
        batch_per_gpu: samples of a GPU in a step.
        gradient_bytes: bytes of gradients exchanged per step.
        cluster: the machines.
        constants: constants of the software; None = constants of published runs.

    Raises:
        ModelError: a number is not above 0.
    """
    numbers = {"rate": rate, "gpus": gpus, "to_gpus": to_gpus, "batch_per_gpu": batch_per_gpu}
    for name, value in numbers.items():
        if not (math.isfinite(value) and value > 0):
            raise ModelError(f"{name} must be above 0, not {value}")
    constants = constants or ScalingConstants()
    fabric = Fabric(cluster)

    def beside_s(n: int) -> float:
        return _beside_s(n, gradient_bytes, fabric, constants)

    step_s = batch_per_gpu * gpus / rate
    # At least half of a measured step counts as computation, for any constants.
    alone_s = max(step_s - beside_s(gpus), step_s / 2)
    efficiency = step_s / (alone_s + beside_s(to_gpus))
    predicted = rate * to_gpus / gpus * efficiency
    factor = math.exp(_Z80 * constants.spread)
    return Scaled(predicted, efficiency, predicted / factor, predicted * factor)


def _beside_s(
    gpus: int, gradient_bytes: float, fabric: Fabric, constants: ScalingConstants
) -> float:
    """Seconds of a step besides its computation."""
    if gpus == 1:
        return 0.0
    exchange_s = fabric.all_reduce(gradient_bytes, Group(gpus, 1))
    several = fabric.cluster.nodes(gpus) > 1
    return constants.join_s + (constants.outer if several else constants.inner) * exchange_s
