"""Forms of values: writing to JSON, reading back, and their JSON Schema.

A form reads its own output. Reading raises :class:`ResultError` with the path of the wrong field.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from paceline.errors import ResultError

T = TypeVar("T")
K = TypeVar("K", int, str)

Array = npt.NDArray[np.float64]
Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Form(Generic[T]):
    """The form of a value in JSON.

    Attributes:
        write: value -> JSON's value.
        read: the way back; raises ResultError.
        schema: JSON Schema of the output.
    """

    write: Callable[[T], Any]
    read: Callable[[Any], T]
    schema: Schema


def inside(name: object, error: ResultError) -> ResultError:
    """The error with ``name`` added to its path."""
    return ResultError(error.problem, ".".join(filter(None, (str(name), error.field))))


def refusal(expected: str, value: object) -> ResultError:
    """The error of a value of the wrong type."""
    return ResultError(f"must be {expected}, not {reprlib.repr(value)}")


def finite(value: float | None) -> float | None:
    """The number; None in place of nan, which JSON lacks."""
    return None if value is None or not math.isfinite(value) else float(value)


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refusal("a number or null", value)
    return float(value)


def _whole_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise refusal("a whole number", value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise refusal("a text", value)
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise refusal("true or false", value)
    return value


def mapping_of(value: Any) -> Mapping[str, Any]:
    """The value, checked to be a JSON object."""
    if not isinstance(value, Mapping):
        raise refusal("an object", value)
    return value


def _list(value: Any, length: int | None = None) -> list[Any]:
    if not isinstance(value, list | tuple) or length not in (None, len(value)):
        raise refusal("a list" if length is None else f"a list of {length}", value)
    return list(value)


#: A number; null stands for NaN.
NUMBER: Form[float] = Form(finite, _number, {"type": ["number", "null"]})
WHOLE: Form[int] = Form(int, _whole_number, {"type": "integer"})
TEXT: Form[str] = Form(str, _text, {"type": "string"})
FLAG: Form[bool] = Form(bool, _flag, {"type": "boolean"})
#: Any JSON object: evidence, places, changes.
OBJECT: Form[Mapping[str, Any]] = Form(dict, mapping_of, {"type": "object"})


def optional(form: Form[T]) -> Form[T | None]:
    """The form, or null for None."""
    kinds = form.schema.get("type")
    nullable = (
        dict(form.schema) if isinstance(kinds, list) else {"anyOf": [form.schema, {"type": "null"}]}
    )
    return Form(
        lambda value: None if value is None else form.write(value),
        lambda value: None if value is None else form.read(value),
        nullable,
    )


def list_of(form: Form[T]) -> Form[tuple[T, ...]]:
    """A list of values of one form."""

    def read(value: Any) -> tuple[T, ...]:
        values = []
        for place, entry in enumerate(_list(value)):
            try:
                values.append(form.read(entry))
            except ResultError as error:
                raise inside(place, error) from None
        return tuple(values)

    schema = {"type": "array", "items": form.schema}
    return Form(lambda values: [form.write(entry) for entry in values], read, schema)


def tuple_of(*forms: Form[Any]) -> Form[tuple[Any, ...]]:
    """A list with one value per form."""

    def read(value: Any) -> tuple[Any, ...]:
        entries = _list(value, len(forms))
        return tuple(form.read(entry) for form, entry in zip(forms, entries, strict=True))

    schema = {
        "type": "array",
        "prefixItems": [form.schema for form in forms],
        "minItems": len(forms),
        "maxItems": len(forms),
    }
    return Form(
        lambda values: [form.write(entry) for form, entry in zip(forms, values, strict=True)],
        read,
        schema,
    )


def object_of(key: type[K], form: Form[T]) -> Form[Mapping[K, T]]:
    """An object with texts or numbers (steps, stages, ranks) as names."""

    def read(value: Any) -> Mapping[K, T]:
        values: dict[K, T] = {}
        for name, entry in mapping_of(value).items():
            try:
                values[key(name)] = form.read(entry)
            except ResultError as error:
                raise inside(name, error) from None
            except ValueError:
                raise refusal("an object with whole numbers as names", name) from None
        return values

    schema: dict[str, Any] = {"type": "object", "additionalProperties": form.schema}
    if key is int:
        schema["propertyNames"] = {"pattern": "^-?[0-9]+$"}
    return Form(
        lambda values: {str(name): form.write(entry) for name, entry in values.items()},
        read,
        schema,
    )


def array(axes: int) -> Form[Array]:
    """Nested lists of numbers; null stands for NaN."""
    schema: Schema = NUMBER.schema
    for _ in range(axes):
        schema = {"type": "array", "items": schema}

    def read(value: Any) -> Array:
        try:
            values = np.array(_list(value), dtype=np.float64)  # None becomes nan
        except (TypeError, ValueError):
            values = np.empty(())
        if values.ndim != axes:
            raise refusal(f"a table of numbers with {axes} axes", value)
        return values

    return Form(_nested, read, schema)


def _nested(values: Array) -> list[Any]:
    finite_values = np.isfinite(values)
    if finite_values.all():
        return list(values.tolist())
    objects = values.astype(object)
    objects[~finite_values] = None
    return list(objects.tolist())
