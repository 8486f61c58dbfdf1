"""What a recording holds so far, and the switch of the job that writes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.blockfile import CONTROL
from paceline.errors import TraceError
from paceline.files import text_writer, write_files
from paceline.sources.recording.files import RankFile


def summary(folder: Path, files: Sequence[RankFile]) -> dict[str, Any]:
    """What the files of a recording hold, as a mapping for JSON.

    ``common_steps`` counts the profiled steps that all ranks of the last start have.
    """
    last = max(files, key=lambda file: int(file.meta["started_ns"]))
    now = [file for file in files if file.session == last.session]
    seen = {file.rank for file in now}
    return {
        "run": str(last.meta.get("run", "")),
        "ranks": last.degrees[0],
        "ranks_seen": len(seen),
        "missing_ranks": [rank for rank in range(last.degrees[0]) if rank not in seen],
        "common_steps": len(set.intersection(*(set(file.steps.tolist()) for file in now))),
        "switch": _switch(folder),
        "recorded": _noted(now, "recorded"),
        "not_recorded": _noted(now, "not_recorded", "how"),
        "files": [
            {
                "file": file.path.name,
                "rank": file.rank,
                "host": file.meta.get("host"),
                "pid": file.meta.get("pid"),
                "steps": len(file.steps),
                "step_times": len(file.times),
                "dropped_steps": file.dropped[0],
                "dropped_step_times": file.dropped[1],
                "bytes": file.n_bytes,
                "last_write_age_s": round(file.age_s, 3),
                "clock_residual_s": None if file.residual_ns is None else file.residual_ns / 1e9,
                "torn_bytes": file.torn_bytes,
                "damaged": file.damaged,
            }
            for file in files
        ],
    }


def _noted(files: Sequence[RankFile], *names: str) -> list[dict[str, Any]]:
    """Notes that have these texts, once each, with the ranks that say them."""
    ranks: dict[tuple[str, ...], list[int]] = {}
    for file in files:
        for note in file.notes:
            if all(name in note for name in names):
                said_by = ranks.setdefault(tuple(note[name] for name in names), [])
                said_by += [file.rank] if file.rank not in said_by else []
    return [
        {**dict(zip(names, texts, strict=True)), "ranks": said_by}
        for texts, said_by in ranks.items()
    ]


def _switch(folder: Path) -> str | None:
    try:
        wish = json.loads((folder / CONTROL).read_text(encoding="utf-8"))
        return "off" if wish.get("on") is False else "on"
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def switch(folder: Path, *, on: bool, every: int | None = None) -> None:
    """Switch the recorders that write into a folder; they look once a second.

    Args:
        folder: of the run.
        on: whether operations are recorded.
        every: of every such step; None = as the job says.

    Raises:
        TraceError: there is no such folder.
        OutputError: it cannot be written to.
    """
    if not folder.is_dir():
        raise TraceError(f"{folder} is no folder; give the one that record.start() was given")
    wish: dict[str, Any] = {"on": on}
    if every is not None:
        wish["every"] = every
    write_files({folder / CONTROL: text_writer(json.dumps(wish) + "\n")}, force=True)
