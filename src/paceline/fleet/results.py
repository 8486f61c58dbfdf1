"""Results of single traces in a study, each written once under its key.

``results/ab/<key>.json`` has an analysis, or the reason why there is none.
``results/ab/<key>.limit.json`` means that a limit of time or memory was exceeded or the process was
killed: other limits may help.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from paceline.errors import FleetError
from paceline.fleet.columns import SCHEMA
from paceline.fleet.store import Store

FOLDER = "results"
_END, _LIMIT_END = ".json", ".limit.json"

#: Rules that other limits may change.
OF_LIMITS = ("memory", "timeout", "killed")

Document = dict[str, Any]


def name_of(key: str, *, limit: bool = False) -> str:
    """The file of a key."""
    return f"{FOLDER}/{key[:2]}/{key}{_LIMIT_END if limit else _END}"


def write(store: Store, document: Document) -> None:
    """Write a result under its key, unless it exists."""
    limit = document["rule"] in OF_LIMITS
    data = json.dumps(_plain({"schema": SCHEMA, **document}), allow_nan=False).encode()
    name = name_of(document["key"], limit=limit)
    if limit:
        store.write(name, data)
    else:
        store.write_new(name, data)


def read(store: Store, key: str) -> Document:
    """The result of a key: an analysis if there is one, otherwise the exceeded limit.

    Raises:
        FleetError: there is none, or it is damaged.
    """
    for limit in (False, True):
        try:
            document = json.loads(store.read(name_of(key, limit=limit)))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise FleetError(
                f"{store.address}/{name_of(key, limit=limit)} cannot be read ({error}); remove it "
                "and run the study again"
            ) from None
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise FleetError(
                f"{store.address}/{name_of(key, limit=limit)} is no result of this version; remove "
                "it and run the study again"
            )
        return document
    raise FleetError(f"{store.address} has no result {key}; run the study again")


def keys(store: Store) -> Iterator[tuple[str, bool]]:
    """(key, whether the result is an exceeded limit) of all results."""
    for info in store.files(FOLDER):
        name = info.name.rpartition("/")[2]
        if name.endswith(_END):
            yield name.removesuffix(_LIMIT_END).removesuffix(_END), name.endswith(_LIMIT_END)


def exceeds_still(document: Document, timeout_s: float | None, memory_bytes: int | None) -> bool:
    """Whether a trace that exceeded a limit would exceed the present one."""
    if document["rule"] == "killed":
        return True
    limits = {"timeout": ("timeout_s", timeout_s), "memory": ("memory_bytes", memory_bytes)}
    name, limit = limits[document["rule"]]
    before = document["limits"].get(name)
    return limit is not None and before is not None and limit <= before


def _plain(value: Any) -> Any:
    """The value with null for nan and infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value
