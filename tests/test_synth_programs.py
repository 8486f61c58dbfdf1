"""Synthesised programs: FSDP, DDP, peers, split backwards; held against what is known of them."""

from dataclasses import replace

import numpy as np
import pytest

import paceline
from paceline.cli.main import run
from paceline.diagnose import diagnose
from paceline.errors import SynthError
from paceline.graph import from_trace
from paceline.graph.from_plan import from_plan
from paceline.model.cluster_presets import cluster_preset
from paceline.model.costs import plan_costs
from paceline.model.llm_presets import llm_preset
from paceline.model.plan import Plan
from paceline.simulate import timeline
from paceline.synth import Layers, SlowNic, SlowPeers, SlowWorker, SynthSpec, each_step, synthesize
from paceline.synth.durations import make_durations
from paceline.synth.from_plan import synthesize_plan
from paceline.synth.make import synth_structure
from paceline.trace import OpKind
from program_jobs import Compute, Launch, Run, Wait

BASE = SynthSpec(dp=4, pp=1, microbatches=2, steps=5)

JOBS = {
    "fsdp": replace(BASE, layers=Layers(4, fsdp=True)),
    "fsdp, no prefetch": replace(BASE, layers=Layers(4, fsdp=True, prefetch=0)),
    "fsdp, gathered once": replace(
        BASE, layers=Layers(4, fsdp=True, reshard=False, accumulate=True)
    ),
    "hsdp": replace(BASE, layers=Layers(4, fsdp=True, shard=2)),
    "ddp": replace(BASE, layers=Layers(8, buckets=3)),
    "tp": replace(BASE, dp=2, pp=2, tp=4, microbatches=4, layers=Layers(3)),
    "tp, cp, hsdp": replace(
        BASE, dp=2, pp=2, tp=2, microbatches=4, layers=Layers(3, fsdp=True, cp=2, shard=2)
    ),
    "experts": replace(BASE, dp=8, layers=Layers(3, ep=4)),
    "interleaved": replace(
        *(BASE,), dp=2, pp=2, vpp=2, tp=2, microbatches=4, layers=Layers(2, fsdp=True)
    ),
    "zb-h1": replace(BASE, pp=4, microbatches=8, schedule="zb-h1"),
    "zbv": replace(BASE, pp=4, vpp=2, microbatches=8, schedule="zbv"),
    "dualpipev": replace(BASE, pp=4, vpp=2, microbatches=8, schedule="dualpipev"),
    "dualpipe": replace(BASE, pp=4, vpp=2, microbatches=8, schedule="dualpipe"),
}


def mean(values):
    return sum(values) / len(values)


def slowed(spec, factor=1.6):
    """One GPU of the last stage is slow."""
    peer = 1 if spec.job.peers > 1 else None
    return replace(spec, slow_workers=(SlowWorker(1, spec.pp - 1, factor, peer),))


@pytest.mark.parametrize("name", JOBS)
def test_the_slow_gpu_is_named_and_s_is_that_of_the_job_where_all_share_its_loss(name):
    spec = JOBS[name]
    trace = synthesize(slowed(spec))
    # The ideal is the mean of all workers (what-if paper, 3.2): the same job, run like that.
    shared = 1 + 0.6 / spec.job.workers
    workers = [SlowWorker(dp, pp, shared) for dp in range(spec.dp) for pp in range(spec.pp)]
    level = synthesize(replace(spec, slow_workers=tuple(workers)))
    measured = from_trace(trace)
    result = paceline.analyze(measured)
    truth = mean(trace.truth["step_s"]) / mean(level.truth["step_s"])
    assert result.slowdown == pytest.approx(truth, rel=0.02)
    assert result.replay_error < 1e-9
    finding = diagnose(measured, result).findings[0]
    replica = 1 * spec.job.peers + (1 if spec.job.peers > 1 else 0)
    assert finding.cause == "worker"
    assert finding.where["workers"] == [[replica, spec.pp - 1]]


