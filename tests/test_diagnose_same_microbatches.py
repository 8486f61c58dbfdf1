"""Microbatches that are long in all steps, or few long ones anywhere, and what evens them out.

The truth is the same job with other lengths: even ones of the same total, or without the long one.
"""

from functools import cache

import numpy as np
import pytest

from paceline.diagnose import diagnose
from paceline.diagnose.fit import fit_computes
from paceline.diagnose.microbatches import sequence_cause
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case, advise, even_microbatches, propose_all
from paceline.remedies.sequence_balance import propose as propose_order
from paceline.synth import SynthSpec, synthesize
from paceline.trace import OpKind
from paceline.trace.seqlens import SeqLens
from paceline.whatif import analyze

#: Costs of the microbatches of a step. One of six is long: its ranks are mostly noise.
ONE, EVEN, USUAL = (1, 1, 1, 1, 2.5, 1), (1.25,) * 6, (1,) * 6
RISING = (1, 1.3, 1.6, 1.9, 2.2, 2.5)

JOBS = {
    "1f1b": {"dp": 1, "pp": 3},
    "two replicas": {"dp": 2, "pp": 3},
    "four replicas": {"dp": 4, "pp": 3},
    "interleaved": {"dp": 2, "pp": 2, "vpp": 2},
    "gpipe": {"dp": 1, "pp": 4, "schedule": "gpipe"},
    "zb-h1": {"dp": 2, "pp": 3, "schedule": "zb-h1"},
}

STEPS = 16


def measured(costs, *, noise=0.02, seed=0, **job):
    """A job whose microbatches have costs [..., microbatch] (of steps and replicas)."""
    costs = np.asarray(costs, dtype=np.float64)
    shape = (STEPS, job["dp"], costs.shape[-1])
    # The mean cost is 1, whatever the lengths; so base times are made longer by the mean.
    lengths = np.rint(1000 * np.broadcast_to(costs, shape)).astype(np.int64).ravel()
    end = np.arange(1, len(lengths) + 1)
    ptr = np.stack([end - 1, end], axis=1).reshape(*shape, 2)
    base_s = dict(SynthSpec().base_s)
    for kind in (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE, OpKind.WEIGHT_COMPUTE):
        base_s[kind] *= float(np.broadcast_to(costs, shape).mean())
    spec = SynthSpec(
        microbatches=shape[2], steps=STEPS, noise=noise, seed=seed, base_s=base_s,
        seqlens=SeqLens(np.arange(STEPS), ptr, lengths), sequence_mix=0.0, **job,
    )  # fmt: skip
    return from_trace(synthesize(spec))


@cache
def step_s(costs, name):
    """The true mean step of a job with such microbatches."""
    return float(analyze(measured(costs, **JOBS[name])).simulated_s.mean())


@cache
def case_of(costs, name):
    job = measured(costs, **JOBS[name])
    result = analyze(job)
    return Case(job, result, diagnose(job, result))


def candidate(durations):
    return sequence_cause(durations, fit_computes(durations))


def named(case):
    (finding,) = [f for f in case.diagnosis.findings if f.cause == "sequence-length"]
    return finding


@pytest.mark.parametrize("name", JOBS)
def test_the_same_long_microbatch_in_all_steps_is_named(name):
    case = case_of(ONE, name)
    finding = named(case)
    assert finding.text.startswith("microbatch 4 takes 2.5x the usual in 16 of 16 steps")
    assert finding.confidence > 0.9
    assert finding.ambiguous == ""
    (long,) = finding.evidence["microbatches"]
    assert (long["microbatch"], long["times"]) == (4, pytest.approx(2.5, rel=0.02))
    true_s = step_s(ONE, name) - step_s(EVEN, name)
    assert finding.share_of_step == pytest.approx(true_s / step_s(ONE, name), abs=0.012)


@pytest.mark.parametrize("name", JOBS)
def test_even_microbatches_promise_the_same_work_in_even_shares(name):
    remedy = even_microbatches.KIND.proposed(case_of(ONE, name))
    assert "with the same work in all" in remedy.action
    assert remedy.step_time_s == pytest.approx(step_s(EVEN, name), rel=0.01)
    # The text says the other number, too, and that it is not promised.
    assert remedy.change["without_extra_work_s"] == pytest.approx(step_s(USUAL, name), rel=0.01)
    assert any(note.startswith("without the extra work of the long one") for note in remedy.notes)


