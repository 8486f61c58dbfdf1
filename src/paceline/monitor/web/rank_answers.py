"""The API's response about a job's ranks over time."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from paceline.monitor.rank_groups import Ranges, by_number, some_ranks
from paceline.monitor.rank_map import Ratios
from paceline.monitor.web.bodies import bad

#: Rows of a response: default and maximum. A row has values of at most 512 bins.
USUAL_ROWS, MAX_ROWS = 256, 1024
_RANKS = re.compile(r"[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?){0,99}", re.ASCII)


def ranges_of(text: str | None) -> Ranges:
    """The ranks of a query like ``3,8-15``; all without it.

    Raises:
        HTTPException: 400, the query is invalid.
    """
    if text is None:
        return ((0, 2**31),)
    if not _RANKS.fullmatch(text):
        raise bad("ranks must be up to 100 ranks or ranges of them, like 3,8-15")
    ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return [(pair[0], pair[-1]) for pair in ends]


def ranks_answer(ratios: Ratios, ranges: Ranges, most: int) -> dict[str, Any]:
    """Bins, rows of ranks, and the value of each row in each bin, as JSON values."""
    rows = by_number(some_ranks(ratios, ranges), most)
    bins = rows.bins
    names = ("first", "last", "steps", "start", "last_start", "at")
    return {
        **{name: bins[name].tolist() for name in names},
        "ranks": [int(ranks[0]) for ranks in rows.ranks],
        "last_ranks": [int(ranks[-1]) for ranks in rows.ranks],
        "grouped": rows.is_grouped,
        "slowest": rows.slowest.tolist() if rows.is_grouped else None,
        "values": [
            [None if np.isnan(value) else round(value, 4) for value in row]
            for row in rows.values.tolist()
        ],
    }
