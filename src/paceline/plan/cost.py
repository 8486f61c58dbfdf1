"""Time and cost of a training."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from paceline.model.llm import LLM
from paceline.model.plan import Plan

Array = npt.NDArray[np.float64]
#: A number, or one number per plan.
Number = TypeVar("Number", float, Array)

SECONDS_PER_DAY = 86_400.0
HOURS_PER_DAY = 24.0


def training_steps(tokens: float, llm: LLM, global_batch: int) -> int:
    """Number of steps for ``tokens``."""
    return math.ceil(tokens / (global_batch * llm.seq_len))


def training_days(steps: int, step_time_s: Number) -> Number:
    """Days of a training without interruptions."""
    return steps * step_time_s / SECONDS_PER_DAY


def dollars_per_day(gpus: Number, price_per_gpu_hour: float) -> Number:
    """Dollars of one day."""
    return gpus * price_per_gpu_hour * HOURS_PER_DAY


def model_flops_per_token(llm: LLM, plan: Plan, *, causal: bool = False) -> float:
    """FLOPs of a token's forward and backward, without recomputation.

    Frozen weights (adapters) have no gradients, so two of six FLOPs per element are missing, as
    Megatron-Bridge counts (067f987, ``flop_utils.py``).
    """
    flops = llm.model_flops_per_token(causal=causal)
    return flops - llm.weight_gradient_flops_per_token if plan.adapter_rank else flops


def mfu(llm: LLM, plan: Plan, step_time_s: Array, gpus: Array, peak_flops: float) -> Array:
    """Model FLOPs utilisation (Chowdhery et al. 2022, PaLM, B), without recomputation.

    Only the global batch and the adapters of ``plan`` matter.
    """
    flops = model_flops_per_token(llm, plan) * plan.global_batch * llm.seq_len
    share: Array = flops / (step_time_s * gpus * peak_flops)
    return share


def causal_share(llm: LLM, plan: Plan) -> float:
    """Model FLOPs without the masked half of attention, over those of Korthikanti et al. 2022.

    The usual MFU counts all of the attention (this paper, and Chowdhery et al. 2022). Some
    frameworks, such as Megatron-LM from 2025 on, count half.
    """
    return model_flops_per_token(llm, plan, causal=True) / model_flops_per_token(llm, plan)
