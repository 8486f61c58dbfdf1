"""Reading a PyTorch profile event by event: each one that has a duration goes to its taker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import TraceError
from paceline.sources.fields import number
from paceline.sources.json_stream import JsonStream

#: Takes an event with its start and end.
Taker = Callable[[Mapping[str, Any], float, float], None]


def hand_out(path: Path, takers: Mapping[str, Taker], per_us: float) -> Mapping[str, Any]:
    """Give each complete event (``ph`` "X") to the taker of its category; returns the header.

    Args:
        path: the profile, gzip or not; read as a stream.
        takers: category in lower case -> what takes its events; others are passed over.
        per_us: units of time that takers count in, per microsecond.

    Raises:
        TraceError: the file is damaged, or an event has no time or ends before it begins.
    """
    stream = JsonStream(path)
    for place, event in enumerate(stream):
        if event.get("ph") != "X":
            continue
        category = event.get("cat")
        take = takers.get(category.lower()) if isinstance(category, str) else None
        if take is not None:
            at = f"{path}, event {place}"
            start_us, duration_us = number(event, "ts", at), number(event, "dur", at)
            if duration_us < 0:
                raise TraceError(f"{at}: dur {duration_us:g} is negative; is the file damaged?")
            take(event, start_us * per_us, (start_us + duration_us) * per_us)
    return stream.header
