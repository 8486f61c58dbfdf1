"""A vision tower before a language model: a vision transformer by its fields, or its given cost."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from paceline.errors import ModelError
from paceline.model.field_checks import check_whole_number

_WHERE = "the vision tower"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTower:
    """A vision transformer (Dosovitskiy et al. 2021) and its projector.

    Its layers are pre-norm LayerNorm blocks with plain MLPs, biases and no dropout. All patches of
    an image attend to each other; patches of different images do not.

    Attributes:
        layers: transformer layers.
        hidden: width of the tower.
        heads: attention heads.
        patches: patch tokens of one image.
        images: images of one sample.
        ffn: inner width of an MLP; 0 = ``4 * hidden``.
        patch_inputs: numbers in one patch: channels x frames x height x width.
        patch_bias: the patch embedding has a bias.
        class_token: an additional learned token in each image, dropped before the projector.
        position_rows: rows of the table of learned positions; 0 = none.
        rotary: queries and keys are rotated.
        end_norms: norms around the layers: one before the first, one after the last, or both (2).
        merge: patch tokens that become one token of the language model.
        projector: inner widths of the projector, from ``merge * hidden`` to the language model's.
        projector_bias: its products have biases.
        projector_norm: a norm over ``hidden`` before it.
        deepstack: layers whose result has its own projector, after a norm over ``merge * hidden``
            (Qwen3-VL).
        frozen: the tower is not trained; the projector is.

    Raises:
        ModelError: a value is out of range or two contradict each other.
    """

    layers: int
    hidden: int
    heads: int
    patches: int
    images: int
    ffn: int = 0
    patch_inputs: int = 3 * 14 * 14
    patch_bias: bool = True
    class_token: bool = False
    position_rows: int = 0
    rotary: bool = False
    end_norms: int = 0
    merge: int = 1
    projector: tuple[int, ...] = ()
    projector_bias: bool = True
    projector_norm: bool = False
    deepstack: int = 0
    frozen: bool = False

    def __post_init__(self) -> None:
        for field in ("layers", "hidden", "heads", "patches", "images", "patch_inputs", "merge"):
            check_whole_number(self, field, 1, _WHERE)
        for field in ("ffn", "position_rows", "end_norms", "deepstack"):
            check_whole_number(self, field, 0, _WHERE)
        for field in ("patch_bias", "class_token", "rotary", "projector_bias", "projector_norm"):
            _check_switch(self, field)
        _check_switch(self, "frozen")
        widths = self.projector
        if not isinstance(widths, list | tuple) or not all(
            isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in widths
        ):
            raise ModelError(
                f"{_WHERE}: projector must be a list of widths, not {reprlib.repr(widths)}",
                fields=("projector",),
            )
        object.__setattr__(self, "projector", tuple(widths))
        object.__setattr__(self, "ffn", self.ffn or 4 * self.hidden)
        if self.hidden % self.heads:
            raise ModelError(
                f"{_WHERE}: hidden {self.hidden} is not a multiple of heads {self.heads}",
                fields=("hidden", "heads"),
            )
        if self.patches % self.merge:
            raise ModelError(
                f"{_WHERE}: patches {self.patches} is not a multiple of merge {self.merge}",
                fields=("patches", "merge"),
            )
        if self.end_norms > 2:
            raise ModelError(
                f"{_WHERE}: end_norms is at most 2, not {self.end_norms}", fields=("end_norms",)
            )

    @property
    def image_tokens(self) -> int:
        """Tokens of the language model that one sample's images fill."""
        return self.images * self.patches // self.merge

    @property
    def inner_tokens(self) -> int:
        """Tokens of one image inside the tower."""
        return self.patches + self.class_token

    def products(self, hidden: int) -> list[tuple[int, int]]:
        """(inputs, outputs) of the products of one projector into a stream of ``hidden``."""
        widths = (self.merge * self.hidden, *self.projector, hidden)
        return list(pairwise(widths))

    def split(self, hidden: int, tp: int) -> list[tuple[int, int]]:
        """The same on one of ``tp`` ranks: split by columns, then by rows; a lone last one not."""
        products = self.products(hidden)
        for first in range(0, len(products) - 1, 2):
            (k, n), (_, m) = products[first : first + 2]
            products[first : first + 2] = [(k, n // tp), (n // tp, m)]
        return products

    def projector_parameters(self, hidden: int, tp: int = 1) -> int:
        """Parameters of all projectors, on one of ``tp`` ranks."""
        one = sum(k * n + n * self.projector_bias for k, n in self.split(hidden, tp))
        norms = self.projector_norm + self.deepstack * self.merge
        return (1 + self.deepstack) * one + 2 * self.hidden * norms

    @property
    def end_parameters(self) -> int:
        """Parameters of the tower beside its layers: patch embedding, positions, norms."""
        rows = self.patch_inputs + self.patch_bias + self.class_token + self.position_rows
        return self.hidden * (rows + 2 * self.end_norms)

    # Counts; the language model's formulas count its layers.

    @property
    def layer_fields(self) -> dict[str, Any]:
        """Fields of its layers as a language model whose sample is one image."""
        positions = "rotary" if self.rotary else "none"
        fields = {name: getattr(self, name) for name in ("layers", "hidden", "heads", "ffn")}
        return {**fields, "seq_len": self.inner_tokens, "positions": positions}

    def parameters(self, hidden: int, of_layer: int) -> int:
        """Parameters in total, given the language model's width and the parameters of one layer."""
        return self.layers * of_layer + self.end_parameters + self.projector_parameters(hidden)

    def flops(self, hidden: int, per_token: float) -> tuple[float, float]:
        """FLOPs of one sample's images: forward and backward, and forward alone.

        Pixels need no gradient, and neither do the projector's inputs of a frozen tower.

        Args:
            hidden: width of the language model.
            per_token: FLOPs of all layers, forward and backward, per token inside the tower.
        """
        through = per_token / 3 * self.images * self.inner_tokens
        patches = 2.0 * self.images * self.patches * self.patch_inputs * self.hidden
        products = [k * n for k, n in self.products(hidden)]
        merged = 2.0 * self.image_tokens * (1 + self.deepstack)
        forward = through + patches + merged * sum(products)
        backward = 2 * merged * sum(products)
        backward += -merged * products[0] if self.frozen else 2 * through + patches
        return forward + backward, forward


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionCost:
    """Given costs of a vision tower on each GPU of the first stage.

    Attributes:
        forward_s: seconds of one microbatch's forward, including the projector.
        backward_s: seconds of its backward; 0 without one.
        parameters: parameters on one GPU.
        activation_bytes: bytes kept of one microbatch for the backward.
        frozen: none of its parameters has a gradient.

    Raises:
        ModelError: a value is out of range.
    """

    forward_s: float
    backward_s: float
    parameters: int
    activation_bytes: float
    frozen: bool = False

    def __post_init__(self) -> None:
        for field in ("forward_s", "backward_s", "activation_bytes"):
            value = getattr(self, field)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and 0 <= value < float("inf")):
                raise ModelError(
                    f"{_WHERE}: {field} must be a number >= 0, not {reprlib.repr(value)}",
                    fields=(field,),
                )
        check_whole_number(self, "parameters", 0, _WHERE)
        _check_switch(self, "frozen")


def _check_switch(record: Any, field: str) -> None:
    value = getattr(record, field)
    if not isinstance(value, bool):
        raise ModelError(
            f"{_WHERE}: {field} must be true or false, not {reprlib.repr(value)}", fields=(field,)
        )
