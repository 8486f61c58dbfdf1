"""DeepSpeed: an entry of its configuration, read when the engine is made. Tested with 0.19.8."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from paceline.integrations.training import Training
from paceline.record.patching import wrap

log = logging.getLogger("paceline.record")

#: The entry in DeepSpeed's configuration; DeepSpeed itself ignores unknown entries.
ENTRY = "paceline"


def initialize(*args: Any, **kwargs: Any) -> Any:
    """Call ``deepspeed.initialize``, and record the engine if its configuration has the entry.

    ``"paceline": {"enabled": true, "folder": "runs/job-17", "every": 10}``: the folder, and options
    of :func:`paceline.record.start`.

    Returns:
        the result of ``deepspeed.initialize``.
    """
    import deepspeed

    answer = deepspeed.initialize(*args, **kwargs)
    try:
        _record(answer[0])
    except Exception as error:
        log.error("nothing is recorded, training goes on: %s", " ".join(f"{error}".split()))
    return answer


def _record(engine: Any) -> None:
    entry = dict(engine._config._param_dict.get(ENTRY, {}))
    if not entry.pop("enabled", bool(entry)):
        return
    if "folder" not in entry:
        raise ValueError(f'the entry "{ENTRY}" of the configuration needs a "folder"')
    training = Training(entry.pop("folder"), entry)

    def first_forward(*_: object) -> None:
        handle.remove()
        training.begin(engine.global_steps)

    handle = engine.register_forward_pre_hook(first_forward)  # before the hooks of passes
    training.start(engine)
    end_steps(engine, training)


def end_steps(engine: Any, training: Training) -> None:
    """A step ends with ``engine.step()`` at an accumulation boundary."""

    def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            before = engine.global_steps
            answer = function(*args, **kwargs)
            if engine.global_steps != before:
                if training.in_step:
                    training.advance()
                else:
                    training.begin(engine.global_steps)
            return answer

        return step

    wrap(engine, "step", wrapper)
