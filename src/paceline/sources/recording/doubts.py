"""Doubts about a recording: damaged places, dropped steps, clocks, and unlike profiled steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paceline.sources.recording.files import RankFile
from paceline.units import seconds

#: Share, and standard errors, by which profiled steps may differ from the others; fewest steps of
#: both; and steps that warm up.
UNLIKE, UNLIKE_ERRORS, FEWEST, WARM_UP = 0.1, 3.0, 8, 3


def doubts(files: Sequence[RankFile]) -> list[str]:
    """The reader's notes on the files."""
    found = []
    torn = [file for file in files if file.torn_bytes]
    if torn:
        found.append(
            f"{len(torn)} files end in an unfinished block, left out (the first is "
            f"{torn[0].path.name}, {torn[0].torn_bytes} bytes)"
        )
    damaged = [file for file in files if file.damaged]
    if damaged:
        places = sum(file.damaged for file in damaged)
        found.append(
            f"{places} damaged places skipped in {len(damaged)} files ({damaged[0].path.name})"
        )
    dropped = sum(file.dropped[0] for file in files)
    if dropped:
        found.append(f"{dropped} profiled steps of single ranks were dropped while recording")
    if len(files) > 1 and any(file.residual_ns is None for file in files):
        found.append(
            "clocks were not compared while recording; the wall clocks of the hosts are used"
        )
    return found


def unlike_others(files: Sequence[RankFile]) -> list[str]:
    """A note where profiled steps take longer or shorter than the others, on the slowest rank.

    The first steps are left out: they warm up. A difference within ``UNLIKE_ERRORS`` standard
    errors is chance.
    """
    profiled_s, others_s, error_s = 0.0, 0.0, 0.0
    before_s = np.zeros(0)
    for file in files:
        warm = file.times[:, 0].min(initial=0) + WARM_UP
        times = file.times[file.times[:, 0] > warm]
        is_profiled = np.isin(times[:, 0], file.steps)
        if min(is_profiled.sum(), (~is_profiled).sum()) < FEWEST:
            return []
        both = [times[of, 2] / 1e9 for of in (is_profiled, ~is_profiled)]
        own_s, other_s = (float(side.mean()) for side in both)
        if own_s + other_s > profiled_s + others_s:
            profiled_s, others_s = own_s, other_s
            error_s = math.hypot(*(float(side.std(ddof=1)) / math.sqrt(len(side)) for side in both))
            before_s = _before_operations_s(file)[file.steps > warm]
    apart_s = abs(profiled_s - others_s)
    if apart_s <= max(UNLIKE * others_s, UNLIKE_ERRORS * error_s):
        return []
    means = f"profiled steps take {seconds(profiled_s)} on average, all others {seconds(others_s)}"
    others_usual_s = (1 + UNLIKE) * others_s
    if others_usual_s < profiled_s <= others_usual_s + before_s.mean():
        return [f"{means}: {_of_pauses(before_s[before_s > UNLIKE * others_s])}"]
    return [
        f"{means}: the analysis is of profiled steps only. Either profiling slows them, or steps "
        "alternate; record with another every, or every=1, to tell. `paceline detect` reads the "
        "times of all steps"
    ]


def _of_pauses(pauses_s: npt.NDArray[np.float64]) -> str:
    """The reason of longer profiled steps that begin with pauses, the end of a sentence."""
    return (
        f"{len(pauses_s):,} profiled steps wait about {seconds(float(np.median(pauses_s)))} before "
        "their first operation. An evaluation or a checkpoint may fall on profiled steps; record "
        "with an every that does not divide its interval, to tell. `paceline detect` reads the "
        "times of all steps"
    )


def _before_operations_s(file: RankFile) -> npt.NDArray[np.float64]:
    """[profiled step] seconds from its begin to its first operation; 0 without operations."""
    before_s, has_some = np.zeros(len(file.steps)), np.diff(file.first_op) > 0
    first_ns = np.minimum.reduceat(file.ops["start_ns"], file.first_op[:-1][has_some])
    before_s[has_some] = np.maximum(first_ns, 0) / 1e9
    return before_s
