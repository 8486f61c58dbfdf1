"""Rules of critical paths, references and ideal lanes at their edges, by hand."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from jobs import Spec, make_rows, trace_of
from paceline.errors import SimulationError
from paceline.graph import from_trace
from paceline.simulate import Rules, timeline
from paceline.trace import OpKind
from paceline.whatif import layout
from paceline.whatif.critical_path import critical_path
from paceline.whatif.doubts import judged, noop_doubts, peers_of, resolution_doubts
from paceline.whatif.ideal import MAX_SAMPLES, _levels, reference
from paceline.whatif.layout import MAX_IDEAL_LANES, _Layout, classes
from paceline.whatif.modes import two_modes
from paceline.whatif.scenario import Part, Scenario
from paceline.whatif.segments import Segments, Sort, Workers, _pieces, cut_occupied
from paceline.whatif.slack import MAX_OPS, _typical
from paceline.whatif.trace_back import _last_ends, _walk_back

# What a worker runs while the next op of the path is not launched.


def one_delay(length, step_s):
    """A compute, a delay of ``length`` before the last op, and that op, up to ``step_s``."""
    start = np.array([0.0, 1.0, 1.0 + length])
    return Segments(
        op=np.array([0, 1, 1]),
        dp=np.zeros(3, dtype=np.int64),
        sort=np.array([Sort.COMPUTE, Sort.DELAY, Sort.TRANSFER]),
        start_s=start,
        end_s=np.append(start[1:], step_s),
    )


@pytest.mark.parametrize(
    ("length", "step_s", "cut"),
    [
        (0.9e-3, 100.0, False),  # a hundred-thousandth of the step is 1 ms
        (1.1e-3, 100.0, True),
        (0.9e-5, 1.0 + 1e-4, False),
        (1.1e-5, 1.0 + 1e-4, True),
        (1.0, 1e5, False),  # longer than that, not as long
    ],
)
def test_only_long_delays_are_cut(length, step_s, cut):
    busy = (np.array([7]), np.array([0.0]), np.array([step_s]))
    path = cut_occupied(one_delay(length, step_s), lambda op, dp: busy)
    assert path.op.tolist() == ([0, 7, 1] if cut else [0, 1, 1])
    middle = Sort.OCCUPIED if cut else Sort.DELAY
    assert path.sort.tolist() == [Sort.COMPUTE, middle, Sort.TRANSFER]
    assert path.end_s.tolist() == pytest.approx([1.0, 1.0 + length, step_s])


def test_a_delay_in_pieces():
    """From 2 to 10 s: 1 to 3 and 5 to 6 s are occupied, and 9 to 12 s, as far as 10 s."""
    spans = {6: (0, 2), 7: (1, 3), 8: (5, 6), 9: (9, 12), 10: (10, 11)}
    starts, stops = np.array(list(spans.values()), dtype=float).T
    pieces = _pieces(4, 1, 2.0, 10.0, (np.array(list(spans)), starts, stops))
    assert pieces == [
        (7, 1, Sort.OCCUPIED, 2.0, 3.0),
        (4, 1, Sort.DELAY, 3.0, 5.0),
        (8, 1, Sort.OCCUPIED, 5.0, 6.0),
        (4, 1, Sort.DELAY, 6.0, 9.0),
        (9, 1, Sort.OCCUPIED, 9.0, 10.0),
    ]
    nothing = (np.array([6]), np.array([0.0]), np.array([2.0]))  # ended as the delay began
    assert _pieces(4, 1, 2.0, 10.0, nothing) == [(4, 1, Sort.DELAY, 2.0, 10.0)]
    # back to back, and one within the one before
    dense = (np.array([7, 8, 9]), np.array([2.0, 4.0, 4.5]), np.array([4.0, 10.0, 10.0]))
    assert _pieces(4, 1, 2.0, 10.0, dense) == [
        (7, 1, Sort.OCCUPIED, 2.0, 4.0),
        (8, 1, Sort.OCCUPIED, 4.0, 10.0),
    ]


def test_what_a_worker_runs_is_its_own_and_by_start():
    """Two variants of two stages; of variant 1, stage 1 computes ops 5 and 6 and sends op 7."""
    computes = [OpKind.FORWARD_COMPUTE] * 3 + [OpKind.FORWARD_SEND]
    graph = SimpleNamespace(
        kind=np.array([*computes, *computes]),
        variant=np.repeat([0, 1], 4),
        pp=np.array([0, 1, 1, 1] * 2),
        variant_ptr=np.array([0, 4, 8]),
        dp_index=np.array([0, 0, 1]),
    )
    end = np.array([[1.0, 1.0], [9.0, 8.0], [5.0, 4.0], [9.0, 9.0]])
    took = np.array([[1.0, 1.0], [2.0, 3.0], [2.0, 4.0], [1.0, 1.0]])
    ops, starts, stops = Workers(graph).busy(6, 2, end, took)
    assert (ops.tolist(), starts.tolist(), stops.tolist()) == ([6, 5], [0.0, 5.0], [4.0, 8.0])


# Walking back.


def walk_back(op, nodes, deps, ends, delays=None):
    """Segments (op, whether a delay, start), last first, up to the start of the step.

    Args:
        op: the one that ends last.
        nodes: tuples of ops that start together.
        deps: op -> the ops it waits for.
        ends: [op] seconds.
        delays: [op] seconds; None: none were replayed.
    """
    n = len(ends)
    order = [op for node in nodes for op in node]
    node_of = [next(i for i, node in enumerate(nodes) if op in node) for op in range(n)]
    node_ptr = np.cumsum([0, *map(len, nodes)]).tolist()
    dep_ptr = np.cumsum([0, *(len(deps.get(op, ())) for op in range(n))]).tolist()
    dep = [d for op in range(n) for d in deps.get(op, ())]
    ops, late, start = np.empty(2 * n, dtype=int), np.empty(2 * n, dtype=bool), np.empty(2 * n)
    rows = list(range(n))
    graph = (node_of, node_ptr, order, [False] * n, dep_ptr, dep)
    count, stopped = _walk_back(
        op, 0, 0, 0, *graph, ends, rows, delays or [], rows, ops, late, start
    )
    assert stopped == -1
    return list(
        zip(ops[:count].tolist(), late[:count].tolist(), start[:count].tolist(), strict=True)
    )


def test_of_equally_late_ops_the_first_is_waited_for():
    path = walk_back(2, [(0,), (1,), (2,)], {2: (0, 1)}, [2.0, 2.0, 5.0])
    assert path == [(2, False, 2.0), (0, False, 0.0)]
    later = walk_back(2, [(0,), (1,), (2,)], {2: (0, 1)}, [2.0, 2.5, 5.0])
    assert later == [(2, False, 2.5), (1, False, 0.0)]


def test_of_equally_late_peers_an_op_itself_comes_first():
    nodes, deps = [(0,), (1,), (2, 3)], {2: (0,), 3: (1,)}
    for op, before in ((2, 0), (3, 1)):
        path = walk_back(op, nodes, deps, [2.0, 2.0, 4.0, 4.0])
        assert path == [(op, False, 2.0), (before, False, 0.0)]
    # a later peer decides, whichever of the two ends last
    for op in (2, 3):
        path = walk_back(op, nodes, deps, [2.0, 3.0, 4.0, 4.0])
        assert path == [(op, False, 3.0), (1, False, 0.0)]


def test_a_delay_is_of_the_peer_that_is_launched_last():
    """Op 2 may start at 2 s and is launched at 2.5 s; its peer is at once, at 2.25 s."""
    nodes, deps = [(0,), (1,), (2, 3)], {2: (0,), 3: (1,)}
    path = walk_back(3, nodes, deps, [2.0, 2.25, 4.0, 4.0], [0.0, 0.0, 0.5, 0.0])
    assert path == [(3, False, 2.5), (2, True, 2.0), (0, False, 0.0)]


def test_of_equal_last_ends_the_first_op_and_rank():
    """Two variants: of the second, rank 3, op 3 ends at 5 s as op 1 of rank 2 does in step 0."""
    blocks = [
        np.array([[[4.0, 4.0], [1.0, 1.0]], [[4.0, 5.0], [1.0, 1.0]]]),  # ranks 0 and 2
        np.array([[[3.0, 3.0], [1.0, 1.0]], [[5.0, 4.0], [1.0, 2.0]]]),  # ranks 1 and 3
    ]
    graph = SimpleNamespace(
        variant_dps=(np.array([0, 2]), np.array([1, 3])), variant_ptr=np.array([0, 2, 4])
    )
    end = SimpleNamespace(graph=graph, n_steps=2, block=lambda v: blocks[v])
    assert _last_ends(end) == [(1, 2, 5.0), (3, 3, 2.0)]


def test_of_equal_ranks_and_ops_of_a_collective_the_first_is_waited_for():
    rows = make_rows(Spec(pp=2, microbatches=(2, 2, 2), steps=2, spread=0.0, delays=False))
    path = critical_path(from_trace(trace_of(rows), keep_clocks=True))
    assert set(path.dp.tolist()) == {0}
    assert path.leading_worker.n_steps == 2
    assert (path.start_s[path.ptr[:-1]] == 0).all()


def test_the_last_rank_to_reach_a_collective_is_on_the_path_up_to_it():
    """Rank 2 computes longest, so all before the collectives of the step's end is its own."""
    spec = Spec(
        pp=1, microbatches=(2, 2, 2), steps=1, spread=0.0, delays=False, slow=((2, 0, 1.5),)
    )
    path = critical_path(from_trace(trace_of(make_rows(spec)), keep_clocks=True))
    computes = np.isin(path.kind, (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE))
    assert set(path.dp[computes].tolist()) == {2}
    assert path.leading_worker.name == (2, 0)
    assert path.leading_worker.share == pytest.approx(
        float((path.end_s - path.start_s)[path.dp == 2].sum() / path.step_s[0])
    )


