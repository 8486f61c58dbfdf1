"""A network as a graph of layers: shapes, parameters and arithmetic of ONE sample.

These are counts: strategies assign parts of layers to GPUs, costs turn counts into seconds. Shapes
have no batch and put channels first: (channels, height, width). In section 3 of the ParaDL paper,
|x|, |y| and |w| are ``elements`` of a layer's input, output and weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from paceline.errors import ModelError

Shape = tuple[int, ...]

# Kinds whose arithmetic is a matrix product. All other kinds move bytes.
PRODUCTS = ("conv", "linear", "matmul", "attention")
KINDS = (
    *PRODUCTS,
    *("norm", "activation", "pool", "add", "multiply", "concat", "resample", "softmax"),
    *("dropout", "embedding", "copy", "view", "loss", "other"),
)
NETWORK_INPUT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Window of a convolution or pooling, with one number per spatial dimension.

    Attributes:
        kernel, stride, dilation: sizes of the window.
        padding: elements of zeros (before, after) the input.
        transposed: a transposed convolution, whose stride widens the output.
    """

    kernel: Shape
    stride: Shape
    dilation: Shape
    padding: tuple[tuple[int, int], ...]
    transposed: bool = False

    def __post_init__(self) -> None:
        dimensions = {len(self.kernel), len(self.stride), len(self.dilation), len(self.padding)}
        if len(dimensions) != 1 or not 1 <= len(self.kernel) <= 3:
            raise ModelError(
                f"kernel {self.kernel}, stride {self.stride}, dilation {self.dilation} and padding "
                f"{self.padding} must have the same 1 to 3 dimensions"
            )
        if min((*self.kernel, *self.stride, *self.dilation)) < 1:
            raise ModelError(f"a window of {self.kernel} by {self.stride} must be at least 1")

    def reach(self, dimension: int) -> int:
        """Number of input elements behind one output element."""
        return self.dilation[dimension] * (self.kernel[dimension] - 1) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One operator of the forward pass, and the work of its backward pass.

    Attributes:
        name: name of the module, or of an operator without a module ("layer1.0.conv1").
        kind: one of ``KINDS``.
        op: name of the operator in its source ("aten.convolution", "Conv").
        inputs: indices of the layers that it reads; ``NETWORK_INPUT`` is the sample itself.
        out_shape: shape of its result for one sample.
        parameters: shapes of its trained tensors, the weight first.
        window: window of a convolution or pooling.
        groups: groups of a convolution, which split its input channels.
        flops: floating-point operations of the forward for one sample (a multiply-add is two).
        grad_input_flops, grad_weight_flops: FLOPs of the two products of its backward pass.
        in_place: its result takes its input's place in memory.
        tied_to: index of the layer whose parameters it shares; None = its own parameters.
    """

    name: str
    kind: str
    out_shape: Shape
    inputs: tuple[int, ...] = (NETWORK_INPUT,)
    op: str = ""
    parameters: tuple[Shape, ...] = ()
    window: Window | None = None
    groups: int = 1
    flops: float = 0.0
    grad_input_flops: float = 0.0
    grad_weight_flops: float = 0.0
    in_place: bool = False
    tied_to: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ModelError(
                f"layer {self.name!r} is of the kind {self.kind!r}; known are {', '.join(KINDS)}"
            )
        if any(size < 1 for size in self.out_shape):
            raise ModelError(f"layer {self.name!r} has the shape {self.out_shape}: 1 at least")

    @property
    def out_elements(self) -> int:
        """Elements of the result for one sample (the paper's |y|)."""
        return math.prod(self.out_shape)

    @property
    def parameter_count(self) -> int:
        """Trained elements; 0 if they belong to another layer."""
        if self.tied_to is not None:
            return 0
        return sum(math.prod(shape) for shape in self.parameters)

    @property
    def filters(self) -> int:
        """Output channels that a filter-parallel strategy can split (the paper's F)."""
        return self.out_shape[0]


@dataclass(frozen=True, kw_only=True)
class LayerNetwork:
    """Layers in topological order: each after its inputs.

    Attributes:
        name: its name.
        input_shape: of one sample, channels first.
        layers: its layers, at least one.
        source: its file, module or paper.
        unknown: names of operators without a cost, each with its number of layers.
    """

    name: str
    input_shape: Shape
    layers: tuple[Layer, ...]
    source: str = ""
    unknown: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.layers:
            raise ModelError(f"the network {self.name!r} has no layers")
        for index, layer in enumerate(self.layers):
            if not layer.inputs and layer.kind != "other":
                raise ModelError(f"layer {index} ({layer.name!r}) reads nothing")
            for producer in layer.inputs:
                if not NETWORK_INPUT <= producer < index:
                    raise ModelError(
                        f"layer {index} ({layer.name!r}) reads layer {producer}, which does not "
                        "come before it"
                    )

    def in_shapes(self, index: int) -> tuple[Shape, ...]:
        """Shapes that layer ``index`` reads, for one sample."""
        return tuple(self._shape(producer) for producer in self.layers[index].inputs)

    def in_elements(self, index: int) -> int:
        """Elements that layer ``index`` reads for one sample (the paper's |x|)."""
        return sum(math.prod(shape) for shape in self.in_shapes(index))

    def _shape(self, producer: int) -> Shape:
        return self.input_shape if producer == NETWORK_INPUT else self.layers[producer].out_shape

    @cached_property
    def parameters(self) -> int:
        """Trained elements of all layers (the paper's sum of |w|)."""
        return sum(layer.parameter_count for layer in self.layers)

    @cached_property
    def flops(self) -> float:
        """Forward operations of one sample."""
        return sum(layer.flops for layer in self.layers)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """The readers of each layer."""
        readers: list[list[int]] = [[] for _ in self.layers]
        for index, layer in enumerate(self.layers):
            for producer in layer.inputs:
                if producer != NETWORK_INPUT:
                    readers[producer].append(index)
        return tuple(map(tuple, readers))

    def weighted(self) -> Iterator[tuple[int, Layer]]:
        """The layers with their own parameters, with their indices (the paper's G layers)."""
        return ((i, layer) for i, layer in enumerate(self.layers) if layer.parameter_count)


class Shared:
    """A network that hashes by identity, for caches: hashing its many layers is slow."""

    def __init__(self, network: LayerNetwork) -> None:
        self.network = network

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shared) and other.network is self.network

    def __hash__(self) -> int:
        return id(self.network)


def conv_flops(window: Window, in_channels: int, out_shape: Shape, groups: int = 1) -> float:
    """FLOPs of a convolution's forward for one sample: 2 |y| C_in/groups K.

    For a transposed convolution, give the INPUT's shape, and the output's channels as
    ``in_channels``.
    """
    return 2.0 * math.prod(out_shape) * (in_channels // groups) * math.prod(window.kernel)


def to_mapping(network: LayerNetwork) -> dict[str, Any]:
    """``network`` in a form for JSON; ``layers_json`` adds a schema and a version."""
    return {
        "name": network.name,
        "input_shape": list(network.input_shape),
        "source": network.source,
        "unknown": dict(network.unknown),
        "layers": [_row(layer) for layer in network.layers],
    }


def _row(layer: Layer) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for attribute in fields(Layer):
        value = getattr(layer, attribute.name)
        if attribute.name in ("name", "kind", "out_shape", "inputs") or value != attribute.default:
            row[attribute.name] = _plain(value)
    return row


def _plain(value: Any) -> Any:
    if isinstance(value, Window):
        return {part.name: _plain(getattr(value, part.name)) for part in fields(Window)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
