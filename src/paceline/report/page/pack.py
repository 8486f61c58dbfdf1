"""Compact forms of arrays and mappings for the page."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import numpy.typing as npt

#: Code of a missing value among the 16-bit numbers.
MISSING = 65535

_SIGNIFICANT = 6


def slowdowns(values: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Slowdowns up to 65 as 16-bit numbers in thousandths."""
    finite = np.isfinite(values)
    top = float(values[finite].max(initial=1.0))
    unit = max(0.001, top / (MISSING - 1))
    round_values = np.where(finite, np.round(np.maximum(values, 0) / unit), MISSING)
    return {"unit": unit, "u16": base64_of(round_values.astype("<u2"))}


def base64_of(values: npt.NDArray[Any]) -> str:
    """The bytes of an array (little-endian types only) as base64."""
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")


def round_values(values: npt.NDArray[np.float64]) -> list[float | None]:
    """Six significant digits; None without a value."""
    return [float(f"{v:.{_SIGNIFICANT}g}") if np.isfinite(v) else None for v in values.tolist()]


def safe_json(value: Any) -> str:
    """JSON that is safe inside a script element for any strings."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
