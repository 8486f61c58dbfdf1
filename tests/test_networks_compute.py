"""Seconds of operators by hand: arithmetic, bytes, tiles, casts, layouts."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import ModelError
from paceline.model.cluster import Gpu
from paceline.model.cluster_presets import cluster_preset
from paceline.networks.build import Builder
from paceline.networks.compute import (
    ComputeConstants,
    constants_of,
    layer_seconds,
    peak_flops,
    step_seconds,
    update_seconds,
)
from paceline.networks.demand import demand_of
from paceline.networks.layer import NETWORK_INPUT
from paceline.networks.presets import network_preset

GPU = Gpu(
    name="round",
    peak_flops={"fp32": 1e12, "fp16": 8e12, "bf16": 8e12},
    memory_bytes=1e10,
    memory_bandwidth=1e11,
    sms=1,
)
IDEAL = ComputeConstants(
    product_share=1.0, memory_share=1.0, depthwise_share=0.5, grouped_share=0.1, kernel_s=0.0
)


def one(groups=1, channels=64, out=64, kernel=3):
    """ReLU before a convolution of 8x8, so that its input needs a gradient."""
    build = Builder("one", (channels, 8, 8))
    x = build.norm(NETWORK_INPUT, "norm")
    build.conv(x, "conv", out, kernel, padding=kernel // 2, groups=groups)
    return build.finish()


def seconds(network, batch=4, precision="fp32", channels_last=True, constants=IDEAL):
    demand = demand_of(network, precision)
    return layer_seconds(
        demand, batch, GPU, precision, channels_last=channels_last, constants=constants
    )


def test_a_wide_convolution_takes_its_arithmetic():
    flops = 2 * 64 * 64 * 9 * 64
    np.testing.assert_allclose(seconds(one())[:, 1], 4 * flops / 1e12)


def test_a_pointwise_convolution_takes_its_bytes():
    elements, weights = 64 * 64, 64 * 64
    np.testing.assert_allclose(
        seconds(one(kernel=1), precision="tf32")[:, 1],
        4 * (4 * 2 * elements + weights) / 1e11,
    )


def test_a_narrow_convolution_fills_part_of_a_tile():
    network = one(channels=64, out=16)
    demand = demand_of(network)
    assert demand.flops[0, 1] == 4 * network.layers[1].flops


def test_depthwise_convolutions_take_bytes_at_their_own_share():
    elements, weights = 64 * 64, 64 * 9
    np.testing.assert_allclose(
        seconds(one(groups=64))[:, 1], 4 * (4 * 2 * elements + weights) / 0.5e11
    )


def test_groups_are_slow_with_channels_last_only():
    last, first = (seconds(one(groups=2), channels_last=flag)[0, 1] for flag in (True, False))
    assert last == pytest.approx(10 * first)


def test_channels_first_reorders_what_tensor_cores_read():
    network = one(kernel=1)
    both = 2 * (64 * 64 + 64 * 64)
    extra = seconds(network, precision="amp", channels_last=False) - seconds(
        network, precision="amp"
    )
    np.testing.assert_allclose(extra[:, 1], 4 * 2 * both / 1e11)
    np.testing.assert_allclose(seconds(network, channels_last=False), seconds(network))


def test_nothing_is_reordered_where_tf32_is_fp32():
    demand = demand_of(one(), "tf32")
    volta = replace(GPU, peak_flops={"fp32": 1e12, "fp16": 8e12})
    first, last = (
        layer_seconds(demand, 4, volta, "tf32", channels_last=flag) for flag in (False, True)
    )
    np.testing.assert_array_equal(first, last)


def test_batch_norm_reads_its_input_twice_each_way():
    elements = 64 * 64
    forward, backward, none = seconds(one())[:, 0]
    assert forward == pytest.approx(4 * 4 * 3 * elements / 1e11)
    assert backward == pytest.approx(4 * 4 * 5 * elements / 1e11)
    assert none == 0


def test_autocast_pays_for_casts():
    demand = demand_of(one(), "amp")
    elements = 64 * 64
    # The norm's result is fp32 here: read and written in half for the convolution, and back.
    products = 2 * 2 * elements
    np.testing.assert_allclose(demand.sample_bytes[:2, 1], products + 6 * elements)
    weights = 64 * 64 * 9
    np.testing.assert_allclose(demand.step_bytes[:, 1], [weights * 8, weights * 2, weights * 2])


def test_each_kernel_takes_its_time_beside_its_work():
    slow = replace(IDEAL, kernel_s=1e-3)
    extra = seconds(one(), constants=slow) - seconds(one())
    np.testing.assert_allclose(extra, [[1e-3, 1e-3], [1e-3, 1e-3], [0, 1e-3]], atol=1e-9)


def test_gradients_of_a_branch_are_summed():
    build = Builder("branch", (4, 8, 8))
    x = build.norm(NETWORK_INPUT, "norm")
    y = build.activation(x, "relu")
    build.add(x, y)
    demand = demand_of(build.finish())
    assert demand.sample_bytes[1, 0] == 4 * 256 * (3 + 2 + 3)


def test_the_update_moves_each_parameter_by_its_optimizer():
    network = one()
    parameters = network.parameters
    for optimizer, elements in (("sgd", 6), ("momentum", 8), ("adam", 10)):
        took = update_seconds(demand_of(network), GPU, optimizer, constants=IDEAL)
        assert took == pytest.approx(4 * elements * parameters / 1e11)


def test_peaks_of_precisions():
    assert [peak_flops(GPU, name) for name in ("fp32", "tf32", "amp")] == [1e12, 4e12, 8e12]
    volta = replace(GPU, peak_flops={"fp32": 1e12, "fp16": 8e12})
    assert peak_flops(volta, "tf32") == 1e12


def test_fitted_constants_are_those_of_their_gpu():
    rtx = cluster_preset("rtx3090").gpu
    assert constants_of(GPU) == ComputeConstants()
    assert constants_of(rtx) != ComputeConstants()
    demand = demand_of(network_preset("resnet50"), "amp")
    # timm's table has 1,084 samples/s for a ResNet-50 with a deeper stem, channels last.
    assert 900 < 384 / step_seconds(demand, 384, rtx, "amp") < 1400


def test_a_step_is_its_passes_and_its_update():
    demand = demand_of(network_preset("resnet50"), "amp")
    passes = layer_seconds(demand, 64, GPU, "amp").sum()
    step = step_seconds(demand, 64, GPU, "amp")
    assert step == pytest.approx(passes + update_seconds(demand, GPU))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "a batch of 0: 1 sample at least"),
        ({"precision": "fp8"}, "'fp8' is none of"),
        ({"optimizer": "lion"}, "'lion' is none of sgd, momentum, adam"),
    ],
)
def test_what_cannot_be_costed_is_refused(change, message):
    options = {"batch": 1, "precision": "fp32", "optimizer": "sgd", **change}
    with pytest.raises(ModelError, match=message):
        step_seconds(demand_of(one()), gpu=GPU, **options)
