"""Cost of one step of a plan, stage by stage: the durations for ``graph.from_plan``.

Seconds of one microbatch on one GPU of each place. A *place* is a chunk's position in the model,
``chunk * pp + stage`` (so with vpp = 1, the stage).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from paceline.model.cluster import Cluster
from paceline.model.compute import ComputeCost
from paceline.model.layer_costs import EXCHANGE, PARTS, Array, LayerCosts, StageWork
from paceline.model.llm import LLM
from paceline.model.memory import (
    adapter_parameters,
    by_stage,
    ends_meet,
    forward_only,
    frozen_parameters,
)
from paceline.model.network import Group
from paceline.model.operators import (
    Operator,
)
from paceline.model.plan import Plan

_DP = PARTS.index("dp")

#: Bytes that Adam moves per parameter. It reads gradient, master copy and two moments in fp32, and
#: writes the latter three and the 16-bit weight. Before that, the norm reads the gradients once.
_ADAM_BYTES = 4 * 4 + 3 * 4 + 2 + 4
#: Elements of a bucket of gradients that overlaps with the backward pass. The last bucket remains
#: at its end (Megatron-Core's default, 40 million).
BUCKET_ELEMENTS = 40_000_000


@dataclass(frozen=True)
class PlanCosts:
    """Durations of one step of one replica.

    Attributes:
        parts_s: [direction, part, place] seconds of one microbatch: forward (0) and backward (1,
            recomputation included), by :data:`PARTS`; their sum is the duration of the compute.
        p2p_s: [place] seconds to hand one microbatch from a place to the next (the same for its
            gradient on the way back). The last place sends nothing: 0.
        all_gather_s: [place] exposed seconds of gathering the parameters before the first forward.
        reduce_scatter_s: [place] exposed seconds of reducing the gradients after the last backward.
        hidden_dp_s: [place] seconds of both that overlap with compute.
        layernorm_grads_s: [pp] seconds of the tail's all-reduce over the tensor-parallel ranks.
        embedding_grads_s: seconds of the all-reduce between the first and the last stage.
        clip_s: seconds of the norm over all ranks.
        optimizer_s: [pp] seconds of the update.
        fixed_s: seconds of each step outside all ops (data loading, logging, ...).
        overlapped: whether gradients are reduced during the backward pass.
        flops: [direction, place] as in :class:`StageWork`.
        weight_s: [place] seconds of the backward for gradients of weights, which schedules with
            split backwards run separately. Attention has no weights. Recomputation belongs to the
            gradients of the inputs.
    """

    parts_s: Array
    p2p_s: Array
    all_gather_s: Array
    reduce_scatter_s: Array
    hidden_dp_s: Array
    layernorm_grads_s: Array
    embedding_grads_s: float
    clip_s: float
    optimizer_s: Array
    fixed_s: float
    overlapped: bool
    flops: Array = field(default_factory=lambda: np.zeros((2, 1)))
    weight_s: Array = field(default_factory=lambda: np.zeros(1))

    @property
    def exchange_s(self) -> tuple[Array, Array]:
        """[place] seconds of the exchange of experts' tokens in a forward and in a backward."""
        return self.parts_s[0, EXCHANGE], self.parts_s[1, EXCHANGE]

    @property
    def forward_s(self) -> Array:
        """[place] seconds of one forward compute."""
        total: Array = self.parts_s[0].sum(axis=0)
        return total

    @property
    def backward_s(self) -> Array:
        """[place] seconds of one backward compute."""
        total: Array = self.parts_s[1].sum(axis=0)
        return total


def plan_costs(
    llm: LLM, plan: Plan, cluster: Cluster, cost: ComputeCost | None = None
) -> PlanCosts:
    """The durations of one step.

    Args:
        llm: the model.
        plan: a legal plan for it (``plan.check``).
        cluster: the machines.
        cost: seconds of an operator; None = the roofline of the cluster's GPU.
    """
    return CostModel(llm, cluster, cost).costs(plan)


