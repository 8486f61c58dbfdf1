"""Layers out of modules: against torch's own counts, and what a module may not do."""

import math
import sys
from types import SimpleNamespace

import pytest

from test_networks_presets import torch_resnet50, torch_unet

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn.modules._functions import SyncBatchNorm
from torch.utils.flop_counter import FlopCounterMode

from paceline.errors import ModelError
from paceline.networks.build import Builder
from paceline.networks.from_torch import read_network
from paceline.networks.layer import NETWORK_INPUT
from paceline.networks.layers_json import check_joints
from paceline.networks.presets import network_preset
from paceline.networks.strategy import Strategy
from paceline.networks.traffic import traffic


@pytest.fixture(scope="module")
def resnet50():
    with torch.device("meta"):
        module = torch_resnet50().eval()
        return read_network(module, torch.empty(1, 3, 224, 224), name="resnet50"), module


def test_resnet50_has_the_layers_of_the_preset(resnet50):
    network, _ = resnet50
    preset = network_preset("resnet50")
    for kind in ("conv", "norm", "activation", "add", "pool", "linear"):
        shapes = [x.out_shape for x in network.layers if x.kind == kind]
        assert sorted(shapes) == sorted(x.out_shape for x in preset.layers if x.kind == kind)
    assert network.parameters == preset.parameters
    assert network.flops == preset.flops
    for name in ("grad_input_flops", "grad_weight_flops"):
        assert sum(getattr(x, name) for x in network.layers) == sum(
            getattr(x, name) for x in preset.layers
        )
    check_joints(network)


def test_reading_leaves_the_module_as_it_was(resnet50):
    _, module = resnet50
    assert not any(child.training for child in module.modules())
    assert all(parameter.is_meta for parameter in module.parameters())


def test_layers_are_named_by_their_modules_and_branches_meet(resnet50):
    network, _ = resnet50
    assert network.layers[0].name == "0.0"
    join = next(layer for layer in network.layers if layer.kind == "add")
    assert [network.layers[i].kind for i in join.inputs] == ["norm", "norm"]


