"""Seconds of a network's operators on one GPU: a roofline for each of the three passes.

A product takes the longer of its arithmetic and its bytes. Every other operator takes the time of
its bytes. Narrow products fill only part of a tile. Grouped convolutions are separate: depthwise
ones are bound by memory, and for other groups cuDNN has slow kernels with channels last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.errors import ModelError
from paceline.model.cluster import Gpu
from paceline.networks.demand import PASSES, Array, Demand
from paceline.networks.saved import check_precision

#: Reads and writes of an update per parameter [fp32 elements].
_UPDATE = {"sgd": 3.0, "momentum": 5.0, "adam": 7.0}
_ZERO_AND_UNSCALE = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeConstants:
    """Five constants that depend on GPU and libraries. Without runs, the defaults are guesses.

    Attributes:
        product_share: share of the peak that large products reach.
        memory_share: share of the memory's bandwidth that element-wise operators reach.
        depthwise_share: share of the bandwidth that depthwise convolutions reach.
        grouped_share: share of the peak that other convolutions with groups reach, channels last.
        kernel_s: seconds of each kernel besides its work.
    """

    product_share: float = 0.6
    memory_share: float = 0.8
    depthwise_share: float = 0.3
    grouped_share: float = 0.05
    kernel_s: float = 5e-6


#: GPU -> constants fitted to the runs of ``benchmarks/cnn.py throughput`` (docs/networks.md).
FITTED = {
    "GeForce RTX 3090 24GB": ComputeConstants(
        product_share=0.91,
        memory_share=0.84,
        depthwise_share=1.0,
        grouped_share=0.094,
        kernel_s=35e-6,
    )
}


def constants_of(gpu: Gpu) -> ComputeConstants:
    """Constants fitted to runs on this GPU, or guesses."""
    return FITTED.get(gpu.name, ComputeConstants())


def peak_flops(gpu: Gpu, precision: str) -> float:
    """FLOP/s of products at a network's precision.

    TF32 has half the rate of fp16 on GPUs with TF32 tensor cores (from Ampere on, the GPUs with
    bf16). On older GPUs, "tf32" is fp32.

    Raises:
        ModelError: the GPU lacks the precision.
    """
    check_precision(precision)
    if precision == "amp":
        return gpu.peak("fp16")
    return gpu.peak("fp16") / 2 if _uses_tensor_cores(gpu, precision) else gpu.peak("fp32")


def _uses_tensor_cores(gpu: Gpu, precision: str) -> bool:
    return precision == "amp" or (precision == "tf32" and "bf16" in gpu.peak_flops)


def autocast(precision: str, gpu: Gpu) -> str:
    """The precision of networks for the name of a format: bf16 and fp16 are "amp".

    Raises:
        ModelError: the GPU lacks the format.
    """
    if precision not in ("fp16", "bf16"):
        return precision
    gpu.peak(precision)
    return "amp"


def layer_seconds(
    demand: Demand,
    batch: float,
    gpu: Gpu,
    precision: str = "fp32",
    *,
    channels_last: bool = True,
    constants: ComputeConstants | None = None,
) -> Array:
    """Seconds of each pass through each layer, [pass, layer].

    Args:
        demand: work of the network, at the same precision.
        batch: samples on the GPU.
        gpu: its datasheet.
        precision: "fp32", "tf32" or "amp".
        channels_last: otherwise convolutions on tensor cores reorder their inputs and outputs.
        constants: default: ``constants_of(gpu)``.

    Raises:
        ModelError: a batch below 1, or the GPU lacks the precision.
    """
    constants = constants or constants_of(gpu)
    seconds = roofline_seconds(
        demand, batch, gpu, precision, channels_last=channels_last, constants=constants
    )
    if not channels_last:
        seconds = seconds + reorder_seconds(demand, batch, gpu, precision, constants=constants)
    return seconds + demand.kernels * constants.kernel_s


def roofline_seconds(
    demand: Demand,
    batch: float,
    gpu: Gpu,
    precision: str,
    *,
    channels_last: bool,
    constants: ComputeConstants,
) -> Array:
    """[pass, layer] seconds: the longer of arithmetic and bytes.

    Raises:
        ModelError: as ``layer_seconds``.
    """
    if batch < 1:
        raise ModelError(f"a batch of {batch:g}: 1 sample at least")
    share = np.full(demand.depthwise.shape, constants.product_share)
    if channels_last:
        share[demand.grouped] = constants.grouped_share
    flops = batch * demand.flops / (peak_flops(gpu, precision) * share)
    flops[:, demand.depthwise] = 0.0
    bandwidth = np.where(demand.depthwise, constants.depthwise_share, constants.memory_share)
    bandwidth = bandwidth * gpu.memory_bandwidth
    memory = (batch * demand.sample_bytes + demand.step_bytes) / bandwidth
    seconds: Array = np.maximum(flops, memory)
    return seconds


def reorder_seconds(
    demand: Demand, batch: float, gpu: Gpu, precision: str, *, constants: ComputeConstants
) -> Array:
    """[pass, layer] seconds to reorder tensors of convolutions on tensor cores, channels first."""
    if not _uses_tensor_cores(gpu, precision):
        return np.zeros_like(demand.copied_bytes)
    copies: Array = np.where(demand.depthwise, 0.0, demand.copied_bytes)
    return batch * copies / (gpu.memory_bandwidth * constants.memory_share)


def update_seconds(
    demand: Demand,
    gpu: Gpu,
    optimizer: str = "momentum",
    *,
    constants: ComputeConstants | None = None,
) -> float:
    """Seconds of zeroing gradients and of the optimizer's step, tensor by tensor.

    Raises:
        ModelError: the optimizer is unknown.
    """
    if optimizer not in _UPDATE:
        raise ModelError(f"the optimizer {optimizer!r} is none of {', '.join(_UPDATE)}")
    constants = constants or constants_of(gpu)
    elements = (_UPDATE[optimizer] + _ZERO_AND_UNSCALE) * demand.parameters
    bandwidth = gpu.memory_bandwidth * constants.memory_share
    return 4.0 * elements / bandwidth + PASSES * demand.tensors * constants.kernel_s


def step_seconds(
    demand: Demand,
    batch: int,
    gpu: Gpu,
    precision: str = "fp32",
    *,
    channels_last: bool = True,
    optimizer: str = "momentum",
    constants: ComputeConstants | None = None,
) -> float:
    """Seconds of a whole training step on one GPU, without reading input.

    Raises:
        ModelError: as ``layer_seconds`` and ``update_seconds``.
    """
    passes = layer_seconds(
        demand, batch, gpu, precision, channels_last=channels_last, constants=constants
    )
    return float(passes.sum()) + update_seconds(demand, gpu, optimizer, constants=constants)
