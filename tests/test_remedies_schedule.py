"""Other schedules and overlapped reductions, against jobs synthesised with them."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import RemedyError
from paceline.remedies.regraph import overlap_buckets, schedule_of
from paceline.remedies.schedule import interleave, one_f_one_b, overlap_dp
from paceline.synth import BASE_S, SynthSpec
from paceline.trace import OpKind
from remedy_cases import case_of, error_of

SIZES = [(4, 2, 8, 0, 0.01), (8, 4, 8, 1, 0.02), (8, 4, 16, 2, 0.02), (4, 8, 16, 3, 0.01)]
PER_CHUNK = (
    OpKind.FORWARD_COMPUTE,
    OpKind.BACKWARD_COMPUTE,
    OpKind.PARAMS_ALL_GATHER,
    OpKind.GRADS_REDUCE_SCATTER,
)


def job(dp: int, pp: int, microbatches: int, seed: int, noise: float) -> SynthSpec:
    return SynthSpec(dp=dp, pp=pp, microbatches=microbatches, steps=5, seed=seed, noise=noise)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("chunks", [2, 4])
def test_interleaving(size, chunks):
    spec = job(*size)
    remedy = interleave(case_of(spec, chunks=chunks))
    base_s = {k: s / chunks if k in PER_CHUNK else s for k, s in BASE_S.items()}
    assert error_of(remedy, replace(spec, vpp=chunks, base_s=base_s)) < 0.01
    assert remedy.change["chunks"] == chunks
    assert remedy.gain > 0.02


def test_the_best_number_of_chunks_is_chosen():
    change = interleave(case_of(job(*SIZES[0]))).change
    times = {row["chunks"]: row["step_time_s"] for row in change["compared"]}
    assert set(times) == {2, 3, 4}
    assert change["chunks"] == min(times, key=times.get)


def test_replicas_may_differ_in_microbatches():
    spec = replace(job(*SIZES[0]), microbatches=(8, 8, 10, 8))
    base_s = {k: s / 2 if k in PER_CHUNK else s for k, s in BASE_S.items()}
    remedy = interleave(case_of(spec, chunks=2))
    assert error_of(remedy, replace(spec, vpp=2, base_s=base_s)) < 0.01


@pytest.mark.parametrize("size", SIZES)
def test_from_gpipe_to_1f1b(size):
    pp = size[1]
    # A late stage whose forwards are slow and an early one whose backwards are: GPipe pays both.
    factors = tuple((1.8, 1.0) if i == pp - 1 else (1.0, 1.4) for i in range(pp))
    spec = replace(job(*size), schedule="gpipe", stage_factors=factors)
    remedy = one_f_one_b(case_of(spec))
    assert error_of(remedy, replace(spec, schedule="1f1b")) < 0.01
    assert remedy.gain > 0.005


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("chunks", [2, 4])
def test_overlapping_the_reduction(size, chunks):
    base_s = {**BASE_S, OpKind.GRADS_REDUCE_SCATTER: 0.3}
    spec = replace(job(*size), vpp=chunks, base_s=base_s)
    remedy = overlap_dp(case_of(spec))
    assert error_of(remedy, replace(spec, overlap=True)) < 0.01
    assert remedy.gain > 0.005


@pytest.mark.parametrize(
    ("buckets", "left_s"),
    # 0.04 s in n buckets behind a backward of 0.12 s: only the last bucket sticks out;
    # 0.4 s: all but what 0.12 s (1 - 1/n) hide.
    [(2, (0.02, 0.34)), (8, (0.005, 0.295))],
)
def test_buckets_hide_behind_the_last_backward(buckets, left_s):
    for reduce_s, left in zip((0.04, 0.4), left_s, strict=True):
        base_s = {**BASE_S, OpKind.GRADS_REDUCE_SCATTER: reduce_s}
        case = case_of(SynthSpec(dp=2, pp=2, microbatches=4, steps=2, noise=0.0, base_s=base_s))
        durations = case.measured.durations
        overlap_buckets(durations, buckets)
        ops = np.flatnonzero(durations.graph.kind == OpKind.GRADS_REDUCE_SCATTER)
        np.testing.assert_allclose(durations.block(0)[ops], left, atol=1e-9)


def test_buckets_gain_with_one_chunk():
    base_s = {**BASE_S, OpKind.GRADS_REDUCE_SCATTER: 0.1}
    spec = SynthSpec(dp=2, pp=2, microbatches=4, steps=3, noise=0.0, base_s=base_s)
    remedy = overlap_dp(case_of(spec, buckets=4))
    before = float(case_of(spec).result.simulated_s.mean())
    assert before - remedy.step_time_s == pytest.approx(0.075)


@pytest.mark.parametrize(
    ("spec", "schedule"),
    [
        (SynthSpec(dp=2, pp=4, microbatches=6, steps=2), "1f1b"),
        (SynthSpec(dp=2, pp=4, microbatches=6, steps=2, schedule="gpipe"), "gpipe"),
    ],
)
def test_the_schedule_is_recognised(spec, schedule):
    assert schedule_of(case_of(spec).measured.graph) == schedule


SMALL = SynthSpec(dp=2, pp=2, microbatches=4, steps=2)


@pytest.mark.parametrize(
    ("propose", "spec", "options", "message"),
    [
        (interleave, replace(SMALL, pp=1), {}, "one stage"),
        (interleave, replace(SMALL, vpp=2), {}, "2 chunks per stage already"),
        (interleave, replace(SMALL, microbatches=5), {}, "multiple of the 2 stages"),
        (interleave, SMALL, {"chunks": 1}, "2 or more"),
        (one_f_one_b, SMALL, {}, "does not run GPipe"),
        (one_f_one_b, replace(SMALL, pp=1), {}, "one stage"),
        (overlap_dp, SMALL, {}, "one chunk per stage"),
        (overlap_dp, SMALL, {"buckets": 0}, "1 or more"),
        (overlap_dp, replace(SMALL, vpp=2, overlap=True), {}, "already"),
    ],
)
def test_where_it_does_not_apply_it_says_why(propose, spec, options, message):
    with pytest.raises(RemedyError, match=message):
        propose(case_of(spec, **options))


def test_too_few_layers_for_chunks():
    with pytest.raises(RemedyError, match="cannot be cut"):
        interleave(case_of(SMALL, (1, 1)))


def test_what_gains_nothing_is_refused():
    base_s = {**BASE_S, OpKind.GRADS_REDUCE_SCATTER: 0.001}
    with pytest.raises(RemedyError, match="almost nothing"):
        overlap_dp(case_of(replace(SMALL, vpp=2, base_s=base_s)))
