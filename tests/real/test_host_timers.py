"""Timers in text logs that the tools' own code writes.

Megatron-LM's ``Timers`` runs out of a clone (core 0.20.0, commit d98e8a6), on values that a test
sets; the line of a step is what ``training/training.py`` formats. DeepSpeed itself trains for a few
steps where it is installed (run with 0.19.8; its pipeline engine with 0.16.9, too).
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import requires
from paceline.detect.host_times import report_times
from paceline.sources.host_times import load_host_times

REPOSITORY, REVISION = "NVIDIA/Megatron-LM", "d98e8a6"
STEPS, RANKS, STAGES = 3, 4, 2
#: Timer -> its seconds in a step on each rank: the last one takes twice as long.
SECONDS = {"forward-compute": (0.1, 0.1, 0.1, 0.2), "backward-compute": (0.2, 0.2, 0.2, 0.4)}


def timers_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """``megatron/core/timers.py``, whose rank is one of ``RANKS`` on this process."""
    requires.installed("torch")
    import torch

    utils = ModuleType("megatron.core.utils")
    utils.is_torch_min_version = lambda _: True
    for name in ("megatron", "megatron.core"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "megatron.core.utils", utils)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: RANKS)
    module = ModuleType("timers")
    exec(requires.source(REPOSITORY, REVISION, "megatron/core/timers.py"), vars(module))
    return module


def log_of_a_job(module: ModuleType, option: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the last rank prints with ``--timing-log-option``."""
    import torch

    own = module.Timers(2, option)

    def gather(whole: torch.Tensor, mine: torch.Tensor) -> None:
        every = torch.tensor(list(SECONDS.values())).T
        assert mine.tolist() == every[-1].tolist()
        whole.copy_(every.flatten())

    monkeypatch.setattr(module, "dist_all_gather_func", gather)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: RANKS - 1)
    printed: list[str] = []
    monkeypatch.setattr(module.logger, "info", printed.append)
    step_line = line_of_a_step()
    for step in range(1, STEPS + 1):
        printed.append(step_line(step))
        for name, of_ranks in SECONDS.items():
            own(name, 2).set_elapsed(of_ranks[-1])
        own.log(list(SECONDS))
    return "\n".join([*arguments(), *printed, ""])


def line_of_a_step() -> Callable[[int], str]:
    """The beginning of ``training_log``'s line, by the formats in its source."""
    source = requires.source(REPOSITORY, REVISION, "megatron/training/training.py")
    begin = source.index("' iteration {:8d}/{:8d} |'")
    number, samples, elapsed = (
        re.search(rf"'( {word}[^']*)'\.format\(", source[begin - 1 :])[1]
        for word in ("iteration", "consumed samples", "elapsed time per iteration")
    )

    def line(step: int) -> str:
        told = number.format(10 * step, 100) + samples.format(80 * step) + elapsed.format(1000.0)
        return f" [2026-08-22 10:00:01.000000]{told} learning rate: 1.0E-04 |"

    return line


def arguments() -> list[str]:
    """Two of the arguments as ``megatron/training/arguments.py`` prints them."""
    values = {"pipeline_model_parallel_size": STAGES, "world_size": RANKS}
    return [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in values.items()]


def report(text: str, folder: Path) -> Any:
    (folder / "train.log").write_text(text)
    return report_times(load_host_times([folder / "train.log"]))


