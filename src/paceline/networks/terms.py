"""A step as a sum of terms, each in seconds of the datasheet's machine.

A calibration multiplies terms by factors (``factors``); without one every factor is 1, and the
constants below with the cluster's ``Efficiency`` decide. Sources of the constants:

* memory, gemm, collectives, hops: ``model.efficiency`` (nccl-tests, CUTLASS, NCCL's tuning.cc);
* ``HOST_S``: a function call of an eager framework, forward and backward (PyTorch, "Accelerating
  PyTorch with CUDA graphs", 2021: 5 to 10 us a kernel; Chainer's functions are Python throughout);
* ``STAGED``: byte/s of MPI that copies through host memory: PCIe 3.0 x16, 12 GB/s, out and in;
* ``MESSAGE_S``: of a small message by CUDA-aware MPI through the host (OSU micro-benchmarks: 20 to
  40 us with the copies);
* ``SKEW_S``: of synchronising more nodes; the wait for the slowest grows with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paceline.model.cluster import Cluster
from paceline.model.network import Fabric, Group
from paceline.networks.layer import LayerNetwork
from paceline.networks.regions import largest_share
from paceline.networks.strategy import Strategy
from paceline.networks.traffic import (
    ELEMENT_BYTES,
    Transfer,
    last_spatial,
    split_products,
    traffic,
)
from paceline.networks.work import Array, Mask, Work, padded, update_elements, work_of

HOST_S = 20e-6
STAGED = 6e9
MESSAGE_S = 30e-6
SKEW_S = 1e-3
TILE = 32  # filters that a kernel computes together

COMPUTE = ("products", "memory", "host", "update", "split", "tiles", "bubble")
COMMUNICATION = (
    *("gradients", "gradients.inside", "gradients.calls", "gradients.hops", "skew"),
    *("layers.inside", "layers.between", "layers.hops", "halo", "halo.messages", "stage", "norms"),
)
TERMS = (*COMPUTE, *COMMUNICATION)


@dataclass(frozen=True, slots=True)
class Machine:
    """What the terms divide by: seconds an element or an operation.

    Attributes:
        cluster: with its efficiencies.
        precision: of the products.
    """

    cluster: Cluster
    precision: str = "fp32"

    @property
    def flop_rate(self) -> float:
        """FLOP/s of large products."""
        return self.cluster.gpu.peak(self.precision) * self.cluster.efficiency.gemm

    @property
    def element_rate(self) -> float:
        """Elements a second of kernels that only move them."""
        gpu, efficiency = self.cluster.gpu, self.cluster.efficiency
        return gpu.memory_bandwidth * efficiency.memory / ELEMENT_BYTES


def step_terms(network: LayerNetwork, strategy: Strategy, machine: Machine) -> dict[str, float]:
    """Seconds of each term of a step; a pipeline's computation is not yet cut."""
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
    work, samples = work_of(network), strategy.busiest_samples
    share = _shares(network, strategy, work)
    by_flops = work.flops / machine.flop_rate
    by_bytes = work.product_elements / machine.element_rate
    products = np.maximum(by_flops, by_bytes).sum(axis=0) * samples
    # Filters and channels share out products alone: norms and activations see whole tensors.
    spatial = share if strategy.is_spatial else np.ones_like(share)
    terms["products"] = float((products * share).sum())
    terms["memory"] = float((work.moved_elements * spatial).sum()) * samples / machine.element_rate
    terms["host"] = float(work.kernels.sum()) * HOST_S
    held = work.parameters * (1.0 if strategy.is_spatial else share)
    if strategy.zero:
        held = held / strategy.replicas
    terms["update"] = update_elements(float(held.sum()), strategy.optimizer) / machine.element_rate
    if strategy.split == 1:
        return
    if strategy.is_spatial:
        terms["split"] = _copies(work, share < 1, share, samples, machine)
        terms["host"] += float(work.is_product[share < 1].sum()) * 2 * HOST_S
    elif strategy.splits_weights:
        indices = np.zeros(len(share), dtype=bool)
        indices[split_products(network, strategy)] = True
        terms["split"] = _copies(work, indices, np.ones_like(share), samples, machine)
        terms["tiles"] = float((products * share * _waste(network, strategy, indices)).sum())
        terms["host"] += float(indices.sum()) * 4 * HOST_S


