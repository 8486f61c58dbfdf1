"""Seconds of the computes of one microbatch, layer by layer and place by place.

A *place* is a chunk's position in the model, ``chunk * pp + stage`` (so with vpp = 1, the stage).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from paceline.errors import ModelError
from paceline.model.activations import layer_activations
from paceline.model.cluster import Cluster
from paceline.model.compute import ComputeCost, roofline
from paceline.model.llm import LLM
from paceline.model.memory import place_parameters
from paceline.model.network import Fabric, Group
from paceline.model.operators import (
    Collective,
    LayerKind,
    LayerWork,
    Operator,
    Work,
    embedding_work,
    head_work,
    is_weight_gradient,
    layer_kind,
    layer_work,
    mtp_kinds,
    mtp_work,
)
from paceline.model.plan import Plan
from paceline.model.vision import VisionCost
from paceline.model.vision_work import vision_work

Array = npt.NDArray[np.float64]
#: Parts of the duration of a compute.
PARTS = ("gemm", "attention", "memory", "launch", "tp", "cp", "ep", "dp")
_GEMM = PARTS.index("gemm")
_LAUNCH = PARTS.index("launch")
_MEMORY = PARTS.index("memory")
EXCHANGE = PARTS.index("ep")
#: Least tokens of a microbatch on a tensor-parallel group for collectives to hide behind products.
#: With fewer tokens, the chunks of a product are too small. The number is read from the shared
#: MLPerf rows, not fitted: rows under 4,096 tokens per rank are slower.
TP_OVERLAP_TOKENS = 4096
#: Share of the link to the host that copies of pinned memory reach: 26.0 of the 31.5 GB/s of PCI
#: Express 4.0 (NVIDIA/nvbandwidth 66746a3, README, ``host_to_device_memcpy_ce``, on GPUs with the
#: NVLink of an A100).
HOST_SHARE = 0.82
#: Operators whose kernels wait for the host, which learns the experts' numbers of tokens late.
_OF_EXPERTS = ("expert-", "router", "permute", "unpermute")


@dataclass(frozen=True)
class StageWork:
    """The part of a plan's cost that does not depend on the number of replicas.

    Attributes:
        parts_s: [direction, part, place] as in :class:`PlanCosts`.
        flops: [direction, place] floating-point operations of one microbatch, recomputation
            included.
        parameters: [place] parameters on one GPU that all data-parallel ranks share.
        expert_parameters: [place] parameters on one GPU of its experts.
        weight_s: [place] as in :class:`PlanCosts`.
    """

    parts_s: Array
    flops: Array
    parameters: Array
    expert_parameters: Array
    weight_s: Array


class LayerCosts:
    """Costs of the computes of many plans of one model; common parts are computed once."""

    def __init__(self, llm: LLM, cluster: Cluster, cost: ComputeCost | None = None) -> None:
        self.llm, self.cluster = llm, cluster
        self.efficiency = cluster.efficiency
        self.cost = cost or roofline(cluster.gpu, cluster.efficiency)
        self._layers: dict[object, tuple[Array, Array]] = {}
        self._weights: dict[object, float] = {}
        self._stages: dict[object, StageWork] = {}

    @cached_property
    def fabric(self) -> Fabric:
        """The collectives of the cluster."""
        return Fabric(self.cluster)

    def stage_work(self, plan: Plan) -> StageWork:
        """The costs that do not depend on the number of replicas."""
        key = (
            *_layer_key(plan),
            *(plan.pp, plan.vpp, plan.layers_per_stage),
            *((plan.offload_layers, plan.zero) if plan.offload_layers else ()),
        )
        if key not in self._stages:
            self._stages[key] = self._stage_work(plan)
        return self._stages[key]

    def _stage_work(self, plan: Plan) -> StageWork:
        llm = self.llm
        parts_s = np.zeros((2, len(PARTS), plan.chunks))
        flops = np.zeros((2, plan.chunks))
        weight_s = np.zeros(plan.chunks)

        def add(place: int, name: object, times: int = 1) -> None:
            seconds, counted = self.layer(name, plan)
            parts_s[:, :, place] += times * seconds
            flops[:, place] += times * counted
            weight_s[place] += times * self.layer_weight_s(name, plan)

        for place, layers in enumerate(plan.chunk_layers(llm)):
            for kind, times in Counter(layer_kind(llm, i) for i in layers).items():
                add(place, kind, times)
        if plan.offload_layers:
            parts_s[:, _MEMORY, 0] += self._offload_s(plan, parts_s[:, :, 0].sum(axis=1))
        add(0, "embedding")
        add(plan.chunks - 1, "head", 1 + llm.mtp_layers)
        for name in (*mtp_kinds(llm), *(["mtp"] if llm.mtp_layers else [])):
            add(plan.chunks - 1, name, llm.mtp_layers)
        return StageWork(parts_s, flops, *place_parameters(llm, plan), weight_s)

    def _offload_s(self, plan: Plan, compute_s: Array) -> Array:
        """[direction] seconds that the GPU waits for copies to and from the host.

        Copies queue up behind the layers. Layer ``layers - offload_layers + i`` waits for the copy
        of layer i; the backward is the mirror image (Transformer Engine d0067d0,
        ``cpu_offload.py``, ``DefaultOffloadSynchronizer``). ``compute_s`` has the seconds of all
        layers.
        """
        link = self.cluster.node.host_bandwidth
        if link is None:
            raise ModelError(
                f"the cluster {self.cluster.name} lacks the node's host_bandwidth, which "
                "offload_layers needs",
                fields=("host_bandwidth",),
            )
        n = plan.offload_layers
        kinds = [layer_kind(self.llm, i) for i in range(n)]
        kept = {kind: layer_activations(self.llm, kind, plan)[0] for kind in set(kinds)}
        copy_s = [kept[kind] / (link * HOST_SHARE) for kind in kinds]
        layer_s = compute_s / self.llm.layers
        now_s, waits_s = np.zeros(2), np.zeros(2)
        copied_s: list[Array] = []  # end of each layer's copy
        for layer in range(self.llm.layers):
            due = layer - (self.llm.layers - n)
            wait_s = np.maximum(0.0, copied_s[due] - now_s) if due >= 0 else np.zeros(2)
            waits_s += wait_s
            now_s = now_s + wait_s + layer_s
            if layer < n:
                begin_s = np.maximum(now_s, copied_s[-1]) if copied_s else now_s
                copied_s.append(begin_s + copy_s[layer])
        return waits_s

    def layer(self, name: object, plan: Plan) -> tuple[Array, Array]:
        """[direction, part] seconds and [direction] FLOPs of a layer or an end of the model."""
        key = (name, *_layer_key(plan))
        if key not in self._layers:
            work = self._work(name, plan)
            seconds = self._seconds(work, plan)
            if plan.quantised and isinstance(name, LayerKind):
                # Fitted on layers of two blocks.
                seconds[:, _LAUNCH] += self.efficiency.layer_s * (len(name.blocks) / 2)
            vision = self.llm.vision
            if name == "embedding" and isinstance(vision, VisionCost):
                seconds[:, _GEMM] += vision.forward_s, vision.backward_s
            self._layers[key] = seconds, np.array(work.flops())
        return self._layers[key]

    def _work(self, name: object, plan: Plan) -> LayerWork:
        if name == "embedding":
            return self._entry_work(plan)
        if name == "head":
            return head_work(self.llm, plan)
        if name == "mtp":
            return mtp_work(self.llm, plan)
        return layer_work(self.llm, name, plan)  # type: ignore[arg-type]  # a kind, by now

    def _entry_work(self, plan: Plan) -> LayerWork:
        """Work before the first layer: the embedding and a vision tower."""
        work = embedding_work(self.llm, plan)
        images = vision_work(self.llm, plan)
        for name in ("forward", "backward", "recompute"):
            getattr(work, name).extend(getattr(images, name))
        return work

    def layer_weight_s(self, name: object, plan: Plan) -> float:
        """Seconds for gradients of weights in the backward of a layer or an end of the model.

        They include their share of the time in which the GPU waits for launches of the backward.
        """
        key = (name, *_layer_key(plan))
        if key not in self._weights:
            backward = self._work(name, plan).directions()[1]
            operators = [entry for entry in backward if isinstance(entry, Operator)]
            weights = [entry for entry in operators if is_weight_gradient(entry)]
            launch_s = float(self.layer(name, plan)[0][1, PARTS.index("launch")])
            kernels = sum(entry.kernels for entry in operators)
            share = sum(entry.kernels for entry in weights) / max(1, kernels)
            self._weights[key] = sum(map(self.cost, weights)) + share * launch_s
        return self._weights[key]

    def _seconds(self, work: LayerWork, plan: Plan) -> Array:
        return np.stack([self._direction(direction, plan) for direction in work.directions()])

    def _direction(self, work: Iterable[Work], plan: Plan) -> Array:
        """[part] seconds of one pass.

        The GPU runs kernel after kernel. If the host needs longer to launch them, the difference is
        the part "launch". Collectives are exposed, except for the part that hides behind compute.
        """
        seconds = dict.fromkeys(PARTS, 0.0)
        by_name: dict[str, float] = {}
        kernels = waits = 0
        hidden: list[tuple[Collective, float]] = []
        for entry in work:
            if isinstance(entry, Operator):
                duration_s = self.cost(entry)
                seconds[entry.part] += duration_s
                by_name[entry.name] = by_name.get(entry.name, 0.0) + duration_s
                kernels += entry.kernels
                if entry.name.startswith(_OF_EXPERTS):
                    waits += entry.kernels
            elif entry.hidden_behind:
                hidden.append((entry, self._collective_s(entry, plan)))
            else:
                seconds[entry.part] += self._collective_s(entry, plan)
        tokens = plan.micro_batch * self.llm.seq_len / plan.cp
        pipelined = min(1.0, tokens / TP_OVERLAP_TOKENS)
        room = {"*": seconds["gemm"], **by_name}
        for entry, duration_s in hidden:
            most = duration_s * (pipelined if entry.part == "tp" else 1.0)
            under = min(most, room.get(entry.hidden_behind, 0.0))
            room[entry.hidden_behind] = room.get(entry.hidden_behind, 0.0) - under
            seconds[entry.part] += duration_s - under + self.efficiency.overlap * under
        busy = sum(seconds.values())
        seconds["launch"] += max(0.0, kernels * self.efficiency.launch_s - busy)
        if waits and not plan.fused_experts:
            seconds["launch"] += waits * self.efficiency.expert_kernel_s
        return np.array(list(seconds.values()))

    def _collective_s(self, collective: Collective, plan: Plan) -> float:
        size, stride = {
            "tp": (plan.tp, 1),
            "cp": (plan.cp, plan.tp),
            "ep": (plan.ep, 1),
        }[collective.part]
        if collective.op == "p2p":
            return self.neighbour_s(collective.bytes, size, stride)
        if collective.op == "dispatch":
            return self.fabric.dispatch(collective.bytes, Group(size, stride), collective.visits)
        call = getattr(self.fabric, collective.op)
        return float(call(collective.bytes, Group(size, stride)))

    def neighbour_s(self, size: float, ranks: int, stride: int) -> float:
        """Seconds of the slowest hand-over between neighbours among ``ranks`` ranks.

        A chain that is longer than a node crosses between nodes somewhere.
        """
        node = self.cluster.node.gpus
        if stride < node < ranks * stride:
            return self.fabric.p2p(size, node, senders_per_node=stride)
        return self.fabric.p2p(size, stride)


def _layer_key(plan: Plan) -> tuple[object, ...]:
    """The cache key of a layer's work."""
    return (
        plan.tp,
        plan.cp,
        plan.ep,
        plan.micro_batch,
        plan.recompute,
        plan.recompute_modules,
        plan.sequence_parallel,
        plan.precision,
        plan.flash,
        plan.kernel_set,
        plan.fused_experts,
        plan.overlap_tp,
        plan.grad_bytes,
        plan.adapter_rank > 0,
    )
