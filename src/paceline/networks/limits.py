"""The largest extent of a strategy on a network, and the layer that limits it.

Paper: ParaDL, last column of Table 3 and 5.3.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.networks.layer import Layer, LayerNetwork
from paceline.networks.strategy import Strategy

# Kinds whose output elements need only a neighbourhood of the input.
_LOCAL = ("conv", "norm", "activation", "pool", "add", "multiply", "concat", "resample", "dropout")


@dataclass(frozen=True, slots=True)
class Limit:
    """The most GPUs that share one sample (``split``) or the samples (``replicas``).

    Attributes:
        most: GPUs.
        of: the limited quantity, "split" or "replicas".
        reason: the reason for users, with the layer's name.
    """

    most: int
    of: str
    reason: str


def is_local(layer: Layer) -> bool:
    """Whether an output element needs only a neighbourhood of its input."""
    return layer.kind in (*_LOCAL, "copy") and len(layer.out_shape) > 1


def spatial_end(network: LayerNetwork, parts: tuple[int, ...] = ()) -> int:
    """Last layer that a spatial split can reach; -1 for none.

    The split ends before the first layer that needs whole samples, such as a linear one, or has
    fewer rows than parts.
    """
    for index, layer in enumerate(network.layers):
        extents = layer.out_shape[1:]
        short = any(size < count for size, count in zip(extents, parts, strict=False))
        if not is_local(layer) or short or _global(network, index):
            return index - 1
    return len(network.layers) - 1


def _global(network: LayerNetwork, index: int) -> bool:
    """Whether a pooling's window covers all of its input."""
    layer = network.layers[index]
    return layer.kind == "pool" and all(size == 1 for size in layer.out_shape[1:])


def limits(network: LayerNetwork, strategy: Strategy) -> tuple[Limit, ...]:
    """All limits of ``strategy`` on ``network``, including those that it satisfies."""
    bounds = []
    if strategy.name.startswith("data"):
        batch = strategy.global_batch
        bounds.append(Limit(batch, "replicas", f"a step has {batch} samples"))
    if strategy.splits_weights:
        bounds.append(_weights_limit(network, strategy))
    if strategy.is_spatial:
        bounds.append(_spatial_limit(network, strategy))
    if strategy.is_pipeline:
        count = sum(1 for _ in network.weighted())
        bounds.append(Limit(count, "split", f"{network.name} has {count} layers with weights"))
    return tuple(bounds)


def violations(network: LayerNetwork, strategy: Strategy) -> tuple[str, ...]:
    """Why ``strategy`` cannot run, as in "filter: at most 64 GPUs, layer conv1 has 64 filters"."""
    sizes = {"split": strategy.split, "replicas": strategy.replicas}
    words = {"split": "a sample" if strategy.replicas > 1 else "", "replicas": "replicas"}
    reasons = []
    for limit in limits(network, strategy):
        if sizes[limit.of] > limit.most:
            unit = "replicas" if limit.of == "replicas" else f"GPUs {words['split']}".strip()
            reasons.append(f"{strategy.name}: at most {limit.most} {unit}, {limit.reason}")
    dimensions = len(network.input_shape) - 1
    if strategy.is_spatial and max(strategy.grid[dimensions:], default=1) > 1:
        grid = "x".join(map(str, strategy.grid))
        reasons.append(
            f"{strategy.name}: the grid {grid} has {len(strategy.grid)} dimensions, "
            f"samples of {network.name} have {dimensions}"
        )
    return tuple(reasons)


def _weights_limit(network: LayerNetwork, strategy: Strategy) -> Limit:
    """The smallest number of filters, or of input channels after the first layer (4.5)."""
    products = [(i, layer) for i, layer in network.weighted() if layer.kind in ("conv", "linear")]
    if strategy.splits_weights == "filter":
        counts = [(layer.filters, layer.name) for _, layer in products]
        noun = "filters"
    else:
        inputs = products[1:] or products
        counts = [(network.in_shapes(i)[0][0], layer.name) for i, layer in inputs]
        noun = "input channels"
    if not counts:
        return Limit(1, "split", f"{network.name} has no layer with {noun}")
    fewest, name = min(counts)
    return Limit(fewest, "split", f"layer {name} has {fewest} {noun}")


def _spatial_limit(network: LayerNetwork, strategy: Strategy) -> Limit:
    """Rows of the smallest split layer, in the grid's dimensions."""
    end = strategy.spatial_until
    last = spatial_end(network) if end is None else end
    dimensions = len(strategy.grid or (1,))
    sizes = [
        (math.prod(layer.out_shape[1 : 1 + dimensions]), layer.name, layer.out_shape)
        for layer in network.layers[: last + 1]
        if layer.kind == "conv" and len(layer.out_shape) > 1
    ]
    if not sizes:
        return Limit(1, "split", f"{network.name} has no layer that space can split")
    fewest, name, shape = min(sizes)
    extents = "x".join(map(str, shape[1:]))
    noun = "rows" if dimensions == 1 else "elements of the split dimensions"
    return Limit(fewest, "split", f"layer {name} ({extents}) has {fewest} {noun}")
