"""Split backwards: orders against torch's own schedules, and their step graphs."""

import numpy as np
import pytest

import requires
from paceline.errors import GraphError
from paceline.graph import build_graph, from_trace
from paceline.graph.from_plan import from_plan
from paceline.graph.replica import ReplicaOps
from paceline.graph.split_replica import split_replica_ops
from paceline.graph.zero_bubble import (
    SPLIT_CHUNKS,
    SPLIT_SCHEDULES,
    dualpipe,
    dualpipev,
    zb_h1,
    zbv,
)
from paceline.model.costs import PlanCosts
from paceline.model.layer_costs import PARTS
from paceline.model.plan import Plan
from paceline.plan.step import step_time_s
from paceline.simulate import timeline
from paceline.trace import Job, OpKind
from program_jobs import Compute, Launch, Run, Wait, trace_of_runs

LETTER = {
    OpKind.FORWARD_COMPUTE: "F",
    OpKind.BACKWARD_COMPUTE: "I",
    OpKind.WEIGHT_COMPUTE: "W",
}


def words(order):
    computes = zip(order.kind, order.chunk, order.microbatch, strict=True)
    return " ".join(f"{LETTER[OpKind(int(k))]}{chunk}.{batch}" for k, chunk, batch in computes)


def of_torch(name, pp, n_pp, m):
    """The blocks of a stage by torch's own class: [(letter, chunk, microbatch), ...] each."""
    requires.installed("torch")
    from types import SimpleNamespace

    from torch.distributed.pipelining import schedules

    chunks = 1 if name == "ScheduleInterleavedZeroBubble" else 2
    stages = [
        SimpleNamespace(
            group_size=n_pp, group_rank=0, num_stages=chunks * n_pp, is_last=False, submod=None
        )
        for _ in range(chunks)
    ]
    order = getattr(schedules, name)(stages, m).pipeline_order[pp]
    blocks = []
    for action in order:
        if action is None:
            continue
        block = []
        for one in action.sub_actions or (action,):
            letter = one.computation_type.value
            chunk = int(one.stage_index != pp)
            parts = {"B": "IW"}.get(letter, letter)
            block += [(part, chunk, one.microbatch_index) for part in parts]
        blocks.append(block)
    return blocks


def blocks_of(order):
    blocks = [[] for _ in range(order.block[-1] + 1)]
    for kind, chunk, microbatch, block in zip(
        order.kind, order.chunk, order.microbatch, order.block, strict=True
    ):
        blocks[block].append((LETTER[OpKind(int(kind))], int(chunk), int(microbatch)))
    return blocks


@pytest.mark.parametrize(
    ("schedule", "name", "cases"),
    [
        (zb_h1, "ScheduleInterleavedZeroBubble", [(1, 1), (2, 2), (2, 6), (4, 4), (4, 12), (8, 8)]),
        (zbv, "ScheduleZBVZeroBubble", [(1, 3), (2, 1), (2, 4), (3, 4), (4, 8), (4, 11), (8, 20)]),
        (dualpipev, "ScheduleDualPipeV", [(1, 2), (2, 4), (3, 9), (4, 8), (4, 13), (8, 17)]),
    ],
)
def test_orders_are_those_of_torch(schedule, name, cases):
    for n_pp, m in cases:
        for pp in range(n_pp):
            assert blocks_of(schedule(pp, n_pp, m)) == of_torch(name, pp, n_pp, m), (n_pp, m, pp)


def test_zb_h1_defers_the_weights_by_the_stage():
    assert words(zb_h1(0, 2, 3)) == "F0.0 F0.1 I0.0 W0.0 F0.2 I0.1 W0.1 I0.2 W0.2"
    assert words(zb_h1(1, 2, 3)) == "F0.0 I0.0 F0.1 I0.1 W0.0 F0.2 I0.2 W0.1 W0.2"


def test_zbv_by_hand():
    """Two stages: the second one's chunks are neighbours, the first one ends with the loss."""
    assert words(zbv(1, 2, 3)) == (
        "F0.0 F1.0 F0.1 F1.1 I1.0 W1.0 F0.2 I0.0 W0.0 F1.2 I1.1 W1.1 I0.1 I1.2 I0.2 W0.1 W1.2 W0.2"
    )


