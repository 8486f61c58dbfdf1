"""Memory of the fullest GPU that trains a network by a strategy, counted tensor by tensor.

The formula of the ParaDL paper (4.2 and Table 3) omits halos, gathered tensors, buffers of the
exchange, uneven parts and microbatches in flight. They are counted here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from paceline.networks.demand import Array, demand_of
from paceline.networks.layer import LayerNetwork, Shared
from paceline.networks.memory import MemoryConstants, cast_bytes, gradient_bytes
from paceline.networks.regions import largest_share
from paceline.networks.saved import saved_bytes
from paceline.networks.strategy import GRADIENT_BYTES, OPTIMIZERS, Strategy
from paceline.networks.traffic import (
    ELEMENT_BYTES,
    crossing,
    last_spatial,
    split_products,
    traffic,
)
from paceline.units import in_gib

#: Parts that grow with the samples of a GPU.
OF_SAMPLES = ("activations", "transient", "halos", "gathers")
#: Number of layers whose parameters FSDP gathers at once: one computes, the next is gathered.
_AHEAD = 2


@dataclass(frozen=True, slots=True)
class _Whole:
    """Memory of one sample of the whole network on one GPU.

    Attributes:
        saved: [layer] bytes that each layer saves.
        gradients: [layer] bytes of gradients of results that exist in its backward pass.
        casts: bytes of half-precision weights.
    """

    saved: Array
    gradients: Array
    casts: float


def step_memory(
    network: LayerNetwork, strategy: Strategy, ends: Sequence[int] = ()
) -> dict[str, float]:
    """Bytes of the fullest GPU at the peak of a step, by their use.

    Args:
        network: its layers.
        strategy: the split of the training.
        ends: last layer (index) of each stage of a pipeline.

    Returns:
        bytes by name. Parts of the model are weights, gradients, optimizer and casts. Parts of
        samples are activations (saved by autograd), transient (gradients of results), halos and
        gathers (copies from other GPUs). Parts of exchanges are buckets, and parameters gathered by
        FSDP. The rest is reserved.
    """
    if not ends:
        return _memory_of_part(network, strategy, (0, len(network.layers)), 1)
    starts = [0, *(end + 1 for end in ends[:-1])]
    parts = zip(starts, [end + 1 for end in ends], strict=True)
    count, microbatches = len(starts), strategy.microbatches
    by_stage = [
        _memory_of_part(
            network,
            strategy,
            part,
            microbatches if strategy.schedule == "gpipe" else min(count - number, microbatches),
        )
        for number, part in enumerate(parts)
    ]
    return max(by_stage, key=lambda memory: sum(memory.values()))


def _memory_of_part(
    network: LayerNetwork, strategy: Strategy, part: tuple[int, int], in_flight: int
) -> dict[str, float]:
    """Bytes for the layers ``part``; a pipeline stage has ``in_flight`` microbatches at once."""
    whole, rows = whole_network(network, strategy.precision), slice(*part)
    samples = strategy.busiest_samples / strategy.microbatches
    weights = demand_of(network, strategy.precision).weights.copy()
    if strategy.splits_weights and strategy.split > 1:
        weights[split_products(network, strategy)] /= strategy.split
    saved_share, gradient_share = _shares(network, strategy)
    left = np.cumsum((whole.saved * saved_share)[rows])
    live = (whole.gradients * gradient_share)[rows]
    peak = int(np.argmax(left + live))
    activations = float(left[peak]) * samples
    if in_flight > 1:  # all tensors are saved of all microbatches except the one in its backward
        earlier = (
            _handed_over(network, strategy, part[0]) if strategy.recompute else float(left[-1])
        )
        activations += (in_flight - 1) * samples * earlier
    memory = {
        **_states(strategy, float(weights[rows].sum())),
        "casts": whole.casts * float(weights[rows].sum()) / max(1, network.parameters),
        "activations": activations,
        "transient": float(live[peak]) * samples,
        **_copies(network, strategy),
        **_buffers(network, strategy, weights[rows]),
        "reserved": MemoryConstants().reserved_bytes,
    }
    return {name: float(size) for name, size in memory.items()}


def _states(strategy: Strategy, parameters: float) -> dict[str, float]:
    """Weights, gradients and the optimizer's tensors."""
    weights = parameters * ELEMENT_BYTES
    shards = strategy.replicas if strategy.zero else 1
    return {
        "weights": weights / (shards if strategy.zero == 3 else 1),
        "gradients": weights / (shards if strategy.zero >= 2 else 1),
        "optimizer": weights * OPTIMIZERS[strategy.optimizer] / shards,
    }


def _shares(network: LayerNetwork, strategy: Strategy) -> tuple[Array, Array]:
    """[layer] the largest part's share of each layer's inputs, and of its results."""
    count = len(network.layers)
    inputs, results = np.ones(count), np.ones(count)
    if not (strategy.is_spatial and strategy.split > 1):
        return inputs, results
    for index in range(last_spatial(network, strategy) + 1):
        shapes = (network.in_shapes(index)[0], network.layers[index].out_shape)
        for shares, shape in zip((inputs, results), shapes, strict=True):
            extents = shape[1:]
            whole = math.prod(extents)
            if whole:
                parts = strategy.parts(len(extents))
                shares[index] = largest_share(extents, parts) / whole
    return inputs, results


