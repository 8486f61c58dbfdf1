"""Steps with long waits among many with short ones, and the workers that wait in them.

A worker may wait in every twentieth step alone: it collects garbage, writes a checkpoint, or its
loader reads another file. The median over all steps does not show that.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline import robust
from paceline.jumps import MIN_STEPS

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: A wait is long from this share of the wait in which a typical second passes on. A worker is named
#: from this share of the longest wait on.
MIN_BEYOND = 0.5

#: Where some steps have long waits, the named workers are the longest in more than this share of
#: them, each of them with at most this chance.
MOST_LONG, MAX_CHANCE = 2 / 3, 0.01

#: Waits are called long in all steps if they are long in this share of them.
ALL_STEPS = 0.9


def long_waits(longest: Array) -> Mask:
    """Mask of the [step] waits that make up most of their sum; all if they are alike.

    A long wait is half as long as the wait in which a typical second of waiting passes.
    """
    total = float(longest.sum())
    typical = float(np.square(longest).sum()) / total if total else 0.0
    long: Mask = longest >= MIN_BEYOND * typical
    few = long.sum() < MIN_STEPS or longest[long].sum() < MIN_BEYOND * total
    return np.ones_like(long) if few or long.mean() >= ALL_STEPS else long


def not_by_chance(named: Ints, waits: Array) -> Ints:
    """The workers that are the longest in more of the few [step, dp, pp] than chance explains.

    Rare long waits hit workers at random, and some worker has most of a few.
    """
    n_steps, n_dp, n_pp = waits.shape
    longest = waits.reshape(n_steps, -1).argmax(axis=1)
    of_named = [int((longest == dp * n_pp + pp).sum()) for dp, pp in named]
    together = sum(of_named) > MOST_LONG * n_steps
    chances = [n_dp * robust.chance_of_count(n, n_steps, 1 / n_dp) for n in of_named]
    likely = np.array([together and chance <= MAX_CHANCE for chance in chances], dtype=bool)
    kept: Ints = named[likely]
    return kept
