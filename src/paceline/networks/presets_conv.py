"""Convolutional networks: ResNet, VGG, U-Net, CosmoFlow.

ResNet and VGG follow torchvision 0.29 (models/resnet.py, models/vgg.py). U-Net follows its paper,
with padding and batch normalization. CosmoFlow follows the ParaDL paper's runs.
"""

from __future__ import annotations

from paceline.networks.build import Builder
from paceline.networks.layer import NETWORK_INPUT, LayerNetwork, Shape

_CLASSES = 1000


def resnet(
    name: str, shape: Shape, *, blocks: tuple[int, ...], bottleneck: bool = True
) -> LayerNetwork:
    """Residual network v1.5: the stride sits on a block's 3x3 convolution."""
    build = Builder(name, shape, "torchvision 0.29 models/resnet.py")
    x = build.conv(NETWORK_INPUT, "conv1", 64, 7, stride=2, padding=3)
    x = build.activation(build.norm(x, "bn1"), "relu", in_place=True)
    x = build.pool(x, "maxpool", 3, stride=2, padding=1)
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            prefix = f"layer{stage + 1}.{block}."
            x = _residual(build, x, prefix, width, stride, bottleneck)
    x = build.global_pool(x, "avgpool")
    x = build.view(x, "flatten", build.shape(x)[:1])
    build.linear(x, "fc", _CLASSES)
    return build.finish()


def _residual(
    build: Builder, x: int, prefix: str, width: int, stride: int, bottleneck: bool
) -> int:
    out = 4 * width if bottleneck else width
    # (channels, kernel, stride) of each convolution.
    convs = (
        ((width, 1, 1), (width, 3, stride), (out, 1, 1))
        if bottleneck
        else ((width, 3, stride), (width, 3, 1))
    )
    y = x
    for number, (channels, kernel, step) in enumerate(convs, start=1):
        y = build.conv(
            y, f"{prefix}conv{number}", channels, kernel, stride=step, padding=kernel // 2
        )
        y = build.norm(y, f"{prefix}bn{number}")
        if number < len(convs):
            y = build.activation(y, f"{prefix}relu", in_place=True)
    if stride > 1 or build.shape(x)[0] != out:
        x = build.conv(x, f"{prefix}downsample.0", out, 1, stride=stride)
        x = build.norm(x, f"{prefix}downsample.1")
    y = build.add(y, x, f"{prefix}add", in_place=True)
    return build.activation(y, f"{prefix}relu", in_place=True)


def vgg16(name: str, shape: Shape) -> LayerNetwork:
    """VGG's configuration D without normalization, three linear layers with dropout."""
    build = Builder(name, shape, "torchvision 0.29 models/vgg.py")
    x, number = NETWORK_INPUT, 0
    for channels, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            x = build.conv(x, f"features.{number}", channels, 3, padding=1, bias=True)
            x = build.activation(x, f"features.{number + 1}", in_place=True)
            number += 2
        x = build.pool(x, f"features.{number}", 2, stride=2)
        number += 1
    size = build.shape(x)[1:]
    if size != (7, 7):
        # torchvision averages any size to 7x7, in windows that may overlap.
        stride = tuple(max(1, extent // 7) for extent in size)
        kernel = tuple(extent - 6 * step for extent, step in zip(size, stride, strict=True))
        x = build.pool(x, "avgpool", kernel, stride=stride, op="aten._adaptive_avg_pool2d")
    x = build.view(x, "flatten", (512 * 7 * 7,))
    for number in (0, 3):
        x = build.linear(x, f"classifier.{number}", 4096)
        x = build.activation(x, f"classifier.{number + 1}", in_place=True)
        x = build.dropout(x, f"classifier.{number + 2}")
    build.linear(x, "classifier.6", _CLASSES)
    return build.finish()


def unet(name: str, shape: Shape, *, classes: int = 2) -> LayerNetwork:
    """U-Net (2015) or 3D U-Net (2016) with padded and normalized convolutions without biases.

    2D: 64 channels doubled four times. 3D: 32 and 64 in the first level, doubled before each pool.
    Transposed convolutions with a stride of two upsample; they halve the channels only in 2D.
    """
    build = Builder(name, shape, "U-Net, arXiv:1505.04597; 3D U-Net, arXiv:1606.06650")
    flat = len(shape) == 3
    levels = 5 if flat else 4
    x, skips = NETWORK_INPUT, []
    for level in range(levels):
        width = 64 << level
        x = _double(build, x, f"down{level}", (width if flat else width // 2, width))
        if level < levels - 1:
            skips.append(x)
            x = build.pool(x, f"pool{level}", 2, stride=2)
    for level in reversed(range(levels - 1)):
        width, below = 64 << level, build.shape(x)[0]
        up = width if flat else below
        x = build.conv(x, f"up{level}", up, 2, stride=2, bias=True, transposed=True)
        x = build.concat((skips[level], x), f"concat{level}")
        x = _double(build, x, f"merge{level}", (width, width))
    build.conv(x, "out", classes, 1, bias=True)
    return build.finish()


def _double(build: Builder, x: int, prefix: str, widths: tuple[int, int]) -> int:
    for number, width in enumerate(widths):
        x = build.conv(x, f"{prefix}.conv{number}", width, 3, padding=1)
        x = build.norm(x, f"{prefix}.norm{number}")
        x = build.activation(x, f"{prefix}.relu{number}", in_place=True)
    return x


def cosmoflow(name: str, shape: Shape) -> LayerNetwork:
    """CosmoFlow as in the ParaDL paper: seven convolutions, six pools, three linear layers.

    There are no biases. Kernels of two have one zero before each axis. The last pools are omitted
    once an axis has size 1, as for inputs of 128.
    """
    build = Builder(name, shape, "ParaDL paper, Table 5")
    x = NETWORK_INPUT
    # (channels, kernel, stride, zeros before, zeros after)
    convs = (
        *((16, 3, 1, 1, 1), (32, 3, 1, 1, 1), (64, 3, 1, 1, 1), (128, 3, 2, 1, 0)),
        *((256, 2, 1, 1, 0), (256, 2, 1, 1, 0), (128, 2, 2, 0, 0)),
    )
    for number, (channels, kernel, stride, before, after) in enumerate(convs, start=1):
        if number == len(convs) and min(build.shape(x)[1:]) < kernel:
            before = 1
        x = build.conv(
            x, f"conv{number}", channels, kernel, stride=stride, padding=((before, after),) * 3
        )
        x = build.activation(x, f"relu{number}", in_place=True)
        if number < len(convs) and min(build.shape(x)[1:]) > 1:
            x = build.pool(x, f"pool{number}", 2, stride=2)
    channels, *size = build.shape(x)
    positions = size[0] * size[1] * size[2]
    x = build.view(x, "flatten", (channels * positions,))
    for number, features in enumerate((2048, 256, 4), start=1):
        x = build.linear(x, f"fc{number}", features, bias=False)
    return build.finish()
