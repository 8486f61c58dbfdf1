"""DeepSpeed's hooks on an engine with its names (0.19.8); ``test_real_jobs.py`` has a real one."""

import sys
import types

import pytest

import paceline.record as record
import requires
from paceline.record.deepspeed_parts import SHARES, Parts
from paceline.record.recorder import Recorder
from paceline.record.steps import COMPUTES
from paceline.trace import OpKind

requires.installed("torch.distributed")

import torch
import torch.distributed as dist
from torch import nn

K = OpKind


class Work:
    def __init__(self):
        self.waits = 0

    def wait(self):
        self.waits += 1

    def is_completed(self):
        return True


class Backend:
    """``TorchBackend``: nothing is sent."""

    def __init__(self):
        self.works = []

    def all_gather_into_tensor(self, *args, **kwargs):
        assert kwargs["async_op"]
        self.works.append(Work())
        return self.works[-1]

    def all_reduce(self, tensor, op, group=None, async_op=False):
        assert not async_op


class Coordinator:
    """Fetches a weight and a bias, and waits for them in the order of a set: any."""

    def __init__(self, turned):
        self.turned = turned

    def fetch_sub_module(self, layer):
        works = [one.all_gather_coalesced(iter([one])) for one in layer.parameters()]
        for work in works[::-1] if self.turned else works:
            work.wait()


class Engine(nn.Module):
    """Two layers, each fetched before it runs at stage 3; gradients are reduced once."""

    pipeline_parallelism = has_moe_layers = inside_no_sync_ctxt = False
    enable_backward_allreduce = True
    sequence_parallel_size, mpu, boundary = 1, None, True

    def __init__(self, backend, stage, turned=False):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.backend, self.stage = backend, stage
        self.coordinator = Coordinator(turned)
        self.optimizer = types.SimpleNamespace()
        if stage == 3:
            offload = types.SimpleNamespace(get_param_coordinator=lambda: self.coordinator)
            self.optimizer.parameter_offload = offload
            for number, parameter in enumerate(self.parameters()):
                parameter.ds_id, parameter.all_gather_coalesced = number, self.gather

    def gather(self, params):
        assert len(list(params)) == 1
        return self.backend.all_gather_into_tensor(group=None, async_op=True)

    def autotp_size(self):
        return 0

    def is_deepcompile_enabled(self):
        return False

    def is_gradient_accumulation_boundary(self):
        return self.boundary

    def zero_optimization_partition_gradients(self):
        return self.stage >= 2

    def zero_optimization_partition_weights(self):
        return self.stage == 3

    def forward(self, x):
        for layer in self.layers:
            if self.stage == 3:
                self.coordinator.fetch_sub_module(layer)
            x = layer(x)
        return x

    def backward(self, loss):
        loss.backward()
        self._backward_epilogue()

    def _backward_epilogue(self):
        self.allreduce_gradients()

    def allreduce_gradients(self):
        if self.stage >= 2 or self.boundary:
            self.backend.all_reduce(torch.ones(1), "sum", None)

    def step(self):
        if self.boundary:
            self._take_model_step()

    def _take_model_step(self):
        self.backend.all_reduce(torch.ones(1), "sum", group=None)
        if self.stage < 3:
            self.backend.all_gather_into_tensor(group=None, async_op=True).wait()


@pytest.fixture
def backend(tmp_path, monkeypatch):
    modules = {name: types.ModuleType(name) for name in ("deepspeed", "deepspeed.comm")}
    modules["deepspeed.comm.comm"] = types.SimpleNamespace(cdb=Backend())
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield modules["deepspeed.comm.comm"].cdb
    dist.destroy_process_group()


@pytest.fixture
def recorder(backend, tmp_path):
    with record.start(tmp_path / "run", every=1, device="cpu") as rec:
        yield rec


def run_step(recorder, engine, number=0, microbatches=1):
    """(kind, launched, awaited) of a step's operations."""
    with recorder.step(number) as step:
        for microbatch in range(microbatches):
            engine.boundary = microbatch == microbatches - 1
            loss = engine(torch.randn(2, 4)).sum()
            engine.backward(loss)
            engine.step()
            engine.backend.all_reduce(loss.detach(), "sum", None)  # the loop's own, for its log
    assert all(op.end is not None for op in step.ops)
    return [(K(op.kind).label, op.issued, op.awaited) for op in step.ops]


def test_gathers_of_a_fetch_are_awaited_at_once_in_whatever_order(recorder, backend):
    programs = []
    for turned in (False, True):
        engine = Engine(backend, 3, turned)
        record.instrument_deepspeed(engine)
        programs.append(run_step(recorder, engine))
    forward, gather = "forward-compute", "params-all-gather"
    assert programs[0][:6] == [
        (forward, 0, -1),
        (gather, 1, 4),
        (forward, 2, -1),
        (gather, 3, 4),
        (forward, 4, -1),
        (forward, 5, -1),
    ]
    assert programs[0] == programs[1]
    assert programs[0][11:] == [
        ("backward-compute", 11, -1),
        ("backward-compute", 12, -1),  # the epilogue
        ("grads-reduce-scatter", 13, 13),
        ("backward-compute", 14, -1),
        ("optimizer", 15, -1),
        ("optimizer-clip-main-grad", 16, 16),
        ("optimizer", 17, -1),
    ]
    assert [work.waits for work in backend.works] == [1] * 8
    assert {type(work) for work in backend.works} == {Work}