@pytest.mark.parametrize(("delay_s", "waited_for"), [(0.5, 0), (0.1, 1)])
def test_a_collective_waits_for_the_last_launch_with_its_delay(delay_s, waited_for):
    """Rank 0 is done after 3 s and launches late; rank 1 is done after 3.2 s and does not."""
    rows = []
    for dp, (backward_s, late_s) in enumerate([(2.0, delay_s), (2.2, 0.0)]):
        launch = 1 + backward_s + late_s
        end = 1 + max(3.2, 2 + delay_s + 1)
        spans = {
            "forward-compute": (0.0, 1.0), "backward-compute": (1.0, 1 + backward_s),
            "grads-reduce-scatter": (launch, end),
        }  # fmt: skip
        for kind, (start, stop) in spans.items():
            row = {"step": 0, "dp": dp, "pp": 0, "kind": kind, "seq": 0, "chunk": 0}
            rows.append(row | {"microbatch": 0, "start": start, "duration": stop - start})
    path = critical_path(from_trace(trace_of(rows), keep_clocks=True))
    assert path.dp[:2].tolist() == [waited_for] * 2
    delays = path.sort == Sort.DELAY
    lost = float((path.end_s - path.start_s)[delays].sum())
    assert lost == pytest.approx(delay_s if waited_for == 0 else 0.0)
    assert path.step_s[0] == pytest.approx(1 + max(3.2, 3 + delay_s))


