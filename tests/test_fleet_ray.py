import json
import os
import signal
import sys
import threading
import time
import uuid
from copy import deepcopy
from pathlib import Path
from types import ModuleType

import pytest

import requires
from fleet_jobs import HERE, make_fleet, settled
from paceline.cli.main import run
from paceline.errors import FleetError
from paceline.fleet import engine_ray, ray_cluster
from paceline.fleet.keys import AnalysisOptions
from paceline.fleet.run import RunOptions, fleet
from paceline.fleet.task import Settings
from paceline.model.cluster_presets import cluster_preset
from paceline.model.llm_presets import llm_preset
from paceline.plan.predict_runs import predict_runs
from paceline.plan.runs import read_runs, run_clusters
from paceline.plan.search import search

#: Marks processes as this test's.
OURS = "PACELINE_TEST_CLUSTER"

with_ray = pytest.mark.skipif(
    not requires.is_installed("ray"), reason=requires.how_to_install("ray")
)


def test_plain_ray_beside_opentelemetry_proto_is_refused_before_it_hangs(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setattr(ray_cluster, "is_installed", lambda name: name == "opentelemetry.proto")
    traces = make_fleet(tmp_path / "traces", (0,))
    with pytest.raises(FleetError, match=r"lacks opentelemetry.metrics; pip install .*\[fleet\]"):
        fleet(traces, tmp_path / "study", run=RunOptions(engine="ray"))


def test_ray_that_is_not_installed_is_said(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    traces = make_fleet(tmp_path / "traces", (0,))
    with pytest.raises(FleetError, match=r"needs Ray .*pip install .*\[fleet\]"):
        fleet(traces, tmp_path / "study", run=RunOptions(engine="ray"))


def test_a_node_with_other_code_is_refused(tmp_path):
    settings = Settings(str(tmp_path), "other", AnalysisOptions())
    with pytest.raises(RuntimeError, match=r"has another version of Paceline .* the driver other"):
        engine_ray.do_batch(settings.to_json(), [])


@pytest.fixture(scope="module")
def cluster():
    """Three nodes on this machine, of one processor each."""
    from ray.cluster_utils import Cluster

    os.environ[OURS] = uuid.uuid4().hex  # which the cluster's processes inherit
    head = {"num_cpus": 1, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    nodes.add_node(num_cpus=1)
    nodes.add_node(num_cpus=1)
    yield nodes
    nodes.shutdown()
    del os.environ[OURS]


@with_ray
@pytest.mark.alone
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_makes_the_same_tables_though_processes_and_a_node_die(cluster, tmp_path):
    traces = make_fleet(tmp_path / "traces", range(24))
    here = fleet(traces, tmp_path / "here", run=HERE)
    victims = []

    def kill_one() -> None:
        """A worker that analyses, then the process of Ray that watches another."""
        for end in (b"paceline.fleet.worker", b"ray::do_batch"):
            while not (pids := pids_of(end)):
                time.sleep(0.01)
            os.kill(pids[0], signal.SIGKILL)
            victims.append(end)
        cluster.remove_node(sorted(cluster.worker_nodes, key=str)[0], allow_graceful=False)

    thread = threading.Thread(target=kill_one)
    thread.start()
    study = fleet(traces, tmp_path / "ray", run=RunOptions(engine="ray", address=cluster.address))
    thread.join()
    assert len(victims) == 2
    assert settled(study.jobs) == settled(here.jobs)
    assert study.steps.equals(here.steps)


def pids_of(text: bytes) -> list[int]:
    """Processes of our cluster whose command line has a text."""
    pids, mark = [], f"{OURS}={os.environ[OURS]}".encode()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and text in (folder / "cmdline").read_bytes():
                pids += [int(folder.name)] if mark in (folder / "environ").read_bytes() else []
        except OSError:
            continue
    return pids


def travelling(function, items):
    """``map`` as another machine does it: function and items are copies."""
    there = deepcopy(function)
    return [deepcopy(there(item)) for item in deepcopy(items)]


def test_plans_and_runs_may_be_evaluated_elsewhere(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(
        "model,gpu,gpus,dp,tp,pp,micro_batch,global_batch\n"
        "llama3-8b,h100,16,4,2,2,1,64\nllama3-8b,h100,16,4,4,1,1,64\nllama3-8b,h100,12,4,3,1,1,64\n"
    )
    table = read_runs(path, skip_errors=True)
    clusters = run_clusters(table.runs, None)
    outcome = predict_runs(table, clusters)
    assert predict_runs(table, clusters, mapper=travelling) == outcome
    assert (list(outcome.predicted_s), list(outcome.errors)) == ([2, 3], [4])
    llm, h100 = llm_preset("llama3-8b"), cluster_preset("h100")
    here = search(llm, h100, 16, 64, max_vpp=1)
    there = search(llm, h100, 16, 64, max_vpp=1, mapper=travelling)
    assert there.rows.tolist() == here.rows.tolist()
    assert there.step_time_s.tolist() == here.step_time_s.tolist()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("predict job.yaml --engine ray", "--engine is for --runs"),
        (
            "predict --runs runs.csv --address auto",
            "is the address of a Ray cluster: add --engine ray",
        ),
        ("plan --model llama3-8b --gpu h100 --engine ray --serve", "search in this process"),
    ],
)
def test_engines_that_mean_nothing_are_refused(command, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    header = "model,gpu,gpus,dp,tp,pp,micro_batch,global_batch\n"
    Path("runs.csv").write_text(f"{header}llama3-8b,h100,16,4,2,2,1,64\n")
    assert run(command.split()) == 2
    assert message in capsys.readouterr().err


@with_ray
@pytest.mark.alone
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_searches_what_this_process_does(cluster, capsys):
    command = "plan --model llama3-8b --gpu h100 --gpus 16 --global-batch 64 --max-vpp 1 --json"
    outputs = []
    for engine in ([], ["--engine", "ray", "--address", cluster.address]):
        assert run([*command.split(), *engine]) == 0
        result = json.loads(capsys.readouterr().out)
        outputs.append({name: value for name, value in result.items() if name != "seconds"})
    assert outputs[0] == outputs[1]
