"""One rank of a small training by a trainer's own loop: ``job.py CASE FOLDER FACTORS SEEN``.

Layers sleep as those of ``real_jobs``. FACTORS are those of the ranks, such as ``1,3``; SEEN is
plain, or recorded: by the snippet of docs/integrations.md for this trainer. Rank and world size
come as torchrun tells them. Prints a digest of the losses.
"""

import atexit
import json
import os
import re
import sys
from importlib import import_module
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "real_jobs"))
from job import WIDTH, Sleep, layers

DOCS = HERE.parents[1] / "docs" / "integrations.md"
STEPS, MICROBATCHES, ROWS = 6, 2, 4
LAYERS, LAYER_S = 3, 0.02


class Model(nn.Module):
    """Says its loss itself, as models of the Hugging Face Trainer do."""

    def __init__(self, factor):
        super().__init__()
        self.layers = layers(factor, LAYERS, LAYER_S)

    def forward(self, x, labels=None):
        y = self.layers(x)
        return {"loss": (y if labels is None else y - labels).square().mean(), "y": y}


class Rows(torch.utils.data.Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.x[-1 - i]}


def snippet(trainer):
    """The first block of code of the trainer's section in the docs."""
    text = DOCS.read_text(encoding="utf-8")
    section = re.search(rf"^## {re.escape(trainer)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)[1]
    return re.search(r"```python\n(.*?)```", section, re.S)[1]


def insert(section, folder, **names):
    """Run the trainer's snippet with every step profiled; returns the names it has made."""
    code = snippet(section)
    assert code.count('"runs/job-17"') == 1
    every = ', "every": 1' if '"folder"' in code else ", every=1"
    code = code.replace('"runs/job-17"', repr(f"{folder}/run") + every)
    exec(code, names)
    return names


def transformers(folder, factor, recorded):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    losses = []

    class Losses(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            losses.append(logs.get("loss"))

    args = TrainingArguments(
        output_dir=f"{folder}/out",
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=MICROBATCHES,
        max_steps=STEPS,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        learning_rate=1e-2,
    )
    data = Rows(dist_size() * ROWS * MICROBATCHES * STEPS)
    trainer = Trainer(Model(factor), args, train_dataset=data, eval_dataset=Rows(2 * ROWS))
    trainer.add_callback(Losses())
    if recorded:
        insert("Hugging Face Trainer", folder, trainer=trainer)
    trainer.train()
    return losses


def trl(folder, factor, recorded):
    """Supervised fine-tuning of a tiny Llama, by TRL's own trainer."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    losses = []

    class Losses(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            losses.append(logs.get("loss"))

    words = {"<pad>": 0, "</s>": 1, **{f"w{i}": i + 2 for i in range(30)}}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="</s>",
    )
    sizes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), **sizes, **heads))
    for layer in model.model.layers:
        layer.register_forward_hook(lambda *call: sleeping(call[-1], LAYER_S * factor))
    rows = dist_size() * ROWS * MICROBATCHES * STEPS
    ids = torch.randint(2, 32, (rows, 8), generator=torch.Generator().manual_seed(1)).tolist()
    args = SFTConfig(
        output_dir=f"{folder}/out",
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=MICROBATCHES,
        gradient_checkpointing=False,
        max_steps=STEPS,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    data = Dataset.from_dict({"input_ids": ids})
    trainer = SFTTrainer(model, args, train_dataset=data, processing_class=tokenizer)
    trainer.add_callback(Losses())
    if recorded:
        insert("Hugging Face Trainer", folder, trainer=trainer)
    trainer.train()
    return losses


def sleeping(output, seconds):
    if isinstance(output, tuple):
        return (Sleep.apply(output[0], seconds, 2 * seconds), *output[1:])
    return Sleep.apply(output, seconds, 2 * seconds)


def dist_size():
    return int(os.environ["WORLD_SIZE"])


def lightning(folder, factor, recorded):
    import lightning.pytorch as pl

    losses = []

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model(factor)

        def training_step(self, batch, index):
            loss = self.model(**batch)["loss"]
            losses.append(float(loss.detach()))
            return loss

        def validation_step(self, batch, index):
            self.model(**batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-2)

    data = Rows(dist_size() * ROWS * MICROBATCHES * STEPS)
    loader = torch.utils.data.DataLoader(data, batch_size=ROWS)
    evaluated = torch.utils.data.DataLoader(Rows(2 * ROWS), batch_size=ROWS)
    options = {
        "accelerator": "cpu",
        "devices": dist_size(),
        "strategy": "ddp",
        "max_steps": STEPS,
        "accumulate_grad_batches": MICROBATCHES,
        "val_check_interval": 4 * MICROBATCHES,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": str(folder),
    }
    if recorded:
        trainer = insert("Lightning", folder, options=options)["trainer"]
    else:
        trainer = pl.Trainer(**options)
    trainer.fit(Module(), loader, evaluated)
    return losses


def loop(folder, factor, recorded):
    """A loop of its own, with two optimizers and not a line for Paceline (PACELINE_RECORD)."""
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(Model(factor))
    parameters = list(model.parameters())
    optimizers = [torch.optim.SGD(half, 1e-2) for half in (parameters[::2], parameters[1::2])]
    losses = []
    for batch in batches():
        for microbatch in batch:
            model.require_backward_grad_sync = microbatch is batch[-1]
            loss = model(**microbatch)["loss"]
            loss.backward()
            losses.append(float(loss.detach()))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def sharded(folder, factor, recorded):
    """The same for fully_shard."""
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist_size(),), mesh_dim_names=("dp",))
    model = Model(factor)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    losses = []
    for batch in batches():
        for microbatch in batch:
            model.set_requires_gradient_sync(microbatch is batch[-1])
            loss = model(**microbatch)["loss"]
            loss.backward()
            losses.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
    return losses


class Block(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.seconds = seconds

    def forward(self, x):
        return self.down(Sleep.apply(torch.tanh(self.up(x)), self.seconds, 2 * self.seconds))


def tensor(folder, factor, recorded):
    """And for tensor parallelism by DTensor."""
    from torch.distributed.tensor import parallel

    dist.init_process_group("gloo")
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist_size(),), mesh_dim_names=("tp",))
    model = nn.Sequential(*(Block(LAYER_S * factor) for _ in range(LAYERS)))
    for block in model:
        plan = {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()}
        parallel.parallelize_module(block, mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    x = Rows(ROWS).x
    losses = []
    for _ in range(STEPS):
        for _ in range(MICROBATCHES):
            loss = model(x).square().mean()
            loss.backward()
            losses.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def pipeline(folder, factor, recorded):
    """And for a schedule of torch.distributed.pipelining."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist_size()
    part = layers(factor, LAYERS, LAYER_S)
    stage = PipelineStage(part, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 2 * size, loss_fn=nn.MSELoss())
    optimizer = torch.optim.SGD(part.parameters(), 1e-2)
    x = Rows(ROWS * 2 * size).x
    losses = []
    for _ in range(STEPS):
        told = []
        last = {"target": x, "losses": told} if rank == size - 1 else {}
        schedule.step(*([x] if rank == 0 else []), **last)
        optimizer.step()
        optimizer.zero_grad()
        losses += [float(loss.detach()) for loss in told]
    return losses


def batches():
    """[step][microbatch] of this rank."""
    first, size = int(os.environ["RANK"]), dist_size()
    loader = torch.utils.data.DataLoader(Rows(size * ROWS * MICROBATCHES * STEPS), batch_size=ROWS)
    mine = list(loader)[first::size]
    return [mine[i : i + MICROBATCHES] for i in range(0, len(mine), MICROBATCHES)]


def accelerate(folder, factor, recorded):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICROBATCHES)
    model = Model(factor)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 1e-2))
    if recorded:
        insert("Accelerate", folder)
    losses = []
    for batch in batches():
        for microbatch in batch:
            with accelerator.accumulate(model):
                loss = model(**microbatch)["loss"]
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(float(loss.detach()))
    return losses


