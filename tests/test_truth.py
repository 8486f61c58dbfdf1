"""The independent world: its simulator, its jobs, and what the benchmark makes of them."""

import numpy as np
import pytest

import jobs
from oracle import Oracle
from world.programs import (
    CLIP,
    EMBEDDING,
    GATHER,
    GC,
    LAYERNORM,
    OPTIMIZER,
    SCATTER,
    SEPARATE,
    Shape,
    program_of,
)  # fmt: skip
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
    spec = jobs.replace(jobs.random_spec(seed), named_chunks=True)
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
