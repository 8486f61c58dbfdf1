"""What every operation of a job takes: the model's costs, then faults, then noise."""

from __future__ import annotations

import numpy as np

from world.data import contents_of
from world.draws import exactly, lognormal, uniform
from world.faults import (
    Delay,
    LateMember,
    Loading,
    Pauses,
    SlowLink,
    SlowMachine,
    SlowNic,
)
from world.ops import Array, Ops
from world.plant import Setup, World, machine_number, placement
from world.programs import (
    BACKWARD,
    CLIP,
    EMBEDDING,
    FORWARD,
    GATHER,
    GC,
    LAYERNORM,
    OPTIMIZER,
    SCATTER,
    SEPARATE,
    Program,
)


def ops_of(world: World, setup: Setup, program: Program) -> Ops:
    return Ops(
        program, world.stages, np.arange(world.steps), placement(world, setup),
        setup.new_machines, world.slots,
    )  # fmt: skip


def seconds_of(world: World, setup: Setup, ops: Ops) -> Array:
    """[op, step] durations of computes, transfer times of members of transfers."""
    table = np.zeros((len(ops.kind), world.steps))
    _computes(world, setup, ops, table)
    _messages(world, setup, ops, table)
    _collectives(world, setup, ops, table)
    _local(world, setup, ops, table)
    for noise in world.noise:
        table *= noise.factor(world.seed, ops)
    _pauses(world, setup, ops, table)
    _late(world, setup, ops, table)
    if setup.planned_gc_s:
        table[ops.kind == GC] = setup.planned_gc_s
    table[program_noops(ops)] = 0.0
    return table


def program_noops(ops: Ops) -> np.ndarray:
    return ops.program.column("noop")


def _computes(world: World, setup: Setup, ops: Ops, table: Array) -> None:
    """Layers, and at the ends of the model embedding and loss, on machines of their own speed."""
    attention, tokens = setup.contents or contents_of(world, setup.microbatches)
    layers, last = np.array(setup.layers), len(setup.layers) - 1
    first_part, last_part = world.ends
    for kind, layer_s in zip((FORWARD, BACKWARD), world.model.layer_s, strict=True):
        at = np.flatnonzero(ops.kind == kind)
        place, where = ops.place[at], (slice(None), ops.dp[at], ops.microbatch[at])
        extra = first_part * (place == 0) + last_part * (place == last)
        work = layers[place][:, None] * attention[where].T + extra[:, None] * tokens[where].T
        table[at] = work * layer_s
    for number, fault in enumerate(world.of(SlowMachine)):
        machine = machine_number(world, (fault.dp, fault.stage))
        slow = ops.is_compute & (ops.machine == machine) & ~ops.renewed
        hit = exactly(fault.share, world.steps, world.seed, f"machine{number}")
        table[np.ix_(slow, hit)] *= fault.factor


def _messages(world: World, setup: Setup, ops: Ops, table: Array) -> None:
    """Sends and receives: the link's time, whoever waits for it."""
    at = np.flatnonzero(ops.is_message)
    table[at] = world.model.message_s
    here, there = ops.machine[at], ops.machine_at[ops.dp[at], ops.peer[at]]
    ends = np.sort(np.stack([ops.stage[at], ops.peer[at]]), axis=0)
    repaired = np.zeros(len(at), dtype=bool)
    for dp, low, high in setup.repaired_links:
        repaired |= (ops.dp[at] == dp) & (ends[0] == low) & (ends[1] == high)
    names = tuple(column[at] if column.shape[0] > 1 else column for column in ops.message)
    for number, fault in enumerate(world.of(SlowLink)):
        a = machine_number(world, (fault.dp, fault.low))
        b = machine_number(world, (fault.dp, (fault.low + 1) % world.stages))
        slow = ((here == a) & (there == b)) | ((here == b) & (there == a))
        hit = uniform(world.seed, f"link{number}", *names) < fault.share
        table[at] *= np.where((slow & ~repaired)[:, None] & hit, fault.factor, 1.0)
    for number, fault in enumerate(world.of(SlowNic)):
        machine = machine_number(world, (fault.dp, fault.stage))
        slow = ((here == machine) | (there == machine)) & ~repaired & fault.messages
        hit = exactly(fault.share, world.steps, world.seed, f"nic{number}")
        table[at] *= np.where(slow[:, None] & hit[None, :], fault.factor, 1.0)


