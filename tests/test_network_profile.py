"""Operators of a network, timed and used."""

import json
from dataclasses import replace

import numpy as np
import pytest

import requires
from paceline.cli.main import run
from paceline.errors import ModelError
from paceline.model.cluster_presets import cluster_preset
from paceline.networks.build import Builder
from paceline.networks.layer_profile import (
    LayerProfile,
    load_layer_profile,
    operator_key,
    save_layer_profile,
)
from paceline.networks.layers_json import write_layers
from paceline.networks.strategy import Strategy
from paceline.networks.terms import Machine, step_terms
from paceline.plan.network_step import predict_network

CLUSTER = cluster_preset("a100-80g")


def small():
    """Two equal convolutions with norms, a ReLU, a pooling, an addition and a product."""
    builder = Builder("small", (8, 16, 16))
    x = builder.conv(-1, "conv1", 8, 3, padding=1)
    x = builder.norm(x, "bn1")
    x = builder.activation(x, "relu")
    y = builder.conv(x, "conv2", 8, 3, padding=1)
    z = builder.add(x, y)
    z = builder.pool(z, "pool", 2, stride=2)
    z = builder.view(z, "flatten", (8 * 8 * 8,))
    builder.linear(z, "fc", 10)
    return builder.finish()


def made_up(network, seconds=1e-3, batch=4, **more):
    """A profile in which each pass of each layer but the pooling takes as long."""
    keys = {
        operator_key(network, i): (seconds, 2 * seconds, 3 * seconds)
        for i, layer in enumerate(network.layers)
        if layer.kind not in ("view", "pool")
    }
    usual = {
        "device": "X", "device_kind": "cuda", "torch": "2.13", "date": "2026-11-23",
        "network": network.name, "precision": "fp32", "channels_last": False,
    }  # fmt: skip
    return LayerProfile(**{**usual, "batch": batch, "seconds": keys, **more})


def data(gpus=1, batch=8, **more):
    return Strategy(name="data", gpus=gpus, global_batch=batch, gradients="none", **more)


def test_measured_seconds_take_the_models_place():
    network, profile = small(), made_up(small())
    terms = step_terms(network, data(), Machine(CLUSTER, profile=profile))
    modelled = step_terms(network, data(), Machine(CLUSTER))
    products = sum(layer.kind in ("conv", "linear") for layer in network.layers)
    assert terms["products"] == pytest.approx(products * 6e-3 * 8 / 4)
    others = 4 - 1  # norm, activation, add; the pooling is modelled
    assert terms["memory"] > others * 6e-3 * 8 / 4
    assert terms["memory"] - others * 6e-3 * 8 / 4 < modelled["memory"]
    assert 0 < terms["host"] < modelled["host"]
    assert terms["update"] == modelled["update"]


def test_a_pipelines_cut_uses_them_too():
    network, profile = small(), made_up(small())
    forward, backward = Machine(CLUSTER, profile=profile).layer_seconds(network, 4, data())
    conv = [i for i, layer in enumerate(network.layers) if layer.kind == "conv"]
    assert forward[conv] == pytest.approx([1e-3, 1e-3])
    assert backward[conv] == pytest.approx([5e-3, 5e-3])


def test_a_prediction_says_what_is_not_in_the_profile():
    told = predict_network(small(), data(), CLUSTER, profile=made_up(small()))
    assert told.notes == ("operators timed on X, but for 1 of 8 layers, which are modelled (pool)",)


@pytest.mark.parametrize("more", [{"precision": "amp"}, {"channels_last": True}])
def test_another_precision_or_layout_is_refused(more):
    with pytest.raises(ModelError, match="the profile is of fp32, channels first, not of"):
        predict_network(small(), data(**more), CLUSTER, profile=made_up(small()))


def test_equal_operators_are_one_and_others_are_not():
    network = small()
    keys = [operator_key(network, i) for i in range(len(network.layers))]
    assert keys[0] == keys[3]
    assert len(set(keys)) == len(keys) - 1
    wide = replace(network, input_shape=(8, 16, 32))
    assert operator_key(wide, 0) != keys[0]


def test_a_profile_comes_back(tmp_path):
    profile, path = made_up(small()), tmp_path / "p.json"
    save_layer_profile(profile, path)
    assert load_layer_profile(path) == profile


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": {}},
        {"seconds": {"x": [1, 2]}},
        {"seconds": {"x": [1, 2, -1]}},
        {"seconds": {"x": [1, 2, "nan"]}},
        {"batch": 0},
        {"version": 9},
        {"more": 1},
    ],
)
def test_a_damaged_profile_is_refused(tmp_path, change):
    path = tmp_path / "p.json"
    save_layer_profile(made_up(small()), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ModelError, match=r"no profile of layers|another version"):
        load_layer_profile(path)


def test_the_command_times_each_distinct_operator_once(tmp_path, capsys):
    requires.installed("torch")
    layers, out = tmp_path / "small.layers.json", tmp_path / "cpu.profile.json"
    write_layers(small(), layers)
    command = ["profile", "--layers", str(layers), "--device", "cpu", "--batch", "2", "--quick"]
    assert run([*command, "-o", str(out)]) == 0
    assert "6 operators of small on" in capsys.readouterr().out
    profile = load_layer_profile(out)
    seconds, known = profile.times(small())
    assert known.sum() == 7  # all but the view
    assert (seconds[0][known] > 0).all()
    assert (seconds[1][[0, 1, 2, 3, 5, 7]] > 0).all()
    assert (seconds[2][[0, 3, 7]] > 0).all()
    predicted = ["predict", str(layers), "--gpu", "a100-80g", "--gpus", "1", "--global-batch", "2"]
    assert run([*predicted, "--profile", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    passes = told["breakdown_s"]["products"] + told["breakdown_s"]["memory"]
    assert passes == pytest.approx(2 * float(np.sum(seconds)))
    assert run([*command, "-o", str(out)]) == 2  # it exists
    assert run([*command, "--force", "-o", str(out), "--precision", "amp"]) == 2
    assert "amp is timed on a GPU" in capsys.readouterr().err
    assert run(["profile", "--batch", "2", "-o", str(tmp_path / "x.json")]) == 2