def deepspeed(folder, factor, recorded):
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    # DeepSpeed compiles it for all-reduces of inference, behind a lock that a killed build leaves.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    config = {
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_accumulation_steps": MICROBATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": 1e-2}},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 1},
    }
    model = Model(factor)
    if recorded:
        engine = insert("DeepSpeed", folder, model=model, config=config)["engine"]
    else:
        engine, *_ = deepspeed.initialize(model=model, config=config)
    losses = []
    for batch in batches():
        for microbatch in batch:
            loss = engine(**microbatch)["loss"]
            engine.backward(loss)
            engine.step()
            losses.append(float(loss.detach()))
    return losses


def composer(folder, factor, recorded):
    """Composer runs the microbatches inside the optimizer's step, as its closure."""
    without_pictures()
    from composer import Callback, ComposerModel, Evaluator, Trainer

    losses = []

    class Losses(Callback):
        def batch_end(self, state, logger):
            losses.append(float(state.loss.detach()))

    class Composed(ComposerModel):
        def __init__(self):
            super().__init__()
            self.model = Model(factor)

        def forward(self, batch):
            return self.model(**batch)

        def loss(self, outputs, batch, *args, **kwargs):
            return outputs["loss"]

        def eval_forward(self, batch, outputs=None):
            return self.model(**batch)

        def update_metric(self, batch, outputs, metric):
            pass

    def loader(rows, n):
        data = Rows(rows)
        sampler = torch.utils.data.DistributedSampler(data, shuffle=False)
        return torch.utils.data.DataLoader(data, batch_size=n, sampler=sampler)

    dist.init_process_group("gloo")
    model = Composed()
    evaluated = Evaluator(label="eval", dataloader=loader(4 * ROWS, ROWS), metric_names=[])
    options = {
        "model": model,
        "train_dataloader": loader(dist_size() * ROWS * MICROBATCHES * STEPS, ROWS * MICROBATCHES),
        "eval_dataloader": evaluated,
        "eval_interval": "4ba",
        "optimizers": torch.optim.SGD(model.parameters(), 1e-2),
        "max_duration": f"{STEPS}ba",
        "device": "cpu",
        "device_train_microbatch_size": ROWS,
        "progress_bar": False,
        "log_to_console": False,
    }
    if recorded:
        trainer = insert("Composer", folder, options=options)["trainer"]
    else:
        trainer = Trainer(**options)
    trainer.state.callbacks.append(Losses())
    trainer.fit()
    return losses


