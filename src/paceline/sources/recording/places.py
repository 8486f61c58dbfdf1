"""Places of the ranks of a recorded run, from the headers of their files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline import blockfile
from paceline.trace.job import LOCAL_RANK

#: Clock of a recorder whose operations run on the host (``paceline.record.clocks``).
_ON_HOST = "HostClock"


def place_in_header(meta: Mapping[str, Any]) -> tuple[str, str] | None:
    """(host, GPU) in a file's header, "" for an unknown GPU; None if no host is named.

    The recorder knows the local rank, which is the GPU's number. Work on the host has no GPU.
    """
    host, number = meta.get("host"), str(meta.get("gpu") or "")
    if number and meta.get("clock") == _ON_HOST:
        number = f"{LOCAL_RANK}{number}"
    return (str(host), number) if host else None


def recorded_places(folder: Path) -> dict[int, tuple[str, str]]:
    """Rank -> (host, GPU). A rank that moved between starts of the job has no place.

    Unreadable headers give no place: the reader of the operations reports their error.
    """
    seen: dict[int, set[tuple[str, str]]] = {}
    for path in sorted(folder.glob(f"rank-*{blockfile.SUFFIX}")):
        try:
            meta = blockfile.read_header(path)
        except (blockfile.BlockFileError, OSError):
            continue
        place, rank = place_in_header(meta), meta.get("rank")
        if place is not None and isinstance(rank, int):
            seen.setdefault(rank, set()).add(place)
    return {rank: places.pop() for rank, places in seen.items() if len(places) == 1}