@pytest.mark.parametrize("name", ["1f1b", "two replicas", "four replicas", "interleaved"])
def test_another_order_promises_what_it_gives_in_all_steps(name):
    """Microbatches in order of each step's own times promised the order of the noise, too."""
    remedy = propose_order(case_of(ONE, name))
    assert remedy.change["exchange"] == "nothing"
    assert remedy.change["order"] == "hill"
    true_s = step_s((1, 1, 1, 2.5, 1, 1), name)
    assert remedy.step_time_s == pytest.approx(true_s, rel=0.004)  # other noise
    assert any("needs no lengths" in note for note in remedy.notes)


@pytest.mark.parametrize("name", JOBS)
def test_few_long_microbatches_at_any_place_are_named(name):
    rng = np.random.default_rng(3)
    costs = rng.permuted(np.broadcast_to(ONE, (STEPS, JOBS[name]["dp"], 6)), axis=2)
    job = measured(costs, **JOBS[name])
    result = analyze(job)
    finding = named(Case(job, result, diagnose(job, result)))
    assert finding.text.startswith("microbatches differ in cost by 45%")
    assert finding.confidence > 0.9
    assert "microbatches" not in finding.evidence


@pytest.mark.parametrize(
    ("name", "open_"), [("1f1b", False), ("four replicas", False), ("gpipe", True)]
)
def test_sorted_microbatches_are_named(name, open_):
    """A machine that slows down within the step looks alike, where time follows the number."""
    finding = named(case_of(RISING, name))
    assert "the same ones are long in 16 of 16 steps" in finding.text
    assert [row["microbatch"] for row in finding.evidence["microbatches"]] == [4, 5]
    assert ("the machines slow down within a step" in finding.ambiguous) == open_
    assert (finding.confidence > 0.9) != open_


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        ((2.5, 1, 1, 1, 1, 1), "the step begins with it"),
        ((1, 1, 1, 1, 1, 2.5), "the step ends with it"),
        ((2.5, 1.5, 1, 1, 1, 1), "the step begins with it"),  # a warm-up that ends
        ((1.5, 2.5, 1, 1, 1, 1), ""),
        ((2.5, 1, 1, 1.5, 1, 1), ""),
    ],
)
def test_the_edge_of_a_step_may_have_other_work(costs, words):
    case = case_of(costs, "four replicas")
    finding = named(case)
    assert finding.ambiguous.startswith(words)
    assert bool(finding.ambiguous) == bool(words)
    assert (finding.confidence < 0.65) == bool(words)
    notes = even_microbatches.KIND.proposed(case).notes
    assert any("if the other reading is true" in note for note in notes) == bool(words)


def test_the_edge_counts_where_replicas_have_unlike_numbers_of_microbatches():
    def found(long):
        spec = SynthSpec(dp=4, pp=3, microbatches=(6, 6, 5, 5), steps=STEPS, noise=0.02)
        durations = from_trace(synthesize(spec)).durations
        graph = durations.graph
        for op in np.flatnonzero(graph.kind <= OpKind.BACKWARD_COMPUTE).tolist():
            durations.row(op)[:] *= 2.5 if graph.microbatch[op] == long else 1.0
        return candidate(durations)

    assert found(0).ambiguous.startswith("the step begins with it")
    assert found(3).ambiguous == ""
    assert found(3).text.startswith("microbatches differ in cost by")


def changed(job, factor, noise=0.02):
    """The durations of even microbatches; ``factor`` (kind, stage, microbatch, position)."""
    durations = measured(USUAL, noise=noise, **JOBS[job]).durations
    graph = durations.graph
    rank = np.empty(graph.n_ops, dtype=np.int64)
    rank[graph.order] = np.arange(graph.n_ops)
    computes = np.flatnonzero(graph.kind <= OpKind.BACKWARD_COMPUTE)
    for stage in range(graph.n_pp):
        ops = computes[graph.pp[computes] == stage]
        for position, op in enumerate(ops[np.argsort(rank[ops])].tolist()):
            kind, microbatch = int(graph.kind[op]), int(graph.microbatch[op])
            durations.row(op)[:] *= factor(kind, stage, microbatch, position / (len(ops) - 1))
    return durations


