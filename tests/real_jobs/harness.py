"""Runs real jobs of four gloo ranks: slow, level (all ranks at the mean), healthy."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

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


def run(case, folder, factors, *, recorded=False, profiled=False, steps=STEPS):
    """Run a job; no rank is left behind, whatever fails."""
    seen = "recorded" if recorded else "profiled" if profiled else "plain"
    folder.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "src"), "OMP_NUM_THREADS": "1"}
    arguments = [str(folder), ",".join(map(str, factors)), str(steps), seen]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "job.py"), case, str(rank), str(len(factors)), *arguments],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(len(factors))
    ]
    try:
        printed = [rank.communicate(timeout=180) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    codes = [rank.returncode for rank in ranks]
    assert codes == [0] * len(ranks), (codes, [err for _, err in printed])
    told = [json.loads(out.splitlines()[-1]) for out, _ in printed]  # DeepSpeed logs before it
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
