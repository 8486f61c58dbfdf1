"""The operations of a program in columns, and the names by which things draw their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from world.programs import BACKWARD, EMBEDDING, FORWARD, RECVS, SENDS, Program

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

KINDS = (FORWARD, BACKWARD, *SENDS.values(), *RECVS.values())


@dataclass(frozen=True, eq=False)
class Ops:
    """Columns [op] of a program under a placement of machines.

    Attributes:
        program: what the workers do.
        stages: pipeline stages of the job.
        steps: [step] numbers.
        machine_at: [dp, stage] number of the machine that works there.
        new_machines: numbers of machines that were replaced by typical ones.
        slots: computes of a direction that a machine's history holds per step.
    """

    program: Program
    stages: int
    steps: Ints
    machine_at: Ints
    new_machines: frozenset[int]
    slots: int

    @cached_property
    def kind(self) -> npt.NDArray[np.str_]:
        return self.program.column("kind")

    @cached_property
    def dp(self) -> Ints:
        return self.program.column("dp")

    @cached_property
    def stage(self) -> Ints:
        return self.program.column("stage")

    @cached_property
    def chunk(self) -> Ints:
        return self.program.column("chunk")

    @cached_property
    def microbatch(self) -> Ints:
        return self.program.column("microbatch")

    @cached_property
    def place(self) -> Ints:
        """[op] virtual stage, in the order of the model; of operations without a chunk: chunk 0."""
        return np.maximum(self.chunk, 0) * self.stages + self.stage

    @cached_property
    def machine(self) -> Ints:
        """[op] number of the machine that runs it."""
        return self.machine_at[self.dp, self.stage]

    @cached_property
    def renewed(self) -> npt.NDArray[np.bool_]:
        """[op] whether its machine was replaced."""
        return np.isin(self.machine, list(self.new_machines))

    @cached_property
    def is_compute(self) -> npt.NDArray[np.bool_]:
        return (self.kind == FORWARD) | (self.kind == BACKWARD)

    @cached_property
    def is_message(self) -> npt.NDArray[np.bool_]:
        """[op] sends and receives that move something."""
        of_kind = np.isin(self.kind, [*SENDS.values(), *RECVS.values()])
        return of_kind & ~self.program.column("noop")

    @cached_property
    def peer(self) -> Ints:
        """[op] the stage at the other end of a message."""
        towards = np.isin(self.kind, [SENDS["F"], RECVS["B"]])
        return (self.stage + np.where(towards, 1, -1)) % self.stages

    @property
    def computes(self) -> npt.NDArray[np.bool_]:
        """[op, 1]."""
        return self.is_compute[:, None]

    @cached_property
    def transfers(self) -> npt.NDArray[np.bool_]:
        """[op, 1] members of a message or a collective."""
        return (self.program.column("message") != 0)[:, None]

    @cached_property
    def collectives(self) -> npt.NDArray[np.bool_]:
        """[op, 1] members of what more than two workers take part in, or the embedding's pair."""
        wide = ~np.isin(self.kind, KINDS) & (self.program.column("message") != 0)
        return (wide & (self.kind != EMBEDDING))[:, None]

    @cached_property
    def message(self) -> tuple[Ints, Ints]:
        """What names a transfer: the same for all its members."""
        return self.program.column("message")[:, None], self.steps[None, :]

    @cached_property
    def member(self) -> tuple[Ints, ...]:
        """What names a member of a transfer."""
        return (*self.message, self.dp[:, None], self.stage[:, None])

    @cached_property
    def identity(self) -> tuple[Ints, ...]:
        """What names a compute, or another operation of a worker."""
        _, number = np.unique(self.kind, return_inverse=True)
        names = np.array([sum(map(ord, kind)) for kind in np.unique(self.kind)])[number]
        columns = (names, self.dp, self.stage, self.chunk, self.microbatch)
        return (*(column[:, None] for column in columns), self.steps[None, :])

    @cached_property
    def series(self) -> tuple[Ints, Ints]:
        """What names a moment of a machine's history: [machine, 1] and [1, slot]."""
        machines = np.arange(self.machine_at.size)[:, None]
        return machines, np.arange(len(self.steps) * 2 * self.slots)[None, :]

    @cached_property
    def machine_slot(self) -> tuple[Ints, Ints]:
        """[op, 1] machine and [op, step] slot of its history; for computes."""
        within = 2 * (np.maximum(self.microbatch, 0) % self.slots) + (self.kind == BACKWARD)
        slot = self.steps[None, :] * 2 * self.slots + within[:, None]
        return self.machine[:, None], slot
