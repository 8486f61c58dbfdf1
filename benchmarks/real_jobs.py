"""S of real jobs against measured times: ``python benchmarks/real_jobs.py [CASE ...]``.

Each case runs with a slow rank, with all ranks at the mean, and healthy, in the same minute; four
gloo ranks, layers that sleep 30 ms. True S is slow over level, the true gain of the rank's repair
slow over healthy. Run it on a quiet machine.

With ``--remedies`` the changes of programs are held against jobs that torch runs with the change:
parameters that are kept or gathered ahead, gradients that are reduced once. Layers sleep 60 ms and
have 4 MB. Both jobs of a pair run in turn; the noise is the spread of the first one's rounds.

With ``--nic 16`` Linux paces what rank 1 sends to 16 MB/s in the second half of the steps. True S
is their median over that of the first half.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

import paceline
from paceline.diagnose import diagnose
from paceline.errors import NotApplicableError
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case, advise
from paceline.sources import kineto

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "real_jobs"))

from harness import WORLD, Job, factors_of, run, run_all

#: DeepSpeed's, which is not among Paceline's dependencies: name them.
ZERO = ("zero1", "zero2", "zero2-accumulate", "zero3", "zero3-prefetch", "zero3-single")
ZERO += ("zero3-hpz", "zero3-qwz", "zero3-qgz", "zero3-plusplus")
#: Megatron-Core's, likewise: DDP with the distributed optimizer, pipelines, both.
MEGATRON = ("megatron-ddp", "megatron-overlap", "megatron-1f1b", "megatron-interleaved")
MEGATRON += ("megatron-p2p", "megatron-flush", "megatron-both", "megatron-align", "megatron-ahead")
MEGATRON += ("megatron-experts", "megatron-experts-plain")
CASES = ("fsdp", "fsdp-accumulate", "fsdp-mixed", "hsdp", "ddp", "ddp-one", "ddp-accumulate")
CASES += ("fsdp-keep", "fsdp-prefetch1", "fsdp-prefetch2", "fsdp-unshard")
CASES += ("1f1b", "interleaved", "zb-h1", "zbv", "dualpipev")
CASES += ("pp-fsdp", "tp", "tp-sums", "tp-fsdp", "ep", "cp", "cp-odd")
#: Cases of another number of ranks.
WORLDS = {"cp-odd": 3}


def analysed(folder, profiled):
    """The analysis of a recording, the causes and the gain of the worst rank's replacement."""
    if profiled:
        trace = kineto.read(sorted(folder.glob("rank*.json"))).trace
    else:
        trace = paceline.load(folder / "run")
    measured = from_trace(trace)
    result = paceline.analyze(measured)
    diagnosis = diagnose(measured, result)
    advice = advise(Case(measured, result, diagnosis), REMEDIES)
    gains = [1 / (1 - r.gain) for r in advice.remedies if r.remedy == "replace-worker"]
    causes = [f.cause for f in diagnosis.findings if f.cause != "unexplained"]
    return result, causes, f"{gains[0]:.2f}" if gains else "-"


#: Remedy -> the case it is promised for, the case that has it, and its options.
CHANGES = (
    ("keep-parameters", "fsdp-wide", "fsdp-wide-keep", {}),
    ("prefetch", "fsdp-wide", "fsdp-wide-prefetch1", {"distance": 1}),
    ("accumulate", "fsdp-wide-each", "fsdp-wide-accumulate", {}),
    ("accumulate", "ddp-wide-each", "ddp-wide-accumulate", {}),
)


def promised(folder, name, options):
    """The step that a remedy promises for a recording, seconds; None where it does not apply."""
    measured = from_trace(paceline.load(folder / "run"))
    result = paceline.analyze(measured)
    case = Case(measured, result, diagnose(measured, result), None, None, options)
    (kind,) = [kind for kind in REMEDIES if kind.name == name]
    try:
        remedy = kind.proposed(case)
    except NotApplicableError:
        return None
    # What passes between operations is not in the promise where it is little.
    return remedy.step_time_s + float(result.traced_s.mean() - case.before.mean_s)


