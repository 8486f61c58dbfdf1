"""Arithmetic and windows of one operator, from its arguments. Imported only with torch.

Argument orders: aten/src/ATen/native/native_functions.yaml of torch 2.13.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from paceline.networks.build import ATTENTION_BACKWARD, spread, window_out
from paceline.networks.layer import Shape, Window


@dataclass(frozen=True)
class Counts:
    """Operations of one sample, in the form of ``Layer``."""

    flops: float = 0.0
    grad_input_flops: float = 0.0
    grad_weight_flops: float = 0.0
    groups: int = 1


def recurrent(op: str) -> bool:
    """Recurrent layers (LSTM, GRU) as single operators, with input [position, sample, feature]."""
    return op == "aten.mkldnn_rnn_layer"


def counts_of(
    op: str,
    kind: str,
    args: tuple[Any, ...],
    tensors: list[torch.Tensor],
    sources: list[Any],
    result: torch.Tensor,
    batch: int,
) -> Counts:
    """Operations of a product; 0 for other operators. ``sources`` tells which tensors are data."""
    if kind == "attention":
        query, key, value = tensors[:3]
        scores = math.prod(query.shape[:-1]) * key.shape[-2]
        flops = 2.0 * scores * (query.shape[-1] + value.shape[-1]) / batch
        back = ATTENTION_BACKWARD * flops if query.requires_grad else 0.0
        return Counts(flops, back, 0.0, query.shape[1])
    if recurrent(op):
        inside, weights = tensors[0], tensors[1:3]
        positions = inside.numel() // inside.shape[-1]
        flops = 2.0 * positions * sum(weight.numel() for weight in weights) / batch
        of_data = flops if inside.requires_grad else 0.0
        return Counts(flops, of_data, flops if weights[0].requires_grad else 0.0)
    if kind == "conv":
        inside, weight = tensors[:2]
        transposed, groups = bool(args[6]), int(args[8])
        base = inside if transposed else result
        flops = 2.0 * base.numel() * math.prod(weight.shape[1:]) / batch
        operands, pair = tensors[:2], sources[:2]
    elif kind in ("linear", "matmul"):
        # A bias comes before the two factors.
        operands, pair, groups = tensors[-2:], sources[-2:], 1
        flops = 2.0 * result.numel() * operands[0].shape[-1] / batch
    else:
        return Counts()
    of_data = of_weights = 0.0
    for operand, source in zip(operands, pair, strict=True):
        if operand.requires_grad and source.layer is not None:
            of_data += flops
        elif operand.requires_grad:
            of_weights += flops
    return Counts(flops, of_data, of_weights, groups)


def window_of(op: str, args: tuple[Any, ...], result: torch.Tensor) -> Window | None:
    """Window of a convolution or a pooling with a fixed window; None for other operators."""
    if op == "aten.convolution":
        return _conv_window(args)
    if "max_pool" in op and "with_indices" in op:
        return _pool_window(args, result, dilation=_argument(args, 4, 1))
    if op in ("aten.avg_pool2d", "aten.avg_pool3d"):
        return _pool_window(args, result, dilation=1)
    return None


def _argument(args: tuple[Any, ...], index: int, default: Any) -> Any:
    return args[index] if len(args) > index else default


def _conv_window(args: tuple[Any, ...]) -> Window:
    kernel = tuple(args[1].shape[2:])
    count = len(kernel)
    padding, extra = _each(args[4], count), _each(args[7], count)
    return Window(
        kernel=kernel,
        stride=_each(args[3], count),
        dilation=_each(args[5], count),
        # A larger output means less padding at the end.
        padding=tuple((p, p - more) for p, more in zip(padding, extra, strict=True)),
        transposed=bool(args[6]),
    )


def _pool_window(args: tuple[Any, ...], result: torch.Tensor, *, dilation: Any) -> Window:
    count = 3 if result.dim() == 5 else 2
    kernel = _each(args[1], count)
    padding = _each(_argument(args, 3, 0), count)
    window = Window(
        kernel=kernel,
        stride=_each(_argument(args, 2, None) or kernel, count),
        dilation=_each(dilation, count),
        padding=tuple((p, p) for p in padding),
    )
    in_size, out_size = tuple(args[0].shape[-count:]), tuple(result.shape[-count:])
    if window_out(window, in_size) == out_size:
        return window
    # Rounded up: the last window extends beyond the input.
    pads = tuple(
        (p, (out - 1) * window.stride[d] + window.reach(d) - size - p)
        for d, (p, size, out) in enumerate(zip(padding, in_size, out_size, strict=True))
    )
    return Window(kernel=kernel, stride=window.stride, dilation=window.dilation, padding=pads)


def _each(value: Any, count: int) -> Shape:
    sizes = spread(value, count)
    return sizes * count if len(sizes) == 1 else sizes
