"""Changes that make a plan fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from paceline.errors import PlanError
from paceline.model.cluster import Cluster
from paceline.model.llm import LLM
from paceline.model.memory_peak import stage_memory
from paceline.model.memory_rules import DEFAULT_RULES, Loss, MemoryRules
from paceline.model.plan import Plan
from paceline.model.plan_check import problems

_LOSSES: tuple[Loss, ...] = ("fused", "chunked")


@dataclass(frozen=True)
class _Change:
    """New values for fields of the plan and of the memory rules."""

    text: str
    plan: dict[str, Any] = field(default_factory=dict)
    rules: dict[str, Any] = field(default_factory=dict)

    def __add__(self, other: _Change) -> _Change:
        text = f"{self.text} with {other.text}"
        return _Change(text, self.plan | other.plan, self.rules | other.rules)

    def meets(self, other: _Change) -> bool:
        """Whether both change the same field."""
        fields, others = self.plan | self.rules, other.plan | other.rules
        return not fields.keys().isdisjoint(others)


_EXPANDABLE = _Change("expandable segments", rules={"expandable_segments": True})


def what_fits(
    llm: LLM, plan: Plan, cluster: Cluster, rules: MemoryRules = DEFAULT_RULES
) -> tuple[str, ...]:
    """Changes that would make a plan fit into the GPUs' memory, mildest first.

    These are single changes, or the first suitable pair if no single change is enough. A changed
    plan fits with any allocator, unless expandable segments are among the changes.
    """

    def fits(change: _Change) -> bool:
        changed = _changed(plan, change)
        linked = cluster.node.host_bandwidth is not None
        if changed is None or problems(changed, llm) or (changed.offload_layers and not linked):
            return False
        changed_rules = replace(rules, **change.rules)
        stages = stage_memory(llm, changed, cluster, changed_rules)
        room = changed_rules.room(cluster.gpu.memory_bytes)
        return max(stage.total_bytes for stage in stages) <= room

    changes = [change for change in _changes(llm, plan) if _changed(plan, change) != plan]
    losses = [_Change(f"a {loss} loss", rules={"loss": loss}) for loss in _LOSSES]
    single = [*[loss for loss in losses if fits(loss)][:1], *filter(fits, changes)]
    if not rules.expandable_segments and fits(_EXPANDABLE):
        single.insert(0, _EXPANDABLE)
    elif not rules.expandable_segments:
        wider = (change + _EXPANDABLE for change in changes if change not in single)
        single += filter(fits, wider)
    if not single:
        pairs = (a + b for a, b in combinations([*changes, *losses], 2) if not a.meets(b))
        single = [pair for pair in [next(filter(fits, pairs), None)] if pair is not None]
    return tuple(change.text for change in single)


def _changed(plan: Plan, change: _Change) -> Plan | None:
    """The plan with a change; None if that contradicts the rest of the plan."""
    try:
        return replace(plan, **change.plan)
    except PlanError:
        return None


def _changes(llm: LLM, plan: Plan) -> Iterator[_Change]:
    """Single changes of the plan, the mildest first."""
    for name in ("selective", "full"):
        yield _Change(f"recompute {name}", {"recompute": name, "recompute_modules": ()})
    yield _Change("sequence parallelism", {"sequence_parallel": plan.tp > 1})
    for zero in range(plan.zero + 1, 4):
        yield _Change(f"zero {zero}", {"zero": zero})
    if plan.shards:
        yield _Change(f"shards over all {plan.dp * plan.cp} ranks", {"shards": 0})
    for layers in (llm.layers // 4, llm.layers // 2, llm.layers * 3 // 4):
        if layers > plan.offload_layers:
            yield _Change(f"offload_layers {layers}", {"offload_layers": layers})
    if half := plan.micro_batch // 2:
        yield _Change(f"micro batch {half}", {"micro_batch": half})
    for name in ("tp", "pp", "cp"):
        for factor in (2, 4, 8):
            if plan.dp % factor == 0 and plan.layers_per_stage is None:
                wider = {name: getattr(plan, name) * factor, "dp": plan.dp // factor}
                yield _Change(f"{name} {wider[name]} (dp {wider['dp']})", wider)
    if llm.moe is not None:
        for factor in (2, 4, 8):
            yield _Change(f"ep {plan.ep * factor}", {"ep": plan.ep * factor})
