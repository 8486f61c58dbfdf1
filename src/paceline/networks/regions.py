"""Elements of a split tensor that a GPU needs, and elements that it has, per dimension.

A window's elements are a product of index sets, one per dimension. So counts of a region are
products of counts per dimension. Papers: ParaDL, 3.2 (halo); Dryden et al., IPDPS 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from paceline.networks.layer import Shape, Window

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Halo:
    """Elements of one channel in one sample's halo exchange.

    Attributes:
        most_received: elements received by the GPU that receives most.
        most_messages: most messages that one GPU receives.
        total: elements received by all GPUs.
        messages: messages of all GPUs.
    """

    most_received: int
    most_messages: int
    total: int
    messages: int


def bounds(size: int, parts: int) -> Counts:
    """Begins of the parts of ``size`` indices, and the end [parts + 1]; first parts are larger."""
    small, larger = divmod(size, parts)
    sizes = [small + (part < larger) for part in range(parts)]
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def forward_halo(window: Window | None, in_size: Shape, out_size: Shape, parts: Shape) -> Halo:
    """Input elements that GPUs need from others for their outputs."""
    return _halo(window, in_size, out_size, parts, backward=False)


def backward_halo(window: Window | None, in_size: Shape, out_size: Shape, parts: Shape) -> Halo:
    """Output gradients that GPUs need from others for the gradients of their inputs."""
    return _halo(window, in_size, out_size, parts, backward=True)


@lru_cache(maxsize=65536)
def _halo(
    window: Window | None, in_size: Shape, out_size: Shape, parts: Shape, *, backward: bool
) -> Halo:
    needs = [
        _needed(
            None if window is None else _dimension(window, d),
            in_size[d],
            out_size[d],
            parts[d] if d < len(parts) else 1,
            backward,
        )
        for d in range(len(in_size))
    ]
    return _product(needs)


def _product(needs: list[Counts]) -> Halo:
    """Halo of the grid from [receiver, owner] counts of each dimension."""
    received, senders = np.ones(1, np.int64), np.ones(1, np.int64)
    own, self_sender = np.ones(1, np.int64), np.ones(1, np.int64)
    for need in needs:
        diagonal = np.diagonal(need)
        received = np.outer(received, need.sum(axis=1)).ravel()
        own = np.outer(own, diagonal).ravel()
        senders = np.outer(senders, (need > 0).sum(axis=1)).ravel()
        self_sender = np.outer(self_sender, diagonal > 0).ravel()
    halo, messages = received - own, senders - self_sender
    return Halo(int(halo.max()), int(messages.max()), int(halo.sum()), int(messages.sum()))


_Dimension = tuple[int, int, int, int, bool]  # kernel, stride, dilation, padding before, transposed


def _dimension(window: Window, d: int) -> _Dimension:
    padding = window.padding[d][0]
    return (window.kernel[d], window.stride[d], window.dilation[d], padding, window.transposed)


@lru_cache(maxsize=65536)
def _needed(
    window: _Dimension | None, in_size: int, out_size: int, parts: int, backward: bool
) -> Counts:
    """[receiver, owner] elements of one dimension that the receiver needs from the owner."""
    has, needs = bounds(in_size, parts), bounds(out_size, parts)
    if backward:
        has, needs = needs, has
    sources = has[-1]
    counts = np.zeros((parts, parts), np.int64)
    for part in range(parts):
        targets = np.arange(needs[part], needs[part + 1])
        indices = targets if window is None else _sources(window, targets, backward)
        indices = np.unique(indices[(indices >= 0) & (indices < sources)])
        counts[part] = np.diff(np.searchsorted(indices, has))
    counts.flags.writeable = False
    return counts


def _sources(window: _Dimension, targets: Counts, backward: bool) -> Counts:
    """Indices that ``targets`` are computed from; a transposed window swaps the directions."""
    kernel, stride, dilation, padding, transposed = window
    offsets = np.arange(kernel) * dilation
    if transposed == backward:
        return np.ravel(targets[:, None] * stride - padding + offsets)
    scaled: Counts = targets[:, None] + padding - offsets
    return np.ravel(scaled[scaled % stride == 0] // stride)


def largest_share(size: Shape, parts: Shape) -> int:
    """Elements of the largest part, the first GPU's."""
    return math.prod(
        -(-extent // (parts[d] if d < len(parts) else 1)) for d, extent in enumerate(size)
    )
