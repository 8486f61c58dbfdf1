"""Passes over a ring and over trees: disjoint, and each link once."""

import pytest

import requires

requires.installed("hypothesis")

from hypothesis import given
from hypothesis import strategies as st

from paceline.detect.passes import double_tree_passes, ring_passes, tree_passes
from paceline.errors import DetectError

RANKS = st.lists(st.integers(0, 10_000), min_size=1, max_size=70, unique=True)


def links_of(passes):
    return [link for each in passes for link in each]


def disjoint(passes):
    for each in passes:
        ends = [rank for link in each for rank in link]
        if len(ends) != len(set(ends)) or not each:
            return False
    return True


def test_rings_of_four_and_five():
    assert ring_passes(range(4)) == (((0, 1), (2, 3)), ((1, 2), (3, 0)))
    assert ring_passes(range(5)) == (((0, 1), (2, 3)), ((1, 2), (3, 4)), ((4, 0),))


@pytest.mark.parametrize("plan", [ring_passes, tree_passes, double_tree_passes])
def test_the_smallest(plan):
    assert plan([7]) == ()
    assert plan([7], both_ways=True) == ()


def test_a_ring_of_two_has_both_directions_anyway():
    assert ring_passes([4, 9]) == (((4, 9),), ((9, 4),))
    assert ring_passes([4, 9], both_ways=True) == ring_passes([4, 9])


def test_a_ring_of_three():
    assert ring_passes([5, 1, 3]) == (((5, 1),), ((1, 3),), ((3, 5),))


def test_a_tree_of_two_and_three():
    assert tree_passes([4, 9]) == (((9, 4),),)
    assert tree_passes(range(3)) == (((1, 2),), ((2, 0),))


def test_the_tree_that_nccl_draws():
    """The comment of ncclGetBtree shows 14 ranks."""
    drawn = {8: 0, 4: 8, 12: 8, 2: 4, 6: 4, 10: 12, 13: 12, 1: 2, 3: 2, 5: 6, 7: 6, 9: 10, 11: 10}
    passes = tree_passes(range(14))
    assert dict(links_of(passes)) == drawn
    # Level 2 and 4 of the tree send in the first two passes, left children in the first.
    assert passes[0] == ((1, 2), (4, 8), (5, 6), (9, 10))
    assert passes[1] == ((3, 2), (7, 6), (11, 10), (12, 8))
    assert passes[2] == ((2, 4), (10, 12))
    assert passes[3] == ((6, 4), (8, 0), (13, 12))


def test_the_second_tree_is_mirrored_or_shifted():
    links = set(links_of(double_tree_passes(range(4))))
    assert links == {(1, 2), (3, 2), (2, 0)} | {(2, 1), (0, 1), (1, 3)}
    # Odd: moved on by one. 2 -> 0 is in both trees and is tested once.
    assert sorted(links_of(double_tree_passes(range(3)))) == [(0, 1), (1, 2), (2, 0)]


@given(RANKS)
def test_ring(ranks):
    passes = ring_passes(ranks)
    n = len(ranks)
    ring = [(ranks[i], ranks[(i + 1) % n]) for i in range(n)] if n > 1 else []
    assert sorted(links_of(passes)) == sorted(ring)
    assert disjoint(passes)
    assert len(passes) == (0 if n == 1 else 2 + n % 2)
    back = ring_passes(ranks, both_ways=True)
    assert sorted(links_of(back)) == sorted({*ring, *((b, a) for a, b in ring)})
    assert disjoint(back)
    assert len(back) <= 2 * len(passes)


@given(RANKS)
def test_tree(ranks):
    passes = tree_passes(ranks)
    links = links_of(passes)
    parent = dict(links)
    assert len(parent) == len(links) == len(ranks) - 1  # one parent each but for the root
    assert disjoint(passes)
    assert len(passes) <= 4
    for rank in ranks[1:]:  # every path leads to the root, in about log2 hops
        hops = 0
        while rank != ranks[0]:
            rank, hops = parent[rank], hops + 1
        assert hops <= len(ranks).bit_length()
    back = tree_passes(ranks, both_ways=True)
    assert sorted(links_of(back)) == sorted([*links, *((b, a) for a, b in links)])
    assert disjoint(back)
    assert len(back) <= 8


@given(RANKS, st.booleans())
def test_double_tree(ranks, both_ways):
    passes = double_tree_passes(ranks, both_ways=both_ways)
    links = links_of(passes)
    assert len(links) == len(set(links))
    assert disjoint(passes)
    assert len(passes) <= 16
    second = [*ranks[1:], ranks[0]] if len(ranks) % 2 else ranks[::-1]
    trees = [*links_of(tree_passes(ranks)), *links_of(tree_passes(second))]
    wanted = {*trees, *((b, a) for a, b in trees if both_ways)}
    assert set(links) == wanted
    if len(ranks) > 2 and len(ranks) % 2 == 0:  # leaves of one are inner ranks of the other
        inner = [{parent for _, parent in links_of(tree_passes(each))} for each in (ranks, second)]
        assert set(ranks) == inner[0] | inner[1]


@pytest.mark.parametrize("plan", [ring_passes, tree_passes, double_tree_passes])
@pytest.mark.parametrize(("ranks", "words"), [([], "no ranks"), ([1, 2, 1], "rank 1 is named")])
def test_no_ranks_and_repeated_ranks(plan, ranks, words):
    with pytest.raises(DetectError, match=words):
        plan(ranks)
