"""Numbers with their units, as people read them; the one place that rounds for a sentence."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

#: Stands for a missing number.
NONE = "–"
#: Bytes of the unit in which memory is told.
GIB = float(1 << 30)


def percent(value: float, digits: int = 1) -> str:
    """``12.3%``; a real minus sign, and none before 0."""
    if not math.isfinite(value):
        return NONE
    text = f"{abs(value):,.{digits}%}"
    return _signed(text, value)


def short_percent(value: float) -> str:
    """``8%``, ``26.5%``: up to three digits, without zeros at the end."""
    return f"{value * 100:.3g}%"


def seconds(value: float) -> str:
    """Three or four digits with the unit, from ns to s: ``12.3 ms``, ``7,301 s``."""
    if not math.isfinite(value):
        return NONE
    size = abs(value)
    if size >= 999.5:
        text = f"{size:,.0f} s"
    elif size >= 0.9995:  # a smaller one never rounds to 1,000 ms
        text = f"{size:#.4g} s"
    else:
        text = _small(size)
    return _signed(text, value)


def duration(value: float) -> str:
    """``2.5 hours``, ``1.44 s``, ``69.3 ms``: seconds that are lost or last, for all texts."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if value >= 2 * size:
            return f"{value / size:,.1f} {unit}"
    if not math.isfinite(value):
        return NONE
    size = abs(value)
    return _signed(f"{size:.3g} s" if size >= 0.9995 else _small(size), value)


def significant(value: float, digits: int) -> str:
    """``344.7``, ``431``, ``3,447``: this number of digits, without an exponent or a bare dot."""
    if not math.isfinite(value):
        return NONE
    size, decimals = abs(value), 0
    for _ in range(2 * (size > 0)):  # 99.96 becomes 100.0, which has a digit more before its dot
        decimals = max(0, digits - 1 - math.floor(math.log10(size)))
        size = round(size, decimals)
    return _signed(f"{size:,.{decimals}f}", value)


def decimals_of(total: float, digits: int) -> int:
    """Decimals of all terms of a sum, so that the sum has this number of significant digits."""
    text = significant(total, digits)
    return len(text.partition(".")[2])


def fixed(value: float, decimals: int) -> str:
    """``0.021``, ``−1.500``: this number of decimals; ``0`` if none of the digits is above 0."""
    text = f"{abs(value):,.{decimals}f}"
    return _signed(text, value) if any(digit in "123456789" for digit in text) else "0"


def signed(value: float, decimals: int = 1) -> str:
    """``+0.021``, ``−1.500``, ``0``: a difference."""
    text = fixed(value, decimals)
    return f"+{text}" if value > 0 and text != "0" else text


def gpu_hours(value: float) -> str:
    """``1,234``, ``88.8``, ``under 0.001``: three digits, which a loss that is no loss hides."""
    if not math.isfinite(value):
        return NONE
    size = abs(value)
    if size >= 99.95:
        text = f"{size:,.0f}"
    else:
        text = f"{size:.3g}" if size >= 0.001 else "under 0.001" if value > 0 else "0"
    return _signed(text, value)


def seconds_range(low: float, high: float) -> str:
    """``23.7–35.2``: seconds from ``low`` to ``high``, for columns whose head has the unit."""
    return f"{significant(low, 3)}–{significant(high, 3)}"


def _small(size: float) -> str:
    for unit, scale in (("ms", 1e3), ("µs", 1e6), ("ns", 1e9)):
        if size * scale >= 0.9995:
            return f"{size * scale:#.3g}".rstrip(".") + f" {unit}"
    return "0 s"


def moment(at: float) -> str:
    """``2026-11-23 12:03``, UTC, of seconds since 1970."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at))


def quantity(value: float) -> str:
    """Four significant digits, thousands parted."""
    if not math.isfinite(value):
        return NONE
    text = f"{abs(value):,.0f}" if abs(value) >= 1000 else f"{abs(value):.4g}"
    return _signed(text, value) if "e" not in text else f"{value:.1e}"


def in_gib(size: float) -> str:
    """``66.2 GiB``: a GPU of "80 GB" has 80 GiB."""
    return f"{_signed(gib(abs(size)), size)} GiB"


def gib(size: float) -> str:
    """``66.2``: bytes in GiB, for columns whose head has the unit."""
    return f"{size / GIB:,.1f}"


def gpu_memory(size: float) -> str:
    """``GiB: 2^30 bytes; a GPU sold with 80 GB has 80.0, ...``, of a GPU's memory in bytes."""
    sold = gib(size).removesuffix(".0")
    return (
        f"GiB: 2^30 bytes; a GPU sold with {sold} GB has {gib(size)}, of which its driver keeps "
        "about 1%"
    )


def dollars(value: float) -> str:
    """``$6.05``, ``$60,048``, ``$4.61 million``."""
    if value >= 999_999.5:
        return f"${value / 1e6:,.2f} million"
    return f"${value:,.0f}" if value >= 100 else f"${value:,.2f}"


def day_count(value: float) -> str:
    """``36.1``, ``0.0165``: three significant digits below ten days."""
    return f"{value:,.1f}" if value >= 9.995 else f"{value:.3g}"


def parameter_count(number: int) -> str:
    """``355M``, ``14.8B``, ``1,027B``: parameters of a model in millions or billions."""
    unit, scale = ("B", 1e9) if number >= 999_500_000 else ("M", 1e6)
    return f"{significant(number / scale, 3)}{unit}"


def times(ratio: float) -> str:
    """``1.80 times``: how often one time goes into another."""
    if not math.isfinite(ratio):
        return NONE
    digits = 2 if abs(ratio) < 9.995 else 1 if abs(ratio) < 99.95 else 0
    return f"{_signed(f'{abs(ratio):,.{digits}f}', ratio)} times"


def count(number: int, noun: str, plural: str = "") -> str:
    """``1 step``, ``1,024 steps``."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def several(items: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first ``most`` of the items, and how many more there are."""
    text = separator.join(items[:most])
    return f"{text} and {len(items) - most:,} more" if len(items) > most else text


def _signed(text: str, value: float) -> str:
    return ("−" if value < 0 and any(digit in "123456789" for digit in text) else "") + text
