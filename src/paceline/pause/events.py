"""A pause as an event of the job: a line of ``events.jsonl`` in its folder."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from paceline.errors import OutputError
from paceline.pause.asker import Pause

EVENTS: Final = "events.jsonl"


def text_of(pause: Pause) -> str:
    """The event in one sentence."""
    if not pause.held:
        return f"not paused: {pause.why}"
    longest = max(one.stopped_s for one in pause.ranks)
    text = (
        f"paused {len(pause.ranks):,} ranks for {pause.held_s:.1f} s after collective "
        f"{pause.number:,} (the first stood {longest:.1f} s)"
    )
    return text if pause.undisturbed else f"{text}; disturbed: {pause.why}"


def event_of(pause: Pause, more: Mapping[str, Any]) -> dict[str, Any]:
    """The event; ``more`` has findings during the pause."""
    fields = asdict(pause)
    fields["communicator"] = f"{pause.communicator:#x}"
    return {
        "kind": "paused" if pause.held else "not-paused",
        "at": datetime.fromtimestamp(time.time()).astimezone().isoformat(timespec="milliseconds"),
        "text": text_of(pause),
        **fields,
        **more,
    }


def append_event(folder: Path, event: Mapping[str, Any]) -> None:
    """Append a line.

    Raises:
        OutputError: the folder cannot be written to.
    """
    path = folder / EVENTS
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from None
