"""The present content of a recording, and the switch that turns its recorders on and off."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.blockfile import CONTROL
from paceline.errors import TraceError
from paceline.files import text_writer, write_files
from paceline.sources.recording.files import RankFile

#: Recorders read the control file once a second; a file system may take another second.
_HEARD_WITHIN_S = 2.5
#: Most steps that are recorded in advance until all recorders have read the control file.
_MAX_AHEAD = 200


def summary(folder: Path, files: Sequence[RankFile]) -> dict[str, Any]:
    """Content of a recording's files, as a mapping for JSON.

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
    """The notes that have these names, each once with the ranks that wrote it."""
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
    wish = _wish(folder)
    return None if wish is None else "off" if wish.get("on") is False else "on"


def _wish(folder: Path) -> dict[str, Any] | None:
    """Content of the control file; None if it does not exist or cannot be read."""
    try:
        wish = json.loads((folder / CONTROL).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return wish if isinstance(wish, dict) else None


def switch(folder: Path, *, on: bool, every: int | None = None) -> None:
    """Switch the recorders that write into a folder; they read the switch once a second.

    Args:
        folder: folder of the run.
        on: whether operations are recorded.
        every: record one step in ``every``; None = the job's own setting.

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


def record_now(folder: Path, steps: int, *, last_step: int, step_s: float) -> int:
    """Ask all ranks for the operations of the next steps, whether or not it is their turn.

    Recorders read the control file at different moments. From its moment on, each recorder records
    all steps up to the same step number. So all of them record the last ``steps`` before it.

    Args:
        folder: folder of the run.
        steps: number of steps that all ranks should record, from 1 on.
        last_step: the newest step that the job has ended.
        step_s: duration of a step, seconds.

    Returns:
        The last step that is asked for.

    Raises:
        TraceError: there is no such folder, or the numbers are invalid.
        OutputError: it cannot be written to.
    """
    if steps < 1 or not step_s > 0:
        raise TraceError(f"--now asks for 1 step or more, not {steps}")
    if not folder.is_dir():
        raise TraceError(f"{folder} is no folder; give the one that record.start() was given")
    ahead = min(math.ceil(_HEARD_WITHIN_S / step_s) + 1, _MAX_AHEAD)
    until = last_step + ahead + steps
    # The limit keeps a restart from an early step from recording all steps until then. It is
    # doubled for ranks that are ahead.
    wish = {"on": True, **(_wish(folder) or {}), "until": until, "at_once": 2 * (ahead + steps)}
    write_files({folder / CONTROL: text_writer(json.dumps(wish) + "\n")}, force=True)
    return until