# The simulator's timeline.


def test_delays_that_no_rule_keeps_are_not_replayed():
    measured = from_trace(trace_of(make_rows(Spec(pp=1, microbatches=(2, 2)))), keep_clocks=True)
    plain = timeline(measured.durations)
    lines = timeline(measured.durations, Rules.own(measured.graph), measured.delays)
    assert measured.delays.values.max() > 0
    assert lines.start.values.tolist() == plain.start.values.tolist()
    assert lines.end.values.tolist() == plain.end.values.tolist()
    with pytest.raises(SimulationError, match="delays are to be replayed, but none"):
        timeline(measured.durations, Rules.own(measured.graph, keep_delay=True))


# Doubts.


def forwards(values):
    kinds = np.full(len(values), OpKind.FORWARD_COMPUTE)
    rows = np.asarray(values, dtype=float)[:, None, None]
    return SimpleNamespace(graph=SimpleNamespace(kind=kinds), row=lambda op: rows[op])


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ([0, 0, 0, 1, 2], False),  # of nothing there is no share
        ([0, 1, 1, 1, 2], True),
    ],
)
def test_computes_that_take_nothing_have_no_resolution(places, said):
    assert bool(resolution_doubts(forwards(np.array(places) * 0.01))) == said


def test_a_coarse_grid_is_said_with_its_share():
    """10, 20, 20 and 30 ms: rounded to 10 ms, half of the typical 20."""
    [note] = resolution_doubts(forwards([0.01, 0.02, 0.02, 0.03]))
    assert note.text.startswith("times are rounded to 10.0 ms, 50% of a typical forward-compute")


