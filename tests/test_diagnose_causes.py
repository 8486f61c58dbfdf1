"""Each cause alone in a job without noise: who is named, from where on, and what is taken out.

Durations are set, not timed again: the patterns are read from durations only.
"""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.diagnose import diagnosis, microbatches
from paceline.diagnose.diagnosis import MIN_OF_STEP, _Judge, _resamples, _worth_it
from paceline.diagnose.fit import fit_computes
from paceline.diagnose.groups import group_causes
from paceline.diagnose.levels import REPLICAS
from paceline.diagnose.links import link_cause
from paceline.diagnose.microbatches import sequence_cause
from paceline.diagnose.remove import Effect, without
from paceline.diagnose.stages import stage_cause
from paceline.diagnose.workers import worker_cause
from paceline.graph import Durations, from_trace
from paceline.synth import SynthSpec, synthesize
from paceline.trace import OpKind
from paceline.whatif import ideal_durations

FORWARD, BACKWARD = OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE
P2P = (OpKind.FORWARD_SEND, OpKind.FORWARD_RECV, OpKind.BACKWARD_SEND, OpKind.BACKWARD_RECV)
SCATTER = OpKind.GRADS_REDUCE_SCATTER


@cache
def healthy(dp=4, pp=3, microbatches=6, steps=8):
    spec = SynthSpec(dp=dp, pp=pp, microbatches=microbatches, steps=steps, noise=0.0)
    return from_trace(synthesize(spec)).durations


class Job:
    """A job without noise, some of whose durations are changed."""

    def __init__(self, **size):
        self.sound = healthy(**size)
        self.graph = self.sound.graph
        self.durations = Durations(self.graph, self.sound.n_steps, self.sound.values.copy())
        self.array = self.durations.array  # [op, step, dp]
        self.steps = np.arange(self.durations.n_steps) + 100

    def ops(self, *kinds, stage=None):
        chosen = np.isin(self.graph.kind, [int(kind) for kind in kinds])
        return np.flatnonzero(chosen if stage is None else chosen & (self.graph.pp == stage))

    def link(self, low):
        """Ops of both sides of the transfers between a stage and the next."""
        pairs = self.graph.variant_pairs(0)
        stages = np.sort(self.graph.pp[pairs], axis=1)
        chosen = pairs[(stages == (low, low + 1)).all(axis=1)]
        return chosen.ravel()

    @property
    def fit(self):
        return fit_computes(self.durations)

    def links(self):
        return link_cause(self.durations, ideal_durations(self.durations))

    def groups(self):
        return group_causes(self.durations, ideal_durations(self.durations), self.steps)

    def workers(self):
        return worker_cause(self.durations, self.fit, self.steps)

    def healed(self, candidate):
        return without(self.durations, self.fit, [candidate.effect]).array


def test_a_healthy_job_shows_no_pattern():
    job = Job()
    assert job.links() is None
    assert job.groups() == []
    assert job.workers() is None
    assert stage_cause(job.durations, job.fit) is None
    assert sequence_cause(job.durations, job.fit) is None


# Links.


@pytest.mark.parametrize(("factor", "named"), [(1.29, False), (1.31, True), (3.0, True)])
def test_a_slow_link(factor, named):
    job = Job()
    job.array[job.link(1), :, 2] *= factor
    candidate = job.links()
    assert (candidate is not None) == named
    if named:
        assert candidate.where == {"link": [[2, 1], [2, 2]]}
        evidence = candidate.evidence
        assert evidence["median_over_usual"] == pytest.approx(factor)
        assert (evidence["n_links"], evidence["links"]) == (1, [[[2, 1], [2, 2]]])
        assert evidence["late_share"] == (factor > 2)
        assert candidate.text.endswith(f"of dp 2 is {factor:.1f}x slow")
        assert not candidate.ambiguous
        assert job.healed(candidate) == pytest.approx(job.sound.array)


@pytest.mark.parametrize("side", [0, 1])
def test_one_slow_side_makes_a_slow_link(side):
    """Sends that take 3 times as long as usual while the recvs do not, or the other way round."""
    job = Job()
    job.array[job.link(1)[side::2], :, 2] *= 3.0
    candidate = job.links()
    assert candidate.where == {"link": [[2, 1], [2, 2]]}
    assert candidate.evidence["median_over_usual"] == pytest.approx(3.0)


