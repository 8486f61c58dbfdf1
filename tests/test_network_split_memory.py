"""Memory of split networks: by hand, and against what torch saves of a real split."""

import pytest

import requires
from paceline.networks.build import Builder
from paceline.networks.demand import demand_of
from paceline.networks.presets import network_preset
from paceline.networks.saved import saved_bytes
from paceline.networks.split_memory import OF_SAMPLES, paging, step_memory
from paceline.networks.strategy import Strategy
from paceline.networks.traffic import crossing
from paceline.units import GIB


def two_convolutions():
    """3x16x16 -> 8x16x16 -> 4x16x16, a ReLU between that makes a tensor of its own."""
    builder = Builder("two", (3, 16, 16))
    x = builder.conv(-1, "conv1", 8, 3, padding=1)
    x = builder.activation(x, "relu")
    builder.conv(x, "conv2", 4, 3, padding=1)
    return builder.finish()


def strategy(name, gpus=4, batch=2, **more):
    return Strategy(name=name, gpus=gpus, global_batch=batch, gradients="none", **more)


def test_a_spatial_split_saves_what_torch_saves_of_it():
    """A GPU in the middle: its rows with a halo at both sides, joined before each convolution."""
    requires.installed("torch")
    import torch
    from torch import nn

    batch, rows = 2, 16 // 4
    conv1, conv2 = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)
    weights = {p.data_ptr() for p in (*conv1.parameters(), *conv2.parameters())}
    saved = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = (storage.nbytes(), storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        slab = torch.randn(batch, 3, rows + 2, 18)  # columns are padded, rows come from neighbours
        hidden = torch.relu(conv1(slab))
        halo = torch.randn(batch, 8, 1, 16)
        joined = torch.cat([halo, hidden, halo], 2)
        conv2(nn.functional.pad(joined, (1, 1)))
    of_torch = sum(size for size, _ in saved.values())
    # torch pads columns in memory here, which cuDNN does without.
    columns = 4 * batch * (rows + 2) * 2 * (3 + 8)
    told = step_memory(two_convolutions(), strategy("spatial", batch=batch))
    assert told["activations"] + told["halos"] == of_torch - columns


@pytest.mark.parametrize(("rows", "gpus"), [(16, 4), (16, 3)])
def test_the_largest_part_counts_where_rows_do_not_divide(rows, gpus):
    network = two_convolutions()
    told = step_memory(network, strategy("spatial", gpus=gpus, batch=1))
    part = -(-rows // gpus)
    assert told["activations"] == 4 * part * 16 * (3 + 8)
    assert told["gathers"] == 0  # nothing comes behind the last layer


def test_where_a_spatial_split_ends_the_whole_tensor_is_gathered():
    network = network_preset("resnet18", (3, 64, 64))
    split = strategy("spatial", gpus=2, batch=3, spatial_until=10)
    behind = crossing(network, 10)
    whole = sum(network.layers[i].out_elements for i in behind)
    assert step_memory(network, split)["gathers"] == 4 * 3 * whole


def test_filters_hold_a_part_of_a_result_and_channels_save_slices():
    network = two_convolutions()
    told = step_memory(network, strategy("filter", gpus=2, batch=2))
    assert told["gathers"] == 4 * 2 * (8 * 256) / 2
    assert told["weights"] == 4 * sum(demand_of(network).weights) / 2
    channel = step_memory(network, strategy("channel", gpus=2, batch=2))
    # The first layer is not split (4.5); the second saves its slice of eight channels.
    assert channel["gathers"] == 4 * 2 * (8 * 256) / 2


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_pipelines_fullest_stage_holds_its_microbatches_in_flight(schedule, recompute):
    network = network_preset("vgg16", (3, 224, 224))
    ends = (9, 20, len(network.layers) - 1)
    told = step_memory(
        network,
        strategy(
            "pipeline", gpus=3, batch=8, microbatches=4, schedule=schedule, recompute=recompute
        ),
        ends,
    )
    saved, starts = saved_bytes(network), (0, 10, 21)
    totals = []
    for stage, (first, last) in enumerate(zip(starts, ends, strict=True)):
        in_flight = 4 if schedule == "gpipe" else min(4, 3 - stage)
        whole = saved[first : last + 1].sum()
        handed = 4 * 3 * 224 * 224 if first == 0 else 4 * network.layers[first - 1].out_elements
        earlier = handed if recompute else whole
        totals.append(((in_flight - 1) * earlier, whole))
    # The peak of the last microbatch is its stage's, or less where gradients are large early on.
    bounds = [(2 * low, 2 * (low + whole)) for low, whole in totals]
    assert any(low < told["activations"] <= high for low, high in bounds)
    assert told["activations"] <= max(high for _, high in bounds)


def test_1f1b_holds_less_than_gpipe():
    network = network_preset("vgg16", (3, 224, 224))
    ends = (9, 20, len(network.layers) - 1)
    held = {
        schedule: step_memory(
            network,
            strategy("pipeline", gpus=3, batch=32, microbatches=16, schedule=schedule),
            ends,
        )["activations"]
        for schedule in ("gpipe", "1f1b")
    }
    assert held["1f1b"] < held["gpipe"] / 4


@pytest.mark.parametrize(
    ("more", "buckets", "parameters"),
    [
        ({"gradients": "buckets"}, 1.0, 0.0),
        ({"gradients": "packed"}, 1.0, 0.0),
        ({"gradients": "per tensor"}, 0.0, 0.0),
        ({"gradients": "buckets", "gradient_precision": "fp16"}, 0.5, 0.0),
    ],
)
def test_ddps_buckets_are_a_second_copy_of_the_gradients(more, buckets, parameters):
    network = network_preset("resnet18", (3, 64, 64))
    told = step_memory(network, Strategy(name="data", gpus=8, global_batch=8, **more))
    assert told.get("buckets", 0.0) == buckets * 4 * network.parameters
    assert told.get("parameters", 0.0) == parameters


def test_fsdp_gathers_two_layers_and_keeps_shards():
    network = network_preset("vgg16", (3, 224, 224))
    told = step_memory(
        network, Strategy(name="data", gpus=8, global_batch=8, gradients="buckets", zero=3)
    )
    largest = max(layer.parameter_count for layer in network.layers)
    assert told["parameters"] == 2 * 4 * largest
    assert told["weights"] == told["gradients"] == 4 * network.parameters / 8
    assert told["buckets"] == 2 * 25 * 2**20


def test_one_gpu_holds_what_the_whole_network_does():
    from paceline.networks.memory import network_memory

    network = network_preset("unet2d", (1, 128, 128))
    told = step_memory(network, Strategy(name="data", gpus=1, global_batch=4))
    whole = network_memory(network, 4)
    assert sum(told.values()) == pytest.approx(whole.total, rel=1e-12)
    assert set(OF_SAMPLES) & set(told) == {"activations", "transient"}


def test_what_does_not_fit_says_by_how_much_and_because_of_what():
    assert paging({"activations": 15 * GIB, "weights": GIB}, 16 * GIB) == ""
    told = paging({"activations": 18 * GIB, "weights": GIB}, 16 * GIB)
    assert told == (
        "fits memory only by paging: 19.0 GiB a GPU, 3.0 GiB too much; 18.0 GiB are activations"
    )
