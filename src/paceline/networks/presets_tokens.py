"""Networks with layer normalization: ViT and ConvNeXt.

They follow timm 1.0: models/vision_transformer.py, models/convnext.py.
"""

from __future__ import annotations

import math

from paceline.errors import ModelError
from paceline.networks.build import Builder
from paceline.networks.layer import NETWORK_INPUT, LayerNetwork, Shape

_CLASSES = 1000
_LAYER_NORM = "aten.native_layer_norm"
_GELU = "aten.gelu"


def vit(
    name: str, shape: Shape, *, width: int, heads: int, depth: int = 12, patch: int = 16
) -> LayerNetwork:
    """Vision Transformer with a class token and fused attention."""
    if any(size % patch for size in shape[1:]):
        raise ModelError(f"{name} cuts patches of {patch} from an image of {shape[1:]}")
    build = Builder(name, shape, "timm 1.0 models/vision_transformer.py")
    x = build.conv(NETWORK_INPUT, "patch_embed.proj", width, patch, stride=patch, bias=True)
    tokens = math.prod(build.shape(x)[1:])
    x = build.view(x, "patch_embed.flatten", (width, tokens))
    x = build.token(x, "cls_token")
    x = build.offset(x, "pos_embed")
    for block in range(depth):
        prefix = f"blocks.{block}."
        y = build.norm(x, f"{prefix}norm1", _LAYER_NORM)
        y = build.linear(y, f"{prefix}attn.qkv", 3 * width)
        y = build.attention(y, f"{prefix}attn", heads)
        y = build.linear(y, f"{prefix}attn.proj", width)
        x = build.add(x, y, f"{prefix}add1")
        y = build.norm(x, f"{prefix}norm2", _LAYER_NORM)
        y = build.linear(y, f"{prefix}mlp.fc1", 4 * width)
        y = build.activation(y, f"{prefix}mlp.act", _GELU)
        y = build.linear(y, f"{prefix}mlp.fc2", width)
        x = build.add(x, y, f"{prefix}add2")
    x = build.norm(x, "norm", _LAYER_NORM)
    x = build.view(x, "class", (width,))
    build.linear(x, "head", _CLASSES)
    return build.finish()


def convnext(name: str, shape: Shape, *, depths: tuple[int, ...], width: int) -> LayerNetwork:
    """ConvNeXt: depthwise 7x7 convolutions between pointwise products, with scaled branches."""
    build = Builder(name, shape, "timm 1.0 models/convnext.py")
    x = build.conv(NETWORK_INPUT, "stem.0", width, 4, stride=4, bias=True)
    x = build.norm(x, "stem.1", _LAYER_NORM)
    for stage, depth in enumerate(depths):
        channels = width << stage
        if stage:
            x = build.norm(x, f"stages.{stage}.downsample.0", _LAYER_NORM)
            x = build.conv(x, f"stages.{stage}.downsample.1", channels, 2, stride=2, bias=True)
        for block in range(depth):
            x = _block(build, x, f"stages.{stage}.blocks.{block}.", channels)
    x = build.global_pool(x, "head.global_pool")
    x = build.norm(x, "head.norm", _LAYER_NORM)
    x = build.view(x, "head.flatten", build.shape(x)[:1])
    build.linear(x, "head.fc", _CLASSES)
    return build.finish()


def _block(build: Builder, x: int, prefix: str, channels: int) -> int:
    y = build.conv(x, f"{prefix}conv_dw", channels, 7, padding=3, groups=channels, bias=True)
    y = build.norm(y, f"{prefix}norm", _LAYER_NORM)
    y = build.linear(y, f"{prefix}mlp.fc1", 4 * channels)
    y = build.activation(y, f"{prefix}mlp.act", _GELU)
    y = build.linear(y, f"{prefix}mlp.fc2", channels)
    y = build.scale(y, f"{prefix}gamma")
    return build.add(y, x, f"{prefix}add")
