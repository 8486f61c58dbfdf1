"""What findings say: evidence, thresholds, places and words of every cause, by hand."""

import math
import random
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.diagnose import diagnose, diagnosis
from paceline.diagnose.groups import (
    Group,
    _judge,
    _member_entry,
    _of_groups,
    _of_members,
    _on_time,
    _Others,
    _rows,
    slow_groups,
)
from paceline.diagnose.links import _ambiguity, _effects, _Links, _text, link_cause
from paceline.graph import from_trace
from paceline.results.words.evidence import evidence_phrases
from paceline.synth import SlowLink, SlowNic, SlowWorker, SynthSpec, synthesize
from paceline.trace import OpKind
from paceline.whatif import analyze
from program_jobs import Compute, Launch, Run, Wait, trace_of_runs


def judge(one, others):
    table = np.stack([entry.level for entry in (one, *others)])
    return _judge(one, _Others(table, np.median(table, axis=1), 0))


# Exact jobs with one cause each.


def findings(**spec):
    measured = from_trace(
        synthesize(
            SynthSpec(**({"dp": 8, "pp": 4, "microbatches": 8, "steps": 6, "noise": 0.0} | spec))
        )
    )
    result = analyze(measured)
    return result, {f.cause: f for f in diagnose(measured, result).findings}


def test_the_evidence_of_a_slow_worker():
    result, found = findings(slow_workers=(SlowWorker(3, 1, 1.5),))
    finding = found["worker"]
    assert finding.text == "worker dp 3, stage 1 is 1.50x slow"
    assert finding.where == {"workers": [[3, 1]]}
    assert finding.evidence == {
        "factors": [pytest.approx(1.5)],
        "threshold": 1.02,
        "pattern": "one worker",
        "steps": "all",
        "source": "what-if paper, 5.1",
        "worst_slowdown": result.by_worker[1, 3],
        "m_w": result.m_w,
    }
    assert (finding.ambiguous, finding.alternative) == ("", "")
    assert finding.share == pytest.approx(1, abs=0.01)
    assert finding.interval == pytest.approx((finding.share, finding.share))


def test_the_evidence_of_several_slow_workers():
    """The slowest first; of one replica, but not all of it."""
    _, found = findings(slow_workers=(SlowWorker(3, 1, 1.3), SlowWorker(3, 2, 1.6)))
    finding = found["worker"]
    assert finding.text == "2 workers are slow, the worst (dp 3, stage 2) 1.60x"
    assert finding.where == {"workers": [[3, 2], [3, 1]]}
    assert finding.evidence["factors"] == pytest.approx([1.6, 1.3])
    assert finding.evidence["pattern"] == "one dp rank"


def test_the_evidence_of_a_long_stage():
    """Stage 3 takes 1.4 (1.2) times: forwards and backwards of 1 and 2 parts, 3.8 over 12.8 / 4."""
    result, found = findings(stage_factors=((1, 1), (1, 1), (1, 1), (1.4, 1.2)))
    finding = found["stage-imbalance"]
    assert finding.where == {"stage": 3}
    assert finding.text == (
        "stage 3 (the last: loss layer) computes 1.40x (forward) and 1.20x (backward) as long as "
        "the other stages"
    )
    evidence = finding.evidence
    assert evidence["forward_ratio"] == pytest.approx(1.4)
    assert evidence["backward_ratio"] == pytest.approx(1.2)
    loads = np.array(evidence["loads_s"])
    assert loads[:3] == pytest.approx(loads[0])
    assert evidence["load_over_mean"] == pytest.approx(loads[3] / loads.mean())
    assert (evidence["threshold"], evidence["source"]) == (1.02, "what-if paper, 5.2")
    assert evidence["stage_slowdown"] == result.by_stage[3]
    assert evidence["m_stage"] == pytest.approx(result.m_s)
    assert finding.ambiguous == ""