class CostModel(LayerCosts):
    """Costs of many plans of one model on one cluster; common parts are computed once."""

    # Compute.

    # The costs that depend on the number of replicas.

    def costs(self, plan: Plan) -> PlanCosts:
        """The durations of one step."""
        work = self.stage_work(plan)
        gather, reduce = self.gradients_s(plan, work)
        exposed_gather, exposed_reduce, hidden = self._overlap(plan, work, gather, reduce)
        return PlanCosts(
            parts_s=self._sharded(plan, work),
            p2p_s=self.p2p_s(plan),
            all_gather_s=exposed_gather,
            reduce_scatter_s=exposed_reduce,
            hidden_dp_s=hidden,
            layernorm_grads_s=self.layernorm_s(plan),
            embedding_grads_s=self.embedding_s(plan),
            clip_s=self.fabric.all_reduce(4.0, Group(plan.gpus, 1)),
            optimizer_s=self.optimizer_s(plan, work),
            fixed_s=self.efficiency.fixed_s,
            overlapped=plan.overlap_dp and plan.dp * plan.cp * plan.copies > 1,
            flops=work.flops,
            weight_s=work.weight_s,
        )

    def groups(self, plan: Plan) -> tuple[Group, Group]:
        """Ranks that share the dense parameters, and ranks that share one rank's experts."""
        ranks = plan.shard_ranks
        return Group(ranks, plan.tp), Group(max(1, ranks * plan.tp // plan.ep), plan.ep)

    def _gathers_s(self, plan: Plan, counts: Array, group: Group) -> Array:
        """[place] seconds to gather this many parameters."""
        weight = plan.element_bytes
        return _seconds_of(counts, lambda n: self.fabric.all_gather(weight * n, group))

    def _all_reductions_s(self, plan: Plan, counts: Array, group: Group) -> Array:
        """[place] seconds to sum this many gradients."""
        return _seconds_of(counts, lambda n: self.fabric.all_reduce(plan.grad_bytes * n, group))

    def _reductions_s(self, plan: Plan, counts: Array, group: Group) -> Array:
        """[place] seconds to reduce this many gradients to shards, also over HSDP's copies."""
        copies = plan.dp * plan.cp * plan.copies // plan.shard_ranks
        others = Group(copies, plan.tp * plan.shard_ranks)

        def reduced_s(count: float) -> float:
            size = plan.grad_bytes * count
            within = self.fabric.reduce_scatter(size, group)
            return within + self.fabric.all_reduce(size / group.size, others)

        return _seconds_of(counts, reduced_s)

    def gradients_s(self, plan: Plan, work: StageWork) -> tuple[Array, Array]:
        """[place] seconds of gathering parameters and of reducing gradients, once per step.

        :meth:`repeated_s` has the traffic of ZeRO-2 and ZeRO-3 in every microbatch.
        """
        gather, reduce = np.zeros(plan.chunks), np.zeros(plan.chunks)
        sizes = self.gathered(plan, *work.sizes), self.trained(plan, *work.sizes)
        for group, used, learned in zip(self.groups(plan), *sizes, strict=True):
            if group.size == 1 and not plan.shards:
                continue
            if plan.zero == 0:
                reduce += self._all_reductions_s(plan, learned, group)
                continue
            once = plan.zero == 1 or (plan.zero == 3 and plan.pp > 1)
            if once:
                reduce += self._reductions_s(plan, learned, group)
            if once or plan.zero == 2:
                gather += self._gathers_s(plan, used, group)
        return gather, reduce

    def trained(self, plan: Plan, dense: Array, expert: Array) -> tuple[Array, Array]:
        """[place] parameters that have gradients, of dense layers and of experts."""
        if not plan.adapter_rank:
            return dense - frozen_parameters(self.llm, plan), expert
        return adapter_parameters(self.llm, plan), np.zeros(plan.chunks)

    def gathered(self, plan: Plan, dense: Array, expert: Array) -> tuple[Array, Array]:
        """[place] parameters that ranks gather: with ZeRO 3 all, else those with gradients."""
        if plan.zero < 3:
            return self.trained(plan, dense, expert)
        return dense + adapter_parameters(self.llm, plan), expert

    def _overlap(
        self, plan: Plan, work: StageWork, gather: Array, reduce: Array
    ) -> tuple[Array, Array, Array]:
        """Exposed gathers, exposed reductions and hidden traffic, [place] seconds.

        Gathers hide behind the first forward of a chunk, reductions behind its last backward. At
        least one bucket stays exposed at each end, and hidden traffic slows the compute.
        """
        if not plan.overlap_dp:
            return gather, reduce, np.zeros_like(gather)
        bucket = (plan.bucket_bytes or BUCKET_ELEMENTS * plan.grad_bytes) / plan.grad_bytes
        exposed = []
        hidden = np.zeros_like(gather)
        for direction, (total, sizes) in enumerate(
            ((gather, self.gathered(plan, *work.sizes)), (reduce, self.trained(plan, *work.sizes)))
        ):
            least = np.minimum(1.0, bucket / np.maximum(sum(sizes), 1.0))
            room = work.parts_s[direction].sum(axis=0)
            under, shown = self.overlapped(total, total * (1 - least), room)
            exposed.append(shown)
            hidden += under
        return exposed[0], exposed[1], hidden

    def overlapped(self, total: Array, most: Array, room: Array) -> tuple[Array, Array]:
        """Hidden (at most ``most``) and exposed parts of data-parallel traffic; seconds."""
        under = np.minimum(np.minimum(most, self.efficiency.hidden_dp * total), room)
        return under, total - under + self.efficiency.overlap * under

    def repeated_s(self, plan: Plan, dense: Array, expert: Array) -> Array:
        """[direction, place] seconds of sharding traffic in each pass of every microbatch.

        ZeRO-2 keeps gradients in shards, so each backward ends in a reduction. ZeRO-3 also keeps
        parameters in shards and gathers them before their use in both passes (Rajbhandari et al.
        2020, 5 and 7). Frozen ones are gathered, too: the gradient of an input needs the weight.
        HSDP sums the shards of gradients over its copies in each backward. Under a pipeline, FSDP2
        with torchtitan's settings does all this once per step.
        """
        repeated = np.zeros((2, plan.chunks))
        if plan.zero < 2 or plan.pp > 1:
            return repeated
        sizes = self.gathered(plan, dense, expert), self.trained(plan, dense, expert)
        for i, (group, used, learned) in enumerate(zip(self.groups(plan), *sizes, strict=True)):
            if group.size == 1 and not plan.shards:
                continue
            repeated[1] += self._reductions_s(plan, learned, group)
            if plan.zero == 3:
                passed_back = used if i else used - forward_only(self.llm, plan)
                repeated[0] += self._gathers_s(plan, used, group)
                repeated[1] += self._gathers_s(plan, passed_back, group)
        return repeated

    def exposed(self, plan: Plan, seconds: Array, room: Array) -> Array:
        """Exposed data-parallel traffic, given the compute (``room``) that may hide it."""
        return self.overlapped(seconds, seconds, room)[1] if plan.overlap_dp else seconds

    def _sharded(self, plan: Plan, work: StageWork) -> Array:
        """The computes, with the traffic of ZeRO-2 and ZeRO-3 in every microbatch."""
        if plan.zero < 2:
            return work.parts_s
        parts_s = work.parts_s.copy()
        repeated = self.repeated_s(plan, *work.sizes)
        parts_s[:, _DP] += self.exposed(plan, repeated, work.parts_s.sum(axis=1))
        return parts_s

    def p2p_s(self, plan: Plan) -> Array:
        """[place] seconds to send one microbatch's activations to the next place.

        Each tensor-parallel rank sends its share, and the receivers gather the shares among
        themselves (Narayanan et al. 2021, 4.1). With sequence parallelism nothing is gathered.
        """
        seconds = np.zeros(plan.chunks)
        if plan.pp == 1:
            return seconds
        element = plan.element_bytes
        tokens = plan.micro_batch * self.llm.seq_len / plan.cp
        size = element * tokens * self.llm.hidden * self.llm.streams
        stride = plan.tp * plan.cp * plan.dp
        hop_s = self.neighbour_s(size / plan.tp, plan.pp, stride)
        if plan.tp > 1 and not plan.sequence_parallel:
            hop_s += self.fabric.all_gather(size, Group(plan.tp, 1))
        seconds[:-1] = hop_s * (self.efficiency.overlap if plan.overlap_pp else 1.0)
        return seconds

    def layernorm_s(self, plan: Plan) -> Array:
        """[pp] seconds to sum partial gradients of norms (sequence parallelism, Megatron-LM)."""
        if not plan.sequence_parallel or plan.adapter_rank:
            return np.zeros(plan.pp)
        layers = np.array([len(x) for x in plan.chunk_layers(self.llm)], dtype=np.float64)
        size = 4.0 * self.llm.norm_parameters * by_stage(plan, layers).sum(axis=0)
        group = Group(plan.tp, 1)
        return np.array([self.fabric.all_reduce(float(x), group) for x in size])

    def embedding_s(self, plan: Plan) -> float:
        """Seconds to sum the gradients of both copies of a tied embedding (Megatron-LM)."""
        if plan.pp == 1 or not self.llm.tied or ends_meet(plan) or plan.adapter_rank:
            return 0.0
        size = plan.grad_bytes * self.llm.padded_vocab(plan.tp) * self.llm.hidden / plan.tp
        last = (plan.pp - 1) * plan.tp * plan.cp * plan.dp
        return self.fabric.all_reduce(size, Group(2, last))

    def optimizer_s(self, plan: Plan, work: StageWork) -> Array:
        """[pp] seconds of the update; it is memory-bound."""
        ranks = 1 if plan.zero == 0 else self.groups(plan)[0].size
        expert_ranks = 1 if plan.zero == 0 else self.groups(plan)[1].size
        dense, expert = self.trained(plan, *work.sizes)
        count = dense / ranks + expert / expert_ranks
        size = _ADAM_BYTES * by_stage(plan, count).sum(axis=0)
        if plan.precision == "nvfp4":  # weights are quantised once a step, after the update
            weights = work.parameters + work.expert_parameters
            passes = 2 * plan.element_bytes + 2 * plan.input_bytes
            size += passes * by_stage(plan, weights).sum(axis=0)
        seconds = [
            self.cost(Operator("optimizer", "memory", 0.0, amount, kernels=4))
            for amount in size.tolist()
        ]
        return np.array(seconds)


def _seconds_of(counts: Array, seconds: Callable[[float], float]) -> Array:
    """[place] seconds of each count, 0 of none; equal ones are computed once."""
    of_count = {count: seconds(count) for count in set(counts.tolist()) - {0.0}}
    return np.array([of_count.get(count, 0.0) for count in counts.tolist()])
