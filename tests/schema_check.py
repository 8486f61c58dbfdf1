"""As much of JSON Schema as ours uses, checked without a package."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
USED = {
    *("$schema", "title", "description", "type", "const", "properties", "required", "items"),
    *("prefixItems", "minItems", "maxItems", "anyOf", "additionalProperties", "propertyNames"),
    "pattern",
}


def violations(schema: Mapping[str, Any], value: Any, place: str = "$") -> Iterator[str]:
    """What in ``value`` is not as the schema says."""
    assert set(schema) <= USED, set(schema) - USED
    if "const" in schema and value != schema["const"]:
        yield f"{place}: not {schema['const']}"
    if "anyOf" in schema and all(list(violations(s, value, place)) for s in schema["anyOf"]):
        yield f"{place}: none of {len(schema['anyOf'])} forms"
    types = schema.get("type", list(TYPES))
    types = types if isinstance(types, list) else [types]
    wrong_bool = isinstance(value, bool) and "boolean" not in types
    if wrong_bool or not isinstance(value, tuple(_flat(TYPES[name] for name in types))):
        yield f"{place}: {type(value).__name__} is no {types}"
        return
    if isinstance(value, dict):
        yield from _object(schema, value, place)
    if isinstance(value, list):
        yield from _array(schema, value, place)


def _flat(types: Any) -> list[type]:
    return [one for entry in types for one in (entry if isinstance(entry, tuple) else (entry,))]


def _object(schema: Mapping[str, Any], value: dict[str, Any], place: str) -> Iterator[str]:
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{place}.{name}: missing"
    pattern = schema.get("propertyNames", {}).get("pattern", "")
    for name, entry in value.items():
        if not re.search(pattern, name):
            yield f"{place}.{name}: no such name"
        inner = schema.get("properties", {}).get(name, schema.get("additionalProperties", {}))
        yield from violations(inner, entry, f"{place}.{name}")


def _array(schema: Mapping[str, Any], value: list[Any], place: str) -> Iterator[str]:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        yield f"{place}: {len(value)} entries"
    forms = schema.get("prefixItems", [])
    for index, entry in enumerate(value):
        inner = forms[index] if index < len(forms) else schema.get("items", {})
        yield from violations(inner, entry, f"{place}[{index}]")
