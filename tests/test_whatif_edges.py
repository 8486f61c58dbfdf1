"""Rules of the analysis and its graph at their edges, on numbers worked out by hand."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from jobs import Spec, make_rows, trace_of
from paceline.errors import SimulationError
from paceline.graph import from_trace
from paceline.graph.clocks import (
    ClockOffsets,
    _centred,
    _contradicted,
    _fit,
    _Group,
    _groups_of_sets,
    impossible_s,
)
from paceline.graph.lanes import Lanes, lane_blocks
from paceline.graph.structure import _difference, _hashes, _renumber, _variants
from paceline.simulate import Rules, _Prepared, all_lanes, step_times, timeline
from paceline.synth import SynthSpec, synthesize
from paceline.trace import Job, OpKind
from paceline.whatif.analysis import _Shares, _slowest
from paceline.whatif.doubts import _on_grid, delay_doubts, reference_notes, resolution_doubts
from paceline.whatif.ideal import Reference, _is_material, reference
from paceline.whatif.layout import MAX_IDEAL_LANES, _Layout, ideal_lane_error_s
from paceline.whatif.modes import TwoModes, two_modes
from paceline.whatif.result import LaunchDelay
from paceline.whatif.slack import NEAR, _typical, slack_of, slack_summary


def measured_of(**spec):
    return from_trace(trace_of(make_rows(Spec(**spec))))


# Doubts.


@pytest.mark.parametrize(
    ("places", "grid", "on"),
    [
        ([1, 2, 4], 0.01, True),
        ([1, 2, 4.0005], 0.01, True),  # within a thousandth of the grid
        ([1, 2, 4.002], 0.01, False),
        ([1, 2], 0.01, False),  # two places are chance
        ([2, 4, 6], 0.01, False),  # none next to each other: a coarser grid
        ([5, 5, 5], 0.01, False),
        ([3, 4, 9, 9], 1.0, True),
    ],
)
def test_what_a_grid_is(places, grid, on):
    assert _on_grid(np.array(places) * grid, grid) == on


@pytest.mark.parametrize(
    ("grid", "typical", "said"),
    [
        *[(grid, 19, True) for grid in (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5)],
        *[(grid, 21, False) for grid in (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5)],
        (1e-6, 3, False),  # finer than clocks are rounded to
    ],
)
def test_a_grid_of_five_percent_of_a_compute_is_coarse(grid, typical, said):
    values = (typical + np.array([-1.0, 0.0, 0.0, 1.0])) * grid
    kinds = np.array([OpKind.FORWARD_COMPUTE] * 4 + [OpKind.BACKWARD_COMPUTE])
    rows = np.append(values, 0.123456)[:, None, None]
    durations = SimpleNamespace(graph=SimpleNamespace(kind=kinds), row=lambda op: rows[op])
    notes = resolution_doubts(durations)
    assert bool(notes) == said
    if said:
        assert notes[0].numbers["grid_s"] == pytest.approx(grid)
        assert notes[0].numbers["typical_s"] == pytest.approx(typical * grid)


def test_delays_name_the_worst_three_kinds_above_a_thousandth():
    delay = LaunchDelay({"a": 1.01, "b": 1.04, "c": 1.02, "d": 1.03, "e": 1.0005}, 1.0011)
    [note] = delay_doubts(0.06, delay)
    assert "delays before b +4.0%, d +3.0%, c +2.0%, at the start of steps +0.1%" in note.text
    [small] = delay_doubts(0.06, LaunchDelay({"e": 1.0009}, 1.0009))
    assert "delays before" not in small.text


def test_notes_on_the_reference():
    slow = TwoModes(np.array([True, True, False, False, False]), 1.5)
    by_modes = Reference(np.ones(1), np.ones(1), {OpKind.GRADS_REDUCE_SCATTER: slow})
    [note] = reference_notes(by_modes, 5, 1.2, 1.1)
    assert "grads-reduce-scatter (2 of 5 steps, 1.5x)" in note.text
    assert "S would be 1.100" in note.text
    plain = Reference(np.ones(1), np.ones(1), {})
    assert reference_notes(plain, 5, 1.0, 1.0) == []
    assert "S is 0.500" in reference_notes(plain, 5, 0.5, 0.5)[0].text


# Modes and references.


@pytest.mark.parametrize(
    ("fast", "slow", "ratio", "found"),
    [
        (4, 4, 1.11, True),
        (4, 4, 1.09, False),  # 10% at least
        (2, 2, 2.0, True),
        (2, 1, 2.0, False),  # four values at least
        (7, 1, 2.0, False),  # one value is an outlier
        (47, 3, 2.0, True),  # 6% of the values
        (48, 2, 2.0, False),
    ],
)
def test_what_two_modes_are(fast, slow, ratio, found):
    values = np.array([1.0] * fast + [ratio] * slow)
    modes = two_modes(values)
    assert (modes is not None) == found
    if modes:
        assert modes.ratio == pytest.approx(ratio)
        assert modes.share == slow / (fast + slow)
        assert modes.slow.tolist() == [False] * fast + [True] * slow


def test_modes_lie_apart_by_their_spread():
    """20 logarithms in pairs +- s about 0 and d: d must be 5.5 + 420 / 400 times their spread.

    The spread is that of both, over n - 2: s sqrt(20 / 18).
    """
    s = 0.02
    bar = s * (20 / 18) ** 0.5 * (5.5 + 420 / 400)
    for d, found in ((bar * 0.99, False), (bar * 1.01, True)):
        logs = np.array([s, -s] * 5 + [d + s, d - s] * 5)
        assert (two_modes(np.exp(logs)) is not None) == found


@pytest.mark.parametrize(("usual", "material"), [(1.009, False), (1.011, True), (0.989, True)])
def test_a_reference_must_change_half_a_percent_of_a_stage(usual, material):
    """Two stages with 2 s each; an op of 1 s on stage 1 becomes one of ``usual``."""
    graph = SimpleNamespace(pp=np.array([0, 0, 1, 1]), variant_ops=lambda v: slice(0, 4))
    assert _is_material(graph, np.ones(4), np.array([2]), usual) == material


# Who is slowest, and shares.


@pytest.mark.parametrize(("n", "slowest"), [(1, 1), (33, 1), (34, 2), (66, 2), (67, 3), (100, 3)])
def test_three_percent_of_the_workers_rounded_up(n, slowest):
    workers = [(i, 0) for i in range(n)]
    named = _slowest(workers, np.arange(n, dtype=float))
    assert named == [(n - 1 - i, 0) for i in range(slowest)]


def test_ties_keep_the_order_of_the_workers():
    workers = [(i, 0) for i in range(67)]
    assert _slowest(workers, np.ones(67) + 1e-15 * np.arange(67)) == workers[:3]


@pytest.mark.parametrize(("t", "shares"), [(1.0009, [None]), (1.0011, [0.5])])
def test_shares_of_nearly_nothing_are_unknown(t, shares):
    """A gap of under a thousandth of T divides noise by noise."""
    slow = SimpleNamespace(simulated=np.array([t]), t_ideal=1.0)
    parts = _Shares(None, None, slow)
    assert parts._divide(np.array([(t - 1) / 2])) == pytest.approx(shares)


# Slack.


@pytest.mark.parametrize(
    ("room", "index"),
    [(5, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4]), (1, [3]), (2, [0, 3]), (3, [0, 2, 3])],
)
def test_typical_steps_lie_at_even_quantiles(room, index):
    """Five steps; of one the median, of two the quartiles: places 0.5 x 5 / 2 and 1.5 x 5 / 2.

    By length: steps 4, 0, 3, 2, 1; of two, places 1 and 3; of three 0, 2 and 4.
    """
    step_s = np.array([2.0, 5.0, 4.0, 3.0, 1.0])
    order = [4, 0, 3, 2, 1]
    expected = {1: [order[2]], 2: [order[1], order[3]], 3: [order[0], order[2], order[4]]}
    found = _typical(step_s, room).tolist()
    assert found == sorted(expected.get(room, range(5)))
    assert index is not None


@pytest.mark.parametrize("microbatches", [(3, 3), (2, 4, 2)])
def test_the_summary_of_slack_equals_a_table_of_all_ops(microbatches):
    measured = measured_of(pp=2, microbatches=microbatches, steps=3, seed=4)
    graph, step_s = measured.graph, measured.traced_step_s
    table = slack_of(measured)
    computes = (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE)
    by_kind, by_worker = {}, {}
    for op in range(graph.n_ops):
        dps = graph.variant_dps[int(graph.variant[op])]
        kind = OpKind(int(graph.kind[op]))
        by_kind.setdefault(kind, []).extend(table.row(op).ravel())
        if kind in computes:
            for place, dp in enumerate(dps.tolist()):
                values = by_worker.setdefault((int(graph.pp[op]), dp), [])
                values.extend(table.row(op)[:, place])
    summary = slack_summary(measured, step_s)
    assert summary.steps.tolist() == measured.steps.tolist()
    for kind in (*computes, OpKind.OPTIMIZER):
        values = by_kind[kind]
        assert summary.by_kind[kind.label] == pytest.approx((min(values), np.median(values)))
    for (pp, dp), values in by_worker.items():
        assert summary.least_s[pp, dp] == pytest.approx(min(values))
        assert summary.median_s[pp, dp] == pytest.approx(np.median(values))
    for pp in range(2):
        of_stage = [v for (stage, _), values in by_worker.items() if stage == pp for v in values]
        assert summary.by_stage[pp] == pytest.approx((min(of_stage), np.median(of_stage)))
    near = sum(min(values) < NEAR * step_s.mean() for values in by_worker.values())
    assert summary.near_workers == near


# Lanes of ideal replicas whose no-ops differ.


def noops_of(n_dp, seconds):
    """One variant of a no-op and another op; the no-op takes ``seconds`` [dp] in one step."""
    graph = SimpleNamespace(
        noop=np.array([True, False]), kind=np.zeros(2), pp=np.zeros(2), n_ops=2, n_variants=1,
        variant_dps=(np.arange(n_dp),),
        variant_ops=lambda v: slice(0, 2),
    )  # fmt: skip
    block = np.stack([np.asarray(seconds, dtype=float), np.full(n_dp, 9.0)])[:, None, :]
    return SimpleNamespace(graph=graph, block=lambda v: block, n_steps=1)


@pytest.mark.parametrize(("n_dp", "error"), [(MAX_IDEAL_LANES, 0.0), (MAX_IDEAL_LANES + 1, 9.0)])
def test_up_to_eight_ideal_replicas_are_exact(n_dp, error):
    """Beyond, a step may be off by what the no-ops of one replica take: 0, 1, ... seconds."""
    durations = noops_of(n_dp, np.arange(n_dp) + 1)
    assert ideal_lane_error_s(durations) == error
    assert ideal_lane_error_s(noops_of(n_dp, np.ones(n_dp))) == 0


def test_the_slowest_replicas_stand_for_the_rest():
    layout = _Layout(noops_of(10, [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]))
    groups = [sorted(group.tolist()) for group in layout._alike(0, 0)]
    assert groups == [[8, 9], [7], [6], [5], [4], [3], [2], [0, 1]]


# The simulator.


def test_only_kept_delays_show_in_the_starts():
    """Two rules: replica 0 keeps its delays, replica 1 does not."""
    measured = measured_of(pp=1, microbatches=(2, 2), steps=2)
    graph = measured.graph
    keep = np.ones((2, graph.n_ops), dtype=bool)
    rules = Rules(keep, np.zeros(graph.n_ops), np.stack([keep[0], ~keep[0]]))
    lines = timeline(measured.durations, rules, measured.delays, np.array([0, 1]))
    first = np.flatnonzero(graph.sources)
    assert lines.start.array[first][..., 0] == pytest.approx(measured.delays.array[first][..., 0])
    assert (lines.start.array[first][..., 1] == 0).all()
    assert measured.delays.array[first].max() > 0


@pytest.mark.parametrize(
    ("keep", "base", "keep_delay"),
    [
        (np.ones(6, bool), 6, None),
        (np.ones((1, 6, 1), bool), 6, None),
        (np.ones((1, 5), bool), 6, None),
        (np.ones((1, 6), bool), 5, None),
        (np.ones((1, 6), bool), 6, np.ones((2, 6), bool)),
    ],
)
def test_rules_fit_the_graph(keep, base, keep_delay):
    measured = measured_of(pp=1, microbatches=(1,), steps=1)
    n_ops = measured.graph.n_ops
    # the cases are written for six ops
    shape = tuple({6: n_ops, 5: n_ops - 1}.get(n, n) for n in keep.shape)
    delay = None if keep_delay is None else np.ones((2, n_ops), bool)
    rules = Rules(np.ones(shape, bool), np.zeros(n_ops if base == 6 else n_ops - 1), delay)
    with pytest.raises(SimulationError, match=r"do not fit|keep_delay is"):
        step_times(measured.durations, rules, all_lanes(measured.graph, 1), measured.delays)


def test_blocks_fill_the_cache_and_no_more():
    """Half a MiB interpreted and 2 MiB compiled, 8 bytes a value; 64 lanes at least."""
    walk = _Prepared((), 256, 1)
    assert walk.block_lanes(fast=True) == (2 << 20) // (8 * 256)
    assert _Prepared((), 1 << 20, 1).block_lanes(fast=True) == 64
    assert walk.block_lanes(fast=False) >= 64


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [1, 4, 7, 100])
def test_blocks_hold_whole_sets_and_all_lanes_once(seed, size):
    rng = np.random.default_rng(seed)
    sets = np.sort(rng.integers(0, 6, 25))
    variant, rule = rng.integers(0, 2, 25), rng.integers(0, 3, 25)
    lanes = Lanes(sets, variant, rule, rng.integers(0, 9, 25), 6)
    seen, next_set = [], 0
    for block in lane_blocks(lanes, size):
        assert block.first_set == next_set
        next_set += block.n_sets
        assert len(block.column) <= size or block.n_sets == 1
        for v, (low, high) in enumerate(itertools.pairwise(block.variant_ptr.tolist())):
            begin = low
            for segment in range(block.segment_ptr[v], block.segment_ptr[v + 1]):
                end = int(block.segment_end[segment])
                columns = block.column[begin:end].tolist()
                consecutive = columns == list(range(columns[0], columns[0] + len(columns)))
                assert block.segment_column[segment] == (columns[0] if consecutive else -1)
                seen += [
                    (int(block.set[lane]) + block.first_set, v, int(block.segment_rule[segment]),
                     int(block.column[lane]))
                    for lane in range(begin, end)
                ]  # fmt: skip
                begin = end
            assert begin == high
    assert next_set == 6
    table = zip(sets.tolist(), variant.tolist(), rule.tolist(), lanes.column.tolist(), strict=True)
    assert sorted(seen) == sorted(table)


# Clocks.


def offsets(spread, furthest):
    """Of many workers, one ``furthest`` off; the standard deviation is given."""
    return ClockOffsets(np.array([[furthest, 0.0]]), spread)


@pytest.mark.parametrize(
    ("spread", "furthest", "matter"),
    [(0.0019, 0.0049, False), (0.0021, 0.0, True), (0.0, 0.0051, True), (0.0, -0.0051, True)],
)
def test_which_offsets_matter(spread, furthest, matter):
    clocks = offsets(spread, furthest)
    assert clocks.matter == matter
    assert clocks.doubt_s == (abs(furthest) if matter else 0)
    assert ClockOffsets(clocks.offset_s, spread, corrected=True).doubt_s == 0


def pair(one, other, ahead, kind=OpKind.FORWARD_SEND):
    return _Group(kind, np.array([[one, other]]), np.array([[ahead / 2, -ahead / 2]]))


def test_offsets_of_a_chain_add_up():
    """1 is 3 ms behind 0, 2 is 4 ms behind 1: 0, -3, -7 ms, less their mean."""
    found = _fit(3, [pair(0, 1, 0.003), pair(1, 2, 0.004)])
    assert found == pytest.approx(np.array([0, -0.003, -0.007]) + 0.010 / 3, abs=1e-9)


def test_one_contradiction_among_many_weighs_little():
    """Five pairs say 0, one 60 ms: the mean would be 10 ms."""
    groups = [pair(0, 1, 0.0) for _ in range(5)] + [pair(0, 1, 0.060)]
    found = _fit(2, groups)
    assert abs(found[0] - found[1]) < 0.001


def test_weighted_deviations():
    values, weight = np.array([[1.0, 4.0]]), np.array([[3.0, 1.0]])
    assert _centred(values, weight).tolist() == [[1 - 1.75, 4 - 1.75]]


def test_each_set_of_ranks_that_meet_is_a_group_of_its_own():
    """Ranks 0 and 2 meet, 1 and 3 do, 4 meets nobody; of two stages, the second. Two steps.

    Rank 0 ends 2 and 6 ms before rank 2: by the middle it is 2 ms ahead of their mean.
    """
    workers = 2 * np.arange(5) + 1
    ends = np.array([[1.002, 2.0, 1.0, 2.0, 9.0], [5.006, 7.010, 5.0, 7.0, 9.0]])
    kind, sets = OpKind.GRADS_REDUCE_SCATTER, np.array([0, 1, 0, 1, 2])
    [pairs] = _groups_of_sets(kind, workers, sets, ends)
    assert pairs.workers.tolist() == [[1, 5], [3, 7]]
    assert pairs.ahead == pytest.approx(np.array([[0.002, -0.002], [0.0025, -0.0025]]))
    assert pairs.kind == kind


def test_sets_of_another_size_are_a_group_of_their_own():
    kind, sets = OpKind.TENSOR_COMM, np.array([3, 3, 7, 7, 7])
    two, three = _groups_of_sets(kind, np.arange(5), sets, np.array([[1.0, 3.0, 4.0, 5.0, 9.0]]))
    assert two.workers.tolist() == [[0, 1]]
    assert two.ahead.tolist() == [[-1.0, 1.0]]
    assert three.workers.tolist() == [[2, 3, 4]]
    assert three.ahead.tolist() == [[-2.0, -1.0, 3.0]]


@pytest.mark.parametrize(("left", "contradicted"), [(0.59, []), (0.61, ["forward-send"])])
def test_offsets_explain_a_kind_if_they_leave_sixty_percent(left, contradicted):
    """Ends 20 ms apart, of which offsets explain 1 - ``left``; those of a kind they explain all."""
    offset = np.array([0.010, -0.010]) * (1 - left)
    groups = [pair(0, 1, 0.020), pair(0, 1, 0.020 * (1 - left), OpKind.BACKWARD_SEND)]
    assert [kind.label for kind in _contradicted(groups, offset)] == contradicted
    # workers that are off by under 2 ms are no evidence
    small = [pair(0, 1, 0.100), pair(0, 1, 0.0038, OpKind.BACKWARD_SEND)]
    assert _contradicted(small, np.array([0.0019, -0.0019])) == []


def test_impossible_times_by_hand():
    """A pair and a collective: ends before the last start, by more than half a millisecond."""
    measured = measured_of(pp=2, microbatches=(1, 1), steps=1, delays=False, spread=0.0)
    graph = measured.graph
    lines = timeline(measured.durations)
    zero = np.zeros((graph.n_dp, graph.n_pp))
    assert impossible_s(graph, lines.start, lines.end, zero) == 0
    one, other = graph.variant_pairs(0)[0]
    latest = np.maximum(lines.start.row(one), lines.start.row(other))
    for by, counted in ((0.0004, 0.0), (0.0006, 0.0006)):
        early = timeline(measured.durations)
        early.end.row(one)[:, 0] = latest[:, 0] - by
        found = impossible_s(graph, early.start, early.end, zero)
        assert found == pytest.approx(counted)
    members = graph.dp_groups[0]
    op = int(members[0])
    latest_s = max(float(lines.start.row(int(m)).max()) for m in members)
    early = timeline(measured.durations)
    early.end.row(op)[0, 1] = latest_s - 0.25
    assert impossible_s(graph, early.start, early.end, zero) == pytest.approx(0.25)


def test_a_clock_that_is_behind_explains_impossible_times():
    measured = measured_of(pp=2, microbatches=(1, 1), steps=1, delays=False, spread=0.0)
    graph, lines = measured.graph, timeline(measured.durations)
    for op in np.flatnonzero(graph.pp == 1).tolist():
        lines.start.row(op)[:, 1] -= 0.25
        lines.end.row(op)[:, 1] -= 0.25
    offset = np.zeros((graph.n_dp, graph.n_pp))
    assert impossible_s(graph, lines.start, lines.end, offset) > 0.25
    offset[1, 1] = -0.25
    assert impossible_s(graph, lines.start, lines.end, offset) == 0


# Structure.


def test_equal_rows_have_equal_hashes_and_others_do_not():
    rows = np.array(list(itertools.product(range(4), repeat=5)), dtype=np.uint64)
    hashes = _hashes(rows)
    assert len(set(hashes.tolist())) == len(rows)
    assert _hashes(rows[::-1]).tolist() == hashes[::-1].tolist()


def test_variants_are_numbered_as_they_appear():
    variant, first = _variants(np.array([7, 3, 7, 5, 3], dtype=np.uint64))
    assert variant.tolist() == [0, 1, 0, 2, 1]
    assert first == [0, 1, 3]


def test_microbatches_are_numbered_as_they_appear():
    table = np.array([[9, 9, 4, -1, 9], [3, 2, 3, 2, -1], [103, 102, 103, 102, -1]], dtype=np.int32)
    assert _renumber(table).tolist() == [[0, 0, 1, -1, 0], [0, 1, 0, 1, -1], [0, 1, 0, 1, -1]]


def test_the_first_difference_of_counts():
    usual = np.ones((2, len(OpKind)), dtype=np.int32)
    have = usual.copy()
    have[1, 2] = 5
    label, job = OpKind(2).label, Job(dp_size=4, pp_size=2)
    assert _difference(have, usual, 3, job) == f"dp 3, stage 1 has 5 {label} ops, usual are 1"
    assert _difference(np.zeros_like(usual), usual, 3, job) == "dp 3 has no rows"
    have[0] = 0
    assert _difference(have, usual, 3, job) == "dp 3, stage 0 has no rows"
    peers = Job(dp_size=2, pp_size=2, tp_size=2, peers=2)
    assert _difference(have, usual, 3, peers) == "dp 1, stage 0, peer 1 has no rows"


# References of a kind that is slow everywhere at once.


@pytest.mark.parametrize(("slow", "paper"), [(9, 1.0), (11, 3.0)])
def test_a_kind_slow_in_most_steps_is_judged_by_its_fast_ones(slow, paper):
    """Of 20; three times as long on all ranks. The paper's median is the slow time with 11."""
    spec = SynthSpec(dp=2, pp=2, microbatches=4, steps=20, noise=0.0)
    durations = from_trace(synthesize(spec)).durations
    ops = np.flatnonzero(durations.graph.kind == OpKind.GRADS_REDUCE_SCATTER)
    usual = float(durations.array[ops[0], 0, 0])
    durations.array[ops, :slow] *= 3.0
    found = reference(durations)
    assert found.paper[ops] == pytest.approx(paper * usual)
    assert found.seconds[ops] == pytest.approx(usual)
    assert found.differs == (paper > 1)
    assert set(found.modes) == ({OpKind.GRADS_REDUCE_SCATTER} if paper > 1 else set())
