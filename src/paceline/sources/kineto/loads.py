"""Waits of the training thread for torch's data loader.

``torch/utils/data/dataloader.py`` writes a range around each batch, with the name
``enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__`` or that of another iterator. No pass
computes in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from paceline.sources.kineto.events import Profile, Span

#: Begin of the name of such a range.
LOAD: Final = "enumerate(DataLoader)#"

#: A pass begins behind the last wait that has less than this share of its events in front.
FRONT_SHARE: Final = 0.3


def loads_of(ranges: Sequence[tuple[str, Span]], main_thread: str) -> list[Span]:
    """The waits of a thread, by start; a loader within a loader counts once.

    Args:
        ranges: thread and range of each load in the file.
        main_thread: the thread that runs the steps; "" if it is not known.
    """
    outer: list[Span] = []
    for span in sorted(span for thread, span in ranges if main_thread in ("", thread)):
        if not outer or span.start_s >= outer[-1].end_s:
            outer.append(span)
    return outer


def behind_waits(
    starts: npt.NDArray[np.float64], first: int, last: int, waits: Sequence[Span]
) -> int:
    """The first of the events ``first`` to ``last`` that is part of their pass.

    Few events in front of a wait are no part of it, such as a logged loss or a barrier.
    """
    begin = first
    for wait in waits:
        if starts[first] <= wait.start_s < starts[last - 1]:
            behind = int(np.searchsorted(starts, wait.end_s))
            if behind - first < FRONT_SHARE * (last - first):
                begin = max(begin, behind)
    return begin


def waits_by_step(
    profiles: Sequence[Profile],
    places: Mapping[int, tuple[int, int]],
    steps: Sequence[int],
    shape: tuple[int, int],
) -> npt.NDArray[np.float64] | None:
    """[step, dp, pp] longest wait for data of a worker's ranks, seconds; None without any load."""
    if not any(profile.loads for profile in profiles):
        return None
    row = {number: n for n, number in enumerate(steps)}
    waits = np.zeros((len(row), *shape))
    for profile in profiles:
        dp, pp = places[profile.rank]
        begin = np.array([load.start_s for load in profile.loads])
        spent = np.append(0.0, np.cumsum([load.end_s - load.start_s for load in profile.loads]))
        for step in profile.steps:
            if step.number in row:
                low, high = np.searchsorted(begin, [step.start_s, step.end_s])
                cell = (row[step.number], dp, pp)
                waits[cell] = max(waits[cell], spent[high] - spent[low])
    return waits
