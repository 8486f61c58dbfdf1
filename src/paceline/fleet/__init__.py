"""Analyses of many traces: they become one dataset, and the dataset becomes figures.

``paceline.fleet("traces/", out="study/")`` is :func:`paceline.fleet.run.fleet`: the package is
named after its one function, so it can be called.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        from paceline.fleet.run import fleet

        return fleet(*args, **options)


sys.modules[__name__].__class__ = _CallablePackage
