"""Work that selective recomputation repeats, by Megatron-Core's names (``recompute_modules``).

The rules were read in Megatron-Core d98e8a6 (``transformer_config.py`` and the modules themselves).
There, "layernorm", "moe_act" and "mla_up_proj" discard their outputs and recompute them right
before use. The others are usual checkpoints, which keep their inputs.
"""

from __future__ import annotations

from types import MappingProxyType

from paceline.model.llm import LLM
from paceline.model.operator_types import LayerWork, Work
from paceline.model.plan import Plan
from paceline.model.torch_kernels import per_op_repeats

#: Module -> beginnings of the names of its repeated work.
_PREFIXES = MappingProxyType(
    {
        "core_attn": ("core-", "ring"),
        "layernorm": ("norm-",),
        "moe_act": ("expert-activation",),
        "mla_up_proj": ("q-up", "kv-up", "rotary"),
        "mlp": ("mlp-",),
        "moe": (
            *("router", "permute", "unpermute", "dispatch", "combine", "expert-", "experts-"),
            *("latent-", "shared-"),
        ),
        "shared_experts": ("shared-",),
    }
)
#: Without a query rank, the queries' only projection counts as an up-projection.
_FULL_QUERIES = ("q", "q-cast")


def repeat(work: LayerWork, plan: Plan) -> None:
    """Set the work that the backward pass of a layer repeats."""
    if plan.recompute == "full":
        work.recompute.extend(work.forward)
    elif plan.recompute == "selective" and plan.recompute_modules:
        work.recompute.extend(w for w in work.forward if _repeats(w, plan.recompute_modules))
    elif plan.recompute == "selective" and plan.kernel_set != "fused" and plan.flash:
        work.recompute.extend(per_op_repeats(work))
    elif plan.recompute == "selective":
        # Korthikanti et al. repeat the core of attention. Fused attention repeats it anyway; then
        # norms and activations are repeated.
        names = _NORMS_AND_ACTIVATIONS if plan.flash else ("core-",)
        work.recompute.extend(w for w in work.forward if w.name.startswith(names))


_NORMS_AND_ACTIVATIONS = ("norm-", "mlp-activation", "expert-activation", "shared-activation")


def _repeats(work: Work, modules: tuple[str, ...]) -> bool:
    if work.name.endswith("-behind"):  # norms after a block belong to no module
        return False
    if "mla_up_proj" in modules and work.name in _FULL_QUERIES:
        return True
    return work.name.startswith(tuple(p for module in modules for p in _PREFIXES[module]))


def module_problems(plan: Plan, llm: LLM) -> list[str]:
    """Reasons why the model cannot use the modules (Megatron-Core's own checks)."""
    reasons = []
    modules = plan.recompute_modules
    if "mla_up_proj" in modules and llm.latent is None:
        reasons.append("recompute module mla_up_proj needs multi-head latent attention")
    if "mla_up_proj" in modules and llm.index is not None:
        reasons.append("recompute module mla_up_proj beside sparse attention is not modelled")
    of_experts = [m for m in modules if m in ("moe_act", "moe", "shared_experts")]
    if of_experts and llm.moe is None:
        reasons.append(f"recompute modules {', '.join(of_experts)} need experts")
    elif "shared_experts" in modules and llm.moe is not None and not llm.moe.shared_ffn:
        reasons.append("recompute module shared_experts needs shared experts")
    if modules and plan.zero == 3:
        reasons.append("recompute modules are Megatron-Core's; with zero 3 they are not modelled")
    if modules and plan.adapter_rank:
        reasons.append("recompute modules beside adapters are not modelled")
    return reasons
