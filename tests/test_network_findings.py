"""What limits a predicted step: each kind of ParaDL's Table 6, and the numbers behind it."""

import json

import pytest

from paceline.errors import ModelError
from paceline.networks.layers_json import read_layers, write_layers
from paceline.networks.presets import network_preset
from paceline.networks.strategy import Strategy
from paceline.plan.network_findings import findings
from paceline.plan.network_search import search_networks
from paceline.plan.network_step import predict_network
from paceline.plan.runs import named_cluster

CLUSTER = named_cluster("v100-16g")

#: Row of Table 6 -> a step that has it.
KINDS = {
    "gradient exchange": {"name": "data", "gpus": 64, "gradients": "packed"},
    "layer-wise collectives": {"name": "filter", "gpus": 16},
    "P2P communication": {"name": "pipeline", "gpus": 4, "microbatches": 8},
    "network congestion": {"name": "data", "gpus": 1024, "global_batch": 1024},
    "redundant memory": {"name": "data", "gpus": 64},
    "weight update": {"name": "data", "gpus": 64},
    "workload balancing": {"name": "data", "gpus": 64, "global_batch": 100},
    "split overhead": {"name": "channel", "gpus": 16},
    "number of PEs": {"name": "filter", "gpus": 128},
    # Not in the table.
    "repeated computation": {"name": "spatial", "gpus": 4},
    "memory": {"name": "data", "gpus": 2, "global_batch": 2048},
}


@pytest.fixture(scope="module")
def resnet():
    return network_preset("resnet50")


def step(network, **options):
    return predict_network(network, Strategy(**{"global_batch": 64, **options}), CLUSTER)


@pytest.mark.parametrize("what", KINDS)
def test_each_kind_has_its_seconds_or_bytes(resnet, what):
    rows = [row for row in findings(step(resnet, **KINDS[what])) if row.what == what]
    assert rows
    if what == "number of PEs":
        assert "at most 64 GPUs, layer conv1 has 64 filters" in rows[0].text
    else:
        assert all(row.seconds or row.size_bytes for row in rows)


def test_an_uneven_batch_costs_what_the_busiest_replica_has_above_the_mean(resnet):
    prediction = step(resnet, name="data", gpus=64, global_batch=100)
    (row,) = (row for row in findings(prediction) if row.what == "workload balancing")
    compute = prediction.breakdown["products"] + prediction.breakdown["memory"]
    assert row.seconds == pytest.approx(compute * (1 - 100 / 64 / 2))


def test_vit_split_by_space_repeats_its_blocks():
    prediction = step(network_preset("vit-b16"), name="spatial", gpus=4)
    (row,) = (row for row in findings(prediction) if row.what == "repeated computation")
    # All but the patches are computed by each of the four GPUs.
    assert 0.7 * prediction.step_time_s < row.seconds < 0.75 * prediction.step_time_s


def test_what_lacks_is_memory_less_the_capacity(resnet):
    prediction = step(resnet, **KINDS["memory"])
    (row,) = (row for row in findings(prediction) if row.what == "memory")
    assert row.size_bytes == prediction.memory_bytes - CLUSTER.gpu.memory_bytes
    assert "fits memory only by paging" in row.text


def test_pipelines_need_equal_batches_and_a_search_skips_others(resnet):
    with pytest.raises(ModelError, match="among 4 pipelines; the nearest that do are 8, 12"):
        Strategy(name="data+pipeline", gpus=8, split=2, global_batch=10)
    result = search_networks(resnet, CLUSTER, [8], global_batch=10)
    assert result.fastest.strategy.global_batch == 10


def test_a_grid_has_no_more_dimensions_than_samples(resnet):
    prediction = step(resnet, name="spatial", gpus=8, grid=(2, 2, 2))
    assert prediction.limits == (
        "spatial: the grid 2x2x2 has 3 dimensions, samples of resnet50 have 2",
    )
    assert step(resnet, name="spatial", gpus=4, grid=(2, 2, 1)).limits == ()


@pytest.mark.parametrize("name", ["unet3d", "convnext-t"])
def test_a_weight_has_the_filters_and_kernel_of_its_layer(name, tmp_path):
    path = tmp_path / "net.layers.json"
    write_layers(network_preset(name), path)
    assert read_layers(path) == network_preset(name)
    document = json.loads(path.read_text(encoding="utf-8"))
    conv = next(layer for layer in document["layers"] if layer["kind"] == "conv")
    conv["parameters"][0][0] += 1
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ModelError, match=r"its weight .* is not of"):
        read_layers(path)
