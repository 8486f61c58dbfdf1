"""Networks from ONNX files: the graph, with shapes from ONNX's own inference.

Weights are not read: external data is not opened, values are not decoded. It was checked with onnx
1.23, operators of opset 20 (docs/Operators.md of onnx). An exported graph often lacks operators of
training, such as dropout, or normalization that the exporter folded into convolutions.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

from paceline.errors import ModelError
from paceline.extras import pip_install
from paceline.networks.build import ATTENTION_BACKWARD
from paceline.networks.layer import NETWORK_INPUT, Layer, LayerNetwork, Shape, Window

# A transposed result counts as a view, for products mostly accept either order.
_OPERATORS = {
    "conv": "Conv ConvTranspose",
    "linear": "Gemm",
    "matmul": "MatMul",
    "attention": "Attention",
    "norm": "BatchNormalization LayerNormalization InstanceNormalization GroupNormalization "
    "RMSNormalization LpNormalization",
    "activation": "Relu Sigmoid Tanh Gelu LeakyRelu Elu Celu Selu HardSwish HardSigmoid Mish "
    "Softplus Erf Exp Log Sqrt Pow Neg Abs Clip PRelu Reciprocal Sin Cos",
    "add": "Add Sub Sum Max Min Mean",
    "multiply": "Mul Div Where",
    "pool": "MaxPool AveragePool GlobalAveragePool GlobalMaxPool ReduceMean ReduceSum ReduceMax "
    "ReduceL2",
    "softmax": "Softmax LogSoftmax",
    "dropout": "Dropout",
    "concat": "Concat",
    "resample": "Resize Upsample",
    "copy": "Pad Cast Expand Tile Gather DepthToSpace SpaceToDepth",
    "view": "Reshape Flatten Squeeze Unsqueeze Identity Transpose Slice Split",
}
_KINDS = {op: kind for kind, names in _OPERATORS.items() for op in names.split()}
#: ONNX operator -> name in ``operators``, for the tensors that autograd saves.
_OPS = {
    "Relu": "aten.relu",
    "Sigmoid": "aten.sigmoid",
    "Tanh": "aten.tanh",
    "MaxPool": "aten.max_pool2d_with_indices",
    "AveragePool": "aten.avg_pool2d",
    "GlobalAveragePool": "aten.mean",
    "ReduceMean": "aten.mean",
    "LayerNormalization": "aten.native_layer_norm",
    "GroupNormalization": "aten.native_group_norm",
}
#: Number of a normalization's trained initializers; the others are running statistics.
_TRAINED = {"BatchNormalization": 2}


def read_onnx(path: str | Path) -> LayerNetwork:
    """The layers of an ONNX file in training.

    Raises:
        ModelError: onnx is missing, the file is not ONNX, or shapes are neither given nor inferred.
        OSError: the file cannot be read.
    """
    try:
        import onnx
    except ImportError:
        raise ModelError(f"{path} needs onnx; {pip_install('onnx')}") from None
    Path(path).open("rb").close()  # one clear line if it is missing
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's DecodeError has no public name
        raise ModelError(f"{path} is no ONNX file: {error}") from None
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    if not inputs:
        raise ModelError(f"{path} has no input")
    _fix_batch(inputs)
    from paceline.networks.onnx_shapes import infer

    return _Graph(infer(model).graph, str(path), [value.name for value in inputs]).network()


def _fix_batch(inputs: list[Any]) -> None:
    """A batch without a size becomes one sample."""
    for value in inputs:
        sizes = value.type.tensor_type.shape.dim
        if sizes and sizes[0].dim_value < 1:
            sizes[0].dim_value = 1


class _Graph:
    """Values by name: their shapes and the layers that produce them."""

    def __init__(self, graph: Any, path: str, inputs: list[str]) -> None:
        self.graph, self.path = graph, path
        self.weights = {
            tensor.name: (tuple(tensor.dims), tensor.data_type in (1, 10, 11, 16))
            for tensor in graph.initializer
        }
        self.shapes: dict[str, Shape | None] = {}
        for value in (*graph.input, *graph.value_info, *graph.output):
            tensor = value.type.tensor_type
            sizes = tuple(size.dim_value for size in tensor.shape.dim)
            known = tensor.HasField("shape") and all(size > 0 for size in sizes)
            self.shapes[value.name] = sizes if known else None
        self.makers = dict.fromkeys(inputs, NETWORK_INPUT)
        first = self._shape(inputs[0])
        self.batch, self.input_shape = first[0], first[1:]
        self.layers: list[Layer] = []
        self.owner: dict[str, int] = {}
        self.made_of: dict[str, tuple[str, ...]] = {}
        self.unknown: dict[str, int] = {}

    def _shape(self, name: str) -> Shape:
        shape = self.shapes.get(name)
        if shape is None:
            raise ModelError(
                f"{self.path}: {name!r} has no shape, and none follows from its inputs; export the "
                "network with fixed sizes (only the batch may stay open)"
            )
        return shape

    def _sample(self, name: str) -> Shape:
        shape = self._shape(name)
        if shape and shape[0] % self.batch == 0:
            lead = shape[0] // self.batch
            shape = shape[1:] if lead == 1 else (lead, *shape[1:])
        return shape or (1,)

    def network(self) -> LayerNetwork:
        for node in self.graph.node:
            sources = [name for name in node.input if name in self.makers]
            if sources:
                self._node(node, sources)
            else:
                # A tensor computed only from weights counts as these weights.
                names = [name for source in node.input for name in self._weights_of(source)]
                self.made_of |= dict.fromkeys(node.output, tuple(names))
        if not self.layers:
            raise ModelError(f"{self.path} computes nothing from its input")
        network = LayerNetwork(
            name=self.graph.name or Path(self.path).stem,
            input_shape=self.input_shape,
            layers=tuple(self.layers),
            source=self.path,
            unknown=self.unknown,
        )
        if self.unknown:
            warnings.warn(
                f"{self.path}: unknown operators are costed by their bytes: "
                f"{', '.join(sorted(self.unknown))}",
                stacklevel=3,
            )
        return network

    def _node(self, node: Any, sources: list[str]) -> None:
        kind = _KINDS.get(node.op_type, "other")
        if kind == "other":
            self.unknown[node.op_type] = self.unknown.get(node.op_type, 0) + 1
        parameters, tied = self._parameters(node)
        if kind == "matmul" and parameters:
            kind = "linear"
        attributes = {item.name: item for item in node.attribute}
        window = self._window(node, attributes) if kind in ("conv", "pool") else None
        groups = attributes["group"].i if "group" in attributes else 1
        flops = self._flops(node, kind, attributes, groups)
        data = [name for name in sources if self.makers[name] != NETWORK_INPUT]
        back = ATTENTION_BACKWARD / len(sources) if kind == "attention" else 1.0
        layer = Layer(
            name=node.name or node.output[0],
            kind=kind,
            op=_OPS.get(node.op_type, node.op_type),
            inputs=tuple(dict.fromkeys(self.makers[name] for name in sources)),
            out_shape=self._out_shape(node, kind),
            parameters=parameters,
            window=window,
            groups=groups,
            flops=flops,
            grad_input_flops=flops * back * len(data),
            grad_weight_flops=flops if parameters and flops else 0.0,
            tied_to=tied,
        )
        self.layers.append(layer)
        for source in node.input:
            for name in self._weights_of(source):
                self.owner.setdefault(name, len(self.layers) - 1)
        self.makers |= dict.fromkeys(node.output, len(self.layers) - 1)

    def _out_shape(self, node: Any, kind: str) -> Shape:
        shape = self._sample(node.output[0])
        last = kind == "linear" or node.op_type == "LayerNormalization"
        return (shape[-1], *shape[:-1]) if last and len(shape) > 1 else shape

    def _parameters(self, node: Any) -> tuple[tuple[Shape, ...], int | None]:
        names = [name for source in node.input for name in self._weights_of(source)]
        names = names[: _TRAINED.get(node.op_type, len(names))]
        fresh = [name for name in names if name not in self.owner]
        tied = self.owner[names[0]] if names and not fresh else None
        shapes = []
        for name in fresh or names:
            shape = self.weights[name][0]
            flipped = len(shape) == 2 and node.op_type == "MatMul"
            # Weights of products are (features out, features in) here.
            shapes.append(shape[::-1] if flipped else shape)
        return tuple(shapes), tied

    def _weights_of(self, name: str) -> tuple[str, ...]:
        """The trained tensors behind a value that does not depend on data."""
        shape, trained = self.weights.get(name, ((), False))
        return (name,) if trained and shape else self.made_of.get(name, ())

    def _window(self, node: Any, attributes: dict[str, Any]) -> Window | None:
        inside, outside = self._shape(node.input[0])[2:], self._shape(node.output[0])[2:]
        count = len(inside)
        if node.op_type in ("Conv", "ConvTranspose"):
            kernel = self._weight_shape(node)[2:]
        elif "kernel_shape" in attributes:
            kernel = tuple(attributes["kernel_shape"].ints)
        else:
            return None

        def sizes(name: str) -> Shape:
            return tuple(attributes[name].ints) if name in attributes else (1,) * count

        stride, dilation = sizes("strides"), sizes("dilations")
        before = tuple(attributes["pads"].ints)[:count] if "pads" in attributes else (0,) * count
        transposed = node.op_type == "ConvTranspose"
        pads = []
        for d in range(count):
            reach = dilation[d] * (kernel[d] - 1) + 1
            wide, narrow = (inside, outside) if transposed else (outside, inside)
            total = (wide[d] - 1) * stride[d] + reach - narrow[d]
            # The sizes determine the total padding, including rounding and automatic padding.
            pads.append((before[d], total - before[d]))
        return Window(
            kernel=kernel,
            stride=stride,
            dilation=dilation,
            padding=tuple(pads),
            transposed=transposed,
        )

    def _weight_shape(self, node: Any) -> Shape:
        weight = node.input[1]
        return self.weights[weight][0] if weight in self.weights else self._shape(weight)

    def _flops(self, node: Any, kind: str, attributes: dict[str, Any], groups: int) -> float:
        if kind == "attention":
            query, key = self._shape(node.input[0]), self._shape(node.input[1])
            return 4.0 * math.prod(query) * key[-2] / self.batch
        if kind == "conv":
            transposed = node.op_type == "ConvTranspose"
            base = self._shape(node.input[0] if transposed else node.output[0])
            return 2.0 * math.prod(base) * math.prod(self._weight_shape(node)[1:]) / self.batch
        if kind in ("linear", "matmul"):
            first = node.input[0]
            shape = self.weights[first][0] if first in self.weights else self._shape(first)
            flipped = "transA" in attributes and attributes["transA"].i
            deep = shape[0] if flipped else shape[-1]
            return 2.0 * math.prod(self._shape(node.output[0])) * deep / self.batch
        return 0.0
