"""A training with steps announced by a trainer: recorder, hooks, and the open step."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import paceline.record as record
from paceline.integrations import models
from paceline.record.recorder import Recorder
from paceline.record.steps import Step

log = logging.getLogger("paceline.record")

P = ParamSpec("P")


def harmless(
    method: Callable[Concatenate[Training, P], None],
) -> Callable[Concatenate[Training, P], None]:
    """Decorator: an error is logged in one line, and nothing is recorded afterwards."""

    @functools.wraps(method)
    def call(self: Training, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.fail(error)

    return call


class Training:
    """The recorder of one training; a trainer reports the ends of its steps.

    A step lasts from the end of the previous step to its own end, so it includes data loading. No
    method raises.

    Args:
        folder: folder of the recording.
        options: of :func:`paceline.record.start`.
    """

    def __init__(self, folder: str | Path, options: dict[str, Any]) -> None:
        self._folder, self._options = folder, options
        self._recorder: Recorder | None = None
        self._step: Step | None = None
        self._number = 0

    @harmless
    def start(self, core: Any = None, optimizers: Iterable[Any] = ()) -> None:
        """Start the recorder and hook the model; call it on every rank, before the first step.

        Args:
            core: the model, without the trainer's wrappers.
            optimizers: the optimizers with the model's parameters, if the model is unknown.
        """
        self._recorder = record.start(self._folder, **self._options)
        models.hook(self._recorder, core, optimizers)

    @property
    def in_step(self) -> bool:
        """Whether a step is running."""
        return self._step is not None

    @harmless
    def begin(self, number: int) -> None:
        """Step ``number`` begins now."""
        self._number = number
        self._open()

    @harmless
    def advance(self) -> None:
        """End of an optimizer step; the next step begins."""
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)
        self._number += 1
        self._open()

    @harmless
    def interrupt(self, *, midway: bool = False) -> None:
        """Leave out the time since the last step, for an evaluation or a checkpoint.

        Args:
            midway: whether a part of the step was done before, so that its time is unknown.
        """
        self._abandon()
        if not midway:
            self._open()

    @harmless
    def end(self) -> None:
        """End of the training."""
        self._abandon()
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close()

    def _open(self) -> None:
        if self._recorder is not None:
            self._step = self._recorder.step(self._number).__enter__()

    def _abandon(self) -> None:
        step, self._step = self._step, None
        if step is not None and self._recorder is not None:
            self._recorder.finish(step, whole=False)

    def fail(self, error: Exception) -> None:
        """Record nothing from now on."""
        recorder, self._recorder, self._step = self._recorder, None, None
        if recorder is not None:
            recorder.fail(error)
        else:
            line = " ".join(f"{error}".split())
            log.error("nothing is recorded, training goes on: %s: %s", type(error).__name__, line)
