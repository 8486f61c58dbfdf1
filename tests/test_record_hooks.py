"""Hooks on real torch jobs: processes, gloo, schedules, DDP and FSDP."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import paceline.record as record
import requires
from installed import PACKAGES
from paceline import analyze, load
from paceline.graph import from_trace
from paceline.graph.computes import computes_of, whole_passes
from paceline.graph.zero_bubble import dualpipev
from paceline.record.hooks_pipelining import instrument
from paceline.record.steps import COMPUTES
from paceline.sources.recording import load_recorded_step_times
from paceline.sources.recording.files import read_files
from paceline.trace import OpKind

requires.installed("torch.distributed")

HERE = Path(__file__).parent
K = OpKind
SPLIT = ("zb-h1", "zbv", "dualpipev")


def run_jobs(kinds, world, folder):
    """Run jobs of ``record_job.py``; no rank is left behind, whatever fails."""
    env = {**os.environ, "PYTHONPATH": PACKAGES, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "record_job.py"), ",".join(kinds)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(folder)],
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        told = [rank.communicate(timeout=300)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * world, told
    assert not any("paceline" in text or "recorder" in text for text in told), told


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """The recordings of two ranks, a folder per kind: each process imports torch once for all."""
    folder = tmp_path_factory.mktemp("jobs")
    run_jobs(("1f1b", "gpipe", "interleaved", "ddp", "fsdp", *SPLIT), 2, folder)
    return folder


def medians_ms(trace, kind, worker):
    """Typical duration of a kind on each stage, or of each replica (``worker``: [row] which)."""
    rows = trace.kind == kind
    took = trace.end - trace.start
    return [1e3 * float(np.median(took[rows & (worker == n)])) for n in np.unique(worker)]


@pytest.mark.parametrize(("kind", "chunks"), [("1f1b", 1), ("gpipe", 1), ("interleaved", 2)])
def test_pipelining_schedules(jobs, kind, chunks):
    trace = load(jobs / kind)
    assert trace.steps.tolist() == [0, 3, 4]
    assert (trace.job.dp_size, trace.job.pp_size, trace.job.vpp_size) == (1, 2, chunks)
    computes = 4 * chunks
    received = [4 * (chunks - 1), computes]
    for step in trace.counts[:, 0]:
        assert step[:, [K.FORWARD_COMPUTE, K.BACKWARD_COMPUTE]].tolist() == [[computes] * 2] * 2
        assert step[:, K.FORWARD_RECV].tolist() == received
        assert step[:, K.FORWARD_SEND].tolist() == received[::-1]
        assert step[:, K.BACKWARD_RECV].tolist() == received[::-1]
        assert step[:, K.BACKWARD_SEND].tolist() == received
        assert step[:, K.OPTIMIZER].tolist() == [1, 1]
    first, last = medians_ms(trace, K.FORWARD_COMPUTE, trace.pp)
    assert first >= 8
    assert last >= 4
    analyze(trace)  # the graph is whole, the simulation runs
    assert all(file.residual_ns is not None for file in read_files(jobs / kind))
    assert load_recorded_step_times(jobs / kind).duration_s.shape == (6, 2)


@pytest.mark.parametrize("kind", SPLIT)
def test_pipelining_schedules_that_split_the_backward(jobs, kind):
    trace = load(jobs / kind)
    chunks = 1 if kind == "zb-h1" else 2
    assert (trace.job.dp_size, trace.job.pp_size, trace.job.vpp_size) == (1, 2, chunks)
    computes = 4 * chunks
    for step in trace.counts[:, 0]:
        assert step[:, [K.FORWARD_COMPUTE, K.BACKWARD_COMPUTE]].tolist() == [[computes] * 2] * 2
        # Forward and backward of a V cross between the two ranks twice, by the turn once in memory.
        sent = [4, 0] if kind == "zb-h1" else [4, 4]
        assert step[:, K.FORWARD_SEND].tolist() == sent
        assert step[:, K.FORWARD_RECV].tolist() == sent[::-1]
        assert step[:, K.BACKWARD_SEND].tolist() == sent[::-1]
        assert step[:, K.BACKWARD_RECV].tolist() == sent
    weights = trace.counts[0, 0][:, K.WEIGHT_COMPUTE].tolist()
    # DualPipeV runs some backwards whole: only those that it splits have a weight gradient.
    assert weights == ([computes] * 2 if kind != "dualpipev" else weights_of_dualpipev())
    graph = from_trace(trace).graph
    sends = graph.pairs[graph.kind[graph.pairs[:, 0]] == K.FORWARD_SEND]
    onwards = graph.pp[sends[:, 1]] - graph.pp[sends[:, 0]]
    assert (onwards == np.where(graph.chunk[sends[:, 0]] == 1, -1, 1)).all()
    assert analyze(trace).replay_error < 0.02


def test_stages_in_another_place_are_refused():
    stages = [SimpleNamespace(stage_index=i, group_size=4, group_rank=1) for i in (1, 4)]
    with pytest.raises(
        ValueError, match="rank 1 of 4 has the stages 1, 4; only one stage per rank"
    ):
        instrument(None, SimpleNamespace(_stages=stages))


def weights_of_dualpipev():
    """[stage] gradients of weights that the order of 2 stages and 4 microbatches runs apart."""
    apart = []
    for stage in range(2):
        order = dualpipev(stage, 2, 4)
        alone = np.bincount(order.block)[order.block] == 1
        apart.append(int((alone & (order.kind == K.WEIGHT_COMPUTE)).sum()))
    return apart


def test_two_replicas_of_a_pipeline(tmp_path):
    run_jobs(["1f1b"], 4, tmp_path)
    trace = load(tmp_path / "1f1b")
    assert (trace.job.dp_size, trace.job.pp_size) == (2, 2)
    assert trace.rank.tolist() == [[0, 1], [2, 3]]


def test_ddp(jobs):
    trace = load(jobs / "ddp")
    assert (trace.job.dp_size, trace.job.pp_size) == (2, 1)
    kinds = (K.FORWARD_COMPUTE, K.BACKWARD_COMPUTE, K.GRADS_REDUCE_SCATTER, K.OPTIMIZER)
    # The bucket's launch and the wait for it cut the second backward.
    assert (trace.counts[:, :, 0][..., kinds] == [2, 4, 1, 1]).all()
    # Rank 1 computes longer, rank 0 waits: that must not look like a long backward of rank 0.
    measured = from_trace(trace)
    ops = computes_of(measured.graph).ops[0][1, 0]
    backward = whole_passes(measured.durations).of(0, ops)  # [microbatch, step, dp]
    fast, slow = np.median(backward, axis=(0, 1))
    assert slow >= 0.1
    assert fast < slow
    result = analyze(trace)
    assert result.by_worker[0, 1] > max(1.1, result.by_worker[0, 0])


def test_fsdp(jobs):
    trace = load(jobs / "fsdp")
    kinds = (
        *(K.FORWARD_COMPUTE, K.BACKWARD_COMPUTE, K.PARAMS_ALL_GATHER),
        *(K.GRADS_REDUCE_SCATTER, K.OPTIMIZER),
    )
    # Units: two layers, gathered for two forwards, two backwards and a forward without gradients,
    # and the root, which stays gathered until a backward is over. Each is scattered once.
    graph = from_trace(trace).graph
    assert [np.unique(graph.pass_of[graph.kind == kind]).size for kind in kinds[:2]] == [2, 2]
    assert (trace.counts[1:, :, 0][..., kinds[2:]] == [12, 3, 1]).all()
    assert analyze(trace).replay_error < 0.02  # the forward without gradients is in no operation


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A process group of this process alone, and a recorder of every step."""
    import torch.distributed as dist

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    rec = record.start(tmp_path / "run", every=1)
    yield rec
    rec.close()
    dist.destroy_process_group()


