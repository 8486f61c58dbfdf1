"""Seconds of a network's operators on one GPU: a roofline for each of the three passes.

Products take the longer of their arithmetic and their bytes; all else takes its bytes. Narrow
products fill part of a tile. Convolutions with groups are apart: depthwise ones are bound by
memory, and cuDNN has poor kernels for other groups with channels last.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray

from paceline.errors import ModelError
from paceline.model.cluster import Gpu
from paceline.networks.layer import NETWORK_INPUT, PRODUCTS, Layer, LayerNetwork
from paceline.networks.operators import operator_of
from paceline.networks.saved import Tensors, check_precision

Array = NDArray[np.float64]

#: Reads and writes of a layer's (input, result) forward, and of (input, result and its gradient)
#: backward. Batch normalization reads its input twice forward, and both twice backward.
_MOVED = {
    "aten.native_batch_norm": (2.0, 1.0, 3.0, 2.0),
    "norm": (1.0, 1.0, 3.0, 2.0),
    "activation": (1.0, 1.0, 1.0, 2.0),
    "pool": (1.0, 1.0, 1.0, 2.0),
    "softmax": (1.0, 1.0, 1.0, 2.0),
    "add": (1.0, 1.0, 0.0, 0.0),
    "view": (0.0, 0.0, 0.0, 0.0),
}
#: A product writes results in tiles; a dimension that fills none of it whole wastes the rest.
_TILE = 64
_DEPTH_TILE = 32
#: What a step does once with each parameter [fp32 elements]: momentum reads and writes.
_UPDATE = {"sgd": 3.0, "momentum": 5.0, "adam": 7.0}
_ZERO_AND_UNSCALE = 3.0
_PASSES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeConstants:
    """Five numbers that depend on GPU and libraries; the defaults are guesses without a run.

    Attributes:
        product_share: of the peak that large products reach.
        memory_share: of the memory's bandwidth that element-wise operators reach.
        depthwise_share: of the bandwidth that depthwise convolutions reach.
        grouped_share: of the peak that other convolutions with groups reach, channels last.
        kernel_s: seconds that each kernel takes beside its work.
    """

    product_share: float = 0.6
    memory_share: float = 0.8
    depthwise_share: float = 0.3
    grouped_share: float = 0.05
    kernel_s: float = 5e-6


#: By a GPU's name: fitted to the runs of ``benchmarks/cnn.py throughput`` (docs/networks.md).
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
    """Those that were fitted to runs on this GPU, or guesses."""
    return FITTED.get(gpu.name, ComputeConstants())


@dataclass(frozen=True, slots=True)
class Demand:
    """What one sample asks of a GPU.

    Attributes:
        flops: [pass, layer] with tiles filled up; the passes are forward, gradient of the input,
            gradient of the weights.
        sample_bytes: [pass, layer].
        copied_bytes: [pass, layer] by which channels-first convolutions are reordered.
        step_bytes: [pass, layer] once a step: weights, and casts of them.
        kernels: [pass, layer].
        depthwise, grouped: [layer] convolutions of these kinds.
        parameters: all of them.
        tensors: of parameters.
    """

    flops: Array
    sample_bytes: Array
    copied_bytes: Array
    step_bytes: Array
    kernels: Array
    depthwise: NDArray[np.bool_]
    grouped: NDArray[np.bool_]
    parameters: int
    tensors: int


def demand_of(network: LayerNetwork, precision: str = "fp32") -> Demand:
    """Arithmetic and bytes of each pass through each layer.

    Raises:
        ModelError: the precision is not known.
    """
    check_precision(precision)
    tensors = Tensors(network, precision)
    count = len(network.layers)
    arrays = [np.zeros((_PASSES, count)) for _ in range(5)]
    flops, moved, copied, once, kernels = arrays
    depthwise, grouped = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    for index, layer in enumerate(network.layers):
        if layer.kind == "conv":
            depthwise[index] = layer.groups > 1 and layer.groups == layer.out_shape[0]
            grouped[index] = layer.groups > 1 and not depthwise[index]
        if layer.kind in PRODUCTS:
            product = _product(network, tensors, index, layer)
            for array, column in zip(arrays, product, strict=True):
                array[:, index] = column
        else:
            moved[:2, index], kernels[:2, index] = _elementwise(network, tensors, index, layer)
        extra = _casts(tensors, layer)
        moved[0, index] += extra
        moved[1, index] += extra
        # Gradients of several readers are summed.
        sums = max(0, len(network.readers[index]) - 1)
        if layer.kind != "view":
            moved[1, index] += 3.0 * sums * layer.out_elements * tensors.width[index]
    return Demand(
        flops=flops,
        sample_bytes=moved,
        copied_bytes=copied,
        step_bytes=once,
        kernels=kernels,
        depthwise=depthwise,
        grouped=grouped,
        parameters=network.parameters,
        tensors=sum(len(layer.parameters) for layer in network.layers),
    )


def _product(
    network: LayerNetwork, tensors: Tensors, index: int, layer: Layer
) -> tuple[tuple[float, float, float], ...]:
    """(flops, bytes of samples, reordered bytes, bytes of weights, kernels) of three passes."""
    width = 2.0 if tensors.amp else 4.0
    inside, outside = network.in_elements(index) * width, layer.out_elements * width
    first = float(layer.grad_input_flops > 0)
    second = float(layer.grad_weight_flops > 0)
    waste = _tile_waste(layer)
    weights = prod(layer.parameters[0]) if layer.parameters else 0
    both = inside + outside
    # The gradient of fp32 weights is cast back.
    # A recurrent layer runs position by position: a product, then its gates.
    steps = 2.0 * layer.out_shape[1] if "rnn" in layer.op else 1.0
    once = (weights * (width + (6.0 if tensors.amp else 0.0)), weights * width, weights * width)
    reordered = 2.0 * both if layer.kind == "conv" else 0.0
    return (
        (layer.flops * waste, layer.grad_input_flops * waste, layer.grad_weight_flops * waste),
        (both, both * first, both * second),
        (reordered, reordered * first, reordered * second),
        once,
        (steps, steps * first, second),
    )


def _tile_waste(layer: Layer) -> float:
    """By how much whole tiles exceed a product's width and depth."""
    if not layer.parameters or len(layer.parameters[0]) < 2:
        return 1.0
    wide = max(1, layer.parameters[0][0] // layer.groups)
    deep = prod(layer.parameters[0][1:])
    return ceil(wide / _TILE) * _TILE / wide * ceil(deep / _DEPTH_TILE) * _DEPTH_TILE / deep


def _elementwise(
    network: LayerNetwork, tensors: Tensors, index: int, layer: Layer
) -> tuple[tuple[float, float], tuple[float, float]]:
    """(bytes forward, backward) and kernels of a layer that is no product."""
    inside = sum(
        _elements(network, source) * tensors.source_width(source) for source in layer.inputs
    )
    outside = float(layer.out_elements * tensors.width[index])
    read, write, read_back, write_back = _MOVED.get(layer.op) or _MOVED.get(
        layer.kind, (1.0, 1.0, 1.0, 1.0)
    )
    indices = 8.0 * layer.out_elements if "indices" in operator_of(layer).saves else 0.0
    forward = read * inside + write * outside + indices
    backward = read_back * inside + write_back * outside + indices
    if layer.kind == "multiply" and (len(layer.inputs) > 1 or layer.parameters):
        # Each factor's gradient is a product of its own.
        backward = 2.0 * (inside + 2.0 * outside)
    free = layer.kind == "view"
    return (forward, backward), (float(not free), float(not free and backward > 0))


def _elements(network: LayerNetwork, source: int) -> int:
    if source == NETWORK_INPUT:
        return prod(network.input_shape)
    return network.layers[source].out_elements


def _casts(tensors: Tensors, layer: Layer) -> float:
    """Bytes that autocast reads and writes to give a layer its inputs."""
    wanted = {"half": 2, "single": 4}.get(operator_of(layer).autocast)
    if not tensors.amp or wanted is None:
        return 0.0
    return sum(
        _elements(tensors.network, source) * float(wanted + tensors.source_width(source))
        for source in layer.inputs
        if tensors.source_width(source) != wanted
    )


def peak_flops(gpu: Gpu, precision: str) -> float:
    """FLOP/s of products at a network's precision.

    TF32 runs at half the rate of fp16 where there are tensor cores for it (from Ampere on, which
    bf16 shows); before, "tf32" is fp32.

    Raises:
        ModelError: the GPU lacks the precision.
    """
    check_precision(precision)
    if precision == "amp":
        return gpu.peak("fp16")
    if precision == "tf32" and "bf16" in gpu.peak_flops:
        return gpu.peak("fp16") / 2
    return gpu.peak("fp32")


def layer_seconds(
    demand: Demand,
    batch: int,
    gpu: Gpu,
    precision: str = "fp32",
    *,
    channels_last: bool = True,
    constants: ComputeConstants | None = None,
) -> Array:
    """Seconds of each pass through each layer, [pass, layer].

    Args:
        demand: of the network, at the same precision.
        batch: samples on the GPU.
        gpu: by its datasheet.
        precision: "fp32", "tf32" or "amp".
        channels_last: else amp's convolutions reorder what they read and write.
        constants: default: ``constants_of(gpu)``.

    Raises:
        ModelError: a batch below 1, or the GPU lacks the precision.
    """
    if batch < 1:
        raise ModelError(f"a batch of {batch}: 1 sample at least")
    constants = constants or constants_of(gpu)
    share = np.full(demand.depthwise.shape, constants.product_share)
    if channels_last:
        share[demand.grouped] = constants.grouped_share
    flops = batch * demand.flops / (peak_flops(gpu, precision) * share)
    flops[:, demand.depthwise] = 0.0
    bandwidth = np.where(demand.depthwise, constants.depthwise_share, constants.memory_share)
    bandwidth = bandwidth * gpu.memory_bandwidth
    memory = (batch * demand.sample_bytes + demand.step_bytes) / bandwidth
    seconds = np.maximum(flops, memory) + demand.kernels * constants.kernel_s
    if not channels_last and precision != "fp32":
        copies = np.where(demand.depthwise, 0.0, demand.copied_bytes)
        seconds = seconds + batch * copies / (gpu.memory_bandwidth * constants.memory_share)
    return seconds


def update_seconds(
    demand: Demand,
    gpu: Gpu,
    optimizer: str = "momentum",
    *,
    constants: ComputeConstants | None = None,
) -> float:
    """Seconds of zeroing gradients and of the optimizer's step, tensor by tensor.

    Raises:
        ModelError: the optimizer is not known.
    """
    if optimizer not in _UPDATE:
        raise ModelError(f"the optimizer {optimizer!r} is none of {', '.join(_UPDATE)}")
    constants = constants or constants_of(gpu)
    elements = (_UPDATE[optimizer] + _ZERO_AND_UNSCALE) * demand.parameters
    bandwidth = gpu.memory_bandwidth * constants.memory_share
    return 4.0 * elements / bandwidth + _PASSES * demand.tensors * constants.kernel_s


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
    """Seconds of a whole training step on one GPU, without its input.

    Raises:
        ModelError: as ``layer_seconds`` and ``update_seconds``.
    """
    passes = layer_seconds(
        demand, batch, gpu, precision, channels_last=channels_last, constants=constants
    )
    return float(passes.sum()) + update_seconds(demand, gpu, optimizer, constants=constants)