def remedies(rounds):
    """Promised and measured steps with a change, in turn with the job without it."""
    print(
        f"{'remedy':18}{'case':18}{'now':>8}{'noise':>8}{'promised':>10}{'measured':>10}{'off':>7}"
    )
    for name, case, changed, options in CHANGES:
        now, promises, true = [], [], []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary)
                now.append(run(case, folder / "now", [1.0] * 4, recorded=True).step_s)
                true.append(run(changed, folder / "then", [1.0] * 4, recorded=True).step_s)
                promises.append(promised(folder / "now", name, options))
        told = [promise for promise in promises if promise is not None]
        if not told:
            print(f"{name:18}{case:18} does not apply")
            continue
        off = median(told) / median(true) - 1
        print(
            f"{name:18}{case:18}{median(now):8.3f}{(max(now) - min(now)) / median(now):8.1%}"
            f"{median(told):10.3f}{median(true):10.3f}{off:+7.1%}",
            flush=True,
        )


#: With ``--nic``: cases, and the factor of the layers' sleeps.
SLOW_NICS = {"1f1b-middle": 1.0, "hsdp-middle": 1.0, "ddp-middle": 1.0, "fsdp-middle": 1.0}


def slow_nics(rate):
    """One rank's sends paced by the kernel in half of the steps: said against measured."""
    steps, slow_from = 15, 8
    print(f"{'case':14}{'true S':>8}{'S lasts':>9}{'step':>7}{'without':>9}{'said':>8}  findings")
    for case, factor in SLOW_NICS.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder, slow = Path(temporary), list(range(slow_from, steps))
            job = Job(case, folder, [factor] * WORLD, "recorded", steps, [(1, rate, slow)])
            (told,) = run_all([job])
            trace = paceline.load(folder / "run").select_steps(slow)
        healthy_s, slow_s = median(told.times[: slow_from - 2]), median(told.times[slow_from - 2 :])
        measured = from_trace(trace)
        result = paceline.analyze(measured)
        diagnosis = diagnose(measured, result)
        advice = advise(Case(measured, result, diagnosis), REMEDIES)
        said = [r.step_time_s for r in advice.remedies if r.remedy in ("fix-nic", "fix-link")]
        print(
            f"{case:14}{slow_s / healthy_s:8.2f}{result.lasting.slowdown:9.2f}{slow_s:7.3f}"
            f"{healthy_s:9.3f}{said[0] if said else float('nan'):8.3f}  "
            + "; ".join(f.text for f in diagnosis.findings if f.cause != "unexplained"),
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=CASES, metavar="CASE")
    parser.add_argument("--factor", type=float, default=2.0, help="of the slow rank's times")
    parser.add_argument("--kineto", action="store_true", help="torch's profiler, not the recorder")
    parser.add_argument("--remedies", action="store_true", help="changes of programs")
    parser.add_argument("--rounds", type=int, default=5, help="of each pair, with --remedies")
    parser.add_argument("--nic", type=float, metavar="MB/S", help="one rank's sends are so slow")
    args = parser.parse_args()
    if args.nic:
        slow_nics(round(args.nic * 1e6))
        return
    if args.remedies:
        remedies(args.rounds)
        return
    how = {"profiled": True} if args.kineto else {"recorded": True}
    print(
        f"{'case':16}{'true S':>8}{'S lasts':>9}{'S':>7}{'off':>7}{'gain':>7}{'said':>7}"
        f"{'discr.':>8}{'rank':>6}  healthy: S lasts, S, discr., findings"
    )
    for case in args.cases or CASES:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            slow, level, healthy = factors_of(args.factor, WORLDS.get(case, WORLD))
            of_slow = run(case, folder / "slow", slow, **how).step_s
            of_level = run(case, folder / "level", level, profiled=args.kineto).step_s
            of_healthy = run(case, folder / "healthy", healthy, **how).step_s
            result, _, said = analysed(folder / "slow", args.kineto)
            other, causes, _ = analysed(folder / "healthy", args.kineto)
        true, lasts = of_slow / of_level, result.lasting.slowdown
        print(
            f"{case:16}{true:8.2f}{lasts:9.2f}{result.slowdown:7.2f}{lasts / true - 1:+7.0%}"
            f"{of_slow / of_healthy:7.2f}{said:>7}{result.discrepancy:8.1%}"
            f"{int(result.lasting.by_worker.argmax()):>6}  {other.lasting.slowdown:.2f}, "
            f"{other.slowdown:.2f}, {other.discrepancy:.1%}, {', '.join(causes) or 'none'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
