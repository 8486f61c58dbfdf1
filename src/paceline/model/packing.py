"""How documents fill the samples of a training: packed one behind the other, padded, or both."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import ModelError
from paceline.model.blocks import mean_keys

#: A document of more tokens is no real one; keeps the squares within a float.
_LONGEST = float(1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Documents of a data set, packed whole into samples, each attending to itself alone.

    Such attention is block-diagonal ("packed sequences" of NeMo, ``thd`` of Transformer Engine,
    ``block_causal`` of torchtitan). Its work grows with the sum of the documents' squared lengths.

    Attributes:
        documents: (tokens, how many) of the documents. One length, a list of lengths, or a mapping
            of lengths to counts is given; a single length is that of all. () = one document fills a
            sample but for its padding.
        padding: share of a sample's tokens that are padding, 0 to below 1.

    Raises:
        ModelError: a value is out of its range.
    """

    documents: tuple[tuple[float, float], ...] = ()
    padding: float = 0.0

    def __post_init__(self) -> None:
        if not _is_number(self.padding) or not 0 <= self.padding < 1:
            raise ModelError(
                "padding is a share of the tokens from 0 to below 1, not "
                f"{reprlib.repr(self.padding)}",
                fields=("padding",),
            )
        object.__setattr__(self, "documents", _counted(self.documents))

    def describe(self) -> str:
        """The same in words; "" where one document fills each sample."""
        words = []
        if self.documents:
            count = sum(n for _, n in self.documents)
            mean = sum(length * n for length, n in self.documents) / count
            words.append(f"documents of {mean:,.0f} tokens" + " on average" * (count > 1))
        words += [f"{self.padding:.1%} padding"] if self.padding else []
        return ", ".join(words)

    def useful_tokens(self, seq_len: int) -> float:
        """Tokens of a sample that are no padding."""
        return seq_len * (1.0 - self.padding)

    def mean_keys(self, kept: int, seq_len: int) -> float:
        """Keys that a query of no padding meets on average, of those before it at most ``kept``.

        A document longer than a sample is cut into samples and a rest.
        """
        if not self.documents:
            return mean_keys(kept, self.useful_tokens(seq_len))
        keys = tokens = 0.0
        for length, count in self.documents:
            full, rest = divmod(length, seq_len)
            tokens += count * length
            keys += count * full * seq_len * mean_keys(kept, seq_len)
            keys += count * rest * mean_keys(kept, rest) if rest else 0.0
        return keys / tokens

    def computed_keys(self, kept: int, seq_len: int) -> float:
        """Keys that a token of a sample is computed with on average, padding included.

        The kernel skips padding behind packed documents, which it is told of; without documents it
        knows of none and computes the whole sample.
        """
        if not self.documents:
            return mean_keys(kept, seq_len)
        return (1.0 - self.padding) * self.mean_keys(kept, seq_len)


def documents_of(text: str) -> tuple[tuple[float, float], ...]:
    """Documents of a text: "900", "512 2048", or with counts "512x30, 2048x2".

    Raises:
        ModelError: it is something else.
    """
    pairs = []
    for word in text.replace(",", " ").split():
        length, _, count = word.partition("x")
        try:
            pairs.append((float(length), float(count or 1)))
        except ValueError:
            raise _refused(text) from None
    if not pairs:
        raise _refused(text)
    return _counted(tuple(pairs))


def _counted(given: Any) -> tuple[tuple[float, float], ...]:
    """(length, count) pairs of any form in which documents are given."""
    if isinstance(given, Mapping):
        try:
            pairs = [(float(length), count) for length, count in given.items()]
        except (TypeError, ValueError):
            raise _refused(given) from None
    elif _is_number(given):
        pairs = [(given, 1.0)]
    elif isinstance(given, Sequence) and not isinstance(given, str):
        pairs = [tuple(item) if isinstance(item, tuple) else (item, 1.0) for item in given]
    else:
        raise _refused(given)
    counts: dict[float, float] = {}
    for length, count in pairs:
        if not (_is_number(length) and _is_number(count)):
            raise _refused(given)
        if not (1 <= length <= _LONGEST and 0 < count < math.inf):
            raise _refused(given)
        counts[float(length)] = counts.get(float(length), 0.0) + count
    return tuple(sorted(counts.items()))


def _refused(given: Any) -> ModelError:
    return ModelError(
        "documents are a length in tokens, a list of lengths, or a mapping of lengths to their "
        f"counts, all above 0, not {reprlib.repr(given)}",
        fields=("documents",),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


#: One document without padding in each sample.
WHOLE = Packing()
