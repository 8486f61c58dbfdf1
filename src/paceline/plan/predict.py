"""Predict one plan: step time, its parts, memory, MFU, days, dollars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from paceline.errors import PlanError
from paceline.graph import Durations
from paceline.graph.from_plan import Planned, from_plan
from paceline.model.cluster import Cluster
from paceline.model.cluster_presets import cluster_preset
from paceline.model.compute import ComputeCost
from paceline.model.costs import CostModel, PlanCosts
from paceline.model.layer_costs import EXCHANGE, PARTS
from paceline.model.llm import LLM
from paceline.model.llm_presets import llm_preset
from paceline.model.memory_peak import StageMemory, stage_memory
from paceline.model.memory_rules import DEFAULT_RULES, Fit, MemoryRules
from paceline.model.plan import OVERLAPPING, Plan
from paceline.model.plan_check import check
from paceline.networks.layer import LayerNetwork
from paceline.networks.strategy import Strategy
from paceline.plan.cost import (
    causal_share,
    dollars_per_day,
    model_flops_per_token,
    training_days,
    training_steps,
)
from paceline.plan.fitting import what_fits
from paceline.plan.interval import Interval, beyond_evidence, interval, untested_blocks
from paceline.plan.model_warnings import model_warnings
from paceline.simulate import Rules, Timeline, all_lanes, step_times, timeline
from paceline.trace import OpKind
from paceline.trace.kinds import P2P_KINDS

if TYPE_CHECKING:
    from paceline.plan.network_step import NetworkPrediction

Array = npt.NDArray[np.float64]

_COMPUTES = (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE, OpKind.WEIGHT_COMPUTE)
_DP_KINDS = (
    OpKind.PARAMS_ALL_GATHER,
    OpKind.GRADS_REDUCE_SCATTER,
    OpKind.SEPARATE_GRADS_ALL_REDUCE,
)

#: Most forward and backward computes of a simulated step (separate computes of weights count, too).
#: The graph has about three times as many ops, 100 bytes each.
MAX_COMPUTES = 5_000_000


@dataclass(frozen=True)
class Prediction:
    """The prediction of one step of a plan.

    Attributes:
        llm: the model.
        plan: the plan.
        cluster: the machines.
        step_time_s: seconds of one step.
        breakdown: seconds by term, which add up to ``step_time_s``. First comes the compute of a
            GPU by part, mean over the stages: ``gemm``, ``attention``, ``memory``, ``launch``, and
            exposed communication inside computes (``tp``, ``cp``, ``ep``). Then come the seconds
            that each further term adds to the simulation: ``bubble`` (stages waiting for each
            other), ``p2p``, ``dp`` (gradients and parameters), ``tail`` (norms' and embedding's
            gradients, clipping, optimizer), ``fixed``.
        costs: the durations behind the step.
        memory: memory of each stage.
        recomputed: all floating-point operations over those without recomputation.
        tokens: tokens to train on; None = unknown.
        warnings: warnings for the user.
        rules: memory rules of the software, and the share that stays free.
    """

    llm: LLM
    plan: Plan
    cluster: Cluster
    step_time_s: float
    breakdown: Mapping[str, float]
    costs: PlanCosts
    memory: tuple[StageMemory, ...]
    recomputed: float
    tokens: float | None
    warnings: tuple[str, ...]
    rules: MemoryRules = DEFAULT_RULES

    @cached_property
    def planned(self) -> Planned:
        """The step's graph and durations, for tools that take those of a trace."""
        return from_plan(self.plan, self.costs, self.llm.name)

    @cached_property
    def timeline(self) -> Timeline:
        """Start and end of every op of the step."""
        return timeline(self.planned.durations)

    # Speed.

    @cached_property
    def interval(self) -> Interval:
        """The range of 80% of measured steps with this prediction, and its evidence."""
        return interval(self.llm, self.plan, self.cluster, self.step_time_s)

    @property
    def tokens_per_step(self) -> float:
        """Number of tokens of a global batch, without padding."""
        return self.plan.global_batch * self.llm.useful_tokens

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of the whole job."""
        return self.tokens_per_step / self.step_time_s

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens per second of one GPU."""
        return self.tokens_per_s / self.plan.gpus

    @property
    def model_flops_per_gpu(self) -> float:
        """Model FLOP/s of one GPU, without recomputation."""
        return model_flops_per_token(self.llm, self.plan) * self.tokens_per_s_per_gpu

    @property
    def mfu(self) -> float:
        """MFU: model FLOPs over the GPUs' peak FLOPs in this time (Chowdhery et al. 2022)."""
        return self.model_flops_per_gpu / self.cluster.gpu.peak(self.plan.precision)

    @property
    def mfu_causal(self) -> float:
        """The MFU without the masked half of attention."""
        return self.mfu * causal_share(self.llm, self.plan)

    @property
    def hfu(self) -> float:
        """HFU: the same with recomputed operations counted, too (Korthikanti et al. 2022)."""
        return self.mfu * self.recomputed

    # Memory.

    @property
    def memory_bytes(self) -> tuple[float, ...]:
        """[stage] bytes on each GPU."""
        return tuple(stage.total_bytes for stage in self.memory)

    @property
    def memory_headroom_bytes(self) -> float:
        """Free bytes of the fullest GPU beyond the least reserve; negative if it does not fit."""
        return self.rules.most_room(self.cluster.gpu.memory_bytes) - max(self.memory_bytes)

    @property
    def fit(self) -> Fit:
        """Whether every stage fits into its GPUs, possibly only with expandable segments."""
        return self.rules.fit(max(self.memory_bytes), self.cluster.gpu.memory_bytes)

    @property
    def fits(self) -> bool:
        """Whether every stage fits into its GPUs with any allocator."""
        return self.fit == "yes"

    @cached_property
    def to_fit(self) -> tuple[str, ...]:
        """Changes that would make it fit, the mildest first; empty if it fits."""
        return () if self.fits else what_fits(self.llm, self.plan, self.cluster, self.rules)

    # Training.

    @property
    def days(self) -> float | None:
        """Days of the whole training; None if its tokens are unknown."""
        if self.tokens is None:
            return None
        steps = training_steps(self.tokens, self.llm, self.plan.global_batch)
        return float(training_days(steps, self.step_time_s))

    @property
    def dollars(self) -> float | None:
        """Dollars of the whole training; None if tokens or price are unknown."""
        price = self.cluster.price_per_gpu_hour
        if self.days is None or price is None:
            return None
        return float(self.days * dollars_per_day(self.plan.gpus, price))


