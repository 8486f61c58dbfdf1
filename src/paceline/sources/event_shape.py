"""Events that hold only the values that a reader uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, make_dataclass
from functools import cache
from typing import Any, cast


@dataclass(frozen=True)
class EventShape:
    """Constructors of events.

    Attributes:
        decode: makes events from the JSON text of a list; None without msgspec. Values of
            unexpected types raise a ValueError.
        of: makes one event from the mapping of all its values.
    """

    decode: Callable[[str], list[Any]] | None
    of: Callable[[Mapping[str, Any]], Any]


@cache
def event_shape(keys: tuple[str, ...], args: tuple[str, ...]) -> EventShape:
    """The constructors of events whose values are attributes. A value that is missing is None.

    Args:
        keys: keys of an event that become its attributes.
        args: keys of the object ``args`` in an event. Their attributes are in lower case:
            ``collective_name`` for ``Collective name``.

    Values of other keys are ignored.
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
        # Events do not refer to each other, so the garbage collector need not visit them.
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