def test_samples_of_many_computes_reach_to_the_last():
    """4,000 computes: the first 2,048 are on a grid of 10 ms, the others are not."""
    values = np.full(4000, 0.02)
    values[:4] = 0.01, 0.02, 0.03, 0.04
    assert resolution_doubts(forwards(values[:2048]))
    values[2048:] = 0.0213517
    assert resolution_doubts(forwards(values)) == []


@pytest.mark.parametrize(("noop_s", "said"), [(0.001, False), (0.0011, True)])
def test_merged_no_ops_count_from_a_thousandth_of_the_ideal_on(noop_s, said):
    """Nine replicas, one more than may differ; the no-op takes ``noop_s`` of a step of 1 s."""
    n_dp = MAX_IDEAL_LANES + 1
    graph = SimpleNamespace(
        noop=np.array([True]), n_ops=1, n_variants=1, variant_dps=(np.arange(n_dp),),
        variant_ops=lambda v: slice(0, 1),
    )  # fmt: skip
    block = np.zeros((1, 1, n_dp))
    block[0, 0, 0] = noop_s
    notes = noop_doubts(SimpleNamespace(graph=graph, block=lambda v: block), 1.0)
    assert bool(notes) == said
    if said:
        assert notes[0].numbers == {"error": pytest.approx(noop_s)}
        assert "too low by up to 1.1e-03" in notes[0].text


def test_how_many_peers_a_kind_has():
    """Of 3 replicas and 4 stages: 9 links, 4 groups, 3 pairs of embeddings, 12 workers."""
    kinds = [
        OpKind.FORWARD_COMPUTE, OpKind.FORWARD_SEND, OpKind.FORWARD_RECV,
        OpKind.GRADS_REDUCE_SCATTER, OpKind.EMBEDDING_GRADS_ALL_REDUCE,
        OpKind.OPTIMIZER_CLIP_MAIN_GRAD, OpKind.OPTIMIZER,
    ]  # fmt: skip
    peers = peers_of(SimpleNamespace(kind=np.array(kinds), n_dp=3, n_pp=4))
    assert peers == {
        "forward-compute": 12,
        "forward-pp-comm": 9,
        "grads-reduce-scatter": 4,
        "embedding-grads-all-reduce": 3,
        "optimizer-clip-main-grad": 1,
        "optimizer": 12,
    }


def test_kinds_with_one_peer_or_none():
    """A mean of two is no worse than one of many: halves are said of medians only."""
    peers = {"forward-compute": 2, "grads-reduce-scatter": 2, "optimizer": 3, "gc": 1}
    half, alone = judged(peers | {"params-all-gather": 2, "optimizer-clip-main-grad": 1})
    assert half.text.endswith("is their mean): grads-reduce-scatter, params-all-gather")
    assert half.numbers == {"kinds": 2}
    assert alone.text.endswith("cannot show): gc, optimizer-clip-main-grad")
    assert alone.numbers == {"kinds": 2}
    assert judged({"forward-compute": 2, "optimizer": 12}) == []


# References.


@pytest.mark.parametrize("noops", ["zero", "random"])
def test_no_ops_take_the_mean_of_their_own(noops):
    spec = Spec(pp=2, vpp=2, microbatches=(2, 4), steps=3, noops=noops)
    durations = from_trace(trace_of(make_rows(spec), spec.job), keep_clocks=True).durations
    judged_by = reference(durations)
    ops = np.flatnonzero(durations.graph.noop).tolist()
    assert len(ops) > 4
    means = [float(durations.row(op).mean()) for op in ops]
    assert judged_by.paper[ops] == pytest.approx(means)
    assert judged_by.seconds[ops] == pytest.approx(means)
    assert (max(means) > 0) == (noops == "random")


# Samples, modes and quantiles.


def levels_of(values):
    """[step] levels of values [op, dp] that double in the second step."""
    values = np.asarray(values, dtype=float)
    block = np.stack([values, 2 * values], axis=1)  # [op, step, dp]
    graph = SimpleNamespace(n_variants=1, variant_ops=lambda v: slice(0, len(values)))
    durations = SimpleNamespace(graph=graph, block=lambda v: block, n_steps=2)
    return _levels(durations, np.arange(len(values))).tolist()


def test_few_operations_are_all_looked_at():
    assert levels_of([[1, 2], [3, 10]]) == [2.5, 5.0]
    half = MAX_SAMPLES // 2
    values = np.repeat([1.0, 3.0], [half + 1, half - 1])[:, None]
    assert levels_of(values) == [1.0, 2.0]
    assert levels_of(values[::-1].T) == [1.0, 2.0]


