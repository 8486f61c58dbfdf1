"""Memory of one GPU that trains a network, and the largest batch that fits.

A walk through the backward pass finds the tensors that are still saved and the gradients that
exist. ``paradl_bytes`` is the formula with gamma of the ParaDL paper, section 4.2 and Table 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from paceline.errors import ModelError
from paceline.model.cluster import Gpu
from paceline.networks.layer import NETWORK_INPUT, PRODUCTS, LayerNetwork
from paceline.networks.saved import Tensors, check_precision, saved_bytes

#: fp32 elements that an optimizer keeps for each parameter.
OPTIMIZER_STATES: Mapping[str, int] = {"sgd": 0, "momentum": 1, "adam": 2}
_PARAMETER_BYTES = 4
_HALF = 2
#: Number of samples that stands for no limit.
_MAX_BATCH = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConstants:
    """Memory beyond counted tensors, fitted to runs (``benchmarks/cnn.py memory``).

    Attributes:
        reserved_bytes: context, libraries and workspaces of convolutions.
        overhead: memory of the caching allocator over the bytes of samples' tensors.
    """

    reserved_bytes: float = 3.0e9
    overhead: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkMemory:
    """Bytes on one GPU.

    Attributes:
        parameters, gradients, optimizer: bytes for the network's weights.
        casts: half-precision copies of weights that autocast keeps through a step.
        saved: bytes that autograd saves for all samples until the backward pass.
        transient: additional bytes at the peak: gradients of results. With checkpoints also a
            block's recomputed tensors.
        reserved: bytes outside tensors, and the allocator's loss.
    """

    parameters: float
    gradients: float
    optimizer: float
    casts: float
    saved: float
    transient: float
    reserved: float

    @property
    def total(self) -> float:
        """The sum."""
        states = self.parameters + self.gradients + self.optimizer + self.casts
        return states + self.saved + self.transient + self.reserved


def network_memory(
    network: LayerNetwork,
    batch: int,
    *,
    precision: str = "fp32",
    optimizer: str = "momentum",
    blocks: int = 0,
    constants: MemoryConstants | None = None,
) -> NetworkMemory:
    """Bytes at the peak of a training step.

    Args:
        network: the whole network, on one GPU.
        batch: samples on this GPU.
        precision: "fp32", "tf32" or "amp".
        optimizer: one of ``OPTIMIZER_STATES``.
        blocks: number of checkpointed parts with about equal saved bytes; 0 = no recomputation.
        constants: default: the constants fitted to the RTX 3090 of timm's table.

    Raises:
        ModelError: an option is unknown, or the batch is below 1.
    """
    _check(precision, optimizer, batch, blocks)
    sample = _sample_bytes(network, precision, blocks)
    return _assembled(network, batch, sample, precision, optimizer, constants or MemoryConstants())


def _check(precision: str, optimizer: str, batch: int, blocks: int) -> None:
    check_precision(precision)
    if optimizer not in OPTIMIZER_STATES:
        known = ", ".join(OPTIMIZER_STATES)
        raise ModelError(f"the optimizer {optimizer!r} is none of {known}")
    if batch < 1 or blocks < 0:
        raise ModelError(f"a batch of {batch} in {blocks} blocks: 1 sample and 0 blocks at least")


def _assembled(
    network: LayerNetwork,
    batch: int,
    sample: tuple[float, float],
    precision: str,
    optimizer: str,
    constants: MemoryConstants,
) -> NetworkMemory:
    weights = float(_PARAMETER_BYTES * network.parameters)
    saved, transient = sample
    return NetworkMemory(
        parameters=weights,
        gradients=weights,
        optimizer=OPTIMIZER_STATES[optimizer] * weights,
        casts=float(cast_bytes(network)) if precision == "amp" else 0.0,
        saved=batch * saved,
        transient=batch * transient,
        reserved=constants.reserved_bytes + (constants.overhead - 1) * batch * sum(sample),
    )


def largest_batch(
    network: LayerNetwork,
    gpu: Gpu,
    *,
    precision: str = "fp32",
    optimizer: str = "momentum",
    blocks: int = 0,
    constants: MemoryConstants | None = None,
) -> int:
    """Samples that fit on one GPU; 0 if not even one fits.

    Raises:
        ModelError: as ``network_memory``.
    """
    _check(precision, optimizer, 1, blocks)
    sample = _sample_bytes(network, precision, blocks)
    first, second = (
        _assembled(
            network, batch, sample, precision, optimizer, constants or MemoryConstants()
        ).total
        for batch in (1, 2)
    )
    room = gpu.memory_bytes - first
    if room < 0:
        return 0
    # Memory grows linearly with the batch.
    return min(_MAX_BATCH, 1 + math.floor(room / max(second - first, 1e-9)))


def cast_bytes(network: LayerNetwork) -> int:
    """Bytes of half-precision copies of products' weights, which autocast keeps during a step."""
    products = (layer for layer in network.layers if layer.kind in PRODUCTS)
    return _HALF * sum(layer.parameter_count for layer in products)


