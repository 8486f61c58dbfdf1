"""The frameworks that a plan can be launched with."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from paceline.errors import PlanError
from paceline.model.llm import LLM
from paceline.model.plan import Plan
from paceline.plan.launch.megatron import bridge_command, megatron_command
from paceline.plan.launch.torch_based import (
    accelerate_config,
    deepspeed_config,
    torchtitan_config,
)

if TYPE_CHECKING:
    from paceline.plan.search import SearchResult

Writer = Callable[[LLM, Plan, int, int | None], str]

#: Framework -> name of the file, and what writes it (model, plan, GPUs of a node, steps).
FRAMEWORKS: MappingProxyType[str, tuple[str, Writer]] = MappingProxyType(
    {
        "megatron": ("megatron.sh", megatron_command),
        "nemo": ("megatron-bridge.sh", bridge_command),
        "torchtitan": ("torchtitan.toml", torchtitan_config),
        "deepspeed": ("deepspeed.json", deepspeed_config),
        "accelerate": ("accelerate.yaml", accelerate_config),
    }
)


#: Groups that FSDP's users choose from: all ranks, a node or two of eight, four nodes.
_HYBRID = (0, 8, 16, 32)

#: Framework -> what a search for it need not try, because it cannot be expressed.
SPACES: MappingProxyType[str, dict[str, Any]] = MappingProxyType(
    {
        "megatron": {},
        "nemo": {},
        "torchtitan": {"zeros": (0, 2, 3), "sharded_pipelines": True, "shards": _HYBRID},
        "deepspeed": {"max_pp": 1, "max_cp": 1, "max_ep": 1},
        "accelerate": {
            "zeros": (0, 2, 3), "max_pp": 1, "max_ep": 1, "recomputes": ("none", "full"),
            "shards": _HYBRID,
        },
    }
)  # fmt: skip


def best_launch(framework: str, result: SearchResult) -> tuple[int, str]:
    """Place of the best plan that a framework can express, and its text.

    Raises:
        PlanError: it can express none of the plans that fit.
    """
    problem = ""
    node_gpus, steps = result.cluster.node.gpus, result.steps
    for i in range(len(result)):
        try:
            text = launch_text(framework, result.llm, result.plan(i), node_gpus, steps)
        except PlanError as error:
            problem = str(error)
            continue
        return i, text
    raise PlanError(f"{framework} can express none of the {len(result):,} plans: {problem}")


def launch_text(
    framework: str, llm: LLM, plan: Plan, node_gpus: int = 8, steps: int | None = None
) -> str:
    """The launch command, or the configuration, of a framework for a plan.

    Args:
        framework: of :data:`FRAMEWORKS`.
        llm: the model.
        plan: the plan.
        node_gpus: GPUs of a node.
        steps: to train; None = not known.

    Raises:
        PlanError: the framework is unknown or cannot express the plan.
    """
    if framework not in FRAMEWORKS:
        raise PlanError(f"no framework {framework!r}; there are {', '.join(FRAMEWORKS)}")
    return f"{FRAMEWORKS[framework][1](llm, plan, node_gpus, steps)}\n"
