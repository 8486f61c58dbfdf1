"""Reading a PyTorch profile event by event: each one that has a duration goes to its taker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import TraceError
from paceline.sources.fields import number
from paceline.sources.json_stream import JsonStream, shaped_decoder

#: Takes an event with its start and end.
Taker = Callable[[Mapping[str, Any], float, float], None]


#: Fields of an event for takers, beside ``args``.
_KEYS = ("ph", "cat", "name", "ts", "dur", "tid")
#: Times beyond are none.
_MAX = 1e300


def hand_out(
    path: Path, takers: Mapping[str, Taker], per_us: float, args: tuple[str, ...]
) -> Mapping[str, Any]:
    """Give each complete event (``ph`` "X") to the taker of its category; returns the header.

    Args:
        path: the profile, gzip or not; read as a stream.
        takers: category in lower case -> what takes its events; others are passed over.
        per_us: units of time that takers count in, per microsecond.
        args: keys of an event's ``args`` that takers read; others may be missing.

    Raises:
        TraceError: the file is damaged, or an event has no time or ends before it begins.
    """
    stream = JsonStream(path, decode=shaped_decoder(_KEYS, (("args", args),)))
    taker_of: dict[str, Taker | None] = {}
    for place, event in enumerate(stream):
        if event.get("ph") != "X":
            continue
        category = event.get("cat")
        if not isinstance(category, str):
            continue
        if category not in taker_of:
            taker_of[category] = takers.get(category.lower())
        take = taker_of[category]
        if take is not None:
            start_us, duration_us = event.get("ts"), event.get("dur")
            # All but damaged and old files have such numbers.
            if not (
                type(start_us) is float
                and type(duration_us) is float
                and -_MAX < start_us < _MAX
                and 0 <= duration_us < _MAX
            ):
                start_us, duration_us = _checked(event, f"{path}, event {place}")
            take(event, start_us * per_us, (start_us + duration_us) * per_us)
    return stream.header


def _checked(event: Mapping[str, Any], at: str) -> tuple[float, float]:
    """Start and duration in microseconds."""
    start_us, duration_us = number(event, "ts", at), number(event, "dur", at)
    if duration_us < 0:
        raise TraceError(f"{at}: dur {duration_us:g} is negative; is the file damaged?")
    return start_us, duration_us
