"""Efficiencies: shares of datasheet peaks that real kernels and collectives reach.

The defaults hold for good software on NVIDIA A100s, from the source named with each.
``cluster_presets`` replaces constants that are known to differ on other GPUs. No default was fitted
to measured training steps. ``calibrate`` does that, and writes the user's own cluster file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

from paceline.errors import ModelError

#: Seconds that a GPU waits for each kernel of routing and experts. The host knows the experts'
#: numbers of tokens only after the router has run, so it cannot launch ahead. Python then takes 2
#: to 3 times ``launch_s``. The fit to the shared published mixtures (``benchmarks/fit_experts.py``)
#: gives 22 us (20 to 24 with one model left out), rounded to 20.
EXPERT_KERNEL_S = 20e-6

#: NVFP4 products reach a smaller share of their peak than fp8 products. Fitted to the shared MLPerf
#: and published rows, with equal weights for both sources (``benchmarks/fit_nvfp4.py``).
NVFP4_OVER_FP8 = 0.74

#: ``partial`` for nodes with four adapters and eight GPUs. A group with two or four GPUs of a node
#: opens a ring through nearby adapters. Several groups do so at once on the same adapters. Fitted
#: to the shared A100 runs (``benchmarks/fit_partial.py``). No other cluster has suitable runs.
PARTIAL_4NIC = 0.27


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of peaks (0 to 1) and fixed costs (seconds).

    Attributes:
        gemm: share of the peak that a large 16-bit or fp32 GEMM reaches, without tile and wave
            quantisation. (Dao, "FlashAttention-2", 2023, 1: optimised GEMMs reach up to 80-90% of
            the theoretical maximum.)
        gemm_fp8: the same in fp8 (Transformer Engine, cuBLAS 12: about 70% of the doubled peak).
            Times ``nvfp4`` it is the share of the NVFP4 peak.
        nvfp4: share of peak of NVFP4 products over the share of peak of fp8 products
            (``NVFP4_OVER_FP8``).
        attention: share of the peak that fused attention reaches, forward. (FlashAttention-2, 2023,
            abstract: 50-73% on A100; 0.65 stands for head sizes 64 to 128, causal or not.)
        attention_backward: the same backward (FlashAttention-2, 4.1: up to 63%).
        sdpa: speed of PyTorch's own fused attention (FlashAttention-2) over these rates.
        batched: share of the peak that batched GEMMs of unfused attention reach. Their inner
            dimension is one head (Anthony et al., "The case for co-designing model architectures
            with hardware", 2024: about half the rate of large GEMMs).
        memory: share of the memory bandwidth that element-wise kernels reach (BabelStream on A100:
            0.88 to 0.91 with fp64; mixed-precision kernels with masks a little less).
        kernel_s: idle time of the GPU between two kernels of a stream (about 1.5 us) and the ramp
            of each (NVIDIA, "Getting started with CUDA graphs", 2019).
        launch_s: time of the host per kernel in eager PyTorch (PyTorch, "Accelerating PyTorch
            with CUDA graphs", 2021: 5 to 10 us). Layers too small to hide it are launch-bound.
        collective_s: time of any collective apart from its hops and bytes. It is launch and
            synchronisation. (36 us and 2.7 us per hop fit vTrain's published table of NCCL
            all-reduces of 1 MB to 1 GB on 2 to 8 A100s of one node.)
        intra: share of the node's link bandwidth that NCCL's all-reduce reaches. (Its bus bandwidth
            on a DGX A100 is about 230 of 300 GB/s: nccl-tests.)
        inter: share of the network's bandwidth that NCCL reaches (DGX SuperPOD documentation,
            nccl-tests over HDR: about 85%).
        partial: share of its part of the network for a collective that has more than one but not
            all GPUs of each node. Several such groups tend to use the same adapters. No source
            gives it, so it is 1 unless fitted (``PARTIAL_4NIC``).
        overlap: slowdown of compute beside a collective, as a share of the collective's time
            (Agrawal et al. 2024 and others report 10-30%).
        hidden_dp: largest share of overlapped data-parallel traffic that hides behind compute. The
            rest is always exposed (``SHARED_FIT``).
        layer_s: seconds of each pass of a layer besides its kernels: waits between streams
            (``SHARED_FIT``). Only for fp8, whose software was measured.
        expert_kernel_s: idle seconds of the GPU before each kernel of routing and experts, unless
            they are fused (``EXPERT_KERNEL_S``).
        fixed_s: seconds of a step outside all operators.
        compute: factor on every kernel's speed; 1 = no change. It is fitted if there is one number
        per GPU.
    """

    gemm: float = 0.80
    gemm_fp8: float = 0.70
    nvfp4: float = NVFP4_OVER_FP8
    attention: float = 0.65
    attention_backward: float = 0.55
    sdpa: float = 1.0
    batched: float = 0.40
    memory: float = 0.85
    kernel_s: float = 2.5e-6
    launch_s: float = 8e-6
    collective_s: float = 36e-6
    intra: float = 0.77
    inter: float = 0.85
    partial: float = 1.0
    overlap: float = 0.2
    hidden_dp: float = 1.0
    layer_s: float = 0.0
    expert_kernel_s: float = EXPERT_KERNEL_S
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
                    f"the efficiency's {field.name} must be a number {bound}, not {value!r}",
                    fields=(field.name,),
                )
            zero_ok = field.name.endswith("_s") or field.name == "overlap"
            if value == 0 and not zero_ok:
                raise ModelError(
                    f"the efficiency's {field.name} must be above 0", fields=(field.name,)
                )

    def gemm_share(self, precision: str) -> float:
        """Share of the peak of ``precision`` that a large GEMM reaches."""
        if precision == "nvfp4":
            return self.gemm_fp8 * self.nvfp4
        return self.gemm_fp8 if precision == "fp8" else self.gemm


