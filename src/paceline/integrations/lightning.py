"""A callback of Lightning's Trainer, also NeMo's. Read at lightning 2.6.6 (``pytorch/loops``)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from sys import modules
from typing import Any

from paceline.integrations.training import Training

# The two packages have separate classes; a job imports one of them.
_package = "pytorch_lightning" if "lightning.pytorch" not in modules else "lightning.pytorch"
try:
    _Callback: Any = import_module(_package).Callback
except ImportError:
    _Callback = import_module("lightning.pytorch").Callback


class Recorder(_Callback):
    """Records a training by Lightning: ``Trainer(callbacks=[Recorder("runs/job-17")])``.

    Args:
        folder: folder of the run; every rank writes its own file into it.
        options: options of :func:`paceline.record.start`, such as ``every=10``.
    """

    def __init__(self, folder: str | Path, **options: Any) -> None:
        self._training = Training(folder, options)
        self._optimized = 0  # optimizer steps so far
        self._midway = self._saved = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The strategy has wrapped the model: hook it."""
        self._training.start(pl_module)
        self._optimized = trainer.global_step

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """The first step begins here, later ones at the end of the previous step."""
        if not self._training.in_step and not self._midway:
            self._training.begin(trainer.global_step)
        elif self._saved:
            self._training.interrupt(midway=self._midway)
        self._saved, self._midway = False, True

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End of a step if an optimizer stepped; otherwise end of a microbatch."""
        if trainer.global_step != self._optimized:
            self._optimized, self._midway = trainer.global_step, False
            self._training.advance()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """An evaluation belongs to no step; one in the middle of a step invalidates it."""
        if self._training.in_step:
            self._training.interrupt(midway=self._midway)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """A checkpoint is written after this call; the next step begins after that."""
        self._saved = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the remaining data."""
        self._training.end()
