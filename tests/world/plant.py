"""A job: the world it runs in, which stays, and its setup, which a remedy changes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from world.faults import Fault, HeavyEnds, Position
from world.noise import Clocks, LognormalOps, Noise
from world.ops import Array, Ints
from world.programs import (
    CLIP,
    EMBEDDING,
    GATHER,
    GC,
    LAYERNORM,
    OPTIMIZER,
    SCATTER,
    SEPARATE,
    Shape,
)


@dataclass(frozen=True)
class Model:
    """Seconds that things take on a typical machine, forward and backward where there are two.

    Collectives take a latency plus a share for each layer, whose parameters and gradients they
    move. About those of a small dense model (the real job ST: forwards of 80 ms, gathers of 25 ms,
    reductions of 50 ms, sends of 0.6 ms).
    """

    layer_s: tuple[float, float] = (0.005, 0.010)
    ends: tuple[float, float] = (0.1, 0.2)  # embedding and loss, in layers: nearly even
    message_s: float = 0.001
    latency_s: float = 0.0005
    gather_s: float = 0.0015
    scatter_s: float = 0.003
    optimizer_s: float = 0.0015
    layernorm_s: float = 0.0001
    embedding_s: float = 0.010
    separate_s: float = 0.005
    clip_s: float = 0.004
    attention: float = 0.3  # share of a layer that grows with the squares of sequence lengths


PERFECT = Clocks()


@dataclass(frozen=True)
class World:
    """What no remedy touches: the machines, the model, the data, the noise.

    ``slots``: microbatches that a machine's history holds per step.
    """

    seed: int
    dp: int
    stages: int
    steps: int
    slots: int
    model: Model = Model()
    faults: tuple[Fault, ...] = ()
    noise: tuple[Noise, ...] = (LognormalOps(0.01),)
    clocks: Clocks = PERFECT

    @property
    def ends(self) -> tuple[float, float]:
        """What embedding and loss cost, in layers."""
        heavy = [fault for fault in self.faults if isinstance(fault, HeavyEnds)]
        first, last = self.model.ends
        return first + sum(f.first for f in heavy), last + sum(f.last for f in heavy)

    def of(self, *kinds: type) -> list[Fault]:
        """The faults of some kinds."""
        return [fault for fault in self.faults if isinstance(fault, kinds)]


@dataclass(frozen=True, eq=False)
class Setup:
    """What an engineer decides.

    Attributes:
        microbatches: of each replica.
        layers: of each virtual stage, in the order of the model.
        chunks: virtual stages per stage.
        schedule: "gpipe", "1f1b" or "interleaved".
        overlap, buckets: gradients are reduced during the backward pass, a chunk's in parts.
        separate: some gradients are not part of the chunks' buffers and are reduced on their own.
        machine_at: [dp, stage] machine that works there; None: number dp * stages + stage.
        new_machines: numbers of machines that were replaced by typical ones.
        repaired_links: (dp, low, high) stages whose messages take the usual time.
        repaired_groups: stages whose data-parallel collectives take the usual time.
        hidden: "loading" and kinds of operation whose delays are gone.
        automatic_gc: whether Python collects when it likes.
        planned_gc_s: a collection on all workers at the end of every step.
        contents: (attention [step, dp, microbatch], tokens [...]) relative costs of what the
            microbatches hold; None: as the world draws them.
    """

    microbatches: tuple[int, ...]
    layers: tuple[int, ...]
    chunks: int = 1
    schedule: str = "1f1b"
    overlap: bool = False
    buckets: int = 1
    separate: bool = False
    machine_at: Ints | None = None
    new_machines: frozenset[int] = frozenset()
    repaired_links: frozenset[tuple[int, int, int]] = frozenset()
    repaired_groups: frozenset[int] = frozenset()
    hidden: frozenset[str] = frozenset()
    automatic_gc: bool = True
    planned_gc_s: float = 0.0
    contents: tuple[Array, Array] | None = None


def even_setup(world: World, microbatches: int, chunks: int = 1, **more: object) -> Setup:
    """A setup with twelve layers on every stage."""
    schedule = "interleaved" if chunks > 1 else "1f1b"
    layers = (12 // chunks,) * (world.stages * chunks)
    choice = {"chunks": chunks, "schedule": schedule, **more}
    return Setup((microbatches,) * world.dp, layers, **choice)


def shape_of(world: World, setup: Setup) -> Shape:
    """What a step of the job consists of; one replica has nobody to reduce gradients with."""
    kinds = {LAYERNORM, CLIP, OPTIMIZER}
    kinds |= {EMBEDDING} if world.stages > 1 else set()
    kinds |= {GATHER, SCATTER} if world.dp > 1 else set()
    kinds |= {SEPARATE} if setup.separate and world.dp > 1 else set()
    kinds |= {GC} if setup.planned_gc_s else set()
    return Shape(
        stages=world.stages,
        microbatches=setup.microbatches,
        chunks=setup.chunks,
        schedule=setup.schedule,
        overlap=setup.overlap,
        buckets=setup.buckets,
        noops=setup.chunks > 1,
        kinds=frozenset(kinds),
    )


def machine_number(world: World, position: Position) -> int:
    """The number that a machine bears for good: where it stood first."""
    return position[0] * world.stages + position[1]


def placement(world: World, setup: Setup) -> Ints:
    """[dp, stage] machine that works there."""
    if setup.machine_at is not None:
        return setup.machine_at
    return np.arange(world.dp * world.stages).reshape(world.dp, world.stages)