@pytest.mark.parametrize("name", JOBS)
def test_a_healthy_job_has_no_finding_and_is_what_the_slow_one_would_be_without_its_cause(name):
    spec = JOBS[name]
    trace = synthesize(spec)
    assert trace.truth["step_s"] == trace.truth["step_without_causes_s"]
    assert synthesize(slowed(spec)).truth["step_without_causes_s"] == trace.truth["step_s"]
    np.testing.assert_allclose(trace.traced_step_s(), trace.truth["step_s"], rtol=1e-12)
    measured = from_trace(trace)
    result = paceline.analyze(measured)
    assert result.slowdown < 1.03
    assert not diagnose(measured, result).findings


def instructions(ops, stage):
    """What the event simulator of the tests takes: a program's launches, computes and waits."""
    here = np.flatnonzero(ops.pp == stage)
    here = here[np.argsort(ops.rank[here])]
    waits = {}
    for op in here[ops.awaited[here] >= 0].tolist():
        waits.setdefault(int(ops.awaited[op]), []).append(Wait(op))
    for position, op in enumerate(here.tolist()):
        kind = OpKind(int(ops.kind[op]))
        if kind.label.endswith("compute") or kind == OpKind.OPTIMIZER:
            numbers = (int(ops.microbatch[op]), int(ops.chunk[op]), int(ops.part[op]))
            yield Compute(kind.label, *numbers)
        else:
            yield Launch(kind.label, op, int(ops.part[op]), int(ops.chunk[op]))
        yield from waits.get(position, ())


@pytest.mark.parametrize(
    "name", ["fsdp", "fsdp, no prefetch", "fsdp, gathered once", "ddp", "tp", "interleaved"]
)
def test_an_event_simulator_that_shares_no_code_runs_the_programs_in_the_same_time(name):
    spec = slowed(replace(JOBS[name], steps=2, noise=0.1))
    structure = synth_structure(spec)
    (ops,) = structure.variants
    durations, _ = make_durations(spec, structure.graph)
    at = {place: op for op, place in enumerate(zip(ops.pp, ops.rank, strict=True))}
    programs = {
        (replica, pp): list(instructions(ops, pp))
        for replica in range(spec.job.replicas)
        for pp in range(spec.pp)
    }
    for step, expected in enumerate(synthesize(spec).truth["step_s"]):

        def seconds(key, step=step):
            replica, *place = key
            return durations.array[at[tuple(place)], step, replica]

        executed = Run(programs, seconds, peers=spec.job.peers)
        assert executed.step_s == pytest.approx(expected, rel=1e-9)


LETTERS = {
    OpKind.PARAMS_ALL_GATHER: "G",
    OpKind.FORWARD_COMPUTE: "F",
    OpKind.BACKWARD_COMPUTE: "B",
    OpKind.GRADS_REDUCE_SCATTER: "S",
    OpKind.SEPARATE_GRADS_ALL_REDUCE: "A",
    OpKind.TENSOR_COMM: "T",
    OpKind.OPTIMIZER_CLIP_MAIN_GRAD: "N",
    OpKind.OPTIMIZER: "O",
}


def program_text(layers, **shape):
    """The program of a worker of one stage: letters with units or parts, ``|`` = waits for."""
    spec = SynthSpec(**{"dp": 4, "pp": 1, "microbatches": 1, "layers": layers} | shape)
    (ops,) = synth_structure(spec).variants

    def name(op):
        letter = LETTERS[OpKind(int(ops.kind[op]))]
        return letter if letter in "NO" else f"{letter}{ops.part[op]}"

    steps = instructions(ops, 0)
    computes = iter(np.flatnonzero(np.isin(ops.kind, (0, 1, int(OpKind.OPTIMIZER)))).tolist())
    by_launch = sorted(computes, key=lambda op: ops.rank[op])
    words = []
    for step in steps:
        if isinstance(step, Compute):
            words.append(name(by_launch.pop(0)))
        else:
            words.append(("|" if isinstance(step, Wait) else "") + name(step.name))
    return " ".join(words)


