"""Kill -9 of drivers and workers of a study at random moments: is it as if nothing had happened?

    python benchmarks/fleet_kills.py [--traces 100] [--kills 10] [--engine local|ray] [--nodes]

Each round begins a study of its own, kills its driver at a random moment (or one of its workers,
every second round, and then the driver), goes on with the same command, and compares the tables
with those of a study that nobody disturbed. ``--nodes`` kills a node of a Ray cluster instead: of
three on this machine, by ``ray.cluster_utils``.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from paceline.fleet.columns import JOBS
from paceline.fleet.run import RunOptions, fleet
from paceline.fleet.study import Study
from paceline.sources import write
from paceline.synth import SlowWorker, SynthSpec, synthesize

VARYING = [column.name for column in JOBS if column.varies]


def main() -> int:
    args = parse_arguments()
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_traces(folder / "traces", args.traces)
        start = time.monotonic()
        driver = begin(folder, "whole", args.engine)
        first_s = wait_for_results(folder / "whole") - start
        driver.wait()
        whole_s, whole = time.monotonic() - start, Study(folder / "whole")
        print(f"undisturbed: {args.traces} traces in {whole_s:.1f} s, the first at {first_s:.1f} s")
        bad = 0
        for number in range(args.kills):
            moment = rng.uniform(0, 0.9) * (whole_s - first_s)
            if args.nodes:
                done = lose_node(folder, moment, rng)
            else:
                done = disturb(folder, args.engine, moment, also_worker=number % 2 == 1, rng=rng)
            study = Study(folder / "killed")
            same = equal(study, whole)
            bad += not same
            paths = study.jobs["path"].to_pylist()
            print(
                f"killed {moment:4.1f} s after the first result, with {done} results: "
                f"{len(paths)} rows, "
                f"{len(set(paths))} traces, tables {'equal' if same else 'DIFFERENT'}",
                flush=True,
            )
            shutil.rmtree(folder / "killed")
    return 1 if bad else 0


def disturb(
    folder: Path, engine: str, moment: float, *, also_worker: bool, rng: random.Random
) -> int:
    """Begin, kill, go on; returns how many results were there when the driver died."""
    driver = begin(folder, "killed", engine)
    wait_for_results(folder / "killed")
    if also_worker:
        time.sleep(moment / 2)
        workers = [pid for pid in descendants(driver.pid) if is_worker(pid)]
        if workers:
            os.kill(rng.choice(workers), signal.SIGKILL)
        moment /= 2
    time.sleep(moment)
    driver.kill()
    driver.wait()
    done = len(list((folder / "killed").glob("results/*/*.json")))
    assert begin(folder, "killed", engine).wait() == 0
    return done


def lose_node(folder: Path, moment: float, rng: random.Random) -> int:
    """Run on three nodes of which one is killed; returns how many results were there then."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False}
    cluster, done = Cluster(initialize_head=True, head_node_args=head), []
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]

    def kill() -> None:
        wait_for_results(folder / "killed")
        time.sleep(moment)
        done.append(len(list((folder / "killed").glob("results/*/*.json"))))
        cluster.remove_node(rng.choice(nodes), allow_graceful=False)

    thread = threading.Thread(target=kill)
    thread.start()
    options = RunOptions(engine="ray", address=cluster.address)
    fleet(folder / "traces", folder / "killed", run=options)
    thread.join()
    cluster.shutdown()
    return done[0]


def wait_for_results(study: Path) -> float:
    """The time when the first result is there."""
    while not any(study.glob("results/*/*.json")):
        time.sleep(0.005)
    return time.monotonic()


def begin(folder: Path, out: str, engine: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "paceline", "fleet", str(folder / "traces")]
    command += ["-o", str(folder / out), "--engine", engine]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def equal(first: Study, second: Study) -> bool:
    jobs = [study.jobs.drop_columns(VARYING) for study in (first, second)]
    return bool(jobs[0].equals(jobs[1]) and first.steps.equals(second.steps))


def descendants(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    children = [int(number) for number in text.split()]
    return children + [other for child in children for other in descendants(child)]


def is_worker(pid: int) -> bool:
    try:
        return b"paceline.fleet.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def make_traces(folder: Path, n: int) -> None:
    folder.mkdir()
    rng = random.Random(0)
    for seed in range(n):
        slow = (SlowWorker(rng.randrange(4), rng.randrange(2), rng.uniform(1.2, 2)),)
        spec = SynthSpec(
            dp=4, pp=2, microbatches=8, steps=5, seed=seed, slow_workers=slow * (seed % 2)
        )
        write(synthesize(spec), folder / f"trace-{seed:04d}.parquet")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=100)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--nodes", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