def _copies(work: Work, chosen: Mask, share: Array, samples: float, machine: Machine) -> float:
    """Splitting and joining tensors: input and output once read and written in both passes."""
    elements = ((work.in_elements + work.out_elements) * share * work.is_product)[chosen].sum()
    return float(elements) * 4 * samples / machine.element_rate


def _shares(network: LayerNetwork, strategy: Strategy, work: Work) -> Array:
    """[layer] of its work that the busiest GPU has."""
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


def _waste(network: LayerNetwork, strategy: Strategy, chosen: Mask) -> Array:
    """[layer] of a product's time that fills tiles with nothing."""
    waste = np.zeros(len(chosen))
    for i in np.flatnonzero(chosen):
        count = _split_count(network, strategy, int(i)) / strategy.split
        waste[i] = padded(count, TILE) / count - 1
    return waste


def _communicate(
    terms: dict[str, float], transfer: Transfer, strategy: Strategy, machine: Machine
) -> None:
    fabric, cluster = Fabric(machine.cluster), machine.cluster
    size = transfer.received * ELEMENT_BYTES
    if transfer.what == "halo" or (transfer.what == "gather" and strategy.halo_library == "mpi"):
        rate = STAGED if strategy.halo_library == "mpi" else _inner(cluster)
        terms["halo"] += size / rate
        terms["halo.messages"] += transfer.messages * MESSAGE_S
        return
    if transfer.what in ("layer", "gather"):
        nodes = cluster.nodes(transfer.size)
        where = "layers.inside" if nodes == 1 else "layers.between"
        rate = _inner(cluster, transfer.size) if nodes == 1 else _outer(cluster)
        terms[where] += size / rate + cluster.efficiency.collective_s
        if nodes > 1:
            terms["layers.hops"] += transfer.messages * cluster.network.latency_s
        return
    if transfer.what == "norm":
        group = Group(transfer.size, strategy.gpus // transfer.size)
        terms["norms"] += fabric.all_reduce(transfer.elements * ELEMENT_BYTES, group)
        return
    _gradients(terms, transfer, strategy, cluster)


def _gradients(
    terms: dict[str, float], transfer: Transfer, strategy: Strategy, cluster: Cluster
) -> None:
    """Ring, one leader a node, or segments that share the node's adapters."""
    per_node = min(cluster.node.gpus, strategy.gpus)
    size, nodes = transfer.elements * ELEMENT_BYTES, cluster.nodes(strategy.gpus)
    passes = 1 if transfer.pattern != "all-reduce" else 2
    terms["gradients.calls"] += cluster.efficiency.collective_s
    if nodes == 1:
        terms["gradients.inside"] += transfer.received * ELEMENT_BYTES / _inner(cluster, per_node)
        return
    between, flows = transfer.size, 1.0
    if strategy.exchange == "leader":
        # A reduction inside the node and a broadcast, before and after.
        terms["gradients.inside"] += passes * size / _inner(cluster, per_node)
        between = nodes
    elif strategy.splits_weights:
        flows = min(strategy.split, per_node)
    terms["gradients"] += passes * (between - 1) / between * size * flows / _outer(cluster)
    hops = math.ceil(math.log2(nodes)) if strategy.exchange == "tree" else between - 1
    terms["gradients.hops"] += passes * hops * cluster.network.latency_s


def _inner(cluster: Cluster, size: int = 2) -> float:
    """byte/s between neighbours in a node; a mesh gives a group its share of the links."""
    node = cluster.node
    rate = node.bandwidth * cluster.efficiency.intra
    if node.topology == "mesh" and node.gpus > 1:
        rate *= (min(size, node.gpus) - 1) / (node.gpus - 1)
    return max(rate, node.bandwidth * cluster.efficiency.intra / max(1, node.gpus - 1))


def _outer(cluster: Cluster) -> float:
    return cluster.network.node_bandwidth * cluster.efficiency.inter
