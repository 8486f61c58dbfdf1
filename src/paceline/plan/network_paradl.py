"""A predicted step by the formulas of the ParaDL paper: ``--method paradl``.

FW, BW and WU of its layers are our own seconds on one GPU; alpha and beta are the machine's.
"""

from __future__ import annotations

import math
from dataclasses import replace

from paceline.errors import PlanError
from paceline.networks.layer import LayerNetwork
from paceline.networks.paradl import PaperLayer, PaperMachine, project
from paceline.networks.regions import backward_halo, forward_halo
from paceline.networks.strategy import Strategy
from paceline.networks.terms import Machine
from paceline.networks.work import update_elements, work_of
from paceline.plan.network_pipeline import layer_seconds
from paceline.plan.network_step import NetworkPrediction

#: Two segments' all-reduces share an adapter (ParaDL, 5.2).
_PHI = 2.0


def paradl_prediction(prediction: NetworkPrediction, precision: str = "fp32") -> NetworkPrediction:
    """``prediction`` with the paper's step and memory in place of our own.

    Raises:
        ModelError, PlanError: Table 3 has no row for the strategy, or it cannot run.
    """
    network, strategy, cluster = prediction.network, prediction.strategy, prediction.cluster
    if prediction.limits:
        raise PlanError("; ".join(prediction.limits))
    machine = Machine(cluster, precision)
    between = cluster.nodes(strategy.gpus) > 1
    inside = 1 < strategy.split <= cluster.node.gpus
    rate = cluster.network.node_bandwidth if between else cluster.node.bandwidth
    paper = PaperMachine(
        alpha=cluster.network.latency_s if between else cluster.node.latency_s,
        beta=1 / rate,
        phi=_PHI if strategy.name == "data+filter" else 1.0,
        split_alpha=cluster.node.latency_s if inside else None,
        split_beta=1 / cluster.node.bandwidth if inside else None,
    )
    stages: tuple[int, ...] = ()
    if prediction.stages is not None:
        products = work_of(network).is_product
        ends = [int(products[: end + 1].sum()) for end in prediction.stages.ends]
        stages = tuple(end - start for start, end in zip((0, *ends), ends, strict=False))
    layers = paper_layers(network, strategy, machine)
    row = project(layers, strategy, paper, strategy.global_batch, stages=stages, corrected=True)
    return replace(
        prediction,
        step_time_s=row.step_time_s,
        breakdown={"computation": row.computation_s, "communication": row.communication_s},
        memory={"Table 3, gamma 1": row.memory_bytes},
        notes=(f"ParaDL, Table 3: a bound; its last column allows {row.most_gpus:,} GPUs",),
    )


def paper_layers(network: LayerNetwork, strategy: Strategy, machine: Machine) -> list[PaperLayer]:
    """The network in the paper's letters: a layer for each product.

    Norms, activations and pools belong to the product before them, in time and not in |x| and |y|.
    """
    work = work_of(network)
    forward, backward = layer_seconds(network, 1, machine)
    update = update_elements(1.0, strategy.optimizer) / machine.element_rate
    products = [i for i in range(len(network.layers)) if work.is_product[i]]
    following = [*products[1:], len(network.layers)]
    layers: list[PaperLayer] = []
    for i, end in zip(products, following, strict=True):
        layer = network.layers[i]
        own = slice(i if layers else 0, end)
        inside = network.in_shapes(i)[0]
        halos = (0.0, 0.0)
        if strategy.is_spatial and layer.window is not None:
            sizes = (layer.window, inside[1:], layer.out_shape[1:])
            parts = strategy.parts(len(inside) - 1)
            halos = (
                inside[0] * float(forward_halo(*sizes, parts).most_received),
                layer.filters * float(backward_halo(*sizes, parts).most_received),
            )
        weights = math.prod(layer.parameters[0]) if layer.parameter_count else 0
        layers.append(
            PaperLayer(
                name=layer.name,
                x=float(work.in_elements[i]),
                y=float(work.out_elements[i]),
                w=float(weights),
                bias=float(work.parameters[i] - weights),
                filters=layer.filters,
                channels=inside[0],
                extents=inside[1:],
                forward_s=float(forward[own].sum()),
                backward_s=float(backward[own].sum()),
                update_s=float(work.parameters[own].sum()) * update,
                halo_x=halos[0],
                halo_dy=halos[1],
            )
        )
    return layers
