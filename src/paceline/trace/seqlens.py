"""Sequence lengths: the sequences in every microbatch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError


@dataclass(frozen=True, eq=False)
class SeqLens:
    """Lengths of the sequences in every microbatch, in tokens.

    Replicas may differ in their number of microbatches. Microbatches below ``counts[step, dp]``
    exist and have at least one sequence each.

    Attributes:
        steps: [step] step numbers, ascending.
        ptr: [step, dp, microbatch, 2] first and end of a microbatch's sequences in ``lengths``.
        lengths: [sequence] tokens.
    """

    steps: npt.NDArray[np.int64]
    ptr: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @property
    def exists(self) -> npt.NDArray[np.bool_]:
        """[step, dp, microbatch] whether there is such a microbatch."""
        exists: npt.NDArray[np.bool_] = self.ptr[..., 1] > self.ptr[..., 0]
        return exists

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """[step, dp] number of microbatches."""
        counts: npt.NDArray[np.int64] = self.exists.sum(axis=2)
        return counts

    def select(self, steps: npt.NDArray[np.int64], microbatches: npt.NDArray[np.int64]) -> SeqLens:
        """The lengths for a trace's steps, in the trace's order.

        Args:
            steps: [step] step numbers of the trace; lengths of other steps are left out.
            microbatches: [dp] microbatches of each replica.

        Raises:
            TraceError: a step, a replica or a microbatch has no lengths, or there are too many.
        """
        missing = steps[~np.isin(steps, self.steps)]
        if len(missing):
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise TraceError(
                f"the sequence lengths lack step {missing[0]}{more} of the trace; they hold "
                f"{len(self.steps)} steps, {self.steps[0]} to {self.steps[-1]}"
            )
        ptr = self.ptr[np.searchsorted(self.steps, steps)]
        if ptr.shape[1] != len(microbatches):
            raise TraceError(
                f"the sequence lengths are of {ptr.shape[1]} dp ranks, the trace has "
                f"{len(microbatches)}"
            )
        chosen = SeqLens(steps, ptr, self.lengths)
        wrong = np.argwhere(chosen.counts != microbatches)
        if len(wrong):
            step, dp = wrong[0]
            raise TraceError(
                f"the sequence lengths do not match the trace in {len(wrong)} places, the first "
                f"step {steps[step]}, dp rank {dp}: {chosen.counts[step, dp]} microbatches with "
                f"lengths, {microbatches[dp]} in the trace"
            )
        most = int(microbatches.max())
        return SeqLens(steps, np.ascontiguousarray(ptr[:, :, :most]), self.lengths)

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
