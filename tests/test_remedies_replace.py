"""Replacing what is slow leads to the step time that the job without the cause has."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import RemedyError
from paceline.remedies import REMEDIES, advise
from paceline.remedies.replace import KINDS, fix_link, fix_nic, replace_worker
from paceline.report.page.findings import rank_remedies
from paceline.results.document import JobReport
from paceline.results.facts import best_gain
from paceline.results.words.readings import other_reading
from paceline.synth import SlowLink, SlowNic, SlowWorker, SynthSpec
from remedy_cases import case_of, error_of
from remedy_jobs import LayeredJob

SIZES = [(4, 2, 0, 0.02), (8, 1, 1, 0.01), (8, 4, 2, 0.02), (16, 8, 3, 0.01)]


def job(dp: int, pp: int, seed: int, noise: float) -> SynthSpec:
    return SynthSpec(dp=dp, pp=pp, microbatches=8, steps=6, seed=seed, noise=noise)


@pytest.mark.parametrize(("dp", "pp", "seed", "noise"), SIZES)
@pytest.mark.parametrize("imbalance", [0.0, 0.3])
def test_replacing_a_worker(dp, pp, seed, noise, imbalance):
    healthy = replace(job(dp, pp, seed, noise), sequence_imbalance=imbalance)
    slow = (SlowWorker(2, pp - 1, 1.6),)
    case = case_of(replace(healthy, slow_workers=slow), workers=[[2, pp - 1]])
    remedy = replace_worker(case)
    assert error_of(remedy, healthy) < 0.01
    assert remedy.change == {"workers": [[2, pp - 1]]}


def test_the_finding_names_whom_to_replace():
    healthy = job(4, 2, 0, 0.02)
    slow = (SlowWorker(3, 1, 1.5), SlowWorker(1, 1, 1.4))
    remedy = replace_worker(case_of(replace(healthy, slow_workers=slow)))
    assert sorted(remedy.change["workers"]) == [[1, 1], [3, 1]]
    assert remedy.findings == ("worker",)
    assert error_of(remedy, healthy) < 0.01
    assert remedy.interval[0] <= remedy.gain <= remedy.interval[1]
    assert "replace 2 workers" in remedy.text


def test_a_whole_slow_replica_gets_the_cost_of_its_own_microbatches():
    healthy = replace(job(8, 2, 1, 0.01), sequence_imbalance=0.3)
    slow = (SlowWorker(5, 0, 1.5), SlowWorker(5, 1, 1.5))
    case = case_of(replace(healthy, slow_workers=slow), workers=[[5, 0], [5, 1]])
    assert error_of(replace_worker(case), healthy) < 0.03


def test_replicas_may_differ_in_microbatches():
    healthy = replace(job(4, 2, 0, 0.01), microbatches=(8, 8, 8, 10))
    for dp in (1, 3):  # 3 is the only one with 10
        case = case_of(replace(healthy, slow_workers=(SlowWorker(dp, 1, 1.5),)))
        assert error_of(replace_worker(case), healthy) < 0.02


@pytest.mark.parametrize(("dp", "pp", "seed", "noise"), [s for s in SIZES if s[1] > 1])
def test_fixing_a_link(dp, pp, seed, noise):
    healthy = job(dp, pp, seed, noise)
    slow = replace(healthy, slow_links=(SlowLink(1, pp - 2, 80.0),))
    remedy = fix_link(case_of(slow))
    assert error_of(remedy, healthy) < 0.01
    assert remedy.change == {"links": [[[1, pp - 2], [1, pp - 1]]]}


@pytest.mark.parametrize(("dp", "pp", "seed", "noise"), SIZES)
@pytest.mark.parametrize("probability", [1.0, 0.4])
def test_fixing_a_nic(dp, pp, seed, noise, probability):
    healthy = job(dp, pp, seed, noise)
    case = case_of(replace(healthy, slow_nics=(SlowNic(1, 0, 20.0, probability),)))
    if not any(f.cause == "dp-network" for f in case.diagnosis.findings):
        with pytest.raises(RemedyError, match="no slow data-parallel group"):
            fix_nic(case)  # at pp 1 a lasting slowness cannot show; flapping may hit no step
        return
    remedy = fix_nic(case)
    assert error_of(remedy, healthy) < 0.01
    assert {group["stage"] for group in remedy.change["groups"]} == {0}


@pytest.mark.parametrize("workers", [None, [[0, 1]]])
def test_without_peers_a_stage_as_full_as_the_others_tells_the_gain(workers):
    """With one replica a slow worker looks like an overfull stage: the remedy has a condition."""
    healthy = job(1, 3, 0, 0.02)
    slow = replace(healthy, slow_workers=(SlowWorker(0, 1, 1.5),))
    case = case_of(slow, **({} if workers is None else {"workers": workers}))
    remedy = replace_worker(case)
    assert error_of(remedy, healthy) < 0.01
    assert remedy.is_conditional
    assert remedy.change["workers"] == [[0, 1]]
    assert "stage 1, if its stage has as much work as the others" in remedy.action
    assert remedy.findings == ()  # it answers the other reading of the finding on the stage
    finding = case.diagnosis.findings[0]
    advice = advise(case, REMEDIES)
    assert other_reading(finding, advice.remedies).endswith(
        f"read as worker fault: replace worker saves {remedy.gain:.1%} of the step, if its stage "
        "has as much work as the others"
    )
    report = JobReport.of(case.result, advice)
    split = next(r for r in advice.remedies if r.remedy == "stage-layout")
    assert best_gain(report) == split.gain < remedy.gain
    # Splitting the layers anew needs no condition, so it stands first in spite of its gain.
    order = [r.is_conditional for r in advice.remedies]
    assert order == sorted(order)
    assert advice.remedies[-1] == remedy
    assert rank_remedies(report.every_remedy[::-1])[: len(order)] == list(advice.remedies)


def test_one_replica_has_no_peers():
    case = case_of(SynthSpec(dp=1, pp=2, microbatches=4, steps=3), workers=[[0, 1]])
    with pytest.raises(RemedyError, match="dp 1"):
        replace_worker(case)


def test_a_stage_whose_workers_are_all_blamed_has_no_peers():
    case = case_of(SynthSpec(dp=2, pp=2, microbatches=4, steps=3), workers=[[0, 1], [1, 1]])
    with pytest.raises(RemedyError, match="stage 1 has no healthy peers"):
        replace_worker(case)


@pytest.mark.parametrize("propose", [kind.propose for kind in KINDS])
def test_a_healthy_job_needs_none(propose):
    with pytest.raises(RemedyError, match="nothing to do"):
        propose(case_of(SynthSpec(dp=2, pp=2, microbatches=4, steps=3)))


@pytest.mark.parametrize("workers", [[[4, 0]], [[0, 2]], [[-1, 0]], []])
def test_workers_must_be_the_jobs(workers):
    case = case_of(SynthSpec(dp=4, pp=2, microbatches=4, steps=3), workers=workers)
    with pytest.raises(RemedyError, match="worker"):
        replace_worker(case)


def test_the_case_is_left_as_it_was():
    case = case_of(replace(job(4, 2, 0, 0.02), slow_workers=(SlowWorker(0, 0, 1.5),)))
    before = case.measured.durations.values.copy()
    replace_worker(case)
    np.testing.assert_array_equal(case.measured.durations.values, before)


def test_few_steps_are_said_to_show_nothing_of_how_steps_differ():
    for steps, said in ((1, "one step was"), (3, "3 steps were"), (4, "")):
        notes = replace_worker(LayeredJob(workers={(1, 2): 1.4}, steps=steps).case()).notes
        few = [note for note in notes if "the interval cannot include" in note]
        assert len(few) == (said != "")
        assert all(note.startswith(said) for note in few)
