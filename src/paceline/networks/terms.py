"""A step as a sum of terms, in seconds on the datasheet's machine.

``compute`` has the time of a GPU's computes. A calibration multiplies terms by factors
(``factors``); without one every factor is 1. Sources of the constants:

* collectives, hops: ``model.efficiency`` (nccl-tests, NCCL's tuning.cc);
* ``STAGED``: byte/s of MPI through host memory: PCIe 3.0 x16, 12 GB/s, out and in;
* ``MESSAGE_S``: seconds of a small message by CUDA-aware MPI through the host (OSU
micro-benchmarks: 20 to 40 us with the copies);
* ``SKEW_S``: seconds of synchronising more nodes; the wait for the slowest grows with their number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paceline.model.cluster import Cluster
from paceline.model.network import Fabric, Group
from paceline.networks.compute import (
    ComputeConstants,
    constants_of,
    layer_seconds,
    reorder_seconds,
    roofline_seconds,
    update_seconds,
)
from paceline.networks.demand import Array, Demand, demand_of
from paceline.networks.layer import LayerNetwork
from paceline.networks.layer_profile import LayerProfile
from paceline.networks.regions import largest_share
from paceline.networks.strategy import Strategy
from paceline.networks.traffic import Transfer, last_spatial, split_products, traffic

STAGED = 6e9
MESSAGE_S = 30e-6
SKEW_S = 1e-3

COMPUTE = ("products", "memory", "layout", "host", "update", "split", "tiles", "bubble")
COMMUNICATION = (
    *("gradients", "gradients.inside", "gradients.calls", "gradients.hops", "skew"),
    *("layers.inside", "layers.between", "layers.hops", "halo", "halo.messages", "stage", "norms"),
)
TERMS = (*COMPUTE, *COMMUNICATION)


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine and software of the terms.

    Attributes:
        cluster: the machines, with efficiencies.
        software: constants of a framework's kernels; None = ``constants_of`` the GPU.
        profile: measured seconds of operators, which replace the model's.
    """

    cluster: Cluster
    software: ComputeConstants | None = None
    profile: LayerProfile | None = None

    @property
    def constants(self) -> ComputeConstants:
        """Constants of the kernels."""
        return self.software or constants_of(self.cluster.gpu)

    def layer_seconds(
        self, network: LayerNetwork, samples: float, strategy: Strategy
    ) -> tuple[Array, Array]:
        """[layer] seconds of forward and backward for ``samples`` on one GPU."""
        forward, *backward = layer_seconds(
            demand_of(network, strategy.precision),
            samples,
            self.cluster.gpu,
            strategy.precision,
            channels_last=strategy.channels_last,
            constants=self.constants,
        )
        both = backward[0] + backward[1]
        if self.profile is not None:
            measured, known = self.profile.times(network)
            forward = np.where(known, measured[0] * samples, forward)
            both = np.where(known, (measured[1] + measured[2]) * samples, both)
        return forward, both


def step_terms(network: LayerNetwork, strategy: Strategy, machine: Machine) -> dict[str, float]:
    """Seconds of each term of a step, before a pipeline's computation is cut into stages."""
    terms = dict.fromkeys(TERMS, 0.0)
    _compute(terms, network, strategy, machine)
    for transfer in traffic(network, strategy):
        _communicate(terms, transfer, strategy, machine)
    nodes = machine.cluster.nodes(strategy.gpus)
    terms["skew"] = SKEW_S * (math.sqrt(nodes) - 1)
    return terms


def split_of(terms: Mapping[str, float]) -> tuple[float, float]:
    """Seconds of computation and of communication."""
    return sum(terms[name] for name in COMPUTE), sum(terms[name] for name in COMMUNICATION)


