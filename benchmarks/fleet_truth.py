"""Are the rows of a study right? Causes against what was injected, numbers against ``analyze``.

    python benchmarks/fleet_truth.py [--synth 300] [--foreign 30] [--sample 20]

The fleet has traces of ``paceline.synth`` with drawn causes, and traces of the world under
``tests/world``, which shares no code with Paceline. Of straggling jobs (S >= 1.1) the column
``cause`` must be what was injected. Of a sample, each number must be that of ``paceline analyze
--json``, asked in a process of its own, to 1e-9.
"""

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from truth.case import injected
from truth.cases_remedies import faulty_cases
from truth.product import trace_of

from paceline.fleet.run import RunOptions, fleet
from paceline.sources import write
from paceline.synth import SlowLink, SlowNic, SlowWorker, SynthSpec, synthesize
from world.record import rows_of, simulate

STRAGGLING = 1.1


def main() -> int:
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "traces").mkdir()
        truth = make_synth(folder / "traces", args.synth, args.seed)
        truth |= make_foreign(folder / "traces", args.foreign, args.seed)
        processes = None if args.engine == "ray" else args.processes
        options = RunOptions(args.engine, processes=processes)
        study = fleet(folder / "traces", folder / "study", run=options)
        print("rows:", study.about["counts"])
        rows = {Path(row["path"]).name: row for row in study.jobs.to_pylist()}
        for begin in ("trace-s", "trace-f"):
            print(
                begin, right_causes({n: r for n, r in rows.items() if n.startswith(begin)}, truth)
            )
        worst = max(difference(rows[n]) for n in random.Random(0).sample(sorted(rows), args.sample))
        print(f"largest relative difference from analyze --json in {args.sample} jobs: {worst:.1e}")
        return 0 if worst <= 1e-9 else 1


def right_causes(rows: dict[str, dict], truth: dict[str, set[str]]) -> str:
    """Of the straggling jobs that count, how many causes are among those injected."""
    straggling = {
        name: row
        for name, row in rows.items()
        if row["status"] == "analysed" and row["slowdown"] >= STRAGGLING
    }
    wrong = {n: row["cause"] for n, row in straggling.items() if row["cause"] not in truth[n]}
    listed = "".join(f"\n  {n}: {cause}, not {sorted(truth[n])}" for n, cause in wrong.items())
    return f"{len(straggling) - len(wrong)} of {len(straggling)} straggling jobs right{listed}"


def difference(row: dict) -> float:
    """The largest relative difference of a row's numbers from those of a lone analysis."""
    command = [sys.executable, "-m", "paceline", "analyze", row["path"], "--json"]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    names = ("slowdown", "waste", "discrepancy", "m_w", "m_s", "m_w_only", "m_s_only")
    pairs = [(row[name], result[name]) for name in (*names, "replay_error", "launch_slowdown")]
    by_kind = dict(row["slowdown_by_kind"])
    pairs += [(by_kind[kind], value) for kind, value in result["by_kind"].items()]
    findings = zip(row["causes"], result["findings"], strict=True)
    pairs += [(mine[key], its[key]) for mine, its in findings for key in ("share", "share_of_step")]
    gains = [remedy["gain"] for remedy in result["remedies"] if remedy["gain"] > 0]
    pairs.append((row["remedy_gain"], max(gains, default=None)))
    return max(far_apart(*pair) for pair in pairs)


def far_apart(first: float | None, second: float | None) -> float:
    if first is None or second is None:
        return 0.0 if first is second else math.inf
    return abs(first - second) / max(abs(second), 1e-12)


def make_synth(folder: Path, n: int, seed: int) -> dict[str, set[str]]:
    """Traces by name with their causes."""
    rng, truth = random.Random(seed), {}
    for number in range(n):
        dp, pp = rng.choice([(2, 2), (4, 2), (4, 4), (8, 2), (8, 4)])
        at = (rng.randrange(dp), rng.randrange(pp))
        link = (at[0], rng.randrange(pp - 1))
        cause, options = rng.choice(
            [
                ("healthy", {}),
                ("worker", {"slow_workers": (SlowWorker(*at, rng.uniform(1.2, 2.5)),)}),
                ("link", {"slow_links": (SlowLink(*link, rng.uniform(20, 80)),)}),
                ("dp-network", {"slow_nics": (SlowNic(*at, rng.uniform(4, 12)),)}),
                ("stage-imbalance", {"slow_last_stage": (rng.uniform(1.3, 2), 1.4)}),
                ("sequence-length", {"sequence_imbalance": rng.uniform(0.15, 0.4)}),
                ("gc", {"gc_pauses": (0.03, rng.uniform(0.1, 0.4))}),
            ]
        )
        spec = SynthSpec(dp=dp, pp=pp, microbatches=8, steps=6, seed=number, **options)
        name = f"trace-s{number:04d}.parquet"
        write(synthesize(spec), folder / name)
        truth[name] = {cause}
    return truth


def make_foreign(folder: Path, n: int, seed: int) -> dict[str, set[str]]:
    """Traces of the world with one fault each."""
    truth = {}
    cases = [case for case in faulty_cases(seed) if not case.tags["second"] and case.size < 20_000]
    for number, case in enumerate(random.Random(seed).sample(cases, min(n, len(cases)))):
        job = simulate(case.world, case.setup)
        rows = rows_of(case.world, job)
        name = f"trace-f{number:04d}.parquet"
        write(trace_of(rows, case.world.dp, case.world.stages, case.setup.chunks), folder / name)
        truth[name] = set(injected(case.world, case.setup.layers)) or {"healthy"}
    return truth


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--synth", type=int, default=300)
    parser.add_argument("--foreign", type=int, default=30)
    parser.add_argument("--sample", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
