"""Work of one sample for a GPU: arithmetic, bytes and kernels of each pass through each layer.

These are counts; ``compute`` divides them by rates of a GPU. Products count whole tiles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from paceline.networks.layer import NETWORK_INPUT, PRODUCTS, Layer, LayerNetwork, Shared
from paceline.networks.operators import operator_of
from paceline.networks.saved import Tensors, check_precision

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Numbers of reads and writes of a layer's (input, result) forward and of (input, result with its
#: gradient) backward. Batch normalization reads its input twice forward, and both twice backward.
_MOVED = {
    "aten.native_batch_norm": (2.0, 1.0, 3.0, 2.0),
    "norm": (1.0, 1.0, 3.0, 2.0),
    "activation": (1.0, 1.0, 1.0, 2.0),
    "pool": (1.0, 1.0, 1.0, 2.0),
    "softmax": (1.0, 1.0, 1.0, 2.0),
    "add": (1.0, 1.0, 0.0, 0.0),
    "view": (0.0, 0.0, 0.0, 0.0),
}
#: A product writes results in tiles. A dimension that does not fill a tile wastes the rest.
_TILE = 64
_DEPTH_TILE = 32
PASSES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Work of one sample for a GPU.

    Attributes:
        flops: [pass, layer] FLOPs with whole tiles; the passes are forward, gradient of the input,
            gradient of the weights.
        sample_bytes: [pass, layer] bytes per sample.
        copied_bytes: [pass, layer] bytes of copies that reorder channels-first convolutions.
        step_bytes: [pass, layer] bytes once per step: weights and their casts.
        kernels: [pass, layer] number of kernels.
        products, depthwise, grouped: [layer] masks: products, depthwise convolutions, other grouped
            convolutions.
        wide, deep: [layer] a product's filters per group, and elements summed per filter; 0 without
            weights.
        tensor_bytes: [layer] bytes of a product's input and result in its precision.
        in_width, out_width: [layer] bytes per element of its input, after casts, and of its result.
        weights: [layer] trained elements.
        tensors: number of parameter tensors.
    """

    flops: Array
    sample_bytes: Array
    copied_bytes: Array
    step_bytes: Array
    kernels: Array
    products: Mask
    depthwise: Mask
    grouped: Mask
    wide: Array
    deep: Array
    tensor_bytes: Array
    in_width: Array
    out_width: Array
    weights: Array
    tensors: int

    @property
    def parameters(self) -> float:
        """Trained elements of all layers."""
        return float(self.weights.sum())

    def part(self, share: Array, weights: Array, waste: Array | float = 1.0) -> Demand:
        """The part of one of the GPUs that split a sample.

        Args:
            share: [layer] share of the arithmetic and of the samples' bytes.
            weights: [layer] share of the parameters.
            waste: [layer] factor by which tiles are emptier than those of the whole layer.
        """
        return replace(
            self,
            flops=self.flops * share * waste,
            sample_bytes=self.sample_bytes * share,
            copied_bytes=self.copied_bytes * share,
            step_bytes=self.step_bytes * weights,
            tensor_bytes=self.tensor_bytes * share,
            weights=self.weights * weights,
        )

    def split_waste(self, wide: Array | float = 1.0, deep: Array | float = 1.0) -> Array:
        """[layer] factor by which tiles are emptier with these shares of width and depth."""
        whole = tile_waste(self.wide, self.deep)
        return tile_waste(self.wide * wide, self.deep * deep) / whole


def demand_of(network: LayerNetwork, precision: str = "fp32") -> Demand:
    """Arithmetic and bytes of each pass through each layer; cached per network.

    Raises:
        ModelError: the precision is unknown.
    """
    check_precision(precision)
    return _demand_of(Shared(network), precision)


