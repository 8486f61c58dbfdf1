"""Rates on more GPUs from a measured run."""

import json
import math
from dataclasses import replace

import pytest

from paceline.cli.main import run
from paceline.errors import ModelError
from paceline.model.cluster_presets import cluster_preset
from paceline.model.network import Fabric, Group
from paceline.networks.scaling import ScalingConstants, scaled_rate

CLUSTER = cluster_preset("a100-80g")
RESNET50 = 4 * 25_557_032


def scaled(gpus, to_gpus, rate=2470.0, **more):
    usual = {"batch_per_gpu": 256, "gradient_bytes": RESNET50, "cluster": CLUSTER}
    return scaled_rate(rate, gpus, to_gpus, **{**usual, **more})


@pytest.mark.parametrize(("to_gpus", "exposed"), [(8, 0.5), (16, 3.0), (64, 3.0)])
def test_a_step_is_the_measured_one_a_join_and_an_exchange(to_gpus, exposed):
    exchange_s = Fabric(CLUSTER).all_reduce(RESNET50, Group(to_gpus, 1))
    step_s = 256 / 2470
    after_s = step_s + 7e-3 + exposed * exchange_s
    told = scaled(1, to_gpus)
    assert told.samples_per_s == pytest.approx(256 * to_gpus / after_s)
    assert told.efficiency == pytest.approx(step_s / after_s)


def test_from_several_gpus_their_own_exchange_is_taken_out():
    rate = scaled(1, 8).samples_per_s
    assert scaled(8, 16, rate).samples_per_s == pytest.approx(scaled(1, 16).samples_per_s)
    assert scaled(8, 8, rate).efficiency == pytest.approx(1.0)


def test_a_tiny_step_never_becomes_negative():
    told = scaled(8, 16, 1e6)
    assert 0 < told.efficiency < 1


def test_the_interval_holds_80_percent_and_what_is_far_away_is_odd():
    told = scaled(1, 8)
    sigma = ScalingConstants().spread
    assert math.log(told.high / told.samples_per_s) == pytest.approx(1.2816 * sigma)
    assert not told.is_odd(told.samples_per_s * math.exp(2.9 * sigma))
    assert told.is_odd(told.samples_per_s * math.exp(-3.1 * sigma))


@pytest.mark.parametrize("bad", [{"rate": 0.0}, {"batch_per_gpu": -1}, {"rate": math.nan}])
def test_what_is_no_number_is_refused(bad):
    with pytest.raises(ModelError, match="must be above 0"):
        scaled(1, 8, **bad)


def test_a_slower_network_scales_worse():
    slow = replace(CLUSTER, network=replace(CLUSTER.network, nics=1))
    assert scaled(1, 64, cluster=slow).efficiency < scaled(1, 64).efficiency


def test_the_command_scales_a_measured_rate(capsys):
    arguments = ["predict", "resnet50", "--gpu", "a100-80g", "--gpus", "8"]
    arguments += ["--global-batch", "2048", "--measured"]
    assert run([*arguments, "1:2470"]) == 0
    assert "from the measured 2,470 samples/s on 1 GPUs: 18," in capsys.readouterr().out
    assert run([*arguments, "1:2470", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["scaled"]
    assert told["samples_per_s"] == pytest.approx(scaled(1, 8).samples_per_s)
    for text in ("2470", "1:", "x:1"):
        assert run([*arguments, text]) == 2
        assert "is not like 1:2470" in capsys.readouterr().err
