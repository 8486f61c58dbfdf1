"""Sessions of a job on a noisy machine: variation that passes wakes nobody.

``noisy_sessions`` has two sessions in a row of a healthy job. Four ranks trained a small model on
two cores that other processes used, too. A session has ten profiled steps.
"""

from pathlib import Path

import pytest

import requires

requires.installed("starlette")

from monitor_alerts import World
from paceline.monitor.analysis_process import analyse
from paceline.sources import parquet
from paceline.synth import SlowWorker, SynthSpec, synthesize

TRACES = sorted((Path(__file__).parent / "noisy_sessions").glob("*.parquet"))


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """The columns of both sessions, as the service computes them."""
    return [analyse(trace, tmp_path_factory.mktemp("session"), {}) for trace in TRACES]


def add(world, columns):
    names = ("slowdown", "slowdown_lasting", "slowdown_healthy", "step_s", "cause", "headline")
    world.session(**{name: columns[name] for name in names}, last_step=columns["last_step"])


def test_medians_of_few_steps_start_no_alert(noisy, tmp_path):
    world = World(tmp_path)
    assert [columns["cause"] for columns in noisy] == ["unexplained"] * 2
    assert min(columns["slowdown"] for columns in noisy) > 1.2
    assert min(columns["slowdown_lasting"] for columns in noisy) == pytest.approx(1.0, abs=0.01)
    for columns in noisy:
        add(world, columns)
    assert world.firing() == []


def test_a_slow_worker_starts_one(tmp_path):
    spec = SynthSpec(dp=4, pp=1, microbatches=8, steps=10, slow_workers=(SlowWorker(1, 0, 1.5),))
    parquet.write(synthesize(spec), tmp_path / "trace.parquet")
    columns = analyse(tmp_path / "trace.parquet", tmp_path, {})
    world = World(tmp_path)
    for _ in range(2):
        add(world, columns)
    assert world.firing() == ["slow-job"]
