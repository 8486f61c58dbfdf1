"""The cluster and the framework of the ParaDL paper's runs.

Nodes of four V100 with all their links and two adapters; Chainer, whose functions are Python.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.model.cluster import Cluster, Network, Node
from paceline.model.cluster_presets import cluster_preset
from paceline.networks.compute import ComputeConstants

_LINK_S, _NET_S = 3.4e-6, 14e-6  # as in ``cluster_presets``: NCCL's tuning.cc
#: A function's call in Chainer (PyTorch, "Accelerating PyTorch with CUDA graphs", 2021: 5 to 10 us
#: a kernel where functions are C++).
CALL_S = 20e-6


def chainer_constants(cluster: Cluster) -> ComputeConstants:
    """Chainer on the cluster: large products by ``model.efficiency``, and a slower host.

    Not fitted to runs: committed before the first of them was evaluated.
    """
    efficiency = cluster.efficiency
    return ComputeConstants(
        product_share=efficiency.gemm, memory_share=efficiency.memory, kernel_s=CALL_S
    )


def abci() -> Cluster:
    """ABCI 1.0 (2018).

    Two NVLink2 of 25 GB/s each way join each pair of the four GPUs: 150 GB/s a GPU. The paper's
    "NVLink 20 GB/s" is one link's older speed.
    """
    return replace(
        cluster_preset("v100-16g"),
        name="ABCI V100",
        node=Node(
            gpus=4,
            bandwidth=150e9,
            latency_s=_LINK_S,
            topology="mesh",
            source="ABCI compute node (V): 4 V100 SXM2, NVLink2 all to all",
        ),
        network=Network(
            nics=2,
            nic_bandwidth=12.5e9,
            latency_s=_NET_S,
            source="ABCI: 2 InfiniBand EDR a node, full bisection in a rack of 17 nodes",
        ),
    )
