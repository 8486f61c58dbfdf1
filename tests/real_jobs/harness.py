"""Runs real jobs of four gloo ranks: slow, level (all ranks at the mean), healthy."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from installed import PACKAGES

HERE = Path(__file__).parent
WORLD, STEPS, WARM_UP = 4, 8, 2


@dataclass(frozen=True)
class Run:
    """Times of the steps behind the warm-up, seconds, the slowest rank's; and the losses."""

    times: list[float]
    losses: list[list[float]]

    @property
    def step_s(self):
        """The typical step."""
        return median(self.times)


@dataclass(frozen=True)
class Job:
    """What each rank runs: a case of ``job.py``, where, how slow each rank is, how it is seen.

    ``nics`` are (rank, bytes a second, steps): what the rank sends in these steps is as slow.
    """

    case: str
    folder: Path
    factors: list[float]
    seen: str = "plain"
    steps: int = STEPS
    nics: list[tuple[int, int, list[int]]] = field(default_factory=list)


def run(case, folder, factors, *, recorded=False, profiled=False, steps=STEPS):
    """Run one job."""
    seen = "recorded" if recorded else "profiled" if profiled else "plain"
    (told,) = run_all([Job(case, folder, factors, seen, steps)])
    return told


def run_all(jobs):
    """Run jobs one after the other in the same processes: importing torch takes seconds.

    No rank is left behind, whatever fails.
    """
    for job in jobs:
        job.folder.mkdir(parents=True, exist_ok=True)
    world = len(jobs[0].factors)
    env = {**os.environ, "PYTHONPATH": PACKAGES, "OMP_NUM_THREADS": "1"}
    table = [
        [job.case, str(job.folder), job.factors, job.steps, job.seen, job.nics] for job in jobs
    ]
    command = [sys.executable, str(HERE / "job.py"), json.dumps(table), str(world)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        printed = [rank.communicate(timeout=180 + 60 * len(jobs)) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    codes = [rank.returncode for rank in ranks]
    assert codes == [0] * len(ranks), (codes, [err for _, err in printed])
    return [_told(printed, number - len(jobs)) for number in range(len(jobs))]


def _told(printed, line):
    """What the ranks printed of one job; others (DeepSpeed) print before it."""
    told = [json.loads(out.splitlines()[line]) for out, _ in printed]
    times = [max(of_ranks) for of_ranks in zip(*(t["times"] for t in told), strict=True)]
    return Run(times[WARM_UP:], [t["losses"] for t in told])


def factors_of(slow, world=WORLD):
    """Rank 1 slow: the slow job, the same work shared by all, the job without it."""
    mean = (world - 1 + slow) / world
    return (
        [slow if rank == 1 else 1.0 for rank in range(world)],
        [mean] * world,
        [1.0] * world,
    )
