"""The best split of layers over stages."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import requires

requires.installed("hypothesis")

from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import RemedyError
from paceline.graph import Durations, from_trace
from paceline.remedies.layout_search import LayoutSearch
from paceline.remedies.parameter_ops import ParameterOps
from paceline.remedies.stage_layout import bounds_of, propose
from paceline.remedies.stage_split import best_split, estimate_costs, splits_within
from paceline.synth import SlowWorker, SynthSpec, synthesize
from paceline.trace import OpKind
from remedy_cases import analysed, case_of, error_of


def job(layers, first=(0.0, 0.0), last=(0.0, 0.0), **settings) -> SynthSpec:
    """9 layers take BASE_S; ``first`` and ``last`` are embedding and loss part, in layers."""
    extra = np.zeros((len(layers), 2))
    extra[0] += first
    extra[-1] += last
    factors = (np.array(layers)[:, None] + extra) / 9
    return SynthSpec(pp=len(layers), stage_factors=tuple(map(tuple, factors)), **settings)


# What-if paper, 5.2: four stages of 9 layers, the last 2.07x (forward) and 1.41x (backward) slow.
PAPER = ((9, 9, 9, 9), (0.0, 0.0), (1.07 * 9, 0.41 * 9))


@pytest.mark.parametrize(("seed", "noise", "microbatches"), [(0, 0.01, 8), (1, 0.02, 16)])
def test_the_papers_job_gains_more_than_by_hand(seed, noise, microbatches):
    layers, first, last = PAPER
    settings = {"dp": 4, "steps": 5, "seed": seed, "noise": noise, "microbatches": microbatches}
    before = job(layers, first, last, **settings)
    remedy = propose(case_of(before, layers))
    found = tuple(remedy.change["layers"])
    assert sum(found) == 36
    assert error_of(remedy, job(found, first, last, **settings)) < 0.01
    # By hand: 9.9%, with the last forward at 1.55x of the others: 10, 10, 10, 6 layers.
    by_hand = analysed(job((10, 10, 10, 6), first, last, **settings)).simulated_s.mean()
    assert remedy.gain > 0.099
    assert remedy.step_time_s < by_hand
    assert remedy.findings == ("stage-imbalance",)


@pytest.mark.parametrize(
    ("layers", "first", "last", "settings"),
    [
        ((6,) * 8, (2, 1), (8, 3), {"dp": 8, "microbatches": 16, "noise": 0.02, "seed": 3}),
        ((12, 8, 6), (1, 0), (5, 3), {"dp": 4, "sequence_imbalance": 0.2, "seed": 4}),
        ((9, 9, 9, 9), (0, 0), (9.6, 3.7), {"dp": 4, "schedule": "gpipe", "seed": 5}),
        ((9, 9, 9, 9), (0, 0), (9.6, 3.7), {"slow_workers": (SlowWorker(1, 1, 1.5),)}),
        ((3, 9, 9, 9), (0, 0), (0, 0), {"dp": 4, "microbatches": 8, "noise": 0.02}),
    ],
)
def test_the_predicted_step_time_is_right(layers, first, last, settings):
    settings = {"steps": 5, **settings}
    remedy = propose(case_of(job(layers, first, last, **settings), layers))
    after = job(remedy.change["layers"], first, last, **settings)
    assert remedy.gain > 0.01
    assert error_of(remedy, after) < 0.01


def test_with_two_stages_the_embedding_is_taken_as_free():
    remedy = propose(case_of(job((12, 12), last=(8, 3), dp=4, steps=4), (12, 12)))
    assert remedy.change["embedding_s"] == [0.0, 0.0]
    assert any("two stages" in note for note in remedy.notes)
    assert error_of(remedy, job(remedy.change["layers"], last=(8, 3), dp=4, steps=4)) < 0.01


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_no_split_of_a_small_job_is_better(schedule):
    """All splits, simulated without noise: the search finds the best."""
    layers = (5, 5, 5, 5)
    spec = job(layers, (1, 0), (7, 3), dp=2, steps=2, microbatches=6, schedule=schedule, noise=0.0)
    case = case_of(spec, layers)
    remedy = propose(case)
    bounds = bounds_of(case, 4, 20)
    search = LayoutSearch(case.measured.durations, layers, bounds, case.predicted)
    every = np.array([split for split in product(range(1, 18), repeat=4) if sum(split) == 20])
    best = float(search.rank(every).min())
    assert remedy.step_time_s <= best * 1.001


def test_bounds_are_kept():
    layers = (9, 9, 9, 9)
    spec = job(*PAPER, dp=2, steps=3)
    most = propose(case_of(spec, layers, max_layers=10)).change["layers"]
    assert max(most) == 10
    each = propose(case_of(spec, layers, max_layers=[9, 9, 20, 20])).change["layers"]
    assert each[0] <= 9
    assert each[1] <= 9
    least = propose(case_of(spec, layers, min_layers=7)).change["layers"]
    assert min(least) == 7


def test_interleaved_is_searched_and_its_gap_told():
    spec = SynthSpec(dp=2, pp=4, vpp=2, microbatches=8, steps=3, slow_last_stage=(1.5, 1.3))
    remedy = propose(case_of(spec, (8,) * 4))
    assert len(remedy.change["layers"]) == 8
    assert sum(remedy.change["layers"]) == 32
    assert remedy.gain > 0.05
    assert 0 <= remedy.change["gap"] < 0.3
    assert any("lower bound" in note for note in remedy.notes)


@pytest.mark.parametrize("microbatches", [2, 6])
def test_no_interleaved_split_beats_the_lower_bound(microbatches):
    spec = SynthSpec(
        dp=1, pp=2, vpp=2, microbatches=microbatches, steps=2, noise=0.0, slow_last_stage=(1.4, 1.2)
    )
    layers = (4, 4, 4, 4)
    case = case_of(spec, layers)
    bounds = bounds_of(case, 4, 16)
    search = LayoutSearch(case.measured.durations, layers, bounds, case.predicted)
    every = np.array([split for split in product(range(1, 14), repeat=4) if sum(split) == 16])
    times = search.rank(every)
    assert search.lower_bound() <= times.min()
    assert propose(case).step_time_s <= times.min() * 1.01


@pytest.mark.parametrize(
    ("layers", "options", "message"),
    [
        ((9, 9, 9), {}, "3 numbers of layers .* for 4 stages"),
        ((9, 9, 9, -1), {}, "not valid numbers of layers"),
        ((0, 0, 0, 0), {}, "not valid numbers of layers"),
        ((9, 0, 0, 9), {}, "the cost of a layer is not known"),
        ((2, 2, 2, 2), {"min_layers": 3}, "do not fit"),
        ((9, 9, 9, 9), {"max_layers": 8}, "do not fit"),
        ((9, 9, 9, 9), {"max_layers": [8, 8]}, "one for each of the 4 stages"),
        ((9, 9, 9, 9), {"min_layers": -1}, "from 0 on"),
    ],
)
def test_what_cannot_be_is_said(layers, options, message):
    case = case_of(job(*PAPER, dp=2, steps=2, microbatches=4), layers, **options)
    with pytest.raises(RemedyError, match=message):
        propose(case)


def test_layers_of_chunks_must_divide():
    case = case_of(SynthSpec(dp=2, pp=2, vpp=2, microbatches=4, steps=2), (5, 6))
    with pytest.raises(RemedyError, match="2 equal chunks"):
        propose(case)


def test_one_stage_has_nothing_to_split():
    with pytest.raises(RemedyError, match="one stage"):
        propose(case_of(SynthSpec(dp=4, pp=1, microbatches=4, steps=2), (12,)))


def test_a_balanced_job_is_left_alone():
    case = case_of(job((9, 9, 9, 9), dp=2, steps=3), (9, 9, 9, 9))
    with pytest.raises(RemedyError, match="are split in the best way"):
        propose(replace(case, options={"min_layers": 8, "max_layers": 9}))


@given(data=st.data())
def test_the_dynamic_programme_is_exact(data):
    n_stages = data.draw(st.integers(1, 4))
    total = data.draw(st.integers(n_stages, 8))
    loads = st.lists(st.integers(0, 50), min_size=total + 1, max_size=total + 1)
    table = np.array(data.draw(st.lists(loads, min_size=n_stages, max_size=n_stages)), dtype=float)
    least = np.array(data.draw(st.lists(st.integers(0, 1), min_size=n_stages, max_size=n_stages)))
    most = least + data.draw(st.integers(0, 8))
    allowed = [range(a, b + 1) for a, b in zip(least, most, strict=True)]
    splits = [s for s in product(*allowed) if sum(s) == total]
    largest = {s: max(table[i, n] for i, n in enumerate(s)) for s in splits}
    if not splits:
        with pytest.raises(RemedyError, match="do not fit"):
            best_split(table, total, least, most)
        return
    load, split = best_split(table, total, least, most)
    assert load == min(largest.values())
    assert largest[split] == load
    near = {s for s, value in largest.items() if value <= load + 5}
    assert set(splits_within(table, total, least, most, load + 5)) == near


def test_costs_are_told_apart():
    loads = np.array([[2 * 3 + 1.0, 4 * 3, 3 * 3, 2 * 3 + 5]] * 2)
    costs = estimate_costs(loads, (2, 4, 3, 2))
    np.testing.assert_allclose(costs.per_layer, 3.0)
    np.testing.assert_allclose(costs.extra, [[1, 0, 0, 5]] * 2)
    np.testing.assert_allclose(costs.of(np.array([3, 3, 3, 2]))[0], [10, 9, 9, 11])


def test_a_stage_on_slower_machines_keeps_its_speed():
    costs = estimate_costs(np.array([[6.0, 6, 9, 6, 6]] * 2), (2, 2, 2, 2, 2))
    np.testing.assert_allclose(costs.per_layer[0], [3, 3, 4.5, 3, 3])
    np.testing.assert_allclose(costs.extra, 0.0)


@pytest.mark.parametrize(("grow", "factor"), [(True, 12 / 9), (False, 1.0)])
def test_collectives_grow_with_the_layers_where_the_trace_shows_it(grow, factor):
    """Stages of 3, 9, 9, 9 layers: their gathers take a third on the first stage, or as long."""
    spec = job((3, 9, 9, 9), dp=2, steps=2, microbatches=4, noise=0.0)

    def seconds(graph):
        base = np.array([spec.base_s[OpKind(int(kind))] for kind in graph.kind])
        small = (graph.kind == OpKind.PARAMS_ALL_GATHER) & (graph.pp == 0)
        return np.where(small & grow, base / 3, base)

    durations = from_trace(synthesize(spec, seconds)).durations
    ops = ParameterOps(durations, (3, 9, 9, 9), 4)
    changed = Durations(durations.graph, durations.n_steps, durations.values.copy())
    ops.scale(changed, 0, np.array([[3, 12, 9, 6]]))
    graph = durations.graph
    (gather,) = np.flatnonzero((graph.kind == OpKind.PARAMS_ALL_GATHER) & (graph.pp == 1))
    np.testing.assert_allclose(changed.row(gather), durations.row(gather) * factor)
