"""A plan: which sequence goes into which microbatch of which rank, and their order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from paceline.files import write_files
from paceline.trace.seqlens import SeqLens

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Format version, in the parquet file's schema metadata.
VERSION = 1

#: Microbatches that may be exchanged between the DP ranks of a step.
SEQUENCES, MICROBATCHES, NOTHING = "sequences", "microbatches", "nothing"

#: Orders of a rank's microbatches by cost. Neighbours meet in a pipeline: one runs forward on a
#: stage while another runs backward on the next. So a sorted order costs less than a random one. A
#: hill (cheap ones at both ends) also fills and drains the pipeline fast.
ORDERS = ("falling", "rising", "hill")


@dataclass(frozen=True)
class SequencePlan:
    """An assignment of sequences to microbatches.

    Attributes:
        before: the lengths as traced.
        after: the planned lengths: the same steps, replicas and microbatches.
        origin: [sequence of ``after``] its index in ``before.lengths``.
        exchanged: [step] the unit of exchange: "sequences"; whole "microbatches", if the limit of
            tokens leaves no room for more; or "nothing".
    """

    before: SeqLens
    after: SeqLens
    origin: Ints
    exchanged: tuple[str, ...]

    @property
    def mostly(self) -> str:
        """The sort of exchange of most steps."""
        return max(sorted(set(self.exchanged)), key=self.exchanged.count)

    @property
    def slots_before(self) -> Ints:
        """[sequence of ``before``] its flat (step, dp, microbatch)."""
        return _slots(self.before, len(self.before.lengths))

    @property
    def moved_share(self) -> float:
        """Share of the sequences that change their DP rank."""
        home = _replica_of(self.before, len(self.before.lengths))
        return float((home[self.origin] != _replica_of(self.after, len(self.origin))).mean())

    def write(self, path: Path, *, force: bool = False) -> None:
        """Write the assignment as parquet, one row per sequence.

        Columns: step, dp_rank, mb_id (the target), from_dp_rank, from_mb_id, from_index (the
        origin, and the place in that microbatch), length.

        Raises:
            OutputError: the file exists and ``force`` is not given, or it cannot be written.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        slot = _slots(self.after, len(self.origin))
        home = _slots(self.before, len(self.before.lengths))[self.origin]
        shape = self.after.ptr.shape[:3]
        step, dp, microbatch = np.unravel_index(slot, shape)
        _, from_dp, from_microbatch = np.unravel_index(home, shape)
        first = self.before.ptr[..., 0].ravel()[home]
        table = pa.table(
            {
                "step": self.after.steps[step],
                "dp_rank": dp.astype(np.int32),
                "mb_id": microbatch.astype(np.int32),
                "from_dp_rank": from_dp.astype(np.int32),
                "from_mb_id": from_microbatch.astype(np.int32),
                "from_index": (self.origin - first).astype(np.int32),
                "length": self.after.lengths,
            }
        ).replace_schema_metadata({b"paceline-sequence-plan": str(VERSION)})

        def write_table(file: BinaryIO) -> None:
            pq.write_table(table, file, compression="zstd")

        write_files({path: write_table}, force=force)


def _slots(seqlens: SeqLens, n: int) -> Ints:
    """[sequence] its flat (step, dp, microbatch); -1 if it is in none."""
    slot = np.full(n, -1, dtype=np.int64)
    ptr = seqlens.ptr.reshape(-1, 2)
    sizes = ptr[:, 1] - ptr[:, 0]
    slot[spans(ptr[:, 0], sizes)] = np.repeat(np.arange(len(ptr)), sizes)
    return slot


def _replica_of(seqlens: SeqLens, n: int) -> Ints:
    slot = _slots(seqlens, n)
    return np.where(slot < 0, -1, slot // seqlens.ptr.shape[2] % seqlens.ptr.shape[1])


def spans(first: Ints, sizes: Ints) -> Ints:
    """first[0], first[0] + 1, ... (sizes[0] of them), first[1], ..."""
    ends = np.cumsum(sizes)
    return np.repeat(first - (ends - sizes), sizes) + np.arange(ends[-1] if len(ends) else 0)


def in_order(plan: SequencePlan, cost: Array, order: str) -> SequencePlan:
    """The same plan with the microbatches of every rank ordered by ``cost`` [step, dp, microbatch].

    Args:
        plan: the sequences of each rank and microbatch.
        cost: cost of the microbatches of ``plan.after``.
        order: one of :data:`ORDERS`.
    """
    exists = plan.after.exists
    counts = exists.sum(axis=2, keepdims=True)
    rising = np.argsort(np.where(exists, cost, np.inf), axis=2, kind="stable")
    nth = np.broadcast_to(np.arange(exists.shape[2]), exists.shape)
    slot = {
        "rising": nth,
        "falling": counts - 1 - nth,
        "hill": np.where(nth % 2 == 0, nth // 2, counts - 1 - nth // 2),
    }[order]
    slot = np.where(nth < counts, slot, nth)
    source = np.empty_like(rising)
    np.put_along_axis(source, slot, rising, axis=2)
    ptr = np.take_along_axis(plan.after.ptr, source[..., None], axis=2)
    return replace(plan, after=replace(plan.after, ptr=ptr))


def unchanged_plan(seqlens: SeqLens) -> SequencePlan:
    """The plan that changes nothing."""
    n_steps = len(seqlens.steps)
    return SequencePlan(seqlens, seqlens, np.arange(len(seqlens.lengths)), (NOTHING,) * n_steps)


def balance(cost: Array, exists: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Imbalance of costs [step, dp, microbatch]: the largest over the mean, averaged over steps."""
    ranks = np.where(exists, cost, 0.0).sum(axis=2)
    costs = np.where(exists, cost, 0.0)
    mean = costs.sum(axis=(1, 2)) / exists.sum(axis=(1, 2))
    return {
        "ranks": float((ranks.max(axis=1) / ranks.mean(axis=1)).mean()),
        "microbatches": float((costs.max(axis=(1, 2)) / mean).mean()),
    }


def tokens_per_rank(seqlens: SeqLens) -> dict[str, Any]:
    """Smallest, mean and largest sum of tokens of a DP rank in a step, and of a microbatch."""
    tokens = seqlens.moments()[0]
    ranks = tokens.sum(axis=2)
    return {
        "min": int(ranks.min()),
        "mean": float(ranks.mean()),
        "max": int(ranks.max()),
        "largest_microbatch": int(tokens.max()),
    }
