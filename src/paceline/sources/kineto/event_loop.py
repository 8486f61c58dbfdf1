"""A profile's events that last, each handed to what takes its category."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import TraceError
from paceline.sources.fields import number
from paceline.sources.json_stream import JsonStream

#: Takes an event, its start and its end.
Taker = Callable[[Mapping[str, Any], float, float], None]


def read_events(path: Path, takers: Mapping[str, Taker], *, unit: float = 1.0) -> Mapping[str, Any]:
    """Hand each event on; returns what the file says beside its events.

    Args:
        path: the file.
        takers: category in lower case -> what takes its events.
        unit: of the times handed on, per microsecond: 1e-6 for seconds.

    Raises:
        TraceError: the file is damaged, or a time is no number.
    """
    stream = JsonStream(path)
    for place, event in enumerate(stream):
        if event.get("ph") != "X":
            continue
        category = event.get("cat")
        take = takers.get(category.lower()) if isinstance(category, str) else None
        if take is not None:
            where = f"{path}, event {place}"
            start_us, duration_us = number(event, "ts", where), number(event, "dur", where)
            if duration_us < 0:
                raise TraceError(f"{where}: dur {duration_us:g} is negative; is the file damaged?")
            take(event, start_us * unit, (start_us + duration_us) * unit)
    return stream.header
