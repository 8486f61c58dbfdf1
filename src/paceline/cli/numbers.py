"""Lists of numbers as users write them: ``10-20,25``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection

from paceline.errors import SynthError

#: Ranges are expanded; more numbers than this are a typing error.
MAX_NUMBERS = 1_000_000

#: The highest number in any file: columns hold 64 bits at most.
LARGEST = 2**63 - 1


def parse_numbers(text: str) -> list[int]:
    """The numbers that ``text`` names, ascending, each once.

    Raises:
        argparse.ArgumentTypeError: it is no list of whole numbers and ranges.
    """
    numbers: set[int] = set()
    for entry in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", entry, flags=re.ASCII)
        if match is None:
            problem = (
                f"{entry.strip()!r} is neither a number nor a range"
                if entry.strip()
                else "a number is missing"
            )
            raise argparse.ArgumentTypeError(f"{problem} in {text!r}; write, for example, 10-20,25")
        if max(len(number or "") for number in match.groups()) > len(str(LARGEST)):
            raise argparse.ArgumentTypeError(f"a number has too many digits in {text[:60]!r}")
        low = int(match[1])
        high = int(match[2]) if match[2] else low
        if max(low, high) > LARGEST:
            raise argparse.ArgumentTypeError(f"{max(low, high)} is above {LARGEST}")
        if high < low:
            raise argparse.ArgumentTypeError(f"the range {entry.strip()} runs backwards")
        if high - low >= MAX_NUMBERS or len(numbers) > MAX_NUMBERS:
            raise argparse.ArgumentTypeError(f"{text!r} names more than {MAX_NUMBERS:,} numbers")
        numbers.update(range(low, high + 1))
    return sorted(numbers)


def parse_floats(text: str, n: Collection[int], expected: str) -> tuple[float, ...]:
    """Numbers separated by commas, as causes of slowness are given.

    Args:
        text: for example ``3,1,1.5``.
        n: the expected number of numbers.
        expected: the meaning of the numbers, for the message.

    Raises:
        SynthError: another number of numbers, or none.
    """
    try:
        values = tuple(float(number) for number in text.split(","))
    except ValueError:
        values = ()
    if len(values) not in n:
        raise SynthError(f"{text!r} should be {expected}")
    return values


def whole_number(value: float, label: str) -> int:
    """A whole number in a list that also has fractions, such as the ranks in ``3,1,1.5``.

    Raises:
        SynthError: it is none.
    """
    if not value.is_integer():  # NaN and infinity are not either
        raise SynthError(f"{label}: {value:g} is no whole number")
    return int(value)
