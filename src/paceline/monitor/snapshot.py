"""A job's stream in a file beside its step times: saved periodically, loaded at a restart.

The names of the detector's arrays begin with ``detector.``. Version 0 had neither schema nor
version; it held the detector's attributes under the names of version 1's fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paceline.detect import detector
from paceline.detect.state import State
from paceline.monitor import step_stream as streams
from paceline.monitor.state_file import read_state, write_state
from paceline.monitor.step_stream import Stream

SNAPSHOT = "detector.npz"

_INNER = "detector."


def save_stream(stream: Stream, folder: Path) -> None:
    """Write the state of the closed steps; a crash leaves the old or the new file."""
    about = stream.state_dict()
    arrays = {name: about.pop(name) for name in _arrays(about)}
    if about["detector"] is not None:
        inner = about["detector"]
        arrays |= {f"{_INNER}{name}": inner.pop(name) for name in _arrays(inner)}
    write_state(folder / SNAPSHOT, about, arrays)


def load_stream(folder: Path) -> Stream | None:
    """The stream as last saved; None if nothing was saved.

    Raises:
        StateError: the snapshot is damaged, of a later version, or does not fit this one.
    """
    saved = read_state(folder / SNAPSHOT)
    return None if saved is None else Stream.from_state_dict(_merged(*saved))


def _arrays(state: Mapping[str, Any]) -> list[str]:
    return [name for name, value in state.items() if isinstance(value, np.ndarray)]


def _merged(about: State, arrays: State) -> State:
    """The state in a file, in the form of version 2."""
    if "schema" not in about:
        about, arrays = _from_version_0(about, arrays)
    if about.get("schema") == streams.STATE_SCHEMA and about.get("version") == 1:
        about = {**about, "version": 2, "taken_end": [0, 0], "back_end": [0, 0]}
    inner = about.get("detector")
    if isinstance(inner, dict):
        names = [name for name in arrays if name.startswith(_INNER)]
        inner |= {name.removeprefix(_INNER): arrays.pop(name) for name in names}
    return {**about, **arrays}


def _from_version_0(about: State, arrays: State) -> tuple[State, State]:
    """Version 0 saved a detector's attributes by name: numbers plainly, arrays as ``d_x``."""
    added: State = {"detector": None, "ongoing_since": None, "ongoing_healthy_s": None}
    about = {"schema": streams.STATE_SCHEMA, "version": 1, **added, **about}
    if isinstance(about["detector"], dict):
        about["detector"] |= {"schema": detector.STATE_SCHEMA, "version": 1}
    renamed = {
        f"{_INNER}{name[2:]}" if name.startswith("d_") else name: array
        for name, array in arrays.items()
    }
    return about, renamed
