"""The independent world: its simulator, its jobs, and what the benchmark makes of them."""

from dataclasses import replace

import numpy as np
import pytest

import jobs
from oracle import Oracle
from world.draws import exactly, normal
from world.faults import (
    Delay,
    HeavyEnds,
    LateMember,
    Loading,
    Pauses,
    SlowLink,
    SlowMachine,
    SlowNic,
    UnevenData,
)
from world.noise import (
    Bursts,
    Clocks,
    CommonSteps,
    GaussianOps,
    HeavyTails,
    LognormalMembers,
    LognormalOps,
    Spread,
    TwoClocks,
    Wander,
)
from world.plant import World, even_setup
from world.programs import (
    BACKWARD,
    CLIP,
    EMBEDDING,
    FORWARD,
    GATHER,
    GC,
    LAYERNORM,
    OPTIMIZER,
    SCATTER,
    SEPARATE,
    Shape,
    program_of,
)
from world.record import rows_of, simulate, with_gc_every
from world.schedules import SCHEDULES
from world.walk import run

OPTIONAL = {
    GATHER: "gather", SCATTER: "scatter", LAYERNORM: "layernorm", EMBEDDING: "embedding",
    GC: "gc", CLIP: "clip", OPTIMIZER: "optimizer", SEPARATE: "overlapped",
}  # fmt: skip


def order_of(spec):
    """The compute order of a random job, as the walk's programs write it."""

    def order(stage, stages, microbatches, chunks):
        computes = jobs.compute_order(spec, stage, microbatches)
        return [("F" if kind[0] == "f" else "B", chunk, m) for kind, chunk, m in computes]

    return order


def shape_of(spec):
    return Shape(
        stages=spec.pp,
        microbatches=spec.microbatches,
        chunks=spec.vpp,
        overlap=spec.overlapped,
        noops=spec.noops != "none",
        kinds=frozenset(kind for kind, name in OPTIONAL.items() if getattr(spec, name)),
        order=order_of(spec),
    )


@pytest.mark.parametrize("seed", range(60))
def test_the_walk_equals_the_oracle_on_random_jobs(seed):
    spec = replace(jobs.random_spec(seed), named_chunks=True)
    rows = jobs.make_rows(spec)
    oracle = Oracle(rows, spec.pp, spec.vpp)
    program = program_of(shape_of(spec))
    place = {
        key: op
        for op, key in enumerate(
            zip(program.dp, program.stage, program.kind, program.seq, strict=True)
        )
    }
    assert len(rows) == len(program) * spec.steps
    seconds, delay, start, end = np.full((4, len(program), spec.steps), np.nan)
    for i, row in enumerate(rows):
        at = place[row["dp"], row["pp"], row["kind"], row["seq"]], row["step"] - spec.first_step
        seconds[at], delay[at] = oracle.durations[i], oracle.delays[i]
        start[at], end[at] = row["start"], row["start"] + row["duration"]

    replayed = run(program, seconds, delay)
    np.testing.assert_allclose(replayed.launch, start, rtol=0, atol=1e-9)
    np.testing.assert_allclose(replayed.end, end, rtol=0, atol=1e-9)
    without_delays = run(program, seconds, np.zeros_like(delay))
    np.testing.assert_allclose(without_delays.step_s, oracle.step_times(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_schedules_equal_those_of_the_random_jobs(schedule):
    chunks = 2 if schedule == "interleaved" else 1
    spec = jobs.Spec(pp=4, vpp=chunks, schedule=schedule)
    for stage in range(4):
        want = order_of(spec)(stage, 4, 8, chunks)
        assert SCHEDULES[schedule](stage, 4, 8, chunks) == want


def bare(schedule, stages, microbatches, chunks=1):
    """A step of equal stages (forward 1 s, backward 2 s in all) whose transfers take no time."""
    shape = Shape(stages, (microbatches,), chunks, schedule, kinds=frozenset())
    program = program_of(shape)
    seconds = np.zeros((len(program), 1))
    kind = program.column("kind")
    seconds[kind == "forward-compute"] = 1 / chunks
    seconds[kind == "backward-compute"] = 2 / chunks
    return float(run(program, seconds, np.zeros_like(seconds)).step_s[0])


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 4), (4, 8), (4, 16)])
def test_bubbles_follow_the_formulas(stages, microbatches):
    work, fill = 3 * microbatches, 3 * (stages - 1)
    assert bare("gpipe", stages, microbatches) == pytest.approx(work + fill)
    assert bare("1f1b", stages, microbatches) == pytest.approx(work + fill)
    # Narayanan et al. 2021, 2.2: interleaving divides the bubble by the number of chunks.
    for chunks in (2, 4):
        got = bare("interleaved", stages, microbatches, chunks)
        assert got == pytest.approx(work + fill / chunks)


