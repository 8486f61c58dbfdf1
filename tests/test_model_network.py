"""Seconds of collectives, on a cluster whose numbers can be followed by hand."""

from dataclasses import replace

import pytest

from paceline.errors import ModelError
from paceline.model.cluster import Cluster, Gpu, Network, Node
from paceline.model.efficiency import Efficiency
from paceline.model.nccl import AllReduceTable, Curve
from paceline.model.network import Fabric, Group, places_visited

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


def test_a_token_crosses_the_network_once_for_each_node():
    """Two nodes of 8: of two random ranks, a token visits 16 (1 - (15/16)^2) on average."""
    visited = 16 * (1 - (15 / 16) ** 2)
    assert places_visited(16, 2) == pytest.approx(visited)
    size = GB * visited  # a GB of tokens, one copy a rank
    # The other node has one of the two experts with chance 3/4; 8 ranks share 80 GB/s.
    assert fabric().dispatch(size, Group(16, 1), 2) == pytest.approx(0.75 * 8 / 80)
    # As long as all tokens stay in a node, nothing is saved.
    assert fabric().dispatch(size, Group(8, 1), 2) == fabric().all_to_all(size, Group(8, 1))
    assert fabric().dispatch(0.0, Group(16, 1), 2) == 0.0
    # The copies for the other ranks of a node go over its links: 7/8 of them at 1 GB/s.
    cluster = fabric().cluster
    slow = replace(cluster, node=replace(cluster.node, bandwidth=GB))
    assert Fabric(slow).dispatch(size, Group(16, 1), 2) == pytest.approx(visited * 7 / 8)


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


# Latencies: 1 s a hop inside, 1 s a hop between; bytes that take no time beside them.

TINY = 1e-9


def hops(kind, group, algorithm=None):
    call = getattr(fabric(latency_s=1.0), kind)
    return call(TINY, group) if algorithm is None else call(TINY, group, algorithm)


@pytest.mark.parametrize(
    ("group", "ring", "hierarchical"),
    [
        (Group(8, 1), 7, 7),  # inside: n - 1 steps
        # two nodes: 14 steps inside and 2 between; or 7 inside, then 1 between
        (Group(16, 1), 16, 7 + 1),
        (Group(4, 8), 4, 3),  # one rank a node
        (Group(24, 1), 24, 7 + 2),
    ],
)
def test_hops_of_a_pass(group, ring, hierarchical):
    assert hops("reduce_scatter", group, "ring") == pytest.approx(ring)
    assert hops("all_gather", group, "ring") == pytest.approx(ring)
    assert hops("all_reduce", group, "ring") == pytest.approx(2 * ring)
    assert hops("reduce_scatter", group, "hierarchical") == pytest.approx(hierarchical)
    assert hops("all_reduce", group, "hierarchical") == pytest.approx(2 * hierarchical)


@pytest.mark.parametrize(
    ("group", "depth"),
    [(Group(8, 1), 7), (Group(16, 1), 7 + 1), (Group(4, 8), 2), (Group(5, 8), 3)],
)
def test_a_tree_has_chains_inside_and_levels_between(group, depth):
    assert hops("all_reduce", group, "tree") == pytest.approx(2 * depth)
    assert hops("broadcast", group) == pytest.approx(depth)


def test_messages_and_all_to_alls_take_one_hop():
    assert hops("all_to_all", Group(8, 1)) == hops("all_to_all", Group(16, 1)) == pytest.approx(1)
    slow = fabric(latency_s=1.0)
    assert slow.p2p(TINY, stride=7) == slow.p2p(TINY, stride=8) == pytest.approx(1)
    assert slow.p2p(0, stride=8) == 0