def test_programs_launch_and_wait_as_the_frameworks_do():
    fsdp = "G0 |G0 G1 F0 |G1 F1 G1 |G1 G0 B0 S1 |G0 B1 |S1 S0 |S0 N |N O"
    assert program_text(Layers(2, fsdp=True)) == fsdp
    late = "G0 |G0 F0 G1 |G1 F1 G1 |G1 B0 S1 G0 |G0 B1 |S1 S0 |S0 N |N O"
    assert program_text(Layers(2, fsdp=True, prefetch=0)) == late
    once = "G0 |G0 G1 F0 |G1 F1 B0 S1 B1 |S1 S0 |S0 N |N O"
    assert program_text(Layers(2, fsdp=True, reshard=False)) == once
    hsdp = "G0 |G0 G1 F0 |G1 F1 B0 S1 B1 |S1 A1 S0 |S0 A0 |A1 |A0 N |N O"
    assert program_text(Layers(2, fsdp=True, reshard=False, shard=2)) == hsdp
    ddp = "F0 F1 F2 B0 B1 S0 B2 S1 |S0 |S1 N |N O"
    assert program_text(Layers(3, buckets=2)) == ddp
    tensor = "F0 T0 |T0 F1 T1 |T1 B0 T2 |T2 B1 T3 |T3 S0 |S0 N |N O"
    assert program_text(Layers(1), tp=2) == tensor
    no_sync = program_text(Layers(2, buckets=2, accumulate=True), microbatches=2)
    assert no_sync == "F0 F1 B0 B1 F0 F1 B0 S0 B1 S1 |S0 |S1 N |N O"