@overload
def predict(
    model: LayerNetwork, plan: Strategy | Mapping[str, Any], cluster: Cluster | str
) -> NetworkPrediction: ...


@overload
def predict(
    model: LLM | str,
    plan: Plan | Mapping[str, Any],
    cluster: Cluster | str,
    *,
    cost: ComputeCost | None = None,
    tokens: float | None = None,
    price: float | None = None,
    rules: MemoryRules = DEFAULT_RULES,
) -> Prediction: ...


def predict(
    model: LLM | LayerNetwork | str,
    plan: Plan | Strategy | Mapping[str, Any],
    cluster: Cluster | str,
    *,
    cost: ComputeCost | None = None,
    tokens: float | None = None,
    price: float | None = None,
    rules: MemoryRules = DEFAULT_RULES,
) -> Prediction | NetworkPrediction:
    """Predict one step of a plan, or of a network by a strategy.

    Args:
        model: the model, or the name of a preset ("llama3.1-405b"); or a network of
            ``read_network``, which takes none of the named arguments.
        plan: the plan, or its fields. For a network, the strategy, or its fields with ``strategy``
            as its name.
        cluster: the machines, or the name of a preset ("h100").
        cost: seconds of an operator; None = the roofline of the cluster's GPU.
        tokens: tokens to train on, for days and dollars.
        price: dollars per GPU and hour; None = the cluster's.
        rules: memory rules of the software, and the share that stays free.

    Raises:
        ModelError: a name is unknown, or the GPU lacks the plan's precision.
        PlanError: the plan cannot train the model; all reasons are named.
    """
    cluster = cluster_preset(cluster) if isinstance(cluster, str) else cluster
    if isinstance(model, LayerNetwork):
        from paceline.plan.network_step import predict_network, strategy_of

        if isinstance(plan, Plan):
            raise PlanError(f"{model.name} takes a strategy, not the plan of a language model")
        return predict_network(model, strategy_of(plan), cluster)
    if isinstance(plan, Strategy):
        raise PlanError("a language model takes a plan, not the strategy of a network")
    llm = llm_preset(model) if isinstance(model, str) else model
    plan = plan if isinstance(plan, Plan) else plan_of(plan)
    if price is not None:
        cluster = replace(cluster, price_per_gpu_hour=price, price_source="given")
    check(plan, llm)
    computes = (3 if plan.splits_backward else 2) * plan.chunks * plan.microbatches
    if computes > MAX_COMPUTES:
        raise PlanError(
            f"{plan.microbatches:,} microbatches on {plan.chunks} chunks are {computes:,} "
            f"computes, more than the {MAX_COMPUTES:,} that a simulation takes; is global_batch "
            f"{plan.global_batch:,} meant?"
        )
    cluster.gpu.peak(plan.precision)
    costs_of = CostModel(llm, cluster, cost)
    costs = costs_of.costs(plan)
    breakdown = break_down(plan, costs)
    once = costs_of.stage_work(replace(plan, recompute="none", recompute_modules=()))
    return Prediction(
        llm=llm,
        plan=plan,
        cluster=cluster,
        step_time_s=sum(breakdown.values()),
        breakdown=breakdown,
        costs=costs,
        memory=tuple(stage_memory(llm, plan, cluster, rules)),
        recomputed=float(costs.flops.sum() / once.flops.sum()),
        tokens=tokens,
        warnings=tuple(_warnings(llm, plan, cluster)),
        rules=rules,
    )


