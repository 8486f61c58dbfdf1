"""What a study costs beside its analyses: time on two processes, going on, memory of the driver.

    python benchmarks/fleet.py [--traces 300] [--operations 100000] [--done 10000]

Overhead: the same traces are analysed in two processes with a plain loop in each, and by a study of
two processes; both start cold. Going on: results of ``--done`` traces are put in place by a canned
analysis, and a new driver finds that nothing is to do.
"""

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: Half of the traces, one after the other, in a process without any study.
LOOP = """
import sys
from pathlib import Path
from paceline.fleet.analysis import analyse
from paceline.fleet.keys import AnalysisOptions
for path in sys.argv[1:]:
    assert not analyse(Path(path), None, None, AnalysisOptions()).error
"""

#: Results without analyses: that of the first trace, under each trace's own key.
CANNED = """
import sys
from functools import cache
from paceline.fleet import perform
from paceline.fleet.run import RunOptions, fleet
analyse, first = perform.analyse, []
def canned(*arguments):
    if not first:
        first.append(analyse(*arguments))
    return first[0]
perform.analyse = canned
fleet(sys.argv[1], sys.argv[2], run=RunOptions(processes=0))
"""

GO_ON = """
import resource, sys, time
start = time.perf_counter()
from paceline.fleet.run import fleet
fleet(sys.argv[1], sys.argv[2])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"{time.perf_counter() - start:.1f} s, driver's peak {peak:.0f} MB")
"""


def main() -> None:
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.traces:
            overhead(folder, args)
        if args.done:
            go_on(folder, args.done)


def overhead(folder: Path, args: argparse.Namespace) -> None:
    n, operations = args.traces, args.operations
    paths = make_traces(folder / "traces", n, operations)
    env_command = [sys.executable, "-c", LOOP]
    for _ in range(args.rounds):
        halves = [[*env_command, *map(str, paths[i::2])] for i in range(2)]
        loop = measure(halves)
        command = [sys.executable, "-m", "paceline", "fleet", str(folder / "traces")]
        engine = ["--engine", "ray"] if args.engine == "ray" else ["--processes", "2"]
        study = measure([[*command, "-o", str(folder / "study"), *engine]])
        shutil.rmtree(folder / "study")
        print(
            f"{n} traces of {operations:,} operations on 2 processes: loops {loop[0]:.1f} s "
            f"({loop[1]:.1f} s of CPU), study {study[0]:.1f} s ({study[1]:.1f} s of CPU): "
            f"{study[0] / loop[0] - 1:+.1%} time, {study[1] / loop[1] - 1:+.1%} CPU",
            flush=True,
        )


def measure(commands: list[list[str]]) -> tuple[float, float]:
    """(seconds, seconds of CPU) of commands that run at the same time."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    for process in [subprocess.Popen(c, stdout=subprocess.DEVNULL) for c in commands]:
        assert process.wait() == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, cpu


def go_on(folder: Path, n: int) -> None:
    import pyarrow.parquet as pq

    (trace,) = make_traces(folder / "one", 1, 1000)
    table = pq.read_table(trace)
    (folder / "many").mkdir()
    for number in range(n):  # files that differ, so that no trace is a copy
        changed = table.replace_schema_metadata(
            {**(table.schema.metadata or {}), b"number": str(number).encode()}
        )
        pq.write_table(changed, folder / "many" / f"trace-{number:06d}.parquet")
    arguments = [str(folder / "many"), str(folder / "done")]
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", CANNED, *arguments], check=True)
    print(f"{n:,} results by a canned analysis: {time.perf_counter() - start:.1f} s")
    for what in ("nothing to do", "tables to make again"):
        done = subprocess.run(
            [sys.executable, "-c", GO_ON, *arguments], check=True, capture_output=True, text=True
        )
        print(f"going on with {n:,} done, {what}: {done.stdout.strip()}", flush=True)
        text = (folder / "done" / "study.json").read_text()
        (folder / "done" / "study.json").write_text(text.replace('"dataset": "', '"dataset": "x'))


def make_traces(folder: Path, n: int, operations: int) -> list[Path]:
    """Traces of about as many operations: 8 replicas of 4 stages, 8 microbatches."""
    from paceline.sources import write
    from paceline.synth import SlowWorker, SynthSpec, synthesize

    folder.mkdir()
    paths = []
    for seed in range(n):
        slow = (SlowWorker(3, 1, 1.5),) if seed % 2 else ()
        small = operations < 20_000
        dp, pp = (2, 2) if small else (8, 4)
        steps = max(1, round(operations / (dp * pp * 87 / (2 if small else 1))))
        spec = SynthSpec(dp=dp, pp=pp, microbatches=8, steps=steps, seed=seed, slow_workers=slow)
        paths.append(folder / f"trace-{seed:05d}.parquet")
        write(synthesize(spec), paths[-1])
    return paths


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=300)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--done", type=int, default=10_000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