CAUSES = {
    "peer-network": (
        replace(JOBS["tp"], slow_peers=(SlowPeers(1, 1, 8.0),)),
        {"workers": [[4, 1], [5, 1], [6, 1], [7, 1]]},
    ),
    "expert-imbalance": (
        replace(JOBS["experts"], layers=Layers(3, ep=4, expert_imbalance=0.4)),
        {"group": {"kind": "expert-comm"}},
    ),
    "dp-network": (
        replace(JOBS["hsdp"], dp=8, slow_nics=(SlowNic(5, 0, 9.0),)),
        {"group": {"stage": 0, "kind": "grads-reduce-scatter", "workers": [[4, 0], [5, 0]]}},
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_what_was_injected_is_found(cause):
    spec, where = CAUSES[cause]
    trace = synthesize(spec)
    measured = from_trace(trace)
    finding = diagnose(measured, paceline.analyze(measured)).findings[0]
    assert finding.cause == cause
    assert finding.where == where


def test_a_slow_nic_slows_only_the_groups_that_it_is_in():
    spec = replace(JOBS["hsdp"], noise=0.0)
    structure = synth_structure(spec)
    usual, _ = make_durations(spec, structure.graph)
    slow, _ = make_durations(replace(spec, slow_nics=(SlowNic(3, 0, 5.0),)), structure.graph)
    factor = slow.array[:, 0] / usual.array[:, 0]
    kind = structure.graph.kind
    of_kind = {
        OpKind.PARAMS_ALL_GATHER: [1, 1, 5, 5],  # shard groups: 0 and 1, 2 and 3
        OpKind.SEPARATE_GRADS_ALL_REDUCE: [1, 5, 1, 5],
        OpKind.FORWARD_COMPUTE: [1, 1, 1, 1],
    }
    for which, expected in of_kind.items():
        np.testing.assert_allclose(factor[kind == which], [expected] * (kind == which).sum())


def test_a_pass_takes_as_long_in_layers_as_whole():
    whole = replace(BASE, layers=None, noise=0.0)
    for layers in (Layers(1), Layers(7), Layers(3, ep=2)):
        spec = replace(whole, layers=layers)
        structure = synth_structure(spec)
        durations, _ = make_durations(spec, structure.graph)
        for kind in (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE):
            seconds = durations.array[structure.graph.kind == kind, 0, 0].sum()
            assert seconds == pytest.approx(spec.base_s[kind] * spec.microbatches)


@pytest.mark.parametrize("name", ["tp, cp, hsdp", "experts", "dualpipev"])
def test_a_file_gives_the_same_answer(name, tmp_path):
    trace = synthesize(slowed(JOBS[name]))
    paceline.write(trace, tmp_path / "trace.parquet")
    again = paceline.load(tmp_path / "trace.parquet")
    assert again.job == trace.job
    expected, result = paceline.analyze(trace), paceline.analyze(again)
    assert result.slowdown == pytest.approx(expected.slowdown, rel=1e-9)
    assert result.slowest_workers[0][:2] == expected.slowest_workers[0][:2]


def test_steps_made_one_by_one_are_steps_of_the_job(tmp_path):
    spec = slowed(JOBS["tp"])
    (tmp_path / "steps").mkdir()
    for number, trace in enumerate(each_step(spec)):
        assert trace.steps.tolist() == [number]
        paceline.write(trace, tmp_path / "steps" / f"step-{number}.parquet")
    result = paceline.analyze(paceline.measure(tmp_path / "steps"))
    assert len(result.steps) == spec.steps
    assert result.slowdown == pytest.approx(paceline.analyze(synthesize(spec)).slowdown, rel=0.02)


@pytest.mark.parametrize("schedule", ["zb-h1", "zbv", "dualpipe"])
def test_a_trace_of_a_plan_with_a_split_backward_takes_what_the_plan_does(schedule):
    plan = Plan(tp=8, pp=4, dp=2, global_batch=16, schedule=schedule)
    costs = plan_costs(llm_preset("megatron-18.4b"), plan, cluster_preset("a100-80g"))
    trace = synthesize_plan(plan, costs)
    expected = timeline(from_plan(plan, costs).durations).step_times()[0]
    np.testing.assert_allclose(trace.traced_step_s(), expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--fsdp --shard 3", "groups of 3 ranks (shard) do not divide 8"),
        ("--fsdp --buckets 2", "buckets are DDP's"),
        ("--shard 2", "need fsdp"),
        ("--buckets 9", "9 buckets for 4 layers"),
        ("--layers 0", "layers must be a whole number from 1"),
        ("--expert-imbalance 0.2", "need expert-parallel ranks"),
        ("--layers 2 --microbatches 1,2,1,2,1,2,1,2", "the same number of microbatches"),
        ("--fsdp --schedule zb-h1", "does not support layers"),
        ("--schedule zbv --vpp 3", "zbv has 2 chunks per stage (vpp), not 3"),
        ("--schedule dualpipev --microbatches 4", "microbatches"),
        ("--slow-worker 1,0,2,1.5 --layers 2", "there is no peer 2"),
        ("--slow-worker 1,0,0.5,1.5 --layers 2 --tp 2", "peer of --slow-worker"),
        ("--slow-peers 1,0,2 --layers 2", "the job has no peers"),
        ("--layers 2 --overlap", "layers define their own overlap"),
    ],
)
def test_contradictions_are_errors(flags, message, tmp_path, capsys):
    assert run(["synth", *flags.split(), "-o", str(tmp_path / "trace.parquet")]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_command_makes_programs(tmp_path, capsys):
    target = str(tmp_path / "trace.parquet")
    flags = "--dp 2 --pp 2 --tp 2 --microbatches 4 --steps 2 --layers 2 --fsdp --shard 1"
    slow = "--slow-worker 1,1,1,1.5"
    assert run(["synth", *flags.split(), *slow.split(), "-o", target]) == 0
    trace = paceline.load(target)
    assert trace.job.peers == 2
    assert trace.truth["causes"] == [
        {"cause": "slow-worker", "dp": 1, "pp": 1, "peer": 1, "factor": 1.5}
    ]
    assert run(["synth", "--dp", "2", "--schedule", "zbv", "-o", target, "--force"]) == 0
    assert paceline.load(target).job.vpp_size == 2
    capsys.readouterr()


def test_layers_are_checked_in_python_too():
    with pytest.raises(SynthError, match="prefetch must be a whole number from 0"):
        Layers(prefetch=-1)
    with pytest.raises(SynthError, match="expert_imbalance"):
        Layers(ep=2, expert_imbalance=-1.0)
