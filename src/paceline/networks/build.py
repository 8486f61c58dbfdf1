"""A builder of networks: layers are added one after another, and shapes follow from inputs.

``table`` and ``presets`` use it. Every method returns the index of the layer that it adds. ``op``
is PyTorch's operator (torch 2.13), which decides the tensors that autograd saves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.errors import ModelError
from paceline.networks.layer import (
    NETWORK_INPUT,
    Layer,
    LayerNetwork,
    Shape,
    Window,
    conv_flops,
)

#: The backward has five products, the forward two: fused attention recomputes the scores (torch
#: 2.13, torch/utils/flop_counter.py, sdpa_backward_flop).
ATTENTION_BACKWARD = 2.5


def spread(value: int | Sequence[int], dimensions: int) -> Shape:
    """One number per dimension."""
    return (value,) * dimensions if isinstance(value, int) else tuple(value)


def window_out(window: Window, in_size: Shape) -> Shape:
    """Output size of a window over ``in_size``; below 1 if it does not fit."""
    sizes = []
    for d, (size, padding) in enumerate(zip(in_size, window.padding, strict=True)):
        if window.transposed:
            out = (size - 1) * window.stride[d] + window.reach(d) - sum(padding)
        else:
            out = (size + sum(padding) - window.reach(d)) // window.stride[d] + 1
        sizes.append(out)
    return tuple(sizes)


class Builder:
    """A network under construction; ``finish`` returns it."""

    def __init__(self, name: str, input_shape: Shape, source: str = "") -> None:
        self.name, self.input_shape, self.source = name, input_shape, source
        self.layers: list[Layer] = []

    def shape(self, index: int) -> Shape:
        """Shape of a layer's result or of the sample."""
        return self.input_shape if index == NETWORK_INPUT else self.layers[index].out_shape

    def append(self, layer: Layer) -> int:
        """Add a finished layer."""
        self.layers.append(layer)
        return len(self.layers) - 1

    def finish(self) -> LayerNetwork:
        """The network of all layers so far."""
        return LayerNetwork(
            name=self.name,
            input_shape=self.input_shape,
            layers=tuple(self.layers),
            source=self.source,
        )

    def conv(
        self,
        x: int,
        name: str,
        channels: int,
        kernel: int | Sequence[int],
        *,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[tuple[int, int]] = 0,
        groups: int = 1,
        bias: bool = False,
        transposed: bool = False,
    ) -> int:
        """A convolution over all spatial dimensions of its input."""
        in_channels, *in_size = self.shape(x)
        window = self._window(x, kernel, stride, padding, transposed)
        if in_channels % groups or channels % groups:
            raise ModelError(
                f"layer {name!r}: {in_channels} and {channels} channels in {groups} groups"
            )
        out_shape = (channels, *self._fit(name, window, tuple(in_size)))
        if transposed:
            flops = conv_flops(window, channels, (in_channels, *in_size), groups)
            weight = (in_channels, channels // groups, *window.kernel)
        else:
            flops = conv_flops(window, in_channels, out_shape, groups)
            weight = (channels, in_channels // groups, *window.kernel)
        return self.append(
            Layer(
                name=name,
                kind="conv",
                op="aten.convolution",
                inputs=(x,),
                out_shape=out_shape,
                parameters=(weight, (channels,)) if bias else (weight,),
                window=window,
                groups=groups,
                flops=flops,
                grad_input_flops=0.0 if x == NETWORK_INPUT else flops,
                grad_weight_flops=flops,
            )
        )

    def linear(self, x: int, name: str, features: int, *, bias: bool = True) -> int:
        """A product over the channels, separately for each position (token) of the input."""
        in_features, *positions = self.shape(x)
        flops = 2.0 * in_features * features * math.prod(positions)
        return self.append(
            Layer(
                name=name,
                kind="linear",
                op="aten.addmm" if bias else "aten.mm",
                inputs=(x,),
                out_shape=(features, *positions),
                parameters=((features, in_features), (features,))
                if bias
                else ((features, in_features),),
                flops=flops,
                grad_input_flops=0.0 if x == NETWORK_INPUT else flops,
                grad_weight_flops=flops,
            )
        )

    def attention(self, qkv: int, name: str, heads: int) -> int:
        """Scaled dot-product attention; ``qkv`` has queries, keys and values as channels."""
        channels, tokens = self.shape(qkv)
        if channels % (3 * heads):
            raise ModelError(f"layer {name!r}: {channels} channels for {heads} heads, three each")
        flops = 4.0 * tokens * tokens * (channels // 3)
        return self.append(
            Layer(
                name=name,
                kind="attention",
                op="aten.scaled_dot_product_attention",
                inputs=(qkv,),
                out_shape=(channels // 3, tokens),
                groups=heads,
                flops=flops,
                grad_input_flops=ATTENTION_BACKWARD * flops,
            )
        )

    def norm(self, x: int, name: str, op: str = "aten.native_batch_norm") -> int:
        """A normalization with a weight and a bias per channel."""
        channels = (self.shape(x)[0],)
        return self._like(x, name, "norm", op, parameters=(channels, channels))

    def activation(
        self, x: int, name: str, op: str = "aten.relu", *, in_place: bool = False
    ) -> int:
        """A function of each element."""
        return self._like(x, name, "activation", op, in_place=in_place)

    def dropout(self, x: int, name: str) -> int:
        """Some elements set to zero."""
        return self._like(x, name, "dropout", "aten.native_dropout")

    def scale(self, x: int, name: str) -> int:
        """A product with one trained factor per channel."""
        return self._like(x, name, "multiply", "aten.mul", parameters=((self.shape(x)[0],),))

    def offset(self, x: int, name: str) -> int:
        """A sum with trained elements of the sample's shape (position embeddings)."""
        return self._like(x, name, "add", "aten.add", parameters=(self.shape(x),))

    def token(self, x: int, name: str) -> int:
        """One trained token before the others."""
        width, tokens = self.shape(x)
        return self.append(
            Layer(
                name=name,
                kind="concat",
                op="aten.cat",
                inputs=(x,),
                out_shape=(width, tokens + 1),
                parameters=((width, 1),),
            )
        )

    def add(self, x: int, y: int, name: str = "add", *, in_place: bool = False) -> int:
        """The sum of two results of equal shape; ``in_place`` overwrites ``x``."""
        if self.shape(x) != self.shape(y):
            raise ModelError(
                f"layer {name!r} adds the shapes {self.shape(x)} and {self.shape(y)}, which differ"
            )
        op = "aten.add_" if in_place else "aten.add"
        return self._like(x, name, "add", op, more=(y,), in_place=in_place)

    def concat(self, results: Sequence[int], name: str = "concat") -> int:
        """Channels of several results, one after another."""
        sizes = {self.shape(x)[1:] for x in results}
        if len(sizes) != 1:
            raise ModelError(f"layer {name!r} joins the sizes {sorted(sizes)}, which differ")
        shape = (sum(self.shape(x)[0] for x in results), *sizes.pop())
        return self.append(
            Layer(name=name, kind="concat", op="aten.cat", inputs=tuple(results), out_shape=shape)
        )

    def pool(
        self,
        x: int,
        name: str,
        kernel: int | Sequence[int],
        *,
        stride: int | Sequence[int],
        padding: int | Sequence[tuple[int, int]] = 0,
        op: str = "",
    ) -> int:
        """A window's maximum, or another reduction ``op``."""
        channels, *size = self.shape(x)
        op = op or f"aten.max_pool{max(2, len(size))}d_with_indices"
        window = self._window(x, kernel, stride, padding)
        out_shape = (channels, *self._fit(name, window, tuple(size)))
        return self.append(
            Layer(name=name, kind="pool", op=op, inputs=(x,), out_shape=out_shape, window=window)
        )

    def global_pool(self, x: int, name: str) -> int:
        """The mean over all positions."""
        channels, *size = self.shape(x)
        kernel = tuple(size)
        window = Window(
            kernel=kernel,
            stride=kernel,
            dilation=(1,) * len(size),
            padding=((0, 0),) * len(size),
        )
        shape = (channels, *(1 for _ in size))
        return self.append(
            Layer(
                name=name,
                kind="pool",
                op="aten.mean",
                inputs=(x,),
                out_shape=shape,
                window=window,
            )
        )

    def view(self, x: int, name: str, shape: Shape) -> int:
        """The same elements, or some of them, in another shape, at no cost."""
        return self.append(
            Layer(name=name, kind="view", op="aten.view", inputs=(x,), out_shape=shape)
        )

    def _like(
        self,
        x: int,
        name: str,
        kind: str,
        op: str,
        *,
        parameters: tuple[Shape, ...] = (),
        more: tuple[int, ...] = (),
        in_place: bool = False,
    ) -> int:
        return self.append(
            Layer(
                name=name,
                kind=kind,
                op=op,
                inputs=(x, *more),
                out_shape=self.shape(x),
                parameters=parameters,
                in_place=in_place,
            )
        )

    def _window(
        self,
        x: int,
        kernel: int | Sequence[int],
        stride: int | Sequence[int],
        padding: int | Sequence[tuple[int, int]],
        transposed: bool = False,
    ) -> Window:
        dimensions = len(self.shape(x)) - 1
        pads = ((padding, padding),) * dimensions if isinstance(padding, int) else tuple(padding)
        return Window(
            kernel=spread(kernel, dimensions),
            stride=spread(stride, dimensions),
            dilation=(1,) * dimensions,
            padding=pads,
            transposed=transposed,
        )

    def _fit(self, name: str, window: Window, in_size: Shape) -> Shape:
        out = window_out(window, in_size)
        if min(out) < 1:
            raise ModelError(
                f"layer {name!r}: a window of {window.kernel} does not fit into {in_size}; "
                "give a larger input"
            )
        return out
