"""Networks without torch: their counts against published ones, against torch's, and in files."""

import json

import pytest

from paceline.errors import ModelError, OutputError
from paceline.networks.build import Builder
from paceline.networks.layer import NETWORK_INPUT, to_mapping
from paceline.networks.layers_json import from_mapping, read_layers, write_layers
from paceline.networks.presets import PRESETS, network_preset
from paceline.networks.table import read_table
from shared_data import DATA

# Parameters as torchvision's and timm's pages state them.
PUBLISHED = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "vgg16": 138_357_544,
    "unet2d": 31_037_698,
    "convnext-t": 28_589_128,
    "vit-s16": 22_050_664,
    "vit-b16": 86_567_656,
    "vit-l16": 304_326_632,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_parameters(name):
    assert network_preset(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_a_file(name):
    network = network_preset(name)
    assert from_mapping(json.loads(json.dumps(to_mapping(network)))) == network


def test_the_first_layer_needs_no_gradient_of_its_input():
    network = network_preset("resnet18")
    first, second = (layer for layer in network.layers[:5] if layer.kind == "conv")
    assert (first.grad_input_flops, first.grad_weight_flops) == (0, first.flops)
    assert second.grad_input_flops == second.grad_weight_flops == second.flops


def test_an_unknown_name_and_a_wrong_input_are_explained():
    with pytest.raises(ModelError, match="the nearest are resnet50"):
        network_preset("resnet_51")
    with pytest.raises(ModelError, match="4 sizes such as 1x128x128x128, not 1x64"):
        network_preset("unet3d", (1, 64))
    with pytest.raises(ModelError, match="does not fit into"):
        network_preset("vgg16", (3, 8, 8))


def torch_resnet50():
    """ResNet-50's operators with torch alone, in the order of torchvision's."""
    from torch import nn

    def conv(inside, outside, kernel, stride=1):
        layer = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(outside))

    class Block(nn.Module):
        def __init__(self, inside, width, stride):
            super().__init__()
            self.main = nn.Sequential(
                *(conv(inside, width, 1), nn.ReLU(True)),
                *(conv(width, width, 3, stride), nn.ReLU(True)),
                conv(width, 4 * width, 1),
            )
            self.short = conv(inside, 4 * width, 1, stride) if inside != 4 * width else None

        def forward(self, x):
            short = x if self.short is None else self.short(x)
            return (self.main(x) + short).relu_()

    layers = [conv(3, 64, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            width = 64 << stage
            layers.append(Block(inside, width, 2 if stage and not block else 1))
            inside = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def torch_unet():
    """The 2D U-Net of the preset, with torch alone."""
    import torch
    from torch import nn

    def double(inside, width):
        convs = []
        for channels in (inside, width):
            convs += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
            convs.append(nn.ReLU(True))
        return nn.Sequential(*convs)

    class Unet(nn.Module):
        def __init__(self):
            super().__init__()
            widths = [3, 64, 128, 256, 512, 1024]
            self.down = nn.ModuleList(map(double, widths, widths[1:]))
            self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[1:5])
            self.merge = nn.ModuleList(double(2 * w, w) for w in widths[1:5])
            self.out = nn.Conv2d(64, 2, 1)

        def forward(self, x):
            skips = []
            for level, down in enumerate(self.down):
                x = down(nn.functional.max_pool2d(x, 2) if level else x)
                skips.append(x)
            for level in (3, 2, 1, 0):
                x = self.merge[level](torch.cat([skips[level], self.up[level](x)], 1))
            return self.out(x)

    return Unet()


@pytest.mark.parametrize(
    ("name", "make", "shape"),
    [("resnet50", torch_resnet50, (3, 224, 224)), ("unet2d", torch_unet, (3, 64, 64))],
)
def test_parameters_and_flops_equal_torchs(name, make, shape):
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        module = make()
        sample = torch.empty(2, *shape)
    with FlopCounterMode(display=False) as counter:
        result = module(sample)
        forward = counter.get_total_flops()
        result.sum().backward()
    network = network_preset(name, shape)
    assert network.parameters == sum(p.numel() for p in module.parameters())
    assert 2 * network.flops == forward
    backward = sum(layer.grad_input_flops + layer.grad_weight_flops for layer in network.layers)
    assert 2 * backward == counter.get_total_flops() - forward


TABLE = """\
model,input,index,kind,in_channels,in_shape,out_channels,out_shape,kernel,stride,parameters,shortcut
net,3x8x8,0,conv,3,8x8,4,4x4,3,2,108,0
net,3x8x8,1,pool,4,4x4,4,2x2,2,2,0,0
net,3x8x8,2,conv,4,2x2,4,2x2,1,1,20,0
net,3x8x8,3,conv,4,2x2,4,2x2,1,1,16,1
net,3x8x8,4,add,4,2x2,4,2x2,1,1,0,0
net,3x8x8,5,relu,4,2x2,4,2x2,1,1,0,0
net,3x8x8,6,fc,16,1x1,5,1x1,1,1,80,0
"""


def test_a_table_joins_branches_and_finds_padding(tmp_path):
    path = tmp_path / "layers.csv"
    path.write_text(TABLE)
    network = read_table(path)["net", (3, 8, 8)]
    kinds = [layer.kind for layer in network.layers]
    assert kinds == ["conv", "pool", "conv", "conv", "add", "activation", "view", "linear"]
    inputs = [layer.inputs for layer in network.layers]
    assert inputs == [(NETWORK_INPUT,), (0,), (1,), (1,), (2, 3), (4,), (5,), (6,)]
    assert network.layers[0].window.padding == ((1, 0), (1, 0))
    assert network.parameters == 108 + 20 + 16 + 80


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("conv,3,8x8,4,4x4", "conv,3,8x8,4,9x9", "line 2: windows of 3 by 2 make no 9"),
        ("conv,3,8x8,4,4x4", "conv,3,8x8,4,2x2", r"line 2: conv makes \(4, 3, 3\) of"),
        ("pool,4,4x4,4", "pool,5,4x4,5", r"line 3: pool reads \(5, 4, 4\), but"),
        ("3,2,108,0", "3,2,109,0", "line 2: conv has 108 parameters by its shapes"),
        ("0,conv,3", "0,warp,3", "line 2: the kind 'warp' is none of"),
        ("3,2,108,0", "x,2,108,0", "line 2: kernel is 'x'"),
        (",shortcut", ",detour", "lacks the columns shortcut"),
    ],
)
def test_a_broken_table_names_its_line(tmp_path, before, after, message):
    path = tmp_path / "layers.csv"
    path.write_text(TABLE.replace(before, after))
    with pytest.raises(ModelError, match=message):
        read_table(path)


