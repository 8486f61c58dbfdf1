"""All messages of a step: tensor, pass and group of each.

These are counts: elements and messages of the GPU that receives most. ``step_time`` has the
seconds. Paper: ParaDL, 3 and 4.5; Dryden et al., SC 2019 (filters and channels).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.networks.demand import demand_of
from paceline.networks.layer import NETWORK_INPUT, Layer, LayerNetwork
from paceline.networks.limits import spatial_end
from paceline.networks.regions import backward_halo, forward_halo
from paceline.networks.strategy import GRADIENT_BYTES, Strategy

ELEMENT_BYTES = 4
_SUMS = 2  # forward: mean and inverse deviation; backward: sums of gradient and of gradient times x
_OTHER_NORMS = ("layer", "group", "instance", "rms")


@dataclass(frozen=True, slots=True)
class Transfer:
    """One exchange of a step.

    Attributes:
        what: "halo", "gather", "layer", "norm", "gradients", "weights", "stage".
        pattern: "p2p", "all-gather", "all-reduce", "reduce-scatter".
        phase: "forward", "backward" or "update".
        layer: index of the layer; of the last one if a buffer has several.
        elements: elements of a collective's whole buffer; for p2p, elements that the busiest GPU
            receives.
        messages: messages that the busiest GPU receives (ring: size - 1 per pass).
        size: GPUs of the group.
        inner: whether the group's members are neighbours (the split) or equal ranks of replicas.
        tensors: number of tensors in the buffer.
        width: bytes of an element.
    """

    what: str
    pattern: str
    phase: str
    layer: int
    elements: float
    messages: int
    size: int
    inner: bool
    tensors: int = 1
    width: float = ELEMENT_BYTES

    @property
    def received(self) -> float:
        """Elements that the busiest GPU receives; collectives use a ring."""
        if self.pattern == "p2p":
            return self.elements
        passes = 2 if self.pattern == "all-reduce" else 1
        return passes * self.elements * (self.size - 1) / self.size


def traffic(network: LayerNetwork, strategy: Strategy) -> tuple[Transfer, ...]:
    """All messages of a step: first of layers in order, then of gradients.

    A pipeline's hand-overs depend on its cut; see ``stage_transfers``.
    """
    transfers: list[Transfer] = []
    if strategy.split > 1 and strategy.is_spatial:
        transfers += _spatial(network, strategy)
    elif strategy.split > 1 and strategy.splits_weights:
        transfers += _weights_split(network, strategy)
    if strategy.sync_batchnorm:
        transfers += _statistics(network, strategy)
    return (*transfers, *_gradients(network, strategy))


def last_spatial(network: LayerNetwork, strategy: Strategy) -> int:
    """The last layer that is split by space."""
    end = spatial_end(network, strategy.parts(len(network.input_shape) - 1))
    chosen = strategy.spatial_until
    return end if chosen is None else min(chosen, end)


def crossing(network: LayerNetwork, last: int) -> list[int]:
    """Layers up to ``last`` that later layers read: the data of a gather or of a hand-over."""
    return [
        index
        for index in range(last + 1)
        if any(reader > last for reader in network.readers[index])
        or (index == last == len(network.layers) - 1)
    ]


def _spatial(network: LayerNetwork, strategy: Strategy) -> list[Transfer]:
    """Halos of each layer, and the gather at the end of the split."""
    last, samples = last_spatial(network, strategy), strategy.busiest_samples
    demand = demand_of(network, strategy.precision)
    transfers = []
    for index, layer in enumerate(network.layers[: last + 1]):
        if layer.window is None and layer.kind != "resample":
            continue
        in_shape = network.in_shapes(index)[0]
        parts = strategy.parts(len(layer.out_shape) - 1)
        sizes = (layer.window, in_shape[1:], layer.out_shape[1:], parts)
        passes = [("forward", forward_halo(*sizes), in_shape[0], demand.in_width[index])]
        if any(producer != NETWORK_INPUT for producer in layer.inputs):
            width = demand.out_width[index]
            passes.append(("backward", backward_halo(*sizes), layer.filters, width))
        for phase, halo, channels, width in passes:
            if halo.most_received:
                elements = samples * channels * halo.most_received
                transfers.append(
                    Transfer(
                        *("halo", "p2p", phase, index, elements, halo.most_messages),
                        *(strategy.split, True),
                        width=width,
                    )
                )
    # In the backward all GPUs have the whole gradient and take their parts, so nothing moves.
    for index in crossing(network, last):
        elements = samples * network.layers[index].out_elements
        where = ("gather", "all-gather", "forward", index, elements, strategy)
        transfers.append(_collective(*where, demand.out_width[index]))
    return transfers


def _weights_split(network: LayerNetwork, strategy: Strategy) -> list[Transfer]:
    """Filter: all-gather forward, all-reduce backward. Channel: the other way round."""
    products = split_products(network, strategy)
    forward, backward = ("all-gather", "all-reduce")
    if strategy.splits_weights == "channel":
        forward, backward = backward, forward
    samples, transfers = strategy.busiest_samples, []
    demand = demand_of(network, strategy.precision)
    for index in products:
        layer = network.layers[index]
        last = index == products[-1] and strategy.splits_weights == "filter"
        if not last:  # the loss is computed from the parts (Table 3: G - 1)
            elements = samples * layer.out_elements
            where = ("layer", forward, "forward", index, elements, strategy)
            transfers.append(_collective(*where, demand.out_width[index]))
        if any(producer != NETWORK_INPUT for producer in layer.inputs):
            elements = samples * network.in_elements(index)
            where = ("layer", backward, "backward", index, elements, strategy)
            transfers.append(_collective(*where, demand.in_width[index]))
    return transfers


def split_products(network: LayerNetwork, strategy: Strategy) -> list[int]:
    """Layers with split weights; a channel split begins with the second layer (4.5)."""
    products = [i for i, layer in network.weighted() if layer.kind in ("conv", "linear")]
    return products[1:] if strategy.splits_weights == "channel" else products


def _collective(
    what: str,
    pattern: str,
    phase: str,
    index: int,
    elements: float,
    strategy: Strategy,
    width: float,
) -> Transfer:
    """A transfer among the GPUs that share a sample."""
    passes = 2 if pattern == "all-reduce" else 1
    rest = (passes * (strategy.split - 1), strategy.split, True)
    return Transfer(what, pattern, phase, index, elements, *rest, width=width)


def _statistics(network: LayerNetwork, strategy: Strategy) -> list[Transfer]:
    """Traffic of ``torch.nn.SyncBatchNorm``, in fp32 for any input.

    The forward gathers each GPU's means, inverse deviations and a count. The backward reduces two
    sums per channel if the input needs a gradient. Other norms see whole samples. Source: PyTorch
    2.13, torch/nn/modules/_functions.py, ``SyncBatchNorm``.
    """
    # Filter and channel splits compute norms on whole activations (the paper's 4.5.2).
    size = strategy.gpus if strategy.is_spatial else strategy.replicas
    if size == 1:
        return []
    transfers = []
    for index, layer in enumerate(network.layers):
        if not _is_batch_norm(layer):
            continue
        sums = _SUMS * layer.filters
        gathered, rest = size * (sums + 1), (size, False)
        where = ("norm", "all-gather", "forward", index, gathered, size - 1)
        transfers.append(Transfer(*where, *rest))
        if any(producer != NETWORK_INPUT for producer in layer.inputs):
            where = ("norm", "all-reduce", "backward", index, sums, 2 * (size - 1))
            transfers.append(Transfer(*where, *rest))
    return transfers


def _is_batch_norm(layer: Layer) -> bool:
    """Whether statistics cover the samples of a batch; ONNX and PyTorch use different names."""
    name = layer.op.lower()
    return layer.kind == "norm" and not any(word in name for word in _OTHER_NORMS)


def _gradients(network: LayerNetwork, strategy: Strategy) -> list[Transfer]:
    """The exchange at the end of a step, with ZeRO's gathers."""
    size = strategy.gpus if strategy.is_spatial else strategy.replicas
    if size == 1 or strategy.gradients == "none":
        return []
    sharded = set(split_products(network, strategy)) if strategy.splits_weights else set()
    tensors = []
    for index, layer in network.weighted():
        # For a pipeline, values of the mean stage: the cut comes later.
        share = strategy.split if index in sharded or strategy.is_pipeline else 1
        tensors += [(index, math.prod(shape) / share) for shape in layer.parameters]
    transfers = []
    for buffer in _buffers(tensors, strategy):
        index, elements = buffer[-1][0], sum(count for _, count in buffer)
        where = (index, elements, size, False, len(buffer))
        transfers += _exchange(*where, strategy)
    return transfers


