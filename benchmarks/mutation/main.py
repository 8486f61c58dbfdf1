"""Sample, judge, tell: the command line of the mutation run."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from queue import Empty
from statistics import NormalDist
from typing import Any

from mutation.covering import Tests, measured
from mutation.mutants import PACKAGES, Mutant, sample
from mutation.trial import KILLED, SURVIVED, TIMEOUT, UNTESTED, Outcome, load_ahead, tried

ROOT = Path(__file__).parents[2]


def main() -> int:
    arguments = _parser().parse_args()
    scratch = Path(arguments.scratch or tempfile.mkdtemp(prefix="paceline-mutants-"))
    clean = _copied(scratch / "clean")
    copies = [_copied(scratch / f"worker{number}") for number in range(arguments.jobs)]
    os.environ.setdefault("PACELINE_SHARED", str(ROOT.parent / "shared"))
    tests = measured(clean, scratch / "tests.json", arguments.jobs)
    if arguments.again:
        mutants = list(_survivors(clean, Path(arguments.again)))
    else:
        packages = arguments.package or PACKAGES
        samples = [sample(clean, package, arguments.sample, arguments.seed) for package in packages]
        # In turn, so that a run that is cut short says something of all.
        turns = zip_longest(*samples)
        mutants = [mutant for turn in turns for mutant in turn if mutant]
    if arguments.unchanged:
        mutants = [replace(mutant, new=mutant.old) for mutant in mutants]
    outcomes = []
    for outcome in _judged(mutants, copies, tests, arguments.budget):
        outcomes.append(outcome)
        _progress(outcome, len(outcomes), len(mutants))
        if arguments.json:
            _write(Path(arguments.json), outcomes, arguments)
    _show(outcomes)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Mutants of the packages that compute.")
    parser.add_argument("--package", action="append", choices=PACKAGES, help="default: all")
    parser.add_argument("--sample", type=int, default=60, help="mutants a package (60)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (1)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests a mutant (60)")
    parser.add_argument("--scratch", help="folder to keep: copies, and which test runs which line")
    parser.add_argument("--json", metavar="FILE", help="write every outcome here")
    parser.add_argument("--again", metavar="FILE", help="only the survivors in such a file")
    parser.add_argument(
        "--unchanged", action="store_true", help="change nothing: what dies is a false kill"
    )
    return parser


def _copied(place: Path) -> Path:
    """A fresh copy of the files that git knows or would add."""
    listing = subprocess.run(
        ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"),
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    shutil.rmtree(place, ignore_errors=True)
    for name in filter(None, listing.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    return place.resolve()


def _survivors(root: Path, report: Path) -> Iterator[Mutant]:
    """The survivors of a run, where their lines are now; those whose lines are gone are said."""
    outcomes = json.loads(report.read_text(encoding="utf-8"))["outcomes"]
    fields = [
        outcome["mutant"] for outcome in outcomes if outcome["verdict"] in (SURVIVED, UNTESTED)
    ]
    for values in fields:
        mutant = Mutant(**{**values, "old": tuple(values["old"]), "new": tuple(values["new"])})
        try:
            yield mutant.moved((root / mutant.path).read_text(encoding="utf-8"))
        except LookupError as error:
            print(error, file=sys.stderr)


def _judged(
    mutants: Sequence[Mutant], copies: Sequence[Path], tests: Tests, budget_s: float
) -> Iterator[Outcome]:
    """Outcomes as they come, one worker process per copy."""
    context = multiprocessing.get_context("fork")
    waiting, done = context.Queue(), context.Queue()
    for mutant in mutants:
        waiting.put(mutant)
    for _ in copies:
        waiting.put(None)
    workers = [
        context.Process(target=_work, args=(waiting, done, copy, tests, budget_s))
        for copy in copies
    ]
    for worker in workers:
        worker.start()
    for _ in mutants:
        yield _next(done, workers)
    for worker in workers:
        worker.join()


def _next(done: Any, workers: Sequence[Any]) -> Outcome:
    while True:
        try:
            outcome: Outcome = done.get(timeout=5)
            return outcome
        except Empty:
            if not any(worker.is_alive() for worker in workers):
                raise SystemExit("the workers died; their messages are above") from None


def _work(waiting: Any, done: Any, copy: Path, tests: Tests, budget_s: float) -> None:
    os.environ["PYTHONPATH"] = str(copy / "src")
    os.environ["NUMBA_CACHE_DIR"] = str(copy / ".numba")
    load_ahead()
    while (mutant := waiting.get()) is not None:
        done.put(tried(mutant, copy, tests, budget_s))


def _progress(outcome: Outcome, count: int, total: int) -> None:
    mutant = outcome.mutant
    print(
        f"{count}/{total} {outcome.verdict:8} {outcome.seconds:5.1f} s {outcome.tests:4} tests"
        f"  {mutant.path}:{mutant.line}  {mutant.new[0].strip()}",
        file=sys.stderr,
        flush=True,
    )


def _write(path: Path, outcomes: Sequence[Outcome], arguments: argparse.Namespace) -> None:
    document = {
        "arguments": vars(arguments),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")


def _show(outcomes: Sequence[Outcome]) -> None:
    for outcome in sorted(outcomes, key=lambda outcome: (outcome.mutant.path, outcome.mutant.line)):
        if outcome.verdict in (SURVIVED, UNTESTED):
            mutant = outcome.mutant
            print(f"{mutant.path}:{mutant.line}  {outcome.verdict}, {outcome.tests} tests")
            print("\n".join([f"  - {line.strip()}" for line in mutant.old]))
            print("\n".join([f"  + {line.strip()}" for line in mutant.new]))
    print(f"\n{'package':10} {'mutants':>7} {'killed':>6} {'timeout':>7} {'survived':>8}  score")
    for package in (*PACKAGES, "all"):
        verdicts = [
            outcome.verdict for outcome in outcomes if package in ("all", _package(outcome))
        ]
        if verdicts:
            _row(package, verdicts)


def _package(outcome: Outcome) -> str:
    return Path(outcome.mutant.path).relative_to("src/paceline").parts[0].removesuffix(".py")


def _row(package: str, verdicts: Sequence[str]) -> None:
    total = len(verdicts)
    killed, timeout = verdicts.count(KILLED), verdicts.count(TIMEOUT)
    low, high = wilson(killed + timeout, total)
    print(
        f"{package:10} {total:7} {killed:6} {timeout:7} {total - killed - timeout:8}"
        f"  {(killed + timeout) / total:.1%} ({low:.1%} to {high:.1%})"
    )


def wilson(successes: int, total: int, level: float = 0.9) -> tuple[float, float]:
    """Wilson's interval of a share; with every mutant drawn it says more than it must."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = successes / total
    middle = share + z * z / (2 * total)
    half = z * (share * (1 - share) / total + z * z / (4 * total * total)) ** 0.5
    scale = 1 + z * z / total
    return (middle - half) / scale, (middle + half) / scale
