"""Which ranks meet in the transfers of a turn, and waits for what was launched together."""

import time
from collections import defaultdict

import pytest

import paceline.record as record
from paceline import load
from paceline.record.exchanges import Link, meetings
from paceline.record.steps import Batch

SIZES = (2, 4, 6, 8, 12)


def shifted(size, shift, place, *, first="send"):
    """What a rank lists in a turn: to the rank ``shift`` ahead, from the one as far behind."""
    links = [Link(place, (place + shift) % size), Link((place - shift) % size, place)]
    return links if first == "send" else links[::-1]


def members(lists, size):
    """(n-th op, group) -> the (place, transfer) of each rank that names the group."""
    sets = defaultdict(list)
    for place, links in enumerate(lists):
        ops = meetings(links, place, size)
        assert sorted(op.transfer for op in ops if op.transfer is not None) == [*range(len(links))]
        for number, op in enumerate(ops):
            transfer = None if op.transfer is None else links[op.transfer]
            sets[number, op.group].append((place, transfer))
    return sets


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shift", [1, -1])
def test_both_ends_of_a_transfer_meet_and_nobody_else(size, shift):
    orders = ("send", "receive")  # ranks may list them in unlike orders
    lists = [shifted(size, shift, p, first=orders[p % 3 == 0]) for p in range(size)]
    for ends in members(lists, size).values():
        (one, link), (other, same) = ends
        assert link == same
        assert {one, other} == set(link)


def test_a_turn_in_both_directions_and_of_two_tensors():
    lists = [2 * shifted(8, 1, place) + shifted(8, -1, place) for place in range(8)]
    sets = members(lists, 8)
    assert {number for number, _ in sets} == set(range(6))
    for ends in sets.values():
        (_, link), (_, same) = ends
        assert link == same


def test_a_line_has_ends_that_meet_nobody():
    lists = [
        [link for link in shifted(4, 1, place) if link.source < link.target] for place in range(4)
    ]
    for ends in members(lists, 4).values():
        (_, link), *others = ends
        assert len(ends) == (1 if link is None else 2)
        assert all(other == link for _, other in others)


def test_a_far_shift_joins_ranks_in_cycles():
    for ends in members([shifted(8, 2, place) for place in range(8)], 8).values():
        assert len(ends) == 2


@pytest.mark.parametrize("size", [3, 5, 9])
@pytest.mark.parametrize("shift", [1, -1, 2])
def test_an_odd_ring_takes_three_colours(size, shift):
    orders = ("send", "receive")
    lists = [shifted(size, shift, p, first=orders[p % 3 == 0]) for p in range(size)]
    sets = members(lists, size)
    assert {number for number, _ in sets} == {0, 1, 2}
    pairs = [ends for ends in sets.values() if len(ends) == 2]
    alone = [ends for ends in sets.values() if len(ends) == 1]
    # Every link joins its two ends, and every rank has one op of its own.
    assert len(pairs) == len(alone) == size
    assert all(link == same and {one, other} == set(link) for (one, link), (other, same) in pairs)
    assert all(link is None for ((_, link),) in alone)


def test_a_rank_that_sends_to_itself_has_no_links():
    assert meetings([Link(0, 0)], 0, 3) is None


class Slow:
    """A work that is waited for."""

    def wait(self):
        time.sleep(2e-3)


def program(folder, order):
    """Launches, parts and waits of a rank that waits for a batch of two in an order."""
    with record.start(folder, every=1, flush_s=0.05) as recorder, recorder.step(0):
        with recorder.op("forward-compute", microbatch=0):
            batch = {0: recorder.launch("context-comm"), 1: recorder.launch("context-comm")}
            together = Batch()
            for op in batch.values():
                op.batch = together
            works = [op.track(Slow()) for op in batch.values()]
            time.sleep(1e-3)
            for number in order:
                works[number].wait()
                time.sleep(5e-3)
        with recorder.op("backward-compute", microbatch=0):
            pass
    return load(folder)


def test_waits_for_a_batch_in_a_row_are_one(tmp_path):
    programs = [program(tmp_path / str(order), order) for order in ((0, 1), (1, 0))]
    for trace in programs:
        told = trace.program
        assert len(set(told.awaited[told.awaited >= 0].tolist())) == 1
    one, other = (trace.program for trace in programs)
    assert one.issued.tolist() == other.issued.tolist()
    assert one.awaited.tolist() == other.awaited.tolist()


def test_what_ran_between_the_waits_is_not_lost(tmp_path):
    trace = program(tmp_path, (0, 1))
    forward = trace.kind == 0
    last = (trace.end - trace.start)[forward][-1]  # 5 ms between the waits, and 5 ms behind them
    assert last >= 9.9e-3