#: Usual rate of large GEMMs over the rate of the best shape: on the A100, 0.80 (above) over 0.859
#: (Bekman, below).
_TYPICAL = 0.93


#: Losses of fp8 training besides the presets' kernels, fitted to the 22 shared MLPerf rows of v3.1
#: to v5.1 (``benchmarks/fit_mlperf.py``). Each submitter's rows of one GPU and model have the
#: weight of one row. The constants are the fp8 product's rate on Hopper and Blackwell, the hidden
#: share of data-parallel traffic, and seconds per layer and pass. With the full fit, racks (GB200,
#: GB300) would be slower than published runs. One of seven ways to apply it to racks was chosen by
#: both sets of rows. So errors on other rows may be larger than docs/accuracy.md reports.
SHARED_FIT = MappingProxyType({"hidden_dp": 0.38, "layer_s": 11.7e-6})
_FP8_RATE = MappingProxyType({"hopper": 0.842, "blackwell": 0.822})


def _matmul(best_16: float, best_8: float, rate_8: float = 1.0) -> dict[str, float]:
    gemm_8 = _TYPICAL * best_8 * rate_8
    return {"gemm": round(_TYPICAL * best_16, 3), "gemm_fp8": round(gemm_8, 3)}


#: Preset of ``cluster_presets`` -> its differences from the defaults. GEMM: the best matrix product
#: of any shape as a share of the datasheet's peak, from Bekman, "Machine learning engineering"
#: (2024, 2025), table of maximum achievable matmul FLOPS: H100 SXM 0.80 in bf16, 0.71 in fp8, B200
#: 0.78 and 0.71. AMD from its edition of 2026 (744d01e): in bf16 MI300X 668 of 1,307 TFLOP/s,
#: MI325X 785, MI355X 1,565 of 2,517; fp8, which it lacks, by the edition of 2025 (MI300X 0.49 to
#: 0.58). Attention: FlashAttention-3 (Shah et al. 2024, Figures 5 and 6, causal, head size 128:
#: about 620 TFLOP/s forward, 530 backward at 8k); on Blackwell cuDNN 9 and FlashAttention-4 (2025:
#: up to 1,605 TFLOP/s forward, 71%; causal at 8k about 1,350; backward about 1,050); Blackwell
#: Ultra has twice the exponentials (NVIDIA). Volta: Markidis et al. 2018. PyTorch's own attention
#: is FlashAttention-2, which reaches 0.35 of an H100's peak (Shah et al. 2024, abstract), not 0.62.
_HOPPER = Efficiency(
    **_matmul(0.80, 0.71, _FP8_RATE["hopper"]),
    attention=0.62,
    attention_backward=0.53,
    sdpa=0.56,
    **SHARED_FIT,
)
_BLACKWELL = Efficiency(
    **_matmul(0.776, 0.708, _FP8_RATE["blackwell"]),
    attention=0.60,
    attention_backward=0.47,
    **SHARED_FIT,
)
# Blackwell Ultra has twice the exponentials of attention.
_BLACKWELL_ULTRA = replace(_BLACKWELL, attention=0.68, attention_backward=0.52)
# Published throughputs of racks contradict larger losses: on GB300 any loss, on GB200 the hidden
# share.
_GRACE_BLACKWELL = replace(_BLACKWELL, hidden_dp=1.0, layer_s=0.0)
_GRACE_ULTRA = replace(_GRACE_BLACKWELL, **_matmul(0.776, 0.708))
_GRACE_ULTRA = replace(_GRACE_ULTRA, attention=0.68, attention_backward=0.52)
_VOLTA = Efficiency(gemm=0.66, attention=0.45, attention_backward=0.35)
_AMD_FP8 = 0.49 / 0.58
_CDNA3 = Efficiency(
    **_matmul(0.511, 0.511 * _AMD_FP8), attention=0.40, attention_backward=0.30, memory=0.80
)
_MI325X = replace(_CDNA3, **_matmul(0.60, 0.60 * _AMD_FP8))
_CDNA4 = replace(_CDNA3, **_matmul(0.622, 0.622 * _AMD_FP8))

EFFICIENCIES = {
    "a100-80g-4nic": Efficiency(partial=PARTIAL_4NIC),
    "v100-16g": _VOLTA,
    "v100-32g": _VOLTA,
    "h100": _HOPPER,
    "h200": _HOPPER,
    "b200": _BLACKWELL,
    "gb200": _GRACE_BLACKWELL,
    "b300": _BLACKWELL_ULTRA,
    "gb300": _GRACE_ULTRA,
    "mi300x": _CDNA3,
    "mi325x": _MI325X,
    "mi350x": _CDNA4,
    "mi355x": _CDNA4,
    "h200-nvl": _HOPPER,
}
