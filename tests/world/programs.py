"""What every worker of a job does in a step: streams of operations, written from the what-if paper.

Section 3.2 and Figure 2: a worker has one stream of computes, one of data-parallel communication
and four of pipeline communication. Operations of a stream run one after the other; a receive comes
before its compute, a compute before its send; members of a transfer wait for each other. The tail
of a step and the prefetch of backward transfers follow the docstring and rules of ``oracle``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from zlib import crc32

import numpy as np

from world.schedules import SCHEDULES, Work

FORWARD, BACKWARD = "forward-compute", "backward-compute"
GATHER, SCATTER = "params-all-gather", "grads-reduce-scatter"
GC, LAYERNORM = "gc", "layernorm-grads-all-reduce"
EMBEDDING, SEPARATE = "embedding-grads-all-reduce", "separate-grads-all-reduce"
CLIP, OPTIMIZER = "optimizer-clip-main-grad", "optimizer"
SENDS = {"F": "forward-send", "B": "backward-send"}
RECVS = {"F": "forward-recv", "B": "backward-recv"}
COMPUTE = {"F": FORWARD, "B": BACKWARD}


@dataclass(frozen=True)
class Shape:
    """What a step consists of; ``microbatches`` holds one number per replica.

    ``buckets``: where reduction overlaps, in how many parts a chunk's gradients are reduced.
    ``noops``: transfers at the model's two ends are recorded although they move nothing.
    """

    stages: int
    microbatches: tuple[int, ...]
    chunks: int = 1
    schedule: str = "1f1b"
    overlap: bool = False
    buckets: int = 1
    noops: bool = False
    kinds: frozenset[str] = frozenset({GATHER, SCATTER, LAYERNORM, EMBEDDING, CLIP, OPTIMIZER})
    order: Callable[[int, int, int, int], list[Work]] | None = None


@dataclass
class Program:
    """The operations of one step of the whole job.

    ``before[i]``: operations that end before i is launched. ``meets[i]``: the number of the
    transfer that i takes part in, -1 for none; ``message[i]``: what names that transfer in every
    configuration of the job, 0 for none. ``ready[i]``: (compute, share) for the bucket of a
    reduction: it may start when that share of the compute is over.
    """

    kind: list[str] = field(default_factory=list)
    dp: list[int] = field(default_factory=list)
    stage: list[int] = field(default_factory=list)
    chunk: list[int] = field(default_factory=list)
    microbatch: list[int] = field(default_factory=list)
    seq: list[int] = field(default_factory=list)
    noop: list[bool] = field(default_factory=list)
    before: list[list[int]] = field(default_factory=list)
    meets: list[int] = field(default_factory=list)
    message: list[int] = field(default_factory=list)
    ready: dict[int, tuple[int, float]] = field(default_factory=dict)
    first_compute: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.kind)

    def column(self, name: str) -> np.ndarray:
        return np.array(getattr(self, name))

    def add(
        self, kind: str, dp: int, stage: int, seq: int, chunk: int = -1, microbatch: int = -1
    ) -> int:
        columns = (self.kind, self.dp, self.stage, self.seq, self.chunk, self.microbatch)
        for column, value in zip(columns, (kind, dp, stage, seq, chunk, microbatch), strict=True):
            column.append(value)
        self.noop.append(False)
        self.before.append([])
        self.meets.append(-1)
        self.message.append(0)
        return len(self.kind) - 1


def program_of(shape: Shape) -> Program:
    """The program of all workers, with their transfers tied together."""
    program = Program()
    meetings: dict[tuple, list[int]] = {}
    for dp, count in enumerate(shape.microbatches):
        for stage in range(shape.stages):
            _Worker(program, shape, meetings, dp, stage, count).write()
    for number, (key, members) in enumerate(meetings.items()):
        name = crc32(repr(key).encode())
        for op in members:
            program.meets[op], program.message[op] = number, name
    return program


class _Worker:
    """Writes the streams of one worker into the program."""

    def __init__(
        self,
        program: Program,
        shape: Shape,
        meetings: dict[tuple, list[int]],
        dp: int,
        stage: int,
        microbatches: int,
    ) -> None:
        self.program, self.shape, self.meetings = program, shape, meetings
        self.dp, self.stage = dp, stage
        order = shape.order or SCHEDULES[shape.schedule]
        self.order = order(stage, shape.stages, microbatches, shape.chunks)
        self.count: dict[str, int] = {}
        self.computes: dict[Work, int] = {}

    def op(self, kind: str, chunk: int = -1, microbatch: int = -1) -> int:
        seq = self.count[kind] = self.count.get(kind, -1) + 1
        return self.program.add(kind, self.dp, self.stage, seq, chunk, microbatch)

    def after(self, op: int, *earlier: int) -> None:
        self.program.before[op].extend(earlier)

    def stream(self, ops: Sequence[int]) -> None:
        """One after the other."""
        for earlier, op in pairwise(ops):
            self.after(op, earlier)

    def meet(self, op: int, *key: object) -> None:
        self.meetings.setdefault(key, []).append(op)

    def write(self) -> None:
        for direction, chunk, microbatch in self.order:
            op = self.op(COMPUTE[direction], chunk, microbatch)
            self.computes[direction, chunk, microbatch] = op
        computes = list(self.computes.values())
        self.stream(computes)
        if self.stage == 0:
            self.program.first_compute.add(computes[0])
        gathers = self.gathers()
        for direction in "FB":
            self.transfers(direction)
        self.tail(computes[-1], gathers)

    def gathers(self) -> list[int]:
        """Parameters of a chunk come before its first forward."""
        if GATHER not in self.shape.kinds:
            return []
        ops = [self.op(GATHER, chunk) for chunk in range(self.shape.chunks)]
        for chunk, op in enumerate(ops):
            first = next(w for w in self.order if w[0] == "F" and w[1] == chunk)
            self.after(self.computes[first], op)
            self.meet(op, GATHER, self.stage, chunk)
        self.stream(ops)
        return ops

    def transfers(self, direction: str) -> None:
        """Receives and sends of activations (F) towards the loss, or gradients (B) back."""
        shape = self.shape
        if shape.stages == 1 and not shape.noops:
            return
        last = shape.stages * shape.chunks - 1
        works = [w for w in self.order if w[0] == direction]
        recvs, sends = [], []
        for number, work in enumerate(works):
            place = work[1] * shape.stages + self.stage
            source, target = (place - 1, place + 1) if direction == "F" else (place + 1, place - 1)
            compute = self.computes[work]
            if 0 <= source <= last or shape.noops:
                recv = self.op(RECVS[direction], work[1], work[2])
                self.after(compute, recv)
                if number:
                    self.after(recv, self.computes[works[number - 1]])
                self.tie(recv, direction, work[2], source, place, last)
                recvs.append(recv)
            if 0 <= target <= last or shape.noops:
                send = self.op(SENDS[direction], work[1], work[2])
                self.after(send, compute)
                self.tie(send, direction, work[2], place, target, last)
                sends.append(send)
        self.stream(recvs)
        self.stream(sends)
        if direction == "B":
            self.prefetch(recvs, sends)

    def tie(
        self, op: int, direction: str, microbatch: int, source: int, target: int, last: int
    ) -> None:
        """Two ends of one message meet; at the ends of the model there is nobody."""
        if min(source, target) >= 0 and max(source, target) <= last:
            self.meet(op, direction, self.dp, microbatch, source, target)
        else:
            self.program.noop[op] = True

    def prefetch(self, recvs: list[int], sends: list[int]) -> None:
        """The first backward transfers are launched behind the second-last forward of the warm-up.

        A rule of the oracle: Megatron posts them while the last forward before the first backward
        is still under way.
        """
        warmup = next(k for k, work in enumerate(self.order) if work[0] == "B")
        if warmup >= 2:
            for op in (*recvs[:1], *sends[:1]):
                self.after(op, self.computes[self.order[warmup - 2]])

    def tail(self, last: int, gathers: list[int]) -> None:
        """What follows a worker's last compute."""
        shape = self.shape
        chain = [last]
        if GC in shape.kinds:
            chain.append(self.op(GC))
        end = []
        if LAYERNORM in shape.kinds:
            end.append(self.op(LAYERNORM))
        if EMBEDDING in shape.kinds and self.stage in (0, shape.stages - 1):
            end.append(self.op(EMBEDDING))
            self.meet(end[-1], EMBEDDING, self.dp)
        scatters = self.scatters()
        self.stream([*gathers[-1:], *scatters])
        if not shape.overlap:
            end += scatters
        elif SEPARATE in shape.kinds:
            end.append(self.op(SEPARATE))
            self.meet(end[-1], SEPARATE, self.stage)
        if CLIP in shape.kinds:
            end.append(self.op(CLIP))
            self.meet(end[-1], CLIP)
        if OPTIMIZER in shape.kinds:
            end.append(self.op(OPTIMIZER))
        self.stream([*chain, *end])
        if shape.overlap and scatters and end:
            self.after(end[0], scatters[-1])

    def scatters(self) -> list[int]:
        """Gradients are reduced chunk by chunk, the last first; where overlapped in buckets."""
        shape, ops = self.shape, []
        if SCATTER not in shape.kinds:
            return ops
        for chunk in reversed(range(shape.chunks)):
            own = [w for w in self.order if w[0] == "B" and w[1] == chunk]
            for bucket in range(shape.buckets if shape.overlap else 1):
                op = self.op(SCATTER, chunk)
                self.meet(op, SCATTER, self.stage, chunk, bucket)
                ops.append(op)
                done = (bucket + 1) / shape.buckets
                if not shape.overlap:
                    continue
                if done >= 1:
                    self.after(op, self.computes[own[-1]])
                else:
                    self.program.ready[op] = (self.computes[own[-1]], done)
        return ops
