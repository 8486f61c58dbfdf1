"""Lines of NDTimeline's raw log -> the parts of a metric that each line holds.

``LocalRawNDHandler`` of veScale (commit 20cf5c7,
legacy/vescale/ndtimeline/handlers/local_raw_handler.py) writes lines like this, times in seconds:

    2026-03-03 12:00:00,123 - metric_name: forward-compute, elapsed: 0.03,
    recent_elapsed_raw_parts: [0.01, 0.02], recent_since_start_raw_parts: [1710332816.61, ...],
    tags: [{'_inner_global_step': 7}, {}], step_range: range(7, 9), world_info: WorldInfo:
    TopoInfo(rank=3, dp_rank=1, ..., tp_rank=0, pp_rank=1, ...) TrainingInfo(...) {}

All of it is on one line. The tag of a part gives its step. Without tags, the parts are spread
evenly over the range, as ``parse_record`` in ``parser_handler.py`` does.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_LINE = re.compile(
    r"metric_name: (?P<name>[^,]{1,200}), elapsed: .*?"
    r"recent_elapsed_raw_parts: (?P<durations>\[[^]]*\]), "
    r"recent_since_start_raw_parts: (?P<starts>\[[^]]*\]), "
    r"tags: (?P<tags>.*), step_range: range\((?P<range>\d{1,10}, \d{1,10}(?:, [1-9]\d{0,9})?)\), "
    r"world_info: WorldInfo: TopoInfo\((?P<place>[^)]*)\)"
)
_STEP_TAG = re.compile(r"'_inner_global_step': (\d{1,10})\b")
_PLACE = ("rank", "dp_rank", "tp_rank", "pp_rank")
_RANK = re.compile(rf"\b({'|'.join(_PLACE)})=(\d{{1,9}})\b")
#: No flush covers a range of more steps.
_MAX_STEPS = 1 << 20


def is_raw(line: str) -> bool:
    """Whether a line is of the raw log."""
    return "metric_name: " in line and "recent_since_start_raw_parts: " in line


@dataclass(frozen=True, eq=False)
class Flush:
    """The parts of one metric on one rank that a line holds.

    Attributes:
        name: the metric.
        rank, dp, tp, pp: place of the rank in the job.
        step: [part] step number.
        start_s, duration_s: [part] seconds.
    """

    name: str
    rank: int
    dp: int
    tp: int
    pp: int
    step: npt.NDArray[np.int64]
    start_s: npt.NDArray[np.float64]
    duration_s: npt.NDArray[np.float64]


def flush_of(line: str) -> Flush | None:
    """The parts of a line; None if it is damaged, cut off, or has no steps for its parts."""
    match = _LINE.search(line)
    if match is None:
        return None
    try:
        durations, starts = (
            json.loads(match[name], parse_int=float) for name in ("durations", "starts")
        )
    except ValueError:
        return None
    place = {name: int(value) for name, value in _RANK.findall(match["place"])}
    if len(durations) != len(starts) or len(place) < len(_PLACE):
        return None
    steps = _steps(match["tags"], match["range"], len(durations))
    if steps is None or not {float}.issuperset(map(type, (*durations, *starts))):
        return None
    return Flush(
        name=match["name"],
        rank=place["rank"],
        dp=place["dp_rank"],
        tp=place["tp_rank"],
        pp=place["pp_rank"],
        step=np.array(steps, dtype=np.int64),
        start_s=np.array(starts, dtype=np.float64),
        duration_s=np.array(durations, dtype=np.float64),
    )


def _steps(tags: str, numbers: str, n_parts: int) -> list[int] | None:
    """[part] its step; None if neither tags nor the range give a step to every part."""
    tagged = [int(step) for step in _STEP_TAG.findall(tags)]
    if tagged:
        return tagged if len(tagged) == n_parts else None
    steps = range(*map(int, numbers.split(", ")))
    if not n_parts:
        return []
    if not 0 < len(steps) <= _MAX_STEPS or n_parts % len(steps):
        return None
    per_step = n_parts // len(steps)
    return [step for step in steps for _ in range(per_step)]