class Mixed(nn.Module):
    """Convolutions of one to three dimensions, transposed, grouped, dilated; attention; a tie."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv1d(4, 8, 3, stride=2, dilation=2, groups=2)
        self.up = nn.ConvTranspose2d(1, 3, 3, stride=2, padding=1, output_padding=1)
        self.three = nn.Conv3d(1, 2, 3, padding=1)
        self.head = nn.Linear(16, 16, bias=False)
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        x = self.one(x)
        y = self.up(x.unsqueeze(1))
        z = self.three(y.unsqueeze(1)).mean((1, 2)).reshape(x.shape[0], -1, 16)
        q = self.head(self.norm(z)).unsqueeze(1)
        a = nn.functional.scaled_dot_product_attention(q, q, q).squeeze(1)
        return nn.functional.relu_(self.head(a))


@pytest.fixture(scope="module")
def mixed():
    module = Mixed()
    return read_network(module, torch.empty(2, 4, 36)), module


def test_all_products_are_counted_as_torch_counts_them(mixed):
    network, module = mixed
    from torch.nn.attention import SDPBackend, sdpa_kernel

    sample = torch.zeros(2, 4, 36)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        module(sample)
    assert 2 * network.flops == counter.get_total_flops()
    assert network.parameters == sum(p.numel() for p in module.parameters())


def test_shapes_are_of_one_sample_with_channels_first(mixed):
    network, _ = mixed
    convs = [layer for layer in network.layers if layer.kind == "conv"]
    assert [layer.out_shape for layer in convs] == [(8, 16), (3, 16, 32), (2, 3, 16, 32)]
    assert convs[0].window.dilation == (2,)
    assert convs[0].groups == 2
    assert convs[1].window.transposed
    assert convs[1].window.padding == ((1, 0), (1, 0))
    linears = [layer for layer in network.layers if layer.kind == "linear"]
    assert {layer.out_shape for layer in linears} == {(16, 32)}
    assert linears[1].tied_to == network.layers.index(linears[0])
    assert network.layers[-1].in_place
    check_joints(network)


def test_attention_is_one_layer_whose_backward_computes_scores_again(mixed):
    network, _ = mixed
    (attention,) = (layer for layer in network.layers if layer.kind == "attention")
    assert attention.flops == 4 * 32 * 32 * 16
    assert attention.grad_input_flops == 2.5 * attention.flops


def test_frozen_layers_have_no_gradients_of_weights():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).requires_grad_(False)
    module[1].weight.requires_grad_(True)
    network = read_network(module, torch.empty(1, 4))
    first, second = network.layers
    assert (first.grad_input_flops, first.grad_weight_flops, first.parameters) == (0, 0, ())
    assert (second.grad_input_flops, second.grad_weight_flops) == (0, second.flops)
    assert second.parameters == ((4, 4),)


def test_a_slice_is_a_view_and_dropout_is_one_operator():
    class Half(nn.Module):
        def forward(self, x):
            x = nn.functional.dropout(x * 2, 0.1, self.training)
            return x[:, :2].sigmoid()

    network = read_network(Half(), torch.empty(3, 4, 5))
    assert [layer.kind for layer in network.layers] == [
        *("multiply", "dropout", "view", "activation")
    ]
    assert network.layers[0].inputs == (NETWORK_INPUT,)
    assert network.layers[-1].out_shape == (2, 5)


def test_a_recurrent_layer_hides_nothing():
    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(16, 32, batch_first=True, bidirectional=True)

        def forward(self, x):
            return self.rnn(x)[0]

    network = read_network(Rows(), torch.empty(2, 7, 16))
    first, second = (layer for layer in network.layers if layer.kind == "linear")
    assert first.out_shape == second.out_shape == (32, 7)
    # Two products a position, of the input and of the state, with four gates each.
    assert first.flops == 2 * 7 * 4 * 32 * (16 + 32)
    assert network.parameters == 2 * 4 * 32 * (16 + 32 + 2)
    assert not network.unknown


def test_unknown_operators_are_said_with_their_share():
    class Odd(nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x) + x

    with pytest.warns(UserWarning, match=r"\(50\.0% of all results\): aten\.special_bessel_j0"):
        network = read_network(Odd(), torch.empty(2, 8))
    assert network.unknown == {"aten.special_bessel_j0": 1}


class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Ragged(nn.Module):
    def forward(self, x):
        return x[x > 0]


class Two(nn.Module):
    def forward(self, x, mask):
        return x * mask


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (Branch(), r"module 0 \(.*test_networks_torch.py, line \d+\): .*data-dependent branch"),
        (Ragged(), r"module 0 \(.*line \d+\): .*dynamic shapes"),
        (Two(), r"missing 1 required positional argument: 'mask'; give one example input"),
        (nn.Linear(5, 1), r"module 0.* does not run with these inputs: .*reduction dim"),
    ],
)
def test_what_a_module_may_not_do_is_named_with_its_line(inner, message):
    with pytest.raises(ModelError, match=message):
        read_network(nn.Sequential(inner), torch.empty(2, 4))


@pytest.mark.parametrize(
    ("module", "inputs", "message"),
    [
        (lambda x: x, torch.empty(2, 4), "a network is a torch.nn.Module, not a function"),
        (nn.ReLU(), [], "example_inputs must be a tensor"),
        (nn.ReLU(), torch.empty(4), "has no batch and channels"),
        (nn.Identity(), torch.empty(2, 4), "computes nothing"),
    ],
)
def test_what_is_no_network_is_said(module, inputs, message):
    with pytest.raises(ModelError, match=message):
        read_network(module, inputs)


def test_an_exported_program_has_the_same_layers():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Hardswish(), nn.Flatten(), nn.Linear(64, 2))
    program = torch.export.export(module, (torch.zeros(2, 3, 6, 6),))
    direct = read_network(module, torch.empty(2, 3, 6, 6))
    exported = read_network(program, torch.empty(2, 3, 6, 6))
    assert [x.out_shape for x in exported.layers] == [x.out_shape for x in direct.layers]
    assert math.isclose(exported.flops, direct.flops)


NET = """\
from torch import nn
print("noise")
def build():
    return nn.Conv2d(3, 4, 3)
def broken():
    raise ValueError("no luck")
