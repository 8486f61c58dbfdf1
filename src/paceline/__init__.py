"""Paceline: how fast should a distributed training job be, why is it not, and what to change.

    import paceline

    trace = paceline.load("trace.parquet", job="meta.yaml")
    result = paceline.analyze(trace)
    result.slowdown, result.by_worker, result.m_w

The names in ``__all__`` are the public interface. They are imported when first used, so that
``import paceline`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline import plot
    from paceline.errors import PacelineError
    from paceline.graph import from_trace
    from paceline.sources import load
    from paceline.synth import SynthSpec, synthesize
    from paceline.trace import Job, OpKind, Trace
    from paceline.whatif import Part, Scenario, WhatIf, analyze

#: Must agree with pyproject.toml (a test compares them).
__version__ = "0.1.0"

__all__ = [
    "Job",
    "OpKind",
    "PacelineError",
    "Part",
    "Scenario",
    "SynthSpec",
    "Trace",
    "WhatIf",
    "__version__",
    "analyze",
    "from_trace",
    "load",
    "plot",
    "synthesize",
]

_HOME = {
    "Job": "paceline.trace",
    "OpKind": "paceline.trace",
    "PacelineError": "paceline.errors",
    "Part": "paceline.whatif",
    "Scenario": "paceline.whatif",
    "SynthSpec": "paceline.synth",
    "Trace": "paceline.trace",
    "WhatIf": "paceline.whatif",
    "analyze": "paceline.whatif",
    "from_trace": "paceline.graph",
    "load": "paceline.sources",
    "plot": "paceline.plot",
    "synthesize": "paceline.synth",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    from importlib import import_module

    home = import_module(_HOME[name])
    value = home if name == "plot" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