def without_pictures():
    """Composer imports torchvision, whose wheel needs a torch for CUDA; no model here uses it."""
    import_module("torchmetrics")  # asks whether there is one
    below = ("", "datasets", "models", "ops", "transforms", "transforms.functional", "utils")
    for name in (*below, "models.resnet"):
        stub = mock.MagicMock(Bottleneck=type("Bottleneck", (), {}))
        sys.modules.setdefault(f"torchvision.{name}".rstrip("."), stub)


def torchtitan(folder, factor, recorded):
    """Its own trainer and Llama, sharded by fully_shard."""
    import titan

    config = titan.configuration(folder, LAYERS, STEPS, MICROBATCHES, dist_size())
    trainer = config.build()
    for module in trainer.model_parts[0].modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
    losses = []
    trainer.metrics_processor.log = lambda step, loss, *_, **__: losses.append(loss)
    for layer in trainer.model_parts[0].layers.values():
        layer.register_forward_hook(lambda *call: sleeping(call[-1], LAYER_S * factor))
    if recorded:
        insert("torchtitan", folder, trainer=trainer)
    trainer.train()
    return losses


CASES = {
    "composer": composer,
    "torchtitan": torchtitan,
    "transformers": transformers,
    "lightning": lightning,
    "loop": loop,
    "sharded": sharded,
    "pipeline": pipeline,
    "tensor": tensor,
    "accelerate": accelerate,
    "deepspeed": deepspeed,
    "trl": trl,
}


def main():
    case, folder, factors, seen = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    factor = [float(f) for f in factors.split(",")][int(os.environ["RANK"])]
    losses = CASES[case](Path(folder), factor, seen == "recorded")
    print(json.dumps({"losses": losses}), flush=True)
    if dist.is_initialized():
        dist.barrier()
    atexit._run_exitfuncs()  # the recorder writes what is left
    os._exit(0)  # past torch's teardown, which aborts now and then


if __name__ == "__main__":
    main()
