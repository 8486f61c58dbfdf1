"""Events with only those of their values that a reader uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, make_dataclass
from functools import cache
from typing import Any, cast


@dataclass(frozen=True)
class EventShape:
    """Constructors of events.

    Attributes:
        decode: makes events of a list's JSON text; None without msgspec. Values of unexpected types
            raise a ValueError.
        of: makes one event of all its values.
    """

    decode: Callable[[str], list[Any]] | None
    of: Callable[[Mapping[str, Any]], Any]


@cache
def event_shape(keys: tuple[str, ...], args: tuple[str, ...]) -> EventShape:
    """Events that have their values as attributes; None where an event lacks one.

    Args:
        keys: keys of the events, with any values.
        args: keys of the object ``args`` in an event. The attribute ``collective_name`` of ``args``
            has the value of ``Collective name``.

    Values that no key names are checked to be JSON, and passed over.
    """
    fields = [key.lower().replace(" ", "_") for key in args]
    try:
        from msgspec import defstruct
        from msgspec.json import Decoder
    except ImportError:
        some_args: Any = make_dataclass("Args", fields, slots=True)
        event: Any = make_dataclass("Event", (*keys, "args"), slots=True)
        decode = None
    else:
        # These cannot form cycles, so the garbage collector may ignore them.
        some_args = defstruct(
            "Args",
            [(field, Any, None) for field in fields],
            rename=dict(zip(fields, args, strict=True)),
            frozen=True,
            gc=False,
        )
        own: list[tuple[str, Any, Any]] = [(key, Any, None) for key in keys]
        event = defstruct("Event", [*own, ("args", some_args, some_args())], frozen=True, gc=False)
        decoder: Any = Decoder(cast("Any", list).__class_getitem__(event))
        decode = cast("Callable[[str], list[Any]]", decoder.decode)

    def made_of(values: Mapping[str, Any]) -> Any:
        given = values.get("args")
        inner = given if isinstance(given, dict) else {}
        return event(*map(values.get, keys), some_args(*map(inner.get, args)))

    return EventShape(decode, made_of)
