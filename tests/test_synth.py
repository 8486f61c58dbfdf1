import json
from dataclasses import replace

import numpy as np
import pytest

from paceline.cli.main import run
from paceline.errors import SynthError
from paceline.graph import from_trace
from paceline.sources import load, parquet
from paceline.sources.seqlens import read_seqlens
from paceline.synth import (
    BASE_S,
    SlowLink,
    SlowNic,
    SlowWorker,
    SynthSpec,
    draw_seqlens,
    synthesize,
)
from paceline.synth.sequences import microbatch_costs
from paceline.trace import OpKind
from paceline.whatif import analyze

SMALL = SynthSpec(dp=4, pp=4, microbatches=8, steps=3)

JOBS = {
    "healthy": SMALL,
    "slow worker": replace(SMALL, slow_workers=(SlowWorker(3, 1, 1.5),)),
    "gpipe": replace(SMALL, schedule="gpipe"),
    "interleaved": replace(SMALL, vpp=2),
    "overlapped": replace(SMALL, vpp=4, overlap=True),
    "no no-ops": replace(SMALL, vpp=2, noops=False),
    "one stage": replace(SMALL, pp=1),
    "one replica": replace(SMALL, dp=1),
    "one worker": replace(SMALL, dp=1, pp=1),
    "replicas differ": replace(SMALL, microbatches=(16, 16, 12, 20)),
    "everything": replace(
        SMALL,
        slow_workers=(SlowWorker(0, 0, 2.0), SlowWorker(1, 3, 1.2)),
        slow_links=(SlowLink(2, 1, 30.0),),
        slow_nics=(SlowNic(0, 0, 5.0), SlowNic(1, 2, 9.0, 0.5)),
        slow_last_stage=(2.0, 1.4),
        sequence_imbalance=0.3,
        gc_pauses=(0.05, 0.2),
        stage_factors=((1.2, 1.0),) * 4,
        seqlens=draw_seqlens(4, 8, 3, 32_768),
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_synthesised_trace_replays_exactly(name):
    result = analyze(synthesize(JOBS[name]))
    assert result.replay_error < 1e-6
    assert result.discrepancy < 1e-6
    assert not result.left_out_steps
    assert not any(sum(counts.values()) for counts in result.clamped.values())


@pytest.mark.parametrize("name", ["healthy", "interleaved", "replicas differ", "everything"])
def test_launch_delays_and_clock_offsets_are_recovered(name):
    spec = replace(JOBS[name], launch_delay=(0.25, 0.5), clock_skew_s=0.02)
    trace = synthesize(spec)
    measured = from_trace(trace)
    truth = np.array(trace.truth["clock_offsets_s"])
    np.testing.assert_allclose(measured.clocks.offset_s, truth - truth.mean(), atol=1e-6)
    assert measured.clocks.corrected
    injected = {(step, dp): seconds for step, dp, seconds in trace.truth["launch_delays"]}
    assert 0 < len(injected) < spec.steps * spec.dp
    graph = measured.graph
    for v, dps in enumerate(graph.variant_dps):
        ops = graph.variant_ops(v)
        first = (graph.kind[ops] == OpKind.FORWARD_COMPUTE) & (graph.seq[ops] == 0)
        first &= graph.pp[ops] == 0
        expected = np.zeros_like(measured.delays.block(v))
        for (step, dp), seconds in injected.items():
            if dp in dps:
                expected[first, step, graph.dp_index[dp]] = seconds
        np.testing.assert_allclose(measured.delays.block(v), expected, atol=1e-6)
    result = analyze(measured)
    assert result.replay_error < 1e-6
    assert result.launch_delay.step_start == pytest.approx(result.launch_slowdown, rel=1e-6)


def test_the_slow_worker_is_found_and_worth_its_factor():
    result = analyze(synthesize(replace(JOBS["slow worker"], noise=0.0)))
    assert result.slowest_workers[0][:2] == (3, 1)
    # Above 1: the ideal is a mean that the slow worker raised; the others are faster than that.
    assert 1.0 < result.m_w < 1.1
    # In units of a healthy forward and backward: the slow stage runs 256 of 1.5, after and before
    # one on stage 0, and idles for one until stages 2 and 3 answer its first forward. Ideally it is
    # 256 and 3 of filling and draining, each of the mean over 16 workers.
    compute = {kind: seconds if kind <= 1 else 0.0 for kind, seconds in BASE_S.items()}
    long = SynthSpec(dp=4, pp=4, microbatches=256, steps=1, noise=0.0, base_s=compute)
    result = analyze(synthesize(replace(long, slow_workers=(SlowWorker(3, 1, 1.5),))))
    expected = (256 * 1.5 + 2) / (259 * (1 + 0.5 / 16))
    assert result.slowdown == pytest.approx(expected, rel=1e-9)


def test_the_last_stage_is_blamed():
    result = analyze(synthesize(replace(SMALL, slow_last_stage=(2.0, 1.5))))
    assert max(result.by_stage, key=result.by_stage.__getitem__) == 3
    assert result.m_s > 0.9


def test_sequence_imbalance_is_the_same_forward_and_backward_and_on_all_stages():
    measured = from_trace(synthesize(replace(SMALL, sequence_imbalance=0.4, noise=0.0)))
    graph, durations = measured.graph, measured.durations.array

    def cost(kind, pp):
        ops = np.flatnonzero((graph.kind == kind) & (graph.pp == pp))
        values = durations[ops[np.argsort(graph.microbatch[ops])]]
        return values / values.mean()

    np.testing.assert_allclose(cost(0, 1), cost(1, 2), rtol=1e-9)
    assert cost(0, 1).std() == pytest.approx(0.4, rel=0.25)


def computes(spec: SynthSpec, kind: OpKind, pp: int) -> np.ndarray:
    """[microbatch, step, dp] durations on a stage."""
    measured = from_trace(synthesize(spec))
    graph = measured.graph
    ops = np.flatnonzero((graph.kind == kind) & (graph.pp == pp))
    return measured.durations.array[ops[np.argsort(graph.microbatch[ops])]]


def test_stage_factors_multiply_forward_and_backward():
    factors = ((1.0, 1.0), (2.0, 1.5), (0.5, 1.0), (1.0, 1.0))
    spec = replace(SMALL, stage_factors=factors, noise=0.0)
    for kind in (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE):
        for pp in range(4):
            expected = BASE_S[kind] * factors[pp][kind]
            np.testing.assert_allclose(computes(spec, kind, pp), expected)
    truth = synthesize(spec).truth
    assert truth["causes"] == [{"cause": "stage-factors", "factors": [list(f) for f in factors]}]


def test_sequence_lengths_set_the_cost_of_microbatches():
    lens = draw_seqlens(4, 8, 3, 4096)
    spec = replace(SMALL, seqlens=lens, sequence_mix=0.4, noise=0.0)
    expected = microbatch_costs(lens, 0.4).transpose(2, 0, 1)
    for kind, pp in ((OpKind.FORWARD_COMPUTE, 0), (OpKind.BACKWARD_COMPUTE, 3)):
        np.testing.assert_allclose(computes(spec, kind, pp), BASE_S[kind] * expected)
    truth = synthesize(spec).truth
    assert truth["causes"][0]["cause"] == "sequence-lengths"
    assert truth["causes"][0]["sequences"] == len(lens.lengths)
    json.dumps(truth)


def test_the_command_writes_lengths_beside_the_trace(tmp_path, capsys):
    trace, lengths = tmp_path / "t.parquet", tmp_path / "s.parquet"
    size = ["--dp", "2", "--pp", "2", "--microbatches", "4,3", "--steps", "2"]
    out = ["--seqlens-out", str(lengths), "-o", str(trace)]
    assert run(["synth", *size, "--max-tokens", "1000", *out]) == 0
    assert "sequences in 14 microbatches" in capsys.readouterr().out
    found = read_seqlens(lengths)
    assert found.counts.tolist() == [[4, 3]] * 2
    assert found.moments()[0].max() <= 1000
    assert load(trace).truth["causes"][0]["sequences"] == len(found.lengths)
    assert run(["synth", *size, *out]) == 2  # both exist
    assert run(["synth", *size, "--max-tokens", "9", "-o", str(tmp_path / "u")]) == 2
    assert "--max-tokens needs --seqlens-out" in capsys.readouterr().err


def test_pauses_lengthen_forwards_and_leave_gc_alone():
    trace = synthesize(replace(SMALL, gc_pauses=(0.1, 0.3), noise=0.0))
    seconds = trace.end - trace.start
    forward = trace.kind == OpKind.FORWARD_COMPUTE
    assert sorted(np.unique(seconds[forward].round(6))) == [0.06, 0.36]
    assert (seconds[forward] > 0.3).sum() == trace.truth["causes"][0]["pauses"]
    assert not seconds[trace.kind == OpKind.GC].any()


def test_a_slow_link_slows_both_directions_of_one_replica():
    measured = from_trace(synthesize(replace(SMALL, slow_links=(SlowLink(2, 1, 50.0),), noise=0.0)))
    graph, durations = measured.graph, measured.durations.array
    slow = np.argwhere(durations > 0.03)
    p2p = slow[graph.kind[slow[:, 0]] <= OpKind.BACKWARD_RECV]
    p2p = p2p[graph.kind[p2p[:, 0]] >= OpKind.FORWARD_SEND]
    assert set(p2p[:, 2]) == {2}
    assert set(graph.pp[p2p[:, 0]]) == {1, 2}
    assert {OpKind(k) for k in graph.kind[p2p[:, 0]]} == {
        OpKind.FORWARD_SEND,
        OpKind.FORWARD_RECV,
        OpKind.BACKWARD_SEND,
        OpKind.BACKWARD_RECV,
    }


def test_a_flapping_nic_hits_some_steps_of_its_stage():
    spec = replace(SMALL, steps=20, slow_nics=(SlowNic(1, 2, 10.0, 0.3),), noise=0.0)
    trace = synthesize(spec)
    measured = from_trace(trace)
    graph = measured.graph
    op = np.flatnonzero((graph.kind == OpKind.GRADS_REDUCE_SCATTER) & (graph.pp == 2))[0]
    hit = np.flatnonzero(measured.durations.array[op].max(axis=1) > 0.2)
    assert hit.tolist() == trace.truth["causes"][0]["steps"]
    assert trace.truth["causes"][0]["cause"] == "flapping-nic"
    assert 0 < len(hit) < 20


def test_skewed_clocks_leave_s_within_2_percent():
    truth = analyze(synthesize(JOBS["everything"]))
    skewed = synthesize(replace(JOBS["everything"], clock_skew_s=0.02))
    assert analyze(skewed).slowdown == pytest.approx(truth.slowdown, rel=0.02)
    kept = analyze(skewed, keep_clocks=True)
    assert not kept.clocks.corrected
    assert any("kept as they are" in warning for warning in kept.warnings)


def test_draws_of_one_cause_do_not_depend_on_the_others():
    plain = from_trace(synthesize(SMALL)).durations.array
    slow = from_trace(synthesize(JOBS["slow worker"])).durations.array
    same = np.isclose(plain, slow, rtol=1e-12, atol=1e-12)
    assert same[:, :, :3].all()
    assert not same.all()


def test_seeds():
    assert (synthesize(SMALL).end == synthesize(SMALL).end).all()
    assert (synthesize(SMALL).end != synthesize(replace(SMALL, seed=1)).end).any()


def test_the_file_keeps_trace_job_and_truth(tmp_path):
    trace = synthesize(replace(JOBS["everything"], tp=2))
    parquet.write(trace, tmp_path / "t.parquet")
    again = load(tmp_path / "t.parquet")
    assert again.job == trace.job
    assert again.job.world_size == 4 * 4 * 2
    assert again.truth == json.loads(json.dumps(trace.truth))
    assert [cause["cause"] for cause in again.truth["causes"]] == [
        "slow-worker",
        "slow-worker",
        "slow-last-stage",
        "stage-factors",
        "sequence-imbalance",
        "sequence-lengths",
        "slow-link",
        "slow-nic",
        "flapping-nic",
        "gc-pauses",
    ]
    for name in ("start", "chunk", "microbatch", "counts", "rank"):
        assert (getattr(again, name) == getattr(trace, name)).all()
    np.testing.assert_allclose(again.end, trace.end, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dp": 0}, "dp must be at least 1"),
        ({"microbatches": 0}, "microbatches must be at least 1"),
        ({"microbatches": 1.5}, "microbatches are whole numbers, not 1.5"),
        ({"microbatches": (4, 4, 4, 4.5)}, "microbatches are whole numbers"),
        ({"microbatches": (4, 4)}, "2 numbers of microbatches for 4 dp ranks"),
        ({"schedule": "zigzag"}, "no schedule 'zigzag'"),
        ({"noise": -1.0}, "noise must be at least 0"),
        ({"noise": float("nan")}, "noise must be at least 0"),
        ({"vpp": 2, "microbatches": 6}, "multiple of the 4 stages"),
        ({"vpp": 2, "schedule": "1f1b"}, "one chunk per stage"),
        ({"slow_workers": (SlowWorker(4, 0, 2.0),)}, "no dp rank 4"),
        ({"slow_workers": (SlowWorker(0, 4, 2.0),)}, "no such stage or link: 4"),
        ({"slow_workers": (SlowWorker(0, 0, 0.0),)}, "factor 0.0 is not positive"),
        ({"slow_links": (SlowLink(0, 3, 2.0),)}, "no such stage or link: 3"),
        ({"slow_last_stage": (1.0, -1.0)}, "factor -1.0 is not positive"),
        ({"stage_factors": ((1.0, 1.0),)}, "1 pairs of stage factors for 4 stages"),
        ({"stage_factors": ((1.0, 0.0),) * 4}, "two positive numbers"),
        ({"stage_factors": ((1e308, 1.0),) * 4}, "stage factors: factor 1e.308 is above 1,000,000"),
        ({"sequence_mix": 1.5}, "sequence_mix lies between 0 and 1"),
        ({"seqlens": draw_seqlens(3, 8, 3, 100)}, "3 steps and 3 dp ranks for a job of 3 steps"),
        (
            {"seqlens": draw_seqlens(4, (8, 8, 7, 8), 3, 100)},
            "7 microbatches in step 0, dp rank 2, which has 8",
        ),
        ({"dp": 1.5}, "dp must be a whole number, not 1.5"),
        ({"dp": 10**9}, "over 1,000,000,000 operations"),
        ({"steps": 10**12}, "over 1,000,000,000 operations"),
        ({"microbatches": 10**400}, "over 1,000,000,000 operations"),
        ({"pp": 1, "vpp": 40_000, "microbatches": 1}, "vpp must be at most 32768"),
        ({"tp": 10**20}, "too many to be numbered"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"seed": 1.5}, "seed must be a whole number of at least 0"),
        ({"noise": 1e300}, "noise must be at most 1,000,000"),
        ({"clock_skew_s": float("inf")}, "clock_skew_s must be at most 1,000,000"),
        ({"slow_workers": (SlowWorker(0, 0, 1e308),)}, "is above 1,000,000"),
        ({"gc_pauses": (1.5, 0.1)}, "probability lies between 0 and 1"),
        ({"launch_delay": (-1.0, 0.1)}, "seconds must be at least 0"),
    ],
)
def test_impossible_jobs_are_said(change, message):
    with pytest.raises(SynthError, match=message):
        synthesize(replace(SMALL, **change))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--microbatches 1.5", "--microbatches: 1.5 is no whole number"),
        ("--microbatches nan", "--microbatches: nan is no whole number"),
        ("--microbatches 4,inf", "--microbatches: inf is no whole number"),
        ("--slow-worker 0.5,0,2", "the dp rank of --slow-worker: 0.5 is no whole number"),
        ("--slow-link 0,nan,2", "the stage of --slow-link: nan is no whole number"),
        ("--flapping-nic 1e400,0,2,0.5", "the dp rank of a NIC: inf is no whole number"),
        ("--seed -1", "seed must be a whole number of at least 0, not -1"),
        ("--seqlens-out {tmp}/s.parquet --dp 1000000000", "over 1,000,000,000 operations"),
        ("--seqlens-out {tmp}/s.parquet --max-tokens 99999999999", "at most 2147483647 tokens"),
        ("--seqlens-out {tmp}/t.parquet", "-o and --seqlens-out both name"),
    ],
)
def test_the_command_refuses_odd_numbers_in_one_line(tmp_path, capsys, arguments, message):
    size = ["--dp", "2", "--pp", "2", "--steps", "2"]
    given = arguments.format(tmp=tmp_path).split()
    assert run(["synth", *size, *given, "-o", str(tmp_path / "t.parquet")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
