"""Which parts account for a change: by hand, against all orders, and that it adds up."""

from itertools import permutations

import numpy as np
import pytest

from jobs import Spec, make_rows, replace, trace_of
from paceline.comparison.attribution import Part, contributions
from paceline.graph import Durations, from_trace
from paceline.remedies.remedy import predicted_step_s
from paceline.trace import OpKind

SPEC = Spec(pp=2, microbatches=(4, 4), steps=4, spread=0.3)


def measured(spec: Spec):
    return from_trace(trace_of(make_rows(spec)), keep_clocks=True)


def stages(graph) -> list[Part]:
    return [Part(str(pp), graph.pp == pp, graph.pp == pp) for pp in range(graph.n_pp)]


def kinds(graph) -> list[Part]:
    none, every = np.zeros(graph.n_ops, dtype=bool), np.ones(graph.n_ops, dtype=bool)
    computes = graph.kind <= OpKind.BACKWARD_COMPUTE
    return [
        Part("compute", computes, none),
        Part("rest", ~computes, none),
        Part("delay", none, every),
    ]


def mixture(before, after, parts, chosen, step_before, step_after):
    """The step in which ``chosen`` parts are those of ``after``."""
    tables = []
    for name, mask in (("durations", "durations"), ("delays", "delays")):
        one, other = getattr(before, name), getattr(after, name)
        switched = np.any([getattr(parts[i], mask) for i in chosen], axis=0) if chosen else None
        table = Durations.empty(before.graph, 1)
        for v in range(before.graph.n_variants):
            mine, theirs = one.block(v)[:, step_before], other.block(v)[:, step_after]
            ops = before.graph.variant_ops(v)
            rows = np.zeros(len(mine), dtype=bool) if switched is None else switched[ops]
            table.block(v)[:, 0] = np.where(rows[:, None], theirs, mine)
        tables.append(table)
    return float(predicted_step_s(*tables)[0])


def shapley(before, after, parts, step_before, step_after) -> np.ndarray:
    """The mean over all orders, each simulated from scratch."""
    change = np.zeros(len(parts))
    orders = list(permutations(range(len(parts))))
    for order in orders:
        for place, part in enumerate(order):
            args = (step_before, step_after)
            first = mixture(before, after, parts, order[:place], *args)
            change[part] += mixture(before, after, parts, order[: place + 1], *args) - first
    return change / len(orders)


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, microbatches=(4, 2)), replace(SPEC, vpp=2)])
def test_two_parts_are_exact(spec) -> None:
    """Of two parts there are two orders, one the reverse of the other."""
    before, after = measured(spec), measured(replace(spec, seed=9, slow=((1, 1, 1.5),)))
    parts = stages(before.graph)
    rows = contributions(before, after, parts)
    for step in range(spec.steps):
        expected = shapley(before, after, parts, step, step)
        np.testing.assert_allclose(rows[step], expected, atol=1e-9)


def test_three_parts_come_close_to_all_orders() -> None:
    before, after = measured(SPEC), measured(replace(SPEC, seed=9, slow=((1, 1, 1.5),)))
    parts = kinds(before.graph)
    rows = contributions(before, after, parts).mean(axis=0)
    expected = np.mean([shapley(before, after, parts, s, s) for s in range(4)], axis=0)
    np.testing.assert_allclose(rows, expected, atol=0.05 * np.abs(expected).max())


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 5), (5, 1), (3, 7), (7, 3), (4, 6), (6, 6)])
def test_the_parts_add_up_to_the_change_of_the_mean_step(n, m) -> None:
    before = measured(replace(SPEC, steps=n))
    after = measured(replace(SPEC, steps=m, seed=3, slow=((0, 0, 1.2),)))
    times = [predicted_step_s(side.durations, side.delays) for side in (before, after)]
    for parts in (stages(before.graph), kinds(before.graph)):
        rows = contributions(before, after, parts)
        assert rows.shape == (min(n, m), len(parts))
        assert rows.mean(axis=0).sum() == pytest.approx(times[1].mean() - times[0].mean())


def test_one_worker_is_a_chain_that_can_be_added_by_hand() -> None:
    """Nothing overlaps on one worker, so a kind accounts for the difference of its durations."""
    alone = Spec(pp=1, microbatches=(3,), steps=2, delays=False, gather=False, scatter=False)
    before, after = measured(alone), measured(replace(alone, seed=5))
    parts = kinds(before.graph)
    rows = contributions(before, after, parts).mean(axis=0)
    for part, seconds in zip(parts[:2], rows[:2], strict=True):
        sums = [side.durations.array[part.durations].sum(axis=0).mean() for side in (before, after)]
        assert seconds == pytest.approx(sums[1] - sums[0])
    assert rows[2] == pytest.approx(0.0, abs=1e-12)


def test_the_same_trace_changes_nothing() -> None:
    side = measured(SPEC)
    assert np.abs(contributions(side, side, kinds(side.graph))).max() < 1e-12


def test_large_jobs_take_fewer_steps_and_blocks(monkeypatch) -> None:
    before, after = measured(replace(SPEC, steps=30)), measured(replace(SPEC, steps=40, seed=3))
    parts = stages(before.graph)
    whole = contributions(before, after, parts)
    monkeypatch.setattr("paceline.comparison.attribution.BLOCK_VALUES", 1000)
    np.testing.assert_allclose(contributions(before, after, parts), whole, atol=1e-12)
    monkeypatch.setattr("paceline.comparison.attribution.MAX_VALUES", 1)
    rounds = []
    some = contributions(before, after, parts, lambda done, total: rounds.append((done, total)))
    assert len(some) == 8
    assert rounds[-1][0] == rounds[-1][1] > 1
    assert some.mean(axis=0) == pytest.approx(whole.mean(axis=0), abs=0.1)