def test_the_evidence_of_a_slow_link():
    _, found = findings(slow_links=(SlowLink(5, 1, 80.0),))
    finding = found["link"]
    assert finding.text == "the link between stages 1 and 2 of dp 5 is 80.0x slow"
    assert finding.where == {"link": [[5, 1], [5, 2]]}
    assert finding.evidence == {
        "median_over_usual": pytest.approx(80),
        "late_share": 1.0,
        "links": [[[5, 1], [5, 2]]],
        "n_links": 1,
        "threshold": 1.3,
        "source": "what-if paper, 4.3; falcon paper, 3",
    }
    assert finding.ambiguous == ""


def test_the_evidence_of_a_slow_group():
    _, found = findings(slow_nics=(SlowNic(2, 1, 30.0),))
    finding = found["dp-network"]
    label = finding.evidence["groups"][0]["kind"]
    assert finding.where == {"group": {"stage": 1, "kind": label}}
    assert finding.text == f"the data-parallel group of stage 1 is 30.0x slow ({label})"
    evidence = finding.evidence
    assert evidence["median_over_usual"] == pytest.approx(30)
    assert evidence["slow_share"] == 1.0
    assert evidence["threshold"] == 1.3
    assert evidence["source"] == "what-if paper, 4.3; falcon paper, 3"
    assert "steps" not in evidence
    assert {entry["stage"] for entry in evidence["groups"]} == {1}
    for entry in evidence["groups"]:
        assert entry["median_over_usual"] == pytest.approx(30)
        assert entry["slow_share"] == 1.0
    assert finding.ambiguous == ""


def test_the_evidence_of_launch_delays():
    result, found = findings(launch_delay=(1.0, 1.0))
    finding = found["launch-delay"]
    lost = 1 - result.simulated_s.mean() / result.traced_s.mean()
    assert finding.text.startswith(f"{lost:.1%} of the step passes between operations")
    # its steps have no absolute times, so their overlap is not known
    assert finding.text.endswith("most of it at the start of steps")
    assert finding.ambiguous
    assert finding.share is None
    assert finding.share_of_step == pytest.approx(lost)
    assert finding.evidence["threshold"] == 1.03
    assert finding.evidence["source"] == "what-if paper, 6"
    assert finding.evidence["launch_slowdown"] == result.launch_slowdown
    assert finding.evidence["step_start"] == result.launch_delay.step_start
    by_kind = finding.evidence["by_kind"]
    assert len(by_kind) == 5
    assert list(by_kind.values()) == sorted(by_kind.values(), reverse=True)
    assert finding.evidence["largest"] == next(iter(by_kind.values()))
    assert finding.where == {"group": {"kind": next(iter(by_kind))}}
    # Shares of the traced step, as the remedy tells them, not of the step without delays.
    text = "; ".join(evidence_phrases(finding))
    kind, factor = next(iter(by_kind.items()))
    share = (factor - 1) / result.launch_slowdown
    assert f"add, as shares of the traced step: before {kind} {share:.1%}" in text
    start = (result.launch_delay.step_start - 1) / result.launch_slowdown
    assert f"delays at the start of steps alone add {start:.1%} of the traced step" in text


def test_the_evidence_of_sequence_lengths():
    result, found = findings(sequence_imbalance=0.3, microbatches=16)
    finding = found["sequence-length"]
    assert finding.where == {}
    cv = finding.evidence["coefficient_of_variation"]
    assert cv == pytest.approx(0.3, abs=0.05)
    assert finding.text.startswith(f"microbatches differ in cost by {cv:.0%} (standard deviation)")
    assert finding.evidence["correlation"] == pytest.approx(1)
    assert finding.evidence["replicas_showing_it"] == 1.0
    assert finding.evidence["threshold"] == 0.9
    assert finding.evidence["source"] == "what-if paper, 5.3"
    assert abs(finding.evidence["correlation_of_neighbours"]) < 0.3
    assert result.straggling


# Links.