def _compute(
    terms: dict[str, float], network: LayerNetwork, strategy: Strategy, machine: Machine
) -> None:
    demand, samples = demand_of(network, strategy.precision), strategy.busiest_samples
    share = work_shares(network, strategy)
    # Filter and channel splits divide the weights; a spatial split has all weights everywhere.
    weights = np.ones_like(share) if strategy.is_spatial else share
    part, gpu, constants = demand.part(share, weights), machine.cluster.gpu, machine.constants
    seconds = _roofline(part, strategy, machine)
    modelled = np.ones(len(network.layers), dtype=np.bool_)
    if machine.profile is not None:
        machine.profile.check(strategy.precision, channels_last=strategy.channels_last)
        measured, known = machine.profile.times(network)
        seconds = np.where(known, measured * samples * share, seconds)
        modelled = ~known
    terms["products"] = float(seconds[:, demand.products].sum())
    terms["memory"] = float(seconds[:, ~demand.products].sum())
    if not strategy.channels_last:
        copies = reorder_seconds(part, samples, gpu, strategy.precision, constants=constants)
        terms["layout"] = float(copies[:, modelled].sum())
    terms["host"] = float(demand.kernels[:, modelled].sum()) * constants.kernel_s
    shards = strategy.replicas if strategy.zero else 1
    updated = demand.part(share, weights / shards)
    terms["update"] = update_seconds(updated, gpu, strategy.optimizer, constants=constants)
    if strategy.split == 1 or strategy.is_pipeline:
        return
    calls = 2
    cut = demand.products & (share < 1)
    if strategy.splits_weights:
        calls = 4
        cut = np.zeros_like(demand.products)
        cut[split_products(network, strategy)] = True
        wide, deep = (share, 1.0) if strategy.splits_weights == "filter" else (1.0, share)
        narrow = demand.part(share, weights, np.where(cut, demand.split_waste(wide, deep), 1.0))
        terms["tiles"] = float((_roofline(narrow, strategy, machine) - seconds).sum())
    # Each operand of a split product is cut or joined, so it is read and written in both passes.
    moved = part if strategy.is_spatial else demand
    rate = gpu.memory_bandwidth * constants.memory_share
    terms["split"] = 4 * samples * float(moved.tensor_bytes[cut].sum()) / rate
    terms["host"] += calls * float(cut.sum()) * constants.kernel_s


def _roofline(part: Demand, strategy: Strategy, machine: Machine) -> Array:
    return roofline_seconds(
        part,
        strategy.busiest_samples,
        machine.cluster.gpu,
        strategy.precision,
        channels_last=strategy.channels_last,
        constants=machine.constants,
    )


def work_shares(network: LayerNetwork, strategy: Strategy) -> Array:
    """[layer] the busiest GPU's share of a sample's work; 1 if it does all of it."""
    share = np.ones(len(network.layers))
    if strategy.split == 1 or strategy.is_pipeline:
        return share
    if strategy.is_spatial:
        for i, layer in enumerate(network.layers[: last_spatial(network, strategy) + 1]):
            extents = layer.out_shape[1:]
            parts = strategy.parts(len(extents))
            share[i] = largest_share(extents, parts) / math.prod(extents)
        return share
    for i in split_products(network, strategy):
        count = _split_count(network, strategy, i)
        share[i] = math.ceil(count / strategy.split) / count
    return share


def _split_count(network: LayerNetwork, strategy: Strategy, index: int) -> int:
    if strategy.splits_weights == "filter":
        return network.layers[index].filters
    return network.in_shapes(index)[0][0]


