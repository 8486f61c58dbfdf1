"""Remedies of FSDP and DDP programs against the same jobs, run with the change."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import paceline
from paceline.diagnose import diagnose
from paceline.errors import NotApplicableError, RemedyError
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case, advise
from paceline.synth import SynthSpec, synthesize
from paceline.whatif import analyze
from program_jobs import Compute, Launch, Run, Wait, trace_of_runs
from sharded_jobs import BucketedJob, ShardedJob

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from programs import changed, promises, random_bucketed, random_sharded

#: How far a promised step may be from the true one.
CLOSE = 0.03

KINDS = {kind.name: kind for kind in REMEDIES}
GATHER, SCATTER = "params-all-gather", "grads-reduce-scatter"


def case_of(trace, **options):
    measured = from_trace(trace, keep_clocks=True)
    result = analyze(measured)
    return Case(measured, result, diagnose(measured, result), None, None, options)


def remedy_of(name, job, **options):
    return KINDS[name].proposed(case_of(job.trace(), **options))


def refusal(name, job, **options):
    with pytest.raises(NotApplicableError) as error:
        remedy_of(name, job, **options)
    return str(error.value)


def by_hand(program, seconds):
    """A job of two ranks that run one program; times by kind and part."""
    kinds = [step for step in program if not isinstance(step, Wait)]
    took = [seconds[step.kind, step.part] for step in kinds]
    return trace_of_runs([Run({(dp, 0): program for dp in range(2)}, lambda key: took[key[2]])] * 4)


def two_units(kept=False):
    """Gathers and computes of a forward and a backward of two units."""
    program = []
    for way, units in (("forward", (0, 1)), ("backward", (1, 0))):
        for unit in units:
            name = (way, unit)
            if way == "forward" or not kept:
                program += [Launch(GATHER, name, unit), Wait(name)]
            program += [Compute(f"{way}-compute", 0, 0, 2 * unit)]
    return program


def test_a_pause_of_the_host_stays_where_a_gather_vanishes():
    """A host launches each gather 0.1 s late, and sleeps 4 s before the backward in two of 8 steps.

    The gathers take their launches with them; the host sleeps in the changed job, too.
    """
    seconds = {(GATHER, 0): 1.0, (GATHER, 1): 2.0}
    seconds |= {(f"{way}-compute", part): 3.0 for way in ("forward", "backward") for part in (0, 2)}

    def run(step, kept):
        program = two_units(kept)
        ops = [one for one in program if not isinstance(one, Wait)]
        launch_s = [0.1 if one.kind == GATHER else 0.0 for one in ops]
        first = next(n for n, one in enumerate(ops) if n > 3 and one.kind != "forward-compute")
        launch_s[first] += 4.0 if step % 4 == 1 else 0.0
        return Run(
            {(dp, 0): program for dp in range(2)},
            lambda key: seconds[ops[key[2]].kind, ops[key[2]].part],
            lambda key: launch_s[key[2]],
        )

    now, kept = ([run(step, changed) for step in range(8)] for changed in (False, True))
    remedy = KINDS["keep-parameters"].proposed(case_of(trace_of_runs(now)))
    true_s = sum(one.step_s for one in kept) / 8
    assert sum(one.step_s for one in now) / 8 - true_s == pytest.approx(3.2)
    assert remedy.step_time_s == pytest.approx(true_s)


def test_jitter_of_a_launch_goes_with_its_gather():
    """Launches of gathers take 0.1 to 0.5 s, at random: this is no pause of the host."""
    seconds = {(GATHER, 0): 1.0, (GATHER, 1): 2.0}
    seconds |= {(f"{way}-compute", part): 3.0 for way in ("forward", "backward") for part in (0, 2)}

    def run(step, kept):
        program = two_units(kept)
        ops = [one for one in program if not isinstance(one, Wait)]
        rng = random.Random(step)
        launch_s = {("forward", 0): 0.1, ("forward", 1): 0.1}
        launch_s |= {("backward", unit): rng.uniform(0.1, 0.5) for unit in (1, 0)}
        return Run(
            {(dp, 0): program for dp in range(2)},
            lambda key: seconds[ops[key[2]].kind, ops[key[2]].part],
            lambda key: launch_s[ops[key[2]].name] if ops[key[2]].kind == GATHER else 0.0,
        )

    now, kept = ([run(step, changed) for step in range(12)] for changed in (False, True))
    remedy = KINDS["keep-parameters"].proposed(case_of(trace_of_runs(now)))
    assert remedy.step_time_s == pytest.approx(sum(one.step_s for one in kept) / 12)


def test_prefetch_by_hand():
    """Gathers of 1 and 2 s before forwards of 3 s, again before backwards of 3 s.

    Now: 1 + 3 + 2 + 3 + 2 + 3 + 1 + 3. One unit ahead both gathers but the first of each pass hide:
    1 + 3 + 3 + 2 + 3 + 3.
    """
    seconds = {(GATHER, 0): 1.0, (GATHER, 1): 2.0}
    seconds |= {(f"{way}-compute", part): 3.0 for way in ("forward", "backward") for part in (0, 2)}
    case = case_of(by_hand(two_units(), seconds))
    assert case.before.mean_s == pytest.approx(18.0)
    remedy = KINDS["prefetch"].proposed(case)
    assert remedy.step_time_s == pytest.approx(15.0)
    assert remedy.change["distance"] == 1  # two units ahead gain no more
    assert any("memory" in note for note in remedy.notes)
    kept = KINDS["keep-parameters"].proposed(case)
    assert kept.step_time_s == pytest.approx(15.0)
    assert kept.change == {"gathers_dropped": 2, "gathers": 4}
    assert any("memory" in note for note in kept.notes)


@pytest.mark.parametrize("distance", [1, 2, 3])
@pytest.mark.parametrize("blocking", [False, True])
def test_prefetch_is_the_job_run_so_many_units_ahead(distance, blocking):
    job = ShardedJob(gather_s=0.06, blocking=blocking, blocking_scatters=blocking, jitter=0.1)
    remedy = remedy_of("prefetch", job, distance=distance)
    ahead = replace(job, ahead=distance, blocking=False)
    assert remedy.step_time_s == pytest.approx(ahead.step_s(), rel=1e-9)


def test_kept_parameters_are_the_job_that_gathers_once():
    job = ShardedJob(microbatches=3, slow={1: 1.4}, jitter=0.1)
    remedy = remedy_of("keep-parameters", job)
    assert remedy.step_time_s == pytest.approx(replace(job, reshard=False).step_s(), rel=1e-9)


@pytest.mark.parametrize("job", [ShardedJob, BucketedJob])
def test_accumulated_gradients_are_the_job_that_reduces_once(job):
    blocking = {"blocking_scatters": True} if job is ShardedJob else {}
    each = job(microbatches=3, jitter=0.1, **blocking)
    remedy = remedy_of("accumulate", each)
    assert remedy.step_time_s == pytest.approx(replace(each, every=False).step_s(), rel=1e-9)
    assert any("memory" in note for note in remedy.notes) == (job is ShardedJob)


@pytest.mark.parametrize(("per_bucket", "size"), [(16, 0.25), (4, 0.5), (1, 4.0), (1, 2.0)])
def test_buckets_of_another_size(per_bucket, size):
    latency_s = 0.02 if size > 1 else 0.002
    job = BucketedJob(per_bucket=per_bucket, latency_s=latency_s)
    remedy = remedy_of("bucket-size", job, latency_us=latency_s * 1e6, bucket_size=size)
    true_s = replace(job, per_bucket=round(per_bucket * size)).step_s()
    assert remedy.step_time_s == pytest.approx(true_s, rel=0.01)


@pytest.mark.parametrize("seed", range(16))
def test_no_promise_is_far_off_or_of_the_wrong_sign(seed):
    bucketed = random_bucketed(seed)
    for job, options in (
        (random_sharded(seed), {}),
        (bucketed, {}),
        (bucketed, {"latency_us": bucketed.latency_s * 1e6}),
    ):
        now_s = job.step_s()
        for remedy in promises(job, **options):
            true_s = changed(job, remedy).step_s()
            # A pass that reduces nothing does not say where its last unit begins: it stays.
            least = -0.1 if remedy.remedy == "prefetch" and job.blocking else -CLOSE
            assert least <= true_s / remedy.step_time_s - 1 <= CLOSE, remedy
            assert true_s < now_s


def test_gathers_of_another_microbatch_are_needed_again():
    """A backward gives the parameters back, so each forward gathers: nothing vanishes."""
    text = refusal("keep-parameters", ShardedJob(microbatches=2, reshard=False))
    assert "no parameters are gathered again" in text


def test_parameters_stay_while_forwards_come_one_behind_the_other():
    """Forwards of two microbatches, then their backwards: one gather for all but the last."""
    program = []
    for way, m in (("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1)):
        program += [Launch(GATHER, (way, m), 0), Wait((way, m))]
        program += [Compute(f"{way}-compute", m, 0, 0)]
    seconds = {(GATHER, 0): 1.0, ("forward-compute", 0): 1.0, ("backward-compute", 0): 1.0}
    remedy = KINDS["keep-parameters"].proposed(case_of(by_hand(program, seconds)))
    assert remedy.change == {"gathers_dropped": 2, "gathers": 4}
    assert remedy.step_time_s == pytest.approx(6.0)


def test_what_the_latency_leaves_open_is_refused():
    text = refusal("bucket-size", BucketedJob(per_bucket=16))
    assert "--latency-us" in text
    assert "no bytes" in text
    assert "unit by unit" in refusal("bucket-size", ShardedJob())


def test_ends_that_nobody_saw_bound_no_latency():
    """Their transfer times are estimates; the shortest may be shorter than any latency."""
    job = BucketedJob(per_bucket=1, latency_s=0.02)
    rows = [run.rows for run in job.runs()]
    for row in (row for of_step in rows for row in of_step):
        row["late"] = row["kind"] == SCATTER and row["seq"] < 15
    with pytest.raises(NotApplicableError, match="upper bounds") as error:
        KINDS["bucket-size"].proposed(case_of(trace_of_runs(rows)))
    assert "--latency-us" in str(error.value)


def test_two_readings_of_the_network_are_in_the_interval():
    """Gathers ahead that cannot run beside the reductions gain less."""
    job = ShardedJob(gather_s=0.05, scatter_s=0.06, forward_s=0.03)
    remedy = remedy_of("prefetch", job, distance=2)
    assert remedy.interval[0] < remedy.gain - 0.02


@pytest.mark.parametrize(
    ("name", "job", "reason"),
    [
        ("prefetch", BucketedJob(), "no gather of parameters"),
        ("keep-parameters", BucketedJob(), "no gather of parameters"),
        ("accumulate", ShardedJob(), "once per step already"),
        ("prefetch", ShardedJob(ahead=2), "almost nothing"),
    ],
)
def test_what_cannot_gain_is_refused(name, job, reason):
    assert reason in refusal(name, job)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("prefetch", {"distance": 0}),
        ("bucket-size", {"bucket_size": 3.0}),
        ("bucket-size", {"bucket_size": 0.0}),
        ("bucket-size", {"latency_us": -1.0}),
    ],
)
def test_options_that_ask_for_what_cannot_be(name, options):
    job = ShardedJob() if name == "prefetch" else BucketedJob()
    with pytest.raises(RemedyError) as error:
        remedy_of(name, job, **options)
    assert not isinstance(error.value, NotApplicableError)


@pytest.mark.parametrize("name", ["prefetch", "keep-parameters", "accumulate", "bucket-size"])
def test_traces_without_programs_are_refused(name):
    case = case_of(synthesize(SynthSpec(dp=2, pp=2, microbatches=4, steps=3)))
    with pytest.raises(NotApplicableError, match="issued and awaited"):
        KINDS[name].proposed(case)


def test_the_advice_lists_them_as_changes_of_the_architecture(tmp_path):
    trace = ShardedJob(microbatches=2, blocking_scatters=True).trace()
    paceline.write(trace, tmp_path / "t.parquet")
    advice = advise(case_of(paceline.load(tmp_path / "t.parquet")), REMEDIES)
    names = [remedy.remedy for remedy in advice.architecture]
    assert names == ["prefetch", "keep-parameters", "accumulate"]
    assert not {remedy.remedy for remedy in advice.remedies} & set(names)
