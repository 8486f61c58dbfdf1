"""Requests and answers of a running job's validation: two files in the run's folder.

The requester writes ``validate.json``: ``{"number": 3, "ranks": [4]}``. The job's validator writes
``validation.json`` with its last measurement and the number of the answered request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.errors import StateError, TraceError
from paceline.files import text_writer, write_files

SCHEMA, VERSION = "paceline-validation", 1
REQUEST, ANSWER = "validate.json", "validation.json"


def ask_validation(folder: Path, ranks: Sequence[int]) -> int | None:
    """Send a request to a job's validator; returns its number, None if no validator runs.

    Raises:
        TraceError: the folder cannot be read.
        StateError: the validator is of another version.
        OutputError: the request cannot be written.
    """
    answer = _read(folder / ANSWER)
    if answer is None:
        return None
    _check(answer, folder / ANSWER)
    number = max(int(answer["number"]), requested(folder)) + 1
    text = json.dumps({"number": number, "ranks": sorted(ranks)}) + "\n"
    write_files({folder / REQUEST: text_writer(text)}, force=True)
    return number


def requested(folder: Path) -> int:
    """The number of the newest request; 0 without a readable one."""
    try:
        request = _read(folder / REQUEST) or {}
        return int(request.get("number", 0))
    except (TraceError, TypeError, ValueError):
        return 0


def read_validation(folder: Path, number: int | None) -> Mapping[str, Any] | None:
    """The verdict that answers a request; None while there is none.

    Raises:
        TraceError: the answer is damaged.
        StateError: it is of another version.
    """
    answer = _read(folder / ANSWER)
    if answer is None:
        return None
    _check(answer, folder / ANSWER)
    if number is not None and int(answer["number"]) < number:
        return None
    verdict: Mapping[str, Any] = answer["verdict"]
    return verdict


def write_validation(
    folder: Path, *, number: int, step: int, every: int, verdict: Mapping[str, Any]
) -> None:
    """Write a measurement.

    Raises:
        OutputError: the folder cannot be written to.
    """
    answer = {
        "schema": SCHEMA,
        "version": VERSION,
        "number": number,
        "step": step,
        "every": every,
        "verdict": dict(verdict),
    }
    write_files({folder / ANSWER: text_writer(json.dumps(answer) + "\n")}, force=True)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(f"{path} cannot be read: {str(error)[:200]}") from None
    if not isinstance(content, dict):
        raise TraceError(f"{path} is no JSON object")
    return content


def _check(answer: Mapping[str, Any], path: Path) -> None:
    if (answer.get("schema"), answer.get("version")) != (SCHEMA, VERSION):
        raise StateError(f"{path} is of another version of Paceline; update both sides")
    if not isinstance(answer.get("number"), int) or not isinstance(answer.get("verdict"), dict):
        raise TraceError(f"{path} is damaged: it lacks number or verdict")
