"""Any loop with a torch optimizer: its steps end with the optimizer's. Read at torch 2.13.

``start("runs/job-17")`` has the same effect as PACELINE_RECORD=runs/job-17, which needs no line in
the program.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import paceline.record as record
from paceline.integrations.training import Training

log = logging.getLogger("paceline.record")


def start(folder: str | Path, **options: Any) -> None:
    """Record from the second optimizer step on; call it on every rank, before or during training.

    The model is searched among the live objects, once, before the second optimizer step.

    Args:
        folder: folder of the run; every rank writes its own file into it.
        options: options of :func:`paceline.record.start`, such as ``every=10``.
    """
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    steps = OptimizerSteps(folder, options)
    register_optimizer_step_pre_hook(steps.before)
    steps.come_last()


class OptimizerSteps:
    """Steps of a loop, seen by its optimizers.

    A loop may step several optimizers in turn (one per part of the model, or two adversaries). The
    first one that steps again closes a round, and the last one of the round ends a step. An
    optimizer that steps others within its own step represents them.

    Args:
        folder: folder of the recording.
        options: of :func:`paceline.record.start`.
    """

    def __init__(self, folder: str | Path, options: dict[str, Any]) -> None:
        self._training = Training(folder, options)
        self._round: list[Any] = []
        self._last: Any = None  # optimizers of a round
        self._outer: Any = None  # the optimizer whose step runs, perhaps a container (torchtitan's)
        self._is_off = False
        self._behind: Any = None  # handle of the hook behind all optimizers' steps

    def come_last(self) -> None:
        """Install the hook on steps after the recording hooks."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        if self._behind is not None:
            self._behind.remove()
        self._behind = register_optimizer_step_post_hook(self.after)

    def before(self, optimizer: Any, *_: object) -> None:
        """Called before every step of every optimizer."""
        if self._outer is None:
            self._outer = optimizer
        elif self._outer is not optimizer:  # otherwise its last step raised
            return
        if self._last is None and not self._is_off:
            try:
                self._learn(optimizer)
            except Exception as error:
                self._is_off = True
                self._training.fail(error)

    def _learn(self, optimizer: Any) -> None:
        if all(one is not optimizer for one in self._round):
            self._round.append(optimizer)
            return
        running = record.current()
        if running is not None and running.is_on:
            log.info("the loop or a callback records already, PACELINE_RECORD does not")
            self._is_off = True
            return
        self._training.start(optimizers=self._round)
        if self._behind is not None:
            self.come_last()
        self._last, self._round = self._round[-1], []
        self._is_off = not self._takes_steps()

    def _takes_steps(self) -> bool:
        """Whether torch's optimizers define the steps; in DeepSpeed and Megatron, loops do."""
        from paceline.integrations import deepspeed, models

        if models.megatron_steps():
            return False
        engines = models.alive("deepspeed", "DeepSpeedEngine")
        for engine in engines:
            deepspeed.end_steps(engine, self._training)
        return not engines

    def after(self, optimizer: Any, *_: object) -> None:
        """Called after every step of every optimizer."""
        if optimizer is not self._outer:
            return
        self._outer = None
        if optimizer is self._last and not self._is_off:
            if self._training.in_step:
                self._training.advance()
            else:  # two rounds have ended
                self._training.begin(2)