def test_dualpipe_is_two_halves_that_mirror_each_other():
    for pp in range(2):
        upper, lower = dualpipe(pp, 4, 8), dualpipe(3 - pp, 4, 8)
        assert (upper.chunk == 1 - lower.chunk).all()
        assert (upper.kind == lower.kind).all()
        assert set(upper.microbatch[upper.chunk == 0].tolist()) == {0, 1, 2, 3}
        assert set(lower.microbatch[lower.chunk == 0].tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("schedule", [zb_h1, zbv, dualpipev, dualpipe])
def test_every_microbatch_goes_forward_backward_and_weight_once(schedule):
    order = schedule(1, 4, 8)
    computes = list(zip(order.kind, order.chunk, order.microbatch, strict=True))
    assert len(set(computes)) == len(computes)
    place = {compute: i for i, compute in enumerate(computes)}
    forward, backward, weight = (np.int64(int(kind)) for kind in LETTER)
    for kind, chunk, microbatch in computes:
        if kind == forward:
            back = place[backward, chunk, microbatch]
            assert place[kind, chunk, microbatch] < back < place[weight, chunk, microbatch]


def test_what_a_split_schedule_cannot_do_is_said():
    with pytest.raises(GraphError, match="at least 2 x 4 stages = 8 microbatches, not 7"):
        dualpipev(0, 4, 7)
    with pytest.raises(GraphError, match="even numbers of stages and microbatches, not 3 and 8"):
        dualpipe(0, 3, 8)
    with pytest.raises(GraphError, match="at least 2 x 4 stages = 8 microbatches, not 6"):
        dualpipe(0, 4, 6)


def costs_of(plan, forward, inputs, weight, p2p=0.0, exchange=(0.0, 0.0), **tail):
    """Durations of one place as those of all."""
    places = plan.chunks
    parts = np.zeros((2, len(PARTS), places))
    parts[0, 0], parts[1, 0] = forward - exchange[0], inputs + weight - exchange[1]
    parts[:, PARTS.index("ep")] = np.array(exchange)[:, None]
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
        "weight_s": np.zeros(places) + weight,
    }
    return PlanCosts(parts_s=parts, p2p_s=np.full(places, float(p2p)), **(given | tail))


def step_s(plan, *seconds, **more):
    planned = from_plan(plan, costs_of(plan, *seconds, **more))
    return float(timeline(planned.durations).step_times()[0])


def bubble_s(schedule, pp, m, forward, inputs, weight):
    """What a step takes beyond the work of a stage."""
    plan = Plan(pp=pp, global_batch=m, schedule=schedule)
    work = m * plan.chunks / pp * (forward + inputs + weight)
    return step_s(plan, forward, inputs, weight) - work


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (4, 19), (8, 32)])
@pytest.mark.parametrize("seconds", [(1, 1, 1), (1, 1.25, 0.75), (2, 2.5, 1)])
def test_zb_h1_has_the_published_bubble(pp, m, seconds):
    """(p - 1)(F + B - W) (Qi et al., Table 2): (PP - 1)(F + B - 2W) with B a whole backward."""
    forward, inputs, weight = seconds
    expected = (pp - 1) * (forward + (inputs + weight) - 2 * weight)
    assert bubble_s("zb-h1", pp, m, *seconds) == pytest.approx(expected)
    whole = (pp - 1) * (forward + inputs + weight)
    assert bubble_s("1f1b", pp, m, *seconds) == pytest.approx(whole)


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (4, 20), (8, 32)])
def test_dualpipe_has_the_published_bubble(pp, m):
    """(PP / 2 - 1)(F&B + B - 3W) (deepseek-ai/DualPipe, README), PP places of the model.

    Exact where F = B = W; F&B = F + B where nothing is exchanged.
    """
    both, backward, weight = 3.0, 2.0, 1.0
    expected = (pp / 2 - 1) * (both + backward - 3 * weight)
    assert bubble_s("dualpipe", pp, m, 1, 1, 1) == pytest.approx(expected)
    expected = (pp - 1) * (both + backward - 3 * weight)  # PP = 2 pp places on pp stages
    assert bubble_s("dualpipev", pp, m, 1, 1, 1) == pytest.approx(expected)


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (4, 13), (8, 32)])
def test_zbv_has_no_bubble_between_a_stage_s_first_and_last_compute(pp, m):
    """ "Zero bubble" where F = B = W (Qi et al., 6); stage i begins i later than the first."""
    plan = Plan(pp=pp, global_batch=m, schedule="zbv")
    planned = from_plan(plan, costs_of(plan, 1.0, 1.0, 1.0))
    line, graph = timeline(planned.durations), planned.graph
    computes = np.isin(graph.kind, list(LETTER))
    for stage in range(pp):
        own = computes & (graph.pp == stage)
        assert line.start.array[own, 0, 0].min() == stage
        assert line.end.array[own, 0, 0].max() == stage + 6 * m
    assert bubble_s("zbv", pp, m, 1, 1, 1) == pytest.approx(pp - 1)


