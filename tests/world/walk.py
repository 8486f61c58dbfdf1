"""Run a program: launch what may start, let transfers meet, until every worker has finished."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

import numpy as np

from world.programs import Program


@dataclass(frozen=True)
class Timeline:
    """When operations are launched and end: [op, step] seconds since the step's beginning."""

    launch: np.ndarray
    end: np.ndarray

    @property
    def step_s(self) -> np.ndarray:
        """[step] seconds from the beginning of the step to its last end."""
        return self.end.max(axis=0)


def run(program: Program, seconds: np.ndarray, delay: np.ndarray) -> Timeline:
    """Walk through the program once for all steps.

    Which operation may go when is a question of the program alone; the walk asks it once and keeps
    all steps side by side in the last axis.

    Args:
        program: what the workers do.
        seconds: [op, step] duration of a compute, transfer time of a member of a transfer.
        delay: [op, step] from the moment an operation may start to its launch.
    """
    members: dict[int, list[int]] = defaultdict(list)
    for op, number in enumerate(program.meets):
        if number >= 0:
            members[number].append(op)
    needs = _needs(program)
    waits = [len(earlier) for earlier in needs]
    later: list[list[int]] = [[] for _ in needs]
    for op, earlier in enumerate(needs):
        for other in earlier:
            later[other].append(op)
    missing = {number: len(ops) for number, ops in members.items()}
    launch, end = np.zeros_like(seconds), np.full_like(seconds, np.nan)
    startable = deque(op for op, count in enumerate(waits) if count == 0)
    finished = 0
    while startable:
        op = startable.popleft()
        launch[op] = _may_start(program, op, seconds, launch, end) + delay[op]
        number = program.meets[op]
        if number < 0:
            ended = [op]
            end[op] = launch[op] + seconds[op]
        else:
            missing[number] -= 1
            if missing[number]:
                continue
            ended = members[number]
            end[ended] = launch[ended].max(axis=0) + seconds[ended]
        finished += len(ended)
        for one in ended:
            for other in later[one]:
                waits[other] -= 1
                if waits[other] == 0:
                    startable.append(other)
    if finished < len(program):
        raise ValueError(f"{len(program) - finished} operations wait for each other")
    return Timeline(launch, end)


def _needs(program: Program) -> list[list[int]]:
    """What has to be walked before each operation; of a bucket also the compute that fills it."""
    needs = [list(dict.fromkeys(earlier)) for earlier in program.before]
    for bucket, (compute, _) in program.ready.items():
        if compute not in needs[bucket]:
            needs[bucket].append(compute)
    return needs


def _may_start(
    program: Program, op: int, seconds: np.ndarray, launch: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """[step] when all that comes before is over, and a bucket is full."""
    earlier = program.before[op]
    if len(earlier) == 1:
        start = end[earlier[0]]
    elif earlier:
        start = end[earlier].max(axis=0)
    else:
        start = np.zeros(end.shape[1])
    if op in program.ready:
        compute, share = program.ready[op]
        start = np.maximum(start, launch[compute] + share * seconds[compute])
    return start
