"""Launch files of all supported frameworks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.errors import PlanError
from paceline.model.llm import LLM
from paceline.model.memory_peak import PARTS, stage_memory
from paceline.model.plan import Plan
from paceline.plan.explain import Term
from paceline.plan.launch.exclusions import ACCELERATE, DEEPSPEED, EXCLUSIONS, TORCHTITAN
from paceline.plan.launch.fine_tuning import script_lines
from paceline.plan.launch.megatron import bridge_command, megatron_command
from paceline.plan.launch.torch_based import (
    accelerate_config,
    deepspeed_config,
    deepspeed_start,
    torchtitan_config,
)
from paceline.units import count

if TYPE_CHECKING:
    from paceline.plan.search import SearchResult

Writer = Callable[[LLM, Plan, int, int | None], str]

#: Framework -> name of its file, and the function for its text (model, plan, GPUs of a node,
#: steps).
FRAMEWORKS: MappingProxyType[str, tuple[str, Writer]] = MappingProxyType(
    {
        "megatron": ("megatron.sh", megatron_command),
        "nemo": ("megatron-bridge.sh", bridge_command),
        "torchtitan": ("torchtitan.toml", torchtitan_config),
        "deepspeed": ("deepspeed.json", deepspeed_config),
        "accelerate": ("accelerate.yaml", accelerate_config),
    }
)


#: Usual sharding groups of FSDP: all ranks, one or two nodes of eight, four nodes.
_HYBRID = (0, 8, 16, 32)

#: Framework -> options of the search: limits that exclude plans which it cannot express, and the
#: kernels that its file starts, unless the user names others.
SPACES: MappingProxyType[str, dict[str, Any]] = MappingProxyType(
    {
        "megatron": {"kernels": "fused"},
        "nemo": {"kernels": "fused"},
        "torchtitan": {
            "kernels": "compiled",
            "zeros": (0, 2, 3), "sharded_pipelines": True, "shards": _HYBRID,
            "exclusions": EXCLUSIONS[TORCHTITAN],
        },
        "deepspeed": {
            "kernels": "eager",
            "zeros": (1, 2, 3), "max_pp": 1, "max_cp": 1, "max_ep": 1,
            "recomputes": ("none", "full"), "exclusions": EXCLUSIONS[DEEPSPEED],
        },
        "accelerate": {
            "kernels": "eager",
            "zeros": (0, 2, 3), "max_pp": 1, "max_ep": 1, "recomputes": ("none", "full"),
            "shards": _HYBRID, "exclusions": EXCLUSIONS[ACCELERATE],
        },
    }
)  # fmt: skip


class Skipped(NamedTuple):
    """Better plans that a framework cannot express, for one reason.

    Attributes:
        place: index of the best of them.
        plan: its name.
        plans: number of plans.
        reason: the reason.
    """

    place: int
    plan: str
    plans: int
    reason: str

    def __str__(self) -> str:
        others = f" and {count(self.plans - 1, 'other plan')}" if self.plans > 1 else ""
        return f"skipped plan {self.place + 1} ({self.plan}){others}: {self.reason}"

    def to_mapping(self) -> dict[str, Any]:
        """As JSON knows it."""
        values = {"plan": self.plan, "plans": self.plans, "reason": self.reason}
        return {"rank": self.place + 1, **values}


class Launch(NamedTuple):
    """The best plan that a framework can express.

    Attributes:
        place: index of the plan.
        text: its launch file.
        skipped: better plans, by reason.
        memory: bytes on a GPU by part, by the default rules and by those of the framework, for
            parts that differ.
    """

    place: int
    text: str
    skipped: tuple[Skipped, ...]
    memory: tuple[Term, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """As JSON knows it."""
        skipped = [skipped.to_mapping() for skipped in self.skipped]
        memory = {term.name: [term.first, term.second] for term in self.memory}
        return {
            "rank": self.place + 1,
            "text": self.text,
            "skipped": skipped,
            "memory_bytes": memory,
        }


def best_launch(framework: str, result: SearchResult) -> Launch:
    """The best plan that a framework can express, and its text.

    Raises:
        PlanError: it can express no plan that fits.
    """
    skipped: dict[str, Skipped] = {}
    node_gpus, steps = result.cluster.node.gpus, result.steps
    for i in range(len(result)):
        try:
            text = launch_text(framework, result.llm, result.plan(i), node_gpus, steps)
        except PlanError as error:
            reason = str(error)
            first = skipped.get(reason, Skipped(i, result.plan(i).describe(), 0, reason))
            skipped[reason] = first._replace(plans=first.plans + 1)
            continue
        return Launch(i, text, tuple(skipped.values()), _memory_terms(result, i))
    problem = next(iter(skipped))
    raise PlanError(f"{framework} can express none of the {len(result):,} plans: {problem}")


def _memory_terms(result: SearchResult, i: int) -> tuple[Term, ...]:
    """Parts of a plan's memory that the rules of the framework change, and the sum."""
    rules = (replace(result.rules, trainer=None), result.rules)
    first, second = (
        max(stage_memory(result.llm, result.plan(i), rules=each), key=lambda s: s.total_bytes)
        for each in rules
    )
    terms = [Term(part, first.parts[part], second.parts[part]) for part in PARTS]
    changed = [term for term in terms if term.difference]
    return (*changed, Term("all", first.total_bytes, second.total_bytes)) if changed else ()


def run_by(framework: str, llm: LLM, plan: Plan, node_gpus: int = 8) -> Plan:
    """A plan as the framework's launch file starts it: with its kernels, unless it has others.

    Raises:
        PlanError: the framework is unknown or cannot express the plan.
    """
    launch_text(framework, llm, plan, node_gpus)
    return plan if plan.kernels != "auto" else replace(plan, kernels=SPACES[framework]["kernels"])


def launch_notes(framework: str, llm: LLM, plan: Plan, node_gpus: int = 8) -> list[str]:
    """The start and the tasks of the script, for a framework whose file takes no comments."""
    if framework != "deepspeed":
        return []
    tasks = [f"in the script: {line}" for line in script_lines(DEEPSPEED, llm, plan)]
    return [*deepspeed_start(plan, node_gpus), *tasks]


def launch_text(
    framework: str, llm: LLM, plan: Plan, node_gpus: int = 8, steps: int | None = None
) -> str:
    """The launch command, or the configuration, of a framework for a plan.

    Args:
        framework: one of :data:`FRAMEWORKS`.
        llm: the model.
        plan: the plan.
        node_gpus: GPUs of a node.
        steps: number of steps to train; None = unknown.

    Raises:
        PlanError: the framework is unknown or cannot express the plan.
    """
    if framework not in FRAMEWORKS:
        raise PlanError(f"no framework {framework!r}; there are {', '.join(FRAMEWORKS)}")
    return f"{FRAMEWORKS[framework][1](llm, plan, node_gpus, steps)}\n"
