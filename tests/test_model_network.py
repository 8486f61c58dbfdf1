"""Seconds of collectives, on a cluster whose numbers can be followed by hand."""

import pytest

from paceline.errors import ModelError
from paceline.model.cluster import Cluster, Gpu, Network, Node
from paceline.model.efficiency import Efficiency
from paceline.model.nccl import AllReduceTable, Curve
from paceline.model.network import Fabric, Group

GB = 1e9
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")


def fabric(table=None, latency_s=0.0, topology="switch", oversubscription=1.0, inter=1.0):
    """Nodes of 8 GPUs: 100 GB/s a GPU inside, 8 x 10 GB/s between."""
    gpu = Gpu(name="g", peak_flops={"bf16": 1e12}, memory_bytes=1e9, memory_bandwidth=1e9, sms=1)
    cluster = Cluster(
        name="c",
        gpu=gpu,
        node=Node(gpus=8, bandwidth=100 * GB, latency_s=latency_s, topology=topology),
        network=Network(
            nics=8,
            nic_bandwidth=10 * GB,
            latency_s=latency_s,
            oversubscription=oversubscription,
        ),
        efficiency=Efficiency(collective_s=0.0, intra=1.0, inter=inter),
    )
    return Fabric(cluster, table)


@pytest.mark.parametrize(
    ("group", "per_node", "nodes", "sharing"),
    [
        (Group(8, 1), 8, 1, 1),  # tensor parallel in a node
        (Group(16, 1), 8, 2, 1),
        (Group(4, 8), 1, 4, 8),  # data parallel over nodes, one for each tensor rank
        (Group(8, 4), 2, 4, 4),
        (Group(3, 16), 1, 3, 8),
    ],
)
def test_where_a_group_lies(group, per_node, nodes, sharing):
    assert (group.per_node(8), group.nodes(8), group.sharing(8)) == (per_node, nodes, sharing)


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_or_no_bytes_take_no_time(kind):
    assert getattr(fabric(latency_s=1e-6), kind)(1 * GB, Group(1, 1)) == 0
    assert getattr(fabric(latency_s=1e-6), kind)(0, Group(8, 1)) == 0


def test_a_ring_is_equation_1_of_vtrain():
    # 2 (n - 1) / n * S / B, with the whole node's 80 GB/s for a group of 16 full-node ranks.
    ring = fabric().all_reduce(1 * GB, Group(16, 1), "ring")
    assert ring == pytest.approx(2 * 15 / 16 * 1 / 80)
    assert fabric().all_reduce(1 * GB, Group(8, 1)) == pytest.approx(2 * 7 / 8 * 1 / 100)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    made, group = fabric(latency_s=1e-6), Group(16, 1)
    parts = made.reduce_scatter(GB, group, "ring") + made.all_gather(GB, group, "ring")
    assert made.all_reduce(GB, group, "ring") == pytest.approx(parts)


def test_groups_that_share_adapters_share_their_bandwidth():
    # Eight groups of one rank a node: each has an eighth of 80 GB/s.
    assert fabric().all_reduce(GB, Group(4, 8)) == pytest.approx(2 * 3 / 4 / 10)
    assert fabric(oversubscription=2.0).all_reduce(GB, Group(4, 8)) == pytest.approx(2 * 3 / 4 / 5)
    assert fabric(inter=0.5).all_reduce(GB, Group(4, 8)) == pytest.approx(2 * 3 / 4 / 5)


def test_auto_is_the_fastest_and_small_messages_on_many_nodes_take_a_tree():
    made, group = fabric(latency_s=1e-5), Group(64, 8)
    times = {a: made.all_reduce(1e3, group, a) for a in ("ring", "tree", "hierarchical")}
    assert times["tree"] < times["ring"]
    assert made.all_reduce(1e3, group) == min(times.values())


def test_all_to_all_is_bound_by_the_adapters():
    # Each of 16 ranks sends half of its GB to the other node; 8 of them share 80 GB/s.
    assert fabric().all_to_all(GB, Group(16, 1)) == pytest.approx(0.5 * 8 / 80)
    assert fabric().all_to_all(GB, Group(8, 1)) == pytest.approx(7 / 8 / 100)


def test_a_message_uses_one_adapter_or_its_share():
    assert fabric().p2p(GB, stride=1) == pytest.approx(1 / 100)
    assert fabric().p2p(GB, stride=8, senders_per_node=1) == pytest.approx(1 / 10)
    assert fabric().p2p(GB, stride=8, senders_per_node=16) == pytest.approx(1 / 5)


def test_a_mesh_has_a_link_to_each_neighbour():
    assert fabric(topology="mesh").all_reduce(GB, Group(8, 1)) == pytest.approx(2 * 7 / 8 / 100)
    # Two GPUs use one of seven links.
    assert fabric(topology="mesh").all_reduce(GB, Group(2, 1)) == pytest.approx(7 / 100)


def test_a_measured_table_replaces_the_model_inside_a_node():
    table = AllReduceTable({8: Curve((0.0, 25.0), (-10.0, -5.0))})
    made = fabric(table)
    assert made.all_reduce(1e6, Group(8, 1)) == table.interpolate(1e6, 8)[0]
    assert not made.extrapolated
    assert made.all_reduce(1e6, Group(16, 1)) == fabric().all_reduce(1e6, Group(16, 1))
    made.all_reduce(1e12, Group(8, 1))
    assert made.extrapolated


def test_an_unknown_algorithm_names_the_known():
    with pytest.raises(ModelError, match=r"'rng'.*auto, ring, tree, hierarchical"):
        fabric().all_reduce(GB, Group(8, 1), "rng")