"""


def test_a_users_file_is_read_in_a_process_of_its_own(tmp_path):
    from paceline.networks.read import read_source

    path = tmp_path / "net.py"
    path.write_text(NET)
    network = read_source(f"{path}:build", [(3, 8, 8)])
    assert network.layers[0].out_shape == (4, 6, 6)
    assert "net" not in sys.modules


def test_a_users_function_that_fails_is_named(tmp_path):
    from paceline.networks.read_process import build_network

    path = tmp_path / "net.py"
    path.write_text(NET)
    for member, message in (
        ("broken", "broken cannot be built: ValueError: no luck"),
        ("absent", "has no absent"),
        ("nn", "returns a module, not a torch.nn.Module"),
    ):
        with pytest.raises(ModelError, match=message):
            build_network(f"{path}:{member}", [(3, 8, 8)])
    with pytest.raises(ModelError, match="there is no file"):
        build_network("/absent/net.py:build", [(3, 8, 8)])


def test_sources_that_are_no_networks_are_refused(tmp_path):
    from paceline.networks.read import read_source

    for source, message in (
        ("net.py", "name the function"),
        ("net.py:build", "needs --input"),
        ("net.pt", "never opened"),
        ("net.txt", "is no network"),
        ("resnet51", "the nearest are"),
    ):
        with pytest.raises(ModelError, match=message):
            read_source(source)


def test_the_unet_has_the_parameters_and_flops_of_the_preset():
    with torch.device("meta"):
        network = read_network(torch_unet(), torch.empty(1, 3, 64, 64))
    preset = network_preset("unet2d", (3, 64, 64))
    assert (network.parameters, network.flops) == (preset.parameters, preset.flops)


def test_sync_batchnorm_sends_what_torch_sends(monkeypatch):
    # torch's own function, on one of two GPUs; its kernels exist for GPUs alone.
    sent, channels = [], 16
    sums = torch.zeros(channels)
    kernels = {
        "batch_norm_stats": lambda x, eps: (sums, sums),
        "batch_norm_gather_stats_with_counts": lambda x, *rest: (sums, sums),
        "batch_norm_elemt": lambda x, *rest: x.detach().clone(),
        "batch_norm_backward_reduce": lambda dy, *rest: (sums,) * 4,
        "batch_norm_backward_elemt": lambda dy, *rest: dy,
    }
    for name, kernel in kernels.items():
        monkeypatch.setattr(torch, name, kernel)

    def gather(result, tensor, group, async_op):
        sent.append(("all-gather", "forward", result.numel()))

    def reduce(tensor, op, group, async_op):
        sent.append(("all-reduce", "backward", tensor.numel()))

    for name, call in (
        ("all_gather_single", gather),
        ("all_gather_into_tensor", gather),
        ("all_reduce", reduce),
    ):
        monkeypatch.setattr(torch.distributed, name, call, raising=False)
    group = SimpleNamespace(_get_backend_name=lambda: "nccl")
    x = torch.zeros(2, channels, 4, 4, requires_grad=True)
    weight = torch.ones(channels, requires_grad=True)
    y = SyncBatchNorm.apply(x, weight, sums, None, None, 1e-5, 0.1, group, 2)
    y.sum().backward()

    build = Builder("norms", (3, 4, 4))
    build.norm(build.conv(NETWORK_INPUT, "conv", channels, 1), "norm")
    strategy = Strategy(name="data", gpus=2, global_batch=4, sync_batchnorm=True)
    norms = [t for t in traffic(build.finish(), strategy) if t.what == "norm"]
    assert [(t.pattern, t.phase, t.elements) for t in norms] == sent


class _Sequences(nn.Module):
    """torch's encoder-decoder between tables of words, as T5 has its own."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(100, 32), nn.Linear(32, 100, bias=False)
        self.layers = nn.Transformer(32, 4, 2, 3, dim_feedforward=64, batch_first=True)

    def forward(self, source, target):
        return self.head(self.layers(self.words(source.long()), self.words(target.long())))


def test_an_encoder_decoder_is_read_with_its_cross_attention():
    with torch.device("meta"):
        module, inputs = _Sequences(), (torch.empty(2, 24), torch.empty(2, 10))
    network = read_network(module, inputs)
    assert network.parameters == sum(p.numel() for p in module.parameters())
    with FlopCounterMode(display=False) as counted:
        out = module(*inputs)
    assert 2 * network.flops == counted.get_total_flops()
    with FlopCounterMode(display=False) as counted:
        out.sum().backward()
    backward = sum(layer.grad_input_flops + layer.grad_weight_flops for layer in network.layers)
    assert 2 * backward == counted.get_total_flops()
    # Of two encoder and three decoder layers, the latter with two attentions each.
    assert sum(layer.kind == "softmax" for layer in network.layers) == 2 + 2 * 3
    # Each decoder layer reads what the encoder's last norm gives.
    last = next(i for i, x in enumerate(network.layers) if x.name == "layers.encoder.norm")
    assert len(network.readers[last]) == 3
