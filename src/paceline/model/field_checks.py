"""Checks of the fields of a model's records. Every error names the record and the field."""

from __future__ import annotations

import reprlib
from typing import Any

from paceline.errors import ModelError

MAX_FIELD = 1 << 40  # beyond any real model; keeps the counts within a float
#: Each layer is an object of its own; the deepest model known here has 128.
MAX_LAYERS = 10_000


def check_whole_number(record: Any, field: str, least: int, where: str) -> None:
    """Refuse a field that is not a whole number from ``least`` to :data:`MAX_FIELD`.

    Raises:
        ModelError: it is not.
    """
    value = getattr(record, field)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        text = reprlib.repr(value)
        raise ModelError(
            f"{where}: {field} must be a whole number >= {least}, not {text}", fields=(field,)
        )
    if value > (MAX_LAYERS if field == "layers" else MAX_FIELD):
        raise ModelError(
            f"{where}: {field} is {reprlib.repr(value)}, beyond any real model", fields=(field,)
        )


def one_of(record: Any, field: str, words: tuple[str, ...], where: str) -> None:
    """Refuse a field that is not one of ``words``.

    Raises:
        ModelError: it is not.
    """
    value = getattr(record, field)
    if value not in words:
        raise ModelError(
            f"{where}: {field} must be one of {', '.join(words)}, not {reprlib.repr(value)}",
            fields=(field,),
        )