def links_of(level, dp=None, low=None, late=None):
    n = len(level)
    low = np.zeros(n, dtype=np.int64) if low is None else np.array(low)
    return _Links(
        np.arange(n) if dp is None else np.array(dp), low, low + 1, np.array(level, dtype=float),
        np.zeros(n, dtype=np.int64) if late is None else np.array(late),
        np.full(n, 100), np.zeros((n, 3)), (),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("peers", "n", "is_slow", "text"),
    [
        (1, 1, True, "the link between stages 0 and 1 of dp 3 is 2.5x slow"),
        (2, 1, True, "the link between stages 0 and 1 of dp 1, peer 1 is 2.5x slow"),
        (1, 3, True, "the link between stages 0 and 1 of dp 3 is 2.5x slow (and 2 more)"),
        (
            1,
            1,
            False,
            "the link between stages 0 and 1 of dp 3 is flapping (12% of transfers late)",
        ),
    ],
)
def test_links_in_words(peers, n, is_slow, text):
    links = links_of([1.0] * 4, late=[0, 0, 0, 12])
    assert _text(SimpleNamespace(peers=peers), links, 3, n, is_slow, 2.5) == text


@pytest.mark.parametrize(
    ("blamed", "n_dp", "words"),
    [
        ([0], 3, ""),
        ([0, 1, 2], 3, "all replicas show it"),
        ([3], 1, "there is one replica"),
        ([0, 3], 3, "all replicas show it"),  # link 3 has no like
    ],
)
def test_links_without_a_healthy_like(blamed, n_dp, words):
    links = links_of([1.0] * 4, dp=[0, 1, 2, 0], low=[0, 0, 0, 1])
    said = _ambiguity(links, np.array(blamed), n_dp)
    assert said.startswith(words)
    assert bool(said) == bool(words)


def test_late_transfers_of_a_flapping_link_become_usual_and_others_stay():
    """Usual 1.5 times the kind's; late from twice that on."""
    over = np.array([[[1.5], [3.0], [3.1], [6.0]]])  # [pair, step, replica]
    links = _Links(
        *(np.zeros(1, dtype=np.int64),) * 6, np.array([[4, 0, 0]]), [(np.array([[7, 8]]), over)]
    )
    sender, receiver = _effects(links, 0, 1.0, 1.5)
    assert (sender.variant, sender.dp_index, sender.ops.tolist()) == (4, 0, [7])
    assert receiver.ops.tolist() == [8]
    assert sender.factor[0, :, 0] == pytest.approx([1, 1, 1.5 / 3.1, 1.5 / 6])
    # a slow link: half of all times, and none late after that
    halved, _ = _effects(links, 0, 0.5, 1.5)
    assert halved.factor[0, :, 0] == pytest.approx([0.5] * 4)


def link_job(factors, n_dp=4, n_steps=20):
    """Transfers between two stages that take ``factors`` [dp] or [step, dp] of 1 s."""
    kinds = np.array([OpKind.FORWARD_SEND, OpKind.FORWARD_RECV])
    block = np.broadcast_to(np.asarray(factors, dtype=float), (n_steps, n_dp))
    block = np.stack([block, block])  # [op, step, dp]
    graph = SimpleNamespace(
        n_dp=n_dp, kind=kinds, pp=np.array([0, 1]), variant_dps=(np.arange(n_dp),),
        variant_ops=lambda v: slice(0, 2), variant_pairs=lambda v: np.array([[0, 1]]), peers=1,
    )  # fmt: skip
    durations = SimpleNamespace(graph=graph, block=lambda v: block)
    return link_cause(durations, np.ones(2))


