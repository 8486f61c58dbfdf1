"""Sequence lengths: which sequences every microbatch was packed of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class SeqLens:
    """Lengths of the sequences in every microbatch, in tokens.

    Attributes:
        steps: [step] step numbers, ascending.
        ptr: [step, dp, microbatch, 2] first and end of a microbatch's sequences in ``lengths``.
        lengths: [sequence] tokens.
    """

    steps: npt.NDArray[np.int64]
    ptr: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    def of(self, step: int, dp: int, microbatch: int) -> npt.NDArray[np.int64]:
        """Lengths of one microbatch; ``step`` counts from 0."""
        first, end = self.ptr[step, dp, microbatch]
        return self.lengths[first:end]

    def moments(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """[step, dp, microbatch] sum of the lengths, and sum of their squares."""
        one = np.concatenate([[0.0], np.cumsum(self.lengths, dtype=np.float64)])
        two = np.concatenate([[0.0], np.cumsum(self.lengths.astype(np.float64) ** 2)])
        first, end = self.ptr[..., 0], self.ptr[..., 1]
        return one[end] - one[first], two[end] - two[first]