def test_zbv_by_hand_on_two_stages():
    """One microbatch, transfers of 0.5 s, F 1, I 2, W 3: each W directly behind its own I."""
    plan = Plan(pp=2, global_batch=1, schedule="zbv")
    planned = from_plan(plan, costs_of(plan, 1.0, 2.0, 3.0, p2p=0.5))
    line, graph = timeline(planned.durations), planned.graph
    computes = np.flatnonzero(np.isin(graph.kind, list(LETTER)))
    begins = {
        f"{LETTER[OpKind(int(graph.kind[op]))]}{graph.chunk[op]} on {graph.pp[op]}": float(
            line.start.array[op, 0, 0]
        )
        for op in computes
    }
    assert begins == {
        "F0 on 0": 0.0,
        "F0 on 1": 1.5,
        "F1 on 1": 2.5,
        "F1 on 0": 4.0,
        "I1 on 0": 5.0,
        "W1 on 0": 7.0,
        "I1 on 1": 7.5,
        "W1 on 1": 9.5,
        "I0 on 1": 12.5,  # its gradient comes from the same stage, without a transfer
        "W0 on 1": 14.5,
        "I0 on 0": 15.0,
        "W0 on 0": 17.0,
    }


def test_an_overlapped_pair_hides_exchanges_behind_work():
    """F 2 s with 1 s of exchange, a backward of 4 s with 2 s of it: 3 s of work, 3 s of exchange.

    So the pair takes 3 s, of which the forward has a third, as it had alone.
    """
    plan = Plan(pp=2, global_batch=8, schedule="dualpipev")
    planned = from_plan(plan, costs_of(plan, 2.0, 3.0, 1.0, exchange=(1.0, 2.0)))
    graph, seconds = planned.graph, planned.durations.array[:, 0, 0]
    overlapped = {kind: sorted(set(seconds[(graph.kind == kind)].tolist())) for kind in LETTER}
    assert overlapped == {
        OpKind.FORWARD_COMPUTE: [1.0, 2.0],
        OpKind.BACKWARD_COMPUTE: [1.5, 3.0],
        OpKind.WEIGHT_COMPUTE: [0.5, 1.0],
    }


@pytest.mark.parametrize(("factor", "pair_s"), [(1.0, 3.0), (0.75, 3.5), (0, 5.0)])
def test_a_pair_that_overlaps_in_part_takes_the_rest_behind(factor, pair_s):
    """F 2 s with 0.5 s of exchange, a backward of 3 s with 1.5 s: w = 3 s of work, x = 2 s.

    max(w, x) + (1 - f) min(w, x) is 3, 3 + 0.25 x 2 and 3 + 2 s; the forward has 2 of 5 parts.
    """
    plan = Plan(pp=2, global_batch=8, schedule="dualpipe", overlap_factor=factor)
    costs = costs_of(plan, 2.0, 2.0, 1.0, exchange=(0.5, 1.5))
    planned = from_plan(plan, costs)
    forwards = planned.durations.array[planned.graph.kind == OpKind.FORWARD_COMPUTE, 0, 0]
    assert forwards.min() == pytest.approx(0.4 * pair_s, rel=1e-12)
    simulated = timeline(planned.durations).step_times()[0]
    assert step_time_s(costs, plan) == pytest.approx(simulated, rel=1e-12)


KINDS = {"F": "forward", "I": "backward"}


def program_of(name, pp, n_pp, m):
    """A stage's program for the tests' own event simulator, written from the blocks.

    Places of the model: chunk 0 of a stage, then on the way back chunk 1. DualPipe has two models.
    """
    program = [Launch("params-all-gather", "gather"), Wait("gather")]

    def place(stage, chunk):
        return 2 * n_pp - 1 - stage if chunk else stage

    def crosses(letter, chunk, receives):
        """The place of the one that gives, where it is another stage's."""
        here = place(pp, chunk)
        other = here + (-1 if (letter == "F") == receives else 1)
        if not 0 <= other < n_pp * SPLIT_CHUNKS[name]:
            return None
        same = n_pp - 1 in (here, other) and n_pp in (here, other)  # the turn of the V
        return None if same else (other if receives else here)

    for block in blocks_of(SPLIT_SCHEDULES[name](pp, n_pp, m)):
        for letter, chunk, batch in block:
            source = None if letter == "W" else crosses(letter, chunk, receives=True)
            if source is not None:
                own = (letter, chunk, batch)
                meeting = (letter, batch, source)
                program += [Launch(f"{KINDS[letter]}-recv", own, -1, chunk, meeting), Wait(own)]
        for letter, chunk, batch in block:
            kind = {"W": "weight"}.get(letter) or KINDS[letter]
            program.append(Compute(f"{kind}-compute", batch, chunk))
        for letter, chunk, batch in block:
            source = None if letter == "W" else crosses(letter, chunk, receives=False)
            if source is not None:
                sent = ("sent", letter, chunk, batch)
                meeting = (letter, batch, source)
                program.append(Launch(f"{KINDS[letter]}-send", sent, -1, chunk, meeting))
    return [*program, Compute("optimizer")]