@pytest.mark.parametrize(
    ("factors", "n_links"),
    [
        ([1.29, 1, 1, 1], 0),
        ([1.3, 1, 1, 1], 1),
        ([1.31, 1, 1, 1], 1),
        ([1.5, 1], 1),  # of two, one may be
        ([1.5], 0),  # one has none to compare with
        ([1.5, 1.5, 1, 1, 1], 2),
        ([1.5, 1.5, 1.5, 1, 1], 0),  # most of all links are no cause
    ],
)
def test_slow_links_count_from_1_3_on(factors, n_links):
    cause = link_job(factors, n_dp=len(factors))
    assert (cause.evidence["n_links"] if cause else 0) == n_links


def test_a_slow_link_stands_out_of_the_spread_of_links():
    """Logarithms -x, -x, 0, 0, x, x and one: their deviations' middle is x."""
    x = 0.06
    others = np.exp([-x, -x, 0.0, 0.0, x, x])
    bar = math.exp(6 * 1.4826 * x)
    for factor, named in ((bar * 0.97, False), (bar * 1.05, True)):
        assert (link_job([*others, factor], n_dp=7) is not None) == named


def test_the_slowest_link_comes_first():
    cause = link_job([1, 1.5, 1, 3, 1, 1, 1, 1], n_dp=8)
    assert cause.where == {"link": [[3, 0], [3, 1]]}
    assert cause.evidence["links"] == [[[3, 0], [3, 1]], [[1, 0], [1, 1]]]
    assert cause.evidence["median_over_usual"] == pytest.approx(3)
    assert cause.evidence["late_share"] == 1.0
    assert cause.text.endswith("of dp 3 is 3.0x slow (and 1 more)")
    assert [effect.dp_index for effect in cause.effect.scaled] == [3, 3, 1, 1]
    assert cause.effect.scaled[0].factor == pytest.approx(np.full((1, 20, 1), 1 / 3))


def test_a_link_that_flaps_in_a_fifth_of_its_transfers():
    factors = np.ones((20, 4))
    factors[:4, 2] = 2
    assert link_job(factors) is None  # late is longer than twice the usual time
    factors[:4, 2] = 9
    cause = link_job(factors)
    assert cause.where == {"link": [[2, 0], [2, 1]]}
    assert cause.evidence["late_share"] == pytest.approx(0.2)
    assert cause.evidence["median_over_usual"] == pytest.approx(1)
    assert cause.text.endswith("of dp 2 is flapping (20% of transfers late)")


def test_slow_and_flapping_links_by_what_they_cost():
    """One that takes 40% more, one late in 45% of its transfers: the latter first."""
    factors = np.ones((20, 8))
    factors[:, 1] = 1.4
    factors[:9, 5] = 9
    cause = link_job(factors, n_dp=8)
    assert cause.evidence["links"] == [[[5, 0], [5, 1]], [[1, 0], [1, 1]]]
    assert cause.text.endswith("of dp 5 is flapping (45% of transfers late) (and 1 more)")
    assert cause.evidence["median_over_usual"] == pytest.approx(1)


# Groups.


def group(times, stage=0, kind=OpKind.GRADS_REDUCE_SCATTER, usual_s=1.0):
    times = np.asarray(times, dtype=float)
    if times.ndim == 1:
        times = np.repeat(times[:, None], 3, axis=1)
    members = range(times.shape[1])
    return Group(kind, stage, np.zeros(1, dtype=np.int64), times,
                  [(dp, stage) for dp in members], usual_s)  # fmt: skip


GRAPH = SimpleNamespace(
    peers=1, n_dp=3, variant=np.zeros(1, dtype=np.int64), variant_ptr=np.array([0, 1]),
    worker_name=lambda dp, pp: f"dp {dp}, stage {pp}", kind_name=str,
    replica_variant=np.zeros(9, dtype=np.int64),
    pp=np.zeros(1, dtype=np.int64), dp_index=np.arange(9),
)  # fmt: skip


