"""Records the operators of one forward pass as layers. Imported only with torch.

Views with all elements share the layer of their base. Other views become layers of the kind "view"
when they are read. Operators that use only parameters (a standardized weight) are part of their
reader.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paceline.errors import ModelError
from paceline.networks.layer import NETWORK_INPUT, Layer, LayerNetwork, Shape
from paceline.networks.operators import OPERATORS
from paceline.networks.torch_counts import counts_of, recurrent, window_of

# Operators that return their input in another shape, though their schema does not tell.
_ALIASES = (
    "aten._unsafe_view",
    "aten.as_strided_",
    "aten.lift_fresh",
    "aten.detach",
    "aten._reshape_alias",
)
# Operators that use only the shape of their input.
_SHAPE_ONLY = (
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
    *("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"),
)
# Results keep the axis order of their inputs.
_SAME_AXES = ("activation", "add", "multiply", "dropout", "softmax", "copy", "norm")


@dataclass
class Value:
    """Content of one tensor of the forward pass.

    Attributes:
        layer: the layer that produced it; None for parameters and constants.
        shape: shape of one sample, if it differs from the layer's.
        last: whether its channels are the last axis.
        parameters: indices of the parameters behind it.
    """

    layer: int | None = None
    shape: Shape | None = None
    last: bool = False
    parameters: tuple[int, ...] = ()


@dataclass
class Trace:
    """The layers so far, and the layer behind each tensor.

    Tensors are kept until the end, so that their ids are not reused.
    """

    batch: int
    inputs: tuple[Any, ...]
    parameters: tuple[torch.Tensor, ...]
    scope: list[str] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.alive: list[Any] = []
        self.values: dict[int, Value] = {}
        self.storages: dict[int, Value] = {}
        self.owner: dict[int, int] = {}
        self.views: dict[tuple[int, Shape], int] = {}
        self.unfolded: set[int] = set()
        for tensor in self.inputs:
            if isinstance(tensor, torch.Tensor):
                self.keep(tensor, Value(NETWORK_INPUT))
        for index, tensor in enumerate(self.parameters):
            self.keep(tensor, Value(parameters=(index,)))

    def keep(self, tensor: torch.Tensor, value: Value) -> None:
        """Store the content of ``tensor``."""
        self.alive.append(tensor)
        self.values[id(tensor)] = value
        self.storages[tensor.untyped_storage()._cdata] = value

    def value(self, tensor: torch.Tensor) -> Value:
        """Content of ``tensor``; a constant if unknown."""
        value = self.values.get(id(tensor))
        return value or self.storages.get(tensor.untyped_storage()._cdata) or Value()

    def sample(self, tensor: torch.Tensor, last: bool) -> Shape:
        """The shape of one sample, channels first."""
        shape = list(tensor.shape)
        if shape and shape[0] % self.batch == 0:
            shape = shape[1:] if shape[0] == self.batch else [shape[0] // self.batch, *shape[1:]]
        elif self.batch in shape:
            shape.remove(self.batch)
        if last and len(shape) > 1:
            shape = [shape[-1], *shape[:-1]]
        return tuple(max(1, size) for size in shape) or (1,)

    def _positions(self, tensor: torch.Tensor) -> Shape:
        """The shape of one sample of a recurrent layer: features, positions, rows of a sample."""
        positions, rows, features = tensor.shape
        return (features, positions, *((rows // self.batch,) if rows > self.batch else ()))

    def see(self, op: str, is_view: bool, args: tuple[Any, ...], result: Any) -> None:
        """Record an executed operator."""
        tensors = [x for x in tree_leaves(args) if isinstance(x, torch.Tensor)]
        sources = [self.value(tensor) for tensor in tensors]
        results = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        if op.removeprefix("aten.") in _SHAPE_ONLY or not results:
            sources = []
        if all(source.layer is None for source in sources):
            indices = tuple(dict.fromkeys(i for source in sources for i in source.parameters))
            for tensor in results:
                self.keep(tensor, Value(parameters=indices))
        elif is_view or op in _ALIASES:
            for tensor in results:
                self._view(tensors[0], sources[0], tensor)
        else:
            self._layer(op, args, tensors, sources, results)

    def _view(self, base: torch.Tensor, source: Value, tensor: torch.Tensor) -> None:
        shape = source.shape
        if tensor.numel() != base.numel() or shape is not None:
            shape = self.sample(tensor, last=False)
        elif source.layer is not None and source.layer >= 0 and source.last and tensor.dim() > 2:
            self._unfold(source.layer, tensor)
        last = source.last and tensor.shape[-1:] == base.shape[-1:]
        self.alive.append(tensor)
        self.values[id(tensor)] = replace(source, shape=shape, last=last)

    def _unfold(self, index: int, tensor: torch.Tensor) -> None:
        """Restore the positions of a product over flattened positions."""
        layer = self.layers[index]
        better = self.sample(tensor, last=True)
        if index in self.unfolded:
            return
        self.unfolded.add(index)
        if layer.kind == "linear" and better[0] == layer.out_shape[0] and len(better) > 2:
            self.layers[index] = replace(layer, out_shape=better)

    def _layer(
        self,
        op: str,
        args: tuple[Any, ...],
        tensors: list[torch.Tensor],
        sources: list[Value],
        results: list[torch.Tensor],
    ) -> None:
        known = OPERATORS.get(op) or OPERATORS.get(op.removesuffix("_"))
        kind = known.kind if known else "other"
        if known is None:
            self.unknown[op] = self.unknown.get(op, 0) + 1
        last = kind == "linear" or "layer_norm" in op or "rms_norm" in op
        last |= kind in _SAME_AXES and any(source.last for source in sources)
        rank = results[0].dim()
        last &= rank > 2 or kind == "linear"
        windowed = window_of(op, args, results[0])
        inputs = self._inputs(tensors, sources, exact=windowed is not None)
        own, tied = self._own_parameters(sources)
        counts = counts_of(op, kind, args, tensors, sources, results[0], self.batch)
        if kind == "matmul" and own and len(inputs) == 1:
            kind = "linear"
        in_place = op.endswith("_") and sources[0].layer is not None
        layer = Layer(
            name=self._name(op),
            kind=kind,
            op=op,
            inputs=inputs,
            out_shape=self._positions(results[0])
            if recurrent(op)
            else self.sample(results[0], last),
            parameters=tuple(tuple(self.parameters[i].shape) for i in own),
            window=windowed,
            groups=counts.groups,
            flops=counts.flops,
            grad_input_flops=counts.grad_input_flops,
            grad_weight_flops=counts.grad_weight_flops,
            in_place=in_place,
            tied_to=tied,
        )
        self.layers.append(layer)
        index = len(self.layers) - 1
        for i in own:
            self.owner.setdefault(i, index)
        for tensor in results:
            self.keep(tensor, Value(index, last=last and tensor is results[0]))
        if op.endswith("_"):
            self.values[id(tensors[0])] = Value(index, last=last)

    def _inputs(
        self, tensors: list[torch.Tensor], sources: list[Value], *, exact: bool
    ) -> tuple[int, ...]:
        """Layers that are read; a view of a part, or with other axes, becomes a layer."""
        inputs: list[int] = []
        for tensor, source in zip(tensors, sources, strict=True):
            if source.layer is None:
                continue
            shape = source.shape
            if exact and source.layer >= 0 and not inputs:
                shape = self.sample(tensor, last=False)
                shape = None if shape == self.layers[source.layer].out_shape else shape
            inputs.append(source.layer if shape is None else self._view_layer(source.layer, shape))
        return tuple(dict.fromkeys(inputs))

    def _view_layer(self, base: int, shape: Shape) -> int:
        key = (base, shape)
        if key not in self.views:
            layer = Layer(
                name=self._name("aten.view"),
                kind="view",
                op="aten.view",
                inputs=(base,),
                out_shape=shape,
            )
            self.layers.append(layer)
            self.views[key] = len(self.layers) - 1
        return self.views[key]

    def _own_parameters(self, sources: list[Value]) -> tuple[tuple[int, ...], int | None]:
        """Indices of trained parameters that are read for the first time; otherwise their owner."""
        indices = [
            i for source in sources for i in source.parameters if self.parameters[i].requires_grad
        ]
        indices = list(dict.fromkeys(indices))
        fresh = tuple(i for i in indices if i not in self.owner)
        if fresh or not indices:
            return fresh, None
        return tuple(indices), self.owner[indices[0]]

    def _name(self, op: str) -> str:
        scope = next((name for name in reversed(self.scope) if name), "")
        return scope or op.removeprefix("aten.").strip("_")

    def network(self, name: str) -> LayerNetwork:
        """The finished network. A warning names unknown operators with their share."""
        if not self.layers:
            raise ModelError(f"the module {name} computes nothing from its inputs")
        first = next(x for x in self.inputs if isinstance(x, torch.Tensor))
        network = LayerNetwork(
            name=name,
            input_shape=tuple(first.shape[1:]),
            layers=tuple(self.layers),
            source=f"torch {torch.__version__.partition('+')[0]}",
            unknown=self.unknown,
        )
        if self.unknown:
            strange = sum(x.out_elements for x in network.layers if x.kind == "other")
            share = strange / sum(x.out_elements for x in network.layers if x.kind != "view")
            warnings.warn(
                f"{name}: unknown operators are costed by their bytes ({share:.1%} of all "
                f"results): {', '.join(sorted(self.unknown))}",
                stacklevel=3,
            )
        return network


class TraceMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Passes each operator below autograd to a trace."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.trace = trace

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        op = str(func.overloadpacket)
        self.trace.see(op, func.is_view, (*args, *(kwargs or {}).values()), result)
        return result


class DropoutMode(TorchFunctionMode):
    """Dropout as on GPUs: one operator that saves a byte mask."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.dropout:
            chance, training = _dropout(*args, **kwargs)
            if training and chance:
                return torch.ops.aten.native_dropout(args[0], chance, True)[0]
        return func(*args, **kwargs)


def _dropout(
    _: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> tuple[float, bool]:
    return p, training