def ddp_of_a_line():
    from torch import nn

    return nn.parallel.DistributedDataParallel(nn.Linear(4, 4))


def kinds_of(step):
    """Operations of a step, each pass once, however many parts it has."""
    computes = {(op.kind, op.microbatch, op.chunk) for op in step.ops if op.kind in COMPUTES}
    others = [(op.kind, -1, -1) for op in step.ops if op.kind not in COMPUTES]
    return sorted(K(kind).label for kind, *_ in (*computes, *others))


def test_instrumenting_twice_records_once(alone):
    import torch

    models = [ddp_of_a_line(), ddp_of_a_line()]
    for model in (*models, models[0]):
        record.instrument_ddp(model)
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], 1e-2)
    with alone.step(0) as step:
        models[1](models[0](torch.randn(2, 4))).sum().backward()
        optimizer.step()
    # The passes of both are parts of one pass of this microbatch.
    scatters = ["grads-reduce-scatter"] * 2
    assert kinds_of(step) == ["backward-compute", "forward-compute", *scatters, "optimizer"]


def test_a_new_recorder_is_told_of_a_model_again(alone, tmp_path):
    import torch

    model = ddp_of_a_line()
    record.instrument_ddp(model)
    with record.start(tmp_path / "second", every=1) as second:
        record.instrument_ddp(model)
        with second.step(0) as step:
            model(torch.randn(2, 4)).sum().backward()
        assert kinds_of(step) == ["backward-compute", "forward-compute", "grads-reduce-scatter"]


def test_passes_that_raise_are_forgotten(alone):
    import torch

    model = ddp_of_a_line()
    record.instrument_ddp(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with alone.step(0) as first, pytest.raises(RuntimeError):
        model(torch.randn(2, 5))
    with alone.step(1) as step:
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 5))
        model(torch.randn(2, 4)).sum().backward()
        with pytest.raises(ZeroDivisionError):
            optimizer.step(closure=lambda: 1 / 0)
        optimizer.step()
    assert [op.end for op in first.ops] == [None]
    assert kinds_of(step) == [
        "backward-compute",
        "forward-compute",
        "grads-reduce-scatter",
        "optimizer",
    ]
    assert {op.microbatch for op in step.ops} == {0, -1}
    assert all(op.end is not None for op in step.ops)


@pytest.mark.parametrize("most", [1, 2, 3])  # the backward, its first bucket, its second
def test_a_backward_whose_step_is_given_up_costs_that_step_only(alone, monkeypatch, most):
    import torch
    from torch import nn

    monkeypatch.setattr(record.program, "MAX_OPS", most)
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model = nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=1e-6)
    record.instrument_ddp(model)
    for number in range(3):
        with alone.step(number) as step:
            model(torch.randn(2, 4)).sum().backward()
    assert step.ops is None  # in the first step DDP has one bucket
    assert alone.is_on
