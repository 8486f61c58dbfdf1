"""Recorders for trainers, added by one line: they find the model and follow the trainer's steps.

    trainer.add_callback(paceline.integrations.transformers.Recorder("runs/job-17"))
    Trainer(callbacks=[paceline.integrations.lightning.Recorder("runs/job-17")])
    engine, *_ = paceline.integrations.deepspeed.initialize(model=model, config=config)
    paceline.integrations.torch.start("runs/job-17")  # any loop with a torch optimizer
    PACELINE_RECORD=runs/job-17 torchrun ... train.py  # the same without a line

Each module imports its trainer, so modules are imported at their first use.
``docs/integrations.md`` has a snippet for every trainer.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["composer", "deepspeed", "lightning", "megatron_bridge", "torch", "transformers"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
