"""Dataclasses as objects of JSON: one key for each field."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from paceline.errors import PacelineError, ResultError
from paceline.results.forms import Form, inside, mapping_of

T = TypeVar("T")


@dataclass(frozen=True)
class Key:
    """A key of an object.

    Attributes:
        name: name in JSON.
        form: form of its value.
        about: its description, for the schema.
        field: field of the dataclass, if it has another name.
        written: whether a record writes it; None: always.
    """

    name: str
    form: Form[Any]
    about: str = ""
    field: str = ""
    written: Callable[[Any], bool] | None = None

    @property
    def attribute(self) -> str:
        """Its name in the dataclass."""
        return self.field or self.name


def record(cls: type[T], keys: tuple[Key, ...]) -> Form[T]:
    """The form of a dataclass; fields that a document lacks get their defaults."""
    return Form(
        lambda value: write_record(value, keys),
        lambda value: read_record(cls, keys, value),
        record_schema(cls, keys),
    )


def write_record(value: Any, keys: tuple[Key, ...]) -> dict[str, Any]:
    """The object, its keys in order."""
    return {
        key.name: key.form.write(getattr(value, key.attribute))
        for key in keys
        if key.written is None or key.written(value)
    }


def read_record(cls: type[T], keys: tuple[Key, ...], value: Any) -> T:
    """The dataclass; unknown keys are ignored.

    Raises:
        ResultError: a key without a default is missing, or a value has another form.
    """
    values = read_values(keys, value, needed_fields(cls))
    try:
        return cls(**values)
    except ResultError:
        raise
    except PacelineError as error:  # raised by a class that checks its values, such as Job
        raise ResultError(str(error)) from None


def read_values(keys: tuple[Key, ...], value: Any, needed: Collection[str]) -> dict[str, Any]:
    """Field -> value, for the keys of the object.

    Args:
        keys: the keys to read.
        value: an object of JSON.
        needed: required fields.

    Raises:
        ResultError: a required field is missing, or a value has another form.
    """
    entries, values = mapping_of(value), {}
    for key in keys:
        if key.name not in entries:
            if key.attribute in needed:
                raise ResultError("is missing", key.name)
            continue
        try:
            values[key.attribute] = key.form.read(entries[key.name])
        except ResultError as error:
            raise inside(key.name, error) from None
    return values


def record_schema(cls: type[Any], keys: tuple[Key, ...]) -> dict[str, Any]:
    """The JSON Schema: required keys, and the forms of all keys."""
    needed = needed_fields(cls)
    properties = {
        key.name: {**({"description": key.about} if key.about else {}), **key.form.schema}
        for key in keys
    }
    required = [key.name for key in keys if key.attribute in needed]
    return {"type": "object", "properties": properties, "required": required}


def needed_fields(cls: type[Any]) -> set[str]:
    """Fields without a default."""
    return {
        field.name
        for field in fields(cls)
        if field.default is MISSING and field.default_factory is MISSING
    }


def equal_values(first: Any, second: Any) -> bool:
    """Whether two values are equal; NaN equals NaN, arrays are compared by their values."""
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return np.array_equal(np.asarray(first), np.asarray(second), equal_nan=True)
    if is_dataclass(first):
        return type(first) is type(second) and all(
            equal_values(getattr(first, field.name), getattr(second, field.name))
            for field in fields(first)
            if field.compare
        )
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(
            equal_values(first[key], second[key]) for key in first
        )
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        pairs = zip(first, second, strict=False)
        return len(first) == len(second) and all(equal_values(a, b) for a, b in pairs)
    return bool(first == second or (first != first and second != second))
