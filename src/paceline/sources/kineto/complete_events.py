"""Reading a PyTorch profile event by event: each event with a duration goes to its handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from paceline.errors import TraceError
from paceline.sources.event_shape import event_shape
from paceline.sources.fields import number
from paceline.sources.json_stream import JsonStream


class Event(Protocol):
    """The values of an event that handlers read; None where it lacks one.

    Attributes:
        name: name of the event.
        tid: its thread.
        args: its arguments as attributes: ``args.collective_name`` for ``Collective name``.
    """

    name: Any
    tid: Any
    args: Any


#: A function of an event, its start and its end.
Handler = Callable[[Event, float, float], None]

#: Fields of an event for handlers, beside ``args``.
_KEYS = ("ph", "cat", "name", "ts", "dur", "tid")
#: Larger numbers are no times.
_MAX = 1e300


def dispatch(
    path: Path, handlers: Mapping[str, Handler], per_us: float, args: tuple[str, ...]
) -> Mapping[str, Any]:
    """Give each complete event (``ph`` "X") to the handler of its category; returns the header.

    Args:
        path: the profile, gzip or not; read as a stream.
        handlers: category in lower case -> handler of its events; other events are skipped.
        per_us: the handlers' unit of time: how many of it are a microsecond.
        args: keys of an event's ``args`` that handlers read.

    Raises:
        TraceError: the file is damaged, or an event has no time or ends before it begins.
    """
    stream = JsonStream(path, shape=event_shape(_KEYS, args))
    handler_of: dict[str, Handler | None] = {}
    n_before = 0
    for batch in stream.batches():
        for place, event in enumerate(batch, n_before):
            category = event.cat
            if event.ph != "X" or type(category) is not str:
                continue
            try:
                handle = handler_of[category]
            except KeyError:
                handle = handler_of[category] = handlers.get(category.lower())
            if handle is None:
                continue
            start_us, duration_us = event.ts, event.dur
            # All but damaged and old files have such numbers.
            if not (
                type(start_us) is float
                and type(duration_us) is float
                and -_MAX < start_us < _MAX
                and 0 <= duration_us < _MAX
            ):
                start_us, duration_us = _checked(event, f"{path}, event {place}")
            handle(event, start_us * per_us, (start_us + duration_us) * per_us)
        n_before += len(batch)
    return stream.header


def _checked(event: Any, at: str) -> tuple[float, float]:
    """Start and duration in microseconds."""
    values = {key: value for key in ("ts", "dur") if (value := getattr(event, key)) is not None}
    start_us, duration_us = number(values, "ts", at), number(values, "dur", at)
    if duration_us < 0:
        raise TraceError(f"{at}: dur {duration_us:g} is negative; is the file damaged?")
    return start_us, duration_us
