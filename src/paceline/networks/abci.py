"""The cluster and the framework of the ParaDL paper's runs.

The nodes have four V100, fully linked, and two adapters. The framework is Chainer, which is written
in Python.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.model.cluster import Cluster, Network, Node
from paceline.model.cluster_presets import cluster_preset
from paceline.networks.compute import ComputeConstants

_LINK_S, _NET_S = 3.4e-6, 14e-6  # as in ``cluster_presets``: NCCL's tuning.cc
#: Seconds of a function call in Chainer. (In PyTorch, with functions in C++, a kernel takes 5 to 10
#: us: "Accelerating PyTorch with CUDA graphs", 2021.)
CALL_S = 20e-6


def chainer_constants(cluster: Cluster) -> ComputeConstants:
    """Chainer on the cluster: the product rate of ``model.efficiency``, and a slower host.

    The constants are not fitted: they were committed before the first run was evaluated.
    """
    efficiency = cluster.efficiency
    return ComputeConstants(
        product_share=efficiency.gemm, memory_share=efficiency.memory, kernel_s=CALL_S
    )


def abci() -> Cluster:
    """ABCI 1.0 (2018).

    Each pair of the four GPUs has two NVLink2 of 25 GB/s per direction, 150 GB/s per GPU. The
    paper's "NVLink 20 GB/s" is the older speed of one link.
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
