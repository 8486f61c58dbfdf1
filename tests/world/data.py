"""What microbatches hold, and what it costs: sequences packed until a microbatch is full."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from world.draws import lognormal
from world.faults import UnevenData
from world.ops import Array
from world.plant import World

#: Long-tailed lengths: half are below this share of the longest (what-if paper, Figure 10).
MEDIAN_SHARE, SPREAD = 1 / 24, 1.4

Lengths = dict[tuple[int, int, int], list[int]]  # (step, dp, microbatch) -> tokens


@lru_cache(maxsize=4)
def lengths_of(world: World, microbatches: tuple[int, ...]) -> Lengths | None:
    """Sequences of every microbatch; None where the world does not speak of lengths."""
    uneven = [fault for fault in world.of(UnevenData) if fault.max_tokens]
    if not uneven:
        return None
    most = uneven[0].max_tokens
    found: Lengths = {}
    for step in range(world.steps):
        for dp, count in enumerate(microbatches):
            rng = np.random.default_rng([world.seed, 7, step, dp])
            waiting = 0
            for microbatch in range(count):
                packed: list[int] = [waiting] if waiting else []
                while True:
                    drawn = int(rng.lognormal(np.log(MEDIAN_SHARE * most), SPREAD))
                    waiting = min(max(drawn, 16), most)
                    if sum(packed) + waiting > most:
                        break
                    packed.append(waiting)
                found[step, dp, microbatch] = packed
    return found


def contents_of(world: World, microbatches: tuple[int, ...]) -> tuple[Array, Array]:
    """(attention, tokens) relative costs [step, dp, microbatch] of what the microbatches hold."""
    shape = (world.steps, world.dp, max(microbatches))
    attention, tokens = np.ones(shape), np.ones(shape)
    for fault in world.of(UnevenData):
        if fault.cv:
            step, dp, microbatch = np.ogrid[: shape[0], : shape[1], : shape[2]]
            attention *= lognormal(fault.cv, world.seed, "data", step, dp, microbatch)
    lengths = lengths_of(world, microbatches)
    if lengths is not None:
        attention, tokens = cost_of_lengths(world, lengths, lengths, shape)
    return attention, tokens


def cost_of_lengths(
    world: World, lengths: Lengths, usual: Lengths, shape: tuple[int, ...]
) -> tuple[Array, Array]:
    """Costs of microbatches, relative to the average of the ``usual`` ones.

    A layer costs a sum of squares (attention) and a sum of lengths (all else); embedding and loss
    cost lengths only.
    """
    squares = np.mean([sum(s * s for s in packed) for packed in usual.values()])
    total = np.mean([sum(packed) for packed in usual.values()])
    share = world.model.attention
    attention, tokens = np.ones(shape), np.ones(shape)
    for place, packed in lengths.items():
        tokens[place] = sum(packed) / total
        attention[place] = (
            share * sum(s * s for s in packed) / squares + (1 - share) * tokens[place]
        )
    return attention, tokens
