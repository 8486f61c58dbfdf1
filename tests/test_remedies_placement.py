"""Swapping workers, against jobs synthesised with the workers swapped."""

from dataclasses import replace

import pytest

from paceline.errors import NotApplicableError, RemedyError
from paceline.remedies.placement import nic_suspects, propose, swaps_around, swaps_to
from paceline.synth import SlowLink, SlowNic, SlowWorker, SynthSpec, synthesize
from remedy_cases import case_of, error_of

SIZES = [(2, 4, 0, 0.01), (4, 4, 1, 0.02), (8, 4, 2, 0.015), (16, 8, 3, 0.01)]


def job(dp: int, pp: int, seed: int, noise: float) -> SynthSpec:
    return SynthSpec(dp=dp, pp=pp, microbatches=8, steps=5, seed=seed, noise=noise)


def swapped(spec: SynthSpec, swaps: list) -> SynthSpec:
    """The job with its workers swapped: factors move along, torn links are healthy."""
    place = {(w.dp, w.pp): (w.dp, w.pp) for w in spec.slow_workers}
    links = list(spec.slow_links)
    for one, other in (map(tuple, swap) for swap in swaps):
        exchange = {one: other, other: one}
        place = {worker: exchange.get(at, at) for worker, at in place.items()}
        links = [k for k in links if not {(k.dp, k.pp), (k.dp, k.pp + 1)} & {one, other}]
    workers = tuple(SlowWorker(*place[(w.dp, w.pp)], w.factor) for w in spec.slow_workers)
    return replace(spec, slow_workers=workers, slow_links=tuple(links))


@pytest.mark.parametrize("size", SIZES)
def test_two_slow_workers_of_one_replica_are_parted(size):
    pp = size[1]
    spec = replace(job(*size), slow_workers=(SlowWorker(1, 0, 1.5), SlowWorker(1, pp - 1, 1.4)))
    remedy = propose(case_of(spec))
    after = swapped(spec, remedy.change["swaps"])
    assert error_of(remedy, after) < 0.01
    assert remedy.gain > 0.03
    assert len({w.pp for w in after.slow_workers}) == 1  # consolidated in one stage
    assert remedy.findings == ("worker",)


def test_with_few_replicas_a_heavy_stage_may_be_slow_workers():
    """Two workers of a stage with two are slow, one of them more: nobody is moved out of it."""
    slow = (SlowWorker(0, 2, 1.3), SlowWorker(1, 2, 1.5))
    case = case_of(replace(job(*SIZES[0]), slow_workers=slow))
    assert {"stage-imbalance", "worker"} <= {f.cause for f in case.diagnosis.findings}
    with pytest.raises(NotApplicableError, match="already are where they cost least"):
        propose(case)


@pytest.mark.parametrize("size", [size for size in SIZES if size[0] > 3])
def test_a_slow_worker_leaves_the_heavy_stage(size):
    pp = size[1]
    loss = (*(((1.0, 1.0),) * (pp - 1)), (2.0, 1.5))
    spec = replace(job(*size), stage_factors=loss, slow_workers=(SlowWorker(1, pp - 1, 1.5),))
    remedy = propose(case_of(spec, workers=[[1, pp - 1]]))
    after = swapped(spec, remedy.change["swaps"])
    assert error_of(remedy, after) < 0.01
    assert remedy.gain > 0.1
    assert 0 < after.slow_workers[0].pp < pp - 1  # interior stages are preferred


@pytest.mark.parametrize("size", SIZES)
def test_a_slow_link_is_torn(size):
    healthy = job(*size)
    spec = replace(healthy, slow_links=(SlowLink(1, 1, 80.0),))
    remedy = propose(case_of(spec))
    assert swapped(spec, remedy.change["swaps"]).slow_links == ()
    assert error_of(remedy, healthy) < 0.01
    assert any("between its two ends" in note for note in remedy.notes)


@pytest.mark.parametrize("size", SIZES)
def test_workers_and_a_link(size):
    slow = (SlowWorker(1, 0, 1.5), SlowWorker(1, size[1] - 1, 1.4))
    spec = replace(job(*size), slow_workers=slow, slow_links=(SlowLink(1, 1, 80.0),))
    remedy = propose(case_of(spec))
    assert error_of(remedy, swapped(spec, remedy.change["swaps"])) < 0.01


