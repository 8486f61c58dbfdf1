"""Checks for fields of a language model that contradict each other."""

from __future__ import annotations

from typing import Any

from paceline.errors import ModelError
from paceline.model.vision import VisionTower

#: Letter of a pattern -> the field for such blocks.
_FIELD_OF_BLOCK = {"M": "mamba", "E": "moe", "G": "delta"}


def check_agreement(llm: Any, where: str) -> None:
    """Refuse an ``LLM`` whose fields do not fit each other.

    Raises:
        ModelError: two contradict each other.
    """
    if llm.heads % llm.kv_heads:
        raise ModelError(
            f"{where}: heads {llm.heads} is not a multiple of kv_heads {llm.kv_heads}",
            fields=("heads", "kv_heads"),
        )
    if llm.positions == "learned" and llm.seq_len > llm.max_positions:
        raise ModelError(
            f"{where}: seq_len {llm.seq_len} exceeds max_positions {llm.max_positions}, the "
            "rows of its learned positions",
            fields=("seq_len", "max_positions"),
        )
    if (llm.full_every or llm.chunked) and llm.window is None:
        raise ModelError(
            f"{where}: full_every and chunked say where a window is used; give window",
            fields=("window", "full_every", "chunked"),
        )
    if llm.full_every and llm.window_every > 1:
        raise ModelError(
            f"{where}: give window_every or full_every, not both",
            fields=("window_every", "full_every"),
        )
    if llm.qk_norm_wide and not llm.qk_norm:
        raise ModelError(f"{where}: qk_norm_wide needs qk_norm", fields=("qk_norm", "qk_norm_wide"))
    if llm.index is not None and (llm.latent is None or llm.latent.q_rank is None):
        raise ModelError(
            f"{where}: index needs latent with a q_rank, of which it makes its queries",
            fields=("index", "latent"),
        )
    if llm.index is not None and (llm.window is not None or llm.sinks):
        raise ModelError(
            f"{where}: a window and sinks beside index are not modelled",
            fields=("index", "window", "sinks"),
        )
    if (llm.mtp_pattern or llm.mtp_shared) and not llm.mtp_layers:
        raise ModelError(
            f"{where}: mtp_pattern and mtp_shared say what mtp_layers are; give mtp_layers",
            fields=("mtp_layers", "mtp_pattern", "mtp_shared"),
        )
    if llm.mtp_layers and llm.pattern and not llm.mtp_pattern:
        raise ModelError(
            f"{where}: mtp_layers beside a pattern need mtp_pattern", fields=("mtp_pattern",)
        )
    if llm.gated_attention and llm.latent is not None:
        raise ModelError(
            f"{where}: gated_attention beside latent is not modelled",
            fields=("gated_attention", "latent"),
        )
    for letter, field in _FIELD_OF_BLOCK.items():
        if letter in llm.mtp_pattern and getattr(llm, field) is None:
            raise ModelError(
                f"{where}: an mtp_pattern with {letter} needs the fields of {field}",
                fields=("mtp_pattern", field),
            )
    if llm.packing is not None and llm.bidirectional:
        raise ModelError(
            f"{where}: packing beside bidirectional is not modelled",
            fields=("packing", "bidirectional"),
        )
    _agree_with_vision(llm, where)
    _agree_with_compressed(llm, where)
    if llm.pattern or llm.mamba is not None:
        _agree_with_pattern(llm, where)
    elif llm.moe is not None and not llm.moe_layers:
        raise ModelError(
            f"{where}: no layer is a mixture of experts with {llm.layers} layers, "
            f"dense_layers {llm.moe.dense_layers} and every {llm.moe.every}",
            fields=("layers", "moe"),
        )


def _agree_with_pattern(llm: Any, where: str) -> None:
    if llm.pattern and len(llm.pattern) != llm.layers:
        raise ModelError(
            f"{where}: pattern has {len(llm.pattern)} layers, not {llm.layers}",
            fields=("pattern", "layers"),
        )
    for letter, field in _FIELD_OF_BLOCK.items():
        if (letter in llm.pattern) != (getattr(llm, field) is not None):
            raise ModelError(
                f"{where}: a pattern with {letter} and the fields of {field} need each other",
                fields=("pattern", field),
            )
    ordered = llm.moe is not None and (llm.moe.dense_layers > 0 or llm.moe.every > 1)
    beside = {
        "window": llm.window is not None,
        "moe.dense_layers and moe.every": ordered,
    }
    for field, given in beside.items():
        if given:
            raise ModelError(
                f"{where}: {field} beside a pattern is not modelled", fields=("pattern",)
            )


def _agree_with_vision(llm: Any, where: str) -> None:
    if llm.bidirectional and (llm.window is not None or llm.index is not None):
        raise ModelError(
            f"{where}: a window and an index beside bidirectional are not modelled",
            fields=("bidirectional", "window", "index"),
        )
    tower = llm.vision
    if isinstance(tower, VisionTower) and tower.image_tokens > llm.seq_len:
        raise ModelError(
            f"{where}: {tower.images} images of {tower.patches} patches are "
            f"{tower.image_tokens} tokens, more than seq_len {llm.seq_len}",
            fields=("seq_len", "vision"),
        )


def _agree_with_compressed(llm: Any, where: str) -> None:
    compressed = llm.compressed
    if llm.streams > 1 and compressed is None:
        raise ModelError(
            f"{where}: streams are modelled beside compressed attention alone",
            fields=("streams", "compressed"),
        )
    if compressed is None:
        return
    if len(compressed.layers) != llm.layers:
        raise ModelError(
            f"{where}: compressed.layers has {len(compressed.layers)} letters, not {llm.layers}",
            fields=("layers", "compressed"),
        )
    if llm.heads % compressed.groups:
        raise ModelError(
            f"{where}: heads {llm.heads} is not a multiple of the {compressed.groups} groups",
            fields=("heads", "compressed"),
        )
    fields = ("latent", "index", "window", "pattern", "mamba", "delta", "vision")
    beside = [field for field in fields if getattr(llm, field)]
    flags = ("sinks", "gated_attention", "qk_norm", "bias", "qkv_bias", "bidirectional")
    beside += [field for field in flags if getattr(llm, field)]
    beside += ["mtp_layers"] if llm.mtp_layers else []
    if beside:
        raise ModelError(
            f"{where}: {beside[0]} beside compressed attention is not modelled",
            fields=("compressed", beside[0]),
        )
    if llm.packed.documents:
        raise ModelError(
            f"{where}: packed documents beside compressed attention are not modelled",
            fields=("compressed", "packing"),
        )
