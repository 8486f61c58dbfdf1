"""One rank of a small training by a trainer's own loop: ``job.py CASE FOLDER FACTORS SEEN``.

Layers sleep as those of ``real_jobs``. FACTORS are those of the ranks, such as ``1,3``; SEEN is
plain, or recorded: by the snippet of docs/integrations.md for this trainer. Rank and world size
come as torchrun tells them. Prints a digest of the losses.
"""

import json
import os
import re
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "real_jobs"))
from job import WIDTH, layers

DOCS = HERE.parents[1] / "docs" / "integrations.md"
STEPS, MICROBATCHES, ROWS = 8, 2, 4
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
    code = code.replace('"runs/job-17"', repr(f"{folder}/run") + ", every=1")
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


CASES = {"transformers": transformers, "lightning": lightning}


def main():
    case, folder, factors, seen = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    factor = [float(f) for f in factors.split(",")][int(os.environ["RANK"])]
    losses = CASES[case](Path(folder), factor, seen == "recorded")
    print(json.dumps({"losses": losses}))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