def test_two_slow_links_the_slower_first():
    job = Job()
    job.array[job.link(0), :, 1] *= 2.0
    job.array[job.link(1), :, 2] *= 3.0
    candidate = job.links()
    assert candidate.evidence["links"] == [[[2, 1], [2, 2]], [[1, 0], [1, 1]]]
    assert candidate.text.endswith("(and 1 more)")
    assert job.healed(candidate) == pytest.approx(job.sound.array)


@pytest.mark.parametrize(("slow", "named"), [(4, True), (5, False)])
def test_when_most_links_are_slow_none_is(slow, named):
    """Of 8 links, in different stages and replicas; by as much as their median shows."""
    job = Job()
    for number in range(slow):
        job.array[job.link(number % 2), :, number // 2] *= 3.0
    candidate = job.links()
    # two in each pair of stages: the other two are what is usual
    assert candidate is None or (named and candidate.evidence["n_links"] <= 4)


def test_a_flapping_link_is_late_now_and_then():
    """3 of 8 steps; its other transfers are as usual, and stay so."""
    job = Job()
    job.array[job.link(1), :3, 2] *= 5.0
    candidate = job.links()
    assert candidate.where == {"link": [[2, 1], [2, 2]]}
    assert candidate.evidence["late_share"] == pytest.approx(3 / 8)
    assert candidate.evidence["median_over_usual"] == pytest.approx(1.0)
    assert candidate.text.endswith("is flapping (38% of transfers late)")
    assert job.healed(candidate) == pytest.approx(job.sound.array)


def test_a_link_without_its_like_is_ambiguous():
    one = Job(dp=1, pp=4)
    one.array[one.link(1)] *= 3.0
    candidate = one.links()
    assert candidate.where == {"link": [[0, 1], [0, 2]]}
    assert candidate.ambiguous.startswith("there is one replica")
    every = Job(dp=2, pp=4)
    every.array[every.link(1)] *= 3.0
    candidate = every.links()
    assert candidate.evidence["n_links"] == 2
    assert candidate.ambiguous.startswith("all replicas show it")


# Data-parallel groups.


@pytest.mark.parametrize(("factor", "named"), [(1.29, False), (1.31, True), (2.1, True)])
def test_a_slow_group(factor, named):
    job = Job()
    job.array[job.ops(SCATTER, stage=1)] *= factor
    causes = job.groups()
    assert len(causes) == named
    if named:
        [candidate] = causes
        assert candidate.where == {"group": {"stage": 1, "kind": "grads-reduce-scatter"}}
        evidence = candidate.evidence
        assert evidence["median_over_usual"] == pytest.approx(factor)
        assert (evidence["slow_share"], evidence["threshold"]) == (1.0, 1.3)
        assert [row["stage"] for row in evidence["groups"]] == [1]
        assert evidence["n_groups"] == 7  # two collectives of three stages, and the norm
        assert "steps" not in evidence
        assert bool(candidate.ambiguous) == (factor < 2)  # a larger stage takes longer, too
        assert job.healed(candidate) == pytest.approx(job.sound.array)


def test_a_flapping_group_is_named_with_its_steps():
    job = Job()
    slow = job.ops(SCATTER, stage=1)
    job.array[np.ix_(slow, [1, 4, 6])] *= 4.0
    [candidate] = job.groups()
    assert candidate.evidence["steps"] == [101, 104, 106]
    assert candidate.evidence["slow_share"] == pytest.approx(3 / 8)
    assert candidate.evidence["threshold"] == 2.0
    assert " in 3 of 8 steps " in candidate.text
    assert not candidate.ambiguous
    assert job.healed(candidate) == pytest.approx(job.sound.array)


def test_two_slow_groups_the_costlier_first():
    job = Job(pp=4)
    job.array[job.ops(SCATTER, stage=1)] *= 2.0
    job.array[job.ops(SCATTER, stage=3)] *= 3.0
    [candidate] = job.groups()
    assert [row["stage"] for row in candidate.evidence["groups"]] == [3, 1]
    assert [row["median_over_usual"] for row in candidate.evidence["groups"]] == pytest.approx(
        [3.0, 2.0]
    )
    assert job.healed(candidate) == pytest.approx(job.sound.array)


def test_members_that_end_late_the_latest_first():
    job = Job(dp=8)
    ops = job.ops(SCATTER)
    usual = float(job.array[ops[0], 0, 0])
    job.array[job.ops(SCATTER, stage=1), :, 5] += 0.3 * usual
    job.array[job.ops(SCATTER, stage=2), :, 3] += 0.5 * usual
    [candidate] = job.groups()
    assert candidate.where == {"workers": [[3, 2], [5, 1]]}
    assert candidate.text.startswith("worker dp 3, stage 2 ends grads-reduce-scatter")
    assert candidate.text.endswith("(and 1 more)")
    evidence = candidate.evidence
    assert evidence["late_s"] == pytest.approx(0.5 * usual)
    assert evidence["late_share"] == pytest.approx(0.5)
    assert evidence["kinds"] == ["grads-reduce-scatter"]
    assert [row["late_s"] for row in evidence["members"]] == pytest.approx(
        [0.5 * usual, 0.3 * usual]
    )
    assert job.healed(candidate) == pytest.approx(job.sound.array)


# Workers.


@pytest.mark.parametrize(("factor", "named"), [(1.019, False), (1.021, True), (1.5, True)])
def test_a_slow_worker(factor, named):
    job = Job()
    own = job.ops(FORWARD, BACKWARD, stage=1)
    job.array[own, :, 2] *= factor
    candidate = job.workers()
    assert (candidate is not None) == named
    if named:
        assert candidate.where == {"workers": [[2, 1]]}
        evidence = candidate.evidence
        assert evidence["factors"] == pytest.approx([factor])
        assert (evidence["steps"], evidence["pattern"]) == ("all", "one worker")
        assert not candidate.ambiguous
        healed = job.healed(candidate)
        # a slow machine has no more work than others: its extra time vanishes
        for kind in (FORWARD, BACKWARD):
            healthy = job.sound.array[job.ops(kind)]
            assert healed[job.ops(kind)] == pytest.approx(healthy)


def test_a_worker_slow_in_backwards_counts_with_their_weight():
    """Of two kinds, the slow one's share of the stage's time."""
    job = Job()
    job.array[job.ops(BACKWARD, stage=1), :, 2] *= 1.3
    forward, backward = (
        job.sound.array[job.ops(kind, stage=1)].sum() for kind in (FORWARD, BACKWARD)
    )
    expected = 1 + 0.3 * backward / (forward + backward)
    assert job.workers().evidence["factors"] == pytest.approx([expected])


@pytest.mark.parametrize(
    ("factor", "slow_steps", "named"), [(1.049, 2, False), (1.052, 2, True), (1.5, 1, True)]
)
def test_a_worker_slow_in_some_steps(factor, slow_steps, named):
    job = Job()
    own = job.ops(FORWARD, BACKWARD, stage=1)
    job.array[np.ix_(own, range(slow_steps), [2])] *= factor
    candidate = job.workers()
    assert (candidate is not None) == named
    if named:
        assert candidate.where == {"workers": [[2, 1]]}
        assert candidate.evidence["steps"] == list(range(100, 100 + slow_steps))
        assert candidate.evidence["factors"] == pytest.approx([factor])
        assert f" in {slow_steps} of 8 steps" in candidate.text


@pytest.mark.parametrize(("second", "named"), [(1.021, 1), (1.029, 1), (1.031, 2), (1.051, 2)])
def test_a_slower_worker_dwarfs_one_under_five_percent(second, named):
    """Half as far off as the worst, or 5%."""
    job = Job(dp=8)
    job.array[job.ops(FORWARD, BACKWARD, stage=1), :, 2] *= 1.06
    job.array[job.ops(FORWARD, BACKWARD, stage=0), :, 5] *= second
    workers = job.workers().where["workers"]
    assert workers == [[2, 1], [5, 0]][:named]


def test_two_workers_the_slower_first():
    job = Job()
    job.array[job.ops(FORWARD, BACKWARD, stage=1), :, 2] *= 1.3
    job.array[job.ops(FORWARD, BACKWARD, stage=0), :, 1] *= 1.5
    candidate = job.workers()
    assert candidate.where["workers"] == [[1, 0], [2, 1]]
    assert candidate.evidence["factors"] == pytest.approx([1.5, 1.3])
    assert candidate.evidence["pattern"] == "several workers"


@pytest.mark.parametrize(("slow", "mostly"), [(2, False), (3, True)])
def test_most_replicas_are_more_than_half(slow, mostly):
    """Of 4; slow by 30% on every stage."""
    job = Job()
    job.array[job.ops(FORWARD, BACKWARD), :, :slow] *= 1.3
    assert (REPLICAS in job.fit.mostly_slow) == mostly
    candidate = job.workers()
    assert {dp for dp, _ in candidate.where["workers"]} == set(range(slow))
    assert candidate.alternative == ("sequence-length" if mostly else "")


def test_most_workers_of_a_stage_slow_beside_a_fast_one():
    """3 of 4, by 30%: measured against the one that agrees with the other stages."""
    job = Job()
    job.array[job.ops(FORWARD, BACKWARD, stage=1), :, :3] *= 1.3
    candidate = job.workers()
    assert sorted(candidate.where["workers"]) == [[0, 1], [1, 1], [2, 1]]
    assert candidate.evidence["factors"] == pytest.approx([1.3] * 3)
    assert candidate.alternative == "stage-imbalance"
    assert "most workers of stage 1" in candidate.ambiguous
    assert stage_cause(job.durations, job.fit) is None


def test_a_lasting_link_costs_more_than_a_flapping_one():
    """1.35 times in all, against 30% late: what it exceeds by, and how often, are compared."""
    job = Job()
    job.array[job.link(0), :, 1] *= 1.35
    job.array[job.link(1), :2, 2] *= 5.0
    links = job.links().evidence["links"]
    assert links == [[[1, 0], [1, 1]], [[2, 1], [2, 2]]]
    job.array[job.link(1), :4, 2] *= 5.0
    assert job.links().evidence["links"] == [[[2, 1], [2, 2]], [[1, 0], [1, 1]]]


# Stages.


@pytest.mark.parametrize(
    ("forward", "backward", "load", "named"),
    [
        # two of three stages take 1: load f / ((f + 2) / 3)
        (1.0305, 1.0305, 3 * 1.0305 / 3.0305, True),
        (1.0300, 1.0300, 3 * 1.0300 / 3.0300, False),
        (1.5, 1.2, None, True),
    ],
)
def test_an_overfull_stage(forward, backward, load, named):
    job = Job()
    job.array[job.ops(FORWARD, stage=2)] *= forward
    job.array[job.ops(BACKWARD, stage=2)] *= backward
    candidate = stage_cause(job.durations, job.fit)
    assert (candidate is not None) == named
    if named:
        evidence = candidate.evidence
        assert candidate.where == {"stage": 2}
        assert evidence["forward_ratio"] == pytest.approx(forward)
        assert evidence["backward_ratio"] == pytest.approx(backward)
        if load:
            assert evidence["load_over_mean"] == pytest.approx(load)
        of_stages = [
            sum(float(job.array[job.ops(kind, stage=s)][0, 0, 0]) for kind in (FORWARD, BACKWARD))
            for s in range(3)
        ]
        assert evidence["loads_s"] == pytest.approx(of_stages)
        assert not candidate.ambiguous
        healed = job.healed(candidate)
        for kind in (FORWARD, BACKWARD):
            rows = healed[job.ops(kind)]
            assert rows == pytest.approx(rows[0, 0, 0])  # all stages alike
            assert rows.sum() == pytest.approx(job.array[job.ops(kind)].sum())


@pytest.mark.parametrize(("apart", "ambiguous"), [(1.028, False), (1.033, True)])
def test_of_two_replicas_unlike_workers_may_be_slow(apart, ambiguous):
    """3%, in logarithms."""
    job = Job(dp=2)
    own = job.ops(FORWARD, BACKWARD, stage=2)
    job.array[own] *= 1.5
    job.array[own, :, 1] *= apart
    candidate = stage_cause(job.durations, job.fit)
    assert bool(candidate.ambiguous) == ambiguous
    assert candidate.alternative == ("worker" if ambiguous else "")


def test_of_one_replica_a_slow_worker_looks_alike():
    job = Job(dp=1)
    job.array[job.ops(FORWARD, BACKWARD, stage=2)] *= 1.5
    candidate = stage_cause(job.durations, job.fit)
    assert candidate.ambiguous.startswith("with one replica")


# Sequences.


def with_lengths(cv, stages=(0, 1, 2), **size):
    """Microbatches of all steps and replicas cost 1 +- cv by turns, on some stages."""
    job = Job(**size)
    rng = np.random.default_rng(1)
    n = job.array.shape
    for dp in range(n[2]):
        for step in range(n[1]):
            sign = rng.permutation(np.repeat([1, -1], 3))
            for stage in stages:
                for kind in (FORWARD, BACKWARD):
                    ops = job.ops(kind, stage=stage)
                    job.array[ops, step, dp] *= 1 + cv * sign[job.graph.microbatch[ops]]
    return job


@pytest.mark.parametrize(("cv", "named"), [(0.018, False), (0.022, True), (0.3, True)])
def test_microbatches_that_vary(cv, named):
    job = with_lengths(cv)
    candidate = sequence_cause(job.durations, job.fit)
    assert (candidate is not None) == named
    if named:
        evidence = candidate.evidence
        assert evidence["correlation"] == pytest.approx(1.0)
        assert evidence["replicas_showing_it"] == 1
        assert evidence["coefficient_of_variation"] == pytest.approx(cv, rel=0.25)
        healed = job.healed(candidate)
        for kind in (FORWARD, BACKWARD):
            assert np.ptp(healed[job.ops(kind)]) < 1e-9


def test_microbatches_that_vary_on_one_stage_only_are_no_sequences():
    job = with_lengths(0.3, stages=(1,))
    assert sequence_cause(job.durations, job.fit) is None


@pytest.mark.parametrize(
    ("changes", "named", "ambiguous"),
    [
        ({}, True, False),
        ({"_correlations": [0.91] * 4}, True, False),
        ({"_correlations": [0.89] * 4}, False, False),
        ({"_correlations": [0.9] * 2 + [0.5] * 2}, True, False),  # half of the replicas
        ({"_correlations": [0.91] + [0.5] * 3}, False, False),
        ({"_between_stages": 0.5}, True, False),
        ({"_between_stages": 0.49}, False, False),
        # neighbours in time agree half as well as forward and backward do
        ({"_between_neighbours": 0.5, "_same_in_all_steps": 0.0}, True, False),
        ({"_between_neighbours": 0.51, "_same_in_all_steps": 0.49}, False, False),
        ({"_between_neighbours": 0.51, "_same_in_all_steps": 0.5}, True, True),
        ({"_between_neighbours": 0.45, "_correlations": [0.91] * 4, "_same_in_all_steps": 0},
         True, False),
    ],
)  # fmt: skip
def test_what_makes_variation_one_of_sequences(monkeypatch, changes, named, ambiguous):
    values = {
        "_correlations": [1.0] * 4, "_between_stages": 1.0, "_between_neighbours": 0.0,
        "_same_in_all_steps": 0.0,
    } | changes  # fmt: skip
    for name, value in values.items():
        array = np.array(value) if name == "_correlations" else value
        monkeypatch.setattr(microbatches, name, lambda *_, value=array: value)
    job = with_lengths(0.1)
    candidate = sequence_cause(job.durations, job.fit)
    assert (candidate is not None) == named
    if named:
        assert bool(candidate.ambiguous) == ambiguous


# What is kept of the candidates.


class _Game:
    """Removing cause ``i`` saves ``alone[i]`` first, and ``last[i]`` when all others are gone."""

    def __init__(self, alone, last):
        self.alone, self.last, self.n = alone, last, len(alone)

    def step_s(self, removed):
        if len(removed) <= 1:
            return np.array([1.0 - sum(self.alone[i] for i in removed)])
        missing = [i for i in range(self.n) if i not in removed]
        return np.array([0.5 + sum(self.last[i] for i in missing)])


def test_candidates_that_save_nothing_are_dropped():
    """Half a percent of the step, removed first or last."""
    game = _Game([0.0051, 0.0049, 0.0, 0.0], [0.0, 0.0, 0.005, 0.0049])
    assert MIN_OF_STEP == 0.005
    assert _worth_it(game, 4, 1.0) == [0, 2]


def test_resamples_weigh_steps():
    weights = _resamples(7)
    assert weights.shape == (500, 7)
    assert weights.sum(axis=1) == pytest.approx(1.0)
    assert set(np.rint(weights * 7).ravel().tolist()) <= set(range(8))
    assert weights.mean(axis=0) == pytest.approx(1 / 7, abs=0.02)


def test_a_finding_in_numbers():
    """Of a gap of 1 s in steps of 10 s a cause takes 0.2, 0.3, 0.4 s."""
    cost, gap = np.array([0.2, 0.3, 0.4]), np.ones(3)
    resamples = np.eye(3)
    result = SimpleNamespace(lasted_s=np.full(3, 10.0))
    trust = SimpleNamespace(confidence=lambda candidate, agreeing: agreeing)
    candidate = diagnosis.Candidate("worker", "slow", {}, {"a": 1}, Effect())
    finding = _Judge(result, gap, 0.05, resamples, trust).finding(candidate, cost, 0.05)
    assert finding.share == pytest.approx(0.3)
    assert finding.share_of_step == pytest.approx(0.03)
    assert finding.interval == pytest.approx((0.21, 0.39))
    assert finding.confidence == 1
    assert finding.evidence == {"a": 1, "share_sampling_error": 0.05}
    weak = _Judge(result, gap, 0.05, resamples, trust).finding(candidate, cost - 0.2, 0.0)
    assert weak.confidence == pytest.approx(2 / 3)  # 0 s is under 5% of the gap
    assert weak.evidence == {"a": 1}


@pytest.mark.parametrize(("seconds", "agreeing"), [(0.0499, 0), (0.0501, 1)])
def test_a_cause_persists_with_five_percent_of_the_gap_and_half_of_the_step(seconds, agreeing):
    result = SimpleNamespace(lasted_s=np.full(3, 10.0))
    trust = SimpleNamespace(confidence=lambda candidate, agreeing: agreeing)
    candidate = diagnosis.Candidate("worker", "slow", {}, {}, Effect())
    judge = _Judge(result, np.full(3, 0.1), 0.005, np.eye(3), trust)
    assert judge.finding(candidate, np.full(3, seconds), 0.0).confidence == agreeing
    wide = _Judge(result, np.full(3, 1.0), 0.05, np.eye(3), trust)
    assert wide.finding(candidate, np.full(3, seconds), 0.0).confidence == agreeing


def test_resamples_without_a_gap_say_nothing_of_shares():
    """Under a tenth of the usual gap."""
    result = SimpleNamespace(lasted_s=np.full(2, 10.0))
    trust = SimpleNamespace(confidence=lambda candidate, agreeing: agreeing)
    candidate = diagnosis.Candidate("worker", "slow", {}, {}, Effect())
    judge = _Judge(result, np.array([0.09, 1.91]), 0.05, np.eye(2), trust)
    finding = judge.finding(candidate, np.array([0.09, 0.191]), 0.0)
    assert finding.interval == pytest.approx((0.1, 0.1))


@pytest.mark.parametrize(("steps", "slow"), [(1, 1.09), (2, 1.06), (3, 1.05)])
def test_few_steps_name_no_worker_whose_steps_may_just_vary(steps, slow):
    """Workers of a healthy job differ from step to step; few steps do not show by how much."""

    def cause(n_steps, factor):
        job = Job(dp=8, pp=2, steps=n_steps)
        job.array[job.ops(FORWARD, BACKWARD, stage=1), :, 3] *= factor
        return worker_cause(job.durations, job.fit, job.steps)

    assert cause(steps, slow) is None
    for n_steps, factor in ((steps, 1.2), (6, slow)):
        assert cause(n_steps, factor).where == {"workers": [[3, 1]]}


def test_beside_the_worst_worker_noise_names_no_other():
    """128 noisy workers: one is 5 standard errors off by chance (seeds 1 to 3 of the benchmark)."""
    for seed in range(3):
        job = Job(dp=64, pp=2, microbatches=8, steps=8)
        passes = job.ops(FORWARD, BACKWARD)
        rng = np.random.default_rng(seed)
        job.array[passes] *= np.exp(0.15 * rng.normal(size=job.array[passes].shape))
        job.array[job.ops(FORWARD, BACKWARD, stage=1), :, 39] *= 1.3
        candidate = worker_cause(job.durations, job.fit, job.steps)
        assert candidate.where == {"workers": [[39, 1]]}


@pytest.mark.parametrize("steps", [1, 2, 3, 6])
def test_several_slow_workers_are_named_in_few_steps_too(steps):
    job = Job(dp=64, pp=4, microbatches=4, steps=steps)
    slow = {(3, 1): 1.5, (5, 2): 1.3, (6, 0): 1.15}
    for (dp, pp), factor in slow.items():
        job.array[job.ops(FORWARD, BACKWARD, stage=pp), :, dp] *= factor
    named = worker_cause(job.durations, job.fit, job.steps).where["workers"]
    assert sorted(map(tuple, named)) == sorted(slow)
