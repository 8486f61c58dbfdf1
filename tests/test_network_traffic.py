"""Messages and bytes of strategies against an enumeration of every element."""

import itertools
import random
from dataclasses import replace

import pytest

from paceline.errors import ModelError
from paceline.networks.layer import Layer, LayerNetwork, Window
from paceline.networks.limits import violations
from paceline.networks.regions import backward_halo, bounds, forward_halo
from paceline.networks.strategy import Strategy
from paceline.networks.traffic import traffic


def out_extent(window, size, d):
    if window.transposed:
        return (size - 1) * window.stride[d] - sum(window.padding[d]) + window.reach(d)
    return (size + sum(window.padding[d]) - window.reach(d)) // window.stride[d] + 1


def enumerated(window, in_size, out_size, parts, backward):
    """(received, messages) of each GPU, by walking every output element and kernel element."""

    def owner(point, size):
        return tuple(
            next(p for p in range(n) if bounds(s, n)[p] <= x < bounds(s, n)[p + 1])
            for x, s, n in zip(point, size, parts, strict=True)
        )

    needs = {}
    for y in itertools.product(*map(range, out_size)):
        for k in itertools.product(*map(range, window.kernel)):
            steps = list(zip(y, k, window.stride, window.dilation, window.padding, strict=True))
            if window.transposed:
                spots = [(o + p[0] - i * d) / s for o, i, s, d, p in steps]
                if any(spot != int(spot) for spot in spots):
                    continue
                x = tuple(map(int, spots))
            else:
                x = tuple(o * s + i * d - p[0] for o, i, s, d, p in steps)
            if not all(0 <= a < b for a, b in zip(x, in_size, strict=True)):
                continue
            source, target = (y, x) if backward else (x, y)
            sizes = (out_size, in_size) if backward else (in_size, out_size)
            sender, receiver = owner(source, sizes[0]), owner(target, sizes[1])
            if sender != receiver:
                needs.setdefault(receiver, {}).setdefault(sender, set()).add(source)
    return [(sum(map(len, by.values())), len(by)) for by in needs.values()]


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("backward", [False, True])
def test_halo_counts_every_element(seed, backward):
    draw = random.Random(seed)
    dimensions = draw.choice((1, 2, 2, 3))
    per_dimension = range(dimensions)
    window = Window(
        kernel=tuple(draw.randint(1, 4) for _ in per_dimension),
        stride=tuple(draw.randint(1, 3) for _ in per_dimension),
        dilation=tuple(draw.randint(1, 2) for _ in per_dimension),
        padding=tuple((draw.randint(0, 1), draw.randint(0, 1)) for _ in per_dimension),
        transposed=draw.random() < 0.3,
    )
    in_size = tuple(draw.randint(7, 10) if dimensions < 3 else 6 for _ in per_dimension)
    out_size = tuple(out_extent(window, size, d) for d, size in enumerate(in_size))
    if min(out_size) < 1:
        pytest.skip("no output")
    parts = tuple(draw.randint(1, 3) for _ in per_dimension)
    halo = (backward_halo if backward else forward_halo)(window, in_size, out_size, parts)
    gpus = enumerated(window, in_size, out_size, parts, backward)
    assert halo.total == sum(received for received, _ in gpus)
    assert halo.messages == sum(messages for _, messages in gpus)
    assert halo.most_received == max((received for received, _ in gpus), default=0)
    assert halo.most_messages == max((messages for _, messages in gpus), default=0)


def square(kernel, stride=1, padding=1):
    return Window(
        kernel=(kernel,) * 2,
        stride=(stride,) * 2,
        dilation=(1, 1),
        padding=((padding, padding),) * 2,
    )


@pytest.fixture(scope="module")
def small():
    """Two convolutions 3 -> 8 -> 16 on 12 x 12 and a linear layer."""
    layers = (
        Layer(name="conv1", kind="conv", out_shape=(8, 12, 12), parameters=((8, 3, 3, 3), (8,)),
              window=square(3)),
        Layer(name="relu", kind="activation", out_shape=(8, 12, 12), inputs=(0,)),
        Layer(name="conv2", kind="conv", out_shape=(16, 6, 6), inputs=(1,),
              parameters=((16, 8, 3, 3),), window=square(3, 2)),
        Layer(name="norm", kind="norm", out_shape=(16, 6, 6), inputs=(2,), parameters=((16,),)),
        Layer(name="flat", kind="view", out_shape=(576,), inputs=(3,)),
        Layer(name="fc", kind="linear", out_shape=(10,), inputs=(4,), parameters=((10, 576),)),
    )  # fmt: skip
    return LayerNetwork(name="small", input_shape=(3, 12, 12), layers=layers)


