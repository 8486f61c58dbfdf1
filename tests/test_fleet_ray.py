import os
import signal
import sys
import threading
import time
import uuid
from pathlib import Path
from types import ModuleType

import pytest

import requires
from fleet_jobs import HERE, make_fleet, settled
from paceline.errors import FleetError
from paceline.fleet import engine_ray
from paceline.fleet.keys import AnalysisOptions
from paceline.fleet.run import RunOptions, fleet
from paceline.fleet.task import Settings

#: Marks processes as this test's.
OURS = "PACELINE_TEST_CLUSTER"

with_ray = pytest.mark.skipif(
    not requires.is_installed("ray"), reason=requires.how_to_install("ray")
)


def test_plain_ray_beside_opentelemetry_proto_is_refused_before_it_hangs(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setattr(engine_ray, "is_installed", lambda name: name == "opentelemetry.proto")
    traces = make_fleet(tmp_path / "traces", (0,))
    with pytest.raises(FleetError, match=r"lacks opentelemetry.metrics; pip install 'pac.*fleet"):
        fleet(traces, tmp_path / "study", run=RunOptions(engine="ray"))


def test_ray_that_is_not_installed_is_said(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    traces = make_fleet(tmp_path / "traces", (0,))
    with pytest.raises(FleetError, match=r"needs Ray .*pip install 'paceline"):
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
