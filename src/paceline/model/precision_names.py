"""Names of precisions in recipes, tables and logs."""

from __future__ import annotations

from paceline.errors import ModelError
from paceline.model.plan import Precision

#: Beginning of a name without case and separators -> the plan's precision. Block scales ("MX"),
#: current and delayed scaling have the same products, so they all are fp8.
_BEGINNINGS: tuple[tuple[str, Precision], ...] = (
    ("mxfp8", "fp8"),
    ("fp8", "fp8"),
    ("float8", "fp8"),
    ("nvfp4", "nvfp4"),
    ("bf16", "bf16"),
    ("bfloat16", "bf16"),
    ("fp16", "fp16"),
    ("float16", "fp16"),
    ("fp32", "fp32"),
    ("float32", "fp32"),
)


def precision_of(name: str) -> Precision:
    """The plan's precision of a name such as "MXFP8", "FP8-CS", "float8 tensorwise" or "BF16".

    Of two names, such as "FP8-CS (FP8-MX)", the first counts.

    Raises:
        ModelError: no known precision begins like this.
    """
    plain = "".join(c for c in name.lower() if c.isalnum())
    for beginning, precision in _BEGINNINGS:
        if plain.startswith(beginning):
            return precision
    raise ModelError(
        f"precision {name[:40]!r} cannot be expressed; BF16, FP16, FP32, FP8, MXFP8 and NVFP4 can"
    )
