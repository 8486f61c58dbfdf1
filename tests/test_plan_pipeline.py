"""The recurrence of pipelines against closed forms and against the one simulator."""

import numpy as np
import pytest

from paceline.errors import PlanError
from paceline.graph import Durations
from paceline.graph.build import build_graph
from paceline.graph.schedules import SCHEDULES, replica_ops
from paceline.plan.pipeline import Pipelines, pipeline_times
from paceline.simulate import Rules, all_lanes, step_times
from paceline.trace import Job, OpKind

#: Kind of a transfer -> kind of its compute, and by how many places it lies before its own.
TRANSFERS = {
    OpKind.FORWARD_SEND: (OpKind.FORWARD_COMPUTE, 0),
    OpKind.FORWARD_RECV: (OpKind.FORWARD_COMPUTE, -1),
    OpKind.BACKWARD_SEND: (OpKind.BACKWARD_COMPUTE, -1),
    OpKind.BACKWARD_RECV: (OpKind.BACKWARD_COMPUTE, 0),
}


def simulated(pipelines: Pipelines) -> float:
    """Seconds of the one plan by its graph; gathers make ``ready_s``."""
    p, v, m = pipelines.pp, pipelines.vpp, int(pipelines.microbatches[0])
    ops = replica_ops(SCHEDULES[pipelines.schedule], p, m, v)
    graph = build_graph([ops], np.zeros(1, dtype=np.int64), Job(dp_size=1, pp_size=p, vpp_size=v))
    place = np.maximum(graph.chunk, 0) * p + graph.pp
    seconds = np.zeros(graph.n_ops)
    for kind, each in (
        (OpKind.FORWARD_COMPUTE, pipelines.forward_s[0]),
        (OpKind.BACKWARD_COMPUTE, pipelines.backward_s[0]),
    ):
        seconds[graph.kind == kind] = each[place[graph.kind == kind]]
    if pipelines.ready_s is not None:
        gather = np.diff(pipelines.ready_s[0].reshape(v, p), axis=0, prepend=0.0).ravel()
        ops_of = graph.kind == OpKind.PARAMS_ALL_GATHER
        seconds[ops_of] = gather[place[ops_of]]
    for kind, (compute, before) in TRANSFERS.items():
        for stage in range(p):
            ops_of = np.flatnonzero((graph.kind == kind) & (graph.pp == stage))
            at = place[(graph.kind == compute) & (graph.pp == stage)] + before
            joins = (at >= 0) & (at < p * v - 1)  # else nobody is there to hand over to
            if len(ops_of) != len(at):
                at, joins = at[joins], joins[joins]
            seconds[ops_of] = np.where(joins, pipelines.p2p_s[0][at * joins], 0.0)
    durations = Durations.empty(graph, 1)
    durations.block(0)[:, 0, 0] = seconds
    every = np.ones((1, graph.n_ops), dtype=bool)
    return float(step_times(durations, Rules(every, np.zeros(graph.n_ops)), all_lanes(graph, 1))[0])


def equal_stages(schedule: str, pp: int, vpp: int, m: int, forward: float, backward: float):
    shape = (1, pp * vpp)
    times = pipeline_times(
        schedule,
        *(pp, vpp, np.array([m])),
        *(np.full(shape, forward), np.full(shape, backward), np.zeros(shape)),
    )
    return float(times[0])


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("pp", "m"), [(1, 1), (1, 5), (4, 1), (4, 4), (4, 3), (8, 32)])
def test_equal_stages_take_m_plus_p_minus_one(schedule: str, pp: int, m: int) -> None:
    assert equal_stages(schedule, pp, 1, m, 1.0, 2.0) == (m + pp - 1) * 3.0


@pytest.mark.parametrize(("pp", "vpp", "m"), [(2, 2, 4), (4, 3, 16), (8, 2, 64)])
def test_the_interleaved_bubble_is_divided_by_the_chunks(pp: int, vpp: int, m: int) -> None:
    """A stage does all its chunks: f + b of it is vpp times a chunk's (Narayanan et al., 2.2)."""
    stage = vpp * (1.0 + 2.0)
    assert equal_stages("interleaved", pp, vpp, m, 1.0, 2.0) == m * stage + (pp - 1) * stage / vpp


def random_pipelines(rng: np.random.Generator, schedule: str) -> Pipelines:
    vpp = int(rng.integers(2, 4)) if schedule == "interleaved" else 1
    pp = int(rng.integers(2 if vpp > 1 else 1, 6))
    m = int(rng.integers(1, 12)) if vpp == 1 else pp * int(rng.integers(1, 4))
    shape = (1, pp * vpp)
    forward, backward = rng.lognormal(0.0, rng.choice([0.0, 0.1, 1.0]), (2, *shape))
    p2p = rng.exponential(rng.choice([1e-9, 0.1, 1.0]), shape)
    ready = np.cumsum(rng.exponential(rng.choice([1e-9, 2.0]), (vpp, pp)), axis=0).reshape(shape)
    return Pipelines(schedule, pp, vpp, np.array([m]), forward, backward, p2p, ready)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_unequal_stages_take_what_the_simulator_says(schedule: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(40):
        pipelines = random_pipelines(rng, schedule)
        expected = simulated(pipelines)
        assert pipelines.ends().max() == pytest.approx(expected, rel=1e-12)


def test_plans_are_independent_and_compiled_or_not_makes_no_difference() -> None:
    rng = np.random.default_rng(3)
    m = np.array([4, 8, 12])
    pipelines = Pipelines("interleaved", 4, 2, m, *rng.random((3, 3, 8)))
    plain = pipelines.ends(fast=False)
    assert (pipelines.ends(fast=True) == plain).all()
    for i in range(3):
        parts = (x[i : i + 1] for x in (pipelines.forward_s, pipelines.backward_s, pipelines.p2p_s))
        assert (Pipelines("interleaved", 4, 2, m[i : i + 1], *parts).ends() == plain[i]).all()


def test_the_end_of_each_place_by_hand() -> None:
    """Two stages, one microbatch: f0 1, hand-over 0.5, f1 1, b1 2, hand-over 0.5, b0 3."""
    pipelines = Pipelines(
        *("1f1b", 2, 1, np.array([1])),
        *(np.array([[1.0, 1.0]]), np.array([[3.0, 2.0]]), np.array([[0.5, 0.0]])),
    )
    assert pipelines.ends().tolist() == [[8.0, 4.5]]


def test_shapes_that_do_not_belong_together() -> None:
    one = np.ones((1, 4))
    with pytest.raises(PlanError, match=r"forward_s is \(1, 4\)"):
        Pipelines("1f1b", 2, 1, np.array([1]), one, one, one)
    with pytest.raises(PlanError, match="no schedule 'zigzag'"):
        Pipelines("zigzag", 4, 1, np.array([1]), one, one, one)
    with pytest.raises(PlanError, match="1f1b with 2 chunks"):
        Pipelines("1f1b", 2, 2, np.array([2]), one, one, one)
    with pytest.raises(PlanError, match="multiples of the 2 stages"):
        Pipelines("interleaved", 2, 2, np.array([3]), one, one, one)