@pytest.mark.parametrize(
    ("n", "late", "flaps"),
    [
        (300, 9, True),  # 3% of the steps; were 1 in 500 usual, under one in ten thousand
        (500, 10, True),  # 2% is enough
        (501, 10, False),
        (500, 9, False),
        (5, 2, True),  # two steps are enough where chance cannot explain them
        (5, 1, False),
    ],
)
def test_which_share_of_late_steps_is_flapping(n, late, flaps):
    times = np.where(np.arange(n) < late, 9.0, 1.0)
    found = judge(group(times), [group(np.ones(n))] * 3)
    assert (found is not None) == flaps
    if found:
        assert found.steps.sum() == late


def test_late_steps_as_rare_as_those_of_the_others_are_no_flapping():
    """3 of 20, of one mode with the others: chance where another group has as many."""
    times = np.concatenate([np.linspace(0.5, 1.5, 17), [2.1, 2.2, 2.3]])
    others = [group(np.ones(20)), group(np.ones(20)), group(times[::-1])]
    assert judge(group(times), others[:2]).steps.tolist() == [False] * 17 + [True] * 3
    assert judge(group(times), others) is None


def test_a_lone_group_flaps_only_with_two_modes():
    two = np.where(np.arange(20) < 6, 4.0, 1.0)
    assert judge(group(two), []).factor == pytest.approx(4)
    tail = np.concatenate([np.linspace(0.5, 1.9, 16), [2.1, 2.2, 2.3, 2.4]])
    assert judge(group(tail), []) is None


def test_a_flapping_group_in_words():
    steps = np.arange(50, 70)
    late = np.where(np.arange(20) < 3, 4.0, 1.0)
    slow_one = judge(group(late, stage=2, usual_s=0.5), [group(np.ones(20))] * 3)
    cause = _of_groups(SimpleNamespace(graph=GRAPH), [slow_one], steps, 7)
    label = "grads-reduce-scatter"
    assert cause.text == (
        f"the data-parallel group of stage 2 is 4.0x slow in 3 of 20 steps ({label})"
    )
    assert cause.where == {"group": {"stage": 2, "kind": label}}
    entry = {"stage": 2, "kind": label, "median_over_usual": 4.0, "slow_share": 0.15}
    assert cause.evidence == {
        "median_over_usual": 4.0,
        "slow_share": 0.15,
        "groups": [entry],
        "n_groups": 7,
        "threshold": 2.0,
        "source": "what-if paper, 4.3; falcon paper, 3",
        "steps": [50, 51, 52],
    }
    assert cause.ambiguous == ""
    [scaled] = cause.effect.scaled
    assert scaled.dp_index is None
    assert scaled.factor[0, :, 0] == pytest.approx(np.where(np.arange(20) < 3, 1 / 4, 1.0))


@pytest.mark.parametrize(("factor", "ambiguous"), [(1.9, True), (2.0, False)])
def test_a_group_that_is_slow_in_all_steps_may_be_a_larger_stage(factor, ambiguous):
    slow_one = judge(group(np.full(20, factor)), [group(np.ones(20))] * 3)
    cause = _of_groups(SimpleNamespace(graph=GRAPH), [slow_one], np.arange(20), 4)
    assert cause.ambiguous.startswith("a stage with more parameters" if ambiguous else "")
    assert bool(cause.ambiguous) == ambiguous
    assert cause.evidence["threshold"] == 1.3
    [scaled] = cause.effect.scaled
    assert scaled.factor[0, :, 0] == pytest.approx(np.full(20, 1 / factor))


