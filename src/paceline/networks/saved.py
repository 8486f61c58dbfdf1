"""Tensors that autograd saves between the forward and the backward pass, in bytes of one sample.

A tensor that two operators save counts once, at the first. A view has the memory of its base, and
an in-place result the memory of its input. Under autocast (amp), products read half-precision
copies of fp32 tensors, and some operators read single-precision copies. These copies are saved
instead. Parameters, their casts and batch statistics do not belong to a sample: ``memory`` counts
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from paceline.errors import ModelError
from paceline.networks.layer import NETWORK_INPUT, PRODUCTS, Layer, LayerNetwork
from paceline.networks.operators import operator_of

#: Bytes of an element without casts.
_SINGLE, _HALF = 4, 2
#: PyTorch's indices of maxima are int64; a dropout mask is bool.
_INDEX, _MASK = 8, 1
#: Saved values of an LSTM per state element and position: four gates, the cell and its tanh. Not
#: checked with cuDNN.
_GATES = 6
NETWORK_PRECISIONS = ("fp32", "tf32", "amp")


def saved_bytes(network: LayerNetwork, precision: str = "fp32") -> NDArray[np.float64]:
    """Bytes that autograd saves for each layer and sample.

    Args:
        network: the network in training.
        precision: "fp32", "tf32" (which saves what fp32 does) or "amp" (autocast to half).

    Returns:
        float64 [layers]; a tensor that an earlier layer saves counts there.

    Raises:
        ModelError: the precision is unknown.
    """
    check_precision(precision)
    tensors = Tensors(network, precision)
    saved = np.zeros(len(network.layers))
    seen: set[object] = set()
    for index in range(len(network.layers)):
        for key, size in tensors.saved(index):
            if key not in seen:
                seen.add(key)
                saved[index] += size
    return saved


def check_precision(precision: str) -> None:
    """Check a precision.

    Raises:
        ModelError: it is unknown.
    """
    if precision not in NETWORK_PRECISIONS:
        raise ModelError(
            f"the precision {precision!r} is none of {', '.join(NETWORK_PRECISIONS)} of networks"
        )


class Tensors:
    """The memory of each layer's result: its owner, number of elements, bytes per element."""

    def __init__(self, network: LayerNetwork, precision: str) -> None:
        self.network, self.amp = network, precision == "amp"
        self.root: list[int] = []
        self.width: list[int] = []
        for index, layer in enumerate(network.layers):
            first = layer.inputs[0] if layer.inputs else NETWORK_INPUT
            shared = layer.kind == "view" or (layer.in_place and not self._clones(layer))
            self.root.append(self.root_of(first) if shared else index)
            self.width.append(self._result_width(layer))
        self.trains = self._trains()

    def _trains(self) -> list[bool]:
        """[layer] whether the result needs a gradient."""
        trains: list[bool] = []
        for layer in self.network.layers:
            below = any(i != NETWORK_INPUT and trains[i] for i in layer.inputs)
            trains.append(below or bool(layer.parameters))
        return trains

    @staticmethod
    def _clones(layer: Layer) -> bool:
        """Whether it works in place but saves its input: autograd keeps a copy."""
        return "in" in operator_of(layer).saves

    def root_of(self, index: int) -> int:
        """The layer that owns a result's memory."""
        return index if index == NETWORK_INPUT else self.root[index]

    def source_width(self, index: int) -> int:
        """Bytes of an element of a result, or of the sample."""
        return _SINGLE if index == NETWORK_INPUT else self.width[index]

    def bytes(self, index: int) -> float:
        """Bytes of a result's memory for one sample."""
        root = self.root_of(index)
        return float(self.elements(root) * self.source_width(root))

    def elements(self, root: int) -> int:
        """Elements of an owner's memory."""
        if root == NETWORK_INPUT:
            return math.prod(self.network.input_shape)
        return self.network.layers[root].out_elements

    def _result_width(self, layer: Layer) -> int:
        if not self.amp:
            return _SINGLE
        autocast = operator_of(layer).autocast
        if autocast:
            return _HALF if autocast == "half" else _SINGLE
        # Trained factors and summands are fp32 and widen the result to fp32; norms keep its width.
        if layer.parameters and layer.kind in ("add", "multiply", "concat"):
            return _SINGLE
        return max((self.source_width(i) for i in layer.inputs), default=_SINGLE)

    def saved(self, index: int) -> Iterator[tuple[object, float]]:
        """(identity, bytes) of the tensors that a layer saves."""
        layer = self.network.layers[index]
        if not self.trains[index]:
            return
        saves = operator_of(layer).saves
        if "in" in saves and (layer.kind not in PRODUCTS or self._needs_inputs(layer)):
            yield from self._inputs(index, layer)
        if "factors" in saves and (len(layer.inputs) > 1 or layer.parameters):
            yield from self._inputs(index, layer)
        if "out" in saves:
            root = self.root_of(index)
            yield (root, ""), self.elements(root) * self.width[index]
        if "indices" in saves:
            yield (index, "indices"), layer.out_elements * _INDEX
        if "mask" in saves:
            yield (index, "mask"), layer.out_elements * _MASK
        if "rows" in saves:
            yield (index, "rows"), 2 * _SINGLE * layer.out_elements / layer.out_shape[0]
        if "gates" in saves:
            yield (index, "gates"), _GATES * layer.out_elements * self.width[index]
        if layer.kind == "attention":
            tokens = layer.out_shape[1] if len(layer.out_shape) == 2 else layer.out_shape[-2]
            yield (index, "sums"), layer.groups * tokens * _SINGLE

    def _needs_inputs(self, layer: Layer) -> bool:
        """Saved inputs of a product, for the gradient of its weight or of the other factor."""
        return layer.grad_weight_flops > 0 or len(layer.inputs) > 1 or layer.kind == "attention"

    def _inputs(self, index: int, layer: Layer) -> Iterator[tuple[object, float]]:
        autocast = operator_of(layer).autocast if self.amp else ""
        for source in layer.inputs:
            width, root = self.source_width(source), self.root_of(source)
            wanted = {"half": _HALF, "single": _SINGLE}.get(autocast, width)
            if layer.in_place and self._clones(layer):
                yield (index, "clone"), self.elements(root) * width
            elif wanted != width:
                size = self.elements(source)
                yield (index, source, "cast"), size * wanted
            else:
                yield (root, ""), self.elements(root) * width
