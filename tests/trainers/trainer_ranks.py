"""Runs small trainings of two gloo ranks by a trainer's own loop, as torchrun would start them."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from installed import PACKAGES

HERE = Path(__file__).parent
#: A training that takes longer hangs. On a busy machine the imports alone took over 240 s.
HANG_S = 1200


def environment(rank, world, port, **more):
    own = {key: value for key, value in os.environ.items() if not key.startswith("PACELINE_")}
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    ranks |= {"NODE_RANK": 0, "GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    fixed = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": PACKAGES}
    return own | {name: str(value) for name, value in ranks.items()} | fixed | more


def run(case, folder, factors, *, recorded=False, **more):
    """[rank] losses; ``more`` are variables of the environment."""
    folder.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [case, str(folder), ",".join(map(str, factors)), "recorded" if recorded else "no"]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "job.py"), *arguments],
            env=environment(rank, len(factors), port, **more),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(len(factors))
    ]
    try:
        printed = [rank.communicate(timeout=HANG_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    codes = [rank.returncode for rank in ranks]
    assert codes == [0] * len(ranks), (codes, [err[-2000:] for _, err in printed])
    return [json.loads(out.splitlines()[-1])["losses"] for out, _ in printed]


def of_environment(folder):
    """Variables by which a job records itself, with the start-up file where it is not installed."""
    path = os.pathsep.join((PACKAGES, str(HERE / "startup")))
    return {"PACELINE_RECORD": str(folder / "run"), "PACELINE_RECORD_EVERY": "1"} | {
        "PYTHONPATH": path
    }
