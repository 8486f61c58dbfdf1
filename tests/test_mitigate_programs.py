"""Mitigation of jobs whose programs are recorded: to ignore or to restart, against the truth."""

from dataclasses import replace

import pytest

import paceline
from paceline.cli.main import run
from paceline.errors import MitigateError
from paceline.graph import from_trace
from paceline.mitigate.fault import COMPUTE, NIC, Fault
from paceline.mitigate.follow import Follower
from paceline.mitigate.job_model import JobModel
from paceline.mitigate.planner import Planner
from paceline.mitigate.strategies import Strategies
from paceline.synth import Layers, SlowWorker, SynthSpec, synthesize

BASE = SynthSpec(dp=4, pp=1, microbatches=2, steps=4, noise=0.005)
SPECS = {
    "fsdp": replace(BASE, layers=Layers(4, fsdp=True)),
    "hsdp": replace(BASE, layers=Layers(4, fsdp=True, shard=2)),
    "ddp": replace(BASE, layers=Layers(8, buckets=3)),
    "fsdp in stages": replace(
        BASE, pp=2, microbatches=8, layers=Layers(4, fsdp=True, accumulate=True)
    ),
    "zb-h1": replace(BASE, pp=4, microbatches=8, schedule="zb-h1"),
    "zbv": replace(BASE, pp=4, vpp=2, microbatches=8, schedule="zbv"),
}


@pytest.mark.parametrize("name", SPECS)
def test_ignoring_and_restarting_take_what_the_jobs_do(name):
    spec = SPECS[name]
    worker = (1, spec.pp - 1)
    slow = synthesize(replace(spec, slow_workers=(SlowWorker(*worker, 1.5),)))
    healthy = slow.truth["step_without_causes_s"]
    strategies = Strategies(JobModel(from_trace(slow, by_rules=True)))
    model = strategies.model
    faults = frozenset([Fault(COMPUTE, worker, 1.5)])
    steps = slow.truth["step_s"]
    assert model.step_s(model.plain, faults) == pytest.approx(sum(steps) / len(steps), rel=0.02)
    assert model.healthy_s == pytest.approx(sum(healthy) / len(healthy), rel=0.02)
    options = {o.strategy: o for o in strategies.options(model.plain, faults)}
    assert options["s4"].applicable
    assert options["s4"].recovered == pytest.approx(1.0, abs=0.01)
    assert not options["s2"].applicable
    assert "launches and waits were recorded" in options["s2"].why_not


def test_the_command_finds_the_slow_worker_and_says_why_microbatches_stay(tmp_path, capsys):
    spec = replace(SPECS["hsdp"], slow_workers=(SlowWorker(2, 0, 1.5),))
    paceline.write(synthesize(spec), tmp_path / "trace.parquet")
    assert run(["mitigate", str(tmp_path / "trace.parquet")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "computes of dp 2, stage 0: 1.5" in said
    assert "S2 microbatches does not apply: launches and waits were recorded" in said
    assert "checkpoint, and restart without dp 2, stage 0" in said


def test_what_is_not_known_of_groups_and_peers_is_refused():
    model = JobModel(from_trace(synthesize(SPECS["hsdp"])))
    with pytest.raises(MitigateError, match="collectives join groups of some replicas only"):
        model.step_s(model.plain, frozenset([Fault(NIC, (1, 0), 2.0)]))


#: Tensor-parallel peers apart: a pipeline, and the same with FSDP.
PEERS = {
    "pipeline": replace(BASE, pp=2, tp=2, microbatches=8, layers=Layers(2)),
    "fsdp": replace(BASE, tp=2, layers=Layers(4, fsdp=True)),
}


@pytest.mark.parametrize("name", PEERS)
def test_a_slow_gpu_among_peers(name):
    spec = PEERS[name]
    place = (1, spec.pp - 1, 1)
    slow = synthesize(replace(spec, slow_workers=(SlowWorker(*place[:2], 1.5, peer=1),)))
    strategies = Strategies(JobModel(from_trace(slow, by_rules=True)))
    model = strategies.model
    faults = frozenset([Fault(COMPUTE, place, 1.5)])
    steps, healthy = slow.truth["step_s"], slow.truth["step_without_causes_s"]
    assert model.step_s(model.plain, faults) == pytest.approx(sum(steps) / len(steps), rel=0.02)
    assert model.healthy_s == pytest.approx(sum(healthy) / len(healthy), rel=0.02)
    options = {o.strategy: o for o in strategies.options(model.plain, faults)}
    assert options["s4"].text.endswith(f"without dp 1, stage {place[1]}, peer 1")
    # Peers stay beside each other: every move is of all of them, and to the same peer.
    moves = options["s3"].change.get("moves", [])
    assert len(moves) % 2 == 0
    assert all(here[2] == there[2] for here, there in moves)


def test_moving_all_peers_takes_what_such_a_job_takes():
    # The slow GPU in the first stage against the last: what S3 predicts is what that job takes.
    spec = PEERS["pipeline"]
    at_end, at_begin = (
        synthesize(replace(spec, slow_workers=(SlowWorker(1, pp, 2.0, peer=1),))) for pp in (1, 0)
    )
    model = JobModel(from_trace(at_end, by_rules=True))
    fault = Fault(COMPUTE, (1, 1, 1), 2.0)
    moved = model.plain
    for peer in (0, 1):
        moved = moved.swap((1, 1, peer), (1, 0, peer))
    truth = at_begin.truth["step_s"]
    predicted = model.step_s(moved, frozenset([fault]))
    assert predicted == pytest.approx(sum(truth) / len(truth), rel=0.03)


def test_the_command_names_the_peer(tmp_path, capsys):
    spec = replace(PEERS["pipeline"], slow_workers=(SlowWorker(2, 1, 1.6, peer=1),))
    trace = str(tmp_path / "trace.parquet")
    paceline.write(synthesize(spec), trace)
    assert run(["mitigate", trace]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "computes of dp 2, stage 1, peer 1: 1.6" in said
    assert run(["mitigate", trace, "--slow-worker", "0,0,1,1.5", "--json"]) == 0
    assert '"worker": [0, 0, 1]' in capsys.readouterr().out
    for place, words in (
        ("0,0,1.5", "which of the 2 peers of dp 0, stage 0? name it: dp, stage, peer"),
        ("0,0,2,1.5", "there is no worker dp 0, stage 0, peer 2; the job has"),
    ):
        assert run(["mitigate", trace, "--slow-worker", place]) == 2
        assert words in capsys.readouterr().err


def test_a_stream_of_ranks_finds_the_peer():
    spec = PEERS["pipeline"]
    measured = from_trace(synthesize(spec), by_rules=True)
    planner = Planner(Strategies(JobModel(measured)))
    follower = Follower(planner, measured, note=lambda text: None)
    rank = int(measured.rank[3, 1])  # replica 3 is peer 1 of dp 1
    follower.take({"step": 5, "kind": "onset", "rank": rank, "of": 16, "factor": 1.3})
    assert [fault.worker for fault in planner.state.active] == [(1, 1, 1)]
