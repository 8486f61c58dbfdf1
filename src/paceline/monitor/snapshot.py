"""A job's stream in a file beside its step times: saved now and then, loaded at a restart.

An ``.npz`` file: ``about`` is JSON with the numbers and texts of the state. The arrays lie beside
it, those of the detector with ``detector.`` before their names. Version 0 said neither schema nor
version and held the detector's attributes as they were, under the names of version 1's fields.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paceline.detect import detector
from paceline.detect.state import State
from paceline.errors import StateError
from paceline.monitor import step_stream as streams
from paceline.monitor.step_stream import Stream

SNAPSHOT = "detector.npz"

_ABOUT, _INNER = "about", "detector."

#: What reading a damaged file may raise.
_DAMAGE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, IndexError, OverflowError, MemoryError),
    *(RuntimeError, zipfile.BadZipFile, zlib.error),
)


def save_stream(stream: Stream, folder: Path) -> None:
    """Write what is known of the closed steps; a crash leaves the old file or the new one."""
    about = stream.state_dict()
    arrays = {name: about.pop(name) for name in _arrays(about)}
    if about["detector"] is not None:
        inner = about["detector"]
        arrays |= {f"{_INNER}{name}": inner.pop(name) for name in _arrays(inner)}
    partial = folder / f".{SNAPSHOT}.partial"
    with partial.open("wb") as file:
        np.savez(file, **{_ABOUT: np.array(json.dumps(about)), **arrays})
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / SNAPSHOT)


def load_stream(folder: Path) -> Stream | None:
    """The stream as it was saved last; None where nothing was saved.

    Raises:
        StateError: the snapshot is damaged, of a later version, or does not fit this one.
    """
    try:
        state = _read(folder / SNAPSHOT)
    except FileNotFoundError:
        return None
    except _DAMAGE as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise StateError(f"{SNAPSHOT} cannot be read: {reason}") from None
    return Stream.from_state_dict(state)


def _arrays(state: Mapping[str, Any]) -> list[str]:
    return [name for name, value in state.items() if isinstance(value, np.ndarray)]


def _read(path: Path) -> State:
    """The state that a file holds, as its version has it; version 0 as version 1."""
    with path.open("rb") as file:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()  # before NumPy trusts the sizes in it
        if damaged is not None:
            raise ValueError(f"{damaged} is damaged")
        file.seek(0)
        with np.load(file, allow_pickle=False) as saved:
            arrays = {name: saved[name] for name in saved.files}
    about = json.loads(str(arrays.pop(_ABOUT)))
    if not isinstance(about, dict):
        raise ValueError("it does not say what it is")
    if "schema" not in about:
        about, arrays = _from_version_0(about, arrays)
    inner = about.get("detector")
    if isinstance(inner, dict):
        names = [name for name in arrays if name.startswith(_INNER)]
        inner |= {name.removeprefix(_INNER): arrays.pop(name) for name in names}
    return {**about, **arrays}


def _from_version_0(about: State, arrays: State) -> tuple[State, State]:
    """The attributes of a detector were saved by their names: numbers plain, arrays ``d_x``."""
    added: State = {"detector": None, "ongoing_since": None, "ongoing_healthy_s": None}
    about = {"schema": streams.STATE_SCHEMA, "version": 1, **added, **about}
    if isinstance(about["detector"], dict):
        about["detector"] |= {"schema": detector.STATE_SCHEMA, "version": 1}
    renamed = {
        f"{_INNER}{name[2:]}" if name.startswith("d_") else name: array
        for name, array in arrays.items()
    }
    return about, renamed
