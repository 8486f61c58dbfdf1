"""Real trainers on two gloo ranks, one of them slow, recorded by the snippets of the docs."""

import sys
from pathlib import Path

import pytest

import paceline
import peace
import requires
from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.sources.recording.files import read_files
from paceline.sources.recording.status import summary

requires.installed("torch.distributed")
sys.path.insert(0, str(Path(__file__).parent / "trainers"))

from trainer_ranks import of_environment, run

pytestmark = pytest.mark.alone
timed = peace.timed

DDP, FSDP = "DistributedDataParallel", "fully_shard (FSDP2)"

#: Case -> package that it needs, what is hooked, first step that is recorded.
CASES = {
    "accelerate": ("accelerate", DDP, 2),
    "composer": ("composer", DDP, 0),
    "deepspeed": ("deepspeed", "DeepSpeed engine", 0),
    "lightning": ("lightning", DDP, 0),
    "loop": ("torch", DDP, 2),
    "sharded": ("torch", FSDP, 2),
    "torchtitan": ("torchtitan", FSDP, 2),
    "transformers": ("transformers", DDP, 0),
    "trl": ("trl", DDP, 0),
}
#: Those that have no line for Paceline.
SILENT = ("loop", "sharded", "pipeline", "tensor")
STEPS = 6


def record_case(case, folder, factors):
    told = of_environment(folder) if case in SILENT else {}
    return run(case, folder, factors, recorded=True, **told)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    requires.installed("starlette", "uvicorn", "sqlalchemy", "msgspec")
    from monitor_web import monitor

    with monitor(tmp_path_factory.mktemp("monitor")) as site:
        yield site


#: Pushing does not depend on what the model is wrapped in: of the plain loops one is enough.
@pytest.mark.parametrize("case", [case for case in CASES if case != "sharded"])
def test_step_times_go_to_the_monitor(case, tmp_path, site):
    package, _, first = CASES[case]
    requires.installed(package)
    from monitor_web import eventually
    from paceline.client import Client

    url, token = f"http://127.0.0.1:{site.port}", site.token("push")
    where = {"PACELINE_MONITOR": url, "PACELINE_TOKEN": token, "PACELINE_JOB": case}
    own = of_environment(tmp_path) if case in SILENT else {}
    run(case, tmp_path / "job", [0.0, 0.0], recorded=True, **own | where)
    client = Client(url, site.token())
    ended = {"name": case, "status": "ended"}
    eventually(lambda: any(ended.items() <= job.items() for job in client.jobs()), 60)
    assert client.steps(case)["step"] == list(range(first, STEPS))
    assert len(list(client.sessions(case))) == 1


@pytest.mark.parametrize("case", CASES)
def test_a_slow_rank_is_named_and_no_loss_changes(case, tmp_path, timed):
    package, hooked, first = CASES[case]
    requires.installed(package)
    plain = run(case, tmp_path / "plain", [0.0, 0.0])  # sleeps change no number
    recorded = record_case(case, tmp_path / "recorded", [1.0, 3.0])
    assert recorded == plain  # bit by bit
    assert len(plain[0]) >= STEPS
    folder = tmp_path / "recorded" / "run"
    status = summary(folder, read_files(folder))
    assert status["recorded"] == [{"recorded": hooked, "ranks": [0, 1]}]
    assert status["not_recorded"] == []
    trace = paceline.load(folder)
    assert trace.steps.tolist() == list(range(first, STEPS))
    measured = from_trace(trace)
    result = paceline.analyze(measured)
    # Two microbatches a step, whatever evaluations lie between.
    forwards = trace.kind == paceline.OpKind.FORWARD_COMPUTE
    assert set(trace.microbatch[forwards].tolist()) == {0, 1}
    assert result.replay_error < 0.01
    assert result.lasting.by_worker.ravel()[1] > 1.3
    finding = diagnose(measured, result).findings[0]
    assert (finding.cause, finding.where["workers"][0][0]) == ("worker", 1)
    with timed():  # transfers wait for the processor, too
        assert result.discrepancy < 0.05


def test_a_pipeline_without_a_line(tmp_path, timed):
    record_case("pipeline", tmp_path / "recorded", [1.0, 3.0])
    measured = from_trace(paceline.load(tmp_path / "recorded" / "run"))
    assert measured.job.pp_size == 2
    result = paceline.analyze(measured)
    finding = diagnose(measured, result).findings[0]
    assert (finding.cause, finding.where["stage"]) == ("stage-imbalance", 1)
    with timed():
        assert result.discrepancy < 0.1


def test_tensor_parallel_ranks_without_a_line(tmp_path, timed):
    record_case("tensor", tmp_path / "recorded", [1.0, 3.0])
    folder = tmp_path / "recorded" / "run"
    assert summary(folder, read_files(folder))["not_recorded"] == []
    measured = from_trace(paceline.load(folder))
    assert (measured.job.peers, measured.job.dp_size) == (2, 1)
    result = paceline.analyze(measured)
    assert "peer 1" in diagnose(measured, result).findings[0].text
    # Nothing joins the ranks behind the last backward, so the fast one begins the next step early:
    # that counts as the slow one's launch delay. Beside it the simulation is near the trace.
    delays = measured.delays.row(0).max(axis=1)
    traced_s = measured.traced_step_s - delays
    with timed():
        assert abs(result.simulated_s / traced_s - 1).max() < 0.05