@lru_cache(maxsize=64)
def _demand_of(shared: Shared, precision: str) -> Demand:
    network = shared.network
    tensors = Tensors(network, precision)
    count = len(network.layers)
    flops, moved, copied, once, kernels = (np.zeros((PASSES, count)) for _ in range(5))
    tensor_bytes = np.zeros(count)
    for index, layer in enumerate(network.layers):
        if layer.kind in PRODUCTS:
            columns = _product(network, tensors, index, layer)
            for array, column in zip((flops, moved, copied, once, kernels), columns, strict=True):
                array[:, index] = column
            tensor_bytes[index] = moved[0, index]
        else:
            moved[:2, index], kernels[:2, index] = _elementwise(network, tensors, index, layer)
        extra = _casts(tensors, layer)
        moved[0, index] += extra
        moved[1, index] += extra
        # The gradients of several readers are summed.
        sums = max(0, len(network.readers[index]) - 1)
        if layer.kind != "view":
            moved[1, index] += 3.0 * sums * layer.out_elements * tensors.width[index]
    wide, deep = np.array([_weight_sides(layer) for layer in network.layers], dtype=float).T
    depthwise, grouped = np.array([_groups(layer) for layer in network.layers]).T
    return Demand(
        flops=flops * tile_waste(wide, deep),
        sample_bytes=moved,
        copied_bytes=copied,
        step_bytes=once,
        kernels=kernels,
        products=np.array([layer.kind in PRODUCTS for layer in network.layers]),
        depthwise=depthwise,
        grouped=grouped,
        wide=wide,
        deep=deep,
        tensor_bytes=tensor_bytes,
        in_width=np.array([_read_width(tensors, layer) for layer in network.layers], dtype=float),
        out_width=np.array(tensors.width, dtype=float),
        weights=np.array([layer.parameter_count for layer in network.layers], dtype=float),
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
    weights = prod(layer.parameters[0]) if layer.parameters else 0
    both = inside + outside
    # The gradient of fp32 weights is cast back.
    # A recurrent layer runs position by position: a product, then its gates.
    steps = 2.0 * layer.out_shape[1] if "rnn" in layer.op else 1.0
    once = (weights * (width + (6.0 if tensors.amp else 0.0)), weights * width, weights * width)
    reordered = 2.0 * both if layer.kind == "conv" else 0.0
    return (
        (layer.flops, layer.grad_input_flops, layer.grad_weight_flops),
        (both, both * first, both * second),
        (reordered, reordered * first, reordered * second),
        once,
        (steps, steps * first, second),
    )


def tile_waste(wide: Array, deep: Array) -> Array:
    """Ratio of whole tiles to products of these widths and depths; 0 is not a product."""
    waste = np.ones(len(wide))
    for size, tile in ((wide, _TILE), (deep, _DEPTH_TILE)):
        size = np.where(size > 0, size, tile)
        waste *= np.ceil(size / tile) * tile / size
    return waste


def _weight_sides(layer: Layer) -> tuple[int, int]:
    """Filters of a group, and elements summed per filter."""
    if layer.kind not in PRODUCTS or not layer.parameters or len(layer.parameters[0]) < 2:
        return 0, 0
    weight = layer.parameters[0]
    return max(1, weight[0] // layer.groups), prod(weight[1:])


def _groups(layer: Layer) -> tuple[bool, bool]:
    """Whether a convolution is depthwise, and whether it has other groups."""
    many = layer.kind == "conv" and layer.groups > 1
    depthwise = many and layer.groups == layer.out_shape[0]
    return depthwise, many and not depthwise


def _elementwise(
    network: LayerNetwork, tensors: Tensors, index: int, layer: Layer
) -> tuple[tuple[float, float], tuple[float, float]]:
    """(bytes forward, backward) and kernels of a layer that is not a product."""
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
        # Each factor's gradient is a separate product.
        backward = 2.0 * (inside + 2.0 * outside)
    free = layer.kind == "view"
    return (forward, backward), (float(not free), float(not free and backward > 0))


def _elements(network: LayerNetwork, source: int) -> int:
    if source == NETWORK_INPUT:
        return prod(network.input_shape)
    return network.layers[source].out_elements


def _wanted_width(layer: Layer) -> int | None:
    """Bytes of an element to which autocast casts a layer's inputs; None = no cast."""
    return {"half": 2, "single": 4}.get(operator_of(layer).autocast)


def _read_width(tensors: Tensors, layer: Layer) -> float:
    """Bytes of an element of the first input after casts."""
    wanted = _wanted_width(layer) if tensors.amp else None
    first = layer.inputs[0] if layer.inputs else NETWORK_INPUT
    return float(wanted or tensors.source_width(first))


def _casts(tensors: Tensors, layer: Layer) -> float:
    """Bytes that autocast reads and writes for a layer's inputs."""
    wanted = _wanted_width(layer)
    if not tensors.amp or wanted is None:
        return 0.0
    return sum(
        _elements(tensors.network, source) * float(wanted + tensors.source_width(source))
        for source in layer.inputs
        if tensors.source_width(source) != wanted
    )
