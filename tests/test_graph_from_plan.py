"""Graphs of plans: closed forms, an independent simulation of events, the recurrence."""

import heapq
import random

import numpy as np
import pytest

from paceline.graph.from_plan import from_plan
from paceline.graph.schedules import SCHEDULES
from paceline.model.costs import PlanCosts
from paceline.model.layer_costs import PARTS
from paceline.model.plan import Plan
from paceline.plan.step import step_time_s
from paceline.simulate import timeline
from paceline.trace import OpKind


def costs_of(plan, forward, backward, p2p=0.0, **tail):
    """Durations given place by place."""
    places = plan.chunks
    parts = np.zeros((2, len(PARTS), places))
    parts[0, 0], parts[1, 0] = forward, backward
    hand_over = np.full(places, float(p2p))
    hand_over[-1] = 0.0
    given = {
        "all_gather_s": np.zeros(places),
        "reduce_scatter_s": np.zeros(places),
        "hidden_dp_s": np.zeros(places),
        "layernorm_grads_s": np.zeros(plan.pp),
        "embedding_grads_s": 0.0,
        "clip_s": 0.0,
        "optimizer_s": np.zeros(plan.pp),
        "fixed_s": 0.0,
        "overlapped": False,
    }
    return PlanCosts(parts_s=parts, p2p_s=hand_over, **(given | tail))


def simulated(plan, costs):
    return float(timeline(from_plan(plan, costs).durations).step_times()[0])


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("pp", "m"), [(1, 1), (1, 5), (4, 4), (4, 13), (8, 2)])
def test_equal_stages_take_m_plus_p_minus_1_turns(schedule, pp, m):
    plan = Plan(pp=pp, global_batch=m, schedule=schedule)
    assert simulated(plan, costs_of(plan, 1.0, 2.0)) == pytest.approx((m + pp - 1) * 3.0)


@pytest.mark.parametrize(("pp", "v", "m"), [(4, 2, 8), (4, 4, 12), (2, 3, 4)])
def test_interleaving_divides_the_bubble_by_the_chunks(pp, v, m):
    """(m + (p - 1) / v) (f + b), f and b of a whole stage (Narayanan et al. 2021, 2.2)."""
    plan = Plan(pp=pp, vpp=v, global_batch=m)
    step = simulated(plan, costs_of(plan, 1.0 / v, 2.0 / v))
    assert step == pytest.approx((m + (pp - 1) / v) * 3.0)


def events(plan, forward, backward):
    """End of the last compute by a queue of events; knows nothing of graphs. No transfers."""
    orders = []
    for pp in range(plan.pp):
        order = SCHEDULES[plan.schedule](pp, plan.pp, plan.microbatches, plan.vpp)
        orders.append(list(zip(order.backward, order.chunk, order.microbatch, strict=True)))
    last = plan.chunks - 1
    ended, free, at = {}, [0.0] * plan.pp, [0] * plan.pp
    queue = [(0.0, pp) for pp in range(plan.pp)]
    latest = 0.0
    while queue:
        _, pp = heapq.heappop(queue)
        while at[pp] < len(orders[pp]):
            back, chunk, microbatch = orders[pp][at[pp]]
            place = int(chunk) * plan.pp + pp
            if back:
                need = (True, place + 1, microbatch) if place < last else (False, last, microbatch)
            else:
                need = (False, place - 1, microbatch) if place else None
            if need is not None and need not in ended:
                break
            start = max(free[pp], ended.get(need, 0.0))
            free[pp] = start + (backward if back else forward)[place]
            ended[bool(back), place, microbatch] = free[pp]
            latest = max(latest, free[pp])
            at[pp] += 1
            for other in range(plan.pp):
                heapq.heappush(queue, (free[pp], other))
    return latest


