"""One rank's slow NIC: by what it sends in a pipeline, by its groups in hybrid sharding."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from paceline.comparison.analysis import compare
from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case, advise
from paceline.synth import SynthSpec
from paceline.trace import OpKind
from paceline.whatif import analyze
from sharded_jobs import HybridJob, ShardedJob
from test_diagnose_transfers import found, retimed

PIPELINE = SynthSpec(dp=1, pp=4, microbatches=8, steps=6, noise=0.01)
FORWARD, BACKWARD = (
    (OpKind.FORWARD_SEND, OpKind.FORWARD_RECV),
    (OpKind.BACKWARD_SEND, OpKind.BACKWARD_RECV),
)


def transfers(graph, sender, receiver):
    """Both ends of what a stage sends to another."""
    pairs = graph.pairs
    kinds = [int(kind) for kind in (FORWARD if sender < receiver else BACKWARD)]
    own = np.isin(graph.kind[pairs[:, 0]], kinds)
    own &= (np.sort(graph.pp[pairs], axis=1) == sorted((sender, receiver))).all(axis=1)
    return pairs[own].ravel()


def slow_sends(*ways, times=8.0):
    def change(graph, durations, _):
        for sender, receiver in ways:
            durations[transfers(graph, sender, receiver)] *= times

    return change


def test_a_worker_that_sends_slowly_both_ways_is_named_in_a_single_pipeline():
    """Two of three links are slow: no majority tells which are usual."""
    healthy, none = retimed(PIPELINE, slow_sends())
    result, diagnosis = retimed(PIPELINE, slow_sends((1, 0), (1, 2), times=200.0))
    assert found(none) == []
    finding = found(diagnosis)[0]
    assert finding.cause == "link"
    assert finding.evidence["in_all"] == [0, 1]
    assert sorted(finding.evidence["links"]) == [[[0, 0], [0, 1]], [[0, 1], [0, 2]]]
    assert "messages from worker dp 0, stage 1 to" in finding.text
    without_s = result.simulated_s.mean() - finding.cost_s.mean()
    assert without_s == pytest.approx(healthy.simulated_s.mean(), rel=0.03)
    measured_gain = 1 - healthy.simulated_s.mean() / result.simulated_s.mean()
    assert finding.share_of_step == pytest.approx(measured_gain, abs=0.03)


def test_a_slow_nic_is_named_where_one_of_its_links_looks_slow_too():
    """Half of a link's messages are slow, so its median is a slow or a usual one by chance."""

    def change(graph, durations, dps):
        slow_sends((1, 2), times=200.0)(graph, durations, dps)
        slow_sends((1, 0), times=4.0)(graph, durations, dps)
        durations[transfers(graph, 2, 1)[:2]] *= 200.0  # more than half of this link's

    _, diagnosis = retimed(PIPELINE, change)
    assert found(diagnosis)[0].evidence["in_all"] == [0, 1]


@pytest.mark.parametrize(
    "ways",
    [
        [(1, 2), (3, 2)],  # who receives slowly sends as fast as others
        [(0, 1), (1, 0), (2, 3), (3, 2)],
        [(s, s + 1) for s in range(3)] + [(s + 1, s) for s in range(3)],
    ],
)
def test_slow_messages_of_several_workers_are_no_slow_nic(ways):
    _, diagnosis = retimed(PIPELINE, slow_sends(*ways, times=200.0))
    assert [f for f in diagnosis.findings if "in_all" in f.evidence] == []


def test_two_steps_are_too_few_to_name_a_nic():
    _, diagnosis = retimed(replace(PIPELINE, steps=2), slow_sends((1, 0), (1, 2), times=200.0))
    assert [f for f in diagnosis.findings if "in_all" in f.evidence] == []


@dataclass(frozen=True)
class SlowNic(HybridJob):
    """Every collective that a rank is in takes some times as long."""

    rank: int = 5
    times: float = 1.0

    def seconds(self, step, dp, name):
        meets = dp % self.shard if name[0] == "between" else dp // self.shard
        own = self.rank % self.shard if name[0] == "between" else self.rank // self.shard
        slow = name[0] in ("gather", "scatter", "between") and meets == own
        return super().seconds(step, dp, name) * (self.times if slow else 1.0)


JOB = SlowNic(dp=8, shard=4, unit_s=0.08, steps=5)


def analysed(job):
    measured = from_trace(job.trace())
    result = analyze(measured)
    return measured, result, diagnose(measured, result)


def test_the_rank_whose_nic_slows_all_its_groups_is_named():
    """Units of one group are no other groups: all were slow alike, and nothing was said."""
    measured, result, diagnosis = analysed(replace(JOB, times=6.0))
    finding = found(diagnosis)[0]
    assert finding.cause == "dp-network"
    assert finding.evidence["in_all"] == [5, 0]
    assert "all slow groups have worker dp 5, stage 0" in finding.text
    assert finding.where["group"]["workers"][0] in ([4, 0], [1, 0])
    advice = advise(Case(measured, result, diagnosis), REMEDIES)
    (remedy,) = [r for r in advice.remedies if r.remedy == "fix-nic"]
    assert "worker dp 5, stage 0 is in all slow groups" in " ".join(remedy.notes)
    assert remedy.step_time_s == pytest.approx(JOB.step_s(), rel=0.03)


def test_healthy_groups_of_some_ranks_are_not_slow():
    for seed in range(3):
        _, _, diagnosis = analysed(replace(JOB, seed=seed, jitter=0.15))
        assert [f for f in diagnosis.findings if f.cause == "dp-network"] == []


def test_one_group_that_is_slow_in_some_steps_is_seen_beside_itself():
    """All ranks in one group, 5 of 16 steps slow: no other group tells what is usual."""

    class SlowSteps(ShardedJob):
        def seconds(self, step, dp, name):
            slow = step >= 11 and name[0] in ("gather", "scatter")
            return super().seconds(step, dp, name) * (5.0 if slow else 1.0)

    _, _, diagnosis = analysed(SlowSteps(steps=16))
    (finding,) = [f for f in diagnosis.findings if f.cause == "dp-network"]
    assert finding.evidence["slow_share"] == 5 / 16
    assert "in 5 of 16 steps" in finding.text


def test_hybrid_jobs_are_compared():
    """One lane for all replicas had no place in the sets that meet (an IndexError)."""
    slow = replace(JOB, times=6.0)
    comparison = compare(JOB.trace(), slow.trace())
    assert comparison.time.change == pytest.approx(slow.step_s() / JOB.step_s() - 1, abs=0.02)
    assert max(comparison.causes, key=lambda row: row.change.seconds).name == "dp-network"
