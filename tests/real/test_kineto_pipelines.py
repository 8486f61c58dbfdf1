"""PyTorch profiles of a real gloo pipeline that is made here."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kineto_profiles
import requires
from import_files import ProfileWriter, dump, load, same
from paceline.errors import TraceError
from paceline.graph.from_trace import from_trace
from paceline.sources import kineto
from paceline.trace import Job, OpKind, Trace
from pipeline_job import MICROBATCHES, SCHEDULES, STEPS

K = OpKind
JOB = Path(__file__).parents[1] / "pipeline_job.py"
truth = kineto_profiles.truth


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Profiles of a pipeline of two processes, a folder per schedule."""
    requires.installed("torch")
    import torch.distributed

    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed: install a build that has it, as on Linux")
    folder = tmp_path_factory.mktemp("gloo")
    command = [sys.executable, "-W", "ignore", str(JOB), str(folder)]
    ranks = [
        subprocess.Popen([*command, str(rank), "2"], stderr=subprocess.PIPE) for rank in range(2)
    ]
    try:
        for process in ranks:
            _, said = process.communicate(timeout=240)
            assert process.returncode == 0, said.decode()
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return folder


def profiles_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("rank*.json.gz"))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_real_pipeline(real: Path, schedule: str) -> None:
    paths = profiles_in(real / schedule)
    assert all(kineto.matches(path) for path in paths)
    imported = kineto.read(paths)
    trace = imported.trace
    chunks = 2 if schedule == "two" else 1
    assert trace.job == Job(dp_size=1, pp_size=2, vpp_size=chunks)
    assert trace.n_steps == STEPS
    assert imported.unplaced == {}
    counts = trace.counts[:, 0]
    n = MICROBATCHES * chunks
    assert (counts[..., K.FORWARD_COMPUTE] == n).all()
    assert (counts[..., K.BACKWARD_COMPUTE] == n).all()
    assert (counts[:, 0, K.FORWARD_SEND] == n).all()
    assert (counts[:, 1, K.FORWARD_RECV] == n).all()
    assert (counts[:, 1, K.FORWARD_SEND] == n - MICROBATCHES).all()
    assert (counts[..., K.OPTIMIZER] == 1).all()
    assert len(from_trace(trace).steps) == STEPS


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_microbatches_of_a_real_pipeline(real: Path, schedule: str) -> None:
    trace = kineto.read(profiles_in(real / schedule)).trace
    compute = trace.kind <= K.BACKWARD_COMPUTE
    for step in trace.steps:
        for pp in range(2):
            rows = np.flatnonzero(compute & (trace.step == step) & (trace.pp == pp))
            rows = rows[np.argsort(trace.start[rows])]
            order = [("FB"[trace.kind[r]], trace.chunk[r], trace.microbatch[r]) for r in rows]
            done = [(c, m) for way, c, m in order if way == "F"]
            assert sorted(done) == sorted((c, m) for way, c, m in order if way == "B")
            if schedule == "gpipe":
                assert [way for way, *_ in order] == ["F"] * MICROBATCHES + ["B"] * MICROBATCHES
            if schedule in ("1f1b", "one") and pp == 1:
                assert [(way, m) for way, _, m in order][:4] == [
                    *(("F", 0), ("B", 0), ("F", 1), ("B", 1))
                ] or schedule == "one"
            if schedule != "two":
                assert done == [(0, m) for m in range(MICROBATCHES)]
            else:
                assert done[:4] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_times_of_a_real_pipeline(real: Path, schedule: str) -> None:
    """Each forward of the modules, as they timed it, lies in the forward of the trace.

    On a busy machine the profiler's clock and the alignment of ranks by their transfers may be off
    by milliseconds, by the same for all of a rank's forwards. The system may interrupt one forward
    between two readings of its times.
    """
    trace = kineto.read(profiles_in(real / schedule)).trace
    start = trace.start + np.repeat(trace.step_start_s, trace.counts.sum(axis=(1, 2, 3)))
    end = start + trace.end - trace.start
    for pp in range(2):
        timed = np.array(json.loads((real / schedule / f"forwards{pp}.json").read_text()))
        rows = np.flatnonzero((trace.kind == K.FORWARD_COMPUTE) & (trace.pp == pp))
        rows = rows[np.argsort(start[rows])]
        assert len(timed) == len(rows)
        least, most = timed[:, 1] - end[rows], timed[:, 0] - start[rows]
        interrupted = np.argmax((least - np.median(least)) - (most - np.median(most)))
        least, most = np.delete(least, interrupted).max(), np.delete(most, interrupted).min()
        assert least < most + 1e-3
        ahead = (least + most) / 2
        assert abs(ahead) < 0.1
        assert (start[rows][1:] + ahead > timed[:-1, 1] - 1e-3).all()


def test_a_recv_does_not_end_before_its_send_began(real: Path) -> None:
    trace = kineto.read(profiles_in(real / "one")).trace

    def at(kind: OpKind, pp: int) -> np.ndarray:
        return np.flatnonzero((trace.kind == kind) & (trace.pp == pp))

    for send, recv, pp in (
        (K.FORWARD_SEND, K.FORWARD_RECV, 0),
        (K.BACKWARD_SEND, K.BACKWARD_RECV, 1),
    ):
        sent, received = at(send, pp), at(recv, 1 - pp)
        assert (trace.end[received] >= trace.start[sent]).all()
        both = np.maximum(trace.start[sent], trace.start[received])
        late = np.minimum(trace.end[sent], trace.end[received]) > both
        assert np.abs(trace.end[sent] - trace.end[received])[late].max(initial=0.0) < 1e-6


def test_a_real_profile_in_any_order_and_unpacked(real: Path, tmp_path: Path) -> None:
    paths = []
    for path in profiles_in(real / "1f1b"):
        value = load(path)
        random.Random(2).shuffle(value["traceEvents"])
        paths.append(dump(value, tmp_path / path.name.removesuffix(".gz")))
    same(kineto.read(paths).trace, kineto.read(profiles_in(real / "1f1b")).trace, within_s=1e-9)


def test_a_missing_rank(tmp_path: Path, truth: Trace, real: Path) -> None:
    paths = ProfileWriter(truth).write(tmp_path)
    with pytest.raises(TraceError, match="no profile is of dp 1, stage 1; 3 files"):
        kineto.read(paths[:3])
    with pytest.raises(
        TraceError, match="1 profile is here, but the job has 2 ranks \\(rank 1's is missing\\)"
    ):
        kineto.read(profiles_in(real / "one")[:1])


def test_v_schedules_are_refused(real: Path, tmp_path: Path) -> None:
    """Stages 0 and 3 on rank 0, 1 and 2 on rank 1."""
    paths = []
    for path in profiles_in(real / "two"):
        value = load(path)
        for event in value["traceEvents"]:
            for old, new in (("PP:2", "PP:x"), ("PP:3", "PP:2"), ("PP:x", "PP:3")):
                event["name"] = event["name"].replace(old, new)
        paths.append(dump(value, tmp_path / path.name))
    with pytest.raises(TraceError, match="only schedules that deal the stages out in turns"):
        kineto.read(paths)
