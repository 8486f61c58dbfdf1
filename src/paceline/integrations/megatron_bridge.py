"""A callback of Megatron-Bridge, which NeMo uses since it left Lightning. Read at 0.6.0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.integrations.training import Training


class Recorder:
    """Records a training by Megatron-Bridge: ``pretrain(..., callbacks=[Recorder("runs/17")])``.

    Its manager checks a callback's methods, not its class (``training/callbacks.py``,
    ``CallbackManager.add``), so nothing of it is imported here.

    Args:
        folder: folder of the run; every rank writes its own file into it.
        options: options of :func:`paceline.record.start`, such as ``every=10``.
    """

    def __init__(self, folder: str | Path, **options: Any) -> None:
        self._training = Training(folder, options)

    def on_train_start(self, context: Any) -> None:
        """Megatron's parallel state exists: install the hooks."""
        self._training.start()

    def on_train_step_start(self, context: Any) -> None:
        """The first step begins here, later ones at the end of the previous step."""
        if not self._training.in_step:
            self._training.begin(context.state.train_state.step)

    def on_train_step_end(self, context: Any) -> None:
        """Passes and optimizer of a global batch have finished."""
        self._training.advance()

    def on_eval_end(self, context: Any) -> None:
        """An evaluation belongs to no step."""
        if self._training.in_step:
            self._training.interrupt()

    on_test_end = on_checkpoint_save = on_eval_end

    def on_train_end(self, context: Any) -> None:
        """Write the remaining data."""
        self._training.end()
