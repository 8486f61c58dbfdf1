"""Orders over a graph: topological with transfers as one node, and rows shared over time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import GraphError
from paceline.jit import compiled

#: Above this number of ops a compiled loop is worth the import of numba. WARM holds once numba is
#: imported.
COMPILE_ABOVE_OPS, COMPILE_ABOVE_OPS_WARM = 50_000, 4_000


def topological(
    n_ops: int,
    edges: npt.NDArray[np.int64],
    group: npt.NDArray[np.int64],
    name: Callable[[int], str],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Order the ops so that dependencies come first and the members of a group stand together.

    Args:
        n_ops: number of ops.
        edges: [edge, 2] (before, after).
        group: [op] group, -1 = none.
        name: an op in words, for the error.

    Returns:
        order [op], and node_ptr [node + 1]: where each node (op or group) starts in it.

    Raises:
        GraphError: there is a cycle.
    """
    node, n_nodes = _nodes(n_ops, group)
    before, after = node[edges[:, 0]], node[edges[:, 1]]
    out = after[np.argsort(before, kind="stable")]
    out_ptr = np.append(0, np.cumsum(np.bincount(before, minlength=n_nodes)))
    indegree = np.bincount(after, minlength=n_nodes)
    queue = np.empty(n_nodes, dtype=np.int64)
    done, queue = _run(_kahn, n_ops, queue, indegree, out_ptr, out)
    if done < n_nodes:
        raise GraphError(_cycle_message(edges, node, set(queue[:done].tolist()), name))
    position = np.empty(n_nodes, dtype=np.int64)
    position[queue] = np.arange(n_nodes)
    order = np.argsort(position[node], kind="stable")
    sizes = np.bincount(position[node], minlength=n_nodes)
    return order, np.append(0, np.cumsum(sizes))


def slots(
    order: npt.NDArray[np.int64],
    node_ptr: npt.NDArray[np.int64],
    dep_ptr: npt.NDArray[np.int64],
    dep: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], int]:
    """[op] the row that holds its end until its last dependent has read it, and number of rows."""
    n_ops = len(order)
    slot = np.empty(n_ops, dtype=np.int64)
    readers = np.bincount(dep, minlength=n_ops)
    free = np.empty(n_ops, dtype=np.int64)
    n_rows, slot = _run(_share_rows, n_ops, slot, readers, free, order, node_ptr, dep_ptr, dep)
    return slot, n_rows


def _nodes(n_ops: int, group: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """[op] its node (the op itself, or its group), and the number of nodes."""
    grouped = group >= 0
    n_groups = int(group.max(initial=-1)) + 1
    node = np.where(grouped, group, 0)
    node[~grouped] = n_groups + np.arange(n_ops - int(grouped.sum()))
    return node, n_groups + n_ops - int(grouped.sum())


def _run(
    loop: Callable[..., int], n_ops: int, out: npt.NDArray[np.int64], *arrays: npt.NDArray[Any]
) -> tuple[int, npt.NDArray[np.int64]]:
    """Run a loop that fills ``out``: compiled if it is long, else over lists (fast to index)."""
    least = COMPILE_ABOVE_OPS_WARM if "numba" in sys.modules else COMPILE_ABOVE_OPS
    if n_ops > least:
        return int(compiled(loop)(out, *arrays)), out
    filled = out.tolist()
    result = loop(filled, *(array.tolist() for array in arrays))
    return result, np.array(filled, dtype=np.int64)


def _kahn(queue: Any, indegree: Any, out_ptr: Any, out: Any) -> int:
    """Kahn's algorithm; fills ``queue`` with nodes in topological order, returns their number."""
    tail = 0
    for node in range(len(indegree)):
        if indegree[node] == 0:
            queue[tail] = node
            tail += 1
    head = 0
    while head < tail:
        node = queue[head]
        head += 1
        for edge in range(out_ptr[node], out_ptr[node + 1]):
            follower = out[edge]
            indegree[follower] -= 1
            if indegree[follower] == 0:
                queue[tail] = follower
                tail += 1
    return tail


def _share_rows(
    slot: Any, readers: Any, free: Any, order: Any, node_ptr: Any, dep_ptr: Any, dep: Any
) -> int:
    """Assign rows in topological order; a row is free again when all its readers are done."""
    n_rows = 0
    n_free = 0
    for node in range(len(node_ptr) - 1):
        for place in range(node_ptr[node], node_ptr[node + 1]):
            if n_free > 0:
                n_free -= 1
                slot[order[place]] = free[n_free]
            else:
                slot[order[place]] = n_rows
                n_rows += 1
        # Only after the whole node: its members read their dependencies after all rows are chosen.
        for place in range(node_ptr[node], node_ptr[node + 1]):
            op = order[place]
            for edge in range(dep_ptr[op], dep_ptr[op + 1]):
                readers[dep[edge]] -= 1
                if readers[dep[edge]] == 0:
                    free[n_free] = slot[dep[edge]]
                    n_free += 1
            if readers[op] == 0:
                free[n_free] = slot[op]
                n_free += 1
    return n_rows


def _cycle_message(
    edges: npt.NDArray[np.int64],
    node: npt.NDArray[np.int64],
    done: set[int],
    name: Callable[[int], str],
) -> str:
    """Walk backwards from an unfinished op until an op comes again: that is the cycle."""
    waits: dict[int, tuple[int, int]] = {}
    for before, after in edges.tolist():
        if node[before] not in done and node[after] not in done:
            waits.setdefault(int(node[after]), (before, after))
    current = next(iter(waits))
    seen: list[int] = []
    while current not in seen:
        seen.append(current)
        current = int(node[waits[current][0]])
    ops = [waits[n] for n in seen[seen.index(current) :]]
    shown = "; ".join(f"{name(after)} waits for {name(before)}" for before, after in ops[:8])
    more = f"; and {len(ops) - 8} more" if len(ops) > 8 else ""
    return (
        f"the operations wait for each other in a circle: {shown}{more}. The order of ops on some "
        "stage contradicts its neighbours': is the trace complete and its clock sane?"
    )