@dataclass(frozen=True, slots=True)
class Links:
    """Speeds of a communication library on a cluster.

    Attributes:
        cluster: the cluster with the links.
        library: "nccl", or "mpi", which sends messages through the hosts' memory.
    """

    cluster: Cluster
    library: str

    @property
    def outer(self) -> float:
        """byte/s of all adapters of a node together."""
        return self.cluster.network.node_bandwidth * self.cluster.efficiency.inter

    @property
    def flow(self) -> float:
        """byte/s of one GPU's sends to another node."""
        return min(self.outer, STAGED) if self.library == "mpi" else self.outer

    @property
    def hop_s(self) -> float:
        """Latency of a message between nodes."""
        return MESSAGE_S if self.library == "mpi" else self.cluster.network.latency_s

    @property
    def inner_hop_s(self) -> float:
        """Latency of a message inside a node; ``Efficiency.collective_s`` includes NCCL's."""
        return MESSAGE_S if self.library == "mpi" else 0.0

    def inner(self, size: int = 2) -> float:
        """byte/s between neighbours in a node; in a mesh, a group has its share of the links."""
        node, efficiency = self.cluster.node, self.cluster.efficiency
        rate = node.bandwidth * efficiency.intra
        if node.topology == "mesh" and node.gpus > 1:
            rate *= (min(size, node.gpus) - 1) / (node.gpus - 1)
        rate = max(rate, node.bandwidth * efficiency.intra / max(1, node.gpus - 1))
        return min(rate, STAGED) if self.library == "mpi" else rate


def _communicate(
    terms: dict[str, float], transfer: Transfer, strategy: Strategy, machine: Machine
) -> None:
    cluster = machine.cluster
    size = transfer.received * transfer.width
    links, halos = Links(cluster, strategy.library), Links(cluster, strategy.halo_library)
    if transfer.what == "halo" or (transfer.what == "gather" and halos.library == "mpi"):
        terms["halo"] += size / (STAGED if halos.library == "mpi" else halos.inner())
        terms["halo.messages"] += transfer.messages * MESSAGE_S
        return
    if transfer.what in ("layer", "gather"):
        inside = cluster.nodes(transfer.size) == 1
        where = "layers.inside" if inside else "layers.between"
        rate = links.inner(transfer.size) if inside else links.flow
        terms[where] += size / rate + cluster.efficiency.collective_s
        hop_s = links.inner_hop_s if inside else links.hop_s
        terms["layers.hops"] += transfer.messages * hop_s
        return
    if transfer.what == "norm":
        terms["norms"] += _norm(transfer, strategy, links)
        return
    _gradients(terms, transfer, strategy, links)


def _norm(transfer: Transfer, strategy: Strategy, links: Links) -> float:
    """For few bytes, MPI sends to partners at distances 1, 2, 4, ..."""
    size = transfer.elements * transfer.width
    if links.library == "mpi":
        hops = math.ceil(math.log2(transfer.size))
        return hops * MESSAGE_S + transfer.received * transfer.width / links.inner()
    fabric, group = Fabric(links.cluster), Group(transfer.size, strategy.gpus // transfer.size)
    collective = fabric.all_gather if transfer.pattern == "all-gather" else fabric.all_reduce
    return collective(size, group)


def _gradients(
    terms: dict[str, float], transfer: Transfer, strategy: Strategy, links: Links
) -> None:
    """Seconds by a ring, one leader per node, or segments that share the node's adapters."""
    cluster = links.cluster
    per_node = min(cluster.node.gpus, strategy.gpus)
    size, nodes = transfer.elements * transfer.width, cluster.nodes(strategy.gpus)
    passes = 1 if transfer.pattern != "all-reduce" else 2
    terms["gradients.calls"] += cluster.efficiency.collective_s
    if nodes == 1:
        terms["gradients.inside"] += transfer.received * transfer.width / links.inner(per_node)
        terms["gradients.hops"] += transfer.messages * links.inner_hop_s
        return
    between, flows = transfer.size, 1.0
    if strategy.exchange == "leader":
        # A reduction inside the node and a broadcast, before and after.
        terms["gradients.inside"] += passes * size / links.inner(per_node)
        between = nodes
    elif strategy.splits_weights:
        flows = min(strategy.split, per_node)
    rate = min(links.outer / flows, links.flow)
    terms["gradients"] += passes * (between - 1) / between * size / rate
    hops = math.ceil(math.log2(nodes)) if strategy.exchange == "tree" else between - 1
    terms["gradients.hops"] += passes * hops * links.hop_s