PARAMETERS = 8 * 27 + 8 + 16 * 72 + 16 + 5760


def moved(network, **options):
    strategy = Strategy(**options)
    return [
        (t.what, t.pattern, t.phase, network.layers[t.layer].name, t.elements, t.messages, t.size)
        for t in traffic(network, strategy)
    ]


def test_data_moves_the_gradients_once(small):
    assert moved(small, name="data", gpus=4, global_batch=8) == [
        ("gradients", "all-reduce", "update", "conv1", PARAMETERS, 6, 4)
    ]


def test_gradients_tensor_by_tensor_in_the_order_of_the_backward_pass(small):
    rows = moved(small, name="data", gpus=4, global_batch=8, gradients="per tensor")
    assert [(row[3], row[4]) for row in rows] == [
        ("fc", 5760),
        ("norm", 16),
        ("conv2", 16 * 72),
        ("conv1", 8),
        ("conv1", 8 * 27),
    ]


def test_buckets_close_when_they_are_full(small):
    options = {"name": "data", "gpus": 2, "global_batch": 2, "gradients": "buckets"}
    rows = moved(small, **options, bucket_bytes=4 * 5000)
    assert [row[4] for row in rows] == [5760, PARAMETERS - 5760]


def test_spatial_moves_halos_and_gathers_where_it_ends(small):
    # Rows of conv1: 2 parts of 6 need one row of 12 elements in 3 channels, 5 samples. conv2
    # (stride 2, padding 1): outputs 3..5 read row 5; outputs 0..2 read rows up to 5, all their own.
    # Backward through conv2 gradient row 3 reaches input row 5 of the first part.
    assert moved(small, name="spatial", gpus=2, global_batch=5, gradients="none") == [
        ("halo", "p2p", "forward", "conv1", 5 * 3 * 12, 1, 2),
        ("halo", "p2p", "forward", "conv2", 5 * 8 * 12, 1, 2),
        ("halo", "p2p", "backward", "conv2", 5 * 16 * 6, 1, 2),
        ("gather", "all-gather", "forward", "norm", 5 * 16 * 36, 1, 2),
    ]


def test_filter_gathers_forward_and_reduces_backward(small):
    assert moved(small, name="filter", gpus=4, global_batch=2, gradients="none") == [
        ("layer", "all-gather", "forward", "conv1", 2 * 8 * 144, 3, 4),
        ("layer", "all-gather", "forward", "conv2", 2 * 16 * 36, 3, 4),
        ("layer", "all-reduce", "backward", "conv2", 2 * 8 * 144, 6, 4),
        ("layer", "all-reduce", "backward", "fc", 2 * 576, 6, 4),
    ]


def test_channel_is_the_other_way_round_from_the_second_layer(small):
    assert moved(small, name="channel", gpus=4, global_batch=2, gradients="none") == [
        ("layer", "all-reduce", "forward", "conv2", 2 * 16 * 36, 6, 4),
        ("layer", "all-gather", "backward", "conv2", 2 * 8 * 144, 3, 4),
        ("layer", "all-reduce", "forward", "fc", 2 * 10, 6, 4),
        ("layer", "all-gather", "backward", "fc", 2 * 576, 3, 4),
    ]


def test_ring_gather_receives_what_a_gpu_lacks(small):
    (first, *_) = traffic(small, Strategy(name="filter", gpus=4, global_batch=2))
    lacking = {(c, i) for c in range(8) for i in range(144)} - {
        (c, i) for c in range(2) for i in range(144)
    }
    assert first.received == 2 * len(lacking)


def test_hybrids_share_gradients_among_replicas(small):
    options = {"gpus": 8, "split": 4, "global_batch": 4}
    filters = [row for row in moved(small, name="data+filter", **options) if row[0] == "gradients"]
    split = (8 * 27 + 8 + 16 * 72 + 5760) / 4 + 16
    assert filters == [("gradients", "all-reduce", "update", "conv1", split, 2, 2)]
    spatial = [row for row in moved(small, name="data+spatial", **options) if row[0] == "gradients"]
    assert spatial == [("gradients", "all-reduce", "update", "conv1", PARAMETERS, 14, 8)]


def test_fsdp_moves_half_more(small):
    def received(zero):
        strategy = Strategy(name="data", gpus=4, global_batch=8, zero=zero)
        return sum(t.received for t in traffic(small, strategy))

    assert received(1) == received(0) == 2 * PARAMETERS * 3 / 4
    assert received(3) == received(0) * 1.5