def plan_of(fields: Mapping[str, Any]) -> Plan:
    """The plan of a mapping.

    Raises:
        PlanError: a field is unknown or ``global_batch`` is missing.
    """
    field_names = [field.name for field in dataclass_fields(Plan)]
    unknown = [name for name in fields if name not in field_names]
    if unknown:
        raise PlanError(f"a plan has no field {unknown[0]!r}; it has {', '.join(field_names)}")
    if "global_batch" not in fields:
        raise PlanError("the plan lacks global_batch, the samples of one step")
    return Plan(**fields)


def break_down(plan: Plan, costs: PlanCosts) -> dict[str, float]:
    """Seconds of a step by term; they add up to its time.

    The terms are differences of successive simulations: only computes, then with hand-overs between
    stages, with data-parallel collectives, and with the rest of the step's tail.
    """
    planned = from_plan(plan, costs)
    graph, seconds = planned.graph, planned.durations.block(0)[:, 0, 0]
    computes = np.isin(graph.kind, [int(k) for k in _COMPUTES])
    with_p2p = computes | np.isin(graph.kind, [int(k) for k in P2P_KINDS])
    with_dp = with_p2p | np.isin(graph.kind, [int(k) for k in _DP_KINDS])
    stages = (computes, with_p2p, with_dp, np.ones(graph.n_ops, dtype=bool))
    scenarios = Durations.empty(graph, len(stages))
    for column, mask in enumerate(stages):
        scenarios.block(0)[:, column, 0] = np.where(mask, seconds, 0.0)
    own = Rules.own(graph)
    times = step_times(scenarios, own, all_lanes(graph, len(stages))).tolist()
    mean = costs.parts_s.sum(axis=(0, 2)) / plan.pp * plan.microbatches
    # The share of the exchange of experts' tokens that overlapping passes hide.
    if plan.schedule in OVERLAPPING:
        mean[EXCHANGE] -= float(mean.sum() - seconds[computes].sum() / plan.pp)
    seconds_of = dict(zip(PARTS, mean.tolist(), strict=True))
    repeated = seconds_of.pop("dp")
    seconds_of["bubble"] = max(0.0, times[0] - float(mean.sum()))
    for name, before, after in zip(("p2p", "dp", "tail"), times, times[1:], strict=False):
        seconds_of[name] = after - before
    seconds_of["dp"] += repeated
    seconds_of["fixed"] = costs.fixed_s
    return seconds_of


def _warnings(llm: LLM, plan: Plan, cluster: Cluster) -> list[str]:
    warnings = model_warnings(llm)
    untested = untested_blocks(llm)
    if untested:
        warnings.append(
            f"no measured run has tested the model of {' and '.join(untested)}; the step may lie "
            "outside the interval"
        )
    unseen = beyond_evidence(llm, plan, cluster)
    if unseen:
        warnings.append(
            f"no measured step behind the interval has {' or '.join(unseen)}; the step may lie "
            "outside it"
        )
    if cluster.calibration is not None:
        beyond = cluster.calibration.outside(llm, plan)
        if beyond:
            warnings.append(f"outside what the cluster was calibrated with: {'; '.join(beyond)}")
    if plan.tp > cluster.node.gpus:
        warnings.append(
            f"tp {plan.tp} exceeds the {cluster.node.gpus} GPUs of a node: its collectives cross "
            "the network in every layer"
        )
    return warnings
