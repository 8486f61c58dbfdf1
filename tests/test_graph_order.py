"""Topological order and shared rows: the compiled path gives what the plain one gives."""

import numpy as np
import pytest

import paceline.graph.order as order_module
from jobs import make_rows, random_spec, trace_of
from paceline.errors import GraphError
from paceline.graph import from_trace
from paceline.graph.order import slots, topological


def no_name(op):
    return f"op {op}"


def test_a_diamond_in_order():
    edges = np.array([[0, 1], [0, 2], [1, 3], [2, 3]])
    order, node_ptr = topological(4, edges, np.full(4, -1), no_name)
    assert order[0] == 0
    assert order[3] == 3
    assert node_ptr.tolist() == [0, 1, 2, 3, 4]


def test_members_of_a_group_stand_together():
    # 0 -> 1, 2 -> 3; 1 and 3 form a transfer.
    edges = np.array([[0, 1], [2, 3]])
    order, node_ptr = topological(4, edges, np.array([-1, 0, -1, 0]), no_name)
    assert sorted(order[2:].tolist()) == [1, 3]
    assert node_ptr.tolist() == [0, 1, 2, 4]


def test_a_cycle_through_a_group_is_named():
    # 1 waits for 0 and 2 for 1's partner 3, but 3 waits for 2.
    edges = np.array([[1, 2], [2, 3]])
    with pytest.raises(GraphError, match=r"op 2 waits for op 1|op 3 waits for op 2"):
        topological(4, edges, np.array([-1, 0, -1, 0]), no_name)


@pytest.mark.parametrize("seed", range(12))
def test_compiled_orders_equal_plain_ones(seed, monkeypatch):
    spec = random_spec(seed)
    trace = trace_of(make_rows(spec), spec.job)
    plain = from_trace(trace).graph
    plain_slot, plain_rows = plain.slots
    monkeypatch.setattr(order_module, "COMPILE_ABOVE_OPS", 0)
    fast = from_trace(trace).graph
    np.testing.assert_array_equal(fast.order, plain.order)
    np.testing.assert_array_equal(fast.node_ptr, plain.node_ptr)
    fast_slot, fast_rows = fast.slots
    np.testing.assert_array_equal(fast_slot, plain_slot)
    assert fast_rows == plain_rows


@pytest.mark.parametrize("seed", range(12))
def test_no_row_is_handed_out_while_it_is_needed(seed):
    spec = random_spec(seed)
    graph = from_trace(trace_of(make_rows(spec), spec.job)).graph
    slot, n_rows = slots(graph.order, graph.node_ptr, graph.dep_ptr, graph.dep)
    holder = [-1] * n_rows
    for low, high in zip(graph.node_ptr[:-1], graph.node_ptr[1:], strict=True):
        members = graph.order[low:high]
        for op in members:  # what it reads is still there when its launch is written
            before = graph.dep[graph.dep_ptr[op] : graph.dep_ptr[op + 1]]
            assert [holder[slot[d]] for d in before] == before.tolist()
            holder[slot[op]] = op
        assert [holder[slot[op]] for op in members] == members.tolist()


def chain_of(n, per_node=1):
    """Ops one after another, ``per_node`` of them in each node, which wait for the node before."""
    node_ptr = np.arange(0, n + 1, per_node)
    deps = [list(range(op // per_node * per_node - per_node, op // per_node * per_node))
            if op >= per_node else [] for op in range(n)]  # fmt: skip
    dep_ptr = np.append(0, np.cumsum([len(before) for before in deps]))
    dep = np.array([op for before in deps for op in before], dtype=np.int64)
    return np.arange(n), node_ptr, dep_ptr, dep


@pytest.mark.parametrize(("per_node", "rows"), [(1, 2), (3, 6)])
def test_rows_are_handed_back(per_node, rows):
    """Of a long chain those of two nodes: the one that runs, and the one that it reads."""
    slot, n_rows = slots(*chain_of(120, per_node))
    assert n_rows == rows
    assert set(slot.tolist()) == set(range(rows))


def test_an_op_that_nothing_reads_keeps_no_row():
    """One op that all others follow, which nothing follows."""
    dep_ptr = np.append([0, 0], np.arange(1, 50))
    slot, n_rows = slots(np.arange(50), np.arange(51), dep_ptr, np.zeros(49, dtype=np.int64))
    assert n_rows == 2
    assert (slot[1:] == 1).all()
