"""Simulate a job, and read off what its workers' clocks record."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from world.costs import delays_of, ops_of, seconds_of
from world.draws import normal
from world.ops import Array, Ops
from world.plant import Setup, World, shape_of
from world.programs import BACKWARD, FORWARD, program_of
from world.walk import Timeline, run


@dataclass(frozen=True, eq=False)
class Run:
    """A simulated job.

    Attributes:
        ops: its operations.
        seconds, delay: [op, step] what they took, and what passed before they were launched.
        timeline: when they were launched and ended.
    """

    ops: Ops
    seconds: Array
    delay: Array
    timeline: Timeline

    @property
    def step_s(self) -> Array:
        """[step] step times as a stopwatch sees them."""
        return self.timeline.step_s


def simulate(world: World, setup: Setup) -> Run:
    """Run the job."""
    program = program_of(shape_of(world, setup))
    ops = ops_of(world, setup, program)
    seconds, delay = seconds_of(world, setup, ops), delays_of(world, setup, ops)
    return Run(ops, seconds, delay, run(program, seconds, delay))


def step_s(world: World, setup: Setup) -> float:
    """Mean step time, as a stopwatch sees it, seconds."""
    return float(simulate(world, setup).step_s.mean())


def undelayed_s(job: Run) -> float:
    """Mean step time of the same job if operations were launched at once, seconds."""
    return float(run(job.ops.program, job.seconds, np.zeros_like(job.delay)).step_s.mean())


def with_gc_every(world: World, setup: Setup, pause_s: float, every: int) -> float:
    """Mean step time where all workers collect together once in so many steps, seconds."""
    calm = replace(setup, automatic_gc=False)
    collecting = replace(calm, planned_gc_s=pause_s)
    share = 1 / every
    return step_s(world, calm) * (1 - share) + step_s(world, collecting) * share


def rows_of(world: World, job: Run) -> dict[str, np.ndarray]:
    """Columns of a trace: what each worker's own clock saw, one row per operation and step."""
    ops, n_steps = job.ops, world.steps
    begin = np.concatenate([[0.0], np.cumsum(job.step_s)[:-1]])
    offset = _offsets(world)[ops.machine]  # [op, step]
    start = job.timeline.launch + begin + offset
    end = job.timeline.end + begin + offset
    if world.clocks.quantum_s:
        start = np.floor(start / world.clocks.quantum_s) * world.clocks.quantum_s
        end = np.floor(end / world.clocks.quantum_s) * world.clocks.quantum_s
    computes = (ops.kind == FORWARD) | (ops.kind == BACKWARD)
    columns = {
        "dp": ops.dp,
        "pp": ops.stage,
        "rank": ops.dp * world.stages + ops.stage,
        "seq": ops.program.column("seq"),
        "chunk": np.where(computes | _chunked(ops), ops.chunk, -1),
        "microbatch": np.where(computes, ops.microbatch, -1),
        "kind": ops.kind,
    }
    rows = {name: np.repeat(column, n_steps) for name, column in columns.items()}
    rows["step"] = np.tile(np.arange(n_steps), len(ops.kind))
    rows["start"], rows["duration"] = start.ravel(), np.maximum(end - start, 0.0).ravel()
    return rows


def _chunked(ops: Ops) -> np.ndarray:
    return np.isin(ops.kind, ["params-all-gather", "grads-reduce-scatter"])


def _offsets(world: World) -> Array:
    """[machine, step] how far each machine's clock is ahead."""
    machines, steps = np.arange(world.dp * world.stages)[:, None], np.arange(world.steps)[None, :]
    constant = world.clocks.skew_s * normal(world.seed, "clock", machines)
    return constant + world.clocks.drift_s * normal(world.seed, "drift", machines) * steps
