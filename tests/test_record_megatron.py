"""Megatron-Core's hooks on a tree of modules with its names (of 0.16), which runs one 1F1B step."""

import os
import subprocess
import sys
import types
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import paceline.record as record
from installed import PACKAGES
from megatron_tree import DistributedDataParallel, Work, installed
from paceline import load
from paceline.sources.recording.files import read_files
from paceline.trace import OpKind

K = OpKind


@pytest.fixture
def megatron(monkeypatch):
    """The modules by their last names; every one a fresh copy."""
    return installed(monkeypatch)


@pytest.fixture
def recorder(tmp_path):
    rec = record.start(tmp_path, every=1, rank=1, world=2)
    yield rec
    rec.close()


def model_of(ties):
    chunk = DistributedDataParallel(types.SimpleNamespace(share_embeddings_and_output_weights=ties))
    return [chunk]


def forward(schedules, microbatch, chunk=None, received=None, model=None):
    return schedules.forward_step(
        None, None, model, 3, received, [], None, 1, current_microbatch=microbatch, vp_stage=chunk
    )


def train_step(megatron, optimizer, ties=False, overlap=False):
    """A step of the last stage: 1F1B of three microbatches."""
    schedules, link = megatron["schedules"], megatron["p2p_communication"].P2PCommunicator()

    def communicate(**which):
        arguments = dict.fromkeys(("tensor_send_next", "tensor_send_prev", "tensor_shape"))
        arguments |= {"recv_prev": False, "recv_next": False, **which}
        return link._communicate(**arguments)

    for microbatch in range(3):
        received, _, requests = communicate(recv_prev=True, wait_on_reqs=not overlap)
        for request in (requests or {}).values():
            assert type(request) is Work
            request.wait()
        output, _ = forward(schedules, microbatch, None, received)
        assert schedules.backward_step(None, output, None, None, None) == "gradient"
        communicate(tensor_send_prev="gradient", wait_on_reqs=not overlap)
    ddp = megatron["distributed_data_parallel"].DistributedDataParallel(None)
    assert ddp.finish_grad_sync() == "synced"
    finalize = megatron["finalize_model_grads"]
    finalize._allreduce_non_tensor_model_parallel_grads(None, None)
    finalize._allreduce_word_embedding_grads(model_of(ties), None)
    assert optimizer.step()


def recorded(folder):
    """What the last stage recorded, as the trace of both (the first one's file is made here)."""
    from recordings import SetClock, play
    from recordings import recorder as recorder_of

    clock = SetClock()
    rec = recorder_of(folder, clock, rank=0, world=2, pp_rank=0)
    for number in range(2):
        clock.t = 10**9 * (number + 1)
        ops = [
            (kind, m, 0 if m >= 0 else -1, clock.t + 10 * i, clock.t + 10 * i + 5)
            for i, (kind, m) in enumerate(FIRST)
        ]
        play(rec, clock, number, ops, (clock.t, clock.t + 10**6))
    rec.close()
    return load(folder)


FIRST = [
    ("forward-compute", 0),
    ("backward-compute", 0),
    ("forward-compute", 1),
    ("backward-compute", 1),
    ("forward-compute", 2),
    ("backward-compute", 2),
]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("kind", ["MixedPrecisionOptimizer", "DistributedOptimizer", "Chained"])
def test_a_step_of_the_last_stage(megatron, recorder, tmp_path, caplog, kind, overlap):
    record.instrument_megatron()
    optimizers = megatron["optimizer"]
    if kind == "Chained":
        one = optimizers.MixedPrecisionOptimizer()
        optimizer = optimizers.ChainedOptimizer([one, optimizers.FP32Optimizer()])
    elif kind == "DistributedOptimizer":
        optimizer = megatron["distrib_optimizer"].DistributedOptimizer()
    else:
        optimizer = getattr(optimizers, kind)()
    for number in range(2):
        with recorder.step(number):
            train_step(megatron, optimizer, ties=True, overlap=overlap)
    train_step(megatron, optimizer)  # outside of a step: an evaluation, not recorded
    recorder.close()
    trace = recorded(tmp_path)
    assert caplog.records == []
    assert (trace.job.pp_size, trace.job.dp_size) == (2, 1)
    expected = {
        K.FORWARD_COMPUTE: 3,
        K.BACKWARD_COMPUTE: 3,
        K.FORWARD_RECV: 3,
        K.BACKWARD_SEND: 3,
        K.GRADS_REDUCE_SCATTER: 1,
        K.LAYERNORM_GRADS_ALL_REDUCE: 1,
        K.EMBEDDING_GRADS_ALL_REDUCE: 1,
        K.OPTIMIZER_CLIP_MAIN_GRAD: 1,
        K.OPTIMIZER: 1,
    }
    for counts in trace.counts[:, 0, 1]:
        assert {OpKind(k): int(n) for k, n in enumerate(counts) if n} == expected
    last = (trace.pp == 1) & (trace.kind == K.BACKWARD_COMPUTE)
    assert trace.microbatch[last].tolist() == [0, 1, 2] * 2


