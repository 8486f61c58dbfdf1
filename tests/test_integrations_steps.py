"""Integrations without a trainer: steps, what is found and refused, the start by environment."""

import os
import re
import subprocess
import sys
import time
import tomllib
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pytest

import paceline.record as record
import requires
from installed import PACKAGES
from paceline.sources.recording.files import read_files
from paceline.sources.recording.status import summary

requires.installed("torch.distributed")

import torch
import torch.distributed as dist
from torch import nn

import paceline.integrations
from paceline import blockfile
from paceline.cli.main import run as paceline_command
from paceline.integrations import models
from paceline.integrations.torch import OptimizerSteps
from paceline.integrations.training import Training

ROOT = Path(__file__).parents[1]
START_UP = ROOT / "src" / "paceline_record.pth"


@pytest.fixture(autouse=True)
def off():
    yield
    if record.current() is not None:
        record.current().close()


def net():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh())


def train(model, optimizers):
    model(torch.randn(2, 4)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()


def sgd(parameters):
    return torch.optim.SGD(list(parameters), 0.1)


def told(folder):
    return summary(folder, read_files(folder))


def steps_of(folder):
    (file,) = read_files(folder)
    return file.times[:, 0].tolist()


def hooked(steps, optimizers):
    """These optimizers only, so that no hook of one test is left for the next."""
    for optimizer in optimizers:
        optimizer.register_step_pre_hook(steps.before)
        optimizer.register_step_post_hook(steps.after)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_round_of_optimizers_is_a_step(tmp_path, number):
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(number)))
    optimizers = [sgd(layer.parameters()) for layer in model]
    hooked(OptimizerSteps(tmp_path, {"every": 1}), optimizers)
    for _ in range(6):
        train(model, optimizers)
    record.current().close()
    assert steps_of(tmp_path) == [2, 3, 4, 5]  # the last round ended step 5
    (file,) = read_files(tmp_path)
    assert file.steps.tolist() == [2, 3, 4, 5]
    first = [int(op["kind"]) for op in file.ops[: file.first_op[1]]]
    assert first == [0, 1, *[13] * number]  # a forward, a backward, the optimizers


def test_a_loop_that_records_itself_is_left_alone(tmp_path):
    own = record.start(tmp_path / "own", every=1)
    model = net()
    optimizers = [sgd(model.parameters())]
    hooked(OptimizerSteps(tmp_path / "unasked", {}), optimizers)
    for _ in range(3):
        train(model, optimizers)
    assert record.current() is own
    assert not (tmp_path / "unasked").exists()


