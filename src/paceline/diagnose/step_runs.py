"""Runs of slower steps: whether they cluster, and in words."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from paceline.jumps import MAX_CHANCE

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Most runs of steps in a sentence.
MAX_RUNS = 3


def runs_of(mask: Mask) -> list[tuple[int, int]]:
    """(first, end) indices of the runs of True."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return [(int(first), int(end)) for first, end in edges.reshape(-1, 2)]


def clusters(mask: Mask) -> bool:
    """Whether the True values come in fewer runs than chance explains (Wald and Wolfowitz 1940)."""
    n, n_true = len(mask), int(mask.sum())
    pairs = 2 * n_true * (n - n_true)
    variance = pairs * (pairs - n) / (n * n * (n - 1))
    if variance <= 0:
        return False
    n_runs = 1 + int(np.count_nonzero(mask[1:] != mask[:-1]))
    z = (pairs / n + 1 - n_runs - 0.5) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2)) / 2 <= MAX_CHANCE


def when(slower: Mask, steps: Ints) -> str:
    """The steps of a mask in words, as in ``from step 160 on``."""
    runs, n = runs_of(slower), len(slower)
    if len(runs) == 1:
        ((first, end),) = runs
        if end == n:
            return f"from step {steps[first]:,} on"
        if first == 0:
            return f"before step {steps[end]:,}"
        return f"in steps {steps[first]:,} to {steps[end - 1]:,}"
    if len(runs) == 2 and slower[0] and slower[-1]:
        return f"before step {steps[runs[0][1]]:,} and from step {steps[runs[1][0]]:,} on"
    listed = ", ".join(
        f"{steps[first]:,}" + (f" to {steps[end - 1]:,}" if end > first + 1 else "")
        for first, end in runs[:MAX_RUNS]
    )
    more = ", ..." if len(runs) > MAX_RUNS else ""
    return f"in {slower.sum()} of {n} steps ({listed}{more})"