def test_sync_batchnorm_gathers_forward_and_sums_backward(small):
    # 16 channels: mean and inverse deviation of each, and a count, of both GPUs; then two sums.
    options = {"name": "data", "gpus": 2, "global_batch": 2, "sync_batchnorm": True}
    assert moved(small, **options)[:2] == [
        ("norm", "all-gather", "forward", "norm", 2 * (2 * 16 + 1), 1, 2),
        ("norm", "all-reduce", "backward", "norm", 2 * 16, 2, 2),
    ]
    amp = traffic(small, Strategy(**options, precision="amp"))
    assert {transfer.width for transfer in amp if transfer.what == "norm"} == {4}


@pytest.mark.parametrize("op", ["aten.native_layer_norm", "GroupNormalization"])
def test_norms_of_single_samples_are_not_synchronised(small, op):
    layers = [replace(layer, op=op) if layer.kind == "norm" else layer for layer in small.layers]
    rows = moved(replace(small, layers=tuple(layers)), name="data", gpus=2, global_batch=2,
                 sync_batchnorm=True)  # fmt: skip
    assert [row[0] for row in rows] == ["gradients"]


def test_autocast_moves_half_of_what_products_read_and_write(small):
    def widths(**options):
        transfers = traffic(small, Strategy(gpus=2, global_batch=2, **options))
        return [(t.what, t.phase, small.layers[t.layer].name, t.width) for t in transfers]

    assert widths(name="spatial", precision="amp") == [
        ("halo", "forward", "conv1", 2),
        ("halo", "forward", "conv2", 2),
        ("halo", "backward", "conv2", 2),
        ("gather", "forward", "norm", 2),
        ("gradients", "update", "conv1", 4),
    ]
    assert {row[3] for row in widths(name="filter", precision="amp")} == {2}
    assert {row[3] for row in widths(name="filter", precision="tf32")} == {4}


def test_hooks_of_ddp_halve_the_gradients_alone(small):
    options = {"name": "data", "gpus": 2, "global_batch": 2}
    for zero, widths in ((0, [2]), (1, [2, 4])):
        strategy = Strategy(**options, zero=zero, gradient_precision="bf16")
        assert [transfer.width for transfer in traffic(small, strategy)] == widths


def test_limits_name_the_layer(small):
    def reasons(**options):
        return violations(small, Strategy(**options))

    assert reasons(name="filter", gpus=16, global_batch=1) == (
        "filter: at most 8 GPUs, layer conv1 has 8 filters",
    )
    assert reasons(name="channel", gpus=16, global_batch=1) == (
        "channel: at most 8 GPUs, layer conv2 has 8 input channels",
    )
    assert reasons(name="spatial", gpus=8, global_batch=1) == (
        "spatial: at most 6 GPUs, layer conv2 (6x6) has 6 rows",
    )
    assert reasons(name="spatial", gpus=8, global_batch=1, grid=(4, 2)) == ()
    assert reasons(name="pipeline", gpus=8, global_batch=1) == (
        "pipeline: at most 4 GPUs, small has 4 layers with weights",
    )
    assert reasons(name="data+filter", gpus=32, split=16, global_batch=2) == (
        "data+filter: at most 8 GPUs a sample, layer conv1 has 8 filters",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "tensor", "gpus": 4}, "no strategy 'tensor'; choose data, spatial"),
        ({"name": "data", "gpus": 16}, "at most 8 GPUs, or a batch of at least 16"),
        ({"name": "data+filter", "gpus": 16, "split": 6}, "nearest that do are 4 and 8"),
        ({"name": "data+filter", "gpus": 6}, "legal are 1, 2, 3, 6"),
        ({"name": "filter", "gpus": 8, "split": 4}, "for less, combine it with data"),
        ({"name": "spatial", "gpus": 4, "grid": (3, 2)}, "the grid 3x2 has 6 parts"),
        ({"name": "pipeline", "gpus": 4, "microbatches": 3}, "nearest that do are 2 and 4"),
        ({"name": "data", "gpus": 0}, "gpus must be a whole number >= 1"),
        ({"name": "data", "gpus": 8, "precision": "fp8"}, "choose fp32, tf32, amp"),
        ({"name": "data", "gpus": 8, "gradient_precision": "fp8"}, "no gradient precision 'fp8'"),
        ({"name": "data", "gpus": 8, "library": "gloo"}, "no library 'gloo'; choose nccl, mpi"),
        ({"name": "data", "gpus": 8, "channels_last": "yes"}, "must be true or false, not 'yes'"),
    ],
)
def test_bad_strategies_are_refused_with_the_nearest_legal_ones(options, message):
    with pytest.raises(ModelError, match=message):
        Strategy(**{"global_batch": 8, **options})
