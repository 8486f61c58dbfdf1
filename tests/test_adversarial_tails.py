"""Healthy jobs with noise in tails get no cause; jobs with a cause get it, and no other.

The jobs are of a generator of this test's own (``tail_jobs``), written as a user would write them.
"""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline.diagnose import diagnose, forward_backward_correlation
from paceline.errors import GraphError, TraceError
from paceline.graph import from_trace
from paceline.remedies import Case, advise
from paceline.remedies.replace import KINDS
from paceline.sources import load
from paceline.whatif import analyze
from tail_jobs import TailJob, Worker


def diagnosed(job, folder):
    measured = from_trace(load(job.write(folder / "trace.parquet")))
    result = analyze(measured)
    return Case(measured, result, diagnose(measured, result))


def causes(job, folder):
    findings = diagnosed(job, folder).diagnosis.findings
    return [f for f in findings if f.cause not in ("unexplained", "drift")]


SMALL = {"dp": 6, "noise": 0.15, "tails": 0.02, "steps": 8}

#: Healthy jobs, and what an earlier version said of them: cause and confidence.
HEALTHY = {
    # Tails of 6 layers hit forward or backward; leaving out "pauses" made the two alike.
    "sequence-length 0.64": TailJob(
        dp=3, noise=0.15, tails=0.02, steps=3, gather_s=0.001, forward_s=0.005, seed=59
    ),
    "sequence-length 0.74": TailJob(
        dp=2, noise=0.15, tails=0.02, steps=8, layers=6, gather_s=0.001, forward_s=0.005, seed=57
    ),
    "sequence-length 0.69": TailJob(
        noise=0.03, tails=0.05, steps=20, layers=6, seed=57, forward_s=0.005, experts=True
    ),
    # One microbatch a step: a rank that wanders from step to step is no sequence.
    "sequence-length 1.0": TailJob(
        noise=0.01, tails=0.05, drift=0.08, steps=40, layers=1, seed=25, forward_s=0.2,
        experts=True,
    ),
    "sequence-length 0.79": TailJob(
        noise=0.03, tails=0.05, drift=0.08, microbatches=4, dp=3, seed=75, forward_s=0.005, tp=2
    ),
    # Forwards have tails by chance, backwards none.
    "gc 0.8": TailJob(noise=0.03, tails=0.05, steps=5, layers=2, dp=6, seed=67),
    "gc 1.0": TailJob(**SMALL | {"dp": 8}, gather_s=0.001, forward_s=0.02, seed=243),
    "gc 0.98": TailJob(**SMALL, layers=1, forward_s=0.02, seed=272),
    # The largest of many noisy computes beside one that was not.
    "expert-imbalance 1.0": TailJob(
        noise=0.01, even=True, tails=0.05, steps=40, layers=2, microbatches=2, seed=96,
        forward_s=0.2, experts=True,
    ),
    "expert-imbalance 0.99": TailJob(
        noise=0.03, even=True, tails=0.02, steps=20, layers=6, microbatches=2, seed=330,
        experts=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", HEALTHY)
def test_a_healthy_job_has_no_cause(said, tmp_path):
    assert causes(HEALTHY[said], tmp_path) == []


@pytest.mark.parametrize("seed", range(4))
def test_unrelated_forwards_and_backwards_do_not_correlate(seed, tmp_path):
    """Tails on either side: neither is made like the other to leave out pauses."""
    job = TailJob(dp=6, noise=0.15, tails=0.02, steps=40, layers=1, seed=seed)
    case = diagnosed(job, tmp_path)
    assert abs(forward_backward_correlation(case.measured.durations)) < 0.3


@pytest.mark.parametrize(
    ("slow", "job"),
    [
        # Beside dp 6 dp 1 was named, too; and stage 0 beside its replica's slow stage 1.
        (Worker(6), TailJob(noise=0.15, even=True, tails=0.02, steps=8, layers=2, dp=8, seed=19)),
        (
            Worker(1, 1),
            TailJob(noise=0.15, even=True, tails=0.02, layers=2, microbatches=4, seed=48, pp=2),
        ),
    ],
)
def test_only_the_slow_worker_is_named(slow, job, tmp_path):
    (finding,) = causes(with_slow(job, slow), tmp_path)
    assert finding.cause == "worker"
    assert finding.where["workers"] == [[slow.dp, slow.stage]]
    assert finding.confidence > 0.9


def with_slow(job, worker, factor=2.0):
    return TailJob(**{**vars_of(job), "slow": {worker: factor}})


def vars_of(job):
    return {name: getattr(job, name) for name in job.__dataclass_fields__}


@pytest.mark.parametrize("job", [{"dp": 4}, {"dp": 3, "pp": 2}, {"dp": 2, "tp": 2}])
@pytest.mark.parametrize("tails", [0.0, 0.02])
def test_lengths_that_differ_are_still_found(job, tails, tmp_path):
    lengths = TailJob(
        **job, microbatches=6, layers=2, steps=8, noise=0.03, tails=tails, lengths=0.3
    )
    (finding,) = causes(lengths, tmp_path)
    assert finding.cause == "sequence-length"
    assert finding.confidence > 0.9
    assert finding.evidence["coefficient_of_variation"] == pytest.approx(0.31, abs=0.06)


@pytest.mark.parametrize("job", [{"dp": 4}, {"dp": 3, "pp": 2}])
def test_pauses_of_forwards_are_still_found(job, tmp_path):
    pausing = TailJob(**job, microbatches=6, layers=1, steps=10, noise=0.03, pauses=0.05)
    (finding,) = causes(pausing, tmp_path)
    assert finding.cause == "gc"
    assert finding.confidence > 0.9
    assert finding.evidence["median_s"] == pytest.approx(0.3, rel=0.1)


def job_with_a_slow_rank(shape):
    shapes = {
        "fsdp": {"dp": 4},
        "hsdp": {"dp": 4, "sharded": "hsdp"},
        "ddp": {"dp": 4, "sharded": "ddp"},
        "pp": {"dp": 3, "pp": 2, "microbatches": 4},
        "vpp": {"dp": 3, "pp": 2, "microbatches": 4, "chunks": 2, "layers": 2},
        "zb": {"dp": 3, "pp": 2, "microbatches": 4, "split": True, "layers": 2},
        "tp": {"dp": 2, "tp": 2},
        "ep": {"dp": 4, "experts": True},
    }
    return TailJob(**shapes[shape], noise=0.05, steps=8, slow={Worker(1): 1.5}, seed=3)


@pytest.mark.parametrize("shape", ["fsdp", "hsdp", "ddp", "pp", "vpp", "zb", "tp", "ep"])
def test_steps_are_those_of_the_generators_own_simulation(shape, tmp_path):
    """The generator's recurrence, and the graph that follows from what it wrote."""
    job = job_with_a_slow_rank(shape)
    case = diagnosed(job, tmp_path)
    said = case.result.simulated_s
    np.testing.assert_allclose(said, [run.seconds for run in job.runs], rtol=1e-9)
    (finding,) = (f for f in case.diagnosis.findings if f.cause == "worker")
    assert finding.where["workers"] == [[job.tp, 0]]
    assert finding.evidence["factors"][0] == pytest.approx(1.5, rel=0.05)
    (remedy,) = (r for r in advise(case, KINDS).remedies if r.remedy == "replace-worker")
    healed = TailJob(**{**vars_of(job), "slow": {}})
    assert remedy.gain == pytest.approx(1 - healed.step_s / job.step_s, abs=0.02)


def changed(job, path, change):
    rows = job.table().to_pylist()
    for row in rows:
        change(row)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_a_wait_behind_the_end_of_the_program_is_refused(tmp_path):
    """A large number for "at once" would mean never: no forward would wait for its input."""

    def far(row):
        if row["optype"] == "forward-recv":
            row["awaited"] = 10**6

    job = TailJob(dp=3, pp=2, microbatches=4, layers=1, steps=3)
    path = changed(job, tmp_path / "far.parquet", far)
    words = (
        "36 rows have a wait behind the end of the program, the first is row 19 (step 0, dp 0, "
        "stage 1, forward-recv 0: awaited 1000000, but the last op of stage 1 has issued 18)"
    )
    with pytest.raises(TraceError, match=re.escape(words)):
        load(path)


def test_a_wait_behind_ops_that_are_ignored_is_none(tmp_path):
    def late(row):
        if row["optype"] == "optimizer-clip-main-grad":
            row["awaited"] += 1  # behind the launch of the optimizer

    path = changed(TailJob(steps=3), tmp_path / "late.parquet", late)
    assert load(path, ignore_kinds=["optimizer"]).program is not None


@pytest.mark.parametrize("n_ranks", [6, 8])
def test_members_that_differ_from_rank_to_rank_are_refused(n_ranks, tmp_path):
    """The last rank says that it meets rank 1, rank 0 that it meets the last one."""

    def wrong(row):
        if 0 <= row["group"] < 100 and row["dp_rank"] in (0, 1, n_ranks - 1):
            row["group"] = 0 if row["dp_rank"] == 0 else 1

    path = changed(TailJob(dp=n_ranks, sharded="hsdp", steps=3), tmp_path / "x.parquet", wrong)
    words = (
        "the groups of params-all-gather 0 of stage 0 are of unlike sizes: group 0 has 1 (dp 0, "
        f"stage 0), group 1 has 2 (dp 1, stage 0; dp {n_ranks - 1}, stage 0)"
    )
    with pytest.raises(GraphError, match=re.escape(words)):
        from_trace(load(path))
