"""Replace functions of other libraries by recording ones, once and reversibly."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("paceline.record")

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def wrap(owner: Any, name: str, wrapper: Wrapper) -> bool:
    """Put ``wrapper(function)`` in place of ``owner.name``; returns whether it exists.

    Wrapping again replaces the first wrapper.
    """
    function = getattr(owner, name, None)
    if function is None:
        log.warning("%s has no %s; it is not recorded", name_of(owner), name)
        return False
    function = getattr(function, "__paceline_wraps__", function)
    wrapped = functools.wraps(function)(wrapper(function))
    # Lets a later patch find the original.
    wrapped.__paceline_wraps__ = function  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)
    return True


def name_of(owner: Any) -> str:
    """The name of a module or class; for other objects the name of their class."""
    return str(getattr(owner, "__name__", type(owner).__name__))


def wrap_call(callee: Any, wrapper: Callable[..., Any]) -> None:
    """Route calls of an object through ``wrapper(original, *args)`` and keep the object.

    Its class becomes a subclass of the old one, so type checks and references stay valid. Wrapping
    again replaces the first wrapper.
    """
    cls = type(callee)
    base = cls.__mro__[1] if "__paceline_wraps__" in vars(cls) else cls

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(functools.partial(base.__call__, self), *args, **kwargs)

    members = {"__call__": call, "__paceline_wraps__": base, "__module__": base.__module__}
    callee.__class__ = type(base.__name__, (base,), members)


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> Any:
    """An argument of a call; None if not given."""
    return args[place] if place < len(args) else kwargs.get(name)
