"""Schedules that split the backward: the gradient of the weights fills the bubbles.

A backward pass is two computes. B, the gradient of the inputs, holds up the stage before. W, the
gradient of the weights, holds up no stage. Orders are those of PyTorch 2.13
(``torch.distributed.pipelining.schedules``), and tests compare them with its own classes:

- ZB-H1: Qi et al. 2024, "Zero bubble pipeline parallelism" (arXiv 2401.10241, 3); torch's
  ``ScheduleInterleavedZeroBubble`` with one stage per rank, DeepSeek's "ZB1P".
- ZBV: the same, 6 (two chunks per stage, which lie as a V); ``ScheduleZBVZeroBubble``.
- DualPipeV: DualPipe cut in half; ``ScheduleDualPipeV``, github.com/deepseek-ai/DualPipe.
- DualPipe: DeepSeek-AI 2024 (arXiv 2412.19437, 3.2.1), two copies of the model in which
  microbatches travel in opposite directions. A stage runs the order of DualPipeV with half as many
  stages, for half of the microbatches in each direction (``dualpipe.py`` beside ``dualpipev.py``).

DualPipe overlaps the forward of one microbatch with the backward of another: the communication of
one runs during the compute of the other. Such computes share a *block*. Before its first compute, a
block waits for the inputs of all; behind the last it sends all results. So the block takes its time
as one node. Within it the computes follow each other, and each has its share of the time. Every
compute keeps its kind, chunk and microbatch.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from paceline.errors import GraphError
from paceline.trace.kinds import OpKind

F, B, W = OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE, OpKind.WEIGHT_COMPUTE
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SplitOrder:
    """Computes of one stage in the order in which they run.

    Attributes:
        kind: [compute] forward, backward (of the inputs) or weight.
        chunk: [compute] model chunk on the stage.
        microbatch: [compute] microbatch.
        block: [compute] number of its block: computes of one block run as one.
    """

    kind: Ints
    chunk: Ints
    microbatch: Ints
    block: Ints

    @property
    def overlaps(self) -> npt.NDArray[np.bool_]:
        """[compute] whether a forward and a backward overlap in its block."""
        n_forward = np.bincount(self.block, self.kind == F)
        n_backward = np.bincount(self.block, self.kind == B)
        overlaps: npt.NDArray[np.bool_] = ((n_forward > 0) & (n_backward > 0))[self.block]
        return overlaps


#: (stage, stages, microbatches) -> order on that stage.
SplitSchedule = Callable[[int, int, int], SplitOrder]


class _Program:
    """Collects computes; each (kind, chunk) counts its own microbatches."""

    def __init__(self) -> None:
        self.computes: list[tuple[int, int, int, int]] = []
        self.count: Counter[tuple[OpKind, int]] = Counter()
        self.waiting: deque[int] = deque()
        self.blocks = 0

    def run(self, *computes: tuple[OpKind, int]) -> None:
        """Add one block: the next microbatch of each (kind, chunk)."""
        for kind, chunk in computes:
            self.computes.append((int(kind), chunk, self.count[kind, chunk], self.blocks))
            self.count[kind, chunk] += 1
        self.blocks += 1

    def run_each(self, *computes: tuple[OpKind, int]) -> None:
        """Add each compute in a block of its own."""
        for compute in computes:
            self.run(compute)

    def backward(self, chunk: int, *, split: bool) -> None:
        """Add the inputs' gradient, and the weights' later; or both as one."""
        if split:
            self.run((B, chunk))
            self.waiting.append(chunk)
        else:
            self.run((B, chunk), (W, chunk))

    def overlap(self, forward: int, backward: int) -> None:
        """Add a block of a forward of one chunk and a whole backward of the other."""
        self.run((F, forward), (B, backward), (W, backward))

    def weight(self) -> None:
        """Add the weights' gradient that has waited longest."""
        if self.waiting:
            self.run((W, self.waiting.popleft()))

    def order(self, n_microbatches: int) -> SplitOrder:
        """The whole order, except for microbatches that do not exist."""
        table = np.array(self.computes, dtype=np.int64).reshape(-1, 4).T
        kind, chunk, microbatch, block = table[:, table[2] < n_microbatches]
        return SplitOrder(kind, chunk, microbatch, np.unique(block, return_inverse=True)[1])


