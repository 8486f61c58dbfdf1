"""Sequences of unequal lengths: draws, packing into microbatches, and costs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.errors import SynthError
from paceline.trace.seqlens import SeqLens

#: Log-normal lengths, clipped at the longest microbatch: the median as a share of the longest, and
#: the standard deviation of the logarithm. Most sequences are short, with a long tail as in Figure
#: 10 of the what-if paper. With 32K tokens the mean length is about 3K.
MEDIAN_SHARE = 1 / 24
SPREAD = 1.4

#: Bounds of a sequence's length in tokens; files of lengths cannot hold longer ones.
SHORTEST, LONGEST = 16, 2**31 - 1


def draw_seqlens(
    dp: int, microbatches: int | tuple[int, ...], steps: int, max_tokens: int, seed: int = 0
) -> SeqLens:
    """Long-tailed sequence lengths, packed into microbatches of at most ``max_tokens``.

    Every replica takes random sequences until its microbatch is full (what-if paper, 5.3). A
    sequence that does not fit opens the next microbatch.

    Args:
        dp: number of data-parallel ranks.
        microbatches: number of every replica's microbatches, or one number per replica.
        steps: number of steps, which are numbered from 0.
        max_tokens: largest sum of lengths in a microbatch, and longest sequence.
        seed: seed of the draws.

    Raises:
        SynthError: a number is below 1, ``max_tokens`` is below 16 or too large for a file, or the
            seed is negative.
    """
    counts = np.array([microbatches] * dp if isinstance(microbatches, int) else microbatches)
    if min(steps, dp, *counts) < 1 or len(counts) != dp:
        raise SynthError(
            f"no sequences for {dp} dp ranks, {microbatches} microbatches, {steps} steps"
        )
    if max_tokens < SHORTEST:
        raise SynthError(f"a microbatch holds at least {SHORTEST} tokens, not {max_tokens}")
    if max_tokens > LONGEST:
        raise SynthError(f"a microbatch holds at most {LONGEST} tokens, not {max_tokens}")
    if seed < 0:
        raise SynthError(f"seed must be at least 0, not {seed}")
    rng = np.random.default_rng([seed, *b"seqlens"])
    n_lanes, most = steps * dp, int(counts.max())
    # Draw more until all microbatches are full, as the necessary number is unknown.
    per_microbatch, whole = 8, False
    stream = np.empty((n_lanes, 0), dtype=np.int64)
    while not whole:
        more = rng.lognormal(
            np.log(MEDIAN_SHARE * max_tokens), SPREAD, (n_lanes, per_microbatch * most)
        )
        drawn = np.clip(np.rint(more), SHORTEST, max_tokens).astype(np.int64)
        stream = np.concatenate([stream, drawn], axis=1)
        first, end = _pack(stream, most, max_tokens)
        whole = bool((end[:, -1] < stream.shape[1]).all())
    return _of_lanes(stream, first, end, counts, steps)


def _pack(
    stream: npt.NDArray[np.int64], n: int, max_tokens: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """[lane, microbatch] first and end index of the microbatch's sequences."""
    n_lanes, n_seqs = stream.shape
    total = np.cumsum(stream, axis=1)
    # Offsets between lanes make one ascending array of all totals.
    apart = np.arange(n_lanes) * (int(total.max()) + max_tokens + 1)
    flat = (total + apart[:, None]).ravel()
    bounds = np.zeros((n_lanes, n + 1), dtype=np.int64)
    lanes = np.arange(n_lanes)
    for microbatch in range(n):
        at = bounds[:, microbatch]
        taken = np.where(at > 0, total[lanes, at - 1], 0)
        found = np.searchsorted(flat, taken + max_tokens + apart, side="right")
        bounds[:, microbatch + 1] = np.minimum(found - lanes * n_seqs, n_seqs)
    return bounds[:, :-1], bounds[:, 1:]


def _of_lanes(
    stream: npt.NDArray[np.int64],
    first: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    steps: int,
) -> SeqLens:
    """The packed sequences, concatenated."""
    n_dp, most = len(counts), first.shape[1]
    exists = np.tile(np.arange(most) < counts[:, None], (steps, 1))
    sizes = np.where(exists, end - first, 0)
    used = np.arange(stream.shape[1]) < sizes.sum(axis=1, keepdims=True)
    bounds = np.append(0, np.cumsum(sizes)).reshape(-1)
    ptr = np.stack([bounds[:-1], bounds[1:]], axis=1).reshape(steps, n_dp, most, 2)
    return SeqLens(np.arange(steps, dtype=np.int64), ptr, stream[used])


def microbatch_costs(seqlens: SeqLens, mix: float) -> npt.NDArray[np.float64]:
    """[step, dp, microbatch] cost, of mean 1 over all microbatches of all steps.

    The cost is ``a * sum(s^2) + b * sum(s)`` over a microbatch's sequences (what-if paper, 5.3).
    ``a`` and ``b`` are constants with which the squares have the share ``mix`` of the total. A
    sequence therefore costs the same in any microbatch. A missing microbatch costs 0.
    """
    tokens, squares = seqlens.moments()
    n = int(seqlens.exists.sum())
    cost: npt.NDArray[np.float64] = mix * n / squares.sum() * squares
    cost += (1 - mix) * n / tokens.sum() * tokens
    return cost
