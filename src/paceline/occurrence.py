"""Which of the equal rows a row is: the first, the second, ... of its kind, worker or group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def count_in_runs(keys: Sequence[npt.NDArray[Any]]) -> Ints:
    """[row] 0, 1, 2, ... within each run of neighbouring rows whose keys are equal."""
    begins = np.ones(len(keys[0]), dtype=bool)
    for key in keys:
        begins[1:] &= key[1:] == key[:-1]
    begins[1:] ^= True
    first = np.flatnonzero(begins)
    counts: Ints = np.arange(len(begins)) - np.repeat(first, np.diff(np.append(first, len(begins))))
    return counts


def occurrence(keys: Sequence[npt.NDArray[Any]], order: npt.NDArray[Any]) -> Ints:
    """[row] how many rows with equal keys are before it in ``order``, which sorts by the keys."""
    nth = np.empty(len(order), dtype=np.int64)
    nth[order] = count_in_runs([key[order] for key in keys])
    return nth