def _collectives(world: World, setup: Setup, ops: Ops, table: Array) -> None:
    """Collectives over the replicas: as large as the layers, as slow as the slowest NIC."""
    model, layers = world.model, np.array(setup.layers)
    for kind, layer_s in ((GATHER, model.gather_s), (SCATTER, model.scatter_s)):
        at = ops.kind == kind
        whole = model.latency_s + layer_s * layers[ops.place[at]]
        buckets = setup.buckets if kind == SCATTER and setup.overlap else 1
        table[at] = (whole / buckets)[:, None]
    table[ops.kind == EMBEDDING] = model.embedding_s
    table[ops.kind == SEPARATE] = model.separate_s
    table[ops.kind == CLIP] = model.clip_s
    for number, fault in enumerate(world.of(SlowNic)):
        stage = stage_of(world, setup, (fault.dp, fault.stage))
        if stage in setup.repaired_groups:
            continue
        hit = exactly(fault.share, world.steps, world.seed, f"nic{number}")
        of_group = np.isin(ops.kind, [GATHER, SCATTER, SEPARATE]) & (ops.stage == stage)
        table[np.ix_(of_group, hit)] *= fault.factor


def stage_of(world: World, setup: Setup, position: tuple[int, int]) -> int:
    """Where the machine that stood at a position works now."""
    number = machine_number(world, position)
    return int(np.argwhere(placement(world, setup) == number)[0, 1])


def _local(world: World, setup: Setup, ops: Ops, table: Array) -> None:
    """What a worker does alone in the tail."""
    layers = np.array(setup.layers).reshape(setup.chunks, world.stages).sum(axis=0)
    at = ops.kind == OPTIMIZER
    table[at] = (world.model.optimizer_s * layers[ops.stage[at]])[:, None]
    table[ops.kind == LAYERNORM] = world.model.layernorm_s


def _pauses(world: World, setup: Setup, ops: Ops, table: Array) -> None:
    """A collection stops one of a microbatch's forwards: whichever chunk is under way."""
    if not setup.automatic_gc:
        return
    at = np.flatnonzero(ops.kind == FORWARD)
    names = (ops.dp[at], ops.stage[at], ops.microbatch[at])
    names = (*(column[:, None] for column in names), ops.steps[None, :])
    for number, fault in enumerate(world.of(Pauses)):
        drawn = uniform(world.seed, f"gc{number}", *names) / fault.probability
        chunk = np.floor(drawn * setup.chunks)
        paused = (drawn < 1) & (chunk == np.maximum(ops.chunk[at], 0)[:, None])
        lasts = fault.seconds * lognormal(0.15, world.seed, f"pause{number}", *names)
        table[at] += np.where(paused, lasts, 0.0)


def _late(world: World, setup: Setup, ops: Ops, table: Array) -> None:
    for fault in world.of(LateMember):
        machine = machine_number(world, (fault.dp, fault.stage))
        stage = stage_of(world, setup, (fault.dp, fault.stage))
        if stage in setup.repaired_groups:
            continue
        table[np.isin(ops.kind, fault.kinds) & (ops.machine == machine)] += fault.seconds


def delays_of(world: World, setup: Setup, ops: Ops) -> Array:
    """[op, step] seconds between the moment an operation may start and its launch."""
    table = np.zeros((len(ops.kind), world.steps))
    for number, fault in enumerate(world.of(Delay)):
        at = ops.kind == fault.kind
        if fault.kind in setup.hidden or not at.any():
            continue
        names = tuple(c[at] if c.shape[0] > 1 else c for c in ops.identity)
        drawn = lognormal(fault.spread, world.seed, f"delay{number}", *names)
        table[at] += fault.seconds * drawn
    first = sorted(ops.program.first_compute)
    names = (ops.dp[first][:, None], ops.steps[None, :])
    for number, fault in enumerate(world.of(Loading)):
        if "loading" in setup.hidden or FORWARD in setup.hidden:
            continue
        drawn = lognormal(fault.spread, world.seed, f"loading{number}", *names)
        hit = uniform(world.seed, f"loads{number}", *names) < fault.share
        table[first] += np.where(hit, fault.seconds * drawn, 0.0)
    return table
