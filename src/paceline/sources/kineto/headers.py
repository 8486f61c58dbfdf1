"""Refusals by the headers of profiles, before their events are read.

Kineto writes ``distributedInfo`` in front of the events (pytorch/kineto, commit 002d991,
``libkineto/src/output_json.cpp``). In profiles on demand it follows the events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import TraceError
from paceline.sources.fields import mapping, optional_whole
from paceline.sources.json_stream import first_events
from paceline.sources.kineto.events import Profile, Work
from paceline.sources.kineto.place import check_places
from paceline.sources.kineto.profile import groups_of, no_rank
from paceline.trace import Job


def check_headers(paths: Sequence[Path], job: Job | None) -> None:
    """Refuse files that cannot make a whole job, as far as their headers show it.

    Raises:
        TraceError: ranks are missing or are there twice, or a file does not have its rank.
    """
    profiles = [_header_profile(path) for path in paths]
    whole = [profile for profile in profiles if profile is not None]
    if len(whole) == len(paths):
        check_places(whole, job)


def _header_profile(path: Path) -> Profile | None:
    """A profile without events; None if the header is not in front of them."""
    start = first_events(path, 1)
    header: Mapping[str, Any] = {} if start is None else start[1]
    info = mapping(header, "distributedInfo")
    rank = optional_whole(info.get("rank"))
    if rank is None:
        if info:
            raise TraceError(no_rank(path))
        return None
    nothing = np.empty(0)
    return Profile(
        path=path,
        rank=rank,
        world_size=optional_whole(info.get("world_size")) or 0,
        groups=groups_of(info.get("pg_config"), rank),
        steps=(),
        ranges=(),
        optimizer=(),
        cleared=(),
        loads=(),
        transfers=(),
        collectives=(),
        work=Work(nothing, nothing, nothing, np.empty(0, dtype=bool)),
        copies=(),
        stream=None,
        host=None,
        on_gpu=False,
        unplaced={},
    )
