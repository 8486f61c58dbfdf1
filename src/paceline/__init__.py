"""Paceline: how fast should a distributed training job be, why is it not, and what to change.

    import paceline

    trace = paceline.load("trace.parquet", job="meta.yaml")
    result = paceline.analyze(trace)
    result.slowdown, result.by_worker, result.m_w

    plan = {"tp": 8, "pp": 8, "dp": 16, "global_batch": 1536}
    paceline.predict("gpt3-175b", plan, "a100-80g").step_time_s

The names in ``__all__`` are the public interface. They are imported when first used, so that
``import paceline`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline import integrations, plot
    from paceline.comparison import Comparison, compare
    from paceline.detect.detector import Detector
    from paceline.errors import PacelineError
    from paceline.fleet.run import fleet
    from paceline.graph.from_files import measure
    from paceline.graph.from_trace import from_trace
    from paceline.ledger import Ledger, goodput
    from paceline.model.cluster import Cluster
    from paceline.model.cluster_presets import cluster_preset
    from paceline.model.llm import LLM
    from paceline.model.llm_presets import llm_preset
    from paceline.model.plan import Plan
    from paceline.networks.from_torch import read_network
    from paceline.plan.predict import Prediction, predict
    from paceline.ranks import RanksReport, rank_report
    from paceline.results.document import JobReport
    from paceline.scheduling.jobs import Throughputs, job_list
    from paceline.scheduling.read_jobs import read_jobs, read_throughputs
    from paceline.scheduling.replay import replay_queue
    from paceline.sources import load, write
    from paceline.synth import SynthSpec, synthesize
    from paceline.trace import Job, OpKind, Trace
    from paceline.whatif import Part, Scenario, WhatIf, analyze

#: Must agree with pyproject.toml (a test compares them).
__version__ = "0.2.0"

__all__ = [
    "LLM",
    "Cluster",
    "Comparison",
    "Detector",
    "Job",
    "JobReport",
    "Ledger",
    "OpKind",
    "PacelineError",
    "Part",
    "Plan",
    "Prediction",
    "RanksReport",
    "Scenario",
    "SynthSpec",
    "Throughputs",
    "Trace",
    "WhatIf",
    "__version__",
    "analyze",
    "cluster_preset",
    "compare",
    "fleet",
    "from_trace",
    "goodput",
    "integrations",
    "job_list",
    "llm_preset",
    "load",
    "measure",
    "plot",
    "predict",
    "rank_report",
    "read_jobs",
    "read_network",
    "read_throughputs",
    "replay_queue",
    "synthesize",
    "write",
]

_HOME = {
    "Cluster": "paceline.model.cluster",
    "Comparison": "paceline.comparison",
    "Detector": "paceline.detect.detector",
    "Job": "paceline.trace",
    "JobReport": "paceline.results.document",
    "LLM": "paceline.model.llm",
    "Ledger": "paceline.ledger",
    "OpKind": "paceline.trace",
    "PacelineError": "paceline.errors",
    "Part": "paceline.whatif",
    "Plan": "paceline.model.plan",
    "Prediction": "paceline.plan.predict",
    "RanksReport": "paceline.ranks",
    "Scenario": "paceline.whatif",
    "SynthSpec": "paceline.synth",
    "Throughputs": "paceline.scheduling.jobs",
    "Trace": "paceline.trace",
    "WhatIf": "paceline.whatif",
    "analyze": "paceline.whatif",
    "cluster_preset": "paceline.model.cluster_presets",
    "compare": "paceline.comparison",
    "fleet": "paceline.fleet",
    "from_trace": "paceline.graph",
    "goodput": "paceline.ledger",
    "integrations": "paceline.integrations",
    "job_list": "paceline.scheduling.jobs",
    "llm_preset": "paceline.model.llm_presets",
    "load": "paceline.sources",
    "measure": "paceline.graph",
    "plot": "paceline.plot",
    "predict": "paceline.plan.predict",
    "rank_report": "paceline.ranks",
    "read_jobs": "paceline.scheduling.read_jobs",
    "read_network": "paceline.networks.from_torch",
    "read_throughputs": "paceline.scheduling.read_jobs",
    "replay_queue": "paceline.scheduling.replay",
    "synthesize": "paceline.synth",
    "write": "paceline.sources",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    from importlib import import_module

    home = import_module(_HOME[name])
    value = home if name in ("fleet", "integrations", "plot") else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
