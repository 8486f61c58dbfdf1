"""Seconds of a collective: latency and bandwidth over the node's links and the network's.

Ranks follow Megatron-LM's order: tensor parallel innermost, then context, data, pipeline outermost.
A node holds consecutive ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from paceline.errors import ModelError
from paceline.model.cluster import Cluster

if TYPE_CHECKING:
    from paceline.model.nccl import AllReduceTable

_Options = Mapping[str, Callable[[], float]]


class Group(NamedTuple):
    """Ranks of one collective.

    Attributes:
        size: number of ranks.
        stride: distance between neighbours in the order of global ranks.
    """

    size: int
    stride: int

    def per_node(self, node_gpus: int) -> int:
        """Members on one node. A group that fits into one node is placed on one."""
        return min(self.size, max(1, node_gpus // self.stride))

    def nodes(self, node_gpus: int) -> int:
        """Nodes spanned."""
        return -(-self.size // self.per_node(node_gpus))

    def sharing(self, node_gpus: int) -> float:
        """Groups that use one node's network adapters at the same time (contention factor)."""
        return max(1.0, node_gpus / self.per_node(node_gpus))


def places_visited(places: int, visits: int) -> float:
    """Expected number of distinct places that independent ``visits`` reach."""
    return places * (1 - (1 - 1 / places) ** visits)


class _Path(NamedTuple):
    """Path of a group's traffic: byte/s and seconds per hop, inside a node and between nodes."""

    per_node: int
    nodes: int
    inner: float
    inner_s: float
    outer: float
    outer_s: float