def test_the_shared_table_is_read_with_its_counts():
    path = DATA / "cnn" / "cnn_layers.csv"
    if not path.is_file():
        pytest.skip("the shared table of layers is not here")
    networks = read_table(path)
    assert networks["resnet50", (3, 224, 224)].parameters == 25_557_032 - 1000
    assert networks["vgg16", (3, 226, 226)].parameters == 169_801_408
    big = networks["cosmoflow-512", (4, 512, 512, 512)]
    # The paper, 5.3.2: more than 10 GB between the first layer's input and its activations.
    assert 4 * (big.in_elements(0) + big.layers[0].out_elements) > 10e9


def test_a_file_is_written_once_and_read_again(tmp_path):
    path = tmp_path / "net.layers.json"
    network = network_preset("resnet18")
    write_layers(network, path)
    assert read_layers(path) == network
    with pytest.raises(OutputError, match="exists"):
        write_layers(network, path)


def small():
    build = Builder("net", (3, 8, 8))
    x = build.conv(NETWORK_INPUT, "conv", 4, 3, padding=1)
    x = build.activation(x, "relu")
    x = build.view(x, "flatten", (256,))
    build.linear(x, "fc", 10)
    return json.loads(json.dumps(to_mapping(build.finish())))


@pytest.mark.parametrize(
    ("index", "field", "value", "message"),
    [
        (0, "out_shape", [4, 9, 9], r"layer 0 \('conv'\): it makes \(9, 9\) of \(8, 8\)"),
        (0, "parameters", [[4, 2, 3, 3]], "takes 2 channels, but it reads 3"),
        (0, "window", {"kernel": [3]}, "padding must be a list of pairs"),
        (1, "out_shape", [5, 8, 8], "not as many elements"),
        (3, "parameters", [[10, 9]], "9 features in, but reads"),
        (3, "inputs", [7], "reads layer 7, which does not come before it"),
        (3, "flops", -1, r"layers\[3\].flops must be a number from 0 on"),
        (3, "sort", 1, "unknown fields sort"),
        (3, "tied_to", 3, "is tied to layer 3"),
    ],
)
def test_shapes_that_do_not_join_up_are_named(index, field, value, message):
    document = small()
    document["layers"][index][field] = value
    with pytest.raises(ModelError, match=message):
        from_mapping(document)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is no list of layers"),
        ('{"format": "paceline-layers", "version": 9}', "version 9; this Paceline reads 1"),
        ('{"format": "paceline-layers", "version": 1}', "layers must be a list"),
    ],
)
def test_another_file_is_refused(tmp_path, text, message):
    path = tmp_path / "net.layers.json"
    path.write_text(text)
    with pytest.raises(ModelError, match=message):
        read_layers(path)
