"""How much of the datasheet real kernels and collectives reach.

The defaults are those of well-kept software on NVIDIA A100s, from the sources named beside each;
``cluster_presets`` replaces what is known to differ on other GPUs. None of them was chosen by
looking at measured training steps; ``calibrate`` does that, into a cluster file of the user's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from paceline.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of peaks (0 to 1) and fixed costs (seconds).

    Attributes:
        gemm: share of the peak that a large 16-bit or fp32 GEMM reaches, tile and wave
            quantisation apart (Dao, "FlashAttention-2", 2023, 1: optimised GEMMs reach up to 80-90%
            of the theoretical maximum).
        gemm_fp8: the same in fp8 (Transformer Engine, cuBLAS 12: about 70% of the doubled peak).
        attention: share of the peak that fused attention reaches, forward (FlashAttention-2, 2023,
            abstract: 50-73% on A100; 0.65 stands for head sizes 64 to 128, causal or not).
        attention_backward: the same backward (FlashAttention-2, 4.1: up to 63%).
        batched: share of the peak that batched GEMMs of unfused attention reach; their inner
            dimension is one head (Anthony et al., "The case for co-designing model architectures
            with hardware", 2024: about half of what large GEMMs do).
        memory: share of the memory bandwidth that element-wise kernels reach (BabelStream on A100:
            0.88 to 0.91 with fp64; mixed-precision kernels with masks a little less).
        kernel_s: idle time of the GPU between two kernels of a stream (about 1.5 us) and the ramp
            of each (NVIDIA, "Getting started with CUDA graphs", 2019).
        launch_s: time of the host per kernel in eager PyTorch (PyTorch, "Accelerating PyTorch
            with CUDA graphs", 2021: 5 to 10 us); layers too small to hide it are launch-bound.
        intra: share of the node's link bandwidth that NCCL's all-reduce reaches (its bus
            bandwidth on a DGX A100 is about 230 of 300 GB/s: nccl-tests).
        inter: share of the network's bandwidth that NCCL reaches (DGX SuperPOD documentation,
            nccl-tests over HDR: about 85%).
        overlap: how much slower compute runs while a collective runs beside it (share of the
            collective's time that comes back; Agrawal et al. 2024 and others report 10-30%).
        fixed_s: seconds of a step that no operator accounts for.
        compute: factor on every kernel's speed; 1 = as the other constants say. Fitted where just
            one number per GPU is.
    """

    gemm: float = 0.80
    gemm_fp8: float = 0.70
    attention: float = 0.65
    attention_backward: float = 0.55
    batched: float = 0.40
    memory: float = 0.85
    kernel_s: float = 2.5e-6
    launch_s: float = 8e-6
    intra: float = 0.77
    inter: float = 0.85
    overlap: float = 0.2
    fixed_s: float = 0.0
    compute: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            most = math.inf if field.name.endswith("_s") or field.name == "compute" else 1.0
            least = 0.0
            good = isinstance(value, int | float) and not isinstance(value, bool)
            if not good or not least <= value <= most or math.isinf(value):
                bound = ">= 0" if most == math.inf else "from 0 to 1"
                raise ModelError(
                    f"the efficiency's {field.name} must be a number {bound}, not {value!r}"
                )
            zero_ok = field.name.endswith("_s") or field.name == "overlap"
            if value == 0 and not zero_ok:
                raise ModelError(f"the efficiency's {field.name} must be above 0")
