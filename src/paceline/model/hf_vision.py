"""The vision tower of a Hugging Face ``config.json``: Qwen3-VL, Qwen3.5, Llama 4.

Compared with the modules of transformers 5.23 on torch's meta device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.errors import ModelError
from paceline.model.hf_config import HFConfig
from paceline.model.vision import VisionTower


def vision_tower(config: HFConfig, images: int, hidden: int) -> VisionTower:
    """The tower of a model whose language model has width ``hidden``.

    The number of patches of an image is the number of rows in the table of positions (Qwen). For
    Llama 4 an image is one tile of the config's ``image_size``.

    Raises:
        ModelError: the config has no vision tower of a modelled kind, or a field of it is wrong.
    """
    content = config.values.get("vision_config")
    reader = next(
        (r for name, r in _READERS.items() if config.architecture().startswith(name)), None
    )
    if not isinstance(content, Mapping) or reader is None:
        raise ModelError(
            f"images are of models with a vision tower; {config.architecture()} has none that is "
            f"modelled (those of {', '.join(_READERS)} are)"
        )
    # Errors name the tower's fields and the model's class.
    vision = HFConfig({**content, "architectures": [config.architecture()]})
    return reader(vision, images, hidden)


def _qwen(vision: HFConfig, images: int, hidden: int) -> VisionTower:
    """Qwen3-VL and, without DeepStack, Qwen3.5."""
    names = ("depth", "hidden_size", "num_heads", "intermediate_size", "num_position_embeddings")
    vision = HFConfig(_aliased(vision))
    vision.need(*names, "out_hidden_size")
    out = vision.whole("out_hidden_size")
    vision.refuse(out == hidden, f"out_hidden_size {out} beside the hidden_size {hidden}")
    patch, frames = vision.whole("patch_size", 16), vision.whole("temporal_patch_size", 2)
    merge, width = vision.whole("spatial_merge_size", 2) ** 2, vision.whole("hidden_size")
    stacked = vision.values.get("deepstack_visual_indexes")
    if "VL" not in vision.architecture():
        stacked = ()
    elif stacked is None:
        stacked = (8, 16, 24)
    if not isinstance(stacked, list | tuple):
        raise ModelError("deepstack_visual_indexes must be a list of layers")
    return VisionTower(
        layers=vision.whole("depth"),
        hidden=width,
        heads=vision.whole("num_heads"),
        ffn=vision.whole("intermediate_size"),
        patches=vision.whole("num_position_embeddings"),
        images=images,
        patch_inputs=vision.whole("in_channels", 3) * frames * patch**2,
        position_rows=vision.whole("num_position_embeddings"),
        rotary=True,
        merge=merge,
        projector=(merge * width,),
        projector_norm=True,
        deepstack=len(stacked),
    )


def _aliased(vision: HFConfig) -> dict[str, object]:
    """The fields of the tower, each under whichever of its two names a config has."""
    aliases = {"num_hidden_layers": "depth", "num_attention_heads": "num_heads"}
    return {aliases.get(key, key): value for key, value in vision.values.items()}


def _llama4(vision: HFConfig, images: int, hidden: int) -> VisionTower:
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    vision.need(*sizes, "vision_output_dim", "image_size", "patch_size")
    ratio = vision.values.get("pixel_shuffle_ratio", 0.5)
    vision.refuse(ratio == 0.5, f"a pixel_shuffle_ratio {ratio!r:.20}")
    bias = vision.flag("multi_modal_projector_bias", False)
    vision.refuse(not bias, "multi_modal_projector_bias true")
    width, merge = vision.whole("hidden_size"), 4
    inner, out = (
        vision.whole("projector_input_dim", 4096),
        vision.whole("projector_output_dim", 4096),
    )
    agree = vision.whole("intermediate_size") == merge * width and inner == out
    agree = agree and vision.whole("vision_output_dim") == out
    vision.refuse(agree, "a projector whose widths do not follow from one another")
    side, patch = vision.whole("image_size"), vision.whole("patch_size")
    vision.refuse(patch > 0 and side % (2 * max(1, patch)) == 0, f"image_size {side}")
    patches = (side // patch) ** 2
    return VisionTower(
        layers=vision.whole("num_hidden_layers"),
        hidden=width,
        heads=vision.whole("num_attention_heads"),
        ffn=vision.whole("intermediate_size"),
        patches=patches,
        images=images,
        patch_inputs=vision.whole("num_channels", 3) * patch**2,
        patch_bias=False,
        class_token=True,
        position_rows=patches + 1,
        rotary=True,
        end_norms=2,
        merge=merge,
        projector=(inner, out),
        projector_bias=False,
    )


_READERS: dict[str, Callable[[HFConfig, int, int], VisionTower]] = {
    "Qwen3VL": _qwen,
    "Qwen3_5": _qwen,
    "Llama4ForConditionalGeneration": _llama4,
}