def test_nothing_slow_is_nothing_to_swap():
    with pytest.raises(RemedyError, match="nothing to swap"):
        propose(case_of(SynthSpec(dp=4, pp=2, microbatches=4, steps=3)))


def test_where_no_swap_helps_it_says_so():
    spec = replace(job(8, 4, 0, 0.01), slow_workers=(SlowWorker(2, 0, 1.5),))
    with pytest.raises(RemedyError, match="already are where they cost least"):
        propose(case_of(spec))


def test_one_replica_has_no_peers():
    case = case_of(SynthSpec(dp=1, pp=4, microbatches=4, steps=3), workers=[[0, 1]])
    with pytest.raises(RemedyError, match="dp 1"):
        propose(case)


def test_swaps_follow_each_other():
    # the first goes where the second stands, which goes where the first stood: one swap
    assert swaps_to([(0, 0), (1, 1)], ((1, 1), (0, 0))) == [((0, 0), (1, 1))]
    # a ring of three takes two
    ring = swaps_to([(0, 0), (1, 1), (2, 2)], ((1, 1), (2, 2), (0, 0)))
    assert ring == [((0, 0), (1, 1)), ((0, 0), (2, 2))]


def test_links_are_torn_by_workers_that_stand_in_no_other():
    found = swaps_around([(0, 0, 1), (1, 1, 2)], {(2, 1)}, 4)
    assert [swap for _, swap in found] == [((0, 1), (3, 1)), ((1, 2), (2, 2))]
    assert swaps_around([(0, 0, 1)], {(1, 0), (1, 1)}, 2) == []


@pytest.mark.parametrize(
    ("links", "chunks", "suspects"),
    [
        ([(1, 1)], 1, set()),  # both ends have another link, which is fast
        ([(1, 1), (1, 2)], 1, {(1, 2)}),
        ([(1, 0)], 1, set()),  # the first stage's only link: nothing else speaks against its NIC
        ([(1, 0), (1, 1)], 1, {(1, 1)}),
        ([(1, 0)], 2, set()),  # with chunks the first stage has a link to the last
    ],
)
def test_a_nic_is_suspected_where_all_links_of_a_worker_are_slow(links, chunks, suspects):
    slow = tuple(SlowLink(dp, pp, 80.0) for dp, pp in links)
    case = case_of(replace(job(4, 4, 1, 0.01), vpp=chunks, slow_links=slow))
    assert nic_suspects(case) == suspects


def test_a_slow_group_makes_the_nic_of_an_only_link_suspect():
    slow = {"slow_links": (SlowLink(1, 0, 80.0),), "slow_nics": (SlowNic(1, 0, 20.0),)}
    assert nic_suspects(case_of(replace(job(4, 4, 1, 0.01), **slow))) == {(1, 0)}


def test_with_few_replicas_a_stage_of_slow_workers_is_left_alone():
    """Both workers of a stage are slow, each in its own way: the faster of two is no norm."""
    slow = (SlowWorker(0, 2, 1.3), SlowWorker(1, 2, 1.5))
    spec = replace(job(2, 4, 0, 0.01), microbatches=16, slow_workers=slow)
    case = case_of(spec)
    assert case.diagnosis.findings[0].ambiguous
    with pytest.raises(NotApplicableError, match="already are where they cost least"):
        propose(case)


def test_a_slow_replica_and_a_slow_worker_of_the_other_are_told_apart():
    slow = (*(SlowWorker(0, stage, 1.25) for stage in range(4)), SlowWorker(1, 2, 1.5))
    spec = replace(job(2, 4, 0, 0.01), microbatches=16, slow_workers=slow)
    case = case_of(spec)
    blamed = case.diagnosis.findings[0].where["workers"]
    assert sorted(blamed) == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 2]]
    remedy = propose(case)
    ((one, other),) = remedy.change["swaps"]
    factor = {(worker.dp, worker.pp): worker.factor for worker in slow}
    factor[tuple(one)], factor[tuple(other)] = (
        factor.get(tuple(other), 1.0),
        factor.get(tuple(one), 1.0),
    )
    swapped = tuple(SlowWorker(dp, pp, f) for (dp, pp), f in factor.items())
    truth = synthesize(replace(spec, slow_workers=swapped)).traced_step_s().mean()
    assert remedy.step_time_s == pytest.approx(truth, rel=0.005)
