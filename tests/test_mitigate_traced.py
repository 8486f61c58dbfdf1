"""Strategies beside the traced steps, whose noise the simulated ones leave out."""

import json
import random
import statistics

import pytest

from paceline.cli.main import run
from recordings import RankStep, data_parallel_job


@pytest.fixture
def noisy_job(tmp_path):
    """Two ranks: computes of 60 ms, up to twice as long at random; rank 1 is 2x from step 20 on."""

    def step(number, rank):
        rng = random.Random(f"{number} {rank}")
        factor = (1 + rng.random()) * (2 if rank == 1 and number >= 20 else 1)
        return RankStep(forward=20 * factor, backward=40 * factor)

    data_parallel_job(tmp_path / "job", step, steps=40, ranks=2)
    return tmp_path / "job"


def test_the_traced_steps_stand_beside_the_simulated_ones(noisy_job, capsys):
    """Healthy steps wait for the slower of two ranks; the simulated one has typical computes."""
    assert run(["mitigate", str(noisy_job), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    traced = document["measured"]
    longest_s = [
        max(1 + random.Random(f"{number} {rank}").random() for rank in range(2)) * 0.060
        for number in range(20)
    ]
    assert traced["healthy_s"] == pytest.approx(statistics.median(longest_s) + 0.010, abs=0.002)
    assert document["healthy_s"] < 0.95 * traced["healthy_s"]
    assert run(["mitigate", str(noisy_job)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"and {1e3 * traced['healthy_s']:.3g} ms without this" in text
    steps = 1800 / (traced["slow_s"] - traced["healthy_s"])
    assert f"By the traced times a restart pays after {steps:,.0f} steps" in text
