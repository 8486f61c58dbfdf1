"""Plans of sends that test every link of a ring or tree in a few passes.

From the Falcon paper (4.3, Figure 9): transfers of one pass share no rank, so that they do not
disturb each other. The number of passes is independent of the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors import DetectError

#: (source rank, destination rank): data flow in one direction.
Link = tuple[int, int]

#: Links tested at once; no rank has two of them.
Pass = tuple[Link, ...]


def ring_passes(ranks: Sequence[int], *, both_ways: bool = False) -> tuple[Pass, ...]:
    """Passes that cover each link of a ring once: 2 for an even number of ranks, 3 for an odd.

    A ring of one rank has no link, one of two has 0→1 and 1→0.

    Args:
        ranks: distinct numbers in the order of the ring.
        both_ways: also test the opposite direction, with twice the passes. (A ring collective, and
            the paper, use one direction.) The directions have separate passes, so that they do not
            compete for a host bus or a core, and a slow direction is distinguishable.

    Raises:
        DetectError: no rank, or one twice.
    """
    n = len(_check_ranks(ranks))
    links = [(ranks[i], ranks[(i + 1) % n]) for i in range(n)] if n > 1 else []
    n_paired = n - n % 2
    return _passes(
        [links[0:n_paired:2], links[1:n_paired:2], links[n_paired:]], both_ways=both_ways
    )


def tree_passes(ranks: Sequence[int], *, both_ways: bool = False) -> tuple[Pass, ...]:
    r"""At most 4 passes that cover each link of a binary tree once, from child to parent.

    In the paper's order. Left children at even levels send to their parents (the root is level 0),
    then right children at even levels. Then come left and right children at odd levels.

    The tree is NCCL's first binary tree (``ncclGetBtree``), whose every odd place is a leaf. Of 14:

        0---------------8
                 ______/ \______
                4               12
              /   \            /  \
            2       6       10     \
           / \     / \     /  \     \
          1   3   5   7   9   11    13

    NCCL builds it over nodes and chains the GPUs of a node: give one rank per node for its links.

    Args:
        ranks: distinct numbers, the root first, in the order of the numbers above.
        both_ways: also test parent to child (broadcast), with twice the passes.

    Raises:
        DetectError: no rank, or one twice.
    """
    n = len(_check_ranks(ranks))
    parent = [0, *(_parent(i, n) for i in range(1, n))]
    passes: list[list[Link]] = [[], [], [], []]
    for i in range(1, n):
        right = i > parent[i]
        passes[2 * (_level(i, parent) % 2) + right].append((ranks[i], ranks[parent[i]]))
    return _passes(passes, both_ways=both_ways)


def double_tree_passes(ranks: Sequence[int], *, both_ways: bool = False) -> tuple[Pass, ...]:
    """Passes of both of NCCL's trees, at most 8 one way; a link in both trees is tested once.

    The second tree is the first one with the ranks reversed (even number) or shifted by one (odd),
    so that leaves of one are inner ranks of the other.

    Raises:
        DetectError: no rank, or one twice.
    """
    second = [*ranks[1:], ranks[0]] if len(ranks) % 2 else [*ranks][::-1]
    trees = (*tree_passes(ranks), *tree_passes(second))
    return _passes(trees, both_ways=both_ways)


def _check_ranks(ranks: Sequence[int]) -> Sequence[int]:
    if not ranks:
        raise DetectError("no ranks to validate; name at least one")
    seen: set[int] = set()
    for rank in ranks:
        if rank in seen:
            raise DetectError(f"rank {rank} is named twice; name each once")
        seen.add(rank)
    return ranks


def _parent(i: int, n: int) -> int:
    """The parent of place ``i`` > 0 of ``n``: xx01 and xx11 hang below xx10, or below xx00."""
    bit = i & -i
    up = (i ^ bit) | (bit << 1)
    return up if up < n else i ^ bit


def _level(i: int, parent: Sequence[int]) -> int:
    level = 0
    while i:
        i, level = parent[i], level + 1
    return level


def _passes(passes: Sequence[Sequence[Link]], *, both_ways: bool) -> tuple[Pass, ...]:
    """Without repeated links and empty passes."""
    back = [[(to, source) for source, to in links] for links in passes] if both_ways else []
    seen: set[Link] = set()
    distinct = []
    for links in (*passes, *back):
        new = tuple(link for link in links if link not in seen)
        seen.update(new)
        if new:
            distinct.append(new)
    return tuple(distinct)
