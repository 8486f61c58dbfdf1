"""Networks by their definitions in Chainer 7's examples, for runs in public tables.

Pooling rounds up ("cover_all") and has no padding, so VGG16 at 226 has 169.8M parameters. CosmoFlow
has unpadded kernels of three. Sources: Chainer 7.0, examples/imagenet; the layers of the ParaDL
paper's runs.
"""

from __future__ import annotations

from paceline.errors import ModelError
from paceline.networks.build import Builder
from paceline.networks.layer import NETWORK_INPUT, LayerNetwork, Shape
from paceline.networks.presets_conv import cosmoflow

_CLASSES = 1000
_UNPADDED_FROM = 512
_BLOCKS = {"resnet50": (3, 4, 6, 3), "resnet152": (3, 8, 36, 3)}


def chainer_network(name: str, input_shape: Shape) -> LayerNetwork:
    """``name`` is vgg16, resnet50, resnet152, or cosmoflow with any ending.

    Raises:
        ModelError: it is none of these.
    """
    if name == "vgg16":
        return _vgg16(name, input_shape)
    if name in _BLOCKS:
        return _resnet(name, input_shape)
    if name.startswith("cosmoflow"):
        # The runs at 256 had padded kernels of three, as the preset has.
        padded = input_shape[-1] < _UNPADDED_FROM
        return (cosmoflow if padded else _cosmoflow)(name, input_shape)
    known = ", ".join(("vgg16", *_BLOCKS, "cosmoflow-256", "cosmoflow-512"))
    raise ModelError(f"Chainer's networks are {known}, not {name[:60]!r}")


def _pool(build: Builder, x: int, name: str, kernel: int) -> int:
    """A pooling of stride two, rounded up."""
    padding = tuple(
        (0, max(0, (-(-(size - kernel) // 2)) * 2 + kernel - size)) for size in build.shape(x)[1:]
    )
    return build.pool(x, name, kernel, stride=2, padding=padding, op="aten.max_pool_with_indices")


def _vgg16(name: str, shape: Shape) -> LayerNetwork:
    build = Builder(name, shape, __name__)
    x = NETWORK_INPUT
    for stage, (channels, count) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))):
        for number in range(count):
            x = build.conv(x, f"conv{stage + 1}_{number + 1}", channels, 3, padding=1)
            x = build.activation(x, f"relu{stage + 1}_{number + 1}", in_place=True)
        x = _pool(build, x, f"pool{stage + 1}", 2)
    return _classifier(build, x, (4096, 4096, _CLASSES))


def _classifier(build: Builder, x: int, widths: tuple[int, ...]) -> LayerNetwork:
    elements = 1
    for size in build.shape(x):
        elements *= size
    x = build.view(x, "flatten", (elements,))
    for number, width in enumerate(widths, start=1):
        x = build.linear(x, f"fc{number}", width, bias=False)
    return build.finish()


def _resnet(name: str, shape: Shape) -> LayerNetwork:
    build = Builder(name, shape, __name__)
    x = build.conv(NETWORK_INPUT, "conv1", 64, 7, stride=2, padding=3)
    x = build.activation(build.norm(x, "bn1"), "relu1", in_place=True)
    x = _pool(build, x, "pool1", 3)
    for stage, count in enumerate(_BLOCKS[name]):
        for number in range(count):
            stride = 2 if stage and not number else 1
            x = _bottleneck(build, x, f"res{stage + 2}.{number}", 64 << stage, stride)
    x = build.global_pool(x, "pool5")
    return _classifier(build, x, (_CLASSES,))


def _bottleneck(build: Builder, x: int, name: str, width: int, stride: int) -> int:
    """In Chainer, the first of three convolutions has the stride, as in the paper of 2015."""
    y = x
    for number, (channels, kernel, step) in enumerate(
        ((width, 1, stride), (width, 3, 1), (4 * width, 1, 1)), start=1
    ):
        y = build.conv(
            y, f"{name}.conv{number}", channels, kernel, stride=step, padding=kernel // 2
        )
        y = build.norm(y, f"{name}.bn{number}")
        if number < 3:
            y = build.activation(y, f"{name}.relu{number}", in_place=True)
    if build.shape(x) != build.shape(y):
        x = build.conv(x, f"{name}.conv4", 4 * width, 1, stride=stride)
        x = build.norm(x, f"{name}.bn4")
    return build.activation(build.add(y, x, f"{name}.add"), f"{name}.relu", in_place=True)


def _cosmoflow(name: str, shape: Shape) -> LayerNetwork:
    build = Builder(name, shape, __name__)
    x = NETWORK_INPUT
    convs = ((16, 3, 1), (32, 3, 1), (64, 3, 2), (128, 3, 1), (256, 2, 1), (256, 2, 1), (128, 2, 2))
    for number, (channels, kernel, stride) in enumerate(convs, start=1):
        if min(build.shape(x)[1:]) < kernel:
            break
        x = build.conv(x, f"conv{number}", channels, kernel, stride=stride)
        x = build.activation(x, f"relu{number}", in_place=True)
        if number < len(convs) and min(build.shape(x)[1:]) > 1:
            x = build.pool(x, f"pool{number}", 2, stride=2)
    return _classifier(build, x, (2048, 256, 4))
