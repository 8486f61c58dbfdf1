"""PACELINE_RECORD=FOLDER in the environment: a training records itself without a line of code.

``paceline_record.pth`` (a file that Python reads at its start) imports this module if the variable
is set. Nothing happens before the process imports torch's optimizers. A process without optimizer
steps, such as torchrun or a data loader, records nothing.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

FOLDER, EVERY = "PACELINE_RECORD", "PACELINE_RECORD_EVERY"

#: The module whose import starts the recording; torch itself imports it.
OPTIMIZERS = "torch.optim.optimizer"

log = logging.getLogger("paceline.record")


def install() -> None:
    """Wait for the import of torch's optimizers, if the environment names a folder."""
    if os.environ.get(FOLDER) and not any(isinstance(one, _Waiting) for one in sys.meta_path):
        if OPTIMIZERS in sys.modules:
            _start()
        else:
            sys.meta_path.insert(0, _Waiting())


class _Waiting:
    """Import hook that finds one module, once, by the other finders, and reports its import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != OPTIMIZERS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = None if spec is None else spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return spec

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _start()

        loader.exec_module = exec_module
        return spec


def _start() -> None:
    try:
        from paceline.integrations import torch

        every = os.environ.get(EVERY, "")
        options = {"every": int(every)} if every else {}
        torch.start(os.environ[FOLDER], **options)
    except Exception as error:
        line = " ".join(f"{error}".split())
        log.error("%s: nothing is recorded, the program goes on: %s", FOLDER, line)


install()