def _copies(network: LayerNetwork, strategy: Strategy) -> dict[str, float]:
    """Bytes of copies from other GPUs for all samples of the busiest GPU."""
    if strategy.split == 1 or strategy.is_pipeline:
        return {}
    if strategy.is_spatial:
        return {"halos": _halos(network, strategy), "gathers": _gathered(network, strategy)}
    return {"gathers": _parts_of_products(network, strategy)}


def _halos(network: LayerNetwork, strategy: Strategy) -> float:
    """Bytes that layers with a window save besides their own rows.

    A part and its halo are joined into a new tensor. If another layer has saved the part already,
    it exists twice.
    """
    saved = whole_network(network, strategy.precision).saved
    demand, shares = demand_of(network, strategy.precision), _shares(network, strategy)[0]
    total = 0.0
    for transfer in traffic(network, strategy):
        if (transfer.what, transfer.phase) != ("halo", "forward"):
            continue
        index = transfer.layer
        total += transfer.elements * transfer.width
        whole = network.in_elements(index) * float(demand.in_width[index])
        if saved[index] < whole:
            total += whole * shares[index] * strategy.busiest_samples
    return total


def _gathered(network: LayerNetwork, strategy: Strategy) -> float:
    """Bytes of whole tensors at the end of a spatial split; the layers after it save them."""
    demand, last = demand_of(network, strategy.precision), last_spatial(network, strategy)
    elements = (
        network.layers[index].out_elements * demand.out_width[index]
        for index in crossing(network, last)
        if last + 1 < len(network.layers)
    )
    return float(sum(elements)) * strategy.busiest_samples


def _parts_of_products(network: LayerNetwork, strategy: Strategy) -> float:
    """Filter splits: a part of a result until it is gathered. Channel splits: input slices.

    A slice along the channels of a batch is not contiguous, so convolutions copy it.
    """
    demand, samples = demand_of(network, strategy.precision), strategy.busiest_samples
    products = split_products(network, strategy)
    if not len(products):
        return 0.0
    if strategy.splits_weights == "filter":
        sizes = [network.layers[i].out_elements * demand.out_width[i] for i in products]
        return float(max(sizes)) * samples / strategy.split
    sizes = [network.in_elements(i) * demand.in_width[i] for i in products]
    return float(sum(sizes)) * samples / strategy.split


def _buffers(network: LayerNetwork, strategy: Strategy, weights: Array) -> dict[str, float]:
    """Bytes of the exchange: a packed copy, DDP's buckets, parameters gathered by FSDP.

    DDP's buckets are a second copy of all gradients (``gradient_as_bucket_view=False``, the default
    of torch 2.13: torch/nn/parallel/distributed.py).
    """
    buffers = {}
    exchanged = float(weights.sum()) * GRADIENT_BYTES[strategy.gradient_precision]
    if strategy.replicas > 1 and strategy.gradients in ("packed", "buckets"):
        is_sharded = strategy.zero >= 2
        buffers["buckets"] = (
            min(exchanged, 2.0 * strategy.bucket_bytes) if is_sharded else exchanged
        )
    if strategy.zero == 3 and strategy.replicas > 1:
        buffers["parameters"] = _AHEAD * ELEMENT_BYTES * float(weights.max(initial=0.0))
    return buffers


def _handed_over(network: LayerNetwork, strategy: Strategy, start: int) -> float:
    """Bytes per sample that a stage keeps of a microbatch that it recomputes."""
    demand = demand_of(network, strategy.precision)
    if start == 0:
        return float(math.prod(network.input_shape)) * ELEMENT_BYTES
    entering = crossing(network, start - 1)
    return float(sum(network.layers[i].out_elements * demand.out_width[i] for i in entering))


def whole_network(network: LayerNetwork, precision: str) -> _Whole:
    """Memory of one sample of the network on one GPU; cached."""
    return _whole(Shared(network), precision)


@lru_cache(maxsize=64)
def _whole(shared: Shared, precision: str) -> _Whole:
    network = shared.network
    casts = float(cast_bytes(network)) if precision == "amp" else 0.0
    return _Whole(saved_bytes(network, precision), gradient_bytes(network, precision), casts)


def paging(memory: Mapping[str, float], capacity: float) -> str:
    """Why a step runs only with memory paged to the host; "" if it fits."""
    total = sum(memory.values())
    if total <= capacity:
        return ""
    most = max(memory, key=lambda name: memory[name])
    beyond = total - capacity
    return (
        f"fits memory only by paging: {in_gib(total)} a GPU, {in_gib(beyond)} too much; "
        f"{in_gib(memory[most])} are {most}"
    )
