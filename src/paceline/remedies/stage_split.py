"""Split layers over stages: the cost of a layer, and the split with the smallest largest load.

Virtual stages are counted in the order of the model: chunk 0 of all stages, then chunk 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.errors import NotApplicableError, RemedyError

Array = npt.NDArray[np.float64]
Layout = tuple[int, ...]


@dataclass(frozen=True)
class LayerCosts:
    """Seconds of a microbatch by layers.

    Attributes:
        layers: [virtual stage] present layers.
        loads: [kind, virtual stage] present seconds, forward and backward.
        per_layer: [kind, virtual stage] seconds of a layer there.
        extra: [kind, virtual stage] seconds besides the layers: the embedding on the first, the
            loss on the last, otherwise 0.
    """

    layers: Layout
    loads: Array
    per_layer: Array
    extra: Array

    def of(self, layouts: npt.NDArray[np.int64]) -> Array:
        """[kind, ..., virtual stage] seconds under layouts [..., virtual stage]."""
        shape = (2, *[1] * (layouts.ndim - 1), -1)
        seconds: Array = self.per_layer.reshape(shape) * layouts + self.extra.reshape(shape)
        return np.maximum(seconds, 0.0)

    def table(self) -> Array:
        """[virtual stage, layers] seconds, forward and backward, for 0 to all layers."""
        counts = np.arange(sum(self.layers) + 1)
        seconds: Array = (self.per_layer[..., None] * counts + self.extra[..., None]).sum(axis=0)
        return np.maximum(seconds, 0.0)


def estimate_costs(loads: Array, layers: Layout) -> LayerCosts:
    """Costs of layers, embedding and loss part, from the present times of the stages.

    An interior stage shows the cost of a layer (on its machines): it has no embedding or loss. The
    embedding and loss parts are the times of the first and last stage above the median of the
    interior ones. With two virtual stages these cannot be told apart. The embedding is then taken
    as free (paper, 5.2: it takes negligible time).

    Args:
        loads: [kind, virtual stage] seconds of a microbatch.
        layers: [virtual stage] layers.

    Raises:
        NotApplicableError: no stage shows the cost of a layer.
    """
    count = np.array(layers)
    inner = np.zeros(len(layers), dtype=bool)
    inner[slice(0, 1) if len(layers) == 2 else slice(1, -1)] = True
    inner &= count > 0
    if not inner.any():
        raise NotApplicableError(
            f"layers {list(layers)}: no stage between the first and the last has layers, so the "
            "cost of a layer is not known"
        )
    own = loads / np.maximum(count, 1)
    usual = np.median(own[:, inner], axis=1, keepdims=True)
    per_layer = np.where(inner, own, usual)
    return LayerCosts(tuple(layers), loads, per_layer, loads - per_layer * count)


def best_split(
    table: Array, total: int, least: npt.NDArray[np.int64], most: npt.NDArray[np.int64]
) -> tuple[float, Layout]:
    """The split of ``total`` layers with the smallest largest load: exact, by dynamic programme.

    Args:
        table: [stage, layers] load; need not be monotone.
        total: layers to place.
        least: [stage] fewest layers of a stage.
        most: [stage] most layers of a stage.

    Returns:
        the largest load, and the layers of each stage.

    Raises:
        RemedyError: the bounds leave no split.
    """
    reached = np.full(total + 1, np.inf)
    reached[0] = -np.inf
    choices = []
    for stage, loads in enumerate(table):
        new, choice = np.full(total + 1, np.inf), np.zeros(total + 1, dtype=np.int64)
        for count in range(int(least[stage]), min(int(most[stage]), total) + 1):
            value = np.maximum(reached[: total + 1 - count], loads[count])
            better = value < new[count:]
            new[count:][better] = value[better]
            choice[count:][better] = count
        reached = new
        choices.append(choice)
    if not np.isfinite(reached[total]):
        raise RemedyError(
            f"{total} layers do not fit {len(table)} stages of {least.tolist()} to "
            f"{most.tolist()} layers"
        )
    layout: list[int] = []
    remaining = total
    for choice in reversed(choices):
        layout.append(int(choice[remaining]))
        remaining -= layout[-1]
    return float(reached[total]), tuple(reversed(layout))


def splits_within(
    table: Array,
    total: int,
    least: npt.NDArray[np.int64],
    most: npt.NDArray[np.int64],
    limit: float,
) -> Iterator[Layout]:
    """All splits whose largest load is at most ``limit``, lazily."""
    n = len(table)
    allowed = [
        [c for c in range(int(least[s]), min(int(most[s]), total) + 1) if table[s, c] <= limit]
        for s in range(n)
    ]
    if not all(allowed):
        return
    lows = np.cumsum([0] + [min(a) for a in reversed(allowed)])[::-1]
    highs = np.cumsum([0] + [max(a) for a in reversed(allowed)])[::-1]

    def extend(prefix: list[int], remaining: int) -> Iterator[Layout]:
        stage = len(prefix)
        if stage == n:
            if remaining == 0:
                yield tuple(prefix)
            return
        for count in allowed[stage]:
            if lows[stage + 1] <= remaining - count <= highs[stage + 1]:
                yield from extend([*prefix, count], remaining - count)

    yield from extend([], total)


def moves(layout: Layout, least: Sequence[int]) -> npt.NDArray[np.int64]:
    """[move, virtual stage] all layouts in which one layer moves to another virtual stage."""
    n = len(layout)
    give, take = np.nonzero(~np.eye(n, dtype=bool))
    layouts = np.tile(np.array(layout), (len(give), 1))
    row = np.arange(len(give))
    layouts[row, give] -= 1
    layouts[row, take] += 1
    allowed: npt.NDArray[np.int64] = layouts[(layouts >= np.array(least)).all(axis=1)]
    return allowed
