"""A predicted step by the formulas of the ParaDL paper: ``--method paradl``.

FW, BW and WU of the layers are Paceline's seconds on one GPU; alpha and beta belong to the machine.
"""

from __future__ import annotations

import math
from dataclasses import replace

from paceline.errors import PlanError
from paceline.networks.compute import update_seconds
from paceline.networks.demand import demand_of
from paceline.networks.layer import LayerNetwork
from paceline.networks.paradl import PaperLayer, PaperMachine, project
from paceline.networks.regions import backward_halo, forward_halo
from paceline.networks.strategy import Strategy
from paceline.networks.terms import Machine
from paceline.plan.network_step import NetworkPrediction

#: The all-reduces of two segments share an adapter (ParaDL, 5.2).
_PHI = 2.0


def paradl_prediction(prediction: NetworkPrediction) -> NetworkPrediction:
    """``prediction`` with the paper's step and memory in place of Paceline's.

    Raises:
        ModelError, PlanError: Table 3 has no row for the strategy, or it cannot run.
    """
    network, strategy, cluster = prediction.network, prediction.strategy, prediction.cluster
    if prediction.limits:
        raise PlanError("; ".join(prediction.limits))
    machine = Machine(cluster)
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
        products = demand_of(network, strategy.precision).products
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

    Norms, activations and pools count for the product before them in time, but not in |x| and |y|.
    """
    demand, gpu = demand_of(network, strategy.precision), machine.cluster.gpu
    forward, backward = machine.layer_seconds(network, 1, strategy)
    update = update_seconds(demand, gpu, strategy.optimizer, constants=machine.constants)
    update_s = update * demand.weights / max(1.0, demand.parameters)
    products = [int(i) for i in demand.products.nonzero()[0]]
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
                x=float(network.in_elements(i)),
                y=float(layer.out_elements),
                w=float(weights),
                bias=float(layer.parameter_count - weights),
                filters=layer.filters,
                channels=inside[0],
                extents=inside[1:],
                forward_s=float(forward[own].sum()),
                backward_s=float(backward[own].sum()),
                update_s=float(update_s[own].sum()),
                halo_x=halos[0],
                halo_dy=halos[1],
            )
        )
    return layers
