"""What autograd saves, against its own hooks; memory of a step and the largest batch."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import ModelError
from paceline.model.cluster_presets import cluster_preset
from paceline.networks.build import Builder
from paceline.networks.layer import NETWORK_INPUT
from paceline.networks.memory import (
    MemoryConstants,
    cast_bytes,
    largest_batch,
    network_memory,
    paradl_bytes,
)
from paceline.networks.presets import network_preset
from paceline.networks.saved import saved_bytes

EXACT = MemoryConstants(reserved_bytes=0.0, overhead=1.0)


def plain(in_place=True):
    """A convolution to 4x8x8, batch norm, ReLU, pool, linear."""
    build = Builder("plain", (3, 8, 8))
    x = build.conv(NETWORK_INPUT, "conv", 4, 3, padding=1)
    x = build.activation(build.norm(x, "bn"), "relu", in_place=in_place)
    x = build.pool(x, "pool", 2, stride=2)
    x = build.view(x, "flatten", (64,))
    build.linear(x, "fc", 10)
    return build.finish()


def test_saved_bytes_by_hand():
    # conv: its input; norm: its input; ReLU: its result; pool: indices (its input is ReLU's
    # result); linear: its input.
    fp32 = [4 * 192, 4 * 256, 4 * 256, 8 * 64, 0, 4 * 64]
    np.testing.assert_array_equal(saved_bytes(plain()), fp32)
    np.testing.assert_array_equal(saved_bytes(plain(in_place=False)), fp32)
    np.testing.assert_array_equal(saved_bytes(plain(), "tf32"), fp32)
    amp = [2 * 192, 2 * 256, 2 * 256, 8 * 64, 0, 2 * 64]
    np.testing.assert_array_equal(saved_bytes(plain(), "amp"), amp)


def test_amp_saves_a_copy_where_it_casts():
    build = Builder("tokens", (8, 5))
    x = build.linear(NETWORK_INPUT, "a", 8)
    x = build.norm(x, "norm", "aten.native_layer_norm")
    x = build.linear(x, "b", 8)
    build.linear(x, "c", 8)
    rows = 2 * 4 * 5
    # The norm reads fp16 and saves a copy in fp32; "b" reads fp32 and saves a copy in fp16.
    expected = [2 * 40, 4 * 40 + rows, 2 * 40, 2 * 40]
    np.testing.assert_array_equal(saved_bytes(build.finish(), "amp"), expected)


def hooked(module, shape):
    """Bytes of one sample that autograd's hooks see; parameters and buffers left out."""
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    state = [*module.parameters(), *module.buffers()]
    own = {tensor.untyped_storage()._cdata for tensor in state}
    totals = []
    for batch in (2, 4):
        storages, alive = {}, []

        def pack(tensor, storages=storages, alive=alive):
            alive.append(tensor)
            storage = tensor.untyped_storage()
            if storage._cdata not in own:
                storages[storage._cdata] = storage.nbytes()
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            module(torch.empty(batch, *shape, device="meta"))
        totals.append(sum(storages.values()))
    return (totals[1] - totals[0]) / 2  # what does not grow with the batch is gone


def gates():
    """A gated block: in-place SiLU, squeeze and excitation, softmax, GELU, average pool."""
    from torch import nn

    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)
            self.silu = nn.SiLU(inplace=True)
            self.squeeze = nn.Conv2d(8, 8, 1)
            self.norm = nn.LayerNorm(8)
            self.head = nn.Linear(8, 8)

        def forward(self, x):
            x = self.silu(self.conv(x))
            x = x * self.squeeze(x.mean((2, 3), keepdim=True)).sigmoid()
            x = nn.functional.avg_pool2d(nn.functional.hardswish(x), 2)
            t = self.norm(x.flatten(2).transpose(1, 2))
            scores = (t @ t.transpose(1, 2)).softmax(-1)
            return nn.functional.gelu(self.head(scores @ t)) + t

    return Gate()


def test_saved_bytes_equal_what_autograds_hooks_see():
    torch = pytest.importorskip("torch")
    from paceline.networks.from_torch import read_network
    from test_networks_presets import torch_resnet50, torch_unet

    for make, shape in (
        (torch_resnet50, (3, 64, 64)),
        (torch_unet, (3, 32, 32)),
        (gates, (3, 16, 16)),
    ):
        with torch.device("meta"):
            module = make()
            network = read_network(module, torch.empty(2, *shape))
        assert saved_bytes(network).sum() == pytest.approx(hooked(module, shape), rel=0.001)


def test_a_preset_saves_what_its_module_does():
    torch = pytest.importorskip("torch")
    from test_networks_presets import torch_resnet50

    with torch.device("meta"):
        truth = hooked(torch_resnet50(), (3, 224, 224))
    assert saved_bytes(network_preset("resnet50")).sum() == pytest.approx(truth, rel=0.001)


def test_memory_by_hand():
    network = plain()
    memory = network_memory(network, 3, optimizer="adam", constants=EXACT)
    weights = 4 * (108 + 8 + 650)
    assert (memory.parameters, memory.gradients) == (weights, weights)
    assert (memory.optimizer, memory.casts) == (2 * weights, 0)
    # The peak is at ReLU's backward: the linear layer's input and the indices are gone, the
    # gradients of ReLU's and norm's results are there.
    assert memory.saved == 3 * (4 * 192 + 4 * 256 + 4 * 256)
    assert memory.transient == 3 * 4 * (256 + 256)
    assert memory.total == 4 * weights + memory.saved + memory.transient


def test_amp_keeps_casts_of_products():
    assert cast_bytes(plain()) == 2 * (108 + 650)
    assert network_memory(plain(), 1, precision="amp").casts == 2 * (108 + 650)


def test_the_largest_batch_fits_and_the_next_does_not():
    network, gpu = network_preset("resnet50"), cluster_preset("v100-16g").gpu
    batch = largest_batch(network, gpu)
    assert network_memory(network, batch).total <= gpu.memory_bytes
    assert network_memory(network, batch + 1).total > gpu.memory_bytes
    assert largest_batch(network, gpu, precision="amp") > 1.5 * batch
    assert largest_batch(network, replace(gpu, memory_bytes=1e9)) == 0


def test_checkpoints_keep_less_and_one_block_keeps_nothing():
    network = network_preset("resnet50")
    totals = [network_memory(network, 64, blocks=blocks).total for blocks in (0, 2, 4)]
    assert totals[0] > totals[1] > totals[2]
    once = network_memory(network, 1, blocks=1, constants=EXACT)
    assert once.saved == 4 * 3 * 224 * 224


def test_the_papers_formula_by_hand():
    build = Builder("two", (2, 4, 4))
    x = build.conv(NETWORK_INPUT, "conv", 3, 1, bias=True)
    build.linear(build.view(x, "flatten", (48,)), "fc", 5, bias=False)
    # |x| + |y| is 32 + 48 and 48 + 5, |w| is 6 and 240, |bi| is 3.
    items = 2 * 7 * (80 + 53) + 2 * 246 + 3
    assert paradl_bytes(build.finish(), 7, gamma=0.5) == 0.5 * 4 * items


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp8"}, "the precision 'fp8' is none of fp32, tf32, amp"),
        ({"optimizer": "lion"}, "the optimizer 'lion' is none of sgd, momentum, adam"),
        ({"batch": 0}, "a batch of 0 in 0 blocks"),
    ],
)
def test_choices_that_are_not_known_are_refused(options, message):
    with pytest.raises(ModelError, match=message):
        network_memory(plain(), **{"batch": 1, **options})