def test_each_collective_has_a_fixed_time():
    made = fabric()
    efficiency = replace(made.cluster.efficiency, collective_s=0.5)
    fixed = Fabric(replace(made.cluster, efficiency=efficiency))
    for kind in KINDS:
        for group in (Group(8, 1), Group(16, 1)):
            assert getattr(fixed, kind)(TINY, group) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("algorithm", "group", "seconds"),
    [
        ("ring", Group(16, 1), 2 * 15 / 16 / 80),
        ("tree", Group(16, 1), 2 / 80),
        # 7/8 inside at 100 GB/s, then 1/2 of all between at 80
        ("hierarchical", Group(16, 1), 2 * (7 / 8 / 100 + 1 / 2 / 80)),
        ("tree", Group(8, 1), 2 / 100),
        ("hierarchical", Group(8, 1), 2 * 7 / 8 / 100),
    ],
)
def test_bytes_of_each_algorithm(algorithm, group, seconds):
    assert fabric().all_reduce(GB, group, algorithm) == pytest.approx(seconds)


def test_a_broadcast_goes_along_the_slowest_link():
    assert fabric().broadcast(GB, Group(8, 1)) == pytest.approx(1 / 100)
    assert fabric().broadcast(GB, Group(16, 1)) == pytest.approx(1 / 80)


def test_an_all_to_all_may_be_bound_by_the_links_inside():
    """Eight adapters of 100 GB/s: inside, 7 of 16 parts at 100 GB/s; between, 8 x 8 at 800."""
    cluster = fabric().cluster
    wide = replace(cluster, network=replace(cluster.network, nic_bandwidth=200 * GB))
    assert Fabric(wide).all_to_all(GB, Group(16, 1)) == pytest.approx(7 / 16 / 100)


def test_groups_of_some_gpus_of_a_node_share_the_bus():
    """pcie: groups of 2 ranks are four in a node of 8; a group of all 8 has the bus alone."""
    assert fabric(topology="pcie").all_reduce(GB, Group(2, 1)) == pytest.approx(4 / 100)
    assert fabric(topology="pcie").all_reduce(GB, Group(8, 1)) == pytest.approx(2 * 7 / 8 / 100)


def test_a_mesh_of_one_member_a_node_keeps_its_adapters():
    assert fabric(topology="mesh").all_reduce(GB, Group(4, 8)) == pytest.approx(2 * 3 / 4 / 10)
    assert fabric(topology="mesh").p2p(GB, stride=1) == pytest.approx(7 / 100)


@pytest.mark.parametrize(
    ("group", "factor"), [(Group(8, 4), 2), (Group(4, 8), 1), (Group(16, 1), 1), (Group(2, 1), 1)]
)
def test_some_but_not_all_gpus_of_a_node_reach_a_part_of_the_network(group, factor):
    made = fabric()
    halved = replace(made.cluster.efficiency, partial=0.5)
    slow = Fabric(replace(made.cluster, efficiency=halved)).all_reduce(GB, group, "ring")
    assert slow == pytest.approx(factor * made.all_reduce(GB, group, "ring"))


def test_links_reach_a_share_of_their_bandwidth():
    cluster = fabric().cluster
    efficiency = replace(cluster.efficiency, intra=0.5, inter=0.25)
    made = Fabric(replace(cluster, efficiency=efficiency))
    assert made.all_reduce(GB, Group(8, 1)) == pytest.approx(2 * 7 / 8 / 50)
    assert made.p2p(GB, stride=1) == pytest.approx(1 / 50)
    assert made.p2p(GB, stride=8, senders_per_node=1) == pytest.approx(1 / 2.5)
    assert made.p2p(GB, stride=8) == pytest.approx(1 / 2.5)
    assert made.p2p(GB, stride=8, senders_per_node=16) == pytest.approx(16 / 20)


def test_a_table_counts_only_where_no_algorithm_is_asked_for():
    table = AllReduceTable({8: Curve((0.0, 25.0), (-10.0, -5.0))})
    assert fabric(table).all_reduce(1e6, Group(8, 1), "ring") == pytest.approx(
        fabric().all_reduce(1e6, Group(8, 1), "ring")
    )
    assert fabric(table).all_reduce(0, Group(8, 1)) == 0
    assert fabric(table).all_reduce(1e6, Group(1, 1)) == 0