def test_untied_embeddings_are_not_recorded(megatron, recorder, tmp_path):
    record.instrument_megatron()
    with recorder.step(0):
        train_step(megatron, megatron["optimizer"].FP32Optimizer(), ties=False)
        kinds = [op.kind for op in recorder.running_step.ops]
    assert K.EMBEDDING_GRADS_ALL_REDUCE not in kinds
    assert K.GRADS_REDUCE_SCATTER in kinds


def test_backwards_of_chunks_find_their_forwards(megatron, recorder):
    record.instrument_megatron()
    schedules = megatron["schedules"]
    with recorder.step(0):
        outputs = {(m, c): forward(schedules, m, c)[0] for c in range(2) for m in range(2)}
        for key in ((0, 1), (1, 1), (0, 0), (1, 0)):
            schedules.backward_step(None, outputs[key], None, None, None)
        backwards = [op for op in recorder.running_step.ops if op.kind == K.BACKWARD_COMPUTE]
    assert [(op.microbatch, op.chunk) for op in backwards] == [(0, 1), (1, 1), (0, 0), (1, 0)]


def test_what_a_version_lacks_is_a_line_each(megatron, recorder, caplog, monkeypatch, tmp_path):
    del megatron["schedules"].backward_step
    monkeypatch.setitem(sys.modules, "megatron.core.distributed.finalize_model_grads", None)
    record.instrument_megatron()
    told = [record.message for record in caplog.records]
    assert (
        "megatron.core.pipeline_parallel.schedules has no backward_step; it is not recorded" in told
    )
    assert any("finalize_model_grads cannot be imported" in line for line in told)
    with recorder.step(0):
        forward(megatron["schedules"], 0)
    assert recorder.is_on
    recorder.close()
    (file,) = read_files(tmp_path)
    assert [note["not_recorded"] for note in file.notes if "how" in note] == [
        "megatron.core.pipeline_parallel.schedules.backward_step is absent",
        *(
            f"megatron.core.distributed.finalize_model_grads.{name} is absent"
            for name in (
                "_allreduce_non_tensor_model_parallel_grads",
                "_allreduce_word_embedding_grads",
            )
        ),
    ]


def test_without_megatron_it_is_a_line(recorder, caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "megatron", None)
    record.instrument_megatron()
    (line,) = caplog.records
    assert "not recorded (hooks_megatron)" in line.message
    assert recorder.is_on


def test_instrumenting_twice_records_once(megatron, recorder):
    record.instrument_megatron()
    record.instrument_megatron()
    with recorder.step(0):
        forward(megatron["schedules"], 0)
        assert len(recorder.running_step.ops) == 1


def test_megatrons_own_loop_names_the_steps(megatron, tmp_path, monkeypatch):
    training = types.ModuleType("megatron.training.training")
    training.train_step = lambda *_, **__: "loss"
    for name, module in (
        ("megatron.training", types.ModuleType("megatron.training")),
        ("megatron.training.training", training),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    rec = record.start(tmp_path, every=1, rank=1, world=2)
    record.instrument_megatron()
    assert training.train_step() == "loss"
    assert training.train_step(iteration=40) == "loss"
    assert training.train_step() == "loss"
    rec.close()
    from paceline.sources.recording import load_recorded_step_times

    assert load_recorded_step_times(tmp_path).steps.tolist() == [0, 40, 41]


def test_the_real_one_runs_a_step(tmp_path):
    try:
        version("megatron-core")
    except PackageNotFoundError:
        pytest.skip("megatron-core is not installed: pip install megatron-core")
    here = Path(__file__).parent
    paths = os.pathsep.join([PACKAGES, *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(here / "megatron_job.py"), str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": paths},
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "recorded" not in done.stderr  # of every function that is hooked there is one
    trace = load(tmp_path / "run")
    computes = [K.FORWARD_COMPUTE, K.BACKWARD_COMPUTE]
    assert trace.counts[:, 0, 0][:, computes].tolist() == [[3, 3], [3, 3]]
    assert trace.microbatch[trace.kind == K.BACKWARD_COMPUTE].tolist() == [0, 1, 2] * 2
