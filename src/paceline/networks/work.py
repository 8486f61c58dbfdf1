"""Arithmetic and bytes of a network's layers, summed for a part of each.

Counts of one sample, in arrays over layers; ``terms`` divides them by what a machine can do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from paceline.networks.compute import demand_of
from paceline.networks.layer import PRODUCTS, LayerNetwork

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

# Elements moved forward and backward per element of (input, output). Norm: two passes over x and
# one result forward, x and dy twice and dx backward. In place: read and written.
_MOVED = {"norm": (4.0, 4.0), "activation": (1.0, 4.0), "pool": (2.0, 3.0), "add": (1.0, 2.0)}
_USUAL = (2.0, 2.0)
_FREE = ("view",)


@dataclass(frozen=True, slots=True)
class Work:
    """Of one sample, by layer.

    Attributes:
        flops: [pass, layer] of products, tiles filled up: forward, gradient of input, of weights.
        product_elements: [pass, layer] read and written by them.
        moved_elements: [layer] moved by all other layers, forward and backward.
        in_elements, out_elements: [layer].
        kernels: [layer] launched, forward and backward.
        parameters: [layer].
        is_product: [layer].
    """

    flops: Array
    product_elements: Array
    moved_elements: Array
    in_elements: Array
    out_elements: Array
    kernels: Array
    parameters: Array
    is_product: Mask


class Shared:
    """A network that hashes by identity, for caches: its layers are many."""

    def __init__(self, network: LayerNetwork) -> None:
        self.network = network

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shared) and other.network is self.network

    def __hash__(self) -> int:
        return id(self.network)


@lru_cache(maxsize=64)
def _work_of(shared: Shared) -> Work:
    network = shared.network
    layers = network.layers
    count = len(layers)
    inside = np.array([network.in_elements(i) for i in range(count)], dtype=float)
    outside = np.array([layer.out_elements for layer in layers], dtype=float)
    products = np.array([layer.kind in PRODUCTS for layer in layers])
    weights = np.array([layer.parameter_count for layer in layers], dtype=float)
    flops = demand_of(network).flops
    moved = np.zeros(count)
    for i, layer in enumerate(layers):
        if not products[i] and layer.kind not in _FREE:
            reads, writes = _MOVED.get(layer.kind, _USUAL)
            moved[i] = reads * inside[i] + writes * outside[i]
    kernels = np.where(products, 3.0, 2.0) * [layer.kind not in _FREE for layer in layers]
    elements = np.where(products, inside + outside, 0.0) * (flops > 0)
    return Work(flops, elements, moved, inside, outside, kernels, weights, products)


def work_of(network: LayerNetwork) -> Work:
    """The counts of ``network``, computed once."""
    return _work_of(Shared(network))


def update_elements(parameters: float, optimizer: str) -> float:
    """Read and written to update ``parameters``: gradient, weight and each state in and out."""
    states = {"sgd": 0, "momentum": 1, "adam": 2}[optimizer]
    return parameters * (3 + 2 * states)


def padded(count: float, tile: int) -> float:
    """Filters computed where tiles have ``tile`` of them."""
    return math.ceil(count / tile) * tile
