"""Intervals of predicted step times, from errors of predictions for public measurements.

A plan does not describe software, clocks and networks completely, and these change a step by tens
of percent. ``benchmarks/fit_intervals.py`` makes the table of ``EVIDENCE``.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import NamedTuple

from paceline.model.cluster import Cluster
from paceline.model.llm import LLM
from paceline.model.plan import Plan

#: Share of measured steps that should lie within an interval.
LEVEL = 0.8

#: Fewer groups of steps cannot carry ``LEVEL`` (``LEAST`` in ``benchmarks/fit_intervals.py``).
ENOUGH_GROUPS = 9


class Evidence(NamedTuple):
    """Published steps compared with predictions by the presets.

    Attributes:
        low, high: measured over predicted, at the ends of the interval.
        rows: number of steps.
        groups: number of combinations of source, GPU, model and precision.
        about: description of the steps, after "measured steps".
    """

    low: float
    high: float
    rows: int
    groups: int
    about: str

    @property
    def text(self) -> str:
        """The evidence in sentences."""
        text = f"The range rests on {self.rows} measured steps {self.about}."
        if self.groups < ENOUGH_GROUPS:
            text += " These are few, so it is at least as wide as that of fp8 steps."
        return text


class Interval(NamedTuple):
    """The range of a measured step in ``LEVEL`` of cases.

    Attributes:
        low_s, high_s: its ends.
        about: its basis, in sentences.
    """

    low_s: float
    high_s: float
    about: str


def kind_of(llm: LLM, plan: Plan) -> str:
    """Key of the evidence for a job: errors differ by model and precision."""
    if plan.adapter_rank:
        return "lora"
    if llm.sinks and plan.flash:
        return "sinks"
    if llm.moe is not None:
        return "moe"
    if plan.zero == 3 and plan.kernel_set != "fused":
        return "fsdp"
    if plan.precision == "nvfp4":
        return "nvfp4"
    return "quantised" if plan.quantised else "wide"


_NVIDIA = "published by NVIDIA and in MLPerf Training"
_A100 = "of dense models in 16 bits on A100s, published with vTrain"
_FSDP = "of PyTorch FSDP on A100s and H100s, published by MosaicML"

#: Kind of job -> output of ``benchmarks/fit_intervals.py`` for the shared rows. "wide" is the
#: interval before ``PARTIAL_4NIC`` was fitted to its rows, for 0.96 to 1.20 afterwards would be too
#: optimistic. "sinks" is GPT-OSS, whose prediction is too fast for an unknown reason
#: (docs/accuracy.md); its rows are among those of "moe", too. "fsdp" is the widest interval of its
#: three GPUs (``benchmarks/fsdp.py``), for eager PyTorch.
EVIDENCE = MappingProxyType(
    {
        "wide": Evidence(0.96, 1.25, 52, 52, _A100),
        "quantised": Evidence(0.84, 1.19, 64, 24, f"of dense models in fp8, {_NVIDIA}"),
        "nvfp4": Evidence(0.84, 1.19, 14, 6, f"in NVFP4, {_NVIDIA}"),
        "lora": Evidence(0.90, 1.19, 95, 42, f"with LoRA, {_NVIDIA}"),
        "fsdp": Evidence(0.91, 1.21, 216, 27, _FSDP),
        "sinks": Evidence(0.84, 1.70, 9, 7, "of GPT-OSS with fused attention"),
        "moe": Evidence(0.81, 1.35, 92, 27, "of mixtures of experts, published by NVIDIA"),
    }
)

#: Smallest and largest of all steps behind ``EVIDENCE``.
TOKENS_OF_A_SAMPLE = (2048, 8192)
GPUS = (4, 8192)

#: Kind of job -> the only GPUs with measured steps.
_GPUS_OF = MappingProxyType({"wide": ("A100",), "fsdp": ("A100", "H100", "H200")})

#: 80% of the errors of left-out runs are below this multiple of the fitted runs' mean error. (A100
#: rows, five folds, three seeds: 1.2 to 1.4.)
_CALIBRATED = 1.5


def untested_blocks(llm: LLM) -> list[str]:
    """Properties of models that no measured step behind the intervals has."""
    return [
        name
        for name, given in (
            ("sparse attention", llm.index is not None),
            ("compressed attention", llm.compressed is not None),
            ("gated DeltaNets", llm.delta is not None),
            ("a vision tower", llm.vision is not None),
            ("latent experts", llm.moe is not None and llm.moe.latent > 0),
        )
        if given
    ]


def beyond_evidence(llm: LLM, plan: Plan, cluster: Cluster) -> list[str]:
    """Properties of a job, as text, that no measured step behind its interval has."""
    calibration = cluster.calibration
    if calibration is not None and not calibration.outside(llm, plan):
        return []
    reasons = []
    for n, (least, most), unit in (
        (llm.seq_len, TOKENS_OF_A_SAMPLE, "tokens a sample"),
        (plan.gpus, GPUS, "GPUs"),
    ):
        if n < least:
            reasons.append(f"fewer than {least:,} {unit}")
        elif n > most:
            reasons.append(f"more than {most:,} {unit}")
    reasons += ["packed documents"] if llm.packed.documents else []
    return reasons + (["products in fp32"] if plan.precision == "fp32" else [])


def interval(llm: LLM, plan: Plan, cluster: Cluster, step_time_s: float) -> Interval:
    """The interval of a predicted step.

    A calibrated cluster has the interval of its own runs, if they cover the job.

    Args:
        llm: the model.
        plan: the plan.
        cluster: the machines.
        step_time_s: the prediction.
    """
    calibration = cluster.calibration
    if calibration is not None and not calibration.outside(llm, plan):
        factor = math.exp(_CALIBRATED * calibration.mape)
        about = f"The range rests on the errors of the calibration's {calibration.runs} runs."
        return Interval(step_time_s / factor, step_time_s * factor, about)
    kind = kind_of(llm, plan)
    evidence = EVIDENCE[kind]
    low, high, about = evidence.low, evidence.high, evidence.text
    if kind in _GPUS_OF and not any(name in cluster.gpu.name for name in _GPUS_OF[kind]):
        low = min(low, EVIDENCE["quantised"].low)
        about += " None of them ran on this GPU, so the range is wider."
    return Interval(step_time_s * low, step_time_s * high, about)