@pytest.mark.parametrize("option", ["minmax", "max", "all"])
def test_megatrons_own_timers(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = timers_module(monkeypatch)
    got = report(log_of_a_job(module, option, monkeypatch), tmp_path)
    assert got.steps == STEPS
    assert got.measures["step"] == pytest.approx((1.0, 1.0, 1.0))
    for name, seconds in SECONDS.items():
        assert got.measures[name][2] == pytest.approx(max(seconds))
        if option != "max":
            assert got.measures[name][1] == pytest.approx(min(seconds))
    assert [rank.stands_out for rank in got.ranks] == ([False] * 3 + [True]) * (option == "all")
    if got.ranks:
        assert got.ranks[-1].group == f"stage {STAGES - 1}"
        assert got.ranks[-1].factor == pytest.approx(2.0)


#: A rank alone, whose forwards sleep for 20 ms; two microbatches a step.
DEEPSPEED_JOB = """
import os, time
os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed, torch
import deepspeed.ops
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def forward(self, batch):
        time.sleep(0.02)
        return self.layer(batch).square().mean()

store = "file://" + os.environ["STORE"]
torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
deepspeed.init_distributed("gloo")
model = Model()
optimizer = {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}}
config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
          "steps_per_print": 1, "wall_clock_breakdown": True, "optimizer": optimizer,
          "zero_optimization": {"stage": 1}}
engine, *_ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=config, dist_init_required=False
)
for _ in range(STEPS * 2):
    loss = engine(torch.randn(2, 8))
    engine.backward(loss)
    engine.step()
"""


def logs_of(job: str, world: int, folder: Path) -> list[str]:
    """What each rank of a job prints; the reason to skip where DeepSpeed's own timers fail."""
    fixed = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "STORE": str(folder / "store")}
    fixed["MASTER_PORT"] = "1"  # asked for, not used
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", f"STEPS = {STEPS}\n{job}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **fixed, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(world)
    ]
    try:
        logs = [rank.communicate(timeout=600)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any("timer has already been started" in log for log in logs):
        pytest.skip("this DeepSpeed fails with a pipeline's timers: pip install deepspeed==0.16.9")
    assert [rank.returncode for rank in ranks] == [0] * world, logs
    return logs


#: Two stages; the forward of each sleeps for 20 ms, so a step of two microbatches takes 60 ms.
PIPELINE_JOB = """
import os, time
os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed, torch
import deepspeed.ops
from deepspeed.pipe import PipelineModule
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def forward(self, batch):
        time.sleep(0.02)
        return self.layer(batch)

rank, store = int(os.environ["RANK"]), "file://" + os.environ["STORE"]
torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
deepspeed.init_distributed("gloo")
loss = lambda output, label: (output - label).square().mean()
model = PipelineModule([Layer(), Layer()], num_stages=2, loss_fn=loss, partition_method="uniform")
optimizer = {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}}
config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
          "steps_per_print": 1, "wall_clock_breakdown": TIMERS, "optimizer": optimizer}
engine, *_ = deepspeed.initialize(
    model=model, model_parameters=list(model.parameters()), config=config, dist_init_required=False
)
batches = iter(lambda: (torch.randn(2, 8), torch.randn(2, 8)), None)
for _ in range(STEPS):
    began_s = time.perf_counter()
    engine.train_batch(batches)
    print(f"truth {time.perf_counter() - began_s}", flush=True)
"""


@pytest.mark.parametrize("timers", [False, True])
def test_deepspeeds_own_pipeline(tmp_path: Path, timers: bool) -> None:
    requires.installed("deepspeed")
    log, _ = logs_of(f"TIMERS = {timers}\n{PIPELINE_JOB}", 2, tmp_path)
    got = report(log, tmp_path)
    true_s = sorted(float(told) for told in re.findall(r"^truth (\S+)$", log, re.MULTILINE))
    assert len(true_s) == got.steps == STEPS
    # It prints whole milliseconds, of the time up to the sum of the losses.
    assert 0.06 < got.measures["step"][1] < true_s[0] + 1e-3
    assert ("forward" in got.measures) == timers
    if timers:
        assert got.measures["forward"][1] > 0.04
        assert got.measures["forward"][0] < got.measures["step"][0]


def test_deepspeeds_own_log(tmp_path: Path) -> None:
    requires.installed("deepspeed")
    (log,) = logs_of(DEEPSPEED_JOB, 1, tmp_path)
    got = report(log, tmp_path)
    told = [float(ms) for ms in re.findall(r"\| fwd: (\d+\.\d+) \|", log)]
    assert len(told) == got.steps == STEPS
    median, least, most = got.measures["forward"]
    assert (median, least, most) == pytest.approx(
        (sorted(told)[STEPS // 2] * 1e-3, min(told) * 1e-3, max(told) * 1e-3)
    )
    assert least > 0.04
    assert [rank.stands_out for rank in got.ranks] == [False]