@pytest.mark.parametrize("seed", range(20))
def test_unequal_stages_as_an_independent_simulation_has_them(seed):
    rng = random.Random(seed)
    pp, v = rng.choice([(2, 1), (4, 1), (3, 1), (4, 2), (2, 3)])
    m = pp * rng.randint(1, 4)
    schedule = "interleaved" if v > 1 else rng.choice(["gpipe", "1f1b"])
    plan = Plan(pp=pp, vpp=v, global_batch=m, schedule=schedule)
    forward = [rng.uniform(0.5, 2) for _ in range(plan.chunks)]
    backward = [rng.uniform(0.5, 3) for _ in range(plan.chunks)]
    costs = costs_of(plan, forward, backward)
    assert simulated(plan, costs) == pytest.approx(events(plan, forward, backward), rel=1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_the_recurrence_equals_the_simulation(seed):
    """``step_time_s`` knows the tail, too: gathers, reductions, embedding, clip, optimizer."""
    rng = np.random.default_rng(seed)
    pp, v = [(1, 1), (2, 1), (4, 1), (4, 2), (2, 4)][seed % 5]
    m = pp * int(rng.integers(1, 5))
    plan = Plan(pp=pp, vpp=v, dp=2, global_batch=2 * m)
    draw = rng.uniform
    costs = costs_of(
        plan,
        draw(0.5, 2, plan.chunks),
        draw(0.5, 3, plan.chunks),
        draw(0, 0.3),
        all_gather_s=draw(0, 1, plan.chunks),
        reduce_scatter_s=draw(0, 1, plan.chunks),
        layernorm_grads_s=draw(0, 0.2, pp),
        embedding_grads_s=draw(0, 0.5) if pp > 1 else 0.0,
        clip_s=draw(0, 0.1),
        optimizer_s=draw(0, 0.5, pp),
        overlapped=bool(seed % 2),
    )
    assert step_time_s(costs, plan) == pytest.approx(simulated(plan, costs), rel=1e-12)


@pytest.mark.parametrize("schedule", ["zb-h1", "zbv", "dualpipev", "dualpipe"])
def test_the_recurrence_equals_the_simulation_with_split_backwards(schedule):
    rng = np.random.default_rng(len(schedule))
    for overlapped in (False, True) * 5:
        pp = 2 * int(rng.integers(1, 4))
        m = 2 * pp + 2 * int(rng.integers(0, 4))
        plan = Plan(pp=pp, dp=2, global_batch=2 * m, schedule=schedule)
        draw, places = rng.uniform, plan.chunks
        backward, exchange = draw(0.5, 3, places), draw(0, 0.5, (2, places))
        costs = costs_of(
            plan,
            draw(0.5, 2, places),
            backward,
            draw(0, 0.3),
            all_gather_s=draw(0, 1, places),
            reduce_scatter_s=draw(0, 1, places),
            layernorm_grads_s=draw(0, 0.2, pp),
            embedding_grads_s=draw(0, 0.5) if schedule == "zb-h1" else 0.0,
            clip_s=draw(0, 0.1),
            optimizer_s=draw(0, 0.5, pp),
            overlapped=overlapped,
            weight_s=backward * draw(0.1, 0.6, places),
        )
        costs.parts_s[:, PARTS.index("ep")] = exchange
        for fast in (False, True):
            alone = step_time_s(costs, plan, fast=fast)
            assert alone == pytest.approx(simulated(plan, costs), rel=1e-12)


def test_a_stage_runs_its_schedule_in_order():
    plan = Plan(pp=2, global_batch=3)
    planned = from_plan(plan, costs_of(plan, 1.0, 2.0))
    line, graph = timeline(planned.durations), planned.graph
    computes = np.flatnonzero((graph.kind <= OpKind.BACKWARD_COMPUTE) & (graph.pp == 0))
    computes = computes[np.argsort(line.start.array[computes, 0, 0])]
    named = [f"{OpKind(int(graph.kind[i])).label[0]}{graph.microbatch[i]}" for i in computes]
    assert named == ["f0", "f1", "b0", "f2", "b1", "b2"]


def test_uneven_layers_and_no_ops_of_the_ends():
    plan = Plan(pp=2, vpp=2, global_batch=2)
    planned = from_plan(plan, costs_of(plan, [1, 2, 3, 4], 1.0, 0.5))
    graph, seconds = planned.graph, planned.durations.array[:, 0, 0]
    forward = graph.kind == OpKind.FORWARD_COMPUTE
    by_place = {
        (int(c), int(p)): s
        for c, p, s in zip(graph.chunk[forward], graph.pp[forward], seconds[forward], strict=True)
    }
    assert by_place == {(0, 0): 1, (0, 1): 2, (1, 0): 3, (1, 1): 4}
    assert graph.noop.sum() == 8
    assert not seconds[graph.noop].any()
