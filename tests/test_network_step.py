"""A predicted step of a network: breakdown, pipeline, buckets, memory, search."""

import itertools

import numpy as np
import pytest

import paceline
from paceline.errors import PlanError
from paceline.model.cluster_presets import cluster_preset
from paceline.networks.presets import network_preset
from paceline.networks.strategy import Strategy
from paceline.plan.network_findings import findings
from paceline.plan.network_pipeline import best_cut
from paceline.plan.network_search import search_networks
from paceline.plan.network_step import largest_batch, predict_network

CLUSTER = cluster_preset("v100-16g")


@pytest.fixture(scope="module")
def resnet():
    return network_preset("resnet50")


def step(network, **options):
    return predict_network(network, Strategy(**options), CLUSTER)


EVERY = [
    {"name": "data", "gpus": 16},
    {"name": "spatial", "gpus": 4},
    {"name": "filter", "gpus": 16},
    {"name": "channel", "gpus": 16},
    {"name": "pipeline", "gpus": 4, "microbatches": 8},
    {"name": "data+filter", "gpus": 16, "split": 4},
    {"name": "data+spatial", "gpus": 16, "split": 4},
    {"name": "data+pipeline", "gpus": 16, "split": 4, "microbatches": 4},
]


@pytest.mark.parametrize("options", EVERY, ids=lambda options: options["name"])
def test_the_breakdown_adds_up(resnet, options):
    prediction = step(resnet, global_batch=64, **options)
    assert prediction.limits == ()
    assert sum(prediction.breakdown.values()) == pytest.approx(prediction.step_time_s)
    assert sum(prediction.memory.values()) == prediction.memory_bytes
    assert all(row.seconds or row.size_bytes for row in findings(prediction))


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_the_best_cut_is_that_of_an_enumeration(stages):
    seconds = np.random.default_rng(stages).uniform(1, 9, 9)

    def busiest(ends):
        return max(part.sum() for part in np.split(seconds, [end + 1 for end in ends]))

    least = min(busiest(ends) for ends in itertools.combinations(range(8), stages - 1))
    cut = best_cut(seconds, stages)
    assert len(cut) == stages
    assert cut[-1] == 8
    assert busiest(cut[:-1]) == pytest.approx(least)


def test_pipelines_of_resnet152_on_1_2_and_4_gpus_get_faster():
    network = network_preset("resnet152")
    steps = [
        step(network, name="pipeline", gpus=gpus, global_batch=32, microbatches=8).step_time_s
        for gpus in (1, 2, 4)
    ]
    assert steps[0] > steps[1] > steps[2] > steps[0] / 4


def test_buckets_hide_the_exchange_but_its_end(resnet):
    options = {"name": "data", "gpus": 64, "global_batch": 64 * 32}
    packed, buckets = step(resnet, **options), step(resnet, gradients="buckets", **options)
    assert 0 < buckets.breakdown["gradients"] < 0.5 * packed.breakdown["gradients"]


def test_cosmoflows_first_layer_takes_more_than_10_gb():
    network = network_preset("cosmoflow", (4, 512, 512, 512))
    memory = step(network, name="data", gpus=1, global_batch=1).memory["activations"]
    # 16 x 512^3 fp32 results of the first convolution alone are 8.6 GB, and as many gradients.
    assert memory > 10e9
    with pytest.raises(PlanError, match="no sample fits"):
        largest_batch(network, Strategy(name="data", gpus=1, global_batch=1), CLUSTER)


def test_the_search_says_why_not_data_parallelism():
    network = network_preset("cosmoflow", (4, 512, 512, 512))
    result = search_networks(network, CLUSTER, [8, 32], global_batch=8)
    assert result.fastest.strategy.is_spatial
    assert result.why_not_data.startswith("why not data parallelism: data: ")
    assert "GiB of 16.0 GiB" in result.why_not_data
    assert result.fastest.limits == ()


def test_the_search_ranks_by_speed_cost_and_gpus(resnet):
    result = search_networks(resnet, CLUSTER, range(1, 65), batch_per_gpu=32)
    assert result.fastest.strategy.gpus == 64
    assert result.fewest_gpus.strategy.gpus == 1
    assert result.cheapest in result.pareto
    assert {row.strategy.name for row in result.rows} >= {"data", "data+spatial", "filter"}
    assert all(row.fits and not row.limits for row in result.rows)


def test_the_library_predicts_a_network_as_it_does_a_model(resnet):
    fields = {"strategy": "data+filter", "gpus": 64, "split": 4, "global_batch": 1024}
    prediction = paceline.predict(resnet, fields, "v100-16g")
    assert prediction.step_time_s == pytest.approx(sum(prediction.breakdown.values()))
    assert prediction.memory_bytes > 0
    assert prediction.limits == ()
    with pytest.raises(PlanError, match="a strategy has no tp; its fields are name"):
        paceline.predict(resnet, {**fields, "tp": 8}, "v100-16g")
    with pytest.raises(PlanError, match="a strategy lacks global_batch"):
        paceline.predict(resnet, {"strategy": "data", "gpus": 8}, "v100-16g")


@pytest.mark.parametrize(
    ("what", "network", "fields"),
    [
        ("gradient exchange", "resnet50", {"name": "data", "gpus": 64}),
        ("layer-wise collectives", "vgg16", {"name": "filter", "gpus": 4}),
        ("P2P communication", "vgg16", {"name": "data+spatial", "gpus": 64, "split": 4}),
        ("network congestion", "resnet50", {"name": "data", "gpus": 256}),
        ("redundant memory", "vgg16", {"name": "data+filter", "gpus": 16, "split": 4}),
        ("weight update", "resnet50", {"name": "data", "gpus": 64}),
        ("workload balancing", "vgg16", {"name": "pipeline", "gpus": 4, "microbatches": 4}),
        ("split overhead", "vgg16", {"name": "filter", "gpus": 4}),
        ("number of PEs", "vgg16", {"name": "filter", "gpus": 128}),
    ],
)
def test_each_row_of_the_papers_table_6_is_found_where_it_limits(what, network, fields):
    strategy = Strategy(global_batch=512, **fields)
    prediction = predict_network(network_preset(network), strategy, cluster_preset("v100-16g"))
    (row,) = [row for row in findings(prediction) if row.what == what]
    assert row.text
    if what != "number of PEs":
        assert (row.seconds or row.size_bytes) > 0