@pytest.mark.parametrize("name", SPLIT_SCHEDULES)
@pytest.mark.parametrize("seed", range(3))
def test_programs_run_as_an_independent_simulation_has_them(name, seed):
    """Random times; receives are posted in front of their compute, as many frameworks do."""
    n_pp, m = (2, 4, 4)[seed], (4, 8, 10)[seed]
    programs = {(0, pp): program_of(name, pp, n_pp, m) for pp in range(n_pp)}
    rng = np.random.default_rng(seed)
    times = {}
    run = Run(programs, lambda key: times.setdefault(key, float(rng.uniform(0.1, 1.0))))
    measured = from_trace(trace_of_runs([run]), keep_clocks=True)
    assert measured.graph.programmed
    assert len(measured.graph.pairs) == sum(row["kind"].endswith("-send") for row in run.rows)
    simulated = timeline(measured.durations).step_times()[0]
    assert simulated == pytest.approx(run.step_s, rel=1e-9)


@pytest.mark.parametrize("name", SPLIT_SCHEDULES)
@pytest.mark.parametrize("overlap", [False, True])
def test_every_split_schedule_makes_a_graph(name, overlap):
    ops = split_replica_ops(name, 4, 8, overlap=overlap)
    chunks = SPLIT_CHUNKS[name]
    job = Job(dp_size=2, pp_size=4, vpp_size=chunks)
    graph = build_graph([ops], np.zeros(2, dtype=np.int64), job)
    passes = 8 * 4 * (1 if name in ("zb-h1", "dualpipe") else 2)
    for kind in LETTER:
        assert (graph.kind == kind).sum() == passes
    assert (graph.kind == OpKind.GRADS_REDUCE_SCATTER).sum() == 4 * chunks
    # Each sends where its chunk goes on: chunk 0 down the stages, chunk 1 back up.
    sends = graph.pairs[graph.kind[graph.pairs[:, 0]] == OpKind.FORWARD_SEND]
    onwards = graph.pp[sends[:, 1]] - graph.pp[sends[:, 0]]
    assert (onwards == np.where(graph.chunk[sends[:, 0]] == 1, -1, 1)).all()
    assert (graph.chunk[sends[:, 1]] == graph.chunk[sends[:, 0]]).all()


def test_gradients_are_reduced_behind_the_last_weights_of_their_chunk():
    plan = Plan(pp=2, dp=2, global_batch=8, schedule="zbv")
    reduce = {"reduce_scatter_s": np.full(4, 0.5), "overlapped": True}
    planned = from_plan(plan, costs_of(plan, 1.0, 1.0, 1.0, **reduce))
    line, graph = timeline(planned.durations), planned.graph
    for op in np.flatnonzero(graph.kind == OpKind.GRADS_REDUCE_SCATTER):
        weights = (graph.kind == OpKind.WEIGHT_COMPUTE) & (graph.pp == graph.pp[op])
        weights &= graph.chunk == graph.chunk[op]
        ends = line.end.array[weights, 0, 0]
        assert line.start.array[op, 0, 0] == ends.max()


def test_a_weight_gradient_without_its_backward_is_named():
    ops = split_replica_ops("zb-h1", 2, 2)
    chosen = (ops.kind == OpKind.WEIGHT_COMPUTE) & (ops.pp == 1) & (ops.microbatch == 0)
    rank = ops.rank.copy()
    rank[chosen] = -1
    fields = {name: getattr(ops, name) for name in ReplicaOps.__dataclass_fields__}
    job, one = Job(dp_size=1, pp_size=2), np.zeros(1, dtype=np.int64)
    early = ReplicaOps(**(fields | {"rank": rank}))
    with pytest.raises(
        GraphError, match=r"weight-compute 0 of stage 1, chunk 0 needs the backward"
    ):
        build_graph([early], one, job)
    plain = ReplicaOps(**(fields | {"awaited": None, "part": None}))
    with pytest.raises(GraphError, match="without the columns issued and awaited"):
        build_graph([plain], one, job)
