"""A callback of the Hugging Face Trainer and of trainers built on it (TRL, Axolotl).

Read at transformers 5.23.0 (``trainer.py``, ``trainer_callback.py``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from paceline.integrations.training import Training


class Recorder(TrainerCallback):
    """Records a training by the Trainer: ``trainer.add_callback(Recorder("runs/job-17"))``.

    Args:
        folder: folder of the run; every rank writes its own file into it.
        options: options of :func:`paceline.record.start`, such as ``every=10``.
    """

    def __init__(self, folder: str | Path, **options: Any) -> None:
        self._training = Training(folder, options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The model is wrapped: hook it."""
        self._training.start(kwargs.get("model"))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The first step begins here, later ones at the end of the previous step."""
        if not self._training.in_step:
            self._training.begin(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End of an optimizer step."""
        self._training.advance()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation belongs to no step."""
        if self._training.in_step:
            self._training.interrupt()

    on_save = on_predict = on_evaluate

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the remaining data."""
        self._training.end()