@pytest.mark.parametrize("shape", [(5000, 1), (1, 5000), (3000, 4), (100, 100)])
def test_of_many_operations_a_sample_of_all_is_looked_at(shape):
    """Values that grow from 0 to 1 over ops and ranks have their middle at a half."""
    n = shape[0] * shape[1]
    grow = np.arange(n).reshape(shape) / n
    first, second = levels_of(grow)
    assert first == pytest.approx(0.5, abs=0.03)
    assert second == pytest.approx(2 * first)


def test_of_modes_without_a_spread_the_ratio_decides():
    assert two_modes(np.repeat([1.0, 1.1001], 4)) is not None
    assert two_modes(np.repeat([1.0, 1.0999], 4)) is None


def test_times_of_nothing_have_no_modes():
    values = np.repeat([1.0, 2.0], 4)
    assert two_modes(values) is not None
    assert two_modes(np.append(values, 0.0)) is None


def test_modes_where_the_least_mode_is_a_share():
    """Of 20 values 6% are 1.2: two at least; of 101, 6.06: seven at least."""
    assert two_modes(np.repeat([1.0, 2.0], [18, 2])) is not None
    assert two_modes(np.repeat([1.0, 2.0], [94, 7])) is not None
    assert two_modes(np.repeat([1.0, 2.0], [97, 4])) is None
    assert two_modes(np.repeat([1.0, 2.0], [2, 18])) is not None  # either mode may be the small one
    assert two_modes(np.repeat([1.0, 2.0], [4, 97])) is None


def test_values_as_fast_as_the_fast_mode_belong_to_it():
    """Six slow values of 101 and one fast one make the least mode; the fast one is not slow."""
    modes = two_modes(np.repeat([1.0, 2.0], [95, 6]))
    assert modes.slow.tolist() == [False] * 95 + [True] * 6


def test_few_steps_of_large_jobs_are_the_middle_ones():
    assert MAX_OPS == 300_000
    assert _typical(np.array([3.0, 1.0, 2.0, 5.0, 4.0, 6.0]), 2).tolist() == [2, 3]


# Classes of replicas that do the same.


def test_replicas_that_meet_one_that_deviates_are_a_class_of_their_own():
    """Two families of six ranks: in threes next to each other, and in pairs across."""
    within, across = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 2, 0, 1, 2])
    ideal = np.zeros(6, dtype=np.int64)
    assert len(set(classes(np.stack([within, across]), ideal).tolist())) == 1
    one = np.array([1, 0, 0, 0, 0, 0])
    found = classes(np.stack([within, across]), one).tolist()
    # rank 0; 1 and 2, which meet it within; 3, which meets it across; 4 and 5, which meet 3
    assert [found.index(number) for number in found] == [0, 1, 1, 3, 4, 4]
    only_within = classes(within[None], one).tolist()
    assert [only_within.index(number) for number in only_within] == [0, 1, 1, 3, 3, 3]


# Batches of scenarios.


@pytest.mark.parametrize(
    ("cells", "lanes", "batches"),
    [
        (1 << 24, 1 << 21, [(0, 5)]),
        (1 << 24, 0, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]),  # one at least
        (2 * 3, 1 << 21, [(0, 2), (2, 4), (4, 5)]),  # two scenarios of three ranks
        # the job as measured takes three lanes a step, a worker alone two: 5 x 2 steps are over 9
        (1 << 24, 9, [(0, 2), (2, 5)]),
        (1 << 24, 10, [(0, 3), (3, 5)]),
    ],
)
def test_as_many_scenarios_at_a_time_as_there_is_room_for(monkeypatch, cells, lanes, batches):
    monkeypatch.setattr(layout, "_MAX_CELLS", cells)
    monkeypatch.setattr(layout, "_MAX_LANES", lanes)
    durations = from_trace(trace_of(make_rows(Spec(microbatches=(2, 2, 2), steps=2)))).durations
    workers = [Scenario.only(Part.of_workers([(dp, 0)])) for dp in range(3)]
    scenarios = [Scenario.measured(), *workers, Scenario.ideal()]
    found = itertools.islice(_Layout(durations).batches(scenarios), 6)
    assert [(low, high) for low, high, _ in found] == batches