def _exchange(
    index: int, elements: float, size: int, inner: bool, tensors: int, strategy: Strategy
) -> list[Transfer]:
    """Transfers of one buffer: an all-reduce, or with ZeRO its halves (FSDP: one more gather)."""
    width = GRADIENT_BYTES[strategy.gradient_precision]
    if not strategy.zero:
        rest = (index, elements, 2 * (size - 1), size, inner, tensors)
        return [Transfer("gradients", "all-reduce", "update", *rest, width)]
    rest = (index, elements, size - 1, size, inner, tensors)
    transfers = [Transfer("gradients", "reduce-scatter", "backward", *rest, width)]
    if strategy.zero < 3:
        return [*transfers, Transfer("weights", "all-gather", "update", *rest)]
    phases = ("forward", "backward")
    return [*transfers, *(Transfer("weights", "all-gather", phase, *rest) for phase in phases)]


def _buffers(tensors: list[tuple[int, float]], strategy: Strategy) -> list[list[tuple[int, float]]]:
    """Tensors of each exchange, in the order in which the backward pass finishes them."""
    tensors = tensors[::-1]
    if strategy.gradients == "packed":
        return [tensors] if tensors else []
    if strategy.gradients == "per tensor":
        return [[tensor] for tensor in tensors]
    buffers: list[list[tuple[int, float]]] = [[]]
    room = 0.0
    for tensor in tensors:
        if room >= strategy.bucket_bytes:
            buffers, room = [*buffers, []], 0.0
        buffers[-1].append(tensor)
        room += tensor[1] * ELEMENT_BYTES
    return buffers


def stage_transfers(network: LayerNetwork, strategy: Strategy, last: int) -> tuple[Transfer, ...]:
    """Messages of one microbatch from the stage that ends with layer ``last``, and back."""
    samples = strategy.busiest_samples / strategy.microbatches
    demand, handed = demand_of(network, strategy.precision), crossing(network, last)
    counts = [samples * network.layers[i].out_elements for i in handed]
    size = sum(count * demand.out_width[i] for count, i in zip(counts, handed, strict=True))
    rest = (last, sum(counts), len(handed), 2, True)
    return tuple(
        Transfer("stage", "p2p", phase, *rest, width=size / sum(counts))
        for phase in ("forward", "backward")
    )