@lru_cache(maxsize=1024)
def zb_h1(pp: int, n_pp: int, n_microbatches: int) -> SplitOrder:
    """ZB-H1: 1F1B whose weight gradients come ``pp`` microbatches late.

    Each stage then holds as many microbatches as the first stage of 1F1B.
    """
    program = _Program()
    warmup = min(n_pp - pp - 1, n_microbatches)
    program.run_each(*[(F, 0)] * warmup)
    for microbatch in range(n_microbatches):
        if warmup + microbatch < n_microbatches:
            program.run((F, 0))
        program.run((B, 0))
        if microbatch >= pp:
            program.run((W, 0))
    program.run_each(*[(W, 0)] * min(pp, n_microbatches))
    return program.order(n_microbatches)


@lru_cache(maxsize=1024)
def zbv(pp: int, n_pp: int, n_microbatches: int) -> SplitOrder:
    """ZBV: chunk 0 goes down the stages, chunk 1 comes back, so the first stage has the loss."""
    program, ahead = _Program(), n_pp - pp
    count = program.count
    enough = max(2 * n_pp - 1, n_microbatches)  # to fill the pipeline
    program.run_each(*[(F, 0)] * (2 * ahead - 1))
    program.run_each(*[(F, 1), (F, 0)] * pp)
    program.run_each(*[(F, 1), (B, 1), (W, 1)] * ahead)
    while count[F, 1] < count[F, 0] or count[F, 0] < enough:
        if count[F, 0] < enough:
            program.run((F, 0))
        program.run_each((B, 0), (W, 0), (F, 1), (B, 1), (W, 1))
    program.run_each(*[(B, 0), (B, 1)] * pp)
    program.run_each(*[(B, 0), (W, 0)] * ahead)
    for chunk in (1, 0):
        program.run_each(*[(W, chunk)] * (count[B, chunk] - count[W, chunk]))
    return program.order(n_microbatches)


@lru_cache(maxsize=1024)
def dualpipev(pp: int, n_pp: int, n_microbatches: int) -> SplitOrder:
    """DualPipeV: forwards of one chunk overlap with backwards of the other.

    Raises:
        GraphError: there are fewer microbatches than places in the model.
    """
    if n_microbatches < 2 * n_pp:
        raise GraphError(
            f"dualpipev needs at least 2 x {n_pp} stages = {2 * n_pp} microbatches, "
            f"not {n_microbatches}"
        )
    program, behind = _Program(), n_pp - pp - 1
    program.run_each(*[(F, 0)] * (2 * behind))
    program.run_each(*[(F, 0), (F, 1)] * (pp + 1))
    for _ in range(behind):
        program.backward(1, split=True)
        program.weight()
        program.run((F, 1))
    for turn in range(n_microbatches - 2 * n_pp + pp + 1):
        if turn == 0 and behind == 0:  # apart, so that the first backward does not wait
            program.run((F, 0))
            program.backward(1, split=False)
        else:
            program.overlap(forward=0, backward=1)
        program.overlap(forward=1, backward=0)
    for _ in range(behind):
        program.backward(1, split=False)
        program.overlap(forward=1, backward=0)
    # The second half of the last backwards is split; on odd stages one backward earlier.
    whole = 2 * ((pp + 1) // 2) + (pp % 2 == 0)
    for turn in range(2 * (pp + 1)):
        program.backward(1 - turn % 2, split=turn >= whole)
    for _ in range(behind):
        program.weight()
        program.backward(0, split=True)
    for _ in range(pp + 1):
        program.weight()
    return program.order(n_microbatches)


@lru_cache(maxsize=1024)
def dualpipe(pp: int, n_pp: int, n_microbatches: int) -> SplitOrder:
    """DualPipe: chunk 0 is of the copy that goes down the stages, chunk 1 of the one that comes up.

    The first half of the microbatches goes down.

    Raises:
        GraphError: stages or microbatches are odd, or there are too few microbatches.
    """
    if n_pp % 2 or n_microbatches % 2:
        raise GraphError(
            f"dualpipe needs even numbers of stages and microbatches, not {n_pp} and "
            f"{n_microbatches}"
        )
    if n_microbatches < 2 * n_pp:
        raise GraphError(
            f"dualpipe needs at least 2 x {n_pp} stages = {2 * n_pp} microbatches, "
            f"not {n_microbatches}"
        )
    half = n_microbatches // 2
    order = dualpipev(min(pp, n_pp - 1 - pp), n_pp // 2, half)
    chunk = order.chunk if pp < n_pp // 2 else 1 - order.chunk
    return SplitOrder(order.kind, chunk, order.microbatch + half * chunk, order.block)


SPLIT_SCHEDULES: dict[str, SplitSchedule] = {
    "zb-h1": zb_h1,
    "zbv": zbv,
    "dualpipev": dualpipev,
    "dualpipe": dualpipe,
}

#: Number of chunks on a stage.
SPLIT_CHUNKS = {"zb-h1": 1, "zbv": 2, "dualpipev": 2, "dualpipe": 2}
