"""Sentences that a document carries beside the numbers that they were made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Warning:
    """What to know before trusting the numbers.

    Attributes:
        code: which warning it is; "" where its maker gives none, and in older documents.
        text: the warning in a sentence or two.
        numbers: name -> the numbers in the text.
    """

    code: str
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)
