"""Saved state: a mapping of named fields, which is checked when loaded.

A state has ``schema`` and ``version``. It has JSON numbers and texts, arrays with the dtype and
shape of a table, and states of other objects. All mismatches raise the same error, so that a caller
can use another source of the state.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from paceline.errors import StateError

State = dict[str, Any]


@dataclass(frozen=True)
class ArrayField:
    """Type and shape of an array of a state.

    Attributes:
        dtype: NumPy's dtype, little-endian: "<f8".
        shape: a number per axis, or the name of a size in the state.
        nan, inf: whether these values are allowed.
        least, most: bounds of the values.
    """

    dtype: str
    shape: tuple[int | str, ...]
    nan: bool = False
    inf: bool = False
    least: float = -math.inf
    most: float = math.inf


class StateReader:
    """Reads the fields of a state with checks."""

    def __init__(self, state: object, schema: str, version: int, names: Iterable[str]) -> None:
        """Check the state's schema and version, and that it has exactly these fields.

        Args:
            state: the saved state.
            schema: required schema.
            version: required version.
            names: names of its other fields.

        Raises:
            StateError: it has another schema or version, or other fields.
        """
        self.schema = schema
        if not isinstance(state, Mapping) or state.get("schema") != schema:
            raise StateError(f"this is no state of {schema}")
        stored = state.get("version")
        if stored != version or isinstance(stored, bool):
            raise StateError(
                f"{schema} has version {reprlib.repr(stored)}, this Paceline reads {version}"
            )
        expected = {"schema", "version", *names}
        for verb, odd in (("lacks", expected - set(state)), ("has unknown", set(state) - expected)):
            if odd:
                raise StateError(f"{schema} {verb} {', '.join(sorted(map(str, odd))[:5])}")
        self._state = state

    def value(self, name: str) -> Any:
        """The unchecked field."""
        return self._state[name]

    def whole(self, name: str, least: int = 0, most: int = 2**62) -> int:
        """A whole number.

        Raises:
            StateError: it is no whole number, or out of bounds.
        """
        value = self._state[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fail(name, f"must be a whole number >= {least}, not {reprlib.repr(value)}")
        return int(value)

    def number(self, name: str) -> float:
        """A finite number.

        Raises:
            StateError: it is none.
        """
        value = self._state[name]
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not abs(value) < 1e300:  # nan fails every comparison
            self.fail(name, f"must be a finite number, not {reprlib.repr(value)}")
        return float(value)

    def text(self, name: str) -> str:
        """A text.

        Raises:
            StateError: it is none.
        """
        value = self._state[name]
        if not isinstance(value, str):
            self.fail(name, f"must be a text, not {reprlib.repr(value)}")
        return str(value)

    def texts(self, name: str) -> list[str]:
        """A list of texts.

        Raises:
            StateError: it is none.
        """
        value = self._state[name]
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            self.fail(name, f"must be a list of texts, not {reprlib.repr(value)}")
        return list(value)

    def array(self, name: str, field: ArrayField, sizes: Mapping[str, int]) -> npt.NDArray[Any]:
        """A copy of an array.

        Raises:
            StateError: its dtype, shape or a value does not fit.
        """
        value = self._state[name]
        shape = tuple(sizes[n] if isinstance(n, str) else n for n in field.shape)
        if not isinstance(value, np.ndarray):
            self.fail(name, "must be an array")
        if value.dtype != np.dtype(field.dtype) or value.shape != shape:
            self.fail(name, f"is {value.dtype}{value.shape}, not {np.dtype(field.dtype)}{shape}")
        if value.dtype.kind == "f" and not field.nan and np.isnan(value).any():
            self.fail(name, "has values that are no number")
        if value.dtype.kind == "f" and not field.inf and np.isinf(value).any():
            self.fail(name, "has infinite values")
        if ((value < field.least) | (value > field.most)).any():
            self.fail(name, f"has values outside {field.least:g} to {field.most:g}")
        return value.copy()

    def fail(self, name: str, reason: str) -> NoReturn:
        """Raise a StateError that names the field."""
        raise StateError(f"{self.schema}: {name} {reason}")