def _sample_bytes(network: LayerNetwork, precision: str, blocks: int) -> tuple[float, float]:
    """(saved, transient) bytes of one sample at the peak of the backward pass.

    The gradient of a result exists from the backward of its last reader to its own layer's
    backward.
    """
    saved = saved_bytes(network, precision)
    if blocks:
        return _checkpointed(network, precision, blocks)
    left = np.cumsum(saved)
    live = gradient_bytes(network, precision)
    peak = int(np.argmax(left + live))
    return float(left[peak]), float(live[peak])


def gradient_bytes(network: LayerNetwork, precision: str) -> NDArray[np.float64]:
    """[layer] bytes per sample of gradients of results that exist in its backward pass."""
    tensors = Tensors(network, precision)
    sizes = [
        0 if layer.kind == "view" else layer.out_elements * tensors.width[index]
        for index, layer in enumerate(network.layers)
    ]
    live = np.zeros(len(sizes))
    alive = {len(sizes) - 1}
    for index in reversed(range(len(sizes))):
        alive.update(i for i in network.layers[index].inputs if i != NETWORK_INPUT)
        live[index] = sum(sizes[i] for i in alive)
        alive.discard(index)
    return live


def _checkpointed(network: LayerNetwork, precision: str, blocks: int) -> tuple[float, float]:
    """Peak with checkpoints: blocks keep inputs, and run forward again before their backward."""
    saved, live = saved_bytes(network, precision), gradient_bytes(network, precision)
    tensors = Tensors(network, precision)
    readers = _last_readers(network, tensors)
    bounds = _narrow_cuts(saved, readers, tensors, blocks)
    inputs = sum(
        tensors.bytes(root)
        for root, last in readers.items()
        if any(root < bound <= last for bound in bounds) or root == NETWORK_INPUT
    )
    peak = max(
        float(np.max(np.cumsum(saved[first:end]) + live[first:end]))
        for first, end in pairwise([0, *bounds, len(saved)])
    )
    return float(inputs), peak


def _last_readers(network: LayerNetwork, tensors: Tensors) -> dict[int, int]:
    """For each result's memory, the last layer that reads it."""
    last = {}
    for index, layer in enumerate(network.layers):
        for source in layer.inputs:
            last[tensors.root_of(source)] = index
    return last


def _narrow_cuts(
    saved: NDArray[np.float64], readers: Mapping[int, int], tensors: Tensors, blocks: int
) -> list[int]:
    """Begins of blocks of about equal saved bytes, at layers that keep least."""
    steps = np.zeros(len(saved) + 1)
    for root, last in readers.items():
        if root != NETWORK_INPUT:
            steps[root + 1] += tensors.bytes(root)
            steps[last + 1] -= tensors.bytes(root)
    crossing = np.cumsum(steps)[:-1]
    share = (np.cumsum(saved) - saved) / max(saved.sum(), 1.0) * blocks
    cuts = set()
    for number in range(1, blocks):
        near = np.flatnonzero(np.abs(share - number) < 0.5)
        if len(near) and near[-1] > 0:
            near = near[near > 0]
            cuts.add(int(near[np.argmin(crossing[near])]))
    return sorted(cuts)


def paradl_bytes(
    network: LayerNetwork, batch: int, *, gamma: float = 1.0, item_bytes: int = 4
) -> float:
    """The paper's memory of one GPU, as printed: gamma delta sum(2B(|x| + |y|) + 2|w| + |bi|).

    The layers are the paper's: convolutions, poolings and products, with separate activations and
    norms.
    """
    total = 0.0
    for index, layer in enumerate(network.layers):
        if layer.kind == "view":
            continue
        bias = math.prod(layer.parameters[1]) if len(layer.parameters) > 1 else 0
        weights = layer.parameter_count - (bias if layer.tied_to is None else 0)
        both = network.in_elements(index) + layer.out_elements
        total += 2.0 * batch * both + 2.0 * weights + bias
    return gamma * item_bytes * total
