"""A callback of Megatron-Bridge, which NeMo trains by since it left Lightning. Read at 0.6.0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.integrations.training import Training


class Recorder:
    """Records a training by Megatron-Bridge: ``pretrain(..., callbacks=[Recorder("runs/17")])``.

    Its manager asks a callback for its methods, not for its class
    (``training/callbacks.py``, ``CallbackManager.add``), so nothing of it is imported here.

    Args:
        folder: of the run; every rank writes a file of its own into it.
        options: of :func:`paceline.record.start`, as ``every=10``.
    """

    def __init__(self, folder: str | Path, **options: Any) -> None:
        self._training = Training(folder, options)

    def on_train_start(self, context: Any) -> None:
        """Megatron's parallel state is there: hook it."""
        self._training.start()

    def on_train_step_start(self, context: Any) -> None:
        """The first step begins here, later ones where the last one ended."""
        if not self._training.in_step:
            self._training.begin(context.state.train_state.step)

    def on_train_step_end(self, context: Any) -> None:
        """Passes and optimizer of a global batch are over."""
        self._training.advance()

    def on_eval_end(self, context: Any) -> None:
        """An evaluation is in no step."""
        if self._training.in_step:
            self._training.interrupt()

    on_test_end = on_checkpoint_save = on_eval_end

    def on_train_end(self, context: Any) -> None:
        """Write the rest."""
        self._training.end()
