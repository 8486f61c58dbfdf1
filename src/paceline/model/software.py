"""Releases of training software that run an operator differently from the newest release.

One difference is known: attention with sinks (GPT-OSS), whose softmax has an additional learnable
logit per head. TransformerEngine runs it without FlashAttention
(``dot_product_attention/utils.py``, filter "Softmax type", commit d0067d0). It fuses it only with
cuDNN 9.13.1 and later (``fused_attn.cpp``). Otherwise the scores are written to memory. The shared
published throughputs of GPT-OSS show which releases of NVIDIA's containers did that. Without any
fitted constant, the unfused prediction is within 6% on average, the fused one is 40% off. The page
of 26.06.01 names a known regression of cuDNN's front end (cudnn-frontend, issue 256).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType

from paceline.errors import ModelError
from paceline.model.llm import LLM
from paceline.model.plan import Plan


@dataclass(frozen=True)
class Software:
    """A release.

    Attributes:
        name: its name for users.
        fused_sinks: attention with sinks runs in one kernel.
    """

    name: str
    fused_sinks: bool = True


_UNFUSED_SINKS = ("26.02", "26.02.01", "26.04", "26.04.01", "26.06.01")
_FUSED_SINKS = ("25.11", "26.06", "26.08")

#: "nemo-26.04" -> properties of NVIDIA's NeMo and Megatron-Bridge container of that release.
SOFTWARE = MappingProxyType(
    {
        f"nemo-{release}": Software(f"nemo-{release}", release in _FUSED_SINKS)
        for release in sorted((*_UNFUSED_SINKS, *_FUSED_SINKS))
    }
)


def software_preset(name: str) -> Software:
    """The release of a name, such as "nemo-26.04".

    Raises:
        ModelError: the name is unknown.
    """
    found = SOFTWARE.get(name.strip().lower())
    if found is None:
        near = get_close_matches(name, SOFTWARE, n=3, cutoff=0.5) or sorted(SOFTWARE)
        raise ModelError(f"there is no software preset {name!r}; the nearest are {', '.join(near)}")
    return found


def as_run_by(llm: LLM, plan: Plan, software: Software) -> Plan:
    """The plan under a release.

    Context parallelism needs fused attention, so such a plan stays fused.
    """
    if llm.sinks and not software.fused_sinks and plan.cp == 1:
        return replace(plan, flash=False)
    return plan