def test_an_error_is_a_line_and_training_goes_on(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(models, "hook", lambda *_: 1 / 0)
    model = net()
    optimizers = [sgd(model.parameters())]
    hooked(OptimizerSteps(tmp_path, {}), optimizers)
    for _ in range(4):
        train(model, optimizers)
    assert caplog.text.count("ZeroDivisionError") == 1


def test_an_option_that_does_not_exist_is_a_line(tmp_path, caplog):
    training = Training(tmp_path, {"evry": 1})
    training.start(net())
    training.begin(0)
    training.advance()
    training.interrupt()
    training.end()
    assert caplog.text.count("nothing is recorded, training goes on") == 1
    assert "evry" in caplog.text


def test_what_interrupts_is_in_no_step(tmp_path):
    training = Training(tmp_path, {"every": 1})
    training.start(net())
    training.begin(7)
    training.advance()
    time.sleep(0.2)  # an evaluation
    training.interrupt()
    training.advance()
    training.interrupt(midway=True)  # step 9 cannot be told
    assert not training.in_step
    training.advance()
    training.advance()
    training.end()
    training.end()
    assert steps_of(tmp_path) == [7, 8, 10]
    (file,) = read_files(tmp_path)
    assert (file.times[:, 2] < 0.1e9).all()


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_wrapper_of_a_model_is_found(tmp_path, group):
    core = net()
    wrapped = nn.parallel.DistributedDataParallel(core)
    other = nn.parallel.DistributedDataParallel(net())  # trained elsewhere
    training = Training(tmp_path, {"every": 1})
    training.start(core)
    training.begin(0)
    for model in (other, wrapped):
        model(torch.randn(2, 4)).sum().backward()
    training.advance()
    training.end()
    (file,) = read_files(tmp_path)
    assert told(tmp_path)["recorded"] == [{"recorded": "DistributedDataParallel", "ranks": [0]}]
    assert [int(kind) for kind in file.ops["kind"]].count(0) == 1  # forward-compute


class OptimizedModule(nn.Module):
    """As torch.compile makes one."""

    def __init__(self, module):
        super().__init__()
        self._orig_mod = module


class FullyShardedDataParallel(OptimizedModule):
    pass


class LightningModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = net(), net()

    def training_step(self):
        pass


@pytest.mark.parametrize(
    ("model", "what", "how"),
    [
        (lambda: OptimizedModule(net()), "OptimizedModule", "compile the model before"),
        (lambda: FullyShardedDataParallel(net()), "FullyShardedDataParallel", "use fully_shard"),
        (LightningModule, "LightningModule calls 2 modules of its own", "name the passes"),
        (nn.Tanh, "no module holds the parameters", "call record.instrument_ddp"),
    ],
)
def test_what_cannot_be_hooked_is_told_with_what_to_do(tmp_path, capsys, model, what, how):
    model = model()
    training = Training(tmp_path, {})
    training.start(model)
    training.end()  # not one step: the note is there all the same
    status = told(tmp_path)
    (note,) = status["not_recorded"]
    assert what in note["not_recorded"]
    assert how in note["how"]
    assert paceline_command(["record", "status", str(tmp_path)]) == 0
    assert f"{note['not_recorded']}\n  {note['how']}\n" in capsys.readouterr().out


def test_a_hook_that_fails_is_told_in_the_recording(tmp_path):
    with record.start(tmp_path):
        record.instrument_fsdp(net())
    (note,) = told(tmp_path)["not_recorded"]
    assert note["not_recorded"].startswith("fully_shard (FSDP2): Sequential is not fully sharded")


def test_a_plain_model_of_many_ranks_says_that_its_exchange_is_not_seen(tmp_path, monkeypatch):
    class Group:
        def get_world_size(self):
            return 2

    monkeypatch.setattr(models, "process_group", Group)
    model = net()
    with record.start(tmp_path) as recorder:
        models.hook(recorder, model)
    (note,) = told(tmp_path)["not_recorded"]
    assert "neither DDP nor fully_shard" in note["not_recorded"]


def test_a_note_that_a_later_version_writes_is_passed_over(tmp_path):
    with record.start(tmp_path, every=1) as recorder:
        recorder.note("a model")
        with recorder.step(0):
            pass
    (path,) = tmp_path.glob("rank-*")
    for payload in (b"[1]", b"{", b'{"recorded": 7}', b'{"read": "me"}'):
        path.write_bytes(path.read_bytes() + blockfile.block(blockfile.NOTE, payload))
    assert told(tmp_path)["recorded"] == [{"recorded": "a model", "ranks": [0]}]
    assert steps_of(tmp_path) == [0]


class Container(torch.optim.Optimizer):
    """Steps others, as torchtitan's container does."""

    def __init__(self, optimizers):
        self.optimizers = optimizers
        super().__init__([p for one in optimizers for p in one.param_groups[0]["params"]], {})

    def step(self, closure=None):
        for optimizer in self.optimizers:
            optimizer.step()


def test_an_optimizer_made_of_others_is_one_operation(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    container = Container([sgd(layer.parameters()) for layer in model])
    with record.start(tmp_path, every=1) as recorder:
        record.instrument_model(model)
        for number in range(2):
            with recorder.step(number) as step:
                train(model, [container])
            assert [op.kind for op in step.ops] == [0, 1, 13]


def test_a_step_ends_behind_an_optimizer_made_of_others(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    container = Container([sgd(layer.parameters()) for layer in model])
    hooked(OptimizerSteps(tmp_path, {"every": 1}), [*container.optimizers, container])
    for _ in range(5):
        train(model, [container])
    record.current().close()
    (file,) = read_files(tmp_path)
    assert file.steps.tolist() == [2, 3, 4]
    assert [int(op["kind"]) for op in file.ops] == [0, 1, 13] * 3


def test_an_optimizer_that_raised_steps_again(tmp_path):
    model = net()
    optimizers = [sgd(model.parameters())]
    steps = OptimizerSteps(tmp_path, {})
    hooked(steps, optimizers)
    steps.before(optimizers[0])  # no after: its step raised
    for _ in range(4):
        train(model, optimizers)
    record.current().close()
    assert steps_of(tmp_path) == [2, 3, 4]


def bridge_callbacks():
    """Megatron-Bridge's own file; the package around it needs Transformer Engine."""
    requires.installed("megatron.bridge")
    (folder,) = find_spec("megatron.bridge").submodule_search_locations
    spec = spec_from_file_location("bridge_callbacks", Path(folder) / "training" / "callbacks.py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_megatron_bridge_fires_the_recorder(tmp_path, monkeypatch):
    callbacks = bridge_callbacks()
    monkeypatch.setattr(models, "hook", lambda *_: None)
    recorder = paceline.integrations.megatron_bridge.Recorder(tmp_path, every=1)
    manager = callbacks.normalize_callbacks([recorder])
    state = SimpleNamespace(train_state=SimpleNamespace(step=7))
    context = callbacks.CallbackContext(state=state, model=[])
    steps = ["on_train_step_start", "on_train_step_end"]
    for event in ("on_train_start", *2 * steps, "on_eval_end", *steps, "on_train_end"):
        assert callbacks.should_fire(manager, event)
        manager.fire(event, context)
    assert steps_of(tmp_path) == [7, 8, 9]


def test_the_monitor_hears_of_what_a_trainer_records(tmp_path, monkeypatch):
    pushed = []
    monkeypatch.setattr(record.push, "start", lambda *told: pushed.append(told))
    training = Training(tmp_path, {})
    training.start(net())
    training.end()
    assert pushed == [(tmp_path, 0)]


def test_every_snippet_of_the_docs_is_run_by_a_test():
    text = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    code = {name: re.findall(r"```python\n(.*?)```", body, re.S) for name, body in sections.items()}
    job = (ROOT / "tests" / "trainers" / "job.py").read_text(encoding="utf-8")
    run = {name for name in sections if f'insert("{name}"' in job}
    assert run == {
        *("Hugging Face Trainer", "Accelerate", "Lightning", "DeepSpeed"),
        "Composer",
        "torchtitan",
    }
    (generic,) = code["Accelerate"]
    others = [block for name, blocks in code.items() if name not in run for block in blocks]
    bridge = code["Megatron-Bridge, NeMo"]
    assert others == [generic, *bridge]  # Megatron-LM; Bridge's names are in a test of its own


def python(code, **env):
    """A fresh interpreter that reads the start-up file, as if it were installed."""
    site = f"import site; site.addsitedir({str(START_UP.parent)!r})\n"
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PACELINE_")} | env
    environ["PYTHONPATH"] = PACKAGES
    done = subprocess.run(
        [sys.executable, "-c", site + code], env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout.split(), done.stderr


LOADED = "import sys; print(*(m for m in sys.modules if m.split('.')[0] in ('paceline', 'torch')))"


def test_the_start_up_file_does_nothing_without_the_variable():
    assert python(LOADED) == ([], "")


def test_with_the_variable_it_imports_no_torch(tmp_path):
    modules, said = python(LOADED, PACELINE_RECORD=str(tmp_path / "run"))
    assert "paceline.integrations.environment" in modules
    assert not [name for name in modules if name.startswith("torch")]
    assert said == ""
    assert not (tmp_path / "run").exists()


LOOP = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(5):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("done")
"""


def test_with_the_variable_a_loop_records_itself(tmp_path):
    env = {"PACELINE_RECORD": str(tmp_path / "run"), "PACELINE_RECORD_EVERY": "1"}
    assert python(LOOP, **env)[0] == ["done"]
    assert steps_of(tmp_path / "run") == [2, 3, 4]
    (file,) = read_files(tmp_path / "run")
    ends = file.ops["end_ns"][file.ops["kind"] == 13]  # optimizer
    assert (ends <= file.times[:, 2]).all()


def test_a_variable_that_makes_no_sense_is_a_line(tmp_path):
    env = {"PACELINE_RECORD": str(tmp_path / "run"), "PACELINE_RECORD_EVERY": "often"}
    out, said = python(LOOP, **env)
    assert out == ["done"]
    assert said.count("\n") == 1
    assert "nothing is recorded, the program goes on" in said


def test_the_wheel_brings_the_start_up_file():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    ((source, target),) = included.items()
    assert ROOT / source == START_UP
    assert target == START_UP.name  # at the top of site-packages, where Python looks


def test_modules_of_trainers_are_imported_when_they_are_used():
    code = "import paceline; paceline.integrations; import sys; print('torch' in sys.modules)"
    assert python(code)[0] == ["False"]
    with pytest.raises(AttributeError, match="no attribute 'keras'"):
        _ = paceline.integrations.keras