@pytest.mark.parametrize("job", ["1f1b", "four replicas", "gpipe", "interleaved"])
@pytest.mark.parametrize(
    "shown",
    [
        lambda kind, stage: stage == 1,
        lambda kind, stage: stage > 0,
        lambda kind, stage: kind == OpKind.FORWARD_COMPUTE,
        lambda kind, stage: kind == OpKind.BACKWARD_COMPUTE,
    ],
    ids=["one stage", "all but one stage", "forward", "backward"],
)
def test_a_microbatch_that_is_long_in_part_is_no_sequence(job, shown):
    def long(kind, stage, microbatch, _):
        return 2.5 if microbatch == 4 and shown(kind, stage) else 1.0

    assert candidate(changed(job, long)) is None


@pytest.mark.parametrize("job", ["1f1b", "gpipe", "interleaved"])
@pytest.mark.parametrize("falling", [False, True])
def test_a_machine_that_slows_down_within_the_step_is_not_called_sequences_with_certainty(
    job, falling
):
    def slower(_kind, _stage, _microbatch, at):
        return 1 + (1 - at if falling else at)

    found = candidate(changed(job, slower))
    assert found is None or "slow down within a step" in found.ambiguous


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_even_microbatches_show_nothing(seed, noise):
    for name in ("1f1b", "four replicas", "zb-h1"):
        durations = measured(USUAL, noise=noise, seed=seed, **JOBS[name]).durations
        assert candidate(durations) is None


def test_noise_does_not_hide_a_small_difference_that_lasts():
    costs = (1, 1, 1.2, 1, 1, 1)
    case = Case(
        job := measured(costs, dp=2, pp=4, noise=0.06),
        result := analyze(job),
        diagnose(job, result),
    )
    finding = named(case)
    assert finding.text.startswith("microbatch 2 takes 1.2x")
    # Only the difference is taken out, and not the noise that all stages happen to share.
    even = analyze(measured((sum(costs) / 6,) * 6, dp=2, pp=4, noise=0.06))
    true = 1 - float(even.simulated_s.mean() / result.simulated_s.mean())
    assert finding.share_of_step == pytest.approx(true, abs=0.003)


def accumulated(costs):
    job = measured(costs, dp=4, pp=1)
    result = analyze(job)
    return Case(job, result, diagnose(job, result))


def test_accumulation_without_a_pipeline_loses_nothing_by_the_order():
    case = accumulated(ONE)
    assert [f for f in case.diagnosis.findings if f.cause == "sequence-length"] == []


def test_few_long_microbatches_of_one_stage_may_be_a_slow_rank():
    rng = np.random.default_rng(5)
    case = accumulated(np.where(rng.random((STEPS, 4, 6)) < 0.15, 2.5, 1.0))
    finding = named(case)
    assert finding.alternative == "worker"
    assert "slow during a microbatch" in finding.ambiguous
    assert finding.confidence < 0.65


def test_slow_steps_of_a_rank_are_no_long_microbatches():
    """All microbatches of a rank's step are long: none is beside the others."""
    rng = np.random.default_rng(5)
    slow = np.where(rng.random((STEPS, 4, 1)) < 0.2, 2.5, 1.0)
    job = measured(slow * np.ones((1, 1, 6)), dp=4, pp=1)
    assert candidate(job.durations) is None


def test_with_lengths_the_assignment_is_proposed_instead():
    case = case_of(ONE, "1f1b")
    ends = np.arange(1, STEPS * 6 + 1)
    ptr = np.stack([ends - 1, ends], axis=1).reshape(STEPS, 1, 6, 2)
    lengths = np.tile([1000, 1000, 1000, 1000, 2500, 1000], STEPS)
    known = Case(
        case.measured, case.result, case.diagnosis, None, SeqLens(np.arange(STEPS), ptr, lengths)
    )
    _, refused = propose_all(known, REMEDIES)
    assert "sequence-balance" in refused["even-microbatches"]
    assert advise(case, REMEDIES).remedies[0].remedy == "even-microbatches"
