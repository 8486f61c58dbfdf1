"""Known networks by name, built without PyTorch. Parameters and FLOPs equal those of the modules.

``PRESETS`` lists them: the function from an input shape to a network, and the published input
shape.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial

from paceline.errors import ModelError
from paceline.networks import presets_conv as conv
from paceline.networks import presets_tokens as tokens
from paceline.networks.layer import LayerNetwork, Shape

_IMAGE = (3, 224, 224)
_Make = Callable[[str, Shape], LayerNetwork]

PRESETS: dict[str, tuple[_Make, Shape]] = {
    "resnet18": (partial(conv.resnet, blocks=(2, 2, 2, 2), bottleneck=False), _IMAGE),
    "resnet34": (partial(conv.resnet, blocks=(3, 4, 6, 3), bottleneck=False), _IMAGE),
    "resnet50": (partial(conv.resnet, blocks=(3, 4, 6, 3)), _IMAGE),
    "resnet101": (partial(conv.resnet, blocks=(3, 4, 23, 3)), _IMAGE),
    "resnet152": (partial(conv.resnet, blocks=(3, 8, 36, 3)), _IMAGE),
    "vgg16": (conv.vgg16, _IMAGE),
    "unet2d": (conv.unet, (3, 512, 512)),
    "unet3d": (conv.unet, (1, 128, 128, 128)),
    "cosmoflow": (conv.cosmoflow, (4, 128, 128, 128)),
    "convnext-t": (partial(tokens.convnext, depths=(3, 3, 9, 3), width=96), _IMAGE),
    "convnext-s": (partial(tokens.convnext, depths=(3, 3, 27, 3), width=96), _IMAGE),
    "convnext-b": (partial(tokens.convnext, depths=(3, 3, 27, 3), width=128), _IMAGE),
    "convnext-l": (partial(tokens.convnext, depths=(3, 3, 27, 3), width=192), _IMAGE),
    "vit-s16": (partial(tokens.vit, width=384, heads=6), _IMAGE),
    "vit-b16": (partial(tokens.vit, width=768, heads=12), _IMAGE),
    "vit-l16": (partial(tokens.vit, width=1024, heads=16, depth=24), _IMAGE),
}


def network_preset(name: str, input_shape: Shape | None = None) -> LayerNetwork:
    """A known network for samples of ``input_shape`` (None: the published shape).

    Raises:
        ModelError: no preset has that name (the nearest are named), or the input does not fit.
    """
    key = name.lower().replace("_", "-")
    key = key if key in PRESETS else key.replace("-", "")
    if key not in PRESETS:
        near = get_close_matches(key, PRESETS, n=3, cutoff=0.5)
        hint = f"the nearest are {', '.join(near)}; " if near else ""
        raise ModelError(f"there is no network {name[:60]!r}; {hint}known are {', '.join(PRESETS)}")
    make, usual = PRESETS[key]
    shape = input_shape or usual
    if len(shape) != len(usual):
        raise ModelError(
            f"{key} takes an input of {len(usual)} sizes such as {'x'.join(map(str, usual))}, not "
            f"{'x'.join(map(str, shape))}"
        )
    return make(key, shape)
