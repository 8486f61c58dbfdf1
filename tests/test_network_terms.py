"""Seconds of a strategy are those of the operators: one model of compute for all commands."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.model.cluster_presets import cluster_preset
from paceline.networks.build import Builder
from paceline.networks.compute import (
    FITTED,
    ComputeConstants,
    layer_seconds,
    step_seconds,
    update_seconds,
)
from paceline.networks.demand import demand_of
from paceline.networks.layer import NETWORK_INPUT
from paceline.networks.presets import network_preset
from paceline.networks.strategy import Strategy
from paceline.networks.terms import COMPUTE, MESSAGE_S, STAGED, Machine, step_terms
from paceline.plan.network_step import predict_network

A100 = cluster_preset("a100-80g")


@pytest.fixture(scope="module")
def resnet():
    return network_preset("resnet50")


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp"])
@pytest.mark.parametrize("gpu", ["a100-80g", "rtx3090"])
def test_a_step_on_one_gpu_is_its_operators(resnet, gpu, precision, channels_last):
    cluster = cluster_preset(gpu)
    layout = {"precision": precision, "channels_last": channels_last}
    strategy = Strategy(name="data", gpus=1, global_batch=48, optimizer="adam", **layout)
    prediction = predict_network(resnet, strategy, cluster)
    demand = demand_of(resnet, precision)
    step = step_seconds(demand, 48, cluster.gpu, precision, channels_last=channels_last,
                        optimizer="adam", constants=FITTED.get(cluster.gpu.name))  # fmt: skip
    assert prediction.step_time_s == pytest.approx(step, rel=1e-9)
    layers = layer_seconds(demand, 48, cluster.gpu, precision, channels_last=channels_last)
    update = update_seconds(demand, cluster.gpu, "adam")
    assert prediction.step_time_s - update == pytest.approx(layers.sum(), rel=1e-9)


def test_a_gpu_with_fitted_constants_is_predicted_by_them(resnet):
    cluster = cluster_preset("rtx3090")
    strategy = Strategy(name="data", gpus=1, global_batch=32, precision="amp")
    fitted = predict_network(resnet, strategy, cluster)
    guessed = predict_network(resnet, strategy, cluster, software=ComputeConstants())
    kernels = fitted.breakdown["host"] / guessed.breakdown["host"]
    assert kernels == pytest.approx(FITTED[cluster.gpu.name].kernel_s / ComputeConstants().kernel_s)


def computed(network, **options):
    strategy = Strategy(**{"gpus": 4, "global_batch": 32, **options})
    terms = step_terms(network, strategy, Machine(A100))
    return {name: terms[name] for name in COMPUTE}


def test_autocast_speeds_up_all_that_moves_half_the_bytes(resnet):
    fp32, amp = (computed(resnet, name="data", precision=name) for name in ("fp32", "amp"))
    assert amp["products"] < fp32["products"] / 3
    assert 0.5 < amp["memory"] / fp32["memory"] < 0.6
    assert amp["layout"] > 0 == fp32["layout"]
    assert computed(resnet, name="data", precision="amp", channels_last=True)["layout"] == 0


def pair(filters):
    """Two pointwise convolutions of an image that is large enough for arithmetic to count."""
    build = Builder("pair", (256, 64, 64))
    x = build.conv(NETWORK_INPUT, "first", filters, 1)
    build.conv(x, "second", filters, 1)
    return build.finish()


def test_split_filters_empty_their_tiles():
    # 512 filters on 4 GPUs fill two tiles of 64; 128 on 4 leave half of one empty.
    slow = Machine(A100, ComputeConstants(product_share=1e-3))
    tiles = {
        filters: step_terms(pair(filters), Strategy(name="filter", gpus=4, global_batch=4), slow)
        for filters in (512, 128)
    }
    assert tiles[512]["tiles"] == 0
    assert tiles[128]["tiles"] == pytest.approx(tiles[128]["products"], rel=1e-3)


def test_split_convolutions_pay_for_cuts_and_joins():
    network, samples = pair(512), 4
    whole = 4 * 64 * 64 * (256 + 512 + 512 + 512) * 4 * samples
    rate = A100.gpu.memory_bandwidth * ComputeConstants().memory_share
    filters = computed(network, name="filter", global_batch=samples)
    assert filters["split"] == pytest.approx(whole / rate)
    assert filters["products"] == pytest.approx(
        computed(network, name="data", global_batch=4 * samples)["products"] / 4, rel=0.02
    )
    rows = computed(network, name="spatial", global_batch=samples)
    assert rows["split"] == pytest.approx(whole / 4 / rate)
    calls = (filters["host"] - rows["host"]) / ComputeConstants().kernel_s
    assert calls == pytest.approx(2 * 2)


def test_zero_shares_out_the_update(resnet):
    whole, shared = (computed(resnet, name="data", zero=zero)["update"] for zero in (0, 1))
    kernels = update_seconds(replace(demand_of(resnet), weights=np.zeros(1)), A100.gpu, "momentum")
    assert shared - kernels == pytest.approx((whole - kernels) / 4)


def sent(network, **options):
    terms = step_terms(network, Strategy(**options), Machine(A100))
    return {name: seconds for name, seconds in terms.items() if name not in COMPUTE}


def test_mpi_goes_through_the_hosts_memory(resnet):
    options = {"name": "data", "gpus": 8, "global_batch": 8}
    nccl, mpi = (sent(resnet, library=library, **options) for library in ("nccl", "mpi"))
    received = 2 * 7 / 8 * 4 * resnet.parameters
    assert mpi["gradients.inside"] == pytest.approx(received / STAGED)
    assert mpi["gradients.hops"] == pytest.approx(14 * MESSAGE_S)
    assert mpi["gradients.inside"] > 10 * nccl["gradients.inside"]
    far = sent(resnet, library="mpi", **{**options, "gpus": 16, "global_batch": 16})
    assert far["gradients"] == pytest.approx(2 * 15 / 16 * 4 * resnet.parameters / STAGED)


def test_hooks_of_ddp_halve_the_exchange(resnet):
    options = {"name": "data", "gpus": 16, "global_batch": 16}
    whole, half = (sent(resnet, gradient_precision=p, **options) for p in ("fp32", "fp16"))
    assert half["gradients"] == pytest.approx(whole["gradients"] / 2)


def test_synchronised_norms_wait_twice_each(resnet):
    options = {"name": "data", "gpus": 8, "global_batch": 8, "sync_batchnorm": True}
    channels = [layer.filters for layer in resnet.layers if layer.kind == "norm"]
    nccl, mpi = (sent(resnet, library=library, **options)["norms"] for library in ("nccl", "mpi"))
    assert nccl > 2 * len(channels) * A100.efficiency.collective_s
    # log2(8) messages a call; 7 x (2C + 1) numbers gathered, 2 x 7/8 x 2C of an all-reduce.
    received = sum(4 * (7 * (2 * c + 1) + 2 * 7 / 8 * 2 * c) for c in channels)
    assert mpi == pytest.approx(2 * len(channels) * 3 * MESSAGE_S + received / STAGED)
