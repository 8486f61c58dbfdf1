"""Remedies of FSDP and DDP programs against the changed jobs: ``python benchmarks/programs.py``.

Random jobs (tests/sharded_jobs.py: another simulator, event by event) are traced and analysed; each
promise is held against the job whose program is really changed. So are jobs whose passes hold
collectives of tensor-, expert- or context-parallel ranks (tests/peer_jobs.py): a slow GPU of a
group, a slow connection, uneven experts or sequences, each against the same job without it. Uneven
experts are drawn by ``paceline synth``, too, in pipelines, several groups and microbatches, beside
slow workers, pauses and sequences that stay. Prints
the errors of the promised steps in % of the true ones, gains of the wrong sign, and how many true
gains lie in the interval.
The second table holds what is said of the arrangement of communication against the job run without
those transfers.
"""

import argparse
import random
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from paceline.diagnose import diagnose
from paceline.errors import NotApplicableError
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case
from paceline.synth import Layers, SlowWorker, SynthSpec, synthesize
from paceline.trace import Job
from paceline.trace.door import arrange
from paceline.whatif import analyze

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from peer_jobs import even, runs, tokens
from program_jobs import columns_of
from sharded_jobs import BucketedJob, ShardedJob

KINDS = {kind.name: kind for kind in REMEDIES}


def random_sharded(seed):
    rng = random.Random(f"sharded/{seed}")
    dp = rng.choice((2, 4, 8))
    return ShardedJob(
        units=rng.randint(2, 10),
        dp=dp,
        microbatches=rng.randint(1, 3),
        ahead=rng.choice((0, 0, 0, 1, 2)),
        blocking=rng.random() < 0.4,
        reshard=rng.random() < 0.8,
        every=rng.random() < 0.7,
        blocking_scatters=rng.random() < 0.4,
        gather_s=rng.uniform(0.002, 0.06),
        scatter_s=rng.uniform(0.002, 0.06),
        forward_s=rng.uniform(0.01, 0.05),
        uneven=rng.uniform(0, 0.5),
        **_faults(rng, dp),
        seed=seed,
    )


def random_bucketed(seed):
    rng = random.Random(f"bucketed/{seed}")
    dp = rng.choice((2, 4, 8))
    return BucketedJob(
        layers=64,
        per_bucket=rng.choice((8, 16, 32, 64)),
        dp=dp,
        microbatches=rng.randint(1, 3),
        latency_s=rng.choice((0.0, 0.001, 0.005, 0.02)),
        layer_s=rng.uniform(0.0003, 0.008),
        backward_s=rng.uniform(0.001, 0.008),
        every=rng.random() < 0.5,
        **_faults(rng, dp),
        seed=seed,
    )


def _faults(rng, dp):
    slow = {rng.randrange(dp): rng.uniform(1.1, 2)} if rng.random() < 0.4 else {}
    pause_s = rng.uniform(0, 0.02) if rng.random() < 0.4 else 0.0
    return {"jitter": rng.choice((0.01, 0.05, 0.15)), "slow": slow, "pause_s": pause_s}


#: What is uneven or slow -> the remedy that takes it away.
PEER_REMEDIES = {
    "gpu": "replace-worker",
    "connection": "fix-peer-network",
    "experts": "balance-experts",
    "sequences": "balance-context",
}


def random_peers(seed):
    """(cause, steps of a job with it, steps of the job without it)."""
    rng = random.Random(f"peers/{seed}")
    cause = rng.choice(sorted(PEER_REMEDIES))
    of_group = cause in ("gpu", "connection")
    dp, peers = (rng.choice((2, 4)), rng.choice((2, 4, 8))) if of_group else (4, 1)
    dp, peers = (1, 4) if cause == "sequences" else (dp, peers)
    slow, factor = rng.randrange(dp * peers), rng.uniform(1.1, 2.0)
    times = rng.uniform(2.0, 6.0)

    def slow_gpu(step, replica, nth, label):
        return factor if replica == slow and label.endswith("compute") else 1.0

    def slow_connection(step, replica, nth, label):
        here = replica // peers == slow // peers
        return times if here and label == "tensor-comm" else 1.0

    faulty = {"gpu": slow_gpu, "connection": slow_connection}.get(cause)
    kind = {"experts": "expert-comm", "sequences": "context-comm"}.get(cause, "tensor-comm")
    shape = {"dp": dp, "peers": peers, "jitter": rng.choice((0.01, 0.03, 0.1)), "seed": seed}
    with_it = runs(kind, faulty or tokens(rng.uniform(0.2, 0.9)), **shape)
    return cause, with_it, runs(kind, even, **shape)


def _context_job(cause):
    """The degrees, where rows do not tell them: peers are tensor-parallel unless a job says so."""
    return Job(1, 1, dsp_size=4, world_size=4) if cause == "sequences" else None


def peer_promise(seed):
    """(remedy, its promise or None, seconds of the job now, of the job without the cause)."""
    cause, now, without = random_peers(seed)
    remedy = KINDS[PEER_REMEDIES[cause]]
    try:
        promise = remedy.proposed(_case(arrange(columns_of(now), _context_job(cause))))
    except NotApplicableError:
        promise = None
    now_s, true_s = (float(np.mean([run.step_s for run in some])) for some in (now, without))
    return f"{remedy.name} ({cause})", promise, now_s, true_s


