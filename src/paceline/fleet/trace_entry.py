"""A trace of a fleet, and facts about its job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One trace, as known to the driver of a study.

    Attributes:
        path: its address, unique in a fleet.
        size: bytes.
        stamp: a text that changes with the content of the trace and of the files beside it.
        meta: address of its job file; "" without one.
        hosts: address of the file with the hosts of its ranks; "" without one.
        name: the job's name in the manifest; "" if it has none.
        gpus, restarts, max_seq_len, gpu_hours: from the manifest; None if it has none.
        team: from the manifest; "" if it has none.
        started: from the manifest, in UTC.
        labels: further columns of the manifest.
    """

    path: str
    size: int = 0
    stamp: str = ""
    meta: str = ""
    hosts: str = ""
    name: str = ""
    gpus: int | None = None
    restarts: int | None = None
    max_seq_len: int | None = None
    gpu_hours: float | None = None
    team: str = ""
    started: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