def test_a_late_member_in_words():
    """Rank 1 ends 0.5 x 0.2 s after the others, in 2 of the kinds; rank 4 in one."""
    times = np.ones((10, 8))
    times[:, 1] += 0.5
    first = group(times, kind=OpKind.GRADS_REDUCE_SCATTER, usual_s=0.2)
    second = group(times, kind=OpKind.PARAMS_ALL_GATHER, usual_s=0.1)
    late = [(first, 1, 0.1), (second, 1, 0.05), (second, 4, 0.04)]
    durations = SimpleNamespace(graph=GRAPH)
    cause = _of_members(durations, late)
    assert cause.text == (
        "worker dp 1, stage 0 ends grads-reduce-scatter 100 ms after the other members of its "
        "group (and 1 more)"
    )
    assert cause.where == {"workers": [[1, 0], [4, 0]]}
    assert cause.evidence["late_s"] == 0.1
    assert cause.evidence["late_share"] == pytest.approx(0.5)
    assert cause.evidence["kinds"] == ["grads-reduce-scatter", "params-all-gather"]
    assert cause.evidence["members"][1] == {
        "dp": 1, "stage": 0, "kind": "params-all-gather", "late_s": 0.05
    }  # fmt: skip
    assert (cause.evidence["threshold"], cause.evidence["source"]) == (0.15, "falcon paper, 4.3")
    assert cause.ambiguous.startswith("a clock that is ahead looks the same")
    one = _of_members(durations, late[:2])
    assert one.text.endswith("after the other members of its group")
    # on time, the member takes 1 of 1.5; one that is ahead is left alone
    assert cause.effect.scaled[0].dp_index == 1
    assert cause.effect.scaled[0].factor == pytest.approx(np.full((1, 10, 1), 1 / 1.5))
    assert cause.effect.scaled[2].factor == pytest.approx(np.ones((1, 10, 1)))


def test_the_ops_of_a_slow_group_in_each_structure():
    """Ops 3 and 4 of the first structure, which has 5, and op 8 of the second."""
    graph = SimpleNamespace(variant=np.repeat([0, 1], 5), variant_ptr=np.array([0, 5, 10]))
    rows = _rows(SimpleNamespace(graph=graph), np.array([3, 8, 4]))
    assert [(v, ops.tolist()) for v, ops in rows] == [(0, [3, 4]), (1, [3])]


def test_a_late_member_of_another_structure_is_on_time_by_its_own_op():
    """Ranks 0 and 2 run ops 0 to 4, rank 1 ops 5 to 9; on stage 1 they meet in ops 3 and 8."""
    graph = SimpleNamespace(
        replica_variant=np.array([0, 1, 0]), dp_index=np.array([0, 0, 1]),
        variant=np.repeat([0, 1], 5), variant_ptr=np.array([0, 5, 10]),
        pp=np.array([0, 0, 1, 1, 1] * 2),
    )  # fmt: skip
    times = np.array([[1.0, 2.0, 1.0], [2.0, 3.5, 2.0]])
    workers = [(0, 1), (1, 1), (2, 1)]
    met = Group(OpKind.GRADS_REDUCE_SCATTER, 1, np.array([3, 8]), times, workers, 1.0)
    own = _on_time(SimpleNamespace(graph=graph), met, 1)
    assert (own.variant, own.ops.tolist(), own.dp_index) == (1, [3], 0)
    # 1 and 1.5 s behind: 1.25 in the middle, which is what it ends earlier
    assert own.factor[0, :, 0] == pytest.approx([0.75 / 2, 2.25 / 3.5])
    other = _on_time(SimpleNamespace(graph=graph), met, 2)
    assert (other.variant, other.ops.tolist(), other.dp_index) == (0, [3], 1)
    assert other.factor[0, :, 0].tolist() == [1.0, 1.0]


def test_late_members_of_peers_are_named_by_dp_and_peer():
    """Replica 5 of 3 peers is peer 2 of dp 1."""
    durations = SimpleNamespace(graph=SimpleNamespace(peers=3))
    entry = _member_entry(durations, group(np.ones((4, 6)), stage=1), 5, 0.25)
    assert entry == {
        "dp": 1, "stage": 1, "peer": 2, "kind": "grads-reduce-scatter", "late_s": 0.25
    }  # fmt: skip


# The rest, and what is looked for.