def random_experts(seed):
    """A job whose experts get unequal numbers of tokens, with other faults that stay."""
    rng = random.Random(f"experts/{seed}")
    ep = rng.choice((2, 4, 8))
    dp, pp = max(4, ep * rng.choice((1, 2))), rng.choice((1, 1, 2))
    layers = Layers(
        rng.randint(1, 5),
        ep=ep,
        fsdp=rng.random() < 0.3,
        expert_imbalance=rng.uniform(0.1, 0.6),
    )
    noise = rng.choice((0.01, 0.03, 0.1))
    slow = SlowWorker(rng.randrange(dp), rng.randrange(pp), rng.uniform(1.1, 1.6))
    return SynthSpec(
        dp=dp,
        pp=pp,
        microbatches=pp * rng.choice((1, 2, 4)),
        steps=8,
        layers=layers,
        noise=noise,
        slow_workers=(slow,) if rng.random() < 0.35 else (),
        gc_pauses=(0.01, 0.3) if rng.random() < 0.2 else None,
        sequence_imbalance=rng.uniform(0.05, 0.2) if rng.random() < 0.2 else 0.0,
        seed=seed,
    )


def experts_promise(seed):
    """(its promise or None, seconds of the job now, of the job with even experts)."""
    spec = random_experts(seed)
    even_ones = replace(spec, layers=replace(spec.layers, expert_imbalance=0.0))
    now, without = synthesize(spec), synthesize(even_ones)
    try:
        promise = KINDS["balance-experts"].proposed(_case(now))
    except NotApplicableError:
        promise = None
    now_s, true_s = (float(np.mean(trace.truth["step_s"])) for trace in (now, without))
    return promise, now_s, true_s


def case_of(job, **options):
    return _case(job.trace(), **options)


def _case(trace, **options):
    measured = from_trace(trace, keep_clocks=True)
    result = analyze(measured)
    return Case(measured, result, diagnose(measured, result), None, None, options)


def changed(job, remedy):
    """The job with the change that a remedy names."""
    if remedy.remedy == "prefetch":
        return replace(job, ahead=max(job.ahead, remedy.change["distance"]), blocking=False)
    if remedy.remedy == "keep-parameters":
        return replace(job, reshard=False)
    if remedy.remedy == "accumulate":
        return replace(job, every=False)
    return replace(job, per_bucket=max(1, round(job.per_bucket * remedy.change["size"])))


def promises(job, **options):
    """The remedies of programs that apply."""
    case = case_of(job, **options)
    for name in ("prefetch", "keep-parameters", "accumulate", "bucket-size"):
        try:
            yield KINDS[name].proposed(case)
        except NotApplicableError:
            continue


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200, help="of each sort and seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="the first; others draw other jobs")
    args = parser.parse_args()
    jobs = range(args.seed * args.jobs, (args.seed + args.seeds) * args.jobs)
    rows, refused = defaultdict(list), defaultdict(list)

    def hold(name, remedy, now_s, true_s, seed):
        low, high = remedy.interval
        gain = 1 - true_s / now_s
        inside = low - 1e-9 <= gain <= high + 1e-9
        error = abs(remedy.step_time_s / true_s - 1)
        rows[name].append((error, gain, remedy.gain, inside, seed))

    for seed in jobs:
        sharded, bucketed = random_sharded(seed), random_bucketed(seed)
        told = {"latency_us": bucketed.latency_s * 1e6}
        for job, options, sort in (
            (sharded, {}, ""),
            (bucketed, told, " (latency told)"),
            (bucketed, {}, ""),
        ):
            now_s = job.step_s()
            for remedy in promises(job, **options):
                if sort and remedy.remedy != "bucket-size":
                    continue
                hold(remedy.remedy + sort, remedy, now_s, changed(job, remedy).step_s(), seed)
    for seed in jobs:
        name, *outcome = peer_promise(seed)
        for label, (promise, now_s, true_s) in (
            (name, outcome),
            ("balance-experts (synthesised)", experts_promise(seed)),
        ):
            if promise is None:
                refused[label].append(1 - true_s / now_s)
            else:
                hold(label, promise, now_s, true_s, seed)
    print(
        f"{'remedy':32}{'applied':>8}{'median':>8}{'95%':>7}{'largest':>9}{'over 3%':>9}"
        f"{'wrong sign':>12}{'in interval':>13}"
    )
    for name, table in sorted(rows.items()):
        error, gain, _, inside, seeds = (np.array(column) for column in zip(*table, strict=True))
        print(
            f"{name:32}{len(table):8}{np.median(error):8.1%}{np.quantile(error, 0.95):7.1%}"
            f"{error.max():9.1%}{(error > 0.03).sum():9}{(gain < -1e-9).sum():12}"
            f"{inside.mean():13.0%}   worst seed {seeds[error.argmax()]}"
        )
    for name, gains in sorted(refused.items()):
        print(f"{name}: refused in {len(gains)}, largest true gain {max(gains):.1%}")


if __name__ == "__main__":
    main()
