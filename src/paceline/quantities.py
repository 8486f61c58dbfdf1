"""Numbers with units, as people write them: "80 GB", "200 Gb/s", "5 us", "312 TFLOP/s"."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from paceline.errors import QuantityError

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def _prefixed(*units: str, factor: float = 1.0, binary: bool = False) -> dict[str, float]:
    prefixes = _DECIMAL | _BINARY if binary else _DECIMAL
    return {prefix + unit: scale * factor for unit in units for prefix, scale in prefixes.items()}


#: Quantity -> unit as written -> base units of one; a bare number is
#: in base units.
UNITS: dict[str, dict[str, float]] = {
    "bytes": _prefixed("B", "byte", "bytes", binary=True),
    "byte/s": _prefixed("B/s", "byte/s", binary=True)
    | _prefixed("b/s", "bit/s", "bps", factor=1 / 8),
    "seconds": {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "ns": 1e-9}
    | dict.fromkeys(("us", "µs", "μs"), 1e-6),
    "FLOP/s": _prefixed("FLOP/s", "FLOPS", "FLOPs", "flops"),
    "dollars": {"$": 1.0, "USD": 1.0, "$/h": 1.0, "USD/h": 1.0},
    "tokens": {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    | {"tokens": 1.0, "million": 1e6, "billion": 1e9, "trillion": 1e12},
    "": {},
}

_EXAMPLES = {
    "bytes": "80 GB or 80 GiB",
    "byte/s": "300 GB/s or 200 Gb/s",
    "seconds": "5 us",
    "FLOP/s": "312 TFLOP/s",
    "dollars": "4.10",
    "tokens": "300e9 or 300 B",
    "": "0.85",
}

#: The spelling that ``format_quantity`` uses, of those measures that it writes.
_WRITTEN = {"bytes": "B", "byte/s": "B/s", "seconds": "s", "FLOP/s": "FLOP/s"}

_NUMBER = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S.*?)?\s*", re.ASCII)


def parse_quantity(value: object, measure: str) -> float:
    """The number of base units that ``value`` means; ``measure`` is a key of ``UNITS``.

    Raises:
        QuantityError: it is neither a finite number nor one with a unit of this measure.
    """
    example = f"write e.g. {_EXAMPLES[measure]}"
    if isinstance(value, str) and len(value) <= 60 and (match := _NUMBER.fullmatch(value)):
        number, unit = float(match[1].replace("_", "")), match[2] or ""
        units = UNITS[measure]
        if unit and unit not in units:
            kind = f"is no unit of {measure}" if measure else "is unexpected: it has no unit"
            raise QuantityError(f"{unit!r} {kind}; {example}")
        if math.isfinite(number):
            # In decimals, so that 2.039 TB/s is the 2.039e12 that a literal means.
            number = float(Decimal(match[1].replace("_", "")) * Decimal(str(units.get(unit, 1.0))))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
    else:
        raise QuantityError(f"must be a number, not {str(value)[:60]!r}; {example}")
    if not math.isfinite(number):
        raise QuantityError(f"must be a finite number, not {value}; {example}")
    return number


def format_quantity(number: float, measure: str) -> str | float:
    """A text that ``parse_quantity`` reads back to exactly ``number``, else the number."""
    texts = []
    for unit, scale in UNITS[measure].items():
        amount = number / scale
        text = f"{amount:.15g} {unit}"
        if unit.endswith(_WRITTEN[measure]) and 1 <= amount < 1000 and unit.isascii():
            texts.append(text)
    exact = [text for text in texts if parse_quantity(text, measure) == number]
    return min(exact, key=len) if exact else float(number)
