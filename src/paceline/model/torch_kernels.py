"""A layer in plain PyTorch, without kernels of Transformer Engine and Megatron-Core.

Attention is that of ``scaled_dot_product_attention``. Eager element-wise work is a kernel for each
operation. ``torch.compile`` fuses these.
"""

from __future__ import annotations

from types import MappingProxyType

from paceline.model.llm import LLM
from paceline.model.operator_types import LayerWork, Operator, Work
from paceline.model.plan import Plan

#: Norm -> bytes and kernels of a layer's eager element-wise operations over those of fused ones.
#: They were counted on torch modules, which a test repeats. RMSNorm: Hugging Face's Llama layers,
#: with RMSNorm and rotary embedding as single operations. LayerNorm: plain layers with torch's
#: LayerNorm.
EAGER = MappingProxyType({"rmsnorm": (4.4, 7.0), "layernorm": (1.23, 1.5)})


def as_torch_runs(work: LayerWork, llm: LLM, plan: Plan) -> None:
    """Replace kernels of a layer that PyTorch lacks."""
    if plan.kernel_set == "fused":
        return
    for direction in (work.forward, work.backward):
        direction[:] = [_native(entry, llm, plan) for entry in direction]


def _native(entry: Work, llm: LLM, plan: Plan) -> Work:
    if not isinstance(entry, Operator):
        return entry
    if entry.part == "attention" and not entry.n:
        return entry._replace(sdpa=True)
    element_wise = entry.part == "memory" and "-cast" not in entry.name
    if element_wise and plan.kernel_set == "eager":
        size, kernels = EAGER[llm.norm]
        return entry._replace(bytes=size * entry.bytes, kernels=round(kernels * entry.kernels))
    return entry


def per_op_repeats(work: LayerWork) -> list[Work]:
    """The work that torchtitan's per-operator policy recomputes in a backward.

    Of wq, wk, wv, wo, w1, w3, w2 it keeps the first, third, ... (``parallelize_llama.py`` at
    ba246978, ``_custom_policy``), and fused attention. So wk, wo and w3 are repeated, and all
    element-wise work. The keys' product, small in grouped attention, is left out.
    """
    repeats: list[Work] = []
    for entry in work.forward:
        if not isinstance(entry, Operator):
            repeats.append(entry)
            continue
        if entry.part == "memory" or entry.name == "projection":
            repeats.append(entry)
        elif entry.name == "mlp-up":
            repeats.append(
                entry._replace(flops=entry.flops / 2, bytes=entry.bytes / 2, n=entry.n // 2)
            )
    return repeats
