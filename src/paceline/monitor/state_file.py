"""A state in one ``.npz`` file: its arrays, and ``about``, JSON with its numbers and texts.

A crash leaves the old or the new file; checksums reveal damage.
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

from paceline.detect.state import State
from paceline.errors import StateError

_ABOUT = "about"

#: Exceptions from reading a damaged file.
_DAMAGE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, IndexError, OverflowError, MemoryError),
    *(RuntimeError, zipfile.BadZipFile, zlib.error),
)


def write_state(path: Path, about: State, arrays: Mapping[str, Any]) -> None:
    """Replace the file; it is on disk on return."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        np.savez(file, **{_ABOUT: np.array(json.dumps(about)), **arrays})
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_state(path: Path) -> tuple[State, State] | None:
    """The numbers and texts, and the arrays; None if the file does not exist.

    Raises:
        StateError: the file is damaged.
    """
    try:
        return _read(path)
    except FileNotFoundError:
        return None
    except _DAMAGE as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise StateError(f"{path.name} cannot be read: {reason}") from None


def _read(path: Path) -> tuple[State, State]:
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
        raise ValueError("its description is no JSON object")
    return about, arrays
