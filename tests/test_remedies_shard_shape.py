"""Other sizes of FSDP's shard groups against the same jobs, run with them by an event simulator."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.diagnose import diagnose
from paceline.errors import NotApplicableError, RemedyError
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case, shard_shape
from paceline.synth import Layers, SynthSpec, synthesize
from paceline.whatif import analyze
from sharded_jobs import BucketedJob, HybridJob

KIND = next(kind for kind in REMEDIES if kind.name == "shard-groups")
CLOSE = 0.03


def case_of(trace, **options):
    measured = from_trace(trace, keep_clocks=True)
    result = analyze(measured)
    return Case(measured, result, diagnose(measured, result), None, None, options)


def remedy_of(job, **options):
    return KIND.proposed(case_of(job.trace(), ranks_per_node=job.per_node, **options))


def refusal(trace, **options):
    with pytest.raises(NotApplicableError) as error:
        KIND.proposed(case_of(trace, **options))
    return str(error.value)


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(("now", "then"), [(8, 4), (8, 2), (4, 8), (4, 2), (2, 4)])
def test_another_shape_is_the_job_run_in_it(now, then, blocking, monkeypatch):
    monkeypatch.setattr(shard_shape, "need_gain", lambda *_: None)  # losses are held, too
    job = HybridJob(shard=now, jitter=0.0, blocking_scatters=blocking, latency_s=0.001, uneven=0.0)
    told = {"node_speedup": job.node_speedup, "latency_us": 2e6 * (now - 1) * job.latency_s}
    remedy = remedy_of(job, shard=then, **told)
    assert remedy.step_time_s == pytest.approx(replace(job, shard=then).step_s(), rel=1e-9)
    assert remedy.change["memory_factor"] == now / then


def test_groups_within_a_node_gain_where_links_between_nodes_are_slow():
    job = HybridJob(unit_s=0.2, jitter=0.05, slow={3: 1.2})
    remedy = remedy_of(job, node_speedup=8.0, latency_us=0.0)
    assert remedy.change["shard"] == 4
    true_s = replace(job, shard=4).step_s()
    assert remedy.step_time_s == pytest.approx(true_s, rel=CLOSE)
    low, high = remedy.interval
    assert low - 0.01 <= 1 - true_s / job.step_s() <= high + 0.01
    assert any("2 times as much of each GPU" in note for note in remedy.notes)


def test_an_hsdp_trace_tells_how_fast_links_within_a_node_are():
    job = HybridJob(dp=16, shard=4, unit_s=0.4, node_speedup=12.0, jitter=0.02)
    case = case_of(job.trace(), ranks_per_node=4, latency_us=0.0)
    remedy_groups = shard_shape.recorded_groups(case.measured, 4)
    assert remedy_groups.node_speedup(0.0, 1) == pytest.approx(12.0, rel=0.1)
    predicted = shard_shape._predictions(case, remedy_groups, 16)
    assert len(predicted) == 1
    true_s = replace(job, shard=16).step_s()
    assert predicted[0].mean_s == pytest.approx(true_s, rel=CLOSE)


def random_job(seed):
    rng = np.random.default_rng(seed)
    return HybridJob(
        dp=8,
        per_node=int(rng.choice([2, 4, 8])),
        shard=int(rng.choice([2, 4, 8])),
        units=int(rng.integers(2, 8)),
        latency_s=float(rng.choice([0.0, 0.0001, 0.001])),
        unit_s=float(rng.uniform(0.01, 0.2)),
        node_speedup=float(rng.uniform(1, 10)),
        microbatches=int(rng.integers(1, 3)),
        ahead=int(rng.integers(0, 2)),
        jitter=0.02,
        steps=2,
        seed=seed,
    )


def test_promises_hold_where_latency_and_links_are_told():
    n_promised = 0
    for seed in range(12):
        job = random_job(seed)
        hops = 2 * (job.shard - 1)
        told = {"latency_us": 1e6 * hops * job.latency_s, "node_speedup": job.node_speedup}
        try:
            remedy = remedy_of(job, **told)
        except NotApplicableError:
            continue
        n_promised += 1
        true_s = replace(job, shard=remedy.change["shard"]).step_s()
        assert remedy.step_time_s == pytest.approx(true_s, rel=CLOSE), seed
        assert true_s < job.step_s()
    assert n_promised > 5


def test_a_promise_without_them_is_kept_or_not_made():
    n_promised = 0
    for seed in range(12):
        job = replace(random_job(seed), unit_s=0.01 + 0.002 * seed)
        try:
            remedy = remedy_of(job)
        except NotApplicableError:
            continue
        n_promised += 1
        true_s = replace(job, shard=remedy.change["shard"]).step_s()
        low, high = remedy.interval
        assert low - CLOSE <= 1 - true_s / job.step_s() <= high + CLOSE, seed
    assert n_promised > 0


def test_what_the_trace_leaves_open_is_not_promised():
    job = HybridJob(unit_s=0.2)
    trace = job.trace()
    assert "does not say which ranks share a node" in refusal(trace)
    nothing_told = refusal(trace, ranks_per_node=4)
    assert "give --latency-us" in nothing_told
    assert "and --node-speedup" in nothing_told
    assert "--latency-us" not in refusal(trace, ranks_per_node=4, latency_us=0.0)
    assert "lie unevenly" in refusal(trace, ranks_per_node=3, shard=4)
    assert "share one copy of the parameters already" in refusal(trace, ranks_per_node=4, shard=8)
    assert "no params-all-gather" in refusal(BucketedJob().trace(), ranks_per_node=4)
    for option in (
        {"shard": 3},
        {"shard": 1},
        {"ranks_per_node": 0},
        {"node_speedup": 0.5},
        {"backend": "mpi"},
    ):
        with pytest.raises(RemedyError):
            KIND.proposed(case_of(trace, **{"ranks_per_node": 4, "shard": 4} | option))


def test_tensor_parallel_peers_keep_their_own_groups():
    layers = Layers(3, fsdp=True, shard=4)
    spec = SynthSpec(dp=4, pp=2, tp=2, microbatches=4, steps=4, layers=layers)
    measured = from_trace(synthesize(spec))
    groups = shard_shape.recorded_groups(measured, 4)
    assert groups.ranks == 4
    shard, copies = groups.partitions(2)
    assert shard.tolist() == [0, 2, 0, 2, 1, 3, 1, 3]
    assert copies.tolist() == [0, 2, 1, 3, 0, 2, 1, 3]


def test_a_scatter_that_may_be_an_all_reduce_is_asked_for():
    """As gloo's: four ranks over two nodes, whose scatters take twice as long as their gathers."""
    job = HybridJob(dp=4, shard=4, per_node=2, unit_s=0.1, jitter=0.0, uneven=0.0)
    told = {"ranks_per_node": 2, "node_speedup": 8.0, "latency_us": 0.0}
    trace = replace(job, scatter_passes=2).trace()
    assert "whose scatter is an all-reduce" in refusal(trace, **told)
    remedy = KIND.proposed(case_of(trace, **told, backend="gloo", shard=2))
    then = replace(job, scatter_passes=2, shard=2)
    assert remedy.step_time_s == pytest.approx(then.step_s(), rel=1e-9)
