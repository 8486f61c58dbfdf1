"""A callback of Composer's Trainer. Read and run at Composer 0.32.1 (``trainer/trainer.py``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composer import Callback

from paceline.integrations.training import Training


class Recorder(Callback):
    """Records a training by Composer: ``Trainer(callbacks=[Recorder("runs/job-17")])``.

    A step lasts from the loading of its batch to the end of the batch. Evaluations, checkpoints and
    work of other callbacks between batches belong to no step.

    Args:
        folder: folder of the run; every rank writes its own file into it.
        options: options of :func:`paceline.record.start`, such as ``every=10``.
    """

    def __init__(self, folder: str | Path, **options: Any) -> None:
        super().__init__()
        self._training = Training(folder, options)

    def fit_start(self, state: Any, logger: Any) -> None:
        """The model is wrapped: hook it."""
        self._training.start(state.model)

    def before_dataloader(self, state: Any, logger: Any) -> None:
        """Start of a step, or the time since the last step is left out."""
        if state.dataloader_label != "train":
            return
        if self._training.in_step:
            self._training.interrupt()
        else:
            self._training.begin(state.timestamp.batch.value)

    def batch_end(self, state: Any, logger: Any) -> None:
        """All microbatches and optimizers have finished."""
        self._training.advance()

    def fit_end(self, state: Any, logger: Any) -> None:
        """Write the remaining data."""
        self._training.end()
