"""Mitigation of jobs whose programs are recorded: to ignore or to restart, against the truth."""

from dataclasses import replace

import pytest

import paceline
from paceline.cli.main import run
from paceline.errors import MitigateError
from paceline.graph import from_trace
from paceline.mitigate.fault import COMPUTE, NIC, Fault
from paceline.mitigate.job_model import JobModel
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
    assert "computes of dp 2 stage 0: 1.5" in said
    assert "S2 microbatches does not apply: launches and waits were recorded" in said
    assert "checkpoint, and restart without dp 2 stage 0" in said


def test_what_is_not_known_of_groups_and_peers_is_refused():
    model = JobModel(from_trace(synthesize(SPECS["hsdp"])))
    with pytest.raises(MitigateError, match="collectives join groups of some replicas only"):
        model.step_s(model.plain, frozenset([Fault(NIC, (1, 0), 2.0)]))
    peers = replace(BASE, tp=2, layers=Layers(2))
    with pytest.raises(MitigateError, match="paceline remedy replace-worker says"):
        JobModel(from_trace(synthesize(peers)))
