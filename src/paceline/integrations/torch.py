"""Any loop with a torch optimizer: its steps end where the optimizer's do. Read at torch 2.13.

``start("runs/job-17")`` does what PACELINE_RECORD=runs/job-17 does without a line in the program.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import paceline.record as record
from paceline.integrations.training import Training

log = logging.getLogger("paceline.record")


def start(folder: str | Path, **options: Any) -> None:
    """Record from the second optimizer step on; on every rank, before or while it trains.

    The model is looked for among the live objects, once, before the second optimizer step.

    Args:
        folder: of the run; every rank writes a file of its own into it.
        options: of :func:`paceline.record.start`, as ``every=10``.
    """
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    steps = OptimizerSteps(folder, options)
    register_optimizer_step_pre_hook(steps.before)
    steps.come_last()


class OptimizerSteps:
    """Steps of a loop, seen by its optimizers.

    A loop may step several of them in turns (one per part of the model, or two that play against
    each other). The first one to come again closes a round; the last of that round ends a step. One
    that steps others within its own step stands for them.

    Args:
        folder: of the recording.
        options: of :func:`paceline.record.start`.
    """

    def __init__(self, folder: str | Path, options: dict[str, Any]) -> None:
        self._training = Training(folder, options)
        self._round: list[Any] = []
        self._last: Any = None  # optimizer of a round
        self._outer: Any = None  # the one whose step runs, perhaps made of others (torchtitan's)
        self._is_off = False
        self._behind: Any = None  # handle of the hook behind all optimizers' steps

    def come_last(self) -> None:
        """See steps behind what other hooks record of them."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        if self._behind is not None:
            self._behind.remove()
        self._behind = register_optimizer_step_post_hook(self.after)

    def before(self, optimizer: Any, *_: object) -> None:
        """Called before every step of every optimizer."""
        if self._outer is None:
            self._outer = optimizer
        elif self._outer is not optimizer:  # else its last step raised
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
        """Whether torch's optimizer tells the steps; DeepSpeed's and Megatron's loops do it."""
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
            else:  # two rounds are over
                self._training.begin(2)