def test_1f1b_by_hand():
    """Two stages, two microbatches, forward 1 s, backward 2 s, transfers 0.5 s.

    Stage 0: F0 0-1, F1 1-2. Stage 1: F0 1.5-2.5, B0 2.5-4.5, F1 4.5-5.5, B1 5.5-7.5.
    Stage 0: B0 5-7 behind its gradients (5), B1 8-10 behind its own (7.5 + 0.5).
    """
    program = program_of(Shape(2, (2,), kinds=frozenset()))
    kind = program.column("kind")
    seconds = np.full((len(program), 1), 0.5)
    seconds[kind == "forward-compute"], seconds[kind == "backward-compute"] = 1, 2
    timeline = run(program, seconds, np.zeros_like(seconds))
    at = {
        (program.stage[i], kind[i][0].upper(), program.microbatch[i]): float(timeline.launch[i, 0])
        for i in range(len(program))
        if kind[i].endswith("compute")
    }
    assert at == {
        (0, "F", 0): 0, (0, "F", 1): 1, (0, "B", 0): 5, (0, "B", 1): 8,
        (1, "F", 0): 1.5, (1, "B", 0): 2.5, (1, "F", 1): 4.5, (1, "B", 1): 5.5,
    }  # fmt: skip
    assert float(timeline.step_s[0]) == 10


def test_buckets_start_when_their_share_of_the_last_backward_is_over():
    """One worker, one microbatch: backward 1 to 3 s, four buckets of 1 s from 1.5 s on."""
    shape = Shape(1, (1,), overlap=True, buckets=4, kinds=frozenset({SCATTER, OPTIMIZER}))
    program = program_of(shape)
    seconds = np.array([[1.0], [2.0], [1.0], [1.0], [1.0], [1.0], [0.25]])
    timeline = run(program, seconds, np.zeros_like(seconds))
    scatter = program.column("kind") == SCATTER
    assert timeline.launch[scatter, 0].tolist() == [1.5, 2.5, 3.5, 4.5]
    assert float(timeline.step_s[0]) == 5.75


def small_world(*faults, **more):
    values = {"seed": 3, "dp": 2, "stages": 2, "steps": 3, "slots": 4, "faults": faults} | more
    return World(**values)


def ops_that_differ(one, other):
    """(kind, dp, stage) of the operations whose durations or delays differ."""
    assert one.ops.program.kind == other.ops.program.kind
    same = (one.seconds == other.seconds) & (one.delay == other.delay)
    at = np.flatnonzero(~same.all(axis=1))
    return {(one.ops.program.kind[i], int(one.ops.dp[i]), int(one.ops.stage[i])) for i in at}


EVERY_NOISE = (
    GaussianOps(0.003), LognormalOps(0.01), LognormalMembers(0.2), HeavyTails("student", 0.15),
    HeavyTails("pareto", 0.3), Wander(0.01, 0.9), CommonSteps(0.01), Bursts(1.5, 0.1, 3),
    TwoClocks(0.05), Spread(0.01),
)  # fmt: skip


def test_a_job_regenerated_is_equal():
    faults = (SlowMachine(0, 1, 1.5), Pauses(0.3, 0.2), UnevenData(0.3), Delay(FORWARD, 0.006))
    world = small_world(*faults, noise=EVERY_NOISE, clocks=Clocks(0.001, 0.001, 1e-5))
    setup = even_setup(world, 4)
    one, other = simulate(world, setup), simulate(world, setup)
    assert ops_that_differ(one, other) == set()
    first, second = rows_of(world, one), rows_of(world, other)
    assert all((first[name] == second[name]).all() for name in first)


@pytest.mark.parametrize(
    ("fault", "touched"),
    [
        (SlowMachine(0, 1, 1.5), {(FORWARD, 0, 1), (BACKWARD, 0, 1)}),
        (SlowNic(1, 0, 5.0), {(k, dp, 0) for k in (GATHER, SCATTER) for dp in (0, 1)}),
        (LateMember(1, 0, 0.02, (SCATTER,)), {(SCATTER, 1, 0)}),
        (Loading(0.3), {(FORWARD, 0, 0), (FORWARD, 1, 0)}),
        (Delay(BACKWARD, 0.006), {(BACKWARD, dp, pp) for dp in (0, 1) for pp in (0, 1)}),
        (
            SlowLink(1, 0, 10.0),
            {
                ("forward-send", 1, 0), ("forward-recv", 1, 1),
                ("backward-send", 1, 1), ("backward-recv", 1, 0),
            },
        ),
    ],
)  # fmt: skip
def test_a_fault_changes_its_own_operations_only(fault, touched):
    other = (Pauses(0.3, 0.2), UnevenData(0.3))
    healthy = small_world(*other, noise=EVERY_NOISE)
    ill = small_world(*other, fault, noise=EVERY_NOISE)
    setup = even_setup(healthy, 4)
    assert ops_that_differ(simulate(healthy, setup), simulate(ill, setup)) == touched