def test_what_passes_is_explained_and_no_rest():
    """Rank 1 takes 1.3 times as long; on any rank a tenth of the parts half as long again.

    What lasts is the worker's; what else S holds, parts that wait for one another, is no straggler.
    """
    program = []
    for kind in ("forward-compute", "backward-compute"):
        for part in range(6):
            name = (kind, part)
            program += [Compute(kind, 0, 0), Launch("grads-reduce-scatter", name, part), Wait(name)]
    ops = [op for op in program if not isinstance(op, Wait)]

    def seconds(step, key, slow=1.3):
        dp, _, nth = key
        if not isinstance(ops[nth], Compute):
            return 0.002
        rng = random.Random(f"{step} {dp} {nth}")
        return 0.05 * (slow if dp == 1 else 1.0) * (1.5 if rng.random() < 0.1 else 1)

    programs = dict.fromkeys([(dp, 0) for dp in range(4)], program)
    runs = [Run(programs, partial(seconds, step)) for step in range(25)]
    measured = from_trace(trace_of_runs(runs), keep_clocks=True)
    result = analyze(measured)
    found = diagnose(measured, result)
    costs = {f.cause: f for f in found.findings}
    worker, rest = costs["worker"], costs["unexplained"]
    assert len(costs) == 2
    gap = result.simulated_s - found.healthy.step_s
    left = gap - worker.cost_s
    # Variation that the slow worker hides passes, too.
    without_worker = [Run(programs, partial(seconds, step, slow=1.0)) for step in range(25)]
    healthy = analyze(from_trace(trace_of_runs(without_worker), keep_clocks=True))
    hidden = healthy.simulated_s - healthy.ideal_s * healthy.lasting.slowdown
    assert found.healthy.passing_s.mean() == pytest.approx(hidden.mean(), rel=0.1)
    assert 0 < found.healthy.passing_s.mean() < left.mean()
    assert rest.cost_s == pytest.approx(left - found.healthy.passing_s)
    assert rest.share < left.mean() / gap.mean() - 0.1


@pytest.mark.parametrize(("slowdown", "looked_for"), [(1.0049, False), (1.005, True)])
def test_causes_are_looked_for_from_half_a_percent_on(monkeypatch, slowdown, looked_for):
    """101 resamples of one step each, which take 1.00 to 2.00 times the ideal: 5% and 95%."""
    monkeypatch.setattr(diagnosis, "_resamples", np.eye)
    cause = SimpleNamespace(id="a cause", part_of="")
    monkeypatch.setattr(diagnosis, "_inside", lambda *_: ([cause], None))
    monkeypatch.setattr(diagnosis, "outside_causes", lambda *_: [])
    monkeypatch.setattr(diagnosis, "name_hosts", lambda finding, _: finding)
    result = SimpleNamespace(
        steps=np.arange(101), simulated_s=2 * np.linspace(1, 2, 101), ideal_s=np.full(101, 2.0),
        slowdown=slowdown,
    )  # fmt: skip
    found = diagnose(None, result)
    assert found.findings == ((cause,) if looked_for else ())
    assert found.slowdown_interval == pytest.approx((1.05, 1.95))


@pytest.mark.parametrize(("above", "slow"), [(20, True), (16, True), (12, False)])
def test_a_group_is_slow_only_if_most_of_its_collectives_are(above, slow):
    """Ten collectives in two steps: their sum is 2.2 times that of the other group, twice."""
    each = np.where(np.arange(20) < above, 3.0, 0.5).reshape(10, 2)
    usual = group(np.full((2, 2), 1.0))
    long = replace(group(np.full((2, 2), 2.2)), each=lambda: each)
    entries = slow_groups([usual, long])
    assert [entry.group is long for entry in entries] == [True] * slow
    if slow:
        # Chernoff's bound for either of two groups.
        share = above / 20
        bound = (
            (0.5 / share) ** above * (0.5 / (1 - share)) ** (20 - above) if share < 1 else 0.5**20
        )
        assert entries[0].chance == pytest.approx(2 * bound)