def parts_of(step):
    """Kind -> parts of its collectives."""
    parts = {}
    for op in step.ops:
        if op.kind not in COMPUTES:
            parts.setdefault(K(op.kind).label, []).append(op.part)
    return parts


def step_of(recorder, backend, stage):
    """The second of two steps of two microbatches: numbers begin anew."""
    engine = Engine(backend, stage)
    record.instrument_deepspeed(engine)
    for number in range(2):
        with recorder.step(number) as step:
            for engine.boundary in (False, True):
                engine.backward(engine(torch.randn(2, 4)).sum())
                engine.step()
    return step


def test_gathers_are_numbered_by_parameters_and_reductions_in_each_backward(recorder, backend):
    of_parameters = [number * SHARES for number in range(4)]
    assert parts_of(step_of(recorder, backend, 3)) == {
        "params-all-gather": 2 * of_parameters,
        "grads-reduce-scatter": [0, 0],
        "optimizer-clip-main-grad": [-1],
    }


def test_gathers_of_an_update_are_counted(recorder, backend):
    assert parts_of(step_of(recorder, backend, 2)) == {
        "grads-reduce-scatter": [0, 0],
        "optimizer-clip-main-grad": [-1],
        "params-all-gather": [0],
    }


def test_collectives_of_one_gather_have_numbers_of_their_own(recorder):
    parts, numbers = Parts(recorder), []
    gather = parts.gather(lambda _: numbers.extend(parts.of_parameters() for _ in range(SHARES)))
    with recorder.step(0):
        gather([types.SimpleNamespace(ds_id=6), types.SimpleNamespace(ds_id=5)])
    assert numbers == [5 * SHARES + share for share in range(SHARES)]
    assert parts.of_parameters() == -1


@pytest.mark.parametrize(("stage", "reductions"), [(1, 1), (2, 2)])
def test_what_each_stage_exchanges_with_two_microbatches(recorder, backend, stage, reductions):
    engine = Engine(backend, stage)
    record.instrument_deepspeed(engine)
    record.instrument_deepspeed(engine)  # changes nothing
    kinds = [kind for kind, *_ in run_step(recorder, engine, microbatches=2)]
    assert kinds.count("grads-reduce-scatter") == reductions
    assert kinds.count("params-all-gather") == kinds.count("optimizer-clip-main-grad") == 1
    assert kinds.count("forward-compute") == 2
    assert kinds[-3:] == ["params-all-gather", "optimizer", "optimizer"]


def test_a_loop_that_names_its_passes_keeps_its_names(recorder, backend):
    engine = Engine(backend, 2)
    record.instrument_deepspeed(engine)
    with recorder.step(0) as step:
        with recorder.op("forward-compute", microbatch=0):
            loss = engine(torch.randn(2, 4)).sum()
        with recorder.op("backward-compute", microbatch=0):
            engine.backward(loss)
        with recorder.op("optimizer"):
            engine.step()
    kinds = [K(op.kind).label for op in step.ops]
    assert kinds[:4] == [
        "forward-compute",
        "backward-compute",
        "grads-reduce-scatter",
        "backward-compute",
    ]
    assert kinds.count("optimizer-clip-main-grad") == 1
    assert {op.microbatch for op in step.ops} == {0, -1}


def test_on_a_gpu_the_tail_behind_the_last_gradient(recorder, backend, monkeypatch):
    monkeypatch.setattr(Recorder, "on_host", property(lambda self: False))
    engine = Engine(backend, 1)
    record.instrument_deepspeed(engine)
    kinds = [kind for kind, *_ in run_step(recorder, engine, microbatches=2)]
    passes = ["forward-compute", "backward-compute"]
    assert kinds == [*passes, *passes, "grads-reduce-scatter", "optimizer"]


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("has_moe_layers", True, "of DeepSpeed, experts cannot be recorded yet"),
        ("sequence_parallel_size", 2, "of DeepSpeed, sequence parallelism cannot be"),
        ("mpu", types.SimpleNamespace(get_model_parallel_world_size=lambda: 2), "tensor paral"),
    ],
)
def test_an_engine_with_more_than_data_parallelism_is_refused(
    recorder, backend, caplog, name, value, line
):
    engine = Engine(backend, 1)
    setattr(engine, name, value)
    record.instrument_deepspeed(engine)
    assert line in caplog.text
    assert run_step(recorder, engine) == []


def test_what_is_no_engine_is_refused(recorder, caplog):
    record.instrument_deepspeed(nn.Linear(2, 2))
    assert "Linear is no DeepSpeed engine" in caplog.text
    assert recorder.is_on