def test_a_replaced_machine_is_a_typical_one():
    ill, healthy = small_world(SlowMachine(0, 1, 1.5)), small_world()
    setup = even_setup(ill, 4)
    replaced = replace(setup, new_machines=frozenset({1}))  # dp 0 x 2 stages + stage 1
    assert ops_that_differ(simulate(ill, replaced), simulate(healthy, setup)) == set()


def test_machines_take_their_speed_along_and_leave_the_work():
    world = small_world(SlowMachine(0, 1, 1.5), noise=())
    setup = even_setup(world, 4)
    swapped = replace(setup, machine_at=np.array([[1, 0], [2, 3]]))  # dp 0: stages 0 and 1
    before, after = simulate(world, setup), simulate(world, swapped)
    forward = (before.ops.kind == FORWARD) & (before.ops.dp == 0)
    by_stage = [
        [float(job.seconds[forward & (job.ops.stage == stage)][0, 0]) for stage in (0, 1)]
        for job in (before, after)
    ]
    # Twelve layers of 5 ms, embedding 0.1 and loss 0.2 layers more.
    assert by_stage[0] == pytest.approx([0.0605, 0.061 * 1.5])
    assert by_stage[1] == pytest.approx([0.0605 * 1.5, 0.061])


def test_a_broken_path_idles_once_its_ends_are_no_neighbours():
    world = small_world(SlowLink(0, 0, 50.0), noise=())
    setup = even_setup(world, 4)
    healthy = simulate(small_world(noise=()), setup).step_s
    apart = replace(setup, machine_at=np.array([[2, 1], [0, 3]]))
    repaired = replace(setup, repaired_links=frozenset({(0, 0, 1)}))
    assert (simulate(world, setup).step_s > healthy).all()
    assert (simulate(world, apart).step_s == healthy).all()
    assert (simulate(world, repaired).step_s == healthy).all()


def test_chunks_hold_their_own_layers_and_only_the_last_one_the_loss():
    world = small_world(HeavyEnds(first=1.0, last=4.0), noise=())
    job = simulate(world, even_setup(world, 4, chunks=2))
    forward = job.ops.kind == FORWARD
    seconds = {
        place: set(np.round(job.seconds[forward & (job.ops.place == place)], 9).ravel().tolist())
        for place in range(4)
    }
    # Six layers of 5 ms each; embedding 1.1 and loss 4.2 layers.
    assert seconds == {0: {0.0355}, 1: {0.03}, 2: {0.03}, 3: {0.051}}


def test_planned_collections_are_paid_once_in_so_many_steps():
    world = small_world(Pauses(0.5, 0.2), noise=())
    setup = even_setup(world, 4)
    calm = float(simulate(small_world(noise=()), setup).step_s.mean())
    assert with_gc_every(world, setup, 0.3, 10) == pytest.approx(calm + 0.03)
    assert simulate(world, setup).step_s.mean() > calm


def test_collections_hit_as_often_with_chunks():
    world = small_world(Pauses(0.3, 1.0), steps=8, noise=())
    calm = small_world(steps=8, noise=())
    pauses = []
    for chunks in (1, 2):
        setup = even_setup(world, 4, chunks=chunks)
        excess = simulate(world, setup).seconds - simulate(calm, setup).seconds
        pauses.append(np.sort(excess[excess > 0]))
    np.testing.assert_allclose(pauses[0], pauses[1], rtol=0, atol=1e-12)


def test_workers_read_their_own_clocks():
    exact, skewed = small_world(), small_world(clocks=Clocks(skew_s=0.01))
    setup = even_setup(exact, 4)
    job = simulate(exact, setup)
    first, second = rows_of(exact, job), rows_of(skewed, job)
    for worker in range(4):
        own = first["rank"] == worker
        apart = second["start"][own] - first["start"][own]
        assert np.ptp(apart) < 1e-12
        assert abs(apart[0]) > 1e-4


def test_draws_depend_on_their_names_only():
    many = normal(1, "op", np.arange(100)[:, None], np.arange(7))
    assert float(normal(1, "op", 41, 5)[0]) == many[41, 5]
    assert abs(float(normal(1, "op", np.arange(10**5)).std()) - 1) < 0.01
    assert float(np.corrcoef(many[:, 0], many[:, 1])[0, 1]) < 0.3
    assert exactly(0.25, 8, 1, "nic").sum() == 2