class Fabric:
    """The collectives of a cluster.

    Args:
        cluster: nodes, network and the shares of their bandwidths that NCCL reaches.
        table: measured all-reduce times inside a node; None = the model.
    """

    def __init__(self, cluster: Cluster, table: AllReduceTable | None = None) -> None:
        self.cluster, self.table = cluster, table
        self.extrapolated = False  # whether a call exceeded the table
        self._paths: dict[Group, _Path] = {}

    def _path(self, group: Group) -> _Path:
        if group not in self._paths:
            self._paths[group] = self._find_path(group)
        return self._paths[group]

    def _find_path(self, group: Group) -> _Path:
        node, network = self.cluster.node, self.cluster.network
        efficiency = self.cluster.efficiency
        per_node, nodes = group.per_node(node.gpus), group.nodes(node.gpus)
        inner = node.bandwidth * efficiency.intra
        if node.topology == "mesh" and node.gpus > 1:
            inner *= (per_node - 1) / (node.gpus - 1) if per_node > 1 else 1.0
        elif node.topology == "pcie":
            inner /= group.sharing(node.gpus)
        outer = network.node_bandwidth * efficiency.inter / group.sharing(node.gpus)
        if 1 < per_node < node.gpus:
            outer *= efficiency.partial
        return _Path(per_node, nodes, inner, node.latency_s, outer, network.latency_s)

    def all_reduce(self, size: float, group: Group, algorithm: str = "auto") -> float:
        """Seconds of an all-reduce of ``size`` bytes on each rank."""
        n = group.size
        if n == 1 or size == 0:
            return 0.0
        path = self._path(group)
        if path.nodes == 1 and self.table is not None and algorithm == "auto":
            seconds, inside = self.table.interpolate(size, n)
            self.extrapolated |= not inside
            return seconds
        options: _Options = {
            "ring": lambda: self._ring(size, group, path, passes=2),
            "tree": lambda: self._tree(size, group, path),
            "hierarchical": lambda: self._hierarchical(size, path, passes=2),
        }
        return _seconds_by(options, algorithm) + self.cluster.efficiency.collective_s

    def reduce_scatter(self, size: float, group: Group, algorithm: str = "auto") -> float:
        """Seconds of a reduce-scatter of ``size`` bytes on each rank."""
        if group.size == 1 or size == 0:
            return 0.0
        path = self._path(group)
        options: _Options = {
            "ring": lambda: self._ring(size, group, path, passes=1),
            "hierarchical": lambda: self._hierarchical(size, path, passes=1),
        }
        return _seconds_by(options, algorithm) + self.cluster.efficiency.collective_s

    def all_gather(self, size: float, group: Group, algorithm: str = "auto") -> float:
        """Seconds of an all-gather to ``size`` bytes on each rank."""
        return self.reduce_scatter(size, group, algorithm)

    def all_to_all(self, size: float, group: Group) -> float:
        """Seconds of an all-to-all of ``size`` bytes per rank in equal shares (one to itself)."""
        n = group.size
        if n == 1 or size == 0:
            return 0.0
        path = self._path(group)
        within = size * (path.per_node - 1) / n / path.inner
        fixed = self.cluster.efficiency.collective_s
        if path.nodes == 1:
            return within + path.inner_s + fixed
        # All members of a node send at once through its adapters.
        across = size * (n - path.per_node) / n * path.per_node / path.outer
        return max(within, across) + path.outer_s + fixed

    def dispatch(self, size: float, group: Group, visits: int) -> float:
        """Seconds to bring tokens to the ranks of their experts, or to collect the results.

        The network carries a token once to each node. Its links pass it on to the ranks that
        want it (DeepSeek-AI 2024, "DeepSeek-V3 technical report", 3.2.2; HybridEP does the same).

        Args:
            size: bytes that each rank sends: one copy of a token for each rank that it visits.
            group: the expert-parallel ranks.
            visits: experts that each token visits.
        """
        path = self._path(group)
        if path.nodes == 1 or size == 0:
            return self.all_to_all(size, group)
        copies = size / places_visited(group.size, visits)
        remote = places_visited(path.nodes, visits) * (path.nodes - 1) / path.nodes
        within = size * (path.per_node - 1) / path.per_node / path.inner
        across = copies * remote * path.per_node / path.outer
        return max(within, across) + path.outer_s + self.cluster.efficiency.collective_s

    def broadcast(self, size: float, group: Group) -> float:
        """Seconds of a broadcast of ``size`` bytes (pipelined along a chain)."""
        n = group.size
        if n == 1 or size == 0:
            return 0.0
        path = self._path(group)
        slowest = path.inner if path.nodes == 1 else min(path.inner, path.outer)
        return size / slowest + self._hops_s(path) + self.cluster.efficiency.collective_s

    def p2p(self, size: float, stride: int, senders_per_node: int | None = None) -> float:
        """Seconds to send ``size`` bytes to the rank at distance ``stride``.

        Args:
            size: bytes of one sender.
            stride: distance of the ranks; from a node's size on they lie on different nodes.
            senders_per_node: number of ranks of a node that send at the same time; None = all.
        """
        node, network = self.cluster.node, self.cluster.network
        efficiency = self.cluster.efficiency
        if size == 0:
            return 0.0
        if stride < node.gpus:
            links = node.gpus - 1 if node.topology == "mesh" and node.gpus > 1 else 1
            return size / (node.bandwidth / links * efficiency.intra) + node.latency_s
        senders = node.gpus if senders_per_node is None else senders_per_node
        share = network.node_bandwidth * efficiency.inter / senders
        # One rank uses one adapter, even if others are idle.
        share = min(share, network.nic_bandwidth * efficiency.inter)
        return size / share + network.latency_s

    # Algorithms (Thakur et al. 2005; "bus bandwidth" as in nccl-tests' PERFORMANCE.md).

    def _ring(self, size: float, group: Group, path: _Path, passes: int) -> float:
        """Passes (n - 1) / n S / B: Eq. 1 of vTrain for the two passes of an all-reduce."""
        n = group.size
        slowest = path.inner if path.nodes == 1 else min(path.inner, path.outer)
        # A ring over nodes enters each once; its other steps stay inside.
        hops = (n - path.nodes) * path.inner_s + (path.nodes > 1) * path.nodes * path.outer_s
        return passes * ((n - 1) / n * size / slowest + hops)

    def _tree(self, size: float, group: Group, path: _Path) -> float:
        """A double binary tree between nodes, up and down, with chains inside (NCCL 2.4)."""
        slowest = path.inner if path.nodes == 1 else min(path.inner, path.outer)
        return 2 * (size / slowest + self._hops_s(path))

    def _hierarchical(self, size: float, path: _Path, passes: int) -> float:
        """First inside the node, then each member's share between the nodes."""
        g, nodes = path.per_node, path.nodes
        seconds = passes * ((g - 1) / g * size / path.inner + (g - 1) * path.inner_s)
        if nodes > 1:
            across = (nodes - 1) / nodes * size / path.outer + (nodes - 1) * path.outer_s
            seconds += passes * across
        return seconds

    @staticmethod
    def _hops_s(path: _Path) -> float:
        inside = (path.per_node - 1) * path.inner_s
        return inside + math.ceil(math.log2(path.nodes)) * path.outer_s


def _seconds_by(options: _Options, algorithm: str) -> float:
    if algorithm == "auto":
        return min(option() for option in options.values())
    if algorithm not in options:
        raise ModelError(f"no algorithm {algorithm!r} here; choose auto, {', '.join(options)}")
    return options[algorithm]()
